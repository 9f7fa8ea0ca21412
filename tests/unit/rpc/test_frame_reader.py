"""Received bytes joined into frames (rows NET-01, NET-08)."""

import random
import struct

import pytest

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.rpc.frame_reader import FrameReader

SHARED_BYTES = 1024


def stream_of(frames: list[bytes]) -> bytes:
    """The frames as they travel."""
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)


@pytest.mark.parametrize("seed", range(100))
def test_frames_come_out_as_they_went_in(seed):
    """However the bytes arrive, wherever the reader parks, whoever uses the buffer meanwhile."""
    rng = random.Random(seed)
    sizes = (1, 5, 100, 900, 1019, 1020, 1021, 3000, 9000)
    frames = [rng.randbytes(rng.choice(sizes)) for _ in range(20)]
    stream = stream_of(frames)
    shared = memoryview(bytearray(SHARED_BYTES))
    reader = FrameReader(9000)
    received = []
    while stream:
        space = reader.space(shared)
        shared[:] = rng.randbytes(SHARED_BYTES)
        count = min(len(space), len(stream), rng.choice((1, 3, 500, 2000)))
        space[:count], stream = stream[:count], stream[count:]
        for frame in reader.received(count, shared):
            received.append(bytes(frame))
            if rng.random() < 0.3:
                reader.park()
                shared[:] = rng.randbytes(SHARED_BYTES)
        reader.park()
    assert received == frames
    assert reader.unfinished_size == 0


@pytest.mark.parametrize("length", [0, 101, 2**31, 2**32 - 1])
def test_impossible_lengths_are_refused(length):
    """Empty, too long or negative: an error after the frames before it, and no memory (NET-01)."""
    shared = memoryview(bytearray(SHARED_BYTES))
    reader = FrameReader(100)
    stream = stream_of([b"good"]) + struct.pack(">I", length)
    reader.space(shared)[: len(stream)] = stream
    frames = reader.received(len(stream), shared)
    assert bytes(next(frames)) == b"good"
    with pytest.raises(ProtocolError):
        next(frames)


def test_memory_grows_with_what_arrives():
    """A frame that says it is huge takes at most twice what came of it (NET-01)."""
    shared = memoryview(bytearray(SHARED_BYTES))
    reader = FrameReader(2**30)
    stream = memoryview(struct.pack(">I", 2**30) + bytes(100_000))
    position = 0
    while position < len(stream):
        space = reader.space(shared)
        assert len(space) <= max(SHARED_BYTES, position)
        count = min(len(space), len(stream) - position)
        space[:count] = stream[position : position + count]
        position += count
        assert list(reader.received(count, shared)) == []
        reader.park()
        assert reader.unfinished_size == position


def test_an_idle_reader_holds_nothing():
    """After a whole frame and a park, the shared buffer is free and nothing is kept (NET-08)."""
    buffer = bytearray(SHARED_BYTES)
    reader = FrameReader(100)
    stream = stream_of([b"a", b"b"])
    with memoryview(buffer) as shared:
        reader.space(shared)[: len(stream)] = stream
        assert [bytes(frame) for frame in reader.received(len(stream), shared)] == [b"a", b"b"]
        reader.park()
    buffer.append(0)  # refused while a view lives
