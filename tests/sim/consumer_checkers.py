"""What must always be true of a group of the consumer protocol (KIP-848), as `group_checkers.py`
has it for classic ones.

The checkers see the heartbeats of all members, and their answers, as they go over the wire. A
member has a partition from the answer that assigns it until a heartbeat says that the member does
not own it any more. A member that the coordinator has removed does not know that at first: what it
sends then must be refused.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from minibroker.broker.groups.consumer_records import (
    NO_PARTITIONS,
    ConsumerKey,
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    Partitions,
    TargetEpoch,
    TopicIdPartition,
)
from minibroker.broker.groups.records import GroupMetadata, Key, Value
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from tests.sim.checkers import Violation
from tests.sim.group_events import (
    BeatAnswered,
    BeatSent,
    CommitAnswered,
    CommitSent,
    Crashed,
    Event,
)

# The coordinator does not count the sender as a member in this epoch.
REMOVED: Final = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)
LOST_MAX: Final = 2  # answers in a row, after which a coordinator may refuse the member's epoch


class OneHolder:
    """No partition has two owners at a time that could both commit: once another member is told
    that it has a partition, the coordinator accepts nothing of the one before, unless that one had
    given it up."""

    def __init__(self) -> None:
        self.held: dict[str, Partitions] = {}
        self._taken: dict[str, dict[TopicIdPartition, str]] = defaultdict(dict)  # and by whom
        self._refused: dict[int, tuple[TopicIdPartition, str]] = {}  # what must be, by request
        self._sent: dict[int, tuple[float, bool]] = {}  # when, and whether it is a join
        self._since: dict[tuple[str, TopicIdPartition], float] = {}  # when a member was told

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case BeatSent():
                self._send(now, event)
            case BeatAnswered(who, number, error):
                sent_at, is_join = self._sent.pop(number)
                if error == ErrorCode.NONE:
                    self._judge(who, number, "keep")
                    if event.places is not None:
                        self._tell(now, event, sent_at, is_join)
                elif error in REMOVED:
                    self._forget(who)
            case CommitSent(who, number) if self._taken[who]:
                self._refused[number] = next(iter(self._taken[who].items()))
            case CommitAnswered(who, number, errors) if ErrorCode.NONE in errors.values():
                self._judge(who, number, "commit")
            case Crashed(who):
                self._forget(who)

    def _send(self, now: float, event: BeatSent) -> None:
        self._sent[event.number] = now, event.epoch == JOIN_EPOCH
        if event.epoch <= JOIN_EPOCH:
            self._forget(event.who)
            return
        if taken := self._taken[event.who]:
            self._refused[event.number] = next(iter(taken.items()))
        if event.owned is not None:
            held = self.held.get(event.who, NO_PARTITIONS) & event.owned
            self.held[event.who] = held
            self._taken[event.who] = {
                place: other for place, other in taken.items() if place in held
            }

    def _tell(self, now: float, event: BeatAnswered, sent_at: float, is_join: bool) -> None:
        """Note what a member is given. Its answer may be old, if the member stood still: then
        another member has the partition by a later answer."""
        who, places = event.who, event.places or NO_PARTITIONS
        for place in places - (NO_PARTITIONS if is_join else self.held.get(who, NO_PARTITIONS)):
            self._since[who, place] = now
            for other, held in self.held.items():
                if other != who and place in held and self._since[other, place] < sent_at:
                    self._taken[other][place] = who
        self.held[who] = places

    def _judge(self, who: str, number: int, what: str) -> None:
        if refused := self._refused.pop(number, None):
            place, other = refused
            raise Violation(f"{who} may {what} {place}, which {other} was given meanwhile")

    def _forget(self, who: str) -> None:
        self.held.pop(who, None)
        self._taken.pop(who, None)


class RisingEpochs:
    """Epochs never go back: not a member's, and a member that joins is given none below those that
    the group had then."""

    def __init__(self) -> None:
        self.newest = 0
        self._floors: dict[int, int] = {}

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case BeatSent(_, number, _, epoch):
                self._floors[number] = self.newest if epoch == JOIN_EPOCH else epoch
            case BeatAnswered(who, number, error, epoch):
                floor = self._floors.pop(number)
                if error == ErrorCode.NONE and epoch < floor:
                    raise Violation(f"{who} is told epoch {epoch} after {floor}")
                if error == ErrorCode.NONE:
                    self.newest = max(self.newest, epoch)


class EpochCommits:
    """A member commits in its newest epoch only, and one that was removed not at all."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._late: dict[int, str] = {}

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case BeatSent(who, _, _, epoch) if epoch < JOIN_EPOCH:
                self._epochs[who] = -1
            case BeatAnswered(who, _, ErrorCode.NONE, epoch):
                self._epochs[who] = max(epoch, -1)
            case BeatAnswered(who, _, error) if error in REMOVED:
                self._epochs[who] = -1
            case CommitSent(who, number, epoch) if epoch != self._epochs.get(who, -1):
                self._late[number] = f"epoch {epoch}, its epoch is {self._epochs.get(who)}"
            case CommitAnswered(who, number, errors):
                late = self._late.pop(number, None)
                if late is not None and ErrorCode.NONE in errors.values():
                    raise Violation(f"{who} may commit in {late}")


class _Away(NamedTuple):
    """A static member that will join again: what it had, and until when it keeps that."""

    places: Partitions
    epoch: int
    until: float


@dataclass
class _Standing:
    """A member as it was told last. `unanswered` are its heartbeats since then."""

    instance: str | None = None
    epoch: int = 0
    places: Partitions = NO_PARTITIONS
    heard_at: float = 0.0
    unanswered: int = 0


class StaticKeeps:
    """A static member that leaves for a while keeps its assignment for a session: no other member
    gets of it, and the next process of its instance id has it back, unless the group's epoch has
    risen."""

    def __init__(self, session_s: float) -> None:
        self.returned = 0
        self._session_s = session_s
        self._of: dict[str, _Standing] = defaultdict(_Standing)
        self._sent: dict[int, tuple[float, int]] = {}
        self._away: dict[str, _Away] = {}
        self._joining: set[str] = set()  # instances whose next process has sent its join

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case BeatSent(who, number, instance, epoch):
                self._sent[number] = now, epoch
                self._of[who].instance = instance
                self._of[who].unanswered += 1
                if instance is not None and epoch == JOIN_EPOCH:
                    self._joining.add(instance)
            case BeatAnswered(who, number, error):
                sent_at, asked = self._sent.pop(number)
                if error == ErrorCode.NONE:
                    self._answer(now, event, self._of[who], sent_at, asked)
            case Crashed(who):
                self._of.pop(who, None)

    def _answer(
        self, now: float, event: BeatAnswered, of: _Standing, sent_at: float, asked: int
    ) -> None:
        if asked == LEAVE_STATIC_EPOCH and of.instance is not None:
            if of.unanswered == 1:
                away = _Away(of.places, of.epoch, of.heard_at + self._session_s)
                self._away[of.instance] = away
                self._joining.discard(of.instance)
            return
        of.unanswered, of.heard_at, of.epoch = 0, sent_at, event.epoch
        if event.places is None:
            return
        for instance, away in self._away.items():
            taken = event.places & away.places
            is_away = instance != of.instance and instance not in self._joining
            if is_away and now < away.until and taken:
                raise Violation(f"{event.who} is given {taken} of {instance}, which is away")
        of.places = event.places
        back = self._away.pop(of.instance or "", None)
        if back is not None and now < back.until:
            if event.epoch == back.epoch and not back.places <= event.places:
                lost = back.places - event.places
                raise Violation(f"{event.who} does not get {lost} back, which {of.instance} had")
            self.returned += bool(back.places)


class NoneRemoved:
    """Where nothing was done to members, none is removed."""

    def __init__(self) -> None:
        self._unanswered: dict[str, int] = defaultdict(int)

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""
        match event:
            case BeatSent(who, _, _, epoch) if epoch < JOIN_EPOCH:
                self._unanswered[who] += LOST_MAX + 1  # a repeated one is refused
            case BeatSent(who):
                self._unanswered[who] += 1
            case BeatAnswered(who, _, ErrorCode.NONE):
                self._unanswered[who] = 0
            case BeatAnswered(who, _, ErrorCode.ILLEGAL_GENERATION):
                pass  # a classic member that a downgrade found behind the group's epoch
            case BeatAnswered(who, _, error) if error in REMOVED:
                if self._unanswered[who] <= LOST_MAX:
                    raise Violation(f"{who} is removed: {ErrorCode(error).name}")


def judge_consumer_log(replayed: Iterable[tuple[Key, Value | None]]) -> None:
    """What a log holds of a group, in its order: epochs never go back, no partition is stored for
    two members, a member that is done has its whole target, and no member's instance id changes,
    whatever the group's protocol. Raises `Violation`."""
    instances: dict[str, str | None] = {}
    generation = 0
    epochs = {ConsumerRecord.GROUP: 0, ConsumerRecord.TARGET: 0}
    targets: dict[str, Partitions] = {}
    owners: dict[TopicIdPartition, str] = {}
    currents: dict[str, CurrentAssignment] = {}
    for key, value in replayed:
        if isinstance(value, GroupMetadata):
            if value.generation < max(generation, epochs[ConsumerRecord.GROUP]):
                raise Violation(f"generation {value.generation} is behind {epochs}")
            generation = value.generation
            for stored in value.members:
                _judge_instance(instances, stored.member_id, stored.instance_id)
        if not isinstance(key, ConsumerKey):
            continue
        match value:
            case MemberMetadata():
                _judge_instance(instances, key.name, value.instance_id)
            case GroupEpoch() | TargetEpoch():
                if value.epoch < max(generation, epochs[key.kind]):
                    raise Violation(f"{key} has {value.epoch} behind {epochs[key.kind]}")
                epochs[key.kind] = value.epoch
            case MemberTarget(partitions):
                targets[key.name] = partitions
            case _ if key.kind is ConsumerRecord.MEMBER_TARGET:
                targets.pop(key.name, None)
        if key.kind is ConsumerRecord.CURRENT:
            before = currents.pop(key.name, None)
            if before is not None:
                for place in before.assigned | before.revoking:
                    del owners[place]
            if isinstance(value, CurrentAssignment):
                currents[key.name] = value
                _judge_current(key.name, value, owners)
                target = targets.get(key.name, NO_PARTITIONS)
                is_done = value.state is MemberState.STABLE
                is_done &= value.epoch == epochs[ConsumerRecord.TARGET]
                if is_done and value.assigned != target:
                    raise Violation(f"{key.name} is done with {value.assigned}, not {target}")


def _judge_instance(
    instances: dict[str, str | None], member_id: str, instance_id: str | None
) -> None:
    if instances.setdefault(member_id, instance_id) != instance_id:
        raise Violation(
            f"{member_id} is stored with the instance id {instance_id}, before with"
            f" {instances[member_id]}"
        )


def _judge_current(
    member_id: str, current: CurrentAssignment, owners: dict[TopicIdPartition, str]
) -> None:
    for place in current.assigned | current.revoking:
        if place in owners:
            raise Violation(f"{place} is stored for {owners[place]} and for {member_id}")
        owners[place] = member_id
