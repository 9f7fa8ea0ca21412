"""What must always be true of a consumer group, as objects that are shown its history.

Each checker is shown every event of `group_events.py`, remembers what it needs and raises
`Violation` as soon as a promise is broken; what can be judged only at the end has `judge`. All of
them work on made-up histories too (`test_group_checkers.py`).

A commit that nobody answered may still arrive, also behind a later one of the same member: the
first connection was given up, its bytes were not. Until a newer generation is there to fence it,
it may set the group back to its offset, in Kafka as here. `RisingCommits` knows each such request
and allows that and nothing else; `late` counts how often it did.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from minibroker.broker.groups.records import GroupMetadata
from minibroker.client.groups.consumer_group import time_to_commit_s
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.subscription import decode_assignment
from minibroker.protocol.types import TopicPartition
from tests.sim.checkers import Violation
from tests.sim.group_events import (
    Assigned,
    Closed,
    Closing,
    CommitAnswered,
    CommitBegun,
    CommitEnded,
    CommitFailed,
    CommitSent,
    Crashed,
    Done,
    Event,
    FetchAnswered,
    FetchSent,
    Lost,
    Offsets,
    Places,
    PutOut,
    Revoked,
    Shown,
    Synced,
)
from tests.sim.group_tap import NOT_A_MEMBER

CLOSE_SLACK_S = 0.5
# What a broker answers that is not, or not yet, the group's coordinator.
NO_COORDINATOR = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class OneOwner:
    """In one generation no partition has two owners."""

    def __init__(self) -> None:
        self._owners: dict[tuple[int, TopicPartition], str] = {}

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        if not isinstance(event, Synced):
            return
        for place in event.places:
            owner = self._owners.setdefault((event.generation, place), event.member)
            if owner != event.member:
                raise Violation(
                    f"{place} was given to {owner} in generation {event.generation},"
                    f" and now to {event.member}"
                )


class Generations:
    """Who is in which generation, as far as the members know."""

    def __init__(self) -> None:
        self.newest = -1
        self.of: dict[str, int] = {}

    def look(self, now: float, event: Event) -> None:
        """Judges nothing."""
        if isinstance(event, Synced):
            self.newest = max(self.newest, event.generation)
            self.of[event.who] = event.generation


class RisingCommits:
    """A committed offset never goes back: who asks is told no less than was acknowledged, or told
    to anybody, before it asked; and only what somebody has committed."""

    def __init__(self) -> None:
        self.floors: dict[TopicPartition, int] = {}
        self.late = 0
        self._generation = -1
        self._unanswered: dict[int, CommitSent] = {}
        self._ever: dict[TopicPartition, set[int]] = defaultdict(set)
        self._asked: dict[int, tuple[Offsets, int]] = {}

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case CommitSent():
                self._unanswered[event.number] = event
                for place, offset in event.offsets.items():
                    self._ever[place].add(offset)
            case CommitAnswered():
                sent = self._unanswered.pop(event.number)
                for place, error in event.errors.items():
                    if error == ErrorCode.NONE:
                        self._raise_floor(place, sent.offsets[place])
            case FetchSent():
                self._asked[event.number] = (dict(self.floors), self._generation)
            case FetchAnswered():
                floors, generation = self._asked.pop(event.number)
                for place, offset in event.offsets.items():
                    self._judge(event, place, floors.get(place, -1), generation)
                    self._raise_floor(place, offset)
            case Synced():
                self._generation = max(self._generation, event.generation)

    def _raise_floor(self, place: TopicPartition, offset: int) -> None:
        self.floors[place] = max(offset, self.floors.get(place, -1))

    def _judge(
        self, event: FetchAnswered, place: TopicPartition, floor: int, generation: int
    ) -> None:
        offset = event.offsets[place]
        if offset >= 0 and offset not in self._ever[place]:
            raise Violation(f"{event.who} is told {offset} for {place}: nobody has committed that")
        if offset >= floor:
            return
        if not any(
            sent.offsets.get(place) == offset and not 0 <= sent.generation < generation
            for sent in self._unanswered.values()
        ):
            raise Violation(f"{place} was committed at {floor}, {event.who} is told {offset}")
        self.late += 1


class Fenced:
    """No commit counts that was sent in a generation after a newer one had its assignments."""

    def __init__(self) -> None:
        self._newest = -1
        self._late: dict[int, int] = {}  # the generation, by request

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case Synced():
                self._newest = max(self._newest, event.generation)
            case CommitSent() if event.generation < self._newest:
                self._late[event.number] = event.generation
            case CommitAnswered():
                late = self._late.pop(event.number, None)
                if late is not None and ErrorCode.NONE in event.errors.values():
                    raise Violation(
                        f"{event.who} may commit in generation {late}, after {self._newest} began"
                    )


class OnlyDone:
    """Nobody commits a record that the application has not finished with."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, TopicPartition], int] = {}

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case Done():
                self._raise_end(event.who, event.place, event.offset + 1)
            case FetchAnswered():
                for place, offset in event.offsets.items():
                    self._raise_end(event.who, place, offset)
            case CommitSent():
                for place, offset in event.offsets.items():
                    end = self._ends.get((event.who, place), 0)
                    if offset > end:
                        raise Violation(
                            f"{event.who} commits {place} at {offset}, and is done up to {end}"
                        )

    def _raise_end(self, who: str, place: TopicPartition, end: int) -> None:
        self._ends[who, place] = max(end, self._ends.get((who, place), 0))


class Span(NamedTuple):
    """A time, in seconds."""

    since: float
    until: float


@dataclass
class Holding:
    """A partition in the hands of one member, from the callback that gave it to the end."""

    who: str
    place: TopicPartition
    since: float
    until: float | None = None
    # Why its records may be read again: it lost the partition, or could not commit.
    excuse: str = ""
    is_outage: bool = False  # whether the excuse is that the group had no coordinator for long
    shown: list[tuple[float, int]] = field(default_factory=list)
    committed: int = 0  # as the member knows

    @property
    def is_committed(self) -> bool:
        """Whether all that was shown is."""
        return not self.shown or self.shown[-1][1] < self.committed


SESSION_S_MIN: Final = 1.0  # the shortest session time-out of these scenarios


class Holdings:
    """Members are shown records of the partitions they hold, each the next one, and the first one
    is never behind what the group was shown until then. So what was shown is always without gaps.

    A client that commits by itself does so when the application has let go of a partition; until
    the next assignment is there, what ends the member, or puts it out of its generation, has also
    ended that. Of partitions that it still has then, it tells the application that they are lost.
    It goes on without the answer to its commit only when its session may have ended meanwhile.
    """

    def __init__(self) -> None:
        self.all: list[Holding] = []
        self.held: dict[tuple[str, TopicPartition], Holding] = {}
        self.ends: dict[TopicPartition, int] = {}
        self._committing: dict[str, float] = {}  # since when
        self._unheard_s: dict[str, float] = {}  # the longest without a coordinator, in that commit
        self._waits: dict[str, list[Span]] = defaultdict(list)  # of applications for their commits
        self._closing: dict[str, tuple[float, float]] = {}
        self._let_go: dict[str, list[Holding]] = defaultdict(list)
        self._sent: dict[int, tuple[float, CommitSent]] = {}  # when, and what; without an answer
        self._answered: dict[str, float] = {}  # when a coordinator last answered a commit
        self._generations = Generations()

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        self._generations.look(now, event)
        match event:
            case Assigned():
                for holding in self._let_go.pop(event.who, ()):
                    if not holding.is_committed and self._has_waited(now, holding):
                        holding.excuse = holding.excuse or "its commit was not answered"
                self._assign(now, event.who, event.places)
            case Shown():
                self._show(now, event)
            case Revoked():
                self._end(now, event.who, event.places)
            case Lost():
                self._end(now, event.who, event.places, "it was lost")
            case CommitBegun():
                self._committing[event.who] = now
                self._unheard_s[event.who] = 0.0
            case CommitEnded():
                self._waits[event.who].append(Span(self._committing.pop(event.who), now))
            case CommitFailed():
                self._hear(now, event.who)
                is_outage = self._unheard_s[event.who] >= SESSION_S_MIN
                self._excuse(event.who, f"its commit failed: {event.error}", is_outage=is_outage)
            case CommitSent():
                self._sent[event.number] = now, event
            case CommitAnswered():
                _, sent = self._sent.pop(event.number)
                if not NO_COORDINATOR.issuperset(event.errors.values()):
                    self._hear(now, event.who)
                    self._answered[event.who] = now
                self._note_commit(event.who, sent.offsets, event.errors)
            case Closing():
                self._closing[event.who] = (now, event.timeout_s)
            case Closed():
                since, timeout_s = self._closing.pop(event.who)
                has_run_out = now >= since + time_to_commit_s(timeout_s)
                ran_out = "its close ran out of time" if has_run_out else ""
                if now > since + SESSION_S_MIN and self._answered.get(event.who, since) <= since:
                    ran_out = ran_out or "its session may have ended in its close"
                self._end(now, event.who, self.of(event.who), ran_out)
            case Crashed():
                self._end(now, event.who, self.of(event.who), "it crashed")
            case PutOut() if event.generation == self._generations.of.get(event.who):
                self._end(now, event.who, (), "it was put out before its commit was done")

    def of(self, who: str) -> Places:
        """What a member holds."""
        return tuple(place for name, place in self.held if name == who)

    def _has_waited(self, now: float, holding: Holding) -> bool:
        """Whether a commit of this partition had no answer for a session, and no coordinator has
        answered a commit of its member since. The unanswered commit may be of less than was shown:
        the member sends the next one after it has given that one up, if it then finds a
        coordinator."""
        return any(
            sent.who == holding.who
            and holding.place in sent.offsets
            and sent_at + SESSION_S_MIN <= now
            and self._answered.get(holding.who, sent_at) <= sent_at
            for sent_at, sent in self._sent.values()
        )

    def _assign(self, now: float, who: str, places: Places) -> None:
        for place in places:
            if (who, place) in self.held:
                raise Violation(f"{who} is given {place} a second time")
            holding = Holding(who, place, now)
            self.all.append(holding)
            self.held[who, place] = holding

    def _show(self, now: float, event: Shown) -> None:
        who, place, offset = event
        holding = self.held.get((who, place))
        if holding is None:
            raise Violation(f"{who} is shown {place} {offset}, which is not its own")
        if holding.shown and offset != holding.shown[-1][1] + 1:
            raise Violation(f"{who} is shown {place} {offset} behind {holding.shown[-1][1]}")
        end = self.ends.get(place, 0)
        if offset > end:
            raise Violation(f"{who} is shown {place} {offset}, but nobody was shown {end}")
        holding.shown.append((now, offset))
        self.ends[place] = max(end, offset + 1)

    def _end(self, now: float, who: str, places: Places, excuse: str = "") -> None:
        for place in places:
            holding = self.held.pop((who, place), None)
            if holding is None:
                raise Violation(f"{place} is taken from {who}, which does not have it")
            holding.until = now
            self._let_go[who].append(holding)
        for holding in self._let_go[who]:
            if not holding.is_committed:
                holding.excuse = holding.excuse or excuse

    def _hear(self, now: float, who: str) -> None:
        """A coordinator answers a member that may be committing, or its commit ends."""
        since = self._committing.get(who, now)
        unheard_s = now - max(since, self._answered.get(who, since))
        self._unheard_s[who] = max(self._unheard_s.get(who, 0.0), unheard_s)

    def _excuse(self, who: str, why: str, *, is_outage: bool) -> None:
        for place in self.of(who):
            holding = self.held[who, place]
            if not holding.excuse:
                holding.excuse, holding.is_outage = why, is_outage

    def _note_commit(
        self, who: str, offsets: Offsets, errors: Mapping[TopicPartition, int]
    ) -> None:
        mine = [self.held.get((who, place)) for place in errors]
        for holding in [*self._let_go[who], *(each for each in mine if each is not None)]:
            error = errors.get(holding.place)
            if error == ErrorCode.NONE:
                holding.committed = max(holding.committed, offsets[holding.place])
            elif error in NOT_A_MEMBER:
                holding.excuse = holding.excuse or "its commit was refused"

    def judge_once(self) -> int:
        """Nothing is shown twice, unless whoever was shown it first has an excuse. Returns how
        often it was allowed. Raises `Violation`."""
        first: dict[tuple[TopicPartition, int], Holding] = {}
        count = 0
        for holding in self.all:
            for _, offset in holding.shown:
                before = first.get((holding.place, offset))
                if before is not None and not before.excuse:
                    raise Violation(
                        f"{holding.place} {offset} was shown to {before.who}, which gave it back in"
                        f" order, and to {holding.who} again"
                    )
                count += before is not None
                first[holding.place, offset] = holding
        return count

    def judge_unexcused(self, *, brokers_suffer: bool) -> None:
        """Nobody needed an excuse. Where brokers suffer a commit may fail if no coordinator was
        heard of for as long as a session may be: the next one may have to wait for a member of an
        older generation before it takes offsets. Raises `Violation`."""
        for holding in self.all:
            if holding.excuse and not (holding.is_outage and brokers_suffer):
                raise Violation(
                    f"{holding.who} held {holding.place} since {holding.since:.4f}:"
                    f" {holding.excuse}, though nothing was done to it"
                )

    def judge_steady(self, gap_s_max: float) -> None:
        """Where there is always something to read, whoever keeps a partition goes on being shown
        its records, whatever happens to the others'. What an application waits in its own commit
        does not count: no offsets are taken while a generation has no assignment yet, however long
        that takes. Raises `Violation`."""
        for holding in self.all:
            for (before, _), (after, offset) in pairwise(holding.shown):
                if self.pause_s(holding.who, before, after) > gap_s_max:
                    raise Violation(
                        f"{holding.who} kept {holding.place}, and was shown {offset}"
                        f" {after - before:.3f} s after the record before it"
                    )

    def pause_s(self, who: str, before: float, after: float) -> float:
        """The time between two records, without what the application waited for its commits."""
        spans = self._waits[who]
        return (
            after
            - before
            - sum(max(0.0, min(each.until, after) - max(each.since, before)) for each in spans)
        )

    def judge_end(self, log_ends: Offsets, committed: Offsets) -> None:
        """All that there is was shown, and is committed. Raises `Violation`."""
        for place, log_end in log_ends.items():
            shown_end = self.ends.get(place, 0)
            if shown_end != log_end:
                raise Violation(f"{place} ends at {log_end}, the group was shown {shown_end}")
            if max(committed.get(place, -1), 0) != log_end:
                raise Violation(f"{place} ends at {log_end}, committed is {committed.get(place)}")


class PromptClose:
    """`close` returns in its time."""

    def __init__(self) -> None:
        self.closing: dict[str, tuple[float, float]] = {}

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case Closing():
                self.closing[event.who] = (now, event.timeout_s)
            case Closed():
                since, timeout_s = self.closing.pop(event.who)
                if now > since + timeout_s + CLOSE_SLACK_S:
                    raise Violation(
                        f"{event.who} took {now - since:.3f} s to close, and had {timeout_s:g} s"
                    )
            case Crashed():
                self.closing.pop(event.who, None)

    def judge(self, now: float) -> None:
        """At the end nobody is still closing. Raises `Violation`."""
        for who, (since, timeout_s) in self.closing.items():
            if now > since + timeout_s + CLOSE_SLACK_S:
                raise Violation(
                    f"{who} is closing for {now - since:.3f} s, and had {timeout_s:g} s"
                )


def judge_log(replayed: Iterable[GroupMetadata]) -> None:
    """What a log holds of a group, in its order: generations never go back, and none gives a
    partition to two members. Raises `Violation`."""
    newest = -1
    for each in replayed:
        if each.generation < newest:
            raise Violation(f"generation {each.generation} is stored behind {newest}")
        newest = each.generation
        owners: dict[TopicPartition, str] = {}
        for member in each.members:
            for place in decode_assignment(member.assignment).partitions:
                owner = owners.setdefault(place, member.member_id)
                if owner != member.member_id:
                    raise Violation(
                        f"{place} is stored for {owner} and for {member.member_id}"
                        f" in generation {newest}"
                    )
