"""What groups have committed, from records of the offsets topic to findings."""

import struct

from pyspark.sql import SparkSession

from minibroker.audit.checks.groups import committed_by_groups, marks
from minibroker.audit.checks.registry import CHECKS
from minibroker.audit.model import RECORDS
from minibroker.audit.summary import Committed
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition
from tests.audit.checks.rows import found_by, table, tables

END = 100


def text(words: str) -> bytes:
    """As a key holds it."""
    return struct.pack(">h", len(words)) + words.encode()


def commit(broker: int, at: int, group: str, place: tuple[str, int], offset: int | None) -> dict:
    """A record of partition 3 of the offsets topic; offset None is a tombstone."""
    key = struct.pack(">h", 1) + text(group) + text(place[0]) + struct.pack(">i", place[1])
    value = None if offset is None else struct.pack(">hqihq", 3, offset, 0, 0, 0)
    return record(broker, at, key, value)


def record(broker: int, at: int, key: bytes | None, value: bytes | None) -> dict:
    """Any record there."""
    place = {"broker": broker, "topic": OFFSETS_TOPIC, "partition": 3, "offset": at}
    return {**place, "timestamp": 0, "key": key, "value": value, "headers": []}


def replica(broker: int, topic: str, partition: int, **changed: object) -> dict:
    """A row of REPLICAS, in sync unless it says otherwise; broker 1 is the reference."""
    row = {"broker": broker, "topic": topic, "partition": partition, "in_isr": True}
    ends = {"first_offset": 0, "log_end": END, "kept_end": END, "judged_end": END}
    return {**row, **ends, "is_reference": broker == 1, "state": "killed", **changed}


def test_offsets_that_groups_committed(spark: SparkSession) -> None:
    """Found are offsets above every in-sync log, above some, below the start, told differently by
    in-sync replicas, and records that say nothing; what was replaced or forgotten is not."""
    same = [
        (0, "g", ("t", 0), END + 9),
        (1, "g", ("t", 0), 40),
        (2, "g", ("t", 1), END),
        (3, "late", ("t", 1), END + 1),
        (4, "slow", ("t", 2), 7),
        (5, "short", ("t", 3), 95),
        (6, "g", ("gone", 0), 5),
        (7, "left", ("t", 0), END + 1),
        (8, "left", ("t", 0), None),
    ]
    records = [commit(broker, *each) for broker in (1, 2, 3) for each in same]
    records += [record(broker, 9, b"\0\2" + text("g"), b"members") for broker in (1, 2, 3)]
    records += [
        *(commit(broker, 10, "g", ("t", 4), 10 * broker) for broker in (1, 2, 3)),
        commit(1, 11, "half", ("t", 4), 5),
        commit(2, 12, "other", ("t", 4), 6),
        record(2, 13, b"?", None),
        *(commit(broker, END, "g", ("t", 0), END + 5) for broker in (1, 2, 3)),  # not judged
    ]
    replicas = [
        *(replica(broker, OFFSETS_TOPIC, 3, in_isr=broker < 3) for broker in (1, 2, 3)),
        *(replica(broker, "t", partition) for broker in (1, 2) for partition in (0, 1, 4)),
        *(replica(broker, "t", 2, log_start=8, first_offset=0) for broker in (1, 2)),
        replica(1, "t", 3, judged_end=90),
        replica(2, "t", 3, log_end=90, kept_end=90, judged_end=90),
        replica(3, "t", 1, in_isr=False, log_end=END + 50),
    ]
    read = table(spark, RECORDS, records)
    known = tables(spark, replicas=replicas)
    rows = committed_by_groups(read, known.replicas).toArrow().to_pylist()
    known = tables(spark, replicas=replicas, committed=rows)
    assert [
        (each.topic, each.partition, each.broker, each.other_broker, each.offset, each.severity)
        for each in found_by(CHECKS["committed-offset"](known))
    ] == [
        (OFFSETS_TOPIC, 3, 2, 1, 10, "error"),
        (OFFSETS_TOPIC, 3, 2, 1, 11, "error"),
        (OFFSETS_TOPIC, 3, 2, 1, 12, "error"),
        (OFFSETS_TOPIC, 3, 2, None, 13, "warning"),
        ("t", 1, None, None, END + 1, "error"),
        ("t", 2, None, None, 7, "warning"),
        ("t", 3, None, None, 95, "warning"),
    ]
    details = [each.detail for each in found_by(CHECKS["committed-offset"](known))]
    assert details == [
        "of group g in t-4 it says 20 (at offset 10), broker 1 says 10 (at offset 10)",
        "of group half in t-4 it says nothing, broker 1 says 5 (at offset 11)",
        "of group other in t-4 it says 6 (at offset 12), broker 1 says nothing",
        "no record of a group: it ends within a number at byte 0",
        "group late has committed 101 (__consumer_offsets-3, offset 3); the in-sync log that has"
        " most ends at 100",
        "group slow has committed 7 (__consumer_offsets-3, offset 4); the log begins at 8",
        "group short has committed 95 (__consumer_offsets-3, offset 5); an in-sync log ends at 90",
    ]
    assert marks(known)[TopicPartition("t", 1)] == (Committed("g", END), Committed("late", 101))


def test_what_members_were_told_is_there(spark: SparkSession) -> None:
    """Of each group and partition the last that a ledger tells; more is no loss, nor is what was
    forgotten. Of running brokers nobody knows yet what the last seconds brought."""
    stored = [
        (0, "g", ("t", 0), 40),
        (1, "g", ("t", 1), 50),
        (2, "g", ("t", 1), 20),
        (3, "left", ("t", 0), 30),
        (4, "left", ("t", 0), None),
    ]
    read = table(spark, RECORDS, [commit(1, *each) for each in stored])
    commits = [
        ("g", 0, 40, 1),
        ("g", 1, 45, 1),
        ("left", 0, 30, 1),
        ("g", 2, 7, 1),  # nothing is there
        ("late", 0, 90, 2),
        ("late", 0, 10, 3),
        ("g", 0, 39, 0),
    ]
    ledger = [
        {"ledger": "L", "line": line, "event": "committed", "topic": "t", "acks": -1}
        | {"group": group, "partition": partition, "offset": offset, "timestamp": timestamp}
        for line, (group, partition, offset, timestamp) in enumerate(commits, 1)
    ]
    ledger.append(ledger[0] | {"line": 9, "offset": 41, "timestamp": 9})  # and it says 40 at most
    said = "group {} was told that {} is committed (L line {}); __consumer_offsets says {}"
    for state, grade in (("killed", "error"), ("live", "info")):
        replicas = [replica(1, OFFSETS_TOPIC, 3, state=state)]
        replicas += [replica(1, "t", partition) for partition in range(3)]
        known = tables(spark, replicas=replicas)
        rows = committed_by_groups(read, known.replicas).toArrow().to_pylist()
        found = found_by(
            CHECKS["committed-offset"](
                tables(spark, replicas=replicas, committed=rows, ledger=ledger)
            )
        )
        told = [(each.partition, each.offset, each.severity.value, each.detail) for each in found]
        assert told == [
            (0, 10, grade, said.format("late", 10, 6, "nothing")),
            (0, 41, grade, said.format("g", 41, 9, "40 at most")),
            (2, 7, grade, said.format("g", 7, 4, "nothing")),
        ]
