"""The largest request of each api that is legal: what the longest turn of it costs.

A turn is what one task does until it lets others run. It is measured by the calls of functions that
it makes, Python's own and C's, because these are the same in each run. `python -m tests.bench
--only abuse` measures the same requests in milliseconds, on a real broker beside a client.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio

from minibroker.broker.app import System
from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.testing.cluster import SimulatedWorld, open_broker
from tests.sim.test_any_request import ADDRESS, ask
from tests.support.largest import ELEMENTS, Largest, largest_requests

# Some milliseconds: short functions, most of them C's. Served in one turn, that many elements were
# 50,000 calls to millions of them.
CALLS_MAX: Final = 25_000
SOME: Final = 5_000
SOME_CALLS_MAX: Final = 12_000  # a pass that pauses nowhere may make one call an element, not three
WAIT_S: Final = 3.0


class Turns(trio.abc.Instrument):
    """Counts the calls in each turn of a task of the broker."""

    def __init__(self) -> None:
        self.longest = 0
        self._calls = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._calls = 0
        if "Client" not in task.name:
            sys.setprofile(self._count)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.setprofile(None)
        self.longest = max(self.longest, self._calls)

    def _count(self, frame: Any, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1


@contextmanager
def counted() -> Iterator[Turns]:
    """Count until the end of the block."""
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)


async def send(world: SimulatedWorld, largest: Largest) -> None:
    """Send a request, and read what comes until it is answered or the connection ends."""
    stream = await world.network.host("client").connect(ADDRESS)
    buffer = memoryview(bytearray(1024 * 1024))
    preface = PREFACE if largest.wire == "msgpack" else b""
    try:
        await stream.send([preface + largest.frame])
        with trio.move_on_after(WAIT_S):
            while await stream.receive_into(buffer):
                pass
    except trio.BrokenResourceError:
        pass
    finally:
        stream.close()


async def longest_turns(wire: str, elements: int, *, is_repeated: bool = False) -> dict[str, int]:
    """The calls in the longest turn of each request."""
    world = SimulatedWorld(1)
    found = {}
    async with open_broker(world, {}) as broker:
        await ask(world, ApiKey.METADATA, MetadataRequest(("t",)))
        for largest in largest_requests(wire, elements, is_repeated=is_repeated):
            with counted() as turns:
                await send(world, largest)
            assert broker.is_running, largest
            found[str(largest)] = turns.longest
    return found


async def test_no_turn_is_long(autojump_clock: trio.testing.MockClock) -> None:
    """Decoding, handling and encoding all pause."""
    found = await longest_turns("kafka", SOME)
    assert {name: calls for name, calls in found.items() if calls > SOME_CALLS_MAX} == {}


@pytest.mark.soak
@pytest.mark.parametrize("is_repeated", [False, True], ids=["different", "equal"])
@pytest.mark.parametrize("wire", ["kafka", "msgpack"])
async def test_no_turn_of_a_largest_request_is_long(
    wire: str, is_repeated: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """With as many elements as a request may have; also where they are the same."""
    found = await longest_turns(wire, ELEMENTS, is_repeated=is_repeated)
    assert {name: calls for name, calls in found.items() if calls > CALLS_MAX} == {}


async def test_memory_is_settled_and_given_back(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full collection would scan all modules and tables again: 50 ms in which nobody is served,
    which any request with 10,000 elements can cause. And what large answers took is given back: a
    C library keeps it otherwise."""
    settled_at: list[float] = []
    released_at: list[float] = []

    def system(**arguments: Any) -> System:
        return System(
            **arguments,
            settle_memory=lambda: settled_at.append(trio.current_time()),
            release_memory=lambda held_bytes: released_at.append(trio.current_time()),
        )

    monkeypatch.setattr("minibroker.testing.cluster.System", system)
    async with open_broker(SimulatedWorld(1), {}):
        began_at = trio.current_time()
        await trio.sleep(60)
    [at] = settled_at
    assert at - began_at < 5
    assert len(released_at) > 10
