"""One suite for the network, real and simulated: what sessions and channels rely on."""

import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import NamedTuple

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from minibroker.broker.disk import RealFiles, in_worker
from minibroker.broker.log.file_slice import FileSlice
from minibroker.broker.log.files import File
from minibroker.client.net.network import Network, Stream, TcpNetwork
from minibroker.protocol.types import Endpoint, StaleSlice
from minibroker.testing.disk import SimulatedFiles
from minibroker.testing.network import SimulatedNetwork

ANY_PORT = Endpoint("127.0.0.1", 0)


class Segment:
    """What a slice is of, as the log has it."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.generation = 0


class Machine(NamedTuple):
    """A network and a file on a disk that belongs to it."""

    network: Network
    segment: Segment


@pytest.fixture(params=["real", "simulated"])
def machine(request, tmp_path):
    """Both of a kind."""
    if request.param == "real":
        file = RealFiles().open(tmp_path / "segment", create=True)
        yield Machine(TcpNetwork(in_worker), Segment(file))
    else:
        files = SimulatedFiles(random.Random(1))
        files.make_dir(PurePath("/data"))
        file = files.open(PurePath("/data/segment"), create=True)
        yield Machine(SimulatedNetwork(random.Random(2)).host("here"), Segment(file))
    file.close()


@asynccontextmanager
async def connected(network: Network) -> AsyncIterator[tuple[Stream, Stream]]:
    """Two ends of one connection."""
    listener = await network.listen(ANY_PORT)
    one = await network.connect(listener.endpoint)
    other = await listener.accept()
    try:
        yield one, other
    finally:
        for each in (listener, one, other):
            each.close()
            each.close()


async def receive(stream: Stream, size: int) -> bytes:
    """Exactly so many bytes, or fewer at the end."""
    received = bytearray(size)
    view = memoryview(received)
    while view and (count := await stream.receive_into(view)):
        view = view[count:]
    return bytes(received[: size - len(view)])


async def test_bytes_arrive_in_order_in_both_directions(machine):
    """What is sent is received, whole and in order, then comes the end."""
    async with connected(machine.network) as (one, other):
        await one.send([b"abc", memoryview(b"de"), bytearray(b"f")])
        await other.send([b"xyz"])
        assert await receive(other, 6) == b"abcdef"
        assert await receive(one, 3) == b"xyz"
        await one.send([b"last"])
        one.close()
        assert await receive(other, 100) == b"last"
        assert await other.receive_into(memoryview(bytearray(1))) == 0


async def test_many_buffers_go_out_in_one_call(machine):
    """More buffers than one system call takes, empty ones among them, and none at all."""
    buffers = [bytes([index % 251]) * (index % 97) for index in range(5000)]
    async with connected(machine.network) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(one.send, buffers)
        expected = b"".join(buffers)
        assert await receive(other, len(expected)) == expected
        await one.send([])
        await one.send([b""])


@pytest.mark.parametrize("size", [1, 1000, 40_000, 1_500_000])
async def test_slices_follow_their_header(machine, size):
    """Few bytes and many: the header, then each slice's bytes."""
    data = random.Random(size).randbytes(size + 300)
    machine.segment.file.append([data])
    slices = [FileSlice(machine.segment, 100, size), FileSlice(machine.segment, 0, 100)]
    async with connected(machine.network) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(one.send, [b"header", *slices])
        expected = b"header" + data[100 : 100 + size] + data[:100]
        assert await receive(other, len(expected)) == expected


@pytest.mark.parametrize("size", [10_000, 40_000, 1_500_000])
@pytest.mark.parametrize("is_half_cached", [False, True])
async def test_what_is_not_cached_is_read_by_a_worker(size, is_half_cached):
    """The loop waits for no disk, whatever the size of a slice, and be its first bytes cached."""
    files = SimulatedFiles(random.Random(1))
    files.make_dir(PurePath("/data"))
    file = files.open(PurePath("/data/segment"), create=True)
    data = random.Random(size).randbytes(size)
    file.append([data])
    part = FileSlice(Segment(file), 0, size)
    files.evict()
    if is_half_cached:
        file.read(0, size // 2)
    files.read_s, files.stalled_s = 1.0, 0.0
    workers = 0

    async def read_in_worker(function):
        nonlocal workers
        workers += 1
        return files.run_in_worker(function)[0]

    async with connected(TcpNetwork(read_in_worker)) as (one, other):
        assert [*one.send_now([b"header", part])] == [b"header", part]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, [b"header", part])
            assert await receive(other, size + 6) == b"header" + data
    assert workers > 0
    assert files.stalled_s == 0


@pytest.mark.parametrize("size", [1000, 1_500_000])
async def test_a_stale_slice_is_not_sent(machine, size):
    """After the log was cut no byte of the slice goes out, however many there are."""
    machine.segment.file.append([bytes(size)])
    part = FileSlice(machine.segment, 0, size)
    machine.segment.generation += 1
    async with connected(machine.network) as (one, other):
        with pytest.raises(StaleSlice):
            await one.send([b"header", part])
        one.close()
        assert await receive(other, size) in (b"", b"header")


async def test_a_log_cut_while_its_slice_is_sent_ends_the_sending(machine):
    """A slice that turns stale behind a slow reader raises `StaleSlice`, never other bytes."""
    size = 32 * 1024 * 1024
    machine.segment.file.append([bytes(size)])
    outcome = []

    async def send(stream: Stream) -> None:
        with pytest.raises(StaleSlice):
            await stream.send([b"", FileSlice(machine.segment, 0, size)])
        outcome.append("stale")
        stream.close()

    async with connected(machine.network) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(send, one)
        await receive(other, 1)
        await wait_all_tasks_blocked(0.02)
        machine.segment.generation += 1
        machine.segment.file.truncate(0)
        machine.segment.file.append([b"\xff" * size])
        rest = await receive(other, size)
        assert outcome == ["stale"]
        assert not rest.strip(b"\0")


async def test_a_peer_that_does_not_read_blocks_the_sender(machine):
    """What a stream holds on its own is bounded; the rest waits with who sends it."""
    data = [bytes(64 * 1024 * 1024)]
    done = trio.Event()

    async def send(stream: Stream) -> None:
        await stream.send(data)
        done.set()

    async with connected(machine.network) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(send, one)
        await wait_all_tasks_blocked(0.02)
        assert not done.is_set()
        buffer = memoryview(bytearray(1024 * 1024))
        left = len(data[0])
        while left:
            left -= await other.receive_into(buffer)
        await done.wait()


async def test_connections_may_share_one_buffer(machine):
    """Between the arrival of bytes and the return of `receive_into` nothing else runs."""
    shared = memoryview(bytearray(1024))
    listener = await machine.network.listen(ANY_PORT)

    async def send(stream: Stream, mark: int) -> None:
        for _ in range(50):
            await stream.send([bytes([mark]) * 100])
        stream.close()

    async def check(stream: Stream, mark: int) -> None:
        while count := await stream.receive_into(shared):
            assert bytes(shared[:count]) == bytes([mark]) * count
        stream.close()

    async with trio.open_nursery() as nursery:
        for mark in range(8):
            nursery.start_soon(send, await machine.network.connect(listener.endpoint), mark)
            nursery.start_soon(check, await listener.accept(), mark)
    listener.close()


async def test_receiving_and_sending_let_others_run(machine):
    """Both are checkpoints even where there is nothing to wait for."""
    async with connected(machine.network) as (one, other):
        with assert_checkpoints():
            await one.send([b"abcdef"])
        await receive(other, 1)
        with assert_checkpoints():
            await receive(other, 1)


async def test_a_cancelled_receive_takes_no_bytes(machine):
    """Bytes are taken behind the last point where a wait can be cancelled."""
    async with connected(machine.network) as (one, other):
        await one.send([b"abc"])
        with trio.CancelScope() as scope:
            scope.cancel()
            await receive(other, 3)
        assert scope.cancelled_caught
        assert await receive(other, 3) == b"abc"


async def test_closing_wakes_who_waits(machine):
    """Waiting for bytes, for room or for a connection ends when its own side closes."""
    listener = await machine.network.listen(ANY_PORT)

    async def expect_closed(function, *arguments) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await function(*arguments)

    async with connected(machine.network) as (one, _other), trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed, one.receive_into, memoryview(bytearray(1)))
        nursery.start_soon(expect_closed, one.send, [bytes(64 * 1024 * 1024)])
        nursery.start_soon(expect_closed, listener.accept)
        await wait_all_tasks_blocked(0.02)
        one.close()
        listener.close()


async def test_what_is_closed_stays_closed(machine):
    """Use after `close` is an error that says so."""
    listener = await machine.network.listen(ANY_PORT)
    listener.close()
    async with connected(machine.network) as (one, _):
        one.close()
        with pytest.raises(trio.ClosedResourceError):
            await one.send([b"a"])
        with pytest.raises(trio.ClosedResourceError):
            await one.receive_into(memoryview(bytearray(1)))
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()


async def test_sending_to_who_has_closed_breaks(machine):
    """The sender learns it, if not with the first bytes."""

    async def send_on(stream: Stream) -> None:
        while True:
            await stream.send([bytes(1000)])

    async with connected(machine.network) as (one, other):
        other.close()
        with pytest.raises(trio.BrokenResourceError):
            await send_on(one)


async def test_a_taken_port_is_refused(machine):
    """Listening twice on a port is an `OSError` whose text names the address."""
    listener = await machine.network.listen(ANY_PORT)
    with pytest.raises(OSError, match=str(listener.endpoint)) as caught:
        await machine.network.listen(listener.endpoint)
    assert caught.value.errno == errno.EADDRINUSE
    listener.close()
    again = await machine.network.listen(listener.endpoint)
    again.close()


async def test_nobody_listening_is_refused(machine):
    """Connecting to a free port is an `OSError` whose text names the address."""
    listener = await machine.network.listen(ANY_PORT)
    listener.close()
    with pytest.raises(OSError, match=str(listener.endpoint)) as caught:
        await machine.network.connect(listener.endpoint)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_what_can_be_sent_is_sent_without_waiting(machine):
    """`send_now` sends at once, hands back what the connection does not take, and never raises."""
    machine.segment.file.append([b"0123456789"])
    part, stale = FileSlice(machine.segment, 2, 3), FileSlice(machine.segment, 0, 1)
    async with connected(machine.network) as (one, other):
        assert not one.send_now([b"ab", part, memoryview(b"cd")])
        assert await receive(other, 7) == b"ab234cd"
        machine.segment.generation += 1
        assert one.send_now([b"ab", stale]) == [b"ab", stale]
        whole = bytes(range(256)) * 256 * 256
        rest = one.send_now([whole])
        assert 0 < sum(map(len, rest)) < len(whole)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, rest)
            assert await receive(other, len(whole)) == whole
        one.close()
        assert one.send_now([b"x"]) == [b"x"]
