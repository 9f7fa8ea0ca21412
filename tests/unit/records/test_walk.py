"""The walk over the beginnings of records, against the reader of whole records."""

import random

import pytest

from minibroker.protocol.records.batch import InvalidBatch, read_header
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.walk import iterate_times
from tests.unit.records.test_columns import (
    HEADER_BYTES,
    TIME,
    batch_with,
    draw_rows,
    encode_naively,
)


def walk(batch: bytes) -> list[tuple[int, int]]:
    """Offset and timestamp of all records."""
    return list(iterate_times(memoryview(batch)[HEADER_BYTES:], read_header(batch)))


@pytest.mark.parametrize("seed", range(100))
def test_the_walk_finds_what_the_reader_finds(seed: int) -> None:
    """Of a batch that can be read; of one that cannot, an error or what its beginnings say."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows = draw_rows(rng)
    rows[rng.randrange(len(rows))] = (rows[-1][0] + 9_000, 1 << rng.randrange(62), b"", b"", [])
    rows.sort(key=lambda row: row[0])
    body = bytearray(encode_naively(rows))
    for _ in range(rng.choice((0, 1, 3))):
        body[rng.randrange(len(body))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
    batch = batch_with(bytes(body), len(rows), rows[-1][0] + 1)
    try:
        columns = decode_columns(batch, read_header(batch))
    except InvalidBatch:
        columns = None
    try:
        found = walk(batch)
    except ValueError:
        assert columns is None
        return
    if columns is not None:
        assert found == list(zip(columns.offsets, columns.timestamps, strict=True))


@pytest.mark.parametrize("delta", [0, 63, 64, 8191, 8192, 1 << 20, 1 << 30])
@pytest.mark.parametrize("time", [0, -1, 63, -64, 64, 8191, -8192, 8192, 2**62, -(2**62)])
@pytest.mark.parametrize("value", [0, 100, 10_000, 3_000_000])
def test_numbers_of_all_sizes(delta: int, time: int, value: int) -> None:
    """One byte, two, and more."""
    rows = [(delta, time, None, bytes(value), []), (delta + 1, 0, b"k", None, [])]
    batch = batch_with(encode_naively(rows), 2, delta + 2)
    assert walk(batch) == [(delta, TIME + time), (delta + 1, TIME)]


def test_nothing_is_read_for_a_claim() -> None:
    """A count, a length or a number of headers may claim anything; the body ends where it ends."""
    batch = batch_with(encode_naively([(0, 0, None, b"v", [])]), 2**31 - 1, 2**31)
    with pytest.raises(ValueError, match="cut short"):
        walk(batch)
    for claimed in (bytes.fromhex("feffffff0f") + bytes(40), b"\xff" * 10):
        with pytest.raises(ValueError, match=r"length|large|end"):
            walk(batch_with(claimed, 1, 1))
