"""Frames of Kafka's wire that nobody sent: nothing but `ProtocolError` comes out of them.

`make soak` runs a million of them; a failure names the seed, and
`pytest tests/unit/kafka/test_fuzz.py` with that seed in `SEEDS` repeats it.
"""

import random
import struct
import tracemalloc
from contextlib import suppress

import pytest

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.apis import API_VERSIONS
from minibroker.protocol.kafka.codec import encode
from minibroker.protocol.kafka.wire import decode_request
from tests.unit.kafka.values import value_of

SEEDS = range(5_000)
SOAK_SEEDS = range(1_000_000)
MEMORY_BYTES_MAX = 32 * 1024 * 1024
LENGTHS = (0, 1, -1, -2, 2**15 - 1, 2**31 - 1, -(2**31))


def request_frame(rng: random.Random) -> bytes:
    """A request with random values."""
    api = rng.choice([one.api for one in ADAPTERS.values()])
    version = rng.randint(api.first, api.last)
    is_flexible = api.is_flexible(version)
    header = struct.pack(">hhih3s", api.key, version, rng.randrange(2**31), 3, b"abc")
    value = value_of(api.request, version, rng)
    body = b"".join(encode(api.request, version, value, is_flexible=is_flexible))
    return header + b"\0" * is_flexible + body


def harmed(rng: random.Random, frame: bytes) -> bytes:
    """The frame with up to four changes."""
    data = bytearray(frame)
    for _ in range(rng.randint(0, 4)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[position : position + 1] = rng.randbytes(1)
            case 1:
                del data[position : position + rng.randint(1, 8)]
            case 2:
                data[position:position] = rng.randbytes(rng.randint(1, 8))
            case 3:
                data[position : position + 4] = struct.pack(">i", rng.choice(LENGTHS))
            case 4:
                del data[position:]
    return bytes(data)


def decode_seed(seed: int) -> bool:
    """Decode the frame of a seed; whether it was a request."""
    rng = random.Random(seed)
    frame = harmed(rng, request_frame(rng)) if seed % 10 else rng.randbytes(rng.randrange(200))
    try:
        envelope, encoder = decode_request(memoryview(frame))
    except ProtocolError:
        return False
    except BaseException as error:
        error.add_note(f"seed {seed}, frame {frame.hex()}")
        raise
    assert callable(encoder.encode)
    return envelope.message is not None


def test_mutated_frames_are_requests_or_refused() -> None:
    """Both outcomes occur, and no third."""
    outcomes = [decode_seed(seed) for seed in SEEDS]
    assert min(outcomes.count(True), outcomes.count(False)) > len(SEEDS) // 10


@pytest.mark.soak
def test_a_million_mutated_frames() -> None:
    """As above."""
    for seed in SOAK_SEEDS:
        decode_seed(seed)


@pytest.mark.parametrize("api", [one.api for one in ADAPTERS.values()], ids=lambda api: api.name)
def test_a_frame_of_lies_takes_no_memory(api) -> None:
    """Each length in turn claims as much as it can, in a large frame of zeros."""
    rng = random.Random(api.key)
    is_flexible = api.is_flexible(api.last)
    value = value_of(api.request, api.last, rng)
    body = b"".join(encode(api.request, api.last, value, is_flexible=is_flexible))
    header = struct.pack(">hhih", api.key, api.last, 1, -1) + b"\0" * is_flexible
    tracemalloc.start()
    try:
        for position in range(max(1, len(body) - 3)):
            lying = body[:position] + b"\x7f\xff\xff\xff" + bytes(1_000_000)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(ProtocolError):  # what is behind the last field is ignored
                decode_request(memoryview(header + lying))
            assert tracemalloc.get_traced_memory()[1] - before < MEMORY_BYTES_MAX
            if position > 200:
                break
    finally:
        tracemalloc.stop()
    assert api.key != API_VERSIONS.key or is_flexible
