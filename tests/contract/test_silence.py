"""A connection whose way is cut, which no system tells of: it breaks by itself."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
import trio

from minibroker.client.net.network import Stream
from minibroker.protocol.types import Endpoint
from tests.support.namespaces import NEEDS_NAMESPACES, Network, network
from tests.support.spread import HostNetwork

pytestmark = NEEDS_NAMESPACES
PORT = 5000
CALLERS = ("deaf", "mute", "cut-off")


@pytest.fixture
def net() -> Iterator[Network]:
    """One who is called, and those who call."""
    with network() as made:
        for name in ("called", *CALLERS):
            made.add(name)
        yield made


async def outlast(stream: Stream, *, sends: bool) -> None:
    """Wait for its end, with something under way or without."""
    if sends:
        await stream.send([b"lost, or its acknowledgement is"])
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_into(memoryview(bytearray(1)))
    stream.close()


async def test_a_connection_breaks_when_its_way_is_cut(net) -> None:
    """In one direction or both, whether something is under way or only waited for."""
    called = net.hosts["called"]
    with ExitStack() as held, trio.fail_after(60):
        listener = held.enter_context(called.socket())
        listener.bind((called.address, PORT))
        listener.listen()
        streams = []
        for name in (*CALLERS, *CALLERS):
            caller = HostNetwork(net.hosts[name])
            streams.append(await caller.connect(Endpoint(called.address, PORT)))
            held.enter_context(listener.accept()[0])
        net.cut("called", "deaf")
        net.cut("mute", "called")
        net.separate("called", "cut-off")
        async with trio.open_nursery() as waiting:
            for number, stream in enumerate(streams):
                waiting.start_soon(partial(outlast, stream, sends=number < len(CALLERS)))
