"""Batches read in runs, against a reader that takes one byte after the other."""

import random
from contextlib import suppress

import pytest

from minibroker.protocol.records.batch import InvalidBatch, read_header
from minibroker.protocol.records.columns import Columns, decode_columns, decode_keys
from minibroker.protocol.records.record import decode_records, encode_batch
from minibroker.protocol.records.varint import decode_varint, encode_varint

HEADER_BYTES = 61
TIME = 1_700_000_000_000


def read_naively(data: bytes, count: int) -> list[tuple]:
    """(offset delta, time delta, key, value, headers) of each record; refuses by an exception."""
    rows, at, last = [], 0, -1

    def number(bytes_max: int = 5) -> int:
        nonlocal at
        found, at = decode_varint(data, at, bytes_max)
        return found

    def content() -> bytes | None:
        nonlocal at
        size = number()
        if size < 0:
            assert size == -1
            return None
        at += size
        return data[at - size : at]

    for _ in range(count):
        size = number()
        end = at + size
        at += 1
        time, delta = number(10), number()
        assert delta > last
        last = delta
        key, value = content(), content()
        headers = []
        for _ in range(number_of_headers := number()):
            name = content()
            assert name is not None
            headers.append((name.decode(), content()))
        assert number_of_headers >= 0
        assert at == end <= len(data)
        rows.append((delta, time, key, value, headers))
    assert at == len(data)
    return rows


def encode_naively(rows: list[tuple]) -> bytes:
    """What `read_naively` reads; the way back does not care what makes sense."""
    out = b""
    for delta, time, key, value, headers in rows:
        body = b"\x00" + encode_varint(time) + encode_varint(delta)
        for content in (key, value):
            body += encode_varint(-1 if content is None else len(content)) + (content or b"")
        body += encode_varint(len(headers))
        for name, content in headers:
            body += encode_varint(len(name)) + name.encode()
            body += encode_varint(len(content)) + content
        out += encode_varint(len(body)) + body
    return out


def draw_rows(rng: random.Random) -> list[tuple]:
    """Some runs of records of one shape, with something unusual between them."""
    rows: list[tuple] = []
    delta = 0
    while len(rows) < 200:
        key_size, value_size = rng.choice((None, 0, 3, 70)), rng.choice((None, 0, 3, 80))
        headers = [("h", b"x")] if rng.random() < 0.1 else []
        time = rng.choice((0, 0, 5, 200, 20_000, -3))
        for _ in range(rng.choice((1, 5, 12, 90))):
            time += rng.choice((0, 0, 0, 1))
            key = None if key_size is None else rng.randbytes(key_size)
            value = None if value_size is None else rng.randbytes(value_size)
            rows.append((delta, time, key, value, headers))
            delta += 1
        delta += rng.choice((0, 0, 0, 0, 1))
    return rows


def batch_with(body: bytes, count: int, span: int) -> bytes:
    """A batch that holds these bytes and claims `count` records over `span` offsets."""
    head = bytearray(encode_batch([(TIME, None, b"", ())])[:HEADER_BYTES])
    head[8:12] = (len(body) + HEADER_BYTES - 12).to_bytes(4, "big")
    head[23:27] = (span - 1).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    return bytes(head) + body


def check(body: bytes, count: int) -> None:
    """Reading finds what the naive reader finds, or refuses what that refuses."""
    batch = batch_with(body, count, 2**31 - 1)
    try:
        expected = read_naively(body, count)
    except (AssertionError, ValueError, IndexError):
        with pytest.raises(InvalidBatch):
            decode_columns(batch, read_header(batch))
        with suppress(InvalidBatch):  # the damage may be in what it passes over
            decode_keys(batch, read_header(batch))
        return
    columns = decode_columns(batch, read_header(batch))
    assert decode_keys(batch, read_header(batch)) == (columns.offsets, columns.keys)
    assert [list(row[:4]) for row in zip(*columns, strict=True)] == [
        [delta, TIME + time, key, value] for delta, time, key, value, _ in expected
    ]
    assert [list(headers) for headers in columns.headers] == [row[4] for row in expected]


@pytest.mark.parametrize("seed", range(300))
def test_runs_are_read_as_one_by_one(seed: int) -> None:
    """Whatever is damaged, a batch gives the records that a naive reader finds, or is refused."""
    rng = random.Random(seed)
    rows = draw_rows(rng)
    body = bytearray(encode_naively(rows))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.randrange(len(body))
        body[at] = rng.choice((0, 1, 2, 0x7F, 0x80, body[at] ^ 1, (body[at] + 2) % 256))
    check(bytes(body), len(rows))


@pytest.mark.parametrize("time", [0, 200, 20_000])
@pytest.mark.parametrize("key", [None, b"ke"])
@pytest.mark.parametrize("before", [0, 64])
def test_each_byte_of_a_run_counts(time: int, key: bytes | None, before: int) -> None:
    """Any one byte may be wrong, in records with offsets and times of one byte and of more."""
    first = [(delta, 0, None, b"", []) for delta in range(before)]
    rows = [(delta, time, key, b"v", []) for delta in range(before, before + 14)]
    head, body = encode_naively(first), encode_naively(rows)
    for at in range(len(body)):
        for damaged in {0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFF, body[at] ^ 2}:
            check(head + body[:at] + bytes([damaged]) + body[at + 1 :], before + 14)


@pytest.mark.parametrize("gap", range(12))
def test_offsets_may_not_step_back_into_a_run(gap: int) -> None:
    """Offsets that count up again behind one too large are refused, not taken for a run."""
    rows = [(delta, 0, None, b"v", []) for delta in range(30)]
    rows[gap] = (20, 0, None, b"v", [])
    check(encode_naively(rows), 30)


@pytest.mark.parametrize(("key", "value"), [(None, b"v" * 100), (b"k" * 70, b""), (b"", b"v")])
def test_a_long_run_keeps_what_differs(key: bytes | None, value: bytes) -> None:
    """Offsets of one, two and three bytes, times of one, two and three: nothing is mixed up."""
    records = [(TIME + number, key, b"%05d" % number + value, ()) for number in range(20_000)]
    batch = encode_batch(records)
    found = decode_records(batch, read_header(batch))
    assert [record.offset for record in found] == list(range(20_000))
    assert [tuple(record[1:]) for record in found] == records


def test_more_records_than_fit_are_refused_before_memory_is_taken() -> None:
    """A header that claims two thousand million records costs nothing."""
    batch = batch_with(encode_naively([(0, 0, None, b"v", [])]), 2**31 - 1, 2**31)
    with pytest.raises(InvalidBatch, match="2147483647 records in 8 bytes"):
        decode_columns(batch, read_header(batch))


def test_the_columns_are_the_fields() -> None:
    """Who wants rows zips the columns."""
    batch = encode_batch([(TIME, b"k", b"v", (("h", b"x"),)), (TIME + 1, None, None, ())])
    assert decode_columns(batch, read_header(batch)) == Columns(
        [0, 1], [TIME, TIME + 1], [b"k", None], [b"v", None], [[("h", b"x")], ()]
    )


@pytest.mark.parametrize(
    ("base", "delta"),
    [
        (TIME, 2**63 - 1),
        (2**63 - 1, 1),
        (2**63 - 1, 200),
        (-(2**63), -1),
        (-TIME, -(2**63)),
        (-(2**63), -200),
    ],
)
@pytest.mark.parametrize("count", [1, 30])
def test_a_time_that_64_bits_do_not_hold_is_no_time(base: int, delta: int, count: int) -> None:
    """Base and delta are sound each by itself, their sum is not: the record has no timestamp."""
    rows = [(number, delta if number else 0, None, b"v", []) for number in range(count + 1)]
    batch = bytearray(batch_with(encode_naively(rows), count + 1, count + 1))
    batch[27:35] = base.to_bytes(8, "big", signed=True)
    found = decode_columns(batch, read_header(batch))
    assert found.timestamps == [base] + [-1] * count
    assert found.values == [b"v"] * (count + 1)


def test_the_largest_times_are_times() -> None:
    """The bounds of 64 bits are inside."""
    for base, delta in ((2**63 - 2, 1), (-(2**63) + 1, -1), (1, 2**63 - 2), (-1, -(2**63) + 1)):
        batch = bytearray(batch_with(encode_naively([(0, delta, None, b"v", [])]), 1, 1))
        batch[27:35] = base.to_bytes(8, "big", signed=True)
        assert decode_columns(batch, read_header(batch)).timestamps == [base + delta]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (encode_naively([(1, 0, b"k", b"v", []), (1, 0, b"l", b"w", [])]), "do not ascend"),
        (encode_naively([(0, 0, b"k", b"v", [])]) + b"x", "behind the last"),
        (b"\x0e" + encode_naively([(0, 0, b"long key", b"v", [])])[1:], "length is wrong"),
        (b"\x14\x00" + b"\x80" * 8, "cut short"),
        (bytes((18, 0, 0, 0, 5, 0, 0, 0, 0, 0)), "a negative length"),
    ],
)
def test_keys_are_not_taken_from_records_that_make_no_sense(body: bytes, message: str) -> None:
    """A key is read only where the lengths of its record fit."""
    batch = batch_with(body, max(1, body.count(b"v") + body.count(b"w")), 100)
    with pytest.raises(InvalidBatch, match=message):
        decode_keys(batch, read_header(batch))


def test_keys_of_more_records_than_fit_are_refused() -> None:
    """Neither more records than the bytes can hold, nor an offset beyond the batch."""
    body = encode_naively([(7, 0, b"k", b"v", [])])
    for count, span in ((1 << 30, 100), (1, 7)):
        batch = batch_with(body, count, span)
        with pytest.raises(InvalidBatch):
            decode_keys(batch, read_header(batch))
