"""What groups have committed, from records of the offsets topic to findings."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from minibroker.audit.checks.groups import group_offsets, marks
from minibroker.audit.checks.registry import CHECKS
from minibroker.audit.checks.stored_commits import committed_by_groups, stored_by_groups
from minibroker.audit.files.cluster import Assignment
from minibroker.audit.files.commits import home_of
from minibroker.audit.model import RECORDS, Finding, Tables
from minibroker.audit.summary import Committed
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition
from tests.audit.checks.rows import found_by, table, tables
from tests.support.made_cluster import group_at

END = 100
HOME = 3  # of all groups, if there are HOMES
HOMES = 4
CHECKS_OF_GROUPS = ("committed-offset", "lost-commit", "group-record")


def named(prefix: str) -> str:
    """A name of a group whose home is HOME."""
    return group_at(HOME, HOMES, prefix)


G = named("g")


def text(words: str) -> bytes:
    """As a key holds it."""
    return struct.pack(">h", len(words)) + words.encode()


def commit(
    broker: int,
    at: int,
    group: str,
    place: tuple[str, int],
    offset: int | None,
    epoch: int = -1,
    time_ms: int = -1,
) -> dict:
    """A record of a partition of the offsets topic; offset None is a tombstone."""
    key = struct.pack(">h", 1) + text(group) + text(place[0]) + struct.pack(">i", place[1])
    value = None if offset is None else struct.pack(">hqihq", 3, offset, epoch, 0, time_ms)
    return record(broker, at, key, value)


def record(broker: int, at: int, key: bytes | None, value: bytes | None) -> dict:
    """Any record there."""
    place = {"broker": broker, "topic": OFFSETS_TOPIC, "partition": HOME, "offset": at}
    return {**place, "timestamp": 0, "key": key, "value": value, "headers": []}


def generation(number: int, members: Mapping[str, Sequence[int]]) -> bytes:
    """A stored generation: members with their partitions of t."""
    stored = struct.pack(">h", 3) + text("consumer") + struct.pack(">ihhq", number, -1, -1, 0)
    stored += struct.pack(">i", len(members))
    for name, partitions in members.items():
        owned = struct.pack(">hi", 0, 1) + text("t")
        owned += struct.pack(f">{1 + len(partitions)}i", len(partitions), *partitions)
        stored += text(name) + struct.pack(">h", -1) + text("client") + text("/host")
        stored += struct.pack(">iii", 1, 1, 0) + struct.pack(">i", len(owned)) + owned
    return stored


def replica(broker: int, topic: str, partition: int, **changed: object) -> dict:
    """A row of REPLICAS, in sync unless it says otherwise; broker 1 is the reference."""
    row = {"broker": broker, "topic": topic, "partition": partition, "in_isr": True}
    ends = {"first_offset": 0, "log_end": END, "kept_end": END, "judged_end": END}
    return {**row, **ends, "is_reference": broker == 1, "state": "killed", **changed}


def batch(topic: str, partition: int, epoch: int, first: int, last: int) -> dict:
    """A row of BATCHES on the reference replica."""
    row = {"broker": 1, "topic": topic, "partition": partition, "segment": 0, "position": first}
    row |= {"size": last - first + 1, "base_offset": first, "last_offset": last, "torn": False}
    row |= {"leader_epoch": epoch, "count": last - first + 1, "attributes": 0}
    return row | {"crc_stored": 1, "crc_computed": 1, "identity": first}


def assignment(epoch: int = 3, leader: int = 1) -> Assignment:
    """What the metadata say of a partition."""
    return Assignment("id", leader, epoch, (1, 2, 3), (1, 2, 3))


def known(
    spark: SparkSession, records: Sequence[dict], replicas: Sequence[dict], **more: Any
) -> Tables:
    """The tables of an audit of these logs; `partitions` of t, and HOMES, are in the metadata."""
    others: dict[str, Any] = more.pop("others", {})
    if (partitions := more.pop("partitions", None)) is not None:
        others["assignments"] = {
            **{TopicPartition("t", number): assignment() for number in range(partitions)},
            **{TopicPartition(OFFSETS_TOPIC, home): assignment(5, 2) for home in range(HOMES)},
        }
    stored = stored_by_groups(
        table(spark, RECORDS, records), tables(spark, replicas=replicas).replicas
    )
    rows = committed_by_groups(stored).toArrow().to_pylist()
    return tables(
        spark,
        others,
        replicas=replicas,
        stored=stored.toArrow().to_pylist(),
        committed=rows,
        **more,
    )


def found(tables: Tables, *checks: str) -> list[tuple[Any, ...]]:
    """Where something is wrong, and how bad it is."""
    return [
        (each.topic, each.partition, each.broker, each.offset, each.severity.value)
        for each in all_found(tables, *checks)
    ]


def all_found(tables: Tables, *checks: str) -> list[Finding]:
    """What these checks find; all checks of groups, if none is named."""
    return [
        each
        for check in checks or CHECKS_OF_GROUPS
        if check != "lost-commit" or tables.ledger is not None
        for each in found_by(CHECKS[check](tables))
    ]


MEMBERS = generation(1, {"m": [0]})


def test_offsets_that_groups_committed(spark: SparkSession) -> None:
    """Found are offsets above every in-sync log, above some, below the start, different on in-sync
    replicas, of which two outvote the reference, and records that say nothing."""
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
    records += [record(broker, 9, b"\0\2" + text("g"), MEMBERS) for broker in (1, 2, 3)]
    records += [
        *(commit(broker, 10, "g", ("t", 4), 10 * min(broker, 2)) for broker in (1, 2, 3)),
        commit(1, 11, "half", ("t", 4), 5),
        commit(2, 12, "other", ("t", 4), 6),
        commit(3, 12, "other", ("t", 4), 6),
        record(2, 13, b"?", None),
        *(commit(broker, END, "g", ("t", 0), END + 5) for broker in (1, 2, 3)),  # not judged
    ]
    replicas = [
        *(replica(broker, OFFSETS_TOPIC, HOME) for broker in (1, 2, 3)),
        *(replica(broker, "t", partition) for broker in (1, 2) for partition in (0, 1, 4)),
        *(replica(broker, "t", 2, log_start=8, first_offset=0) for broker in (1, 2)),
        replica(1, "t", 3, judged_end=90),
        replica(2, "t", 3, log_end=90, kept_end=90, judged_end=90),
        replica(3, "t", 1, in_isr=False, log_end=END + 50),
    ]
    judged = known(spark, records, replicas)
    assert [
        (each.topic, each.partition, each.broker, each.other_broker, each.offset, each.severity)
        for each in all_found(judged)
    ] == [
        (OFFSETS_TOPIC, HOME, 1, 2, 10, "error"),
        (OFFSETS_TOPIC, HOME, 1, 2, 11, "error"),
        (OFFSETS_TOPIC, HOME, 1, 2, 12, "error"),
        ("gone", 0, None, None, 5, "warning"),
        ("t", 1, None, None, END + 1, "error"),
        ("t", 2, None, None, 7, "warning"),
        ("t", 3, 2, None, 90, "warning"),
        (OFFSETS_TOPIC, HOME, 2, None, 13, "error"),
    ]
    assert [each.detail for each in all_found(judged)] == [
        "of group g in t-4 it says 10 (at offset 10), broker 2 says 20 (at offset 10)",
        "of group half in t-4 it says 5 (at offset 11), broker 2 says nothing",
        "of group other in t-4 it says nothing, broker 2 says 6 (at offset 12)",
        "group g has committed 5 (__consumer_offsets-3, offset 6); no log of this partition was"
        " given",
        "group late has committed 101 (__consumer_offsets-3, offset 3); the in-sync log that has"
        " most ends at 100; to do: minibroker group seek late --topic t:1 --to-latest",
        "group slow has committed 7 (__consumer_offsets-3, offset 4); the log begins at 8",
        "group short has committed 95 (__consumer_offsets-3, offset 5); the log of broker 2 ends"
        " at 90",
        "no record of a group: it ends within a number at byte 0; a coordinator skips it",
    ]
    check_what_is_shown(judged)


def check_what_is_shown(judged: Tables) -> None:
    """What the report has of these groups, and the marks in its pictures."""
    shown, count = group_offsets(judged)
    assert count == len(shown) == 9
    assert marks(shown)[TopicPartition("t", 1)] == (Committed("g", END), Committed("late", 101))
    [one] = [each for each in shown if (each.group, each.topic, each.partition) == ("g", "t", 0)]
    assert (one.committed, one.lag, one.highest, one.commits) == (40, 60, END + 9, 2)
    assert one.back == "from 109 to 40 (offset 1), by a client outside of any generation"
    [left] = [each for each in shown if each.group == "left"]
    assert (left.committed, left.lag, left.deletions) == (None, None, 1)


def test_one_of_two_replicas_is_wrong_and_none_knows_which(spark: SparkSession) -> None:
    """Both are named, unless a ledger confirms one."""
    records = [commit(broker, 0, G, ("t", 0), 10 * broker) for broker in (1, 2)]
    replicas = [
        replica(broker, topic, at)
        for broker in (1, 2)
        for topic, at in ((OFFSETS_TOPIC, HOME), ("t", 0))
    ]
    assert found(known(spark, records, replicas)) == [
        (OFFSETS_TOPIC, HOME, broker, 0, "error") for broker in (1, 2)
    ]
    told = known(spark, records, replicas, ledger=[acknowledged(1, G, 0, 20)])
    assert found(told) == [
        (OFFSETS_TOPIC, HOME, 1, 0, "error"),
        (OFFSETS_TOPIC, HOME, 1, None, "error"),
    ]
    assert [each.detail for each in all_found(told)] == [
        f"of group {G} in t-0 it says 10 (at offset 0), broker 2 says 20 (at offset 0)",
        f"group {G} was told that 20 of t-0 is committed (L line 1), and broker 1 does not have it;"
        f" 2 has; to do: minibroker group seek {G} --topic t:0 --to-offset 20",
    ]


def test_an_acknowledged_commit_counts_against_a_majority(spark: SparkSession) -> None:
    """Two replicas say that it was deleted, and had stored the same offset before."""
    brokers = (1, 2, 3)
    records = [commit(broker, 0, G, ("t", 0), 20) for broker in brokers]
    records += [commit(broker, 1, G, ("t", 0), 20 if broker == 3 else None) for broker in brokers]
    replicas = [
        replica(broker, topic, at)
        for broker in brokers
        for topic, at in ((OFFSETS_TOPIC, HOME), ("t", 0))
    ]
    told = known(spark, records, replicas, ledger=[acknowledged(1, G, 0, 20)])
    assert found(told) == [(OFFSETS_TOPIC, HOME, broker, 1, "error") for broker in (1, 2)]


EPOCHS = (  # leader epoch and offset of a commit, and where records are gone
    (0, 10, None),  # all that it has read is there
    (0, 20, 10),  # cut at 10, where leader epoch 2 goes on
    (1, 20, 10),  # nothing of its own epoch is there
    (2, 20, None),
    (3, 25, None),  # of a leader that has appended nothing yet
    (4, 25, 25),  # an epoch that never was
    (-1, 20, None),  # a client that does not know
)


def test_records_that_a_group_has_read_are_gone(spark: SparkSession) -> None:
    """After an unclean election the log was cut to 10 and grew to 25: the group stands within, and
    the leader epoch of its commit says what it has read."""
    ends = {"log_end": 25, "kept_end": 25, "judged_end": 25}
    judged = known(
        spark,
        [commit(1, at, G, ("t", at), each[1], each[0]) for at, each in enumerate(EPOCHS)],
        [replica(1, OFFSETS_TOPIC, HOME), *(replica(1, "t", at, **ends) for at in range(7))],
        batches=[
            batch("t", at, epoch, *offsets)
            for at in range(7)
            for epoch, offsets in ((0, (0, 9)), (2, (10, 24)))
        ],
        partitions=7,
    )
    assert found(judged, "committed-offset") == [
        ("t", at, None, where, "error") for at, (*_, where) in enumerate(EPOCHS) if where
    ]
    assert all_found(judged, "committed-offset")[0].detail == (
        f"group {G} has committed 20 (__consumer_offsets-3, offset 1); the records from offset 10"
        " to 20 that it had read are gone: the log was cut there, and goes on in leader epoch 2;"
        " the group read them in epoch 0; to do: minibroker group seek"
        f" {G} --topic t:1 --to-offset 10"
    )


def test_records_that_no_coordinator_writes(spark: SparkSession) -> None:
    """Of each the place, the severity and the words; what came later makes good what it can."""
    wrong = next(name for name in "abcdef" if home_of(name, HOMES) != HOME)
    group_key = b"\0\2" + text(G)
    planted = [
        commit(1, 0, G, ("t", 0), -2),  # as kafkajs writes it
        commit(1, 1, G, ("t", 9), 5),
        commit(1, 2, wrong, ("t", 0), 5),
        record(1, 3, group_key, generation(7, {"m": [0, 1]})),
        commit(1, 4, G, ("t", 1), 40),
        commit(1, 5, G, ("t", 1), None),  # m reads it
        record(1, 6, group_key, generation(5, {})),
        record(1, 7, group_key, b"\0\x09"),
        commit(1, 8, G, ("t", 2), 40, time_ms=7),
        commit(1, 9, G, ("t", 2), 50, time_ms=8),
        commit(1, 10, G, ("t", 2), 40, time_ms=7),
        commit(1, 11, G, ("gone", 0), 5),
        record(1, 12, b"\0\x63" + text(G), b"newer"),
        record(1, 13, commit(1, 0, G, ("t", 3), 1)["key"], b"\0\x09"),
        commit(1, 14, G, ("t", 3), 4),
    ]
    replicas = [replica(1, OFFSETS_TOPIC, HOME), *(replica(1, "t", at) for at in range(4))]
    judged = known(spark, planted, replicas, partitions=4)
    assert found(judged) == [
        ("gone", 0, None, 5, "warning"),
        ("t", 1, None, 40, "error"),
        ("t", 9, None, 5, "error"),
        *(
            (OFFSETS_TOPIC, HOME, 1, at, severity)
            for at, severity in (
                (2, "error"),
                (6, "error"),
                (7, "error"),
                (10, "error"),
                (12, "error"),
                (13, "warning"),
            )
        ),
    ]
    said = {each.offset: each.detail for each in all_found(judged, "group-record")}
    assert said == {
        2: f"group {wrong} (t-0) is in the wrong partition; its coordinator reads"
        f" {OFFSETS_TOPIC}-{home_of(wrong, HOMES)} alone, and so nothing of this",
        6: f"group {G}: its generation falls from 7 to 5",
        7: f"the newest generation of group {G} cannot be read: a generation of version 9;"
        " a coordinator skips it, and an older one counts",
        10: f"group {G} in t-2: 40 is a copy of an older commit: it has its time, too",
        12: "no record of a group: a key of kind 99; a coordinator skips it",
        13: f"the commit of group {G} in t-3 cannot be read: an offset of version 9",
    }


def test_commits_that_have_changed_places(spark: SparkSession) -> None:
    """The clock of one coordinator does not fall with the offset; the next one's may be behind."""
    records = [
        commit(1, 0, G, ("t", 0), 50, time_ms=9),
        commit(1, 1, G, ("t", 0), 40, time_ms=7),
        commit(1, 2, G, ("t", 0), 30, time_ms=6),
    ]
    batches = [batch(OFFSETS_TOPIC, HOME, 1, 0, 1), batch(OFFSETS_TOPIC, HOME, 2, 2, 2)]
    replicas = [replica(1, OFFSETS_TOPIC, HOME), replica(1, "t", 0)]
    judged = known(spark, records, replicas, batches=batches)
    assert found(judged, "group-record") == [
        (OFFSETS_TOPIC, HOME, 1, at, severity) for at, severity in ((1, "error"), (2, "warning"))
    ]


def acknowledged(line: int, group: str, partition: int, offset: int, **more: object) -> dict:
    """A line of ledger L about a commit."""
    row = {"ledger": "L", "line": line, "event": "committed", "topic": "t", "acks": -1}
    return {**row, "group": group, "partition": partition, "offset": offset, "timestamp": 1, **more}


LEFT, LATE, SOUGHT = (named(prefix) for prefix in ("left", "late", "sought"))
STORED = [
    (0, G, ("t", 0), 40),
    (1, G, ("t", 1), 50),
    (2, G, ("t", 1), 20),  # by a client without a ledger
    (3, LEFT, ("t", 0), 30),
    (4, LEFT, ("t", 0), None),
    (5, SOUGHT, ("t", 0), 50),
    (6, SOUGHT, ("t", 1), 50),
    (7, SOUGHT, ("t", 1), 40),
]
TOLD = [
    acknowledged(1, G, 0, 40),
    acknowledged(2, G, 1, 50),
    acknowledged(3, LEFT, 0, 30),
    acknowledged(4, G, 2, 7),  # nothing is there
    acknowledged(5, LATE, 0, 90, timestamp=2),
    acknowledged(6, LATE, 0, 10, timestamp=3, member="m", generation=4),
    acknowledged(7, G, 0, 39, timestamp=0),
    acknowledged(9, G, 0, 41, timestamp=9),  # and 40 is there
    acknowledged(10, SOUGHT, 0, 50),
    acknowledged(11, SOUGHT, 0, 20, timestamp=2),  # back, and that is lost
    acknowledged(12, SOUGHT, 1, 40),
    acknowledged(13, SOUGHT, 1, 50, timestamp=2),  # an older one counts
]


def test_what_members_were_told_is_there(spark: SparkSession) -> None:
    """The last commit that a ledger tells of counts, or one of which no ledger tells; what was
    forgotten is no loss. The broker that lacks it is named, or the coordinator that lost it. Of
    running brokers nobody knows yet what the last seconds brought."""
    said = (
        "group {} was told that {} of t-{} is committed (L line {}), and __consumer_offsets says {}"
    )
    coordinator = "; its coordinator is broker 2 (leader epoch 5)"
    advice = "; to do: minibroker group seek {} --topic t:{} --to-offset {}"
    told = [
        (G, 7, 2, "4", "nothing"),
        (G, 41, 0, "9", "40 (offset 0)"),
        (LATE, 10, 0, "6, member m of generation 4", "nothing"),
        (SOUGHT, 20, 0, "11", "50 (offset 5)"),
        (SOUGHT, 50, 1, "13", "40 (offset 7), which was acknowledged before it (L line 12)"),
    ]
    for state, grade in (("killed", "error"), ("live", "info")):
        replicas = [replica(1, OFFSETS_TOPIC, HOME, state=state)]
        replicas += [replica(1, "t", partition) for partition in range(3)]
        records = [commit(1, *each) for each in STORED]
        judged = known(spark, records, replicas, ledger=TOLD, partitions=3)
        assert {
            (each.topic, each.partition, each.broker, each.severity.value, each.detail)
            for each in all_found(judged)
        } == {
            (
                OFFSETS_TOPIC,
                HOME,
                2,
                grade,
                said.format(group, offset, partition, line, there)
                + coordinator
                + advice.format(group, partition, offset),
            )
            for group, offset, partition, line, there in told
        }


def test_a_commit_of_which_no_ledger_tells(spark: SparkSession) -> None:
    """A group that was set back by it is found if the ledgers are complete: an error, or a warning
    where one of them breaks off. A commit that is higher sets nobody back."""
    records = [
        commit(1, at, G, ("t", partition), offset)
        for at, (partition, offset) in enumerate([(0, 40), (0, 50), (0, 40), (1, 40), (1, 50)])
    ]
    replicas = [replica(1, OFFSETS_TOPIC, HOME), *(replica(1, "t", number) for number in (0, 1))]
    told = [acknowledged(1, G, 0, 40), acknowledged(2, G, 0, 50, timestamp=2)]
    told.append(acknowledged(3, G, 1, 40))
    begun = {"ledger": "L", "line": 0, "event": "began"}
    others = {"is_ledger_complete": True}
    for more, severity in (([], "error"), ([begun], "warning")):
        judged = known(spark, records, replicas, ledger=[*told, *more], others=dict(others))
        [finding] = all_found(judged, "lost-commit")
        assert finding.severity.value == severity
        assert "says 40 (offset 2), of which no ledger tells" in finding.detail


def test_commits_that_compaction_has_removed(spark: SparkSession) -> None:
    """A commit that a later one replaced, of which no ledger tells, may be gone from one replica or
    from all; one that an older one replaced is lost."""
    records = [
        commit(1, 0, G, ("t", 0), 40),
        *(commit(broker, 1, G, ("t", 0), 50) for broker in (1, 2)),
        *(commit(broker, 2, G, ("t", 1), 60) for broker in (1, 2)),
        *(commit(broker, 3, G, ("t", 2), 10) for broker in (1, 2)),
    ]
    told = [acknowledged(1, G, 0, 40), acknowledged(2, G, 1, 30)]
    told += [acknowledged(3, G, 2, 10), acknowledged(4, G, 2, 20, timestamp=2)]
    logs = [replica(1, "t", number) for number in range(3)]
    found = {}
    for cleaned_end in (0, 4):
        homes = [replica(each, OFFSETS_TOPIC, HOME, cleaned_end=cleaned_end) for each in (1, 2)]
        judged = known(spark, records, [*homes, *logs], ledger=told, partitions=3)
        found[cleaned_end] = [each.detail for each in all_found(judged, "lost-commit")]
    assert len(found[0]) == 3
    [lost] = found[4]
    assert f"group {G} was told that 20 of t-2 is committed" in lost
