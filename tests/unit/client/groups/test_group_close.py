"""The end of a membership: the last commit has time, and the LEAVE always has some."""

from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any

import pytest
import trio

from minibroker.client import ClientClosed, Consumer, TopicPartition
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommitted,
)
from minibroker.protocol.messages.groups import HeartbeatResponse, LeaveGroupRequest
from tests.unit.client.groups.grouped import (
    QUICK,
    Workplace,
    open_workplace,
    poll_all,
    poll_until_has,
)
from tests.unit.client.groups.test_group_requests import Coordinator

A = TopicPartition("t", 0)
IN_TIME_S = 2.0  # much less than a session


@pytest.fixture
async def place(autojump_clock: Any) -> AsyncIterator[Workplace]:
    """Topic "t" has four partitions."""
    async with open_workplace() as place:
        yield place


@pytest.fixture
async def coordinator(start_broker: Any) -> Coordinator:
    """Of topic "t" with one partition, of which 2 is committed."""
    return Coordinator(await start_broker("a"))


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
async def test_the_last_commit_may_take_longer_than_the_poll_interval(
    autojump_clock: Any, seams: Any, coordinator: Coordinator, how: str
) -> None:
    """max.poll.interval.ms does not run while the application waits in `close`: the member has a
    valid generation, so it commits, and leaves only then."""
    coordinator.shelf.append(5)
    options: dict[str, Any] = QUICK | {"max_poll_interval_ms": 500}
    async with Consumer("a:9092", seams=seams, group_id="g", **options) as consumer:
        await consumer.subscribe("t")
        await poll_all(consumer, 3)
        await consumer.poll(0)
        coordinator.errors[ApiKey.OFFSET_COMMIT] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 8
        await getattr(consumer, how)()
    assert coordinator.commits == [5] * 9
    kinds = [type(request) for request in coordinator.broker.requests]
    left_at = kinds.index(LeaveGroupRequest)
    assert OffsetCommitRequest not in kinds[left_at:]


async def test_a_poll_that_ends_beside_a_close_starts_no_interval(
    autojump_clock: Any, place: Workplace
) -> None:
    """Another task polls while one closes; its poll ends at once, and the close goes on."""
    await place.fill(3)

    async def revoked(_: object) -> None:
        await trio.sleep(5)

    async def poll() -> None:
        with pytest.raises(ClientClosed):
            await a.poll(60)

    async with place.consumer("a", max_poll_interval_ms=2000) as a:
        await a.subscribe("t", on_revoked=revoked)
        await poll_all(a, 12)
        await a.poll(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.sleep(0.1)
            await a.close()
    async with place.consumer("b") as b:
        b.assign([("t", number) for number in range(4)])
        found = await b.committed()
        assert [each and each.offset for each in found.values()] == [3] * 4


@pytest.mark.parametrize("how", ["time", "cancellation", "lost time", "end of the block"])
async def test_a_close_without_its_commit_leaves_the_group(
    autojump_clock: Any, place: Workplace, how: str
) -> None:
    """Whatever holds the close up, the group does not wait a session for the member."""

    async def hang(_: object) -> None:
        await trio.sleep_forever()

    async with place.consumer("b") as b:
        async with place.consumer("a") as a:
            await a.subscribe("t", on_revoked=hang)
            await poll_until_has(a, 0, 1, 2, 3)
            if how == "time":
                await a.close(timeout_s=1)
            elif how == "cancellation":
                with trio.move_on_after(1):
                    await a.close()
            elif how == "lost time":
                async with trio.open_nursery() as nursery:  # another call is held up
                    nursery.start_soon(a.unsubscribe)
                    await trio.sleep(0.1)
                    await a.close(timeout_s=1)
                    nursery.cancel_scope.cancel()
        await b.subscribe("t")
        await poll_until_has(b, 0, 1, 2, 3, within_s=IN_TIME_S)


class Amnesiac(Coordinator):
    """Dies after its answer to the second JOIN, and knows only the first generation then.

    While it waits for another member, JOIN is not answered; `accepted` are the generations in which
    it takes commits.
    """

    def __init__(self, broker: Any, accepted: set[int]) -> None:
        super().__init__(broker)
        self.accepted = accepted

    def begin_rebalance(self) -> None:
        """The member hears of it in its next heartbeat."""
        told = cycle([ErrorCode.REBALANCE_IN_PROGRESS])
        self.broker.answers[ApiKey.HEARTBEAT] = lambda _: HeartbeatResponse(next(told))
        self.errors[ApiKey.SYNC_GROUP] = [ErrorCode.NOT_COORDINATOR]

    async def join(self, request: Any) -> Any:
        """The third one waits for ever."""
        if self.generation == 2:
            await trio.sleep_forever()
        return await super().join(request)

    async def commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Takes those of its generation."""
        await trio.lowlevel.checkpoint()
        is_known = request.generation in self.accepted
        error = ErrorCode.NONE if is_known else ErrorCode.ILLEGAL_GENERATION
        told = (PartitionCommitted(*A, error) for _ in request.partitions)
        return OffsetCommitResponse(tuple(told))


@pytest.mark.parametrize("accepted", [{1}, {2}, set[int]()], ids=["first", "second", "none"])
async def test_a_generation_that_died_with_its_coordinator(
    autojump_clock: Any, seams: Any, start_broker: Any, accepted: set[int]
) -> None:
    """A member that closes commits in the generation that the next coordinator knows. If that one
    knows neither, the member leaves all the same."""
    broker = await start_broker("a")
    coordinator = Amnesiac(broker, accepted)
    coordinator.shelf.append(5)
    options: dict[str, Any] = QUICK | {"auto_offset_reset": "earliest"}
    async with Consumer("a:9092", seams=seams, group_id="g", **options) as consumer:
        await consumer.subscribe("t")
        await poll_all(consumer, 3)  # after the 2 that were committed
        coordinator.begin_rebalance()
        with trio.fail_after(30):
            while coordinator.generation < 2:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await trio.sleep(0.5)
        assert consumer.health().state == "joining"
        began_at = trio.current_time()
        await consumer.close()
        took_s = trio.current_time() - began_at
    asked = [request.generation for request in broker.asked(OffsetCommitRequest)]
    assert asked[:2] == ([2, 1] if accepted != {2} else [2])
    assert {1, 2} >= set(asked)
    assert took_s < (IN_TIME_S if accepted else 10)
    [left] = broker.asked(LeaveGroupRequest)
    assert left.members[0].member_id == "m"
