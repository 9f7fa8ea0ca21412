"""A group reads the partitions that its topics are given later."""

from typing import Any

from minibroker.client import Admin
from tests.unit.client.groups.grouped import open_workplace, poll_until_has


async def test_a_group_takes_over_partitions_that_are_added(autojump_clock: Any) -> None:
    """With the age of metadata its leader hears of them, and the group assigns anew."""
    async with (
        open_workplace() as place,
        place.consumer("one", metadata_max_age_ms=1_000) as consumer,
        Admin(place.broker.address, seams=place.world.seams("admin")) as admin,
    ):
        await consumer.subscribe("t")
        await poll_until_has(consumer, 0, 1, 2, 3)
        await admin.create_partitions({"t": 6})
        assert await poll_until_has(consumer, 0, 1, 2, 3, 4, 5) == []
        await place.fill(1, partition_count=6)
        read: set[int] = set()
        while len(read) < 6:
            read |= {record.partition for record in await consumer.poll(10)}
