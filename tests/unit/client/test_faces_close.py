"""A member that closes, in each form of the client: over real sockets, with real callbacks."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import trio

from minibroker import client
from minibroker.client import TopicPartition, blocking
from minibroker.client import asyncio as for_asyncio
from minibroker.client.blocking import Consumer

OPTIONS: dict[str, Any] = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 60_000}
Seen = list[float]


def deadline_of(consumer: Any) -> float:
    """When the next poll is due, as the watchdog sees it."""
    group = getattr(consumer, "_client", consumer)._group
    assert group is not None
    return float(group.membership.poll_deadline)


async def close_awaited(make: Callable[..., Any], address: str, topic: str, seen: Seen) -> None:
    """Read a record, and close."""

    async def revoked(_: object) -> None:
        seen.append(deadline_of(consumer))

    async with make(address, group_id=topic, **OPTIONS) as consumer:
        await consumer.subscribe(topic, on_revoked=revoked)
        assert len(await consumer.poll(60)) == 1
        seen.append(deadline_of(consumer))
        await consumer.close()


def close_trio(*where: Any) -> None:
    """The same, from a program of trio."""
    trio.run(close_awaited, client.Consumer, *where)


def close_asyncio(*where: Any) -> None:
    """The same, from a program of asyncio."""
    asyncio.run(close_awaited(for_asyncio.Consumer, *where))


def close_blocking(address: str, topic: str, seen: Seen) -> None:
    """The same."""
    with Consumer(address, group_id=topic, **OPTIONS) as consumer:
        consumer.subscribe(topic, on_revoked=lambda _: seen.append(deadline_of(consumer)))
        assert len(consumer.poll(60)) == 1
        seen.append(deadline_of(consumer))
        consumer.close()


FACES = {"trio": close_trio, "asyncio": close_asyncio, "blocking": close_blocking}


@pytest.mark.parametrize("face", FACES)
def test_the_poll_interval_does_not_run_in_a_close(address: str, face: str) -> None:
    """A callback of `close` may take as long as the close, and the last commit is made."""
    close: Callable[[str, str, Seen], None] = FACES[face]
    topic, seen = f"close-{face}", []
    with blocking.Producer(address) as producer:
        producer.send_and_wait(topic, b"one")
    close(address, topic, seen)
    after_poll, in_close = seen
    assert after_poll < inf == in_close
    with Consumer(address, group_id=topic) as consumer:
        consumer.assign([(topic, 0)])
        committed = consumer.committed()[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == 1
