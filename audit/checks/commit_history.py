"""What the records of one partition of the offsets topic amount to, in the order of the log.

The last record of a key is what counts, but the records before it tell more: how far a group once
was, how often it went back, and things that no coordinator does. A commit names neither the member
that made it nor its generation. The generation stored last before it says which member had the
partition, and so who most likely committed.

No coordinator does these:

* it deletes a group that has members, and it stores no lower generation than before, unless the
  group was deleted in between;
* it stores no commit again: the time in a commit is the coordinator's own, so a second commit with
  offset and time of an older one is a copy of its record;
* its clock does not fall together with the offset: then two records have changed places. Another
  coordinator's clock may be behind, so `before` names the earlier record, for a look at the epochs.
"""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from minibroker.audit.files.commits import NONE, Commit, Generation, Member
from minibroker.protocol.types import TopicPartition

REMEMBERED: Final = 16  # commits of a key, to recognize copies
PROBLEMS_MAX: Final = 1000  # of a partition; damage of whole segments would fill the memory
NO_TOPIC: Final = ""  # in the row of a group's generation
NO_PARTITION: Final = -1

Key: TypeAlias = tuple[str, str, int]  # group, topic and partition


class Row(NamedTuple):
    """A row of COMMITTED behind its `broker` and `home`, in the order of the columns."""

    at: int
    group: str | None
    topic: str | None
    partition: int | None
    offset: int | None = None
    leader_epoch: int | None = None
    highest: int | None = None
    commits: int | None = None
    deletions: int | None = None
    went_back: int | None = None
    back: str | None = None
    by: str | None = None
    dropped: int | None = None
    problem: str | None = None
    is_grave: bool | None = None
    before: int | None = None


@dataclass(slots=True)
class _Key:
    """What was stored of one group and partition."""

    at: int = NONE
    offset: int | None = None
    leader_epoch: int = NONE
    time_ms: int = NONE
    by: str = ""
    highest: int = NONE
    commits: int = 0
    deletions: int = 0
    went_back: int = 0
    back: str | None = None
    dropped: int | None = None
    unreadable: tuple[int, str] | None = None
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


@dataclass(slots=True)
class _Group:
    """A group's stored generation; `number` is None before the first and once it is deleted."""

    at: int = NONE
    number: int | None = None
    members: tuple[Member, ...] = ()
    unreadable: tuple[int, str] | None = None


class CommitHistory:
    """The history of one partition of the offsets topic on one replica.

    Add its records in the order of their offsets; then `rows` are what it amounts to.
    """

    def __init__(self) -> None:
        self._keys: dict[Key, _Key] = {}
        self._groups: dict[str, _Group] = {}
        self._problems: list[Row] = []

    def add(self, at: int, record: Commit | Generation) -> None:
        """Add the record at an offset of the log."""
        if isinstance(record, Generation):
            self._add_generation(at, record)
        else:
            self._add_commit(at, record)

    def add_unreadable(
        self, at: int, problem: str, group: str | None, topic: str | None, partition: int | None
    ) -> None:
        """Add a record that cannot be read; it is grave unless a later one of its key counts."""
        if group is None:
            self._report(Row(at, None, None, None, problem=problem, is_grave=True))
            return
        known: _Key | _Group
        if topic is None or partition is None:
            known = self._groups.setdefault(group, _Group())
        else:
            known = self._keys.setdefault((group, topic, partition), _Key())
        self._supersede(known, group, topic, partition)
        known.unreadable = at, problem

    def rows(self) -> Iterator[Row]:
        """Yield a row for each key and each group, then one for each problem."""
        for key, known in self._keys.items():
            if known.at != NONE:
                yield Row(
                    known.at,
                    *key,
                    known.offset,
                    known.leader_epoch,
                    known.highest,
                    known.commits,
                    known.deletions,
                    known.went_back,
                    known.back,
                    known.by,
                    known.dropped,
                )
            if known.unreadable is not None:
                yield self._unreadable(known.unreadable, key, is_grave=True)
        for name, group in self._groups.items():
            if group.at != NONE:
                members = ", ".join(_named(member) for member in group.members)
                yield Row(group.at, name, NO_TOPIC, NO_PARTITION, group.number, by=members)
            if group.unreadable is not None:
                place = (name, NO_TOPIC, NO_PARTITION)
                yield self._unreadable(group.unreadable, place, is_grave=True)
        yield from self._problems

    def _add_commit(self, at: int, commit: Commit) -> None:
        key = (commit.group, commit.topic, commit.partition)
        known = self._keys.setdefault(key, _Key())
        self._supersede(known, *key)
        by, owner = self._committer(key)
        if commit.offset is None:
            known.deletions += 1
            is_owned = owner is not None and known.offset is not None
            known.dropped = known.offset if is_owned else None
            known.at, known.offset, known.by = at, None, by
            return
        if known.offset is not None and commit.offset < known.offset:
            known.went_back += 1
            known.back = f"from {known.offset:,} to {commit.offset:,} (offset {at}), {by}"
        self._check_time(at, key, known, commit)
        known.commits += 1
        known.at, known.offset, known.leader_epoch = at, commit.offset, commit.leader_epoch
        known.time_ms, known.by, known.dropped = commit.time_ms, by, None
        known.highest = max(known.highest, commit.offset)
        known.recent.append((commit.offset, commit.time_ms))

    def _check_time(self, at: int, key: Key, known: _Key, commit: Commit) -> None:
        """Report a commit that is a copy of an older one, or that has changed places with one."""
        assert commit.offset is not None
        if NONE in (commit.time_ms, known.time_ms) or commit.offset == known.offset:
            return
        if (commit.offset, commit.time_ms) in known.recent:
            text = f"{commit.offset:,} is a copy of an older commit: it has its time, too"
            self._report(Row(at, *key, problem=text, is_grave=True))
        elif (
            known.offset is not None
            and commit.offset < known.offset
            and commit.time_ms < known.time_ms
        ):
            early = known.time_ms - commit.time_ms
            text = (
                f"{commit.offset:,} was committed {early:,} ms before {known.offset:,}, and is"
                f" stored after it, at offset {known.at}: they have changed places"
            )
            self._report(Row(at, *key, problem=text, is_grave=True, before=known.at))

    def _add_generation(self, at: int, record: Generation) -> None:
        known = self._groups.setdefault(record.group, _Group())
        self._supersede(known, record.group, None, None)
        place = (record.group, NO_TOPIC, NO_PARTITION)
        if record.number is None:
            if known.members:
                text = f"the group is deleted, and generation {known.number} has members"
                self._report(Row(at, *place, problem=text, is_grave=True))
        elif known.number is not None and record.number < known.number:
            text = f"its generation falls from {known.number} to {record.number}"
            self._report(Row(at, *place, problem=text, is_grave=True))
        elif record.number < 0:
            text = f"its generation is {record.number}"
            self._report(Row(at, *place, problem=text, is_grave=True))
        known.at, known.number, known.members = at, record.number, record.members

    def _committer(self, key: Key) -> tuple[str, Member | None]:
        """Return in words who can have committed now, and the member that has the partition."""
        group = self._groups.get(key[0])
        if group is None or group.number is None:
            return "by a client outside of any generation", None
        if not group.members:
            return f"by a client while generation {group.number} had no members", None
        name = TopicPartition(*key[1:])
        owner = next((each for each in group.members if name in each.partitions), None)
        if owner is None:
            return f"by a member of generation {group.number}", None
        return f"by {_named(owner)} of generation {group.number}", owner

    def _supersede(
        self, known: _Key | _Group, group: str, topic: str | None, partition: int | None
    ) -> None:
        """Report an unreadable record that no longer counts."""
        if known.unreadable is None:
            return
        place = (group, topic or NO_TOPIC, NO_PARTITION if partition is None else partition)
        self._report(self._unreadable(known.unreadable, place, is_grave=False))
        known.unreadable = None

    def _unreadable(self, unreadable: tuple[int, str], key: Key, *, is_grave: bool) -> Row:
        (at, problem), (group, topic, partition) = unreadable, key
        what = f"generation of group {group}"
        if topic != NO_TOPIC:
            what = f"commit of group {group} in {topic}-{partition}"
        which = "newest " if is_grave else ""
        text = f"the {which}{what} cannot be read: {problem}"
        if is_grave:
            text += "; a coordinator skips it, and an older one counts"
        return Row(at, group, topic, partition, problem=text, is_grave=is_grave)

    def _report(self, row: Row) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(row)


def _named(member: Member) -> str:
    return f"member {member.member_id}"


def members_as_text(members: tuple[Member, ...]) -> str:
    """Return members as one text, for a table; `members_of` returns them again."""
    return json.dumps([(*member[:2], sorted(member.partitions)) for member in members])


def members_of(text: str) -> tuple[Member, ...]:
    """Return the members of `members_as_text`."""
    return tuple(
        Member(member_id, client_id, frozenset(TopicPartition(*name) for name in names))
        for member_id, client_id, names in json.loads(text)
    )
