"""The checks of replicas against each other, on rows written out: broker 1 is the reference.

Each log has ten batches of 1,000 offsets, so that digests of 4,096 cut it in three.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from minibroker.audit.checks.facts import log_facts
from minibroker.audit.checks.log_ends import EpochEnd, LogFacts
from minibroker.audit.checks.registry import CHECKS
from minibroker.protocol.constants import INT64_MAX
from tests.audit.checks.rows import Rows, found_by, tables

COUNT = 1000  # offsets of each batch
END = 10 * COUNT
Row = dict[str, Any]


def log(
    broker: int, partition: int, changes: Mapping[int, Mapping[str, int] | None] | None = None
) -> list[Row]:
    """Ten batches; `changes` by base offset, None takes the batch away."""
    rows = []
    for base in range(0, END, COUNT):
        change = (changes or {}).get(base, {})
        if change is None:
            continue
        row: Row = {"broker": broker, "topic": "t", "partition": partition, "segment": 0}
        row |= {"position": base, "size": 500, "base_offset": base, "identity": base + 7}
        row |= {"leader_epoch": base // 3000, "torn": False, "crc_stored": 1, "crc_computed": 1}
        row |= {"count": COUNT, "attributes": 0, "producer_id": 5}
        row |= change
        rows.append({"last_offset": row["base_offset"] + COUNT - 1} | row)
    return rows


def replica(broker: int, partition: int, **others: object) -> Row:
    """A replica that is in sync and judged to the end."""
    row: Row = {"broker": broker, "topic": "t", "partition": partition, "state": "stopped"}
    row |= {"in_isr": True, "is_reference": broker == 1, "is_compacted": False}
    row |= {"log_start": 0, "first_offset": 0, "log_end": END, "kept_end": END}
    return row | {"judged_end": END, "high_watermark": END} | others


def upto(end: int) -> dict[int, None]:
    """Changes that end a log early."""
    return dict.fromkeys(range(end, END, COUNT))


OTHER = {"identity": 1}
CLEAN: Rows = [
    *(row for broker in (1, 2, 3) for row in log(broker, 0)),
    # 1: the second has lost its first batches to retention; the third is behind, with an old tail
    *log(1, 1),
    *log(2, 1, dict.fromkeys((0, 1000, 2000))),
    *log(3, 1, {5000: {"leader_epoch": 0, "identity": 5}} | upto(6000)),
    # 2: compacted; 3: different above what is judged; 4: below the log start of one
    *log(1, 2, {2000: {"count": 0, "identity": 1}}),
    *log(2, 2, {base: {"count": 9, "identity": 2} for base in (0, 4000)}),
    *log(1, 3),
    *log(2, 3, {6000: OTHER, 7000: None, 9000: {"leader_epoch": 9}}),
    *log(1, 4),
    *log(2, 4, {0: OTHER, 1000: OTHER}),
    # 5: the end is missing; 7: brokers that run, of which one has just removed a segment
    *log(1, 5),
    *log(2, 5, upto(8000)),
    *log(1, 7, {0: None}),
    *log(2, 7),
]
CLEAN_REPLICAS: Rows = [
    *(replica(broker, 0) for broker in (1, 2, 3)),
    replica(1, 1),
    replica(2, 1, log_start=3000, first_offset=3000),
    replica(3, 1, in_isr=False, log_end=6000, kept_end=5000, high_watermark=4000),
    replica(1, 2, may_be_cleaned=True, cleaned_end=3000),
    replica(2, 2, may_be_cleaned=True, cleaned_end=5000),
    *(replica(broker, 3, judged_end=6000) for broker in (1, 2)),
    replica(1, 4),
    replica(2, 4, log_start=2000),
    replica(1, 5, judged_end=8000, high_watermark=8000),
    replica(2, 5, log_end=8000, kept_end=8000, judged_end=8000, high_watermark=0),
    *(replica(broker, 7, state="live", first_offset=2000 - 1000 * broker) for broker in (1, 2)),
]
FAULTY: Rows = [
    # 10: two batches are others; 11: one is missing; 12: an epoch, on one that is not in sync
    *log(1, 10),
    *log(2, 10),
    *log(3, 10, {5000: OTHER, 9000: OTHER}),
    *log(1, 11),
    *log(2, 11, {4000: None}),
    *log(1, 12),
    *log(2, 12, {6000: {"leader_epoch": 1}}),
    # 13: an offset is flipped to that of another batch, 14: in the reference; 15: one too many
    *log(1, 13),
    *log(2, 13, {5000: {"base_offset": 1000}}),
    *log(1, 14, {5000: {"base_offset": 904}}),
    *log(2, 14),
    *log(1, 15, {9000: None}),
    *log(2, 15),
    # 16: the batch that holds the log start; 17: two are swapped
    *log(1, 16),
    *log(2, 16, {2000: OTHER}),
    *log(1, 17),
    *log(2, 17, {1000: {"position": 2000}, 2000: {"position": 1000}}),
    # 18: the reference, alone against two; 19: and later those two part
    *log(1, 18, {5000: OTHER}),
    *(row for broker in (2, 3) for row in log(broker, 18)),
    *log(1, 19, {5000: OTHER}),
    *log(2, 19, {8000: OTHER}),
    *log(3, 19),
    # 20: two agree, and both have lost something since their brokers stopped
    *(row for broker in (1, 2) for row in log(broker, 20, {5000: OTHER} | upto(8000))),
    *log(3, 20),
]
FAULTY_REPLICAS: Rows = [
    *(replica(broker, 10, in_isr=None) for broker in (1, 2, 3)),
    *(replica(broker, 11) for broker in (1, 2)),
    replica(1, 12),
    replica(2, 12, in_isr=False),
    *(replica(broker, partition) for partition in (13, 14, 15, 17) for broker in (1, 2)),
    replica(1, 16),
    replica(2, 16, log_start=2500),
    *(replica(broker, partition) for partition in (18, 19) for broker in (1, 2, 3)),
    *(replica(broker, 20, log_end=8000, kept_end=8000, left_end=END) for broker in (1, 2)),
    replica(3, 20, left_end=END),
]


def test_replicas_that_differ(spark: SparkSession) -> None:
    """The first difference of each replica is found, with both batches; equal ones are passed."""
    faulty = tables(spark, batches=[*CLEAN, *FAULTY], replicas=[*CLEAN_REPLICAS, *FAULTY_REPLICAS])
    found = found_by(CHECKS["divergence"](faulty))
    assert [
        (each.partition, each.broker, each.other_broker, each.offset, each.position, each.severity)
        for each in found
    ] == [
        (10, 3, 1, 5000, 5000, "error"),
        (11, 2, 1, 4000, None, "error"),
        (12, 2, 1, 6000, 6000, "warning"),
        (13, 2, 1, 5000, None, "error"),
        (14, 1, 2, 5000, None, "error"),
        (15, 1, 2, 9000, None, "error"),
        (16, 1, 2, 2000, 2000, "error"),
        (16, 2, 1, 2000, 2000, "error"),
        (17, 2, 1, 1000, None, "error"),
        (18, 1, 2, 5000, 5000, "error"),
        (19, 1, 2, 5000, 5000, "error"),
        (19, 2, 3, 8000, 8000, "error"),
        (19, 3, 2, 8000, 8000, "error"),
        (20, 1, 3, 5000, 5000, "error"),
        (20, 2, 3, 5000, 5000, "error"),
    ]
    batch = "the batch of offsets {} to {}, epoch {}, identity {:016x} (segment 0, position {})"
    assert found[0].detail == (
        f"1 and 2 agree, 3 differs; here is {batch.format(5000, 5999, 1, 1, 5000)}, on broker 1"
        f" {batch.format(5000, 5999, 1, 5007, 5000)}; 2 stretches of 4096 offsets differ"
    )
    assert found[1].detail.startswith(
        "of 1 and 2 only 1 is whole; here is no such batch, on broker 1 the batch of offsets 4000"
    )
    assert [each.detail.partition(";")[0] for each in found[6:]] == [
        *2 * ["1 differs, 2 differs, and which is right cannot be told"],
        "of 1 and 2 only 1 is whole",
        "2 and 3 agree, 1 differs",
        "2 and 3 agree, 1 differs",
        *2 * ["2 differs, 3 differs, and which is right cannot be told"],
        *2 * ["1 and 2 have other damage in this log, 3 has none"],
    ]


def test_what_was_committed(spark: SparkSession) -> None:
    """Who ends below a high watermark is found, and high watermarks beyond the log."""
    known = tables(
        spark,
        replicas=[
            *CLEAN_REPLICAS,
            # 20: one is too short; 21: one would be cut, which divergence finds where it matters;
            # 22: nobody knows who is in sync
            replica(1, 20),
            replica(2, 20, log_end=9000, kept_end=9000, high_watermark=8000),
            replica(3, 20, in_isr=False, log_end=10, kept_end=10, high_watermark=10),
            replica(1, 21),
            replica(2, 21, kept_end=7000),
            replica(1, 22, in_isr=None),
            replica(2, 22, in_isr=None, log_end=9000, kept_end=9000, high_watermark=None),
            # 23: the leader is too short, which would cut the others; 24: a high watermark is wrong
            replica(1, 23, log_end=5000, kept_end=5000, high_watermark=4000),
            replica(2, 23, kept_end=5000),
            replica(1, 24, high_watermark=INT64_MAX),
            replica(2, 24, high_watermark=END - 1),
            replica(3, 24, in_isr=False, high_watermark=END + 1),
        ],
    )
    committed = "; broker {} has checkpointed a high watermark of 10000"
    assert [
        (each.partition, each.broker, each.other_broker, each.offset, each.severity, each.detail)
        for each in found_by(CHECKS["missing-committed"](known))
    ] == [
        (20, 2, 1, 9000, "error", "it ends at 9000" + committed.format(1)),
        (22, 2, 1, 9000, "warning", "it ends at 9000" + committed.format(1)),
        (23, 1, 2, 5000, "error", "it ends at 5000" + committed.format(2)),
    ]
    assert [
        (each.partition, each.broker, each.offset, each.severity, each.detail)
        for each in found_by(CHECKS["hw-beyond-leo"](known))
    ] == [
        (24, 1, END, "error", f"high watermark {INT64_MAX}, log end 10000"),
        (24, 3, END, "warning", "high watermark 10001, log end 10000"),
    ]


def test_what_a_log_once_had(spark: SparkSession) -> None:
    """Who ends below it is found, and who claims more than can have been committed."""
    known = tables(
        spark,
        replicas=[
            # 25: the leader has lost what the others replicated from it
            replica(1, 25, log_end=9000, kept_end=9000, led_end=END, high_watermark=9000),
            *(replica(broker, 25, high_watermark=9000) for broker in (2, 3)),
            # 26: one is shorter than its broker had flushed it; 27: all are
            replica(1, 26, high_watermark=8000),
            replica(2, 26, log_end=9000, kept_end=9000, recovery_point=END, high_watermark=8000),
            *(replica(broker, 27, high_watermark=END, recovery_point=END + 5) for broker in (1, 2)),
            # 28: a checkpoint that nothing agrees with; 29: it is of a broker that runs
            replica(1, 28),
            replica(2, 28, recovery_point=END + 5),
            *(replica(broker, 29, state="live", recovery_point=END + 5) for broker in (1, 2)),
            # 30: a follower claims what neither the leader nor the other one says
            replica(1, 30, high_watermark=8000, committed_end=8000),
            replica(2, 30, log_end=9000, kept_end=9000, high_watermark=0, committed_end=8000),
            replica(3, 30, committed_end=8000),
        ],
    )
    led = (
        "broker 3 has replicated up to 10000 from it, in the newest epoch: it leads with less than"
        " its followers have, and what they have must not be truncated"
    )
    refuted = "by the leader's and by another in-sync log no more than 8000 was committed"
    flushed = "its broker had flushed it up to"
    assert [
        (each.partition, each.broker, each.other_broker, each.offset, each.severity, each.detail)
        for each in found_by(CHECKS["missing-committed"](known))
    ] == [
        (25, 1, 3, 9000, "error", f"it ends at 9000; {led}"),
        (26, 2, None, 9000, "error", f"it ends at 9000; {flushed} 10000"),
        (27, 1, None, END, "error", f"it ends at 10000; {flushed} 10005"),
        (27, 2, None, END, "error", f"it ends at 10000; {flushed} 10005"),
        (28, 2, None, END, "warning", f"it ends at 10000; {flushed} 10005"),
    ]
    assert [
        (each.partition, each.broker, each.offset, each.severity, each.detail)
        for each in found_by(CHECKS["hw-beyond-leo"](known))
    ] == [(30, 3, END, "error", f"high watermark 10000; {refuted}")]


def test_facts_of_logs(spark: SparkSession) -> None:
    """A log's ends are those that its batches agree on, also where one header claims another."""
    epoch_ends = (EpochEnd(0, 3000, 3000), EpochEnd(1, 6000, 3000), EpochEnd(2, 9000, 3000))
    sound = LogFacts(0, END, (*epoch_ends, EpochEnd(3, END, 1000)))
    torn = {"broker": 1, "topic": "t", "partition": 9, "segment": 0, "position": 0, "torn": True}
    batches = [
        *log(1, 0),
        *log(1, 1, {4000: {"base_offset": INT64_MAX - 999}}),
        *log(1, 2, {9000: {"base_offset": 808}}),
        *log(1, 3, {4000: {"leader_epoch": 1 << 30}}),
        *log(1, 4, {4000: {"crc_computed": 2}}),
        *log(1, 5, {4000: None}),
        *log(1, 6, {4000: {"base_offset": -(1 << 63)}}),
        torn,
    ]
    facts = log_facts(tables(spark, batches=batches).batches)
    by_partition = {name.partition: fact for name, fact in facts.items()}
    digest = by_partition[0].digest
    assert by_partition.pop(0) == replace(sound, digest=digest)
    assert by_partition[3].digest != digest
    assert all(fact.first_offset == 0 and not fact.is_whole for fact in by_partition.values())
    assert {partition: fact.log_end for partition, fact in by_partition.items()} == {
        **dict.fromkeys((1, 3, 4, 5, 6), END),
        2: 9000,
    }
    assert [end.epoch for end in by_partition[3].epoch_ends] == [0, 1, 2, 3]
