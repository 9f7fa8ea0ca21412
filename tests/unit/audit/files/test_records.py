"""Records of segments: each of a sound batch once, and only those."""

import random

import pyarrow as pa
import pytest

from minibroker.audit.files import records
from minibroker.audit.files.directories import Replica, SegmentFile
from minibroker.audit.files.records import read_records
from minibroker.audit.model import RECORDS
from minibroker.protocol.records import compression
from minibroker.protocol.records.batch import BatchHeader, read_header, stamp, write_header
from minibroker.protocol.records.record import encode_batch

REPLICA = Replica(3, "t", 1)
NONE_TO_ZSTD = range(5)


def make_record(offset: int) -> tuple:
    """Time, key, value and headers of the record at an offset."""
    chance = random.Random(offset)
    key = chance.choice([None, b"", chance.randbytes(5)])
    value = chance.choice([None, b"", chance.randbytes(200)])
    headers = chance.choice([(), (), [("h", b"1"), ("h", None), ("\N{EURO SIGN}", b"")]])
    return 1000 + chance.randrange(100), key, value, headers


def make_batch(base_offset: int, count: int = 10, compression: int = 0) -> bytearray:
    """A batch as it is stored."""
    batch = encode_batch(
        [make_record(base_offset + index) for index in range(count)], compression=compression
    )
    stamp(batch, base_offset, 1)
    return batch


def changed(batch: bytearray, **fields: int) -> bytearray:
    """The batch with other fields in its header and a right CRC."""
    header: BatchHeader = read_header(batch)._replace(**fields)
    write_header(batch, header)
    return batch


def read(path, batches, *offsets: int):
    """The rows of a file of these batches, and in how many tables they came."""
    path.write_bytes(b"".join(batches))
    segment = SegmentFile(path, 0, path.stat().st_size, True)
    tables = list(read_records(REPLICA, segment, *offsets))
    table = pa.Table.from_batches(tables, RECORDS)
    table.validate(full=True)
    return table.to_pylist(), len(tables)


def expected(offsets):
    """The rows of records at these offsets."""
    rows = []
    for offset in offsets:
        time_ms, key, value, headers = make_record(offset)
        rows.append(
            {
                **REPLICA.columns,
                "offset": offset,
                "timestamp": time_ms,
                "key": key,
                "value": value,
                "headers": [{"key": name, "value": content} for name, content in headers],
            }
        )
    return rows


@pytest.mark.parametrize("compression", NONE_TO_ZSTD)
def test_every_record_is_read_back(tmp_path, compression):
    """Offset, time, key, value and headers are what was sent, whatever packed them."""
    batches = [make_batch(offset, compression=compression) for offset in range(0, 200, 10)]
    assert read(tmp_path / "log", batches)[0] == expected(range(200))


def test_offsets_choose(tmp_path):
    """Exactly the records from the first offset to below the second are read."""
    batches = [make_batch(offset) for offset in range(0, 50, 10)]
    for start, end in ((0, 50), (15, 37), (20, 30), (29, 30), (30, 30), (49, 99), (50, 1 << 63)):
        rows, _ = read(tmp_path / "log", batches, start, end)
        assert rows == expected(range(start, min(end, 50)))


def test_only_sound_batches_are_read(tmp_path):
    """Damaged, undecodable and control batches are passed over, the others are all there."""
    wrong = make_batch(10)
    wrong[-1] ^= 1
    torn = make_batch(20)
    torn[16] = 9
    nonsense = changed(make_batch(30), record_count=9)
    control = changed(make_batch(40), attributes=0x20)
    high = make_batch(70)
    stamp(high, (1 << 63) - 1, 1)
    empty = changed(make_batch(80)[:61], record_count=0, batch_length=49)
    odd = [wrong, torn, nonsense, control, high, empty]
    rows, _ = read(tmp_path / "log", [make_batch(0), *odd, make_batch(90), b"torn"])
    assert rows == expected([*range(10), *range(90, 100)])


def test_a_bomb_is_no_records(tmp_path, monkeypatch):
    """A batch that unpacks to more than the limit is unpacked no further, and passed over."""
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 1_000_000)
    bomb = encode_batch([(1000, None, bytes(1_000_001), ())], compression=4)
    stamp(bomb, 10, 1)
    with pytest.raises(records.NoRecords, match="more than 1000000 bytes"):
        records.decode_batch(bytes(bomb))
    rows, _ = read(tmp_path / "log", [make_batch(0), bomb, make_batch(11)])
    assert [row["offset"] for row in rows] == [*range(10), *range(11, 21)]


@pytest.mark.parametrize("base", [(1 << 63) - 1, -1 << 63])
def test_a_time_that_64_bits_do_not_hold_is_no_time(tmp_path, base):
    """The record is there, as for a consumer; only its timestamp is unknown."""
    times = [time for time, *_ in map(make_record, range(10))]
    rows, _ = read(tmp_path / "log", [changed(make_batch(0), base_timestamp=base)])
    sums = [base + time - times[0] for time in times]
    assert [row["timestamp"] for row in rows] == [
        time if -1 << 63 <= time < 1 << 63 else -1 for time in sums
    ]
    assert -1 in [row["timestamp"] for row in rows]


@pytest.mark.parametrize("limit", ["ROWS_MAX", "BYTES_MAX"])
@pytest.mark.parametrize("compression", NONE_TO_ZSTD[:2])
def test_tables_are_small(tmp_path, monkeypatch, limit, compression):
    """Many records come in several tables, by their number or by their bytes."""
    monkeypatch.setattr(records, limit, 10)
    batches = [make_batch(offset, compression=compression) for offset in range(0, 100, 10)]
    rows, count = read(tmp_path / "log", batches)
    assert rows == expected(range(100))
    assert count == 10


def test_what_is_no_file(tmp_path):
    """It has no records."""
    segment = SegmentFile(tmp_path, 0, 100, True)
    assert list(read_records(REPLICA, segment)) == []
