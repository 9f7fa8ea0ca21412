"""A group's callbacks are work of the application, like what it does between polls."""

from typing import Any

import trio

from minibroker.protocol.types import TopicPartition
from tests.unit.client.groups.grouped import keep_polling, open_workplace


async def test_who_stays_in_a_callback_is_put_out(autojump_clock: Any) -> None:
    """max.poll.interval.ms holds for a callback, too: one that does not return keeps nothing."""
    soon: dict[str, Any] = {"max_poll_interval_ms": 10_000}
    lost: list[TopicPartition] = []

    async def stay(partitions: list[TopicPartition]) -> None:
        if not lost:
            await trio.sleep(30)

    async def lose(partitions: list[TopicPartition]) -> None:
        lost.extend(partitions)

    async with (
        open_workplace() as place,
        place.consumer("a", **soon) as a,
        place.consumer("b", **soon) as b,
    ):
        await a.subscribe("t", on_assigned=stay, on_lost=lose)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_polling, a, [])
            await trio.sleep(5)
            assert a.health().state == "stable"
            await b.subscribe("t")
            nursery.start_soon(keep_polling, b, [])
            await trio.sleep(15)
            assert [a.health().state, len(b.assignment)] == ["out", 4]
            await trio.sleep(40)
            assert len(lost) == 4
            assert [len(a.assignment), len(b.assignment)] == [2, 2]
            nursery.cancel_scope.cancel()
