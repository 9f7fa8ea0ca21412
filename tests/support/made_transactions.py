"""A cluster's directories with transactions, written by the broker's own code.

Each partition of the topic has producers and transactional ids of its own. Broker 1 writes the
logs, those of `__consumer_offsets` and `__transaction_state`, too, and stops in order; the other
brokers' directories are copies. What no broker does is planted while the logs are written, or
afterwards in one of the directories.
"""

import json
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from minibroker.broker.disk import RealFiles
from minibroker.broker.groups.records import CommittedOffset, OffsetKey
from minibroker.broker.groups.records import encode_key as encode_offset_key
from minibroker.broker.groups.records import encode_value as encode_offset
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.transactions.records import encode_key, encode_value
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.transaction import Transaction
from minibroker.protocol.constants import NO_SEQUENCE, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from minibroker.protocol.records.batch import (
    TRANSACTIONAL,
    ProducerStamp,
    read_header,
    write_header,
)
from minibroker.protocol.records.control import EndMarker, encode_end_marker
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.support.damage import Batch, Replica
from tests.support.made_cluster import (
    CLUSTER_ID,
    EPOCHS,
    LIMITS,
    NODES,
    OFFSETS_TOPIC_ID,
    TOPIC,
    TOPIC_ID,
    copy_broker,
)
from tests.support.made_compacted import compact
from tests.support.processes import EXPORT

STATES_TOPIC_ID: Final = bytes(range(32, 48))
LEADER_EPOCH: Final = EPOCHS - 1
RECORDS: Final = 3  # in a batch
TIMEOUT_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
OFFSETS: Final = TopicPartition(OFFSETS_TOPIC, 0)
FIRST, SECOND = 1, 2  # protocols
# The first transactions of each partition: where they begin, and where their markers are.
COMMITTED_AT, COMMIT_AT, ABORTED_AT, ABORT_AT = 0, 3, 4, 7
OPEN_AT: Final = 30  # the first offset behind what each partition begins with


class Maker:
    """Writes one partition of the topic, and what coordinators store about its producer."""

    def __init__(self, number: int, logs: dict[TopicPartition, Log], now_ms: int) -> None:
        self.name = TopicPartition(TOPIC, number)
        self.producer_id = 1000 * (number + 1)
        self.transactional_id = f"of-{number}"
        self.now_ms = now_ms
        self.log = logs[self.name]
        self._logs = logs
        self._sequences: dict[tuple[int, int], int] = {}

    def records(
        self, epoch: int, *, producer_id: int | None = None, ago_ms: int = 0, plain: bool = False
    ) -> int:
        """Append a batch, of a transaction unless it is plain; return its first offset."""
        producer = (self.producer_id if producer_id is None else producer_id, epoch)
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + RECORDS
        now_ms = self.now_ms - ago_ms
        end = self.log.log_end
        rows = [(now_ms, b"key-%d" % n, b"at %d" % (end + n), ()) for n in range(RECORDS)]
        batch = encode_batch(rows, producer=ProducerStamp(*producer, sequence))
        return self._append(self.log, batch, None if plain else producer)

    def offset(self, epoch: int, group: str, offset: int) -> int:
        """Commit an offset of this partition in the transaction; return the record's place."""
        key = encode_offset_key(OffsetKey(group, TOPIC, self.name.partition))
        value = encode_offset(CommittedOffset(offset, commit_timestamp_ms=self.now_ms))
        stamp = ProducerStamp(self.producer_id, epoch, NO_SEQUENCE)
        batch = encode_batch([(self.now_ms, key, value, ())], producer=stamp)
        return self._append(self._logs[OFFSETS], batch, (self.producer_id, epoch))

    def _append(self, log: Log, batch: bytearray, producer: tuple[int, int] | None) -> int:
        verification = None
        if producer is not None:
            write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL))
            verification = log.verifications.begin(*producer)
        appended = log.append_as_leader(memoryview(batch), LEADER_EPOCH, self.now_ms, verification)
        return appended.base_offset

    def marker(
        self,
        epoch: int,
        *,
        commit: bool,
        name: TopicPartition | None = None,
        producer_id: int | None = None,
    ) -> int:
        """Append a marker to this partition, or another; return its offset."""
        producer = (self.producer_id if producer_id is None else producer_id, epoch)
        log = self._logs[name or self.name]
        marker = EndMarker(commit, LEADER_EPOCH)
        return log.append_marker(marker, producer, LEADER_EPOCH, self.now_ms).last_offset

    def state(
        self,
        state: State,
        epoch: int,
        *partitions: TopicPartition,
        ago_ms: int = 0,
        **more: Any,
    ) -> None:
        """Store a state of the transactional id, which was reached some time ago."""
        at_ms = self.now_ms - ago_ms
        value = Transaction(
            more.pop("producer_id", self.producer_id),
            epoch,
            TIMEOUT_MS,
            state,
            frozenset(partitions),
            started_ms=at_ms,
            updated_ms=at_ms,
            version=more.pop("version", SECOND),
        )
        row = (self.now_ms, encode_key(self.transactional_id), encode_value(value), ())
        log = self._logs[TopicPartition(TRANSACTIONS_TOPIC, 0)]
        self._append(log, encode_batch([row]), None)

    def transaction(self, epoch: int, *, commit: bool) -> None:
        """A whole transaction of the second protocol in this partition."""
        self.state(State.ONGOING, epoch, self.name)
        self.records(epoch)
        self.state(State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, epoch + 1, self.name)
        self.marker(epoch + 1, commit=commit)
        self.state(State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT, epoch + 1)

    def begin(self) -> None:
        """What each partition begins with: transactions, and records of another producer."""
        self.transaction(0, commit=True)
        self.transaction(1, commit=False)
        for _ in range(6):  # the next segment begins
            self.records(0, producer_id=self.producer_id + 1, plain=True)
        self.transaction(2, commit=True)


def make_transactions(
    root: Path, builds: Sequence[Callable[[Maker], object]], *, is_compacted: bool = False
) -> None:
    """Fill `root` with `broker-1` to `broker-3` and `cluster.json`: a partition for each build,
    which is called once the partition has begun. If the topic is compacted, broker 2 has done it.
    """
    now_ms = time.time_ns() // 1_000_000
    first = root / f"broker-{NODES[0]}"
    limits = replace(LIMITS, is_compacted=True) if is_compacted else LIMITS
    manager = LogManager(RealFiles(), first, limits)
    manager.start("boot", CLUSTER_ID, NODES[0], now_ms)
    topics = {TOPIC: TOPIC_ID, OFFSETS_TOPIC: OFFSETS_TOPIC_ID, TRANSACTIONS_TOPIC: STATES_TOPIC_ID}
    counts = {TOPIC: len(builds), OFFSETS_TOPIC: 1, TRANSACTIONS_TOPIC: 1}
    logs = {
        name: manager.create(name, topics[topic], limits if topic == TOPIC else LIMITS, now_ms)
        for topic, count in counts.items()
        for name in (TopicPartition(topic, number) for number in range(count))
    }
    for number, build in enumerate(builds):
        maker = Maker(number, logs, now_ms)
        maker.begin()
        build(maker)
    manager.close({name: log.log_end for name, log in manager.logs.items()})
    for node in NODES[1:]:
        copy = copy_broker(first, node)
        if is_compacted and node == NODES[1]:
            compact(copy, node, [name for name in logs if name.topic == TOPIC], limits, now_ms)
    exported: dict[str, Any] = {
        "version": 1,
        "cluster_id": CLUSTER_ID,
        "exported_at_ms": now_ms,
        "controller_id": -1,
        "controller_epoch": 1,
        "brokers": [],
        "topics": [_described(topic, topics[topic], count) for topic, count in counts.items()],
        "tombstones": [],
    }
    if is_compacted:
        exported["topics"][0]["configs"] = {"cleanup.policy": "compact"}
    (root / EXPORT).write_text(json.dumps(exported))


def _described(name: str, topic_id: bytes, count: int) -> dict[str, object]:
    partitions = [
        {
            "partition": number,
            "leader": NODES[number % len(NODES)],
            "leader_epoch": LEADER_EPOCH,
            "isr": list(NODES),
            "replicas": list(NODES),
            "unsafe": [],
        }
        for number in range(count)
    ]
    return {"name": name, "id": topic_id.hex(), "configs": {}, "partitions": partitions}


# -- changes of what is there


def batch_at(replica: Replica, offset: int) -> Batch:
    """The batch that begins at an offset."""
    return next(each for each in replica.batches() if each.header.base_offset == offset)


def change_marker(offset: int, *, commit: bool) -> Callable[[Replica], None]:
    """Let a marker be of the other type."""

    def plant(replica: Replica) -> None:
        batch = batch_at(replica, offset)
        header = batch.header
        marker = EndMarker(commit, LEADER_EPOCH)
        new = encode_end_marker(
            marker, header.producer_id, header.producer_epoch, header.max_timestamp
        )
        write_header(
            new,
            read_header(new)._replace(
                base_offset=header.base_offset, leader_epoch=header.leader_epoch
            ),
        )
        _overwrite(batch, new)

    return plant


def unmark(offset: int) -> Callable[[Replica], None]:
    """Let a marker be a plain record."""

    def plant(replica: Replica) -> None:
        batch = batch_at(replica, offset)
        new = bytearray(batch.path.read_bytes()[batch.position : batch.end])
        write_header(
            new,
            batch.header._replace(
                attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1
            ),
        )
        _overwrite(batch, new)

    return plant


def _overwrite(batch: Batch, new: bytes) -> None:
    content = bytearray(batch.path.read_bytes())
    assert len(new) == batch.end - batch.position, "the indexes would not fit"
    content[batch.position : batch.end] = new
    batch.path.write_bytes(content)


ENTRY: Final = struct.Struct(">hqqqq")
Entry = tuple[int, int, int, int]  # producer id, first and last offset, last stable offset


def list_path(replica: Replica, segment: int = 0) -> Path:
    """The list of a segment's aborted transactions."""
    return replica.directory / f"{segment:020}.txnindex"


def change_list(change: Callable[[list[Entry]], Iterable[Entry]]) -> Callable[[Replica], None]:
    """Change the list of the first segment."""

    def plant(replica: Replica) -> None:
        path = list_path(replica)
        data = path.read_bytes() if path.exists() else b""
        entries: list[Entry] = [(a, b, c, d) for _, a, b, c, d in ENTRY.iter_unpack(data)]
        path.write_bytes(b"".join(ENTRY.pack(0, *entry) for entry in change(entries)))

    return plant
