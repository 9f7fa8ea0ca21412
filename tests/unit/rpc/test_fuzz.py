"""Mutated frames: nothing but `ProtocolError` comes out of the wire, and no memory is lost to it.

`make soak` runs a million of them; a failure names the seed and the frame. Whole values of other
types are in `tests/fuzz/`.
"""

import random
import struct
import tracemalloc

import pytest

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.rpc.codec import decode_request, decode_response
from minibroker.protocol.rpc.frame_reader import FrameReader
from tests.unit.rpc.samples import request_frame, requests, response_frame, responses

REQUESTS = [request_frame(envelope) for envelope in requests()]
RESPONSES = [(key, response_frame(9, message)) for key, message in responses()]
INTERESTING = (
    b"\x00\x7f\x80\x90\x9f\xa0\xc0\xc1\xc4\xc6\xca\xcb\xcf\xd3\xd9\xdb\xdc\xdd\xde\xdf\xff"
)
MEMORY_BYTES_MAX = 4 * 1024 * 1024


def mutate(rng: random.Random, frame: bytes) -> bytes:
    """The frame with one to four changes."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[position : position + 1] = bytes([rng.choice(INTERESTING)])
            case 1:
                data[position : position + 1] = rng.randbytes(1)
            case 2:
                del data[position : position + rng.randint(1, 8)]
            case 3:
                data[position:position] = rng.randbytes(rng.randint(1, 8))
            case 4:
                data[position:position] = data[: rng.randint(0, 64)]
            case 5:
                claim = rng.choice((0, 1, 2**16, 2**31, 2**32 - 1))
                data[position : position + 4] = struct.pack(">I", claim)
    return bytes(data)


def decode_any(rng: random.Random) -> bool:
    """Decode one mutated frame; whether it was refused."""
    if rng.random() < 0.6:
        frame = memoryview(mutate(rng, rng.choice(REQUESTS)))
        try:
            decode_request(frame)
        except ProtocolError:
            return True
        return False
    key, answer = rng.choice(RESPONSES)
    try:
        decode_response(memoryview(mutate(rng, answer)), ApiKey(key), 0)
    except ProtocolError:
        return True
    return False


def read_any(rng: random.Random) -> None:
    """Let a reader join a stream of frames with changed bytes."""
    frames = [rng.choice(REQUESTS) for _ in range(3)]
    stream = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    stream = mutate(rng, stream)
    shared = memoryview(bytearray(256))
    reader = FrameReader(4096)
    try:
        while stream:
            space = reader.space(shared)
            count = min(len(space), len(stream), rng.randint(1, 400))
            space[:count], stream = stream[:count], stream[count:]
            for frame in reader.received(count, shared):
                assert 0 < len(frame) <= 4096
            reader.park()
    except ProtocolError:
        pass


def fuzz(seed: int, count: int) -> int:
    """So many mutated frames; how many were refused."""
    rng = random.Random(seed)
    refused = 0
    for _ in range(count):
        refused += decode_any(rng)
        if rng.random() < 0.2:
            read_any(rng)
    return refused


@pytest.mark.parametrize("seed", range(4))
def test_mutated_frames_are_refused_or_understood(seed):
    """A few thousand frames; some must be refused and some not, else the fuzzing is no good."""
    refused = fuzz(seed, 1500)
    assert 300 < refused < 1490


def test_mutated_frames_cost_no_memory():
    """No lying length makes the decoder reserve more than a few megabytes."""
    tracemalloc.start()
    try:
        fuzz(99, 500)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_million_mutated_frames(seed):
    """The same, for long."""
    fuzz(seed, 50_000)
