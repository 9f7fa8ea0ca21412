"""Groups that change their protocol while they have members, as clients meet it."""

from typing import Any

import pytest
import trio.testing

from minibroker.broker.groups.records import GroupKey, decode
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    TopicIdPartitions,
)
from minibroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import SESSION_MS, Keeper, keeping, state_of_offsets, turn

ALL = tuple(TopicPartition("t", number) for number in range(3))
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS


class Classic:
    """A classic member that reads t, cooperative: it says what it owns."""

    def __init__(self, keeper: Keeper, instance_id: str | None = None) -> None:
        self.keeper = keeper
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[TopicPartition, ...] = ()

    async def join(self, protocol: str = "cooperative-sticky") -> JoinGroupResponse:
        """Join, with the id that it is given."""
        metadata = encode_subscription(Subscription(("t",), self.owned, self.generation))
        request = JoinGroupRequest(
            "g",
            SESSION_MS,
            30_000,
            self.member_id,
            self.instance_id,
            protocols=(GroupProtocol(protocol, metadata),),
        )
        answer: JoinGroupResponse = await self.keeper.answer(request)
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return await self.join(protocol)
        if not answer.error:
            self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    async def sync(self, assignment: tuple[TopicPartition, ...] | None = None) -> int:
        """Get its assignment; the group's leader brings it."""
        parts = ()
        if assignment is not None:
            data = encode_assignment(Assignment(assignment))
            parts = (MemberAssignment(self.member_id, data),)
        answer = await self.keeper.answer(
            SyncGroupRequest(
                "g", self.generation, self.member_id, self.instance_id, assignments=parts
            )
        )
        if not answer.error:
            self.owned = decode_assignment(answer.assignment).partitions
        return answer.error

    def beat(self) -> int:
        """The error of a heartbeat."""
        request = HeartbeatRequest("g", self.generation, self.member_id, self.instance_id)
        error: int = self.keeper.ask(request).error
        return error

    async def lead(self) -> None:
        """Be the only member of the group, with all partitions."""
        assert not (await self.join()).error
        assert not await self.sync(ALL)

    async def catch_up(self) -> None:
        """Join and synchronise until the coordinator asks for nothing more."""
        while self.beat() == REBALANCE:
            assert not (await self.join()).error
            assert not await self.sync()


class Newer:
    """A member of the newer protocol that reads t, and gives up what it is to revoke."""

    def __init__(self, keeper: Keeper, instance_id: str | None = None) -> None:
        self.keeper = keeper
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: tuple[TopicIdPartitions, ...] = ()

    async def beat(self, epoch: int | None = None) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat that says all."""
        answer: ConsumerGroupHeartbeatResponse = await self.keeper.answer(
            ConsumerGroupHeartbeatRequest(
                "g",
                "new",
                self.epoch if epoch is None else epoch,
                self.instance_id,
                rebalance_timeout_ms=30_000,
                topics=("t",),
                owned=self.owned,
            )
        )
        if not answer.error:
            self.epoch = answer.member_epoch
            self.owned = self.owned if answer.assignment is None else answer.assignment
        return answer

    @property
    def numbers(self) -> list[int]:
        """The partitions that it has."""
        return [number for each in self.owned for number in each.partitions]


def described(keeper: Keeper) -> DescribedConsumerGroup:
    [group] = keeper.ask(ConsumerGroupDescribeRequest(("g",))).groups
    assert isinstance(group, DescribedConsumerGroup)
    return group


def kinds(keeper: Keeper) -> list[str]:
    return [each.type for each in keeper.ask(ListGroupsRequest()).groups]


async def settle(*members: Any) -> None:
    """Have all members take the steps that are left."""
    for _ in range(4):
        for member in members:
            await (member.catch_up() if isinstance(member, Classic) else member.beat())


async def test_a_classic_group_is_upgraded(autojump_clock: trio.testing.MockClock) -> None:
    """A first newer member joins: the classic one keeps what it has until it has revoked it, in its
    generation, and commits."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await old.lead()
        generation = old.generation
        await new.beat()
        assert kinds(keeper) == ["consumer"]
        assert new.numbers == []
        identity: dict[str, Any] = {"generation": generation, "member_id": old.member_id}
        assert await keeper.commit(5, **identity) == ErrorCode.NONE
        assert old.beat() == REBALANCE
        answer = await old.join()
        assert (answer.generation, answer.leader, answer.members) == (generation, "", ())
        assert await old.sync() == ErrorCode.NONE
        assert len(old.owned) == 2
        await new.beat()
        assert new.numbers == []
        await settle(old, new)
        assert sorted([*(each.partition for each in old.owned), *new.numbers]) == [0, 1, 2]
        assert old.generation == new.epoch > generation
        assert described(keeper).state == "Stable"
        assert keeper.ask(DescribeGroupsRequest(("g",))).groups[0].state == "Dead"
        illegal = ErrorCode.ILLEGAL_GENERATION
        assert await keeper.commit(6, **identity) == illegal
        identity["generation"] = old.generation
        assert await keeper.commit(6, **identity) == ErrorCode.NONE
        assert keeper.shard.table.metadata("g") is None


async def test_a_consumer_group_is_downgraded(autojump_clock: trio.testing.MockClock) -> None:
    """Its last newer member leaves: the classic members join again, in the generation that they
    have, and commit meanwhile."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await new.beat()
        await old.join()
        assert await old.sync() == ErrorCode.NONE
        await settle(old, new)
        assert (await new.beat(-1)).error == ErrorCode.NONE
        assert kinds(keeper) == ["classic"]
        assert keeper.shard.table.consumer_records("g") == {}
        assert old.beat() == REBALANCE
        identity: dict[str, Any] = {"generation": old.generation, "member_id": old.member_id}
        assert await keeper.commit(5, **identity) == ErrorCode.NONE
        generation = old.generation
        answer = await old.join()
        assert (answer.generation, answer.leader) == (generation + 1, old.member_id)
        assert await old.sync(ALL) == ErrorCode.NONE
        assert old.owned == ALL
        assert keeper.fetch().offset == 5


async def test_a_downgrade_that_was_stored_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """Another coordinator has the members join again: nobody has what the last newer member had."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await new.beat()
        await old.join()
        await old.sync()
        await settle(old, new)
        await new.beat(-1)
        keeper.lead(state_of_offsets(epochs=(2, 2)))
        await turn()
        assert old.beat() == REBALANCE
        assert (await old.join()).leader == old.member_id


async def test_a_group_whose_newer_members_expire_is_downgraded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As one whose members leave."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await new.beat()
        await old.join()
        await old.sync()
        await settle(old, new)
        for _ in range(60):
            await trio.sleep(1)
            old.beat()
        assert kinds(keeper) == ["classic"]


async def test_static_members_are_converted(autojump_clock: trio.testing.MockClock) -> None:
    """A static member goes on with the other protocol, and has the partitions that it had."""
    keeper = Keeper()
    async with keeping(keeper):
        await Classic(keeper, "i").lead()
        new = Newer(keeper, "i")
        assert not (await new.beat()).error
        await settle(new)
        assert new.numbers == [0, 1, 2]
        assert [each.member_id for each in described(keeper).members] == ["new"]
        assert described(keeper).members[0].instance_id == "i"
        back = Classic(keeper, "i")
        assert not (await back.join()).error
        assert kinds(keeper) == ["classic"]
        assert await back.sync(ALL) == ErrorCode.NONE
        assert back.owned == ALL


async def test_static_members_keep_their_instance_ids(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A classic static member is known by its instance id after an upgrade and after a downgrade:
    the next process of it takes its place."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper, "i"), Newer(keeper)
        await old.lead()
        await new.beat()
        fenced = old.member_id
        again = Classic(keeper, "i")
        assert not (await again.join()).error
        assert again.member_id != fenced
        assert old.beat() == ErrorCode.FENCED_INSTANCE_ID
        await again.sync()
        await settle(again, new)
        await new.beat(-1)
        assert kinds(keeper) == ["classic"]
        third = Classic(keeper, "i")
        assert not (await third.join()).error
        assert third.member_id != again.member_id
        members = keeper.ask(DescribeGroupsRequest(("g",))).groups[0].members
        assert [each.member_id for each in members] == [third.member_id]


async def test_a_mixed_group_goes_on_in_another_coordinator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its classic members are stored with what they offer, so it can be downgraded there."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await old.lead()
        await new.beat()
        await settle(old, new)
        keeper.lead(state_of_offsets(epochs=(2, 2)))
        await turn()
        assert old.beat() == ErrorCode.NONE
        assert not (await new.beat()).error
        await new.beat(-1)
        assert kinds(keeper) == ["classic"]
        assert (await old.join()).leader == old.member_id


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
async def test_the_policy_says_which_conversion_is_allowed(
    policy: str, up: bool, down: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Without a downgrade a group remains one of the consumer protocol."""
    keeper = Keeper(group_consumer_migration_policy=policy)
    async with keeping(keeper):
        await Classic(keeper).lead()
        error = (await Newer(keeper).beat()).error
        assert error == (ErrorCode.NONE if up else ErrorCode.GROUP_ID_NOT_FOUND)
    keeper = Keeper(group_consumer_migration_policy=policy)
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await new.beat()
        error = (await old.join()).error
        if policy == "disabled":
            assert error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return
        await old.sync()
        await settle(old, new)
        await new.beat(-1)
        assert kinds(keeper) == ["classic" if down else "consumer"]
        if not down:
            await settle(old)
            assert old.owned == ALL


async def test_classic_members_share_a_protocol(autojump_clock: trio.testing.MockClock) -> None:
    """One that shares none with the others could not remain in the group after a downgrade."""
    keeper = Keeper()
    async with keeping(keeper):
        new = Newer(keeper)
        await new.beat()
        assert not (await Classic(keeper).join()).error
        error = (await Classic(keeper).join("range")).error
        assert error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_classic_member_leaves(autojump_clock: trio.testing.MockClock) -> None:
    """By its own request; a newer member is no member for it."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await old.lead()
        await new.beat()
        request = LeaveGroupRequest("g", (LeavingMember(old.member_id), LeavingMember("new")))
        left = keeper.ask(request).members
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert [each.error for each in left] == [ErrorCode.NONE, unknown]
        await settle(new)
        assert new.numbers == [0, 1, 2]


async def test_a_classic_member_that_does_not_rejoin_is_removed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is told to, and has its rebalance time-out for that."""
    keeper = Keeper()
    async with keeping(keeper):
        old, new = Classic(keeper), Newer(keeper)
        await old.lead()
        await new.beat()
        for _ in range(31):
            assert old.beat() == REBALANCE
            await trio.sleep(1)
            await new.beat()
        assert old.beat() == ErrorCode.UNKNOWN_MEMBER_ID
        await settle(new)
        assert new.numbers == [0, 1, 2]


async def test_waiting_requests_of_an_upgraded_group_are_told_to_join_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A member whose JOIN waits for another is a member of the consumer group."""
    keeper = Keeper()
    async with keeping(keeper):
        old = Classic(keeper)
        await old.lead()
        late = Classic(keeper)
        answers: list[JoinGroupResponse] = []

        async def join() -> None:
            answers.append(await late.join())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await turn()
            await Newer(keeper).beat()
        assert answers[0].error == REBALANCE
        assert not (await late.join()).error
        tombstones = [decode(each.key, each.value)[0] for each in keeper.stored() if not each.value]
        assert GroupKey("g") in tombstones
