"""Committed offsets that are wrong, in real directories: each is found at its place by an audit."""

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from minibroker.audit.model import Finding, Severity
from minibroker.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    StoredMember,
    encode_key,
    encode_value,
)
from minibroker.protocol.constants import OFFSETS_TOPIC
from tests.support.audited import audit
from tests.support.damage import Replica, change_commit, change_records
from tests.support.made_cluster import (
    BATCHES,
    NODES,
    RECORDS,
    TOPIC,
    Commit,
    group_at,
    make_cluster,
)

END = BATCHES * RECORDS
PARTITIONS = 4  # retention took the front of the first one
COMMITS = tuple(Commit("readers", partition, END) for partition in range(PARTITIONS))
BELOW, ABOVE, APART, SOUND = range(PARTITIONS)  # partitions, and where their commits are
DEVIANT, RIGHT = NODES[:2]  # the first leads: two that agree are right against it
CHECK = "committed-offset"


def test_wrong_committed_offsets_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """One below the log's start and one above its end, which all replicas of the offsets topic
    tell, and one of which one replica tells another; a group at the very end is right. Users'
    topics come first."""
    make_cluster(tmp_path, PARTITIONS, COMMITS)
    replicas = {node: Replica(tmp_path / f"broker-{node}", OFFSETS_TOPIC, 0) for node in NODES}
    for replica in replicas.values():
        change_commit(replica, BELOW, 1)
        change_commit(replica, ABOVE, END + 1)
    apart = change_commit(replicas[DEVIANT], APART, END - 1)
    summary, findings = audit(spark, tmp_path, tmp_path / "audit", checks=("crc", CHECK))
    assert summary.exit_code == 1, summary.sentence
    said = "group readers has committed"
    assert findings == [
        Finding(
            CHECK,
            Severity.ERROR,
            TOPIC,
            ABOVE,
            offset=END + 1,
            detail=f"{said} {END + 1} ({OFFSETS_TOPIC}-0, offset {ABOVE});"
            f" the in-sync log that has most ends at {END};"
            f" to do: minibroker group seek readers --topic {TOPIC}:{ABOVE} --to-latest",
        ),
        Finding(
            CHECK,
            Severity.ERROR,
            OFFSETS_TOPIC,
            0,
            broker=DEVIANT,
            other_broker=RIGHT,
            offset=apart.offset,
            detail=f"of group readers in {TOPIC}-{APART} it says {END - 1} (at offset {APART}),"
            f" broker {RIGHT} says {END} (at offset {APART})",
        ),
        Finding(
            CHECK,
            Severity.WARNING,
            TOPIC,
            BELOW,
            offset=1,
            detail=f"{said} 1 ({OFFSETS_TOPIC}-0, offset {BELOW}); the log begins at {END // 2}",
        ),
    ]
    [sound] = [each for each in summary.partitions if each.partition == SOUND]
    assert [(mark.group, mark.offset) for mark in sound.committed] == [("readers", END)]


# -- what no coordinator writes, each kind in a partition of the offsets topic of its own

MEMBER = StoredMember("m", None, "client", "/host", 1, 1, b"", b"")
ERROR, WARNING = Severity.ERROR, Severity.WARNING


def stored(offset: int, epoch: int = -1, time_ms: int = -1) -> bytes:
    """The value of a commit."""
    return encode_value(CommittedOffset(offset, epoch, "", time_ms))


def generation(number: int, *partitions: int) -> bytes:
    """A stored generation with one member, which has these partitions; without any, with none."""
    owned = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode()
    owned += struct.pack(f">{1 + len(partitions)}i", len(partitions), *partitions)
    members = (replace(MEMBER, assignment=owned),) if partitions else ()
    return encode_value(GroupMetadata("consumer", number, members=members))


class Place(NamedTuple):
    """Where a kind is planted: the group of a partition of the offsets topic, and what it reads."""

    home: int
    group: str
    partition: int

    def key(self, topic: str = TOPIC, partition: int | None = None) -> bytes:
        """The key of a commit."""
        number = self.partition if partition is None else partition
        return encode_key(OffsetKey(self.group, topic, number))

    @property
    def group_key(self) -> bytes:
        """The key of the group's generation."""
        return encode_key(GroupKey(self.group))


class Kind(NamedTuple):
    """The last records of a partition as `key, value`, and what is found, in the partition of the
    offsets topic at `offset`, or in the partition that is read; `also` by a second check."""

    records: Callable[[Place], list[tuple[bytes | None, bytes | None]]]
    check: str
    severity: Severity
    brokers: tuple[int | None, ...]
    said: str
    only_on: tuple[int, ...] = NODES
    is_at_home: bool = True
    also: str = ""


ALL: tuple[int | None, ...] = NODES
KINDS = {
    "a partition that the topic does not have": Kind(
        lambda at: [(at.key(partition=999), stored(5))],
        "committed-offset", ERROR, (None,), "does not have this partition", is_at_home=False,
    ),
    "a topic that is gone": Kind(
        lambda at: [(at.key("gone"), stored(5))],
        "committed-offset", WARNING, (None,), "was it deleted?", is_at_home=False,
    ),
    "a value of another version, the newest": Kind(
        lambda at: [(at.key(), b"\0\x09" + stored(9)[2:])],
        "group-record", ERROR, ALL, "an offset of version 9",
    ),
    "a value that is cut, the newest": Kind(
        lambda at: [(at.key(), stored(9)[:-1])], "group-record", ERROR, ALL, "the newest commit"
    ),
    "a value that is cut, and a later one": Kind(
        lambda at: [(at.key(), stored(9)[:-1]), (at.key(), stored(END))],
        "group-record", WARNING, ALL, "cannot be read",
    ),
    "a key of another version": Kind(
        lambda at: [(b"\0\x09" + at.key()[2:], stored(9))],
        "group-record", ERROR, ALL, "a key of kind 9",
    ),
    "no key": Kind(
        lambda at: [(None, stored(9))], "group-record", ERROR, ALL, "a record without a key"
    ),
    "a generation that is garbage": Kind(
        lambda at: [(at.group_key, b"\0\3garbage")],
        "group-record", ERROR, ALL, "the newest generation",
    ),
    "a generation that falls": Kind(
        lambda at: [(at.group_key, generation(7)), (at.group_key, generation(5))],
        "group-record", ERROR, ALL, "falls from 7 to 5",
    ),
    "a group that is deleted with its members": Kind(
        lambda at: [(at.group_key, generation(7, at.partition)), (at.group_key, None)],
        "group-record", ERROR, ALL, "generation 7 has members",
    ),
    "a commit that is deleted under its reader": Kind(
        lambda at: [(at.group_key, generation(7, at.partition)), (at.key(), stored(9)),
                    (at.key(), None)],
        "committed-offset", ERROR, (None,), "by member m of generation 7", is_at_home=False,
    ),
    "another commit on one replica": Kind(
        lambda at: [(at.key(), stored(9))],
        "committed-offset", ERROR, (2,), "it says 9 ", only_on=(2,),
    ),
    "another commit on two replicas": Kind(
        lambda at: [(at.key(), stored(9))],
        "committed-offset", ERROR, (1,), "says 9 (", only_on=(2, 3),
    ),
    "another generation on one replica": Kind(
        lambda at: [(at.group_key, generation(7, at.partition))],
        "committed-offset", ERROR, (3,), "its generation, it says 7", only_on=(3,),
    ),
    "a commit of another home": Kind(
        lambda at: [(encode_key(OffsetKey(other_than(at), TOPIC, 1)), stored(9))],
        "group-record", ERROR, (1,), "in the wrong partition",
    ),
    "a leader epoch that never was": Kind(
        lambda at: [(at.key(), stored(9, 99))],
        "committed-offset", ERROR, (None,), "leader epoch 99, which never was", is_at_home=False,
    ),
    "an epoch of which the log has been cut": Kind(
        lambda at: [(at.key(), stored(END - 1, 0))],
        "committed-offset", ERROR, (None,), "the log was cut there", is_at_home=False,
    ),
    "a copy of an older commit": Kind(
        lambda at: [(at.key(), stored(9, time_ms=7)), (at.key(), stored(19, time_ms=8)),
                    (at.key(), stored(9, time_ms=7))],
        "group-record", ERROR, ALL, "a copy of an older commit",
    ),
    "commits that have changed places": Kind(
        lambda at: [(at.key(), stored(19, time_ms=8)), (at.key(), stored(9, time_ms=7))],
        "group-record", ERROR, ALL, "they have changed places",
    ),
    "a generation that falls, on two replicas": Kind(
        lambda at: [(at.group_key, generation(7, at.partition)), (at.group_key, generation(5))],
        "group-record", ERROR, (2, 3), "its generation", only_on=(2, 3), also="committed-offset",
    ),
}  # fmt: skip


LONGEST = 3  # records of a kind


def other_than(at: Place) -> str:
    """A group whose home is elsewhere."""
    assert at.home
    return group_at(0, 1 + len(KINDS))


def test_what_no_coordinator_writes_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Each kind has its check, severity and guilty brokers, and the partition with nothing planted
    is clean."""
    homes = 1 + len(KINDS)
    places = [Place(home, group_at(home, homes), home * 5 + 1) for home in range(homes)]
    commits = [
        Commit(at.group, at.partition, END, at.home) for at in places for _ in range(1 + LONGEST)
    ]
    make_cluster(tmp_path, homes * 5, commits)
    for at, kind in zip(places[1:], KINDS.values(), strict=True):
        records = kind.records(at)
        for node in kind.only_on:
            batches = [*Replica(tmp_path / f"broker-{node}", OFFSETS_TOPIC, at.home).batches()]
            for number, (key, value) in enumerate(records, 1 + LONGEST - len(records)):
                [batch] = [each for each in batches if each.header.base_offset == number]
                change_records(batch, lambda _, old, k=key, v=value: old._replace(key=k, value=v))
                batches = [*Replica(tmp_path / f"broker-{node}", OFFSETS_TOPIC, at.home).batches()]
    names = ("committed-offset", "group-record")
    summary, findings = audit(spark, tmp_path, tmp_path / "audit", checks=names)
    assert summary.exit_code == 1, summary.sentence
    wrong = []
    for at, (name, kind) in zip(places[1:], KINDS.items(), strict=True):
        place = (OFFSETS_TOPIC, at.home)
        mine = [
            each
            for each in findings
            if re.search(rf"group {at.group}\b", each.detail)
            or (each.topic, each.partition) == place
        ]
        told = {(each.check, each.severity, each.broker) for each in mine}
        checks = {kind.check, kind.also or kind.check}
        wanted = {(check, kind.severity, broker) for check in checks for broker in kind.brokers}
        is_there = {each.topic == OFFSETS_TOPIC for each in mine} == {kind.is_at_home}
        if told != wanted or not is_there or not all(kind.said in each.detail for each in mine):
            wrong.append(f"{name}: {[str(each) for each in mine]}")
    assert not wrong, "\n".join(wrong)
    assert not [each for each in findings if each.partition == 0 and each.topic == OFFSETS_TOPIC]
