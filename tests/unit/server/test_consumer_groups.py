"""The consumer protocol as a client meets it, beside groups of the classic protocol."""

from typing import Any

import trio.testing

from minibroker.broker.groups.consumer_records import ConsumerKey
from minibroker.broker.groups.member import Client
from minibroker.broker.groups.records import decode
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import consumer_groups
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    TopicIdPartitions,
)
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    GroupPartitions,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from minibroker.protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListedGroup,
    ListGroupsRequest,
    SyncGroupRequest,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import TWO, Keeper, keeping, state_of_offsets, turn
from tests.unit.node import state_of


def beat(member_id: str = "m", epoch: int = 0, **more: Any) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat of a member that reads t; one that joins says all."""
    if epoch == 0:
        more = {"topics": ("t",), "owned": (), "rebalance_timeout_ms": 60_000, **more}
    return ConsumerGroupHeartbeatRequest("g", member_id, epoch, **more)


async def join(keeper: Keeper, member_id: str = "m", **more: Any) -> ConsumerGroupHeartbeatResponse:
    answer: ConsumerGroupHeartbeatResponse = await keeper.answer(beat(member_id, **more))
    assert not answer.error, answer
    return answer


def described(keeper: Keeper, group_id: str = "g") -> DescribedConsumerGroup:
    [group] = keeper.ask(ConsumerGroupDescribeRequest((group_id,))).groups
    assert isinstance(group, DescribedConsumerGroup)
    return group


async def test_a_heartbeat_is_answered_once_it_is_committed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Until the follower has its records, it waits; then COORDINATOR_NOT_AVAILABLE tells that it is
    late, and the next one, of the same member, waits for the same records."""
    keeper = Keeper(TWO)
    keeper.catch_up()
    async with keeping(keeper):
        parked = keeper.ask(beat())
        assert isinstance(parked, Parked)
        late = await keeper.wait(parked)
        assert late.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        again = keeper.ask(beat())
        assert isinstance(again, Parked)
        keeper.catch_up()
        answer = await keeper.wait(again)
        assert answer.error == ErrorCode.NONE
        assert answer.heartbeat_interval_ms == 5000
        assert len(answer.assignment[0].partitions) == 3


async def test_groups_of_both_protocols_are_listed_and_described(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each by its own request; in that of the other protocol it does not exist."""
    keeper = Keeper()
    async with keeping(keeper):
        answer = await join(keeper, instance_id="i", rack_id="r")
        await keeper.lead_group("classic")
        listed = keeper.ask(ListGroupsRequest(types=("Consumer",))).groups
        assert listed == (ListedGroup("g", "consumer", "Stable", "consumer"),)
        assert [each.group_id for each in keeper.ask(ListGroupsRequest(types=("classic",))).groups]
        group = described(keeper)
        assert (group.state, group.assignor) == ("Stable", "uniform")
        assert group.epoch == group.assignment_epoch == answer.member_epoch
        [member] = group.members
        assert (member.instance_id, member.rack_id, member.topics) == ("i", "r", ("t",))
        assert (member.client_id, member.client_host) == ("app", "10.0.0.1")
        assert member.assignment == member.target
        assert [(each.topic, each.partitions) for each in member.assignment] == [("t", (0, 1, 2))]
        assert described(keeper, "classic").error == ErrorCode.GROUP_ID_NOT_FOUND
        assert described(keeper, "none").error == ErrorCode.GROUP_ID_NOT_FOUND
        assert keeper.ask(DescribeGroupsRequest(("g",))).groups[0].state == "Dead"


async def test_members_of_the_other_protocol_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """While there are members and conversion is disabled; an empty group becomes one of the
    protocol of the next member, and keeps its offsets."""
    keeper = Keeper(group_consumer_migration_policy="disabled")
    async with keeping(keeper):
        await join(keeper)
        assert (await keeper.join()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await keeper.join(member_id="m")).error == inconsistent
        assert keeper.ask(HeartbeatRequest("g", 1, "m")).error == unknown
        assert keeper.ask(SyncGroupRequest("g", 1, "m")).error == unknown
        left = keeper.ask(LeaveGroupRequest("g", (LeavingMember("m"),)))
        assert left.members[0].error == unknown
        epoch = described(keeper).epoch
        assert await keeper.commit(5, generation=epoch, member_id="m") == ErrorCode.NONE
        assert (await keeper.answer(beat(epoch=-1))).error == ErrorCode.NONE
        classic = await keeper.lead_group()
        assert keeper.fetch().offset == 5
        assert (await keeper.answer(beat())).error == ErrorCode.GROUP_ID_NOT_FOUND
        keys = [decode(each.key, each.value)[0] for each in keeper.stored() if each.value is None]
        assert any(isinstance(key, ConsumerKey) for key in keys)
        assert keeper.shard.table.consumer_records("g") == {}
        keeper.ask(LeaveGroupRequest("g", (LeavingMember(classic.member_id),)))
        await turn()
        await join(keeper, "n")
        assert keeper.fetch().offset == 5
        assert keeper.shard.table.metadata("g") is None
        assert described(keeper).members[0].member_id == "n"


async def test_offsets_of_members(autojump_clock: trio.testing.MockClock) -> None:
    """Only a member in its epoch commits and reads; an administrator reads always, and deletes what
    no member subscribes to."""
    keeper = Keeper()
    keeper.lead(state_of(TopicPartition("u", 0)))
    async with keeping(keeper):
        epoch = (await join(keeper)).member_epoch
        stale, unknown = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
        assert await keeper.commit(5, generation=epoch, member_id="m") == ErrorCode.NONE
        assert await keeper.commit(6, generation=epoch - 1, member_id="m") == stale
        assert await keeper.commit(6, generation=epoch, member_id="x") == unknown
        assert await keeper.commit(6) == unknown
        asked = (GroupPartition("t", 0),)
        for member_id, member_epoch, error in (
            ("m", epoch, ErrorCode.NONE),
            ("m", epoch + 1, stale),
            ("x", epoch, unknown),
            ("", -1, ErrorCode.NONE),
        ):
            group = GroupPartitions("g", asked, member_id, member_epoch)
            [answer] = keeper.ask(OffsetFetchRequest("", groups=(group,))).groups
            assert answer.error == error
            assert error or answer.partitions[0].offset == 5
        request = OffsetDeleteRequest("g", (GroupPartition("t", 0), GroupPartition("u", 0)))
        deleted = await keeper.answer(request)
        errors = [each.error for each in deleted.partitions]
        assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
        await join(keeper, "n", topics=None, pattern="[u-v]")
        deleted = await keeper.answer(request)
        assert {each.error for each in deleted.partitions} == {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


async def test_a_group_is_deleted_once_it_is_empty(autojump_clock: trio.testing.MockClock) -> None:
    """With all of its records."""
    keeper = Keeper()
    async with keeping(keeper):
        await join(keeper)
        full = await keeper.answer(DeleteGroupsRequest(("g",)))
        assert full.groups == (DeletedGroup("g", ErrorCode.NON_EMPTY_GROUP),)
        assert (await keeper.answer(beat(epoch=-1))).error == ErrorCode.NONE
        assert described(keeper).state == "Empty"
        done = await keeper.answer(DeleteGroupsRequest(("g",)))
        assert done.groups == (DeletedGroup("g"),)
        assert not keeper.shard.table.knows("g")
        assert (await keeper.answer(beat(epoch=3))).error == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_silent_member_is_removed_by_the_coordinator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Without any request."""
    keeper = Keeper(**{"group.consumer.session.timeout.ms": "10000"})
    async with keeping(keeper):
        await join(keeper)
        await trio.sleep(11)
        assert described(keeper).state == "Empty"


async def test_a_group_lives_on_in_the_next_term(autojump_clock: trio.testing.MockClock) -> None:
    """With its members, their epochs and their partitions."""
    keeper = Keeper()
    async with keeping(keeper):
        answer = await join(keeper)
        await turn()
        before = described(keeper)
        keeper.apply(state_of_offsets(epochs=(1, 1)))
        await turn()
        assert described(keeper) == before
        again = await keeper.answer(beat(epoch=answer.member_epoch))
        assert (again.error, again.assignment) == (ErrorCode.NONE, None)


async def test_wrong_heartbeats(autojump_clock: trio.testing.MockClock) -> None:
    """They create no group."""
    keeper = Keeper(**{"group.consumer.max.size": "1"})
    async with keeping(keeper):
        for request, error in (
            (ConsumerGroupHeartbeatRequest("", "m"), ErrorCode.INVALID_REQUEST),
            (beat(assignor="sticky"), ErrorCode.UNSUPPORTED_ASSIGNOR),
            (beat(topics=None, pattern="("), ErrorCode.INVALID_REGULAR_EXPRESSION),
            (beat(epoch=2), ErrorCode.GROUP_ID_NOT_FOUND),
            (beat(epoch=-1), ErrorCode.GROUP_ID_NOT_FOUND),
        ):
            assert (await keeper.answer(request)).error == error
        assert keeper.ask(ListGroupsRequest()).groups == ()
        made = await join(keeper, "")
        assert made.member_id
        assert (await keeper.answer(beat("n"))).error == ErrorCode.GROUP_MAX_SIZE_REACHED
        owned = (TopicIdPartitions(b"x" * 16, (0,)),)
        fenced = beat(made.member_id, made.member_epoch + 1, owned=owned)
        assert (await keeper.answer(fenced)).error == ErrorCode.FENCED_MEMBER_EPOCH


async def test_a_rebalance_timeout_has_32_bits_in_the_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """On the own wire it may be larger."""
    keeper = Keeper()
    async with keeping(keeper):
        await join(keeper, rebalance_timeout_ms=2**40)
        assert described(keeper).members[0].member_id == "m"


async def test_a_large_assignment_is_made_in_turns(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Other members' heartbeats are answered meanwhile."""
    keeper = Keeper()
    keeper.know(*(state_of(TopicPartition("w", number)) for number in range(2500)))
    async with keeping(keeper):
        request = beat(topics=("w",))
        client = Client("app", "host")
        handling = consumer_groups.heartbeat(keeper.services, request, client, trio.current_time())
        next(handling)
        other = await join(keeper, "n")
        assert other.assignment == ()
        answer = without_pause(handling)
        waited = await keeper.wait(answer) if isinstance(answer, Parked) else answer
        assert waited.error == ErrorCode.NONE
        for _ in range(3):
            known = described(keeper)
            for member in known.members:
                await keeper.answer(beat(member.member_id, member.member_epoch))
        assert described(keeper).state == "Stable"
