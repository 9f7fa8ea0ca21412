"""The faults of the simulated network; what it has in common with TCP is in tests/contract."""

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.client.net.network import Stream
from minibroker.protocol.types import Endpoint
from minibroker.testing.network import NetworkOptions, SimulatedNetwork

BROKER = Endpoint("broker", 9092)


async def pair(network: SimulatedNetwork) -> tuple[Stream, Stream]:
    """A client's end and the broker's end of a new connection."""
    broker = network.host("broker")
    if BROKER.port not in broker.listeners:
        await broker.listen(BROKER)
    client_end = await network.host("client").connect(BROKER)
    return client_end, await broker.listeners[BROKER.port].accept()


async def receive(stream: Stream, size: int) -> bytes:
    """Exactly so many bytes."""
    received = b""
    buffer = memoryview(bytearray(size))
    while len(received) < size:
        count = await stream.receive_into(buffer[: size - len(received)])
        assert count
        received += bytes(buffer[:count])
    return received


async def test_a_held_link_delays_and_loses_nothing(autojump_clock):
    """What is sent on a held link arrives after the release, in order; the way back is free."""
    network = SimulatedNetwork(random.Random(1))
    one, other = await pair(network)
    await one.send([b"first"])
    network.hold("client", "broker")
    await one.send([b"second"])
    await other.send([b"back"])
    assert await receive(one, 4) == b"back"
    with trio.move_on_after(3600) as scope:
        await receive(other, 1)
    assert scope.cancelled_caught
    network.release("client", "broker")
    assert await receive(other, 11) == b"firstsecond"


async def test_connecting_over_a_held_link_waits(autojump_clock):
    """A connection comes about when the link is released."""
    network = SimulatedNetwork(random.Random(1))
    await pair(network)
    network.hold("broker", "client")
    with trio.move_on_after(60) as scope:
        await pair(network)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair, network)
        await trio.sleep(60)
        network.heal()


async def test_a_cut_link_breaks_and_refuses_until_it_is_mended(autojump_clock):
    """Both ends break, also one that waits; connecting fails, and works again after `mend`."""
    network = SimulatedNetwork(random.Random(1))
    one, other = await pair(network)

    async def expect_broken() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await receive(one, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_broken)
        await wait_all_tasks_blocked()
        network.cut("broker", "client")
    with pytest.raises(trio.BrokenResourceError):
        await other.send([b"a"])
    with pytest.raises(OSError, match="broker:9092"):
        await pair(network)
    network.mend("broker", "client")
    one, other = await pair(network)
    await one.send([b"a"])
    assert await receive(other, 1) == b"a"


async def test_a_throttled_link_takes_its_time(autojump_clock):
    """A megabyte at a hundred kilobytes a second takes ten seconds."""
    network = SimulatedNetwork(random.Random(1))
    one, other = await pair(network)
    network.throttle("client", "broker", 100_000)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, [bytes(1_000_000)])
        await receive(other, 1_000_000)
    assert 10 <= trio.current_time() - start < 10.5


async def test_a_stopped_host_is_gone_and_can_come_back(autojump_clock):
    """Its connections break, nobody listens there; it may listen again."""
    network = SimulatedNetwork(random.Random(1))
    one, _ = await pair(network)
    network.stop_host("broker")
    with pytest.raises(trio.BrokenResourceError):
        await receive(one, 1)
    with pytest.raises(OSError, match="refused"):
        await network.host("client").connect(BROKER)
    await pair(network)


async def test_a_seed_repeats(autojump_clock):
    """Two networks with one seed deliver the same pieces at the same times."""
    traces = []
    for _ in range(2):
        network = SimulatedNetwork(random.Random(7), NetworkOptions(delay_s_max=0.5))
        one, other = await pair(network)
        start = trio.current_time()
        trace = []
        buffer = memoryview(bytearray(1000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, [bytes(20_000)])
            left = 20_000
            while left:
                count = await other.receive_into(buffer)
                left -= count
                trace.append((count, round(trio.current_time() - start, 6)))
        traces.append(trace)
    assert traces[0] == traces[1]
