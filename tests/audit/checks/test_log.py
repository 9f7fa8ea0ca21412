"""The checks of single logs, on rows written out: each partition has one fault, or none."""

from typing import Any

from pyspark.sql import SparkSession

from minibroker.audit.checks.log import CHECKS
from minibroker.protocol.constants import INT64_MAX
from tests.audit.checks.rows import Rows, found_by, tables

SIZE = 100  # bytes of each batch, which holds ten offsets
Row = dict[str, Any]


def batches(partition: int, *bases: int, segment: int = 0, **others: object) -> list[Row]:
    """Batches of broker 1 in one segment, one behind the other."""
    common = {"broker": 1, "topic": "t", "partition": partition, "segment": segment, "size": SIZE}
    common |= {"leader_epoch": 0, "crc_stored": 7, "crc_computed": 7, "torn": False}
    return [
        common | {"position": at * SIZE, "base_offset": base, "last_offset": base + 9} | others
        for at, base in enumerate(bases)
    ]


def torn(partition: int, position: int, segment: int = 0) -> Row:
    """Thirty bytes that are no batch."""
    row = {"broker": 1, "topic": "t", "partition": partition, "segment": segment}
    return row | {"position": position, "size": 30, "torn": True, "problem": "no length"}


def replica(partition: int, **others: object) -> Row:
    """What is known of broker 1's log, which is in sync, and judged to offset 100."""
    row: Row = {"broker": 1, "topic": "t", "partition": partition, "state": "stopped"}
    row |= {"in_isr": True, "is_compacted": False, "first_offset": 0, "log_end": 100}
    return row | {"log_start": 0, "judged_end": 100, "kept_end": 100} | others


def epochs(partition: int, *starts: tuple[int, int]) -> list[Row]:
    """What a checkpoint says: epochs and where they start."""
    row = {"broker": 1, "topic": "t", "partition": partition}
    return [row | {"epoch": epoch, "start": start} for epoch, start in starts]


CLEAN: Rows = [
    *batches(0, 0, 10, 20),
    *batches(0, 30, 40, segment=30, leader_epoch=2),
    *batches(1, 50, 60, 70, segment=50),  # what was before fell to retention
    *batches(2, 0, count=4, attributes=0),  # compacted: a thinned batch, a filler, a horizon
    *(
        row | {"position": SIZE, "last_offset": 59, "count": 0, "attributes": 0}
        for row in batches(2, 10)
    ),
    *batches(2, 60, segment=60, count=10, attributes=0x40),
    *batches(3, 40, 50, leader_epoch=1),  # its broker runs and has removed the first ones
]
CLEAN_REPLICAS: Rows = [
    replica(0, log_end=50),
    replica(1, log_start=55, first_offset=50),
    replica(2, may_be_cleaned=True, cleaned_end=70),
    replica(3, state="live", judged_end=20),
]
CLEAN_EPOCHS: Rows = [
    *epochs(0, (0, 0), (2, 30), (5, 50)),  # a leader of epoch 5 has written nothing
    *epochs(1, (0, 55)),
    *epochs(2, (0, 0)),
]


def flipped(row: Row, **others: object) -> Row:
    """One batch with something else in it."""
    return row | others


FAULTY: Rows = [
    # 10: a bad CRC below the log end; 11: one above what is judged; 12: below the log start
    *batches(10, 0),
    *(flipped(row, position=SIZE, crc_stored=8) for row in batches(10, 10)),
    *(flipped(row, crc_computed=8) for row in batches(11, 0)),
    *(flipped(row, crc_computed=8) for row in batches(12, 0)),
    # 13: no batch in the midst; 14: at the end of a sealed segment; 15, 16: at the end of the log
    *batches(13, 0),
    torn(13, SIZE),
    *(flipped(row, position=SIZE + 30) for row in batches(13, 20)),
    *batches(14, 0),
    torn(14, SIZE),
    *batches(14, 10, segment=10),
    *batches(15, 0),
    torn(15, SIZE),
    *batches(16, 0),
    torn(16, SIZE),
    torn(17, 0),  # 17: nothing else
    *batches(18, 0, 20),  # 18: a gap where nobody judges a broker that runs
    # 20: one is missing, 21: two are swapped, 22: the first is missing, 23: an offset is flipped
    *batches(20, 0, 10, 30, 40),
    *batches(21, 0, 20, 10, 30),
    *batches(22, 20, 30),
    *batches(23, 0, 10, 20),
    *(flipped(row, position=3 * SIZE) for row in batches(23, INT64_MAX - 9)),
    *(flipped(row, position=4 * SIZE) for row in batches(23, 40)),
    # 24: the first segments are gone, 25: the first batch of a segment is missing
    *batches(24, 50, 60, segment=50),
    *batches(25, 0, 10),
    *batches(25, 30, segment=20),
    # 30: a segment has another name, 31: the first one has
    *batches(30, 0, 10),
    *batches(30, 20, 30, segment=21),
    *batches(31, 0, 10, segment=7),
    # 40: an epoch falls, 41: an epoch is below zero
    *batches(40, 0, 10, leader_epoch=3),
    *(flipped(row, position=2 * SIZE, leader_epoch=2) for row in batches(40, 20)),
    *batches(41, 0, leader_epoch=-4),
]
FAULTY_REPLICAS: Rows = [
    *(replica(partition) for partition in (10, 13, 14, 15, 17, 20, 21, 22, 23, 24, 25, 30, 31, 41)),
    replica(11, state="killed", judged_end=0),
    replica(12, log_start=10),
    replica(18, state="live", judged_end=10),
    replica(16, state="killed"),
    replica(40, in_isr=False),
]


def test_faults_of_single_logs(spark: SparkSession) -> None:
    """Each planted fault is found where it is, once by each check that sees it, and no other."""
    faulty = tables(spark, batches=[*CLEAN, *FAULTY], replicas=[*CLEAN_REPLICAS, *FAULTY_REPLICAS])
    names = ("crc", "torn-tail", "gap", "overlap", "segment-name", "epoch-order")
    found = [each for name in names for each in found_by(CHECKS[name](faulty))]
    assert {
        name: [
            (each.partition, each.offset, each.segment, each.position, each.severity.value)
            for each in found
            if each.check == name
        ]
        for name in names
    } == {
        "crc": [
            (10, 10, 0, 100, "error"),
            (11, 0, 0, 0, "warning"),
            (12, 0, 0, 0, "info"),
            (13, 10, 0, 100, "error"),
            (14, 10, 0, 100, "error"),
        ],
        "torn-tail": [
            (15, 10, 0, 100, "error"),
            (16, 10, 0, 100, "info"),
            (17, 0, 0, 0, "error"),
        ],
        "gap": [
            (13, 10, 0, 130, "error"),
            (18, 10, 0, 100, "info"),
            (20, 20, 0, 200, "error"),
            (21, 10, 0, 100, "error"),
            (22, 0, 0, 0, "error"),
            (23, 30, 0, 300, "error"),
            (24, 0, 50, 0, "error"),
            (25, 20, 20, 0, "error"),
        ],
        "overlap": [(21, 10, 0, 200, "error"), (23, 40, 0, 400, "error")],
        "segment-name": [(30, 20, 21, 0, "error"), (31, 0, 7, 0, "error")],
        "epoch-order": [(40, 20, 0, 200, "warning"), (41, 0, 0, 0, "error")],
    }
    details = {(each.check, each.partition): each.detail for each in found}
    assert details["crc", 10] == (
        "the batch of offsets 10 to 19 has CRC 00000007, stored with it is 00000008"
    )
    assert details["crc", 13] == "30 bytes are no batch: no length"
    assert details["gap", 20] == "offset 20 should follow, the next batch begins at 30"
    assert details["overlap", 21] == "offsets 10 to 19 stand where 30 should follow"
    assert details["segment-name", 30] == "its name says 21, its first batch 20"
    assert details["epoch-order", 40] == "leader epoch 2 follows on 3, in which offset 19 is"
    assert details["epoch-order", 41] == "leader epoch -4 is none"


def test_epoch_checkpoints(spark: SparkSession) -> None:
    """A checkpoint that differs from its log is found, as an error if a broker would believe it."""
    log: Rows = [
        row
        for partition in (50, 51, 52, 53)
        for at, epoch in enumerate((0, 2, 3))
        for row in batches(partition, 20 * at, leader_epoch=epoch, segment=20 * at)
    ]
    faulty = tables(
        spark,
        batches=[*CLEAN, *log],
        replicas=[*CLEAN_REPLICAS, *(replica(partition) for partition in (50, 51, 52, 53))],
        epoch_starts=[
            *CLEAN_EPOCHS,
            *epochs(50, (0, 0), (2, 10), (3, 45)),
            *epochs(52, (0, 0), (2, 20)),
            *epochs(53, (0, 0), (1, 10), (2, 20), (3, 40)),
        ],
    )
    says = "epoch {} starts at {} in the log and at {} in the checkpoint; {} differ in all"
    assert [
        (each.partition, each.offset, each.severity.value, each.detail)
        for each in found_by(CHECKS["epoch-checkpoint"](faulty))
    ] == [
        (50, 10, "error", says.format(2, 20, 10, 2)),
        (51, 0, "warning", says.format(0, 0, "no offset", 3)),
        (52, 40, "warning", says.format(3, 40, "no offset", 1)),
        (53, 10, "error", says.format(1, "no offset", 10, 1)),
    ]


def test_index_entries(spark: SparkSession) -> None:
    """An entry with a problem is a warning that names it; one without is none."""
    entry = {"broker": 1, "topic": "t", "partition": 0, "segment": 20, "kind": "index"}
    entries: Rows = [
        entry | {"entry": 1, "offset": 25, "position": 300},
        entry | {"entry": 2, "offset": 29, "position": 400, "problem": "no batch is there"},
        entry | {"kind": "timeindex", "problem": "it ends in half an entry"},
    ]
    known = tables(spark, replicas=[replica(0)], index_entries=entries)
    assert [
        (each.severity.value, each.segment, each.offset, each.position, each.detail)
        for each in found_by(CHECKS["index"](known))
    ] == [
        ("warning", 20, None, None, "the timeindex file: it ends in half an entry"),
        ("warning", 20, 29, 400, "entry 2 of the index file: no batch is there"),
    ]


def test_a_batch_that_nobody_can_read_is_named_on_all_replicas_that_have_it(
    spark: SparkSession,
) -> None:
    """Only the reference's batches are decoded; one with another batch there is not named."""
    there: Rows = [
        row | {"broker": broker, "identity": 5 if broker < 3 else 6}
        for broker in (1, 2, 3)
        for row in batches(60, 0)
    ]
    place = {"topic": "t", "partition": 60, "segment": 0, "position": 0, "problem": "no records"}
    body = place | {"broker": 1, "base_offset": 0, "last_offset": 9}
    known = tables(
        spark,
        batches=there,
        replicas=[replica(60) | {"broker": broker} for broker in (1, 2, 3)],
        bodies=[body],
    )
    assert [
        (each.broker, each.offset, each.position, each.detail)
        for each in found_by(CHECKS["undecodable"](known))
    ] == [(broker, 0, 0, "the batch of offsets 0 to 9: no records") for broker in (1, 2)]
