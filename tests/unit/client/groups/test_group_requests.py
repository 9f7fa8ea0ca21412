"""What a member sends, in which order and over which connections: against a scripted broker."""

from typing import Any

import pytest
import trio

from minibroker.client import CommitFailed, Consumer, TopicPartition
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommitted,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import decode_subscription
from tests.unit.client.consumer.test_consumer import Shelf

A = TopicPartition("t", 0)


def now() -> trio.Event:
    """Nothing is waited for."""
    event = trio.Event()
    event.set()
    return event


class Coordinator:
    """A scripted coordinator of one member, which is always the leader of its group.

    `errors` are answered first, by api; `commits` are the offsets that came, in order.
    """

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.shelf = Shelf(broker)
        self.generation = 0
        self.errors: dict[ApiKey, list[ErrorCode]] = {}
        self.commits: list[int] = []
        self.committed = 2
        self.drops = 0  # how many commits are not answered; their connection is closed
        self.delay_s = 0.0  # of each commit
        self.may_join = now()  # a JOIN that came before goes on waiting for the one it found
        broker.answers |= {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: lambda _: HeartbeatResponse(self.error(ApiKey.HEARTBEAT)),
            ApiKey.LEAVE_GROUP: lambda _: LeaveGroupResponse(),
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_COMMIT: self.commit,
        }

    def error(self, api_key: ApiKey) -> ErrorCode:
        """The next one to answer."""
        errors = self.errors.get(api_key)
        return errors.pop(0) if errors else ErrorCode.NONE

    def find(self, _: FindCoordinatorRequest) -> FindCoordinatorResponse:
        error = self.error(ApiKey.FIND_COORDINATOR)
        return FindCoordinatorResponse(error, None, 1, *self.broker.endpoint)

    async def join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        if not request.member_id:
            return JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
        await self.may_join.wait()
        if error := self.error(ApiKey.JOIN_GROUP):
            return JoinGroupResponse(error)
        self.generation += 1
        protocol = request.protocols[0]
        members = (JoinedMember("m", None, protocol.metadata),)
        return JoinGroupResponse(0, self.generation, protocol.name, "m", "m", members)

    def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        error = self.error(ApiKey.SYNC_GROUP)
        return SyncGroupResponse(error, request.assignments[0].assignment)

    def fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        assert request.require_stable
        error = self.error(ApiKey.OFFSET_FETCH)
        asked = request.partitions or ()
        found = [
            PartitionGroupOffset(each.topic, each.partition, error, self.committed)
            for each in asked
        ]
        return OffsetFetchResponse(0, tuple(found))

    async def commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse | None:
        self.commits += [each.offset for each in request.partitions]
        if self.drops:
            self.drops -= 1
            for stream in self.broker.connections:
                stream.close()
            return None
        await trio.sleep(self.delay_s)
        error = self.error(ApiKey.OFFSET_COMMIT)
        told = (
            PartitionCommitted(each.topic, each.partition, error) for each in request.partitions
        )
        return OffsetCommitResponse(tuple(told))


@pytest.fixture
async def coordinator(start_broker: Any) -> Coordinator:
    """Of topic "t" with one partition, of which 2 is committed."""
    return Coordinator(await start_broker("a"))


@pytest.fixture
def consumer(seams: Any) -> Any:
    """Makes consumers of the scripted broker, which say for themselves what to commit."""

    def make(**options: object) -> Consumer:
        given = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        return Consumer("a:9092", seams=seams, **given | options)

    return make


async def test_a_lost_answer_lets_no_commit_overtake(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """A commit whose connection broke goes out again before those that came after it."""
    async with consumer() as it, trio.open_nursery() as nursery:
        it.assign([A])
        coordinator.drops = 2
        for offset in (1, 2, 3):
            nursery.start_soon(it.commit, {A: offset})
            await trio.sleep(0.001)
    assert coordinator.commits == [1, 1, 1, 2, 3]


async def test_a_commit_that_is_given_up_keeps_its_place(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """The next one follows it over the same connection, so it arrives behind it."""
    async with consumer() as it:
        it.assign([A])
        await it.commit({A: 0})
        count = len(coordinator.broker.connections)
        coordinator.delay_s = 3
        with trio.move_on_after(1) as scope:
            await it.commit({A: 1})
        assert scope.cancelled_caught
        await it.commit({A: 2})
        assert coordinator.commits == [0, 1, 2]
        assert len(coordinator.broker.connections) == count


async def test_a_waiting_join_holds_nothing_up(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """However long it waits for others: heartbeats and commits go on, and nobody gives it up."""
    shelf = coordinator.shelf
    shelf.append(5)
    async with consumer() as it:
        await it.subscribe("t")
        assert len(await it.poll(5)) == 3  # behind the 2 that were committed
        coordinator.may_join = trio.Event()
        coordinator.errors[ApiKey.HEARTBEAT] = [ErrorCode.REBALANCE_IN_PROGRESS] * 20
        await trio.sleep(4)
        assert it.health().state == "joining"
        before = len(coordinator.broker.asked(HeartbeatRequest))
        shelf.append(1)
        assert [record.offset for record in await it.poll(1)] == [5]
        await it.commit()
        assert await it.poll(50) == []
        assert len(coordinator.broker.asked(HeartbeatRequest)) >= before + 15
        assert len(coordinator.broker.asked(JoinGroupRequest)) == 3
        coordinator.may_join.set()
        coordinator.errors.clear()
        await it.poll(1)
        assert (it.health().state, it.health().generation) == ("stable", 2)
        again = coordinator.broker.asked(JoinGroupRequest)[2]
        told = decode_subscription(again.protocols[0].metadata)
        assert (told.topics, told.owned, told.generation) == (("t",), (A,), 1)
    assert coordinator.commits == [6]


async def test_an_offset_below_0_is_none(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """kafkajs commits -2 for "begin again": a member begins as `auto.offset.reset` says."""
    coordinator.committed = -2
    coordinator.shelf.append(5)
    async with consumer() as it:
        await it.subscribe("t")
        assert [record.offset for record in await it.poll(5)] == [0, 1, 2, 3, 4]
        assert await it.committed() == {A: None}


async def test_a_join_whose_connection_is_dead_is_sent_again(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any, network: Any
) -> None:
    """No answer to heartbeats gives up the JOIN too, and the same member joins."""
    async with consumer(session_timeout_ms=6000, heartbeat_interval_ms=1000) as it:
        await it.subscribe("t")
        coordinator.may_join = trio.Event()
        await it.poll(1)
        network.hold("a", "client")
        await it.poll(10)
        network.release("a", "client")
        coordinator.may_join = now()
        await it.poll(5)
        assert it.assignment == [A]
    joins = coordinator.broker.asked(JoinGroupRequest)
    assert len(joins) >= 3
    assert {join.member_id for join in joins[1:]} == {"m"}


async def test_a_join_whose_answer_is_lost_is_sent_again(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """Its connection is dead, and nobody knows; that of heartbeats is not, and they tell of a
    generation that this member must have joined."""
    async with consumer(session_timeout_ms=6000, heartbeat_interval_ms=500) as it:
        await it.subscribe("t")
        await it.poll(1)
        coordinator.may_join = trio.Event()
        first = iter([ErrorCode.REBALANCE_IN_PROGRESS])

        def heartbeat(asked: HeartbeatRequest) -> HeartbeatResponse:
            is_old = asked.generation == 1
            return HeartbeatResponse(next(first, ErrorCode.ILLEGAL_GENERATION) if is_old else 0)

        coordinator.broker.answers[ApiKey.HEARTBEAT] = heartbeat
        await it.poll(1.2)
        assert it.health().state == "joining"
        coordinator.may_join = now()
        await it.poll(1)
        assert it.health().state == "joining"
        await it.poll(3)
        assert (it.health().state, it.health().generation) == ("stable", 2)
    assert [join.member_id for join in coordinator.broker.asked(JoinGroupRequest)] == ["", *"mmm"]


async def test_who_abandons_a_join_leaves_at_once(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """LEAVE does not wait behind the JOIN, nor does the next JOIN."""
    async with consumer() as it:
        await it.subscribe("t")
        coordinator.may_join = trio.Event()
        await it.poll(1)
        began_at = trio.current_time()
        await it.unsubscribe()
        assert trio.current_time() - began_at < 0.1
        coordinator.may_join = now()
        await it.subscribe("t")
        await it.poll(1)
        assert it.health().state == "stable"
    assert [each.members[0].member_id for each in coordinator.broker.asked(LeaveGroupRequest)] == [
        "m",
        "m",
    ]


async def test_errors_that_pass_are_waited_out(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """Loading, moving and rebalancing cost pauses, never an error of the application."""
    loading, moved = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
    coordinator.errors = {
        ApiKey.FIND_COORDINATOR: [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2,
        ApiKey.JOIN_GROUP: [loading, moved],
        ApiKey.SYNC_GROUP: [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT, moved],
        ApiKey.OFFSET_FETCH: [ErrorCode.UNSTABLE_OFFSET_COMMIT, loading, moved],
        ApiKey.OFFSET_COMMIT: [loading, moved, ErrorCode.REBALANCE_IN_PROGRESS],
    }
    coordinator.shelf.append(5)
    async with consumer() as it:
        await it.subscribe("t")
        assert [record.offset for record in await it.poll(20)] == [2, 3, 4]
        await it.commit()
    assert not any(coordinator.errors.values())
    assert coordinator.commits == [5] * 4
    assert len(coordinator.broker.asked(FindCoordinatorRequest)) == 3 + 4


async def test_who_is_put_out_while_it_commits(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """The commit fails; the next poll joins again, with the id that is still good."""
    async with consumer() as it:
        await it.subscribe("t")
        await it.poll(1)
        coordinator.errors[ApiKey.OFFSET_COMMIT] = [ErrorCode.ILLEGAL_GENERATION]
        with pytest.raises(CommitFailed, match="ILLEGAL_GENERATION"):
            await it.commit()
        assert it.health().state == "out"
        await it.poll(1)
        assert it.health().state == "stable"
    assert [each.member_id for each in coordinator.broker.asked(JoinGroupRequest)] == ["", "m", "m"]


async def test_no_commit_outlives_its_partitions(
    autojump_clock: Any, coordinator: Coordinator, consumer: Any
) -> None:
    """What is given back is done with: a commit of another task that was sent again in the next
    generation would be behind the next owner's."""
    eager = {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 100}
    async with consumer(**eager, retry_backoff_ms=1000) as it:
        await it.subscribe("t")
        await it.poll(5)
        assert it.assignment == [A]
        coordinator.errors[ApiKey.OFFSET_COMMIT] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        coordinator.errors[ApiKey.HEARTBEAT] = [ErrorCode.REBALANCE_IN_PROGRESS]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.commit, {A: 1})
            await trio.sleep(0.2)
            await it.poll(3)
    commits_and_joins = [
        type(request)
        for request in coordinator.broker.requests
        if isinstance(request, OffsetCommitRequest | JoinGroupRequest)
    ]
    assert commits_and_joins[2:] == [OffsetCommitRequest, OffsetCommitRequest, JoinGroupRequest]
