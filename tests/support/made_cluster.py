"""A cluster's directories as a clean stop leaves them, made in a moment and without a process.

The logs of broker 1 are written by the broker's own code on the real disk: producers that number
their batches, several leader epochs, many small segments with indexes and snapshots, logs whose
front retention has taken. The other brokers' directories are copies of it under other names, as if
they had copied each batch, and `cluster.json` says of every partition that all three are in sync.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.broker.coordination.shard import partition_of
from minibroker.broker.disk import RealFiles
from minibroker.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_value,
)
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.support.processes import EXPORT

NODES: Final = (1, 2, 3)
TOPIC: Final = "made"
TOPIC_ID: Final = bytes(range(16))
OFFSETS_TOPIC_ID: Final = bytes(range(16, 32))
CLUSTER_ID: Final = "made-cluster"
NOW_MS: Final = 1_700_000_000_000
BATCHES: Final = 18
RECORDS: Final = 4  # in a batch
EPOCHS: Final = 3
# Of each so many partitions one has lost its front to retention.
RETAINED_EVERY: Final = 5
FOREVER: Final = 1 << 60
LIMITS: Final = LogLimits(
    segment_bytes=1000,  # six batches
    segment_ms=FOREVER,
    segment_jitter_ms=0,
    index_interval_bytes=100,
    index_bytes_max=10 << 20,
    batch_bytes_max=1 << 20,
    retention_ms=-1,
    retention_bytes=-1,
    file_delete_delay_ms=FOREVER,
    producer_expiration_ms=FOREVER,
    timestamp_type="CreateTime",
    timestamp_before_max_ms=FOREVER,
    timestamp_after_max_ms=FOREVER,
)


class Commit(NamedTuple):
    """How far a group has read a partition of the topic."""

    group: str
    partition: int
    offset: int
    home: int = 0  # the partition of the offsets topic that has it


def group_at(home: int, homes: int, prefix: str = "readers-") -> str:
    """A group's name, whose commits belong into this partition of the offsets topic."""
    names = (f"{prefix}{number}" for number in range(1000))
    return next(name for name in names if partition_of(name, homes) == home)


def copy_broker(first: Path, node: int) -> Path:
    """Copy the first broker's directory, beside it, as that of another one; return where it is."""
    copy = first.with_name(f"broker-{node}")
    shutil.copytree(first, copy)
    meta = copy / "meta.properties"
    text = meta.read_text().replace(f"node.id={NODES[0]}\n", f"node.id={node}\n")
    meta.write_text(text.replace("directory.id=00", f"directory.id={node:02}"))
    return copy


def make_cluster(root: Path, partition_count: int, commits: Sequence[Commit] = ()) -> Path:
    """Fill `root` with `broker-1` to `broker-3` and `cluster.json`, whose path is returned.

    With commits there is an offsets topic too: a batch and an offset for each.
    """
    first = root / f"broker-{NODES[0]}"
    manager = LogManager(RealFiles(), first, LIMITS)
    manager.start("boot", CLUSTER_ID, NODES[0], NOW_MS)
    for number in range(partition_count):
        log = manager.create(TopicPartition(TOPIC, number), TOPIC_ID, LIMITS, NOW_MS)
        _fill(log, number)
    homes = 1 + max((commit.home for commit in commits), default=-1)
    for home in range(homes):
        log = manager.create(TopicPartition(OFFSETS_TOPIC, home), OFFSETS_TOPIC_ID, LIMITS, NOW_MS)
        _fill_offsets(log, [commit for commit in commits if commit.home == home])
    manager.close({name: log.log_end for name, log in manager.logs.items()})
    for node in NODES[1:]:
        copy_broker(first, node)
    export = root / EXPORT
    export.write_text(json.dumps(described(partition_count, homes)))
    return export


def _fill(log: Log, partition: int) -> None:
    """Two producers in turn, a new leader now and then; perhaps the front goes again."""
    for number in range(BATCHES):
        epoch, turn = number * EPOCHS // BATCHES, number // 2
        records = [
            (NOW_MS + number * RECORDS + n, b"%d" % n, b"%d %d %d" % (partition, number, n), ())
            for n in range(RECORDS)
        ]
        producer = ProducerStamp(1000 + number % 2, 0, turn * RECORDS)
        batch = encode_batch(records, producer=producer)
        log.append_as_leader(memoryview(batch), epoch, NOW_MS)
    if partition % RETAINED_EVERY == 0:
        log.raise_start(BATCHES * RECORDS // 2)
        assert without_pause(log.apply_retention(log.log_end, NOW_MS)), (
            "segments are too large to be retained"
        )


def _fill_offsets(log: Log, commits: Sequence[Commit]) -> None:
    """A batch for each."""
    for group, partition, offset, _ in commits:
        key = encode_key(OffsetKey(group, TOPIC, partition))
        record = (NOW_MS, key, encode_value(CommittedOffset(offset)), ())
        log.append_as_leader(memoryview(encode_batch([record])), EPOCHS - 1, NOW_MS)


def described(partition_count: int, homes: int = 0) -> dict[str, object]:
    """What `minibroker cluster export` would say; `homes` are partitions of the offsets topic."""
    topics = [_described_topic(TOPIC, TOPIC_ID, partition_count)]
    if homes:
        topics.append(_described_topic(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, homes))
    return {
        "version": 1,
        "cluster_id": CLUSTER_ID,
        "exported_at_ms": NOW_MS,
        "controller_id": -1,
        "controller_epoch": 1,
        "brokers": [],
        "topics": topics,
        "tombstones": [],
    }


def _described_topic(name: str, topic_id: bytes, partition_count: int) -> dict[str, object]:
    partitions = [
        {
            "partition": number,
            "leader": NODES[number % len(NODES)],
            "leader_epoch": EPOCHS - 1,
            "partition_epoch": EPOCHS - 1,
            "isr": list(NODES),
            "replicas": list(NODES),
            "unsafe": [],
        }
        for number in range(partition_count)
    ]
    return {"name": name, "id": topic_id.hex(), "configs": {}, "partitions": partitions}
