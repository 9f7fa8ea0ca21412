"""Segments as rows: sound files give what is in them, and any bytes at all tile into rows."""

import os
import random
import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from minibroker.audit.files import segments
from minibroker.audit.files.directories import Replica, SegmentFile
from minibroker.audit.files.segments import locate_batches, scan_segment
from minibroker.audit.model import BATCHES
from minibroker.protocol.records.batch import iterate_headers, read_header, write_header
from minibroker.protocol.records.control import EndMarker, encode_end_marker
from tests.unit.log.workbench import stored

REPLICA = Replica(3, "t", 1)
BASE = 40
SIZES = [1, 3, 200, 7, 900, 40, 2, 61, 18, 5000, 1, 1, 330]


def make_batches(sizes=SIZES, base=BASE) -> list[bytes]:
    """Batches end to end; the values of a batch have one of the sizes."""
    batches, offset = [], base
    for index, size in enumerate(sizes):
        count = 1 + index % 4
        value = random.Random(size).randbytes(size)
        batches.append(
            stored(offset, count, epoch=index // 5, value=value, producer=(9, 1, offset))
        )
        offset += count
    return batches


def read_file(path, content: bytes, listed: int | None = None, rows_max: int = 8192):
    """The rows of a file with this content; `listed` is the size that it was listed with."""
    path.write_bytes(content)
    segment = SegmentFile(path, BASE, len(content) if listed is None else listed, True)
    table = pa.Table.from_batches(scan_segment(REPLICA, segment, rows_max), BATCHES)
    table.validate(full=True)
    rows = table.to_pylist()
    assert all((row["broker"], row["topic"], row["partition"]) == REPLICA for row in rows)
    assert all(row["segment"] == BASE for row in rows)
    assert_tiled(rows, segment.size)
    for row in rows:
        header = {row[name] for name in BATCHES.names[6:17] if name not in ("torn", "problem")}
        assert row["torn"] == (header == {None}) == (row["problem"] is not None)
    return rows


def assert_tiled(rows, size: int) -> None:
    """Every byte of a file is in exactly one row."""
    assert sum(row["size"] for row in rows) == size
    assert all(row["position"] == 0 for row in rows[:1])
    for row, after in pairwise(rows):
        assert row["position"] + row["size"] == after["position"]


def is_right(row) -> bool:
    """Whether a row is a batch that is as it was made."""
    return not row["torn"] and row["crc_stored"] == row["crc_computed"]


def marks(rows) -> str:
    """A letter a row: a batch, one with a wrong CRC, torn."""
    return "".join("T" if row["torn"] else "." if is_right(row) else "x" for row in rows)


def test_a_row_says_what_the_header_says(tmp_path):
    """Every column of a sound batch is that of its header, CRC and identity those of its bytes."""
    content = b"".join(make_batches())
    rows = read_file(tmp_path / "log", content)
    assert len(rows) == len(SIZES)
    for row, (position, header) in zip(rows, iterate_headers(memoryview(content)), strict=True):
        batch = content[position : position + header.size]
        identity = int.from_bytes(xxh3_64_intdigest(batch[16:]).to_bytes(8), signed=True)
        # Fields of the same name, then those that are called or made otherwise.
        same = {name: value for name, value in header._asdict().items() if name in row}
        assert row == {
            **REPLICA.columns,
            **same,
            "segment": BASE,
            "position": position,
            "size": header.size,
            "last_offset": header.last_offset,
            "count": header.record_count,
            "crc_stored": header.crc,
            "crc_computed": crc32c(batch[21:]),
            "identity": identity,
            "torn": False,
            "problem": None,
            "marker": None,
        }


@pytest.mark.parametrize("window", [200, 300, 1 << 20])
@pytest.mark.parametrize("rows_max", [1, 3, 8192])
def test_a_control_batch_has_the_type_of_its_marker(tmp_path, monkeypatch, window, rows_max):
    """Wherever a window or a table ends. Another type of control record is none."""
    monkeypatch.setattr(segments, "WINDOW_BYTES", window)
    kinds = [None, 1, 0, 0, None, 1, None, None, 0, 1, 1]
    batches = []
    for at, kind in enumerate(kinds):
        batch = bytearray(stored(at))
        if kind is not None:
            batch = encode_end_marker(EndMarker(kind == 1, 7), 5, 3, 1000)
        write_header(batch, read_header(batch)._replace(base_offset=at))
        batches.append(bytes(batch))
    of_other_type = bytearray(batches[1])
    kind_at = of_other_type.rindex(struct.pack(">hh", 0, 1))
    of_other_type[kind_at : kind_at + 4] = struct.pack(">hh", 0, 2)
    write_header(of_other_type, read_header(of_other_type))
    content = b"".join([*batches, bytes(of_other_type), b"tail", *batches])
    rows = read_file(tmp_path / "log", content, rows_max=rows_max)
    assert [row["marker"] for row in rows] == [*kinds, None, None, *kinds]


def test_the_identity_is_of_what_a_producer_sent(tmp_path):
    """Copies at another offset and epoch have one identity, another content has another."""
    batches = [stored(40, epoch=1), stored(90, epoch=2), stored(41, epoch=1, value=b"w")]
    first, copy, other = read_file(tmp_path / "log", b"".join(batches))
    assert first["identity"] == copy["identity"] != other["identity"]


@pytest.mark.parametrize("window", [61, 62, 200, 1000, 1 << 20])
@pytest.mark.parametrize("rows_max", [1, 4, 8192])
def test_windows_do_not_show(tmp_path, monkeypatch, window, rows_max):
    """Rows are the same for every size of window, also where no batch fits into one."""
    content = bytearray(b"".join([*make_batches(), bytes(500), *make_batches(base=100), b"tail"]))
    content[700] ^= 1
    content[len(b"".join(make_batches())) - 1] ^= 1
    whole = read_file(tmp_path / "log", content)
    monkeypatch.setattr(segments, "WINDOW_BYTES", window)
    assert read_file(tmp_path / "log", content, rows_max=rows_max) == whole


def test_tables_are_of_about_the_size_that_was_asked_for(tmp_path):
    """A file of many batches comes in several tables."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(stored(offset) for offset in range(40_000)))
    segment = SegmentFile(path, 0, path.stat().st_size, True)
    sizes = [table.num_rows for table in scan_segment(REPLICA, segment, 10_000)]
    assert sum(sizes) == 40_000
    assert min(sizes[:-1]) >= 10_000
    assert max(sizes) < 10_000 + segments.WINDOW_BYTES // len(stored(0))


def test_a_flipped_byte_leaves_a_row(tmp_path):
    """A batch with a wrong CRC, at either end too, is a row that says so, and no other is hurt."""
    batches = make_batches()
    for index in range(len(batches)):
        changed = [bytearray(batch) for batch in batches]
        changed[index][-1] ^= 1
        expected = ["."] * len(batches)
        expected[index] = "x"
        assert marks(read_file(tmp_path / "log", b"".join(changed))) == "".join(expected)


@pytest.mark.parametrize("at", [*range(8, 12), 16])
def test_a_batch_that_leads_nowhere(tmp_path, at):
    """With a wrong length or format exactly that batch is torn: the next is found by its CRC."""
    batches = [bytearray(batch) for batch in make_batches()]
    batches[4][at] ^= 0x21
    rows = read_file(tmp_path / "log", b"".join(batches))
    assert marks(rows) == "....T........"
    assert rows[4]["size"] == len(batches[4])


def test_offset_and_epoch_are_outside_the_crc(tmp_path):
    """A flipped base offset or epoch is what the row says, and nothing else changes."""
    batches = [bytearray(batch) for batch in make_batches()]
    before = read_file(tmp_path / "log", b"".join(batches))
    batches[2][1] ^= 1
    batches[2][15] ^= 4
    after = read_file(tmp_path / "log", b"".join(batches))
    changed = [name for name in BATCHES.names if before[2][name] != after[2][name]]
    assert changed == ["base_offset", "last_offset", "leader_epoch"]
    assert before[2]["base_offset"] ^ after[2]["base_offset"] == 1 << 48
    del before[2], after[2]
    assert before == after


@pytest.mark.parametrize("size", [1, 16, 17, 60, 61, 62, 300, 3 << 20])
@pytest.mark.parametrize("kind", ["zeros", "twos", "small numbers", "random", "text"])
def test_bytes_between_batches(tmp_path, size, kind):
    """Whatever lies between batches is one torn row, and all batches behind it are found."""
    garbage = {
        "zeros": bytes(size),
        "twos": b"\2" * size,
        "small numbers": (b"\0\0\0\2" * size)[:size],
        "random": random.Random(size).randbytes(size),
        "text": (b"not of here. " * size)[:size],
    }[kind]
    front, back = make_batches(), make_batches(base=200)
    rows = read_file(tmp_path / "log", b"".join([*front, garbage, *back]))
    assert marks(rows) == "." * len(front) + "T" + "." * len(back)
    assert rows[len(front)]["size"] == size


@pytest.mark.parametrize("unit", [b"\2", b"\0\0\0\2", b"\0\2", b"\0", b"\0\0\0\0\0\0\0\2"])
def test_a_large_foreign_file(tmp_path, unit):
    """A file without a batch is one torn row, however much its bytes look like headers."""
    content = unit * ((40 << 20) // len(unit))
    [row] = read_file(tmp_path / "log", content)
    assert row["torn"]


def test_a_search_gives_up(tmp_path, monkeypatch):
    """Headers whose checksums are all wrong cost a bounded amount of reading."""
    front = make_batches()
    header = bytearray(stored(0))[:61]
    header[8:12] = (1 << 20).to_bytes(4)
    bad = b"".join(b"\0" + header for _ in range(2000))
    content = b"".join([*front, bad, bytes(2 << 20), *front])
    monkeypatch.setattr(segments, "SEARCH_BYTES_MAX", 20 << 20)
    assert marks(read_file(tmp_path / "log", content)) == "." * len(front) + "T"


def test_a_search_among_many_headers(tmp_path):
    """The next batch is found behind thousands of headers that are of none."""
    header = bytearray(stored(0))[:61]
    header[8:12] = (49).to_bytes(4)
    long = header.copy()
    long[8:12] = (900_000).to_bytes(4)
    bad = b"".join(b"\0" + header for _ in range(10_000))
    batches = [*make_batches(), stored(900, value=bytes(600_000))]
    rows = read_file(tmp_path / "log", b"".join([b"\0", long, bad, *batches]))
    assert marks(rows) == "T" + "." * len(batches)


@pytest.mark.parametrize("kept", [1, 16, 17, 60, 61, 62, 5000])
def test_a_torn_tail(tmp_path, kept):
    """A last batch that is not whole is torn, at whichever byte it ends."""
    batches = make_batches()
    torn = stored(500, value=bytes(6000))[:kept]
    rows = read_file(tmp_path / "log", b"".join([*batches, torn]))
    assert marks(rows) == "." * len(batches) + "T"
    assert rows[-1]["size"] == kept


def test_a_wrong_batch_before_a_torn_tail(tmp_path):
    """A wrong CRC and a length that leads to no batch: both are one torn row."""
    batches = make_batches()
    wrong = bytearray(stored(500))
    wrong[-1] ^= 1
    rows = read_file(tmp_path / "log", b"".join([*batches, wrong, b"tail"]))
    assert marks(rows) == "." * len(batches) + "T"
    assert rows[-1]["problem"] == "its checksum is wrong, and it leads to no batch"


def test_offsets_at_the_end_of_numbers(tmp_path):
    """A last offset that 64 bits do not hold is the nearest that they hold."""
    batch = bytearray(stored(0, 5))
    batch[:8] = b"\x7f" + b"\xff" * 7
    [row] = read_file(tmp_path / "log", batch)
    assert (row["base_offset"], row["last_offset"]) == ((1 << 63) - 1, (1 << 63) - 1)
    batch[:8] = b"\x80" + bytes(7)
    batch[23:27] = b"\xff" * 4
    [row] = read_file(tmp_path / "log", batch)
    assert (row["base_offset"], row["last_offset"]) == (-1 << 63, -1 << 63)


def test_an_empty_file(tmp_path):
    """It has no rows."""
    assert read_file(tmp_path / "log", b"") == []


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "link", "error"])
def test_what_is_no_file(tmp_path, kind):
    """It is one torn row of the size that was listed, with the reason."""
    path = tmp_path / "log"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("log")
    elif kind == "error":
        path.symlink_to("/proc/self/mem")  # a file whose first bytes cannot be read
    for size in (0, 700) if kind != "error" else (700,):
        [table] = scan_segment(REPLICA, SegmentFile(path, BASE, size, True))
        [row] = table.to_pylist()
        assert (row["torn"], row["position"], row["size"]) == (True, 0, size)
        assert row["problem"].startswith("unreadable: ")


def test_a_file_that_grew_or_shrank(tmp_path):
    """What came after the listing is not read, what went is a torn row."""
    content = b"".join(make_batches())
    assert read_file(tmp_path / "log", content + b"more", len(content)) == read_file(
        tmp_path / "log", content
    )
    rows = read_file(tmp_path / "log", content, len(content) + 900)
    assert marks(rows) == "." * len(SIZES) + "T"
    assert rows[-1]["problem"].startswith("gone: ")


@pytest.mark.parametrize(("value_bytes", "count"), [(3000, 2000), (3 << 20, 3)])
def test_a_file_cut_while_it_is_read(tmp_path, value_bytes, count):
    """A live broker may cut a file under a reader: what was there is rows, the rest is torn."""
    path = tmp_path / "log"
    path.write_bytes(stored(0, value=bytes(value_bytes)) * count)
    size = path.stat().st_size
    tables = scan_segment(REPLICA, SegmentFile(path, 0, size, True), rows_max=1)
    rows = next(tables).to_pylist()
    os.truncate(path, size // 2)
    for table in tables:
        rows += table.to_pylist()
    assert_tiled(rows, size)
    assert rows[-1]["problem"].startswith("gone: ")
    assert set(marks(rows).rstrip("T")) == {"."}


def test_where_batches_are(tmp_path):
    """The walk over headers alone finds the batches that the whole scan finds, damaged or not."""
    path = tmp_path / "log"
    sound = b"".join(make_batches([*SIZES, 100_000, 5, 40_000, *SIZES]))
    damaged = bytearray(sound)
    damaged[2000:2040] = bytes(40)
    unknown = bytearray(sound)
    unknown[16] = 1
    odd = (sound[:-1], sound + b"tail", b"\0" + sound, damaged, damaged[:2020], unknown)
    for content in (sound, b"", *odd):
        rows = [row for row in read_file(path, content) if not row["torn"]]
        found = locate_batches(SegmentFile(path, BASE, len(content), True))
        for name, column in found._asdict().items():
            assert column.tolist() == [row[name] for row in rows]


def mutate(content: bytes, draw) -> bytes:
    """Some bytes replaced, put in, taken out or repeated."""
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    new = draw(
        st.one_of(
            st.binary(max_size=80),
            st.just(content[start:end] * 2),
            st.just(bytes(end - start)),
            st.sampled_from(make_batches()),
        )
    )
    return content[:start] + new + content[min(end, start + draw(st.integers(0, 200))) :]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes(tmp_path_factory, data):
    """Whatever a file holds, its rows tile it, and no batch is made up or left out before it."""
    path = tmp_path_factory.getbasetemp() / "any-bytes"
    content = b"".join(make_batches())
    for _ in range(data.draw(st.integers(1, 4))):
        content = mutate(content, data.draw)
    rows = read_file(path, content)
    for row in filter(is_right, rows):
        batch = content[row["position"] : row["position"] + row["size"]]
        assert crc32c(batch[21:]) == read_header(batch).crc
    known = make_batches()
    position = 0
    for row, batch in zip(rows, known, strict=False):
        if content[position : position + len(batch)] != batch:
            break
        assert is_right(row)
        position += len(batch)
    found = locate_batches(SegmentFile(path, BASE, len(content), True))
    assert len(found.position) == sum(not row["torn"] for row in rows)
