"""Mutated batches: the parsers answer with a value or an InvalidBatch, and with nothing else.

The seed is in the failure's message; the long run draws a new one each time.
"""

import random
import time
from contextlib import suppress

import pytest

from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    ProducerStamp,
    iterate_headers,
    read_header,
    validate_batch,
)
from minibroker.protocol.records.record import Record, decode_records, encode_batch

SEED = 20_240_501
COUNT = 6_000
SOAK_COUNT = 1_000_000
HEADER_BYTES = 61


def make_corpus(rng: random.Random) -> list[bytes]:
    """Valid batches of every shape."""
    corpus = []
    for compression in range(5):
        for count in (1, 3, 70):
            records = [
                (
                    1000 + rng.randint(-5, 500),
                    rng.choice((None, b"key", rng.randbytes(70))),
                    rng.choice((None, b"", b"value" * 9, rng.randbytes(300))),
                    rng.choice(((), (("header", b"x"), ("other", None)))),
                )
                for _ in range(count)
            ]
            producer = ProducerStamp(*rng.choice(((-1, -1, -1), (5, 0, 0))))
            corpus.append(bytes(encode_batch(records, compression=compression, producer=producer)))
    return corpus


def mutate(rng: random.Random, data: bytes) -> bytearray:
    """Flip, overwrite, cut, repeat or grow: one to four times, mostly behind the header."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        low = 0 if rng.random() < 0.3 or len(out) <= HEADER_BYTES else HEADER_BYTES
        at = rng.randrange(low, len(out)) if len(out) > low else 0
        match rng.randrange(6):
            case 0 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del out[at:]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 12))
            case 4:
                del out[at : at + rng.randint(1, 12)]
            case _:
                out[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
    return out


def parse_everything(data: bytearray) -> None:
    """Every parser on the same bytes."""
    with suppress(InvalidBatch):
        assert isinstance(validate_batch(memoryview(data), 1_000_000), BatchHeader)
    with suppress(InvalidBatch):
        assert sum(header.size for _, header in iterate_headers(data)) <= len(data)
    if len(data) < HEADER_BYTES:
        return
    header = read_header(data)
    try:
        records = decode_records(data, header)
    except InvalidBatch:
        return
    assert all(type(record) is Record for record in records)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), "offsets ascend"
    assert all(header.base_offset <= offset <= header.last_offset for offset in offsets)


def fix_length(data: bytearray) -> None:
    """Let the length tell the truth, so that the mutation is met further inside."""
    if len(data) >= HEADER_BYTES:
        data[8:12] = (len(data) - 12).to_bytes(4, "big")


def run(seed: int, count: int) -> None:
    rng = random.Random(seed)
    corpus = make_corpus(rng)
    for number in range(count):
        data = mutate(rng, rng.choice(corpus))
        if rng.random() < 0.7:
            fix_length(data)
        try:
            parse_everything(data)
        except Exception as error:
            error.add_note(f"seed {seed}, input {number}: {data.hex()}")
            raise


def test_mutated_batches_are_values_or_refusals():
    """No input raises anything but InvalidBatch; what is accepted keeps the offsets' order."""
    run(SEED, COUNT)


@pytest.mark.soak
def test_a_million_mutated_batches():
    """The same with a new seed each time; a failure names it."""
    run(time.time_ns(), SOAK_COUNT)
