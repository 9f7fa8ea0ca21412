"""The checks of producers, on rows that are written out: what is planted is found, and no more."""

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.checks import producers
from minibroker.audit.checks.findings import FINDINGS_MAX
from minibroker.audit.checks.producers import CHECKS
from tests.audit.checks.rows import Rows, found_by, tables

LAST = 2**31 - 1


def batch(partition: int, at: int, sequence: int, **others: object) -> dict[str, object]:
    """A batch of five records of producer 7 on broker 1."""
    row = {"broker": 1, "topic": "t", "partition": partition, "segment": 0, "position": at * 10}
    row |= {"base_offset": at, "last_offset": at + 4, "torn": False, "identity": at}
    return row | {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence} | others


CLEAN: Rows = [
    *(batch(0, at, at) for at in (0, 5, 10)),
    batch(0, 15, 0, producer_epoch=1),
    batch(0, 20, 0, producer_id=8),
    batch(0, 25, 5, producer_epoch=1),
    batch(0, 30, -1, producer_id=-1, producer_epoch=-1),
    batch(1, 100, LAST - 6),  # the log begins at 100
    batch(1, 105, LAST - 1),
    batch(1, 110, 3),
]
FAULTY: Rows = [
    batch(2, 0, 0),
    batch(2, 5, 10),
    batch(2, 10, 15),
    *(batch(3, at, sequence) for at, sequence in ((0, 0), (5, 5))),
    *(batch(3, at, at - 10, identity=at - 10) for at in (10, 15)),
    batch(3, 20, 10),
    batch(4, 0, 0),
    batch(4, 5, 0),
    batch(5, 0, 5),
    batch(6, 100, 5),
    batch(6, 105, 3, producer_epoch=1),
    *(batch(9, at, 10) for at in (0, 10, 90)),
    *(batch(10, at, 10) for at in (90, 110)),
    batch(11, 0, 0, producer_epoch=1),
    batch(11, 5, 0),
    # 12: producer 7, then 8, then 9
    *(batch(12, 5 * number, 0, producer_id=7 + number) for number in range(3)),
    *(batch(13, 0, 0, broker=broker) for broker in (1, 2)),
    batch(14, 0, 0),
    batch(14, 5, 0, producer_id=8),
    *(batch(7, at, 2 * at) for at in range(0, 5 * FINDINGS_MAX + 20, 5)),
]
REPLICAS: Rows = [
    {"broker": 1, "topic": "t", "partition": partition, "in_isr": partition != 5 or None}
    | {"first_offset": 100 if partition in (1, 6) else 0, "log_end": 120, "state": "stopped"}
    | {"log_start": 10 if partition == 9 else 0, "judged_end": 100 if partition > 8 else 1_000}
    | ({"in_isr": False} if partition == 2 else {})
    | ({"state": "live"} if partition in (8, 10) else {})
    for partition in range(11)
]
REPLICAS = [
    *REPLICAS,
    *(
        {"broker": broker, "topic": "t", "partition": partition, "in_isr": True, "log_start": 0}
        | {"first_offset": 0, "log_end": 15, "state": "stopped", "judged_end": 1_000}
        for partition in range(11, 15)
        for broker in ((1, 2) if partition == 13 else (1,))
    ),
]


def snapshot(
    partition: int, offset: int, epoch: int, sequence: int, last: int, **others: object
) -> dict[str, object]:
    """What a snapshot says of producer 7 on broker 1."""
    row = {"broker": 1, "topic": "t", "partition": partition, "offset": offset, "producer_id": 7}
    row |= {"producer_epoch": epoch, "last_sequence": sequence, "last_offset": last}
    return row | others


def empty_snapshot(partition: int, offset: int, broker: int = 1) -> dict[str, object]:
    """The row that a snapshot has beside those of its producers."""
    return {"broker": broker, "topic": "t", "partition": partition, "offset": offset}


RIGHT: Rows = [
    snapshot(0, 10, 0, 9, 9),
    snapshot(0, 15, 0, 14, 14),
    snapshot(0, 20, 1, 4, 19),
    snapshot(0, 120, 1, 9, 29),
    snapshot(1, 100, 0, 3, 50),
    snapshot(1, 110, 0, 2, 109),
    snapshot(8, 200, 0, 9, 199),  # behind what was read of a log that grows
]
WRONG: Rows = [
    snapshot(2, 10, 0, 9, 9),
    snapshot(3, 10, 1, 9, 9),
    snapshot(4, 10, 0, 4, 4),
    snapshot(7, 0, 0, 4, 4),
    # 12: of the first and the last of three, the second is missing; 13: another broker has it;
    # 14: the older one may be forgotten
    snapshot(12, 15, 0, 4, 4),
    snapshot(12, 15, 0, 4, 14, producer_id=9),
    empty_snapshot(13, 5),
    snapshot(13, 5, 0, 4, 4, broker=2),
    snapshot(14, 10, 0, 4, 9, producer_id=8),
]


@pytest.mark.parametrize("span_offsets", [5, 20, producers.SPAN_OFFSETS])
def test_sequences_and_snapshots(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, span_offsets: int
) -> None:
    """Gaps, repetitions and wrong snapshots are found where they are, and nothing in sound logs,
    whether one task looks at all that a producer wrote or several do."""
    monkeypatch.setattr(producers, "SPAN_OFFSETS", span_offsets)
    faulty = tables(
        spark,
        batches=[*CLEAN, *FAULTY],
        replicas=REPLICAS,
        producers=[*RIGHT, *WRONG],
    )
    found = {name: found_by(check(faulty)) for name, check in CHECKS.items()}
    assert {(each.check, each.topic, each.broker) for kind in found.values() for each in kind} == {
        (name, "t", 1) for name in CHECKS
    }
    flood = [each for each in found["sequence-gap"] if each.partition == 7]
    assert len(flood) == FINDINGS_MAX
    assert flood[-1].detail.endswith("; and 3 more")
    assert [
        (each.partition, each.offset, each.severity, each.detail)
        for each in found["sequence-gap"]
        if each.partition != 7
    ] == [
        (2, 5, "warning", "producer 7 epoch 0: sequence 10 comes where 5 is next"),
        (5, 0, "error", "producer 7 epoch 0: sequence 5 comes where 0 is next"),
        (6, 105, "error", "producer 7 epoch 1: sequence 3 comes where 0 is next"),
        (9, 0, "info", "producer 7 epoch 0: sequence 10 comes where 0 is next"),
        (10, 90, "error", "producer 7 epoch 0: sequence 10 comes where 0 is next"),
        (11, 5, "error", "producer 7: epoch 0 follows on epoch 1, which is newer"),
    ]
    assert flood[0].position == 50
    again = "producer 7 epoch 0: sequence {} again; {} batch with it is at offset {}"
    assert [
        (each.partition, each.offset, each.severity, each.detail)
        for each in found["sequence-duplicate"]
    ] == [
        (3, 10, "error", again.format(0, "the same", 0)),
        (3, 15, "error", again.format(5, "the same", 5)),
        (4, 5, "warning", again.format(0, "another", 0)),
        (9, 10, "error", again.format(10, "another", 0)),
        (9, 90, "error", again.format(10, "another", 10)),
        (10, 110, "info", again.format(10, "another", 90)),
    ]
    says = "the snapshot says of producer 7: epoch {}; the batches before it say: {}"
    stored = "epoch 0, sequence {}, offset {}"
    lacks = "the snapshot lacks producer {}, whose last batch before it ends at offset {}"
    assert [(each.partition, each.offset, each.detail) for each in found["snapshot"]] == [
        (2, 10, says.format("0, sequence 9, offset 9", stored.format(14, 9))),
        (3, 10, says.format("1, sequence 9, offset 9", stored.format(9, 9))),
        (4, 10, says.format("0, sequence 4, offset 4", stored.format(4, 9))),
        (7, 0, says.format("0, sequence 4, offset 4", "nothing")),
        (12, 15, lacks.format(8, 9)),
        (13, 5, lacks.format(7, 4)),
    ]
    assert {each.severity for each in found["snapshot"]} == {"warning"}
    assert all(each.segment == each.offset for each in found["snapshot"])
