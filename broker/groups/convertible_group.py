"""A group of the consumer protocol that takes members of the classic protocol, too, and can be
converted from a classic group and to one.

A classic member joins, synchronises and sends heartbeats as ever. Its generation is its epoch in
the group. A JOIN takes the member a step towards its target, as a heartbeat does for a member of
the newer protocol; it is answered at once, without a join phase and without a leader. A SYNC is
answered with what the member is assigned. A heartbeat tells the member to join again when there is
another step to take. So partitions move between members of both protocols by the same rule.

    upgraded     the records of a consumer group that has the members of a classic group
    downgraded   the record of a classic group that has the members of a consumer group

A classic group is upgraded when a first member of the newer protocol joins. A consumer group is
downgraded when its last such member is gone. Members keep their ids, instance ids, partitions and
the number of their generation. The classic group's record names no leader, so its members join
again, also in another coordinator: what the last member of the newer protocol had is to be
assigned.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_heartbeats import TOPICS_MAX, ConsumerLimits, Migration
from minibroker.broker.groups.consumer_records import (
    NO_PARTITIONS,
    ClassicMember,
    ClassicProtocol,
    ConsumerKey,
    ConsumerRecord,
    ConsumerValue,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    Partitions,
    TargetEpoch,
    TopicIdPartition,
)
from minibroker.broker.groups.consumer_state import NEW_MEMBER
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.group_members import NAME_CHARS_MAX, PROTOCOLS_MAX, GroupLimits
from minibroker.broker.groups.member import (
    CLIENT_CHARS_MAX,
    CONSUMER,
    READ_BYTES_MAX,
    Client,
    Member,
    Ticket,
    protocols_of,
)
from minibroker.broker.groups.records import GroupMetadata, StoredMember
from minibroker.broker.groups.subscriptions import Topics
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import INT32_MAX, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from minibroker.protocol.types import TopicPartition

BYTES_OF_AN_ITEM: Final = 64  # of metadata, that take as long to read as an item


class ConvertibleGroup(ConsumerGroup):
    """See the head of this module."""

    def __init__(
        self,
        group_id: str,
        limits: ConsumerLimits,
        classic_limits: GroupLimits,
        records: Mapping[ConsumerKey, ConsumerValue],
        now: float,
        *,
        is_committed: bool = True,
    ) -> None:
        """As `ConsumerGroup`; `classic_limits` are those of classic groups and their members."""
        super().__init__(group_id, limits, records, now, is_committed=is_committed)
        self._classic_limits = classic_limits
        self._is_downgradable = limits.migration.may_downgrade

    # -- requests of classic members

    def receive_join(
        self,
        request: JoinGroupRequest,
        subscription: Subscription,
        client: Client,
        member_id: str,
        now: float,
    ) -> None:
        """Apply a JOIN of a member, whose subscription `check_join` has returned. Raises `Refused`.

        `member_id` is the request's, or a new one for a member that joins without one.
        """
        instance_id = request.instance_id
        static_id = None if instance_id is None else self._state.static.get(instance_id)
        if static_id is not None and static_id != member_id:
            if request.member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, "another member has this instance id")
            self._replace(static_id, member_id)
        elif instance_id is not None and request.member_id and static_id is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "there is no member of this instance id")
        before = self._state.members.get(member_id)
        if before is None:
            self._check_size()
        protocols = protocols_of(request).items()
        after = MemberMetadata(
            instance_id,
            subscription.rack or None,
            client.client_id[:CLIENT_CHARS_MAX],
            client.host[:CLIENT_CHARS_MAX],
            tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=max(0, min(request.rebalance_timeout_ms, INT32_MAX)),
            classic=ClassicMember(
                request.session_timeout_ms, tuple(ClassicProtocol(*each) for each in protocols)
            ),
        )
        self._set_member(member_id, before, after)
        self._received(member_id, now)

    def answer_join(
        self, member_id: str, owned: Partitions, now: float
    ) -> Ticket[JoinGroupResponse]:
        """Take a member, which owns partitions, a step towards its target, and return the answer to
        its JOIN. Raises `Refused`."""
        self._check_alive()
        member = self._state.members.get(member_id)
        if member is None or member.classic is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the member is not stored")
        current = self._step(member_id, owned, now)
        self._rebalance_ends[member_id] = now + self._rebalance_timeout_s(member_id)
        return self._journal.answer(
            JoinGroupResponse(
                generation=current.epoch,
                protocol=member.classic.protocols[0].name,
                member_id=member_id,
                protocol_type=CONSUMER,
            )
        )

    def sync(
        self, request: SyncGroupRequest, names: Mapping[bytes, str], now: float
    ) -> Ticket[SyncGroupResponse]:
        """Return a member's assignment. `names` has the topics' names by their ids. Raises
        `Refused`."""
        current = self._find_classic(request)
        classic = self._state.members[request.member_id].classic
        assert classic is not None
        is_same = request.protocol in (None, classic.protocols[0].name)
        if not is_same or request.protocol_type not in (None, CONSUMER):
            what = "this is not the protocol in the answer to its JOIN"
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
        if self._state.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
            self._expect_join(request.member_id, now)
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the member must join again")
        self._rebalance_ends.pop(request.member_id, None)
        self._expect_revocation(request.member_id, now)
        self._renew(request.member_id, now)
        return self._journal.answer(
            SyncGroupResponse(
                assignment=_encoded(current.assigned, names),
                protocol_type=request.protocol_type,
                protocol=request.protocol,
            )
        )

    def heartbeat(self, request: HeartbeatRequest, now: float) -> ErrorCode:
        """Renew a member's session, and return the error for the answer, or NONE."""
        try:
            current = self._find_classic(request)
        except Refused as refused:
            return refused.code
        self._renew(request.member_id, now)
        if not self._has_step(request.member_id, current):
            return ErrorCode.NONE
        self._expect_join(request.member_id, now)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave_all(self, leaving: Sequence[LeavingMember], now: float) -> list[ErrorCode]:
        """Remove classic members, and return the error for each, or NONE."""
        if self._died_of is not None:
            return [self._died_of] * len(leaving)
        errors: list[ErrorCode] = []
        gone: dict[str, None] = {}
        for each in leaving:
            member_id = each.member_id
            if not member_id and each.instance_id is not None:
                member_id = self._state.static.get(each.instance_id, "")
            error = self._unknown(member_id, each.instance_id)
            if member_id in gone:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif not error:
                gone[member_id] = None
            errors.append(error)
        if gone:
            self._remove(gone)
        return errors

    def growth_of_join(self, request: JoinGroupRequest) -> int:
        """Return how much more memory the group may take after a JOIN, about."""
        return sum(len(each.metadata) for each in request.protocols)

    # -- conversion

    @property
    def wants_downgrade(self) -> bool:
        """Whether only classic members are left, and the group may become a classic one."""
        state = self._state
        count = len(state.members)
        is_classic = 0 < count == len(state.classic) <= self._classic_limits.size_max
        return is_classic and self._is_downgradable and self._died_of is None

    def forbid_downgrade(self) -> None:
        """Remain a consumer group: the record of the classic one would be too large."""
        self._is_downgradable = False
        self._bump()

    def end_converted(self) -> None:
        """Refuse later requests: a classic group has taken its place. What waits is answered when
        its records are committed."""
        self._died_of = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._session_ends.clear()
        self._rebalance_ends.clear()

    def downgraded(self, names: Mapping[bytes, str]) -> GroupMetadata:
        """Return the record of the classic group that takes its place."""
        state = self._state
        offered = [
            {each.name for each in member.classic.protocols}
            for member in state.members.values()
            if member.classic is not None
        ]
        first = next(iter(state.members.values())).classic
        assert first is not None
        shared = set.intersection(*offered)
        protocol = next(each.name for each in first.protocols if each.name in shared)
        members = [
            _stored_member(
                member_id,
                member,
                protocol,
                _encoded(state.currents.get(member_id, NEW_MEMBER).assigned, names),
            )
            for member_id, member in state.members.items()
        ]
        return GroupMetadata(CONSUMER, state.epoch, protocol, None, members=tuple(members))

    # -- members

    def check_join(self, request: JoinGroupRequest, member_id: str) -> Subscription:
        """Return the subscription of a member that joins. Raises `Refused`."""
        self._check_alive()
        limits, instance_id = self._classic_limits, request.instance_id
        is_new = member_id not in self._state.classic
        if is_new and self.limits.migration is Migration.DISABLED:
            what = "its members have the consumer protocol"
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
        timeout_ms = request.session_timeout_ms
        if not limits.session_timeout_ms_min <= timeout_ms <= limits.session_timeout_ms_max:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
        if instance_id is not None and not 0 < len(instance_id) <= NAME_CHARS_MAX:
            raise Refused(ErrorCode.INVALID_REQUEST)
        names = {each.name for each in request.protocols[: PROTOCOLS_MAX + 1]}
        is_named = all(0 < len(name) <= NAME_CHARS_MAX for name in names)
        if not 0 < len(names) <= PROTOCOLS_MAX or not is_named or request.protocol_type != CONSUMER:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if sum(len(each.metadata) for each in request.protocols) > READ_BYTES_MAX:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
        for other_id in self._state.classic - {member_id}:
            classic = self._state.members[other_id].classic
            assert classic is not None
            names.intersection_update(each.name for each in classic.protocols)
        try:
            subscription = decode_subscription(request.protocols[0].metadata)
        except ProtocolError:
            names.clear()
        if not names or len(subscription.topics) > TOPICS_MAX:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return subscription

    def _find_classic(self, request: SyncGroupRequest | HeartbeatRequest) -> CurrentAssignment:
        """Check that the sender is a classic member in its generation."""
        self._check_alive()
        if error := self._unknown(request.member_id, request.instance_id):
            raise Refused(error, "there is no such member of the classic protocol")
        current = self._state.currents.get(request.member_id, NEW_MEMBER)
        if request.generation != current.epoch:
            what = f"the member's generation is {current.epoch}, not {request.generation}"
            raise Refused(ErrorCode.ILLEGAL_GENERATION, what)
        return current

    def _unknown(self, member_id: str, instance_id: str | None) -> ErrorCode:
        static_id = None if instance_id is None else self._state.static.get(instance_id)
        if static_id is not None and static_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        is_static = instance_id is None or static_id is not None
        is_known = is_static and member_id in self._state.classic
        return ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_MEMBER_ID

    def _has_step(self, member_id: str, current: CurrentAssignment) -> bool:
        """Whether a JOIN would take the member further."""
        if current.epoch < self._state.epoch or current.state is MemberState.UNREVOKED:
            return True
        if current.state is not MemberState.UNRELEASED:
            return False
        missing = self._state.targets.get(member_id, NO_PARTITIONS) - current.assigned
        return not any(partition in self._state.owners for partition in missing)

    def _expect_join(self, member_id: str, now: float) -> None:
        self._rebalance_ends.setdefault(member_id, now + self._rebalance_timeout_s(member_id))

    def _bump(self) -> None:
        """As ever; but the classic group that takes its place has the epoch of its members."""
        if not self.wants_downgrade:
            super()._bump()


def upgraded(
    group: Group, group_id: str, topics: Topics
) -> Turns[dict[ConsumerKey, ConsumerValue]]:
    """Return the records of the consumer group that takes the place of a classic group.

    Raises `Refused`: GROUP_ID_NOT_FOUND if the members are not consumers that can be read, and
    COORDINATOR_NOT_AVAILABLE if the group changed meanwhile.
    """
    members = dict(group.members)
    before = group.generation, _versions(members)
    epoch = group.generation
    records: dict[ConsumerKey, ConsumerValue] = {}
    turn = Turn()
    for member_id, member in members.items():
        metadata, assigned = _upgraded_member(member, topics)
        records[ConsumerKey(ConsumerRecord.MEMBER, group_id, member_id)] = metadata
        target = ConsumerKey(ConsumerRecord.MEMBER_TARGET, group_id, member_id)
        records[target] = MemberTarget(assigned)
        current = ConsumerKey(ConsumerRecord.CURRENT, group_id, member_id)
        records[current] = CurrentAssignment(epoch, epoch, MemberState.STABLE, assigned)
        if turn.is_over(1 + member.held_bytes // BYTES_OF_AN_ITEM):
            yield
    if before != (group.generation, _versions(group.members)):
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group changed meanwhile")
    records[ConsumerKey(ConsumerRecord.GROUP, group_id)] = GroupEpoch(epoch)
    records[ConsumerKey(ConsumerRecord.TARGET, group_id)] = TargetEpoch(epoch)
    return records


def _versions(members: Mapping[str, Member]) -> dict[str, tuple[object, object]]:
    return {each.member_id: (each.protocols, each.assignment) for each in members.values()}


def _upgraded_member(member: Member, topics: Topics) -> tuple[MemberMetadata, Partitions]:
    protocols = tuple(ClassicProtocol(*each) for each in member.protocols.items())
    data = protocols[0].metadata
    try:
        if len(data) + len(member.assignment) > READ_BYTES_MAX:
            raise ProtocolError("a member's metadata are too large")
        subscription = decode_subscription(data)
        assigned = by_id(decode_assignment(member.assignment).partitions, topics)
    except ProtocolError as error:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, str(error)) from None
    metadata = MemberMetadata(
        member.instance_id,
        subscription.rack or None,
        *member.client,
        tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, protocols),
    )
    return metadata, assigned


def _stored_member(
    member_id: str, member: MemberMetadata, protocol: str, assignment: bytes
) -> StoredMember:
    classic = member.classic
    assert classic is not None
    return StoredMember(
        member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        classic.session_timeout_ms,
        dict(classic.protocols)[protocol],
        assignment,
    )


def by_id(partitions: Sequence[TopicPartition], topics: Topics) -> Partitions:
    """Return partitions of topics that exist by the topics' ids."""
    return frozenset(
        TopicIdPartition(topics[topic].id, number)
        for topic, number in partitions
        if topic in topics
    )


def _encoded(partitions: Partitions, names: Mapping[bytes, str]) -> bytes:
    return encode_assignment(
        Assignment(
            tuple(
                TopicPartition(names[topic_id], number)
                for topic_id, number in sorted(partitions)
                if topic_id in names
            )
        )
    )
