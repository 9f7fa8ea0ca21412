"""A cluster's directories with compacted topics, each replica compacted by the broker's own code.

Of each partition broker 1 has everything that was sent, broker 2 has compacted all that it may, and
broker 3 only the first segments. `cluster.json` says that all three are in sync. Faults are planted
afterwards by `replace_batches`, which makes batches as compaction does.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.broker.disk import RealFiles
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.turns import without_pause
from minibroker.protocol.records.batch import BatchHeader, ProducerStamp, iterate_headers
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import Record, decode_records, encode_batch
from minibroker.protocol.records.retained import empty, filler, retain
from minibroker.protocol.types import TopicPartition
from tests.support.damage import Batch, Replica
from tests.support.made_cluster import CLUSTER_ID, EPOCHS, LIMITS, NODES, copy_broker
from tests.support.processes import EXPORT

KEPT: Final = "kept"  # compacted
ONCE: Final = "once"  # compacted before its policy was changed
NEVER: Final = "never"
TOPIC_IDS: Final = {KEPT: bytes(range(16)), ONCE: bytes(range(16, 32)), NEVER: bytes(range(32, 48))}
HOUR_MS: Final = 3_600_000
RETENTION_MS: Final = HOUR_MS  # delete.retention.ms
BATCHES: Final = 24
RECORDS: Final = 4  # in a batch
END: Final = BATCHES * RECORDS
LONE, LONE_AT = b"lone", 2 * RECORDS + 1  # a key with one record
DELETED, WRITTEN_AT, DELETED_AT = b"deleted", 1 * RECORDS + 2, 3 * RECORDS + 2  # and a tombstone
MAP_BYTES: Final = 1 << 20


class Made(NamedTuple):
    """A partition. Its records were made at `time_ms`; `is_expired`: broker 2 has removed its
    tombstones; broker 3 begins at `start`,
    and then leads."""

    topic: str
    partition: int
    time_ms: int
    is_expired: bool = False
    start: int = 0


def records_of(number: int, time_ms: int) -> list[tuple[int, bytes, bytes | None, tuple[()]]]:
    """The records of a batch."""
    found: list[tuple[int, bytes, bytes | None, tuple[()]]] = []
    for offset in range(number * RECORDS, (number + 1) * RECORDS):
        key = {LONE_AT: LONE, WRITTEN_AT: DELETED, DELETED_AT: DELETED}.get(offset)
        value = None if offset == DELETED_AT else b"value of %d" % offset
        found.append((time_ms, key or b"key-%d" % (offset % 7), value, ()))
    return found


def producer_of(number: int) -> ProducerStamp:
    """The producer of a batch, and its sequence: one of two has a new epoch in the middle."""
    epoch = number // (BATCHES // 2) if number % 2 else 0
    first = epoch * BATCHES // 2
    return ProducerStamp(1000 + number % 2, epoch, (number - first) // 2 * RECORDS)


def make_compacted(root: Path, made: Sequence[Made], now_ms: int) -> None:
    """Fill `root` with `broker-1` to `broker-3` and `cluster.json`."""
    limits = replace(LIMITS, is_compacted=True, delete_retention_ms=RETENTION_MS)
    first = root / f"broker-{NODES[0]}"
    manager = LogManager(RealFiles(), first, limits)
    manager.start("boot", CLUSTER_ID, NODES[0], now_ms)
    for each in made:
        name = TopicPartition(each.topic, each.partition)
        log = manager.create(name, TOPIC_IDS[each.topic], limits, now_ms)
        for number in range(BATCHES):
            batch = encode_batch(records_of(number, each.time_ms), producer=producer_of(number))
            log.append_as_leader(memoryview(batch), number * EPOCHS // BATCHES, now_ms)
    manager.close({name: log.log_end for name, log in manager.logs.items()})
    for node in NODES[1:]:
        copy = copy_broker(first, node)
        manager = LogManager(RealFiles(), copy, limits)
        manager.start("boot", CLUSTER_ID, node, now_ms)
        for each in made:
            if each.topic != NEVER:
                log = manager.logs[TopicPartition(each.topic, each.partition)]
                _compact(log, each, node, now_ms)
        manager.checkpoint_first_dirty()
        manager.close({name: log.log_end for name, log in manager.logs.items()})
    (root / EXPORT).write_text(json.dumps(_described(made, now_ms)))


def _compact(log: Log, made: Made, node: int, now_ms: int) -> None:
    if node == NODES[1]:
        _clean(log, log.log_end, made.time_ms)
        log.compaction.first_dirty = 0  # small segments are merged by the next compaction
        _clean(log, log.log_end, now_ms if made.is_expired else made.time_ms)
        return
    if made.start:
        log.raise_start(made.start)
        assert without_pause(log.apply_retention(log.log_end, now_ms)), "a segment lies below"
    _clean(log, END // 2, made.time_ms)


def compact(
    data_dir: Path, node: int, names: Sequence[TopicPartition], limits: LogLimits, now_ms: int
) -> None:
    """Compact all that may be compacted of some logs of a broker that has stopped."""
    manager = LogManager(RealFiles(), data_dir, limits)
    manager.start("boot", CLUSTER_ID, node, now_ms)
    for name in names:
        _clean(manager.logs[name], manager.logs[name].log_end, now_ms)
    manager.checkpoint_first_dirty()
    manager.close({name: log.log_end for name, log in manager.logs.items()})


def _clean(log: Log, high_watermark: int, now_ms: int) -> None:
    found = log.compaction.find_cleanable(high_watermark, FOREVER_MS)
    steps = log.compaction.clean(found, MAP_BYTES, now_ms)
    argument = None
    while True:
        try:
            step = steps.send(argument)
        except StopIteration:
            return
        argument = step() if step else None


FOREVER_MS: Final = 1 << 60


def _described(made: Sequence[Made], now_ms: int) -> dict[str, object]:
    configs = {"cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_MS)}
    topics = [
        {
            "name": topic,
            "id": topic_id.hex(),
            "configs": configs if topic == KEPT else {},
            "partitions": [
                {
                    "partition": each.partition,
                    "leader": NODES[2 if each.start else each.partition % len(NODES)],
                    "leader_epoch": EPOCHS - 1,
                    "isr": list(NODES),
                    "replicas": list(NODES),
                    "unsafe": [],
                }
                for each in made
                if each.topic == topic
            ],
        }
        for topic, topic_id in TOPIC_IDS.items()
    ]
    return {
        "version": 1,
        "cluster_id": CLUSTER_ID,
        "exported_at_ms": now_ms,
        "controller_id": -1,
        "controller_epoch": 1,
        "brokers": [],
        "topics": topics,
        "tombstones": [],
    }


# -- changes of what is there


def batch_with(replica: Replica, offset: int) -> Batch:
    """The batch that covers an offset."""
    return next(
        batch
        for batch in replica.batches()
        if batch.header.base_offset <= offset <= batch.header.last_offset
    )


def replace_batch(batch: Batch, new: bytes) -> None:
    """Put another batch in the place of one; the indexes of the segment go."""
    content = batch.path.read_bytes()
    batch.path.write_bytes(content[: batch.position] + bytes(new) + content[batch.end :])
    for suffix in (".index", ".timeindex"):
        batch.path.with_suffix(suffix).unlink(missing_ok=True)


def _bytes_of(batch: Batch) -> bytes:
    return batch.path.read_bytes()[batch.position : batch.end]


def drop(*offsets: int) -> Callable[[Replica], None]:
    """Remove records as compaction does, each from a batch that keeps another one or none."""

    def plant(replica: Replica) -> None:
        for offset in offsets:
            batch = batch_with(replica, offset)
            columns = decode_columns(_bytes_of(batch), batch.header)
            assert offset in columns.offsets, f"offset {offset} is gone already"
            is_kept = [each != offset for each in columns.offsets]
            new = retain(batch.header, columns, is_kept) if any(is_kept) else empty(batch.header)
            replace_batch(batch, bytes(new))

    return plant


def fill(offset: int) -> Callable[[Replica], None]:
    """Put a filler in the place of the batch with an offset."""

    def plant(replica: Replica) -> None:
        batch = batch_with(replica, offset)
        header = batch.header
        replace_batch(batch, filler(header.base_offset, header.last_offset, header.leader_epoch))

    return plant


def alter(offset: int, value: bytes) -> Callable[[Replica], None]:
    """Give a record another value; its batch keeps its form."""

    def plant(replica: Replica) -> None:
        batch = batch_with(replica, offset)
        columns = decode_columns(_bytes_of(batch), batch.header)
        at = list(columns.offsets).index(offset)
        values = [*columns.values]
        values[at] = value
        changed = columns._replace(values=values)
        replace_batch(batch, retain(batch.header, changed, [True] * len(values)))

    return plant


def skip_sequences(offset: int) -> Callable[[Replica], None]:
    """Let the batch with an offset begin at a later sequence of its producer."""

    def plant(replica: Replica) -> None:
        batch = batch_with(replica, offset)
        header: BatchHeader = batch.header
        columns = decode_columns(_bytes_of(batch), header)
        header = header._replace(base_sequence=header.base_sequence + 1)
        replace_batch(batch, retain(header, columns, [True] * len(columns.offsets)))

    return plant


def restore(original: Replica, segment: int) -> Callable[[Replica], None]:
    """Put a segment of another replica beside what compaction made of it."""

    def plant(replica: Replica) -> None:
        name = f"{segment:020}.log"
        target = replica.directory / name
        assert not target.exists(), "it was not merged into another"
        shutil.copyfile(original.directory / name, target)

    return plant


def interrupt_swap(original: Replica) -> Callable[[Replica], None]:
    """Leave the files of a broker that was killed in the middle of a swap."""

    def plant(replica: Replica) -> None:
        first = replica.directory / f"{0:020}.log"
        first.rename(first.with_name(first.name + ".swap"))
        there = {path.name for path in replica.directory.glob("*.log")}
        for path in sorted(original.directory.glob("*.log")):
            if path.name not in there:
                shutil.copyfile(path, replica.directory / path.name)
        (replica.directory / f"{0:020}.log.cleaned").write_bytes(b"half a cop")

    return plant


def segments_of(replica: Replica) -> list[int]:
    """The base offsets of its segments."""
    return sorted(int(path.stem) for path in replica.directory.glob("*.log"))


def values_of(replica: Replica) -> Mapping[int, Record]:
    """All records, by offset."""
    found = {}
    for path in sorted(replica.directory.glob("*.log")):
        data = path.read_bytes()
        for position, header in iterate_headers(data):
            for record in decode_records(data[position:], header):
                found[record.offset] = record
    return found


def write_ledger(path: Path, made: Sequence[Made]) -> Path:
    """What the producers were told of all records."""
    lines: list[dict[str, object]] = [{"name": "startup_complete"}]
    for each in made:
        told: dict[str, object] = {"name": "producer_send_success", "acks": -1}
        told |= {"topic": each.topic, "topicId": TOPIC_IDS[each.topic].hex()}
        told |= {"partition": each.partition, "timestamp": each.time_ms}
        for number in range(BATCHES):
            for n, (_, key, value, _) in enumerate(records_of(number, each.time_ms)):
                record = {"offset": number * RECORDS + n, "key": key.decode()}
                text = None if value is None else value.decode()
                lines.append(told | record | {"value": text})
    lines.append({"name": "shutdown_complete"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
