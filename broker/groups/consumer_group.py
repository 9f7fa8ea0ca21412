"""A group of the consumer protocol (KIP-848) as a pure state machine.

A member sends heartbeats, and the coordinator assigns. A heartbeat has three steps:

    receive     checks the member and its epoch, and applies what its subscription says
    review      makes a new target assignment if members, subscriptions or topics changed; a
                computation in turns, during which other heartbeats go on with the former target
    answer      takes the member a step towards the target, and answers with what it may use

What changes is records (`consumer_records`), applied at once and appended after each step by the
caller (`pop_writes`). So the state here is that of the log's end. An answer waits until all records
before it are committed: its `Ticket` is answered by `written`. So a member never knows more than
every later coordinator. A write that is refused is taken back (`not_written`).

A member that is not heard of for the session time-out is removed, and so is one that does not
revoke what it must within its rebalance time-out. A member that is removed, and comes again, has an
epoch that the group does not accept: it must drop its partitions and join.
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from minibroker.broker.coordination.name_pattern import InvalidPatternError
from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_heartbeats import (
    ConsumerLimits,
    Heartbeat,
    by_topic_id,
    is_full,
    partitions_of,
    updated,
)
from minibroker.broker.groups.consumer_journal import ConsumerJournal
from minibroker.broker.groups.consumer_records import (
    NO_PARTITIONS,
    ConsumerKey,
    ConsumerRecord,
    ConsumerValue,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    TargetEpoch,
    TopicIdPartition,
    by_topic,
)
from minibroker.broker.groups.consumer_state import NEW_MEMBER, ConsumerState
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.groups.outbox import Batch
from minibroker.broker.groups.server_assignors import ASSIGNORS, Subscriber
from minibroker.broker.groups.states import ConsumerGroupState
from minibroker.broker.groups.subscriptions import (
    Subscriptions,
    Topics,
    hash_of,
)
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
)

LOGGER = logging.getLogger(__name__)
RETRY_S: Final = 1.0  # interval of further tries to remove members

Answer: TypeAlias = ConsumerGroupHeartbeatResponse


class ConsumerGroup:
    """See the head of this module. `now` is the trio clock's."""

    protocol_type = "consumer"

    def __init__(
        self,
        group_id: str,
        limits: ConsumerLimits,
        records: Mapping[ConsumerKey, ConsumerValue],
        now: float,
        *,
        is_committed: bool = True,
    ) -> None:
        """`records` are those of the group that are committed. If `is_committed` is False, they
        are appended and not committed yet, and count as the batch with the token `FIRST_TOKEN`."""
        self.group_id = group_id
        self.limits = limits
        self._state = ConsumerState(group_id, records)
        self._session_ends: dict[str, float] = {}
        self._rebalance_ends: dict[str, float] = {}
        for member_id in self._state.members:
            self._renew(member_id, now)
            self._expect_revocation(member_id, now)
        self._journal = ConsumerJournal(self._state, is_committed=is_committed)
        self._subscriptions = Subscriptions()
        self._version = 0  # of members and subscriptions
        self._reviewed: tuple[int, Topics] | None = None  # the version, and the topics
        self._is_reviewing = False
        self._retry_at = -math.inf
        self._died_of: ErrorCode | None = None

    # -- the steps of a heartbeat

    def receive(self, request: Heartbeat, client: Client, member_id: str, now: float) -> None:
        """Apply a heartbeat of a member, which `check` accepts. Raises `Refused`.

        `member_id` is the request's, or a new one for a member that joins without one.
        """
        self._check_alive()
        self._find(request, member_id)
        before = self._state.members.get(member_id)
        after = updated(before or MemberMetadata(), request, client)
        if after.pattern is not None:
            try:
                self._subscriptions.add(after.pattern)
            except InvalidPatternError as error:
                self._journal.drop()
                self._taken_back()
                raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
        self._set_member(member_id, before, after)
        self._received(member_id, now)

    def _set_member(
        self, member_id: str, before: MemberMetadata | None, after: MemberMetadata
    ) -> None:
        if after != before:
            self._set(ConsumerRecord.MEMBER, member_id, after)
            if before is None or (after.topics, after.pattern) != (before.topics, before.pattern):
                self._bump()

    def _received(self, member_id: str, now: float) -> None:
        if member_id not in self._state.currents:
            self._set(ConsumerRecord.CURRENT, member_id, NEW_MEMBER)
        self._renew(member_id, now)

    def needs_review(self, topics: Topics) -> bool:
        """Whether the target assignment may have to change, by the topics of the cluster."""
        if self._is_reviewing or self._died_of is not None:
            return False
        is_late = self._state.target_epoch != self._state.epoch
        reviewed = self._reviewed
        return is_late or reviewed is None or reviewed[1] is not topics

    def review(self, topics: Topics) -> Turns[None]:
        """Make a new target assignment if it has to change.

        If members or subscriptions change meanwhile, nothing is done, and the next heartbeat's
        review does it.
        """
        self._is_reviewing = True
        version = self._version
        try:
            turn = Turn()
            subscribed = yield from self._subscriptions.resolved(self._state.members, topics, turn)
            number = yield from hash_of(subscribed, topics, turn)
            epoch = self._state.epoch + (number != self._state.metadata_hash)
            targets = None
            if epoch != self._state.target_epoch:
                targets = yield from self._assigned(subscribed, topics)
            if version != self._version or self._died_of is not None:
                return
            if number != self._state.metadata_hash:
                self._set(ConsumerRecord.GROUP, "", GroupEpoch(epoch, number))
            if targets is not None:
                for member_id, partitions in targets.items():
                    if self._state.targets.get(member_id) != partitions:
                        target = MemberTarget(partitions)
                        self._set(ConsumerRecord.MEMBER_TARGET, member_id, target)
                self._set(ConsumerRecord.TARGET, "", TargetEpoch(epoch))
            self._reviewed = version, topics
        finally:
            self._is_reviewing = False

    def answer(self, request: Heartbeat, member_id: str, now: float) -> Ticket[Answer]:
        """Take a member a step towards its target, and return its answer. Raises `Refused`."""
        self._check_alive()
        if member_id not in self._state.members:
            was_removed = request.member_epoch != JOIN_EPOCH
            unknown, away = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise Refused(unknown if was_removed else away, "the member is not stored")
        owned = partitions_of(request.owned)
        before = self._state.currents.get(member_id, NEW_MEMBER)
        current = self._step(member_id, owned, now)
        is_told = is_full(request) or current.assigned != before.assigned
        return self._journal.answer(
            ConsumerGroupHeartbeatResponse(
                member_id=member_id,
                member_epoch=current.epoch,
                heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
                assignment=by_topic_id(current.assigned) if is_told else None,
            )
        )

    def _step(
        self, member_id: str, owned: Collection[TopicIdPartition] | None, now: float
    ) -> CurrentAssignment:
        """Take a member a step towards its target, and return its assignment then."""
        before = self._state.currents.get(member_id, NEW_MEMBER)
        current = self._state.next_current(member_id, owned)
        if current != before:
            self._set(ConsumerRecord.CURRENT, member_id, current)
            self._rebalance_ends.pop(member_id, None)
            self._expect_revocation(member_id, now)
        return current

    def leave(self, request: Heartbeat, now: float) -> Ticket[Answer]:
        """Remove a member, or record that a static member will join again. Raises `Refused`."""
        self._check_alive()
        member_id = request.member_id
        if request.instance_id is not None:
            static_id = self._static(request.instance_id)
            if static_id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, "another member has this instance id")
        elif member_id not in self._state.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "there is no such member")
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            current = self._state.currents.get(member_id, NEW_MEMBER)
            away = current._replace(epoch=LEAVE_STATIC_EPOCH, revoking=NO_PARTITIONS)
            self._set(ConsumerRecord.CURRENT, member_id, away)
            self._rebalance_ends.pop(member_id, None)
        else:
            self._remove((member_id,))
        epoch = request.member_epoch
        answer = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch)
        return self._journal.answer(answer)

    def check_commit(self, member_id: str, epoch: int) -> ErrorCode:
        """Return NONE if a member of this epoch may commit offsets, else the error. Without a
        member, offsets may be committed while the group is empty."""
        if self._died_of is None and epoch < 0 and not self._state.members:
            return ErrorCode.NONE
        return self.check_member(member_id, epoch)

    def check_member(self, member_id: str, epoch: int) -> ErrorCode:
        """Return NONE if this is a member in its epoch, else the error."""
        if self._died_of is not None:
            return self._died_of
        if member_id not in self._state.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self._state.currents.get(member_id, NEW_MEMBER).epoch:
            return ErrorCode.NONE
        is_classic = member_id in self._state.classic
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def delete(self, now: float) -> ErrorCode:
        """Delete an empty group. The caller appends the tombstones."""
        if self._died_of is not None:
            return self._died_of
        if self._state.members:
            return ErrorCode.NON_EMPTY_GROUP
        self.close(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        return ErrorCode.NONE

    # -- deadlines, and results of writes

    @property
    def deadline(self) -> float:
        """When `tick` has something to do next."""
        session_end = min(self._session_ends.values(), default=math.inf)
        rebalance_end = min(self._rebalance_ends.values(), default=math.inf)
        return max(min(session_end, rebalance_end), self._retry_at)

    def tick(self, now: float) -> None:
        """Remove the members that were not heard of, or did not revoke, in time."""
        ends = (*self._session_ends.items(), *self._rebalance_ends.items())
        gone = dict.fromkeys(member_id for member_id, end in ends if end <= now)
        if gone and now >= self._retry_at:
            names = ", ".join(gone)
            LOGGER.info("[Group %.99s] Not heard of in time: %.999s", self.group_id, names)
            self._remove(gone)

    def pop_writes(self) -> tuple[Batch, ...]:
        """Return the records to append now, at most one batch; each is returned once."""
        return self._journal.pop_batches()

    def written(self, token: int, now: float) -> None:
        """Handle that a batch of records is committed."""
        self._journal.written(token)

    def not_written(self, token: int, error: ErrorCode, now: float) -> None:
        """Take back the newest batch, which was refused before it was appended."""
        self._journal.not_written(token, error)
        self._taken_back()
        self._retry_at = now + RETRY_S

    def close(self, error: ErrorCode, now: float) -> None:
        """Answer all waiting and later requests with `error`."""
        self._died_of = error
        self._journal.close(error)
        self._session_ends.clear()
        self._rebalance_ends.clear()

    # -- the group's description

    @property
    def state(self) -> ConsumerGroupState:
        """Its state, as an administrator sees it."""
        state = self._state
        if self._died_of is not None:
            return ConsumerGroupState.DEAD
        if not state.members:
            return ConsumerGroupState.EMPTY
        if state.epoch != state.target_epoch:
            return ConsumerGroupState.ASSIGNING
        is_stable = all(map(state.is_at_target, state.members))
        return ConsumerGroupState.STABLE if is_stable else ConsumerGroupState.RECONCILING

    @property
    def members(self) -> Mapping[str, MemberMetadata]:
        """Its members by id, read-only."""
        return self._state.members

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return self._state.epoch

    @property
    def keys(self) -> list[ConsumerKey]:
        """The keys of all its records."""
        return self._state.keys

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, about."""
        return self._state.held_bytes

    def subscribed_topics(self) -> set[str] | None:
        """Return the topics that members subscribe to, by name or by a pattern; None if they are
        not known yet."""
        return self._subscriptions.topics_of(self._state.members.values())

    def describe(self, names: Mapping[bytes, str]) -> DescribedConsumerGroup:
        """Describe the group for an administrator. `names` has the topics' names by their ids."""
        state = self._state
        return DescribedConsumerGroup(
            self.group_id,
            state=self.state,
            epoch=state.epoch,
            assignment_epoch=state.target_epoch,
            assignor=self._assignor,
            members=tuple(_described(member_id, state, names) for member_id in state.members),
        )

    # -- members

    def _check_alive(self) -> None:
        if self._died_of is not None:
            raise Refused(self._died_of, "the group was deleted, or has another coordinator")

    def _static(self, instance_id: str) -> str:
        member_id = self._state.static.get(instance_id)
        if member_id is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "there is no member of this instance id")
        return member_id

    def _find(self, request: Heartbeat, member_id: str) -> None:
        """Check the sender of a heartbeat. A static member that began again takes the place of
        the one before."""
        state = self._state
        is_join = request.member_epoch == JOIN_EPOCH
        if request.instance_id is not None:
            static_id = state.static.get(request.instance_id)
            if is_join and static_id not in (None, member_id):
                assert static_id is not None
                is_away = state.currents.get(static_id, NEW_MEMBER).epoch == LEAVE_STATIC_EPOCH
                if not is_away and static_id not in state.classic:
                    what = "another member has this instance id, and did not leave"
                    raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID, what)
                self._replace(static_id, member_id)
            elif not is_join and self._static(request.instance_id) != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, "another member has this instance id")
        if member_id in state.members:
            if not is_join:
                self._check_epoch(request, state.currents.get(member_id, NEW_MEMBER))
        elif not is_join:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "there is no such member")
        else:
            self._check_size()

    def _check_size(self) -> None:
        """Check that the group has room for one more member."""
        state = self._state
        has_all = len(state.members) >= self.limits.size_max
        if has_all or state.held_bytes > self.limits.held_bytes_max:
            what = f"the group has {len(state.members)} members"
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, what)

    def _check_epoch(self, request: Heartbeat, current: CurrentAssignment) -> None:
        """Check that the member's epoch is its newest, or the one before if it did not get the
        answer with the newest; then it owns nothing that it was not given."""
        epoch = request.member_epoch
        if epoch == current.epoch:
            return
        owned = partitions_of(request.owned)
        is_lost = epoch == current.previous_epoch and epoch < current.epoch
        if not is_lost or owned is None or not owned <= current.assigned:
            what = f"the member's epoch is {current.epoch}, not {epoch}; it must join again"
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, what)

    def _replace(self, former_id: str, member_id: str) -> None:
        """Give a static member another id, with its subscription and its assignments."""
        state = self._state
        member, target = state.members[former_id], state.targets.get(former_id)
        current = state.currents.get(former_id, NEW_MEMBER)
        self._forget(former_id)
        self._set(ConsumerRecord.MEMBER, member_id, member)
        if target is not None:
            self._set(ConsumerRecord.MEMBER_TARGET, member_id, MemberTarget(target))
        again = current._replace(epoch=JOIN_EPOCH, previous_epoch=-1)
        self._set(ConsumerRecord.CURRENT, member_id, again)

    def _remove(self, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            self._forget(member_id)
        self._bump()

    def _forget(self, member_id: str) -> None:
        self._set(ConsumerRecord.CURRENT, member_id, None)
        self._set(ConsumerRecord.MEMBER_TARGET, member_id, None)
        self._set(ConsumerRecord.MEMBER, member_id, None)
        self._session_ends.pop(member_id, None)
        self._rebalance_ends.pop(member_id, None)

    def _renew(self, member_id: str, now: float) -> None:
        classic = self._state.members[member_id].classic
        limits = self.limits if classic is None else classic
        self._session_ends[member_id] = now + limits.session_timeout_ms / 1000

    def _expect_revocation(self, member_id: str, now: float) -> None:
        current = self._state.currents.get(member_id, NEW_MEMBER)
        if current.state is MemberState.UNREVOKED:
            self._rebalance_ends[member_id] = now + self._rebalance_timeout_s(member_id)

    def _rebalance_timeout_s(self, member_id: str) -> float:
        return max(0, self._state.members[member_id].rebalance_timeout_ms) / 1000

    # -- the target assignment

    def _assigned(
        self, subscribed: Mapping[str, set[str]], topics: Topics
    ) -> Turns[dict[str, frozenset[TopicIdPartition]]]:
        subscribers = {
            member_id: Subscriber(
                frozenset(topics[name].id for name in names),
                self._state.targets.get(member_id, NO_PARTITIONS),
                self._state.members[member_id].instance_id,
            )
            for member_id, names in subscribed.items()
            if member_id in self._state.members
        }
        counts = {
            topics[name].id: len(topics[name].partitions)
            for name in set().union(*subscribed.values())
        }
        return (yield from ASSIGNORS[self._assignor](subscribers, counts))

    @property
    def _assignor(self) -> str:
        """The assignor that most members ask for; the default if none does."""
        wanted = Counter(each.assignor for each in self._state.members.values() if each.assignor)
        known = [(count, name) for name, count in wanted.items() if name in self.limits.assignors]
        return max(known)[1] if known else self.limits.assignors[0]

    # -- records

    def _bump(self) -> None:
        """Raise the group's epoch, once in a step."""
        self._version += 1
        if not self._journal.has(ConsumerRecord.GROUP):
            epoch = self._state.epoch + 1
            self._set(ConsumerRecord.GROUP, "", GroupEpoch(epoch, self._state.metadata_hash))

    def _set(self, kind: ConsumerRecord, name: str, value: ConsumerValue | None) -> None:
        self._version += kind is ConsumerRecord.MEMBER
        self._journal.set(kind, name, value)

    def _taken_back(self) -> None:
        """Continue from the state before changes that were taken back."""
        self._version += 1
        self._reviewed = None
        members = self._state.members
        self._session_ends = {each: self._session_ends.get(each, -math.inf) for each in members}
        ends = self._rebalance_ends.items()
        self._rebalance_ends = {each: end for each, end in ends if each in members}


def _described(
    member_id: str, state: ConsumerState, names: Mapping[bytes, str]
) -> DescribedConsumer:
    def named(partitions: Collection[TopicIdPartition]) -> tuple[DescribedPartitions, ...]:
        return tuple(
            DescribedPartitions(topic_id, names[topic_id], tuple(numbers))
            for topic_id, numbers in by_topic(partitions).items()
            if topic_id in names
        )

    member = state.members[member_id]
    current = state.currents.get(member_id, NEW_MEMBER)
    return DescribedConsumer(
        member_id,
        member.instance_id,
        member.rack_id,
        current.epoch,
        member.client_id,
        member.client_host,
        member.topics,
        member.pattern,
        named(current.assigned),
        named(state.targets.get(member_id, NO_PARTITIONS)),
    )
