"""What a call from a thread into a trio loop costs: by our portal, and by anyio's."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from threading import Event

from anyio.from_thread import start_blocking_portal

from minibroker.client.blocking.portal import Portal
from tests.bench.rounds import Row, by_turns

CALLS = 2000


async def _nothing() -> None:
    """What is called."""


def _microseconds(call: Callable[[], object]) -> float:
    for _ in range(100):
        call()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def _ours() -> float:
    owner, portal = Event(), Portal("bench", nullcontext())
    portal.open(owner)
    try:
        return _microseconds(partial(portal.call, _nothing))
    finally:
        portal.close(None)


def _anyio() -> float:
    with start_blocking_portal("trio") as portal:
        return _microseconds(partial(portal.call, _nothing))


def portal() -> Iterator[Row]:
    """A call of an async function that does nothing, from another thread."""
    pair = by_turns(_ours, _anyio, rounds=5)
    yield Row(
        "a call into the loop of a blocking client",
        f"{pair.ours:.0f} us",
        "anyio's BlockingPortal",
        f"{pair.theirs:.0f} us",
        f"{pair.ratio:.2f}",
        "ratio <= 1",
        pair.ratio <= 1,
    )


MEASURES = (portal,)
