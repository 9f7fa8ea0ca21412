"""The forms of a commit, and what a consumer can ask about its partitions."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from minibroker.client import (
    BrokerError,
    ClientClosed,
    CommitFailed,
    Consumer,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Producer,
    TopicPartition,
)
from tests.unit.client.groups.grouped import Workplace, open_workplace, poll_until_has

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BY_HAND: dict[str, Any] = {"enable_auto_commit": False}


@pytest.fixture
async def place(autojump_clock: Any) -> AsyncIterator[Workplace]:
    """Topic "t" has four partitions, with three records each."""
    async with open_workplace() as place:
        await place.fill(3)
        yield place


async def offset_of(consumer: Consumer, name: TopicPartition) -> int | None:
    """What the group has committed of a partition."""
    found = (await consumer.committed(name))[name]
    return None if found is None else found.offset


async def test_a_record_is_committed_with_all_before_it(place: Workplace) -> None:
    """The next record to read is the one behind it; other partitions are left alone."""
    async with place.consumer("a", **BY_HAND) as a:
        a.assign([A, B])
        record = next(each for each in await a.poll() if each[:3] == ("t", 0, 1))
        await a.commit(record)
        assert (await offset_of(a, A), await offset_of(a, B)) == (2, None)
        await a.commit({A: 1, B: 3})
        assert (await offset_of(a, A), await offset_of(a, B)) == (1, 3)
        await a.commit({A: OffsetAndMetadata(2, "note")})
        found = (await a.committed(A))[A]
        assert found is not None
        assert (found.offset, found.metadata) == (2, "note")


async def test_a_commit_need_not_be_waited_for(place: Workplace) -> None:
    """Those that gather go together; each caller hears of its own, and the last one counts."""
    told: list[tuple[Any, Any]] = []
    async with place.consumer("a", **BY_HAND) as a:
        a.assign([A, B])
        for offset in range(1, 4):
            a.commit_async({A: offset}, on_commit=lambda *each: told.append(each))
        a.commit_async({B: 1}, on_commit=lambda *each: told.append(each))
        assert told == []
        await a.commit({B: 2})
        assert [(min(offsets).partition, error) for offsets, error in told] == [
            *[(0, None)] * 3,
            (1, None),
        ]
        assert (await offset_of(a, A), await offset_of(a, B)) == (3, 2)


async def test_the_end_waits_for_commits_under_way(place: Workplace) -> None:
    """Leaving the block loses none that was asked for, subscribed or not."""
    async with place.consumer("a", **BY_HAND) as a:
        a.assign([A])
        a.commit_async({A: 2})
    async with place.consumer("b", **BY_HAND) as b:
        await b.subscribe("t")
        await poll_until_has(b, 0, 1, 2, 3)
        assert await offset_of(b, A) == 2
        b.commit_async({A: 3})
    with pytest.raises(ClientClosed):
        b.commit_async({A: 1})
    async with place.consumer("c") as c:
        assert await offset_of(c, A) == 3


async def test_a_commit_that_fails_is_told_or_logged(
    place: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    """Who does not wait hears by the callback, or else the log says it."""
    caplog.set_level(logging.WARNING, "minibroker.client")
    told: list[tuple[Any, Any]] = []
    async with place.consumer("a", **BY_HAND) as a, place.consumer("b", **BY_HAND) as b:
        await a.subscribe("t")
        await poll_until_has(a, 0, 1, 2, 3)
        b.assign([A])
        b.commit_async({A: 1}, on_commit=lambda *each: told.append(each))
        await trio.sleep(1)
        assert isinstance(told[0][1], CommitFailed | BrokerError)
        assert not caplog.records
        b.commit_async({A: 1})
        await trio.sleep(1)
        assert "group g: commit_async: " in caplog.text


async def test_offsets_are_found_by_time(place: Workplace) -> None:
    """The first record at or after a time, with its own time; None where none is as late."""
    await place.create("timed", 2)
    async with Producer(place.broker.address, seams=place.world.seams("p")) as producer:
        for time in (1000, 2000, 3000):
            await producer.send("timed", b"x", partition=0, timestamp_ms=time)
    name, empty = TopicPartition("timed", 0), TopicPartition("timed", 1)
    async with place.consumer("a", group_id="") as a:
        assert await a.offsets_for_times({name: 1500, empty: 0}) == {
            name: OffsetAndTimestamp(1, 2000),
            empty: None,
        }
        assert await a.offsets_for_times({name: 3001}) == {name: None}
        assert await a.partitions_for_topic("timed") == {0, 1}
        with pytest.raises(BrokerError, match="there is no topic 'nowhere'"):
            await a.partitions_for_topic("nowhere")
