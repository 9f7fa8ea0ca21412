"""What a broker finds in the records of a batch without reading all of them."""

import random
import tracemalloc

import cramjam
import pytest

from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records import producer_check
from minibroker.protocol.records.batch import InvalidBatch, read_header
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.compression import LZ4, UNPACKED_BYTES_MAX, ZSTD, compress
from minibroker.protocol.records.producer_check import Budget, Examined, examine, examine_large
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.records.varint import encode_varint
from tests.unit.records.test_columns import TIME, batch_with, draw_rows, encode_naively

CODECS = range(5)


def flaw(body: bytes, count: int, compression: int = 0, budget: Budget | None = None) -> str:
    """What is found in a batch of these records."""
    batch = bytearray(
        batch_with(compress(compression, body) if compression else body, count, count)
    )
    batch[22] = compression
    return examine(batch, read_header(batch), budget or Budget()).flaw


def records(count: int, **fields: object) -> bytes:
    """Records as a producer writes them; a field may be one for all."""
    row = {"time": 0, "key": None, "value": b"v", "headers": [], **fields}
    return encode_naively([(delta, *row.values()) for delta in range(count)])


@pytest.mark.parametrize("seed", range(60))
def test_what_can_be_decoded_has_no_flaw(seed: int) -> None:
    """Whatever the reader reads is admitted, in each codec."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows = [(delta, *row[1:]) for delta, row in enumerate(draw_rows(rng)[: rng.randrange(1, 200)])]
    assert flaw(encode_naively(rows), len(rows), rng.choice(CODECS)) == ""
    sent = [(TIME + row[1], *row[2:4], row[4]) for row in rows]
    batch = encode_batch(sent, compression=rng.choice(CODECS))
    newest = max(row[0] for row in sent)
    assert examine(batch, read_header(batch), Budget()) == Examined("", newest)


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize(
    ("body", "count", "reason"),
    [
        (b"", 1, "1 records in 0 bytes"),
        (records(1), 1000, "1000 records in"),
        (records(1), 2**31 - 1, "2147483647 records in"),
        (records(1000), 1, "behind the last of 1 records"),
        (records(1000), 999, "behind the last of 999 records"),
        (records(999), 1000, "cut short"),
        (records(2)[::-1], 2, ""),
        (encode_naively([(1, 0, None, b"a", []), (0, 0, None, b"b", [])]), 2, "offset delta 1"),
        (encode_naively([(0, 0, None, b"a", []), (77, 0, None, b"b", [])]), 2, "offset delta 77"),
        (b"\x7e" + records(1)[1:], 1, "length is wrong"),
        (b"\x12\x00\x00\x00\x03\x02v\x00\x00\x00", 1, "negative length"),
        (b"\x12\x00\x00\x00\x01\x03v\x00\x00\x00", 1, "negative length"),
        (b"\xff" * 9 + b"\x01" + bytes(8), 1, "varint"),
        (records(1, headers=[])[:-1] + encode_varint(2**30), 1, ""),
        (encode_varint(2**31 - 1) + b"\0\0\0\x01" + encode_varint(2**31 - 1) + b"x", 1, ""),
        (records(1, time=2**63 - 1), 1, "64 bits"),
        (records(3, time=2**63 - 1), 3, "64 bits"),
        (records(1)[:-1] + b"\x02\x04\xff\xfe\x02x", 1, ""),
        (records(5) + b"\x00", 5, "1 bytes behind"),
        (random.Random(1).randbytes(50), 1, ""),
    ],
)
def test_what_no_client_can_decode(compression: int, body: bytes, count: int, reason: str) -> None:
    """The kinds that were seen, and the decoder's own opinion of each."""
    found = flaw(body, count, compression)
    assert found
    assert reason in found
    batch = batch_with(body, count, count)
    if "64 bits" not in reason:
        with pytest.raises(InvalidBatch):
            decode_columns(batch, read_header(batch))


def test_a_header_whose_name_is_no_text() -> None:
    """Names are text on Kafka's wire."""
    named = records(1, headers=[("ab", b"x")])
    assert flaw(named, 1) == ""
    assert "utf-8" in flaw(named.replace(b"ab", b"\xff\xfe"), 1)
    assert "headers in" in flaw(named.replace(b"\x02\x04ab", b"\x7e\x04ab"), 1)


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_what_does_not_unpack(compression: int) -> None:
    """Garbage, and a block that is cut."""
    packed = compress(compression, records(1000))
    for body in (random.Random(1).randbytes(60), packed[:-5], packed[: len(packed) // 2]):
        batch = bytearray(batch_with(body, 1000, 1000))
        batch[22] = compression
        assert examine(batch, read_header(batch), Budget()).flaw


def test_the_last_record_is_found_at_once_or_by_walking() -> None:
    """By its first bytes if it has the largest time; else by the lengths, within the budget."""
    for times, walked in (([0] * 300, 0), ([*range(300)], 0), ([*range(300, 0, -1)], 300)):
        for value in (b"", b"v" * 100, bytes(40), bytes(20_000)):
            sent = [(TIME + each, None, value, ()) for each in times]
            batch, budget = encode_batch(sent), Budget()
            assert examine(batch, read_header(batch), budget) == Examined("", TIME + max(times))
            assert producer_check.WALKED_RECORDS - budget.records == walked
            cut = read_header(batch)._replace(record_count=299, last_offset_delta=298)
            assert examine(batch, cut, Budget()).flaw


@pytest.mark.parametrize("claimed", [-1, 0, TIME - 1, TIME + 31_536_000_000])
@pytest.mark.parametrize("compression", [0, ZSTD])
@pytest.mark.parametrize("times", [[0], [0, 0], [*range(300)], [3, 9, 5], [9, 3, 5], [5, 3, 9]])
def test_the_largest_time_is_that_of_the_records(
    times: list[int], compression: int, claimed: int
) -> None:
    """Whatever the header says: -1 and 0 are what clients were seen to leave there."""
    sent = [(TIME + each, None, b"v", ()) for each in times]
    batch = encode_batch(sent, compression=compression)
    header = read_header(batch)
    assert examine(batch, header, Budget()) == Examined("", TIME + max(times))
    false = header._replace(max_timestamp=claimed)
    assert examine(batch, false, Budget()) == Examined("", TIME + max(times))


def test_a_first_record_later_than_the_header_is_noticed() -> None:
    """The last record has the time that the header claims, and the first one a later time."""
    batch = encode_batch([(TIME + each, None, b"v", ()) for each in (900, 7, 8)])
    header = read_header(batch)._replace(max_timestamp=TIME + 8)
    assert examine(batch, header, Budget()).max_timestamp == TIME + 900


def test_a_time_of_more_than_64_bits_in_the_middle() -> None:
    """It cannot be the batch's largest."""
    body = encode_naively(
        [(0, 5, None, b"", []), (1, 2**63 - 1, None, b"", []), (2, 4, None, b"", [])]
    )
    assert "64 bits" in flaw(body, 3)


def test_the_budget_of_a_request() -> None:
    """What is beyond it is not looked into: neither a bomb nor many small batches cost more."""
    bomb = bytes(cramjam.zstd.compress(bytes(20_000_000)))
    batch = bytearray(batch_with(bomb, 1, 1))
    batch[22] = ZSTD
    budget = Budget()
    tracemalloc.start()
    assert examine(batch, read_header(batch), budget) == Examined(is_unpacked=False)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert budget.bytes == 0
    assert flaw(b"nonsense", 1, LZ4, budget) == ""
    budget = Budget(unpacked=25_000, records=100)
    for _ in range(3):
        assert flaw(records(1000), 1000, ZSTD, budget) == ""
    assert budget.bytes == 25_000 - 3 * len(records(1000)) or budget.bytes <= 0
    falling = encode_naively([(delta, -delta, None, b"v", []) for delta in range(101)])
    assert flaw(falling[:-1], 101, 0, budget) == ""  # a walk of 101 records is not in it
    assert flaw(falling[:-1], 101)


def test_a_large_batch_is_examined_whole() -> None:
    """What no budget holds a worker looks into, up to what a reader takes."""
    body = bytes(encode_batch([(TIME, None, bytes(1000), ())] * 10_000)[BATCH_HEADER_BYTES:])
    for packed, count, reason in (
        (body, 10_000, ""),
        (body, 9_999, "behind the last of 9999"),
        (bytes(UNPACKED_BYTES_MAX + 1), 1, "unpack to more than 104857600 bytes"),
        (bytes(20_000_000), 1, "length is wrong"),
    ):
        batch = bytearray(batch_with(bytes(cramjam.zstd.compress(packed)), count, count))
        batch[22] = ZSTD
        assert not examine(batch, read_header(batch), Budget()).is_unpacked
        found = examine_large(batch, read_header(batch))
        assert reason in found.flaw
        assert bool(found.flaw) == bool(reason)
        assert found.max_timestamp == (None if reason else TIME)


def test_headers_are_in_the_budget() -> None:
    """A record of half a million headers is not read to its end."""
    few, many = ([(str(number), b"x")] * number for number in (100, 20_000))
    budget = Budget()
    assert flaw(records(2, headers=few), 2, budget=budget) == ""
    assert budget.records == producer_check.WALKED_RECORDS - 800
    assert flaw(records(1, headers=many), 1, budget=budget) == ""
    assert budget.records == producer_check.WALKED_RECORDS - 800
    assert flaw(records(1, headers=few)[:-1], 1)


@pytest.mark.parametrize("compression", CODECS)
def test_a_record_without_a_key_is_found_where_keys_are_needed(compression: int) -> None:
    """Compaction goes by keys: the first record without one is named; an empty key is one."""
    rows = [(delta, 300 * delta, b"" if delta else b"k" * 90, b"v", []) for delta in range(99)]
    keyed = encode_naively(rows)
    rows[57] = (57, 9, None, b"v", [])
    for body, expected in ((keyed, None), (encode_naively(rows), 57)):
        packed = compress(compression, body) if compression else body
        batch = bytearray(batch_with(packed, 99, 99))
        batch[22] = compression
        header = read_header(batch)
        assert examine(batch, header, Budget(), needs_keys=True).keyless == expected
        assert examine_large(batch, header, True).keyless == expected
        assert examine(batch, header, Budget()).keyless is None


def test_keys_beyond_the_budget_are_looked_for_by_a_worker() -> None:
    """A batch with more records than are left of the budget is not said to have keys."""
    batch = batch_with(records(100, key=b"k"), 100, 100)
    header = read_header(batch)
    assert not examine(batch, header, Budget(records=99), needs_keys=True).is_unpacked
    assert examine(batch, header, Budget(records=99)).is_unpacked
