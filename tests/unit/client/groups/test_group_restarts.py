"""Static members that are restarted, against the real broker on virtual time."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from minibroker.client import Consumer, TopicPartition
from tests.unit.client.groups.grouped import Workplace, keep_polling, open_workplace, poll_until_has


@pytest.fixture
async def place(autojump_clock: Any) -> AsyncIterator[Workplace]:
    """Topic "t" has four partitions."""
    async with open_workplace() as place:
        yield place


async def crash_when_revoked(place: Workplace, host: str, consumer: Consumer) -> None:
    """Be a member of all of "t", and die while the application lets go of the first part of it."""
    died = trio.CancelScope()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        assert 0 < len(partitions) < 4, "that is all: the group does not cooperate"
        place.world.network.stop_host(host)
        died.cancel()
        await trio.lowlevel.checkpoint()

    with died:
        async with consumer:
            await consumer.subscribe("t", on_revoked=on_revoked)
            await keep_polling(consumer, [])


@pytest.mark.parametrize("leader", ["it", "another"])
async def test_a_restart_between_two_rounds_leaves_no_partition_alone(
    autojump_clock: Any, place: Workplace, leader: str
) -> None:
    """In the first round of a cooperative rebalance a member was told to let go of partitions, and
    dies before it joins the second one; back in its place, it does not have them any more, and
    nobody else has them yet. So there must be a second round all the same."""
    await place.create("u", 1)
    named: dict[str, Any] = {"group_instance_id": "i"}
    other, old, b, new = (
        place.consumer(name, **more)
        for name, more in (("other", {}), ("old", named), ("b", {}), ("new", named))
    )
    async with other, b, new, trio.open_nursery() as nursery:
        if leader == "another":
            await other.subscribe("u")
            await poll_until_has(other, 0)
            nursery.start_soon(keep_polling, other, [])
        async with trio.open_nursery() as dying:
            dying.start_soon(crash_when_revoked, place, "old", old)
            await trio.sleep(10)
            await b.subscribe("t")
            nursery.start_soon(keep_polling, b, [])
        await new.subscribe("t")
        nursery.start_soon(keep_polling, new, [])
        await trio.sleep(20)
        assert (len(b.assignment), len(new.assignment)) == (2, 2)
        nursery.cancel_scope.cancel()
