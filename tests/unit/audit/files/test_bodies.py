"""Batches whose checksum is right and whose records nobody can read."""

from pathlib import Path

from minibroker.audit.files.bodies import check_bodies
from minibroker.audit.files.directories import Replica, SegmentFile
from minibroker.audit.model import BODIES
from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records.batch import CONTROL, read_header, stamp, write_header
from minibroker.protocol.records.compression import LZ4
from minibroker.protocol.records.record import encode_batch

REPLICA = Replica(1, "t", 0)


def batch(base: int, compression: int = 0) -> bytearray:
    """Two records."""
    made = encode_batch([(base, None, b"%d" % n, ()) for n in range(2)], compression=compression)
    stamp(made, base, 0)
    return made


def spoilt(base: int, compression: int = 0, flags: int = 0) -> bytearray:
    """A batch with other bytes in the place of its records, and a right checksum."""
    made = batch(base, compression)
    made[BATCH_HEADER_BYTES:] = b"\xff" * (len(made) - BATCH_HEADER_BYTES)
    header = read_header(made)
    write_header(made, header._replace(attributes=header.attributes | flags))
    return made


def test_only_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """With its place and the reason, whether it is compressed or not; what has a wrong checksum, or
    says that it is no batch of records, is told elsewhere."""
    damaged = batch(4)
    damaged[-1] ^= 1
    parts = [batch(0), spoilt(2), damaged, spoilt(6, LZ4), spoilt(8, flags=CONTROL), batch(10, LZ4)]
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(b"".join(parts))
    rows = check_bodies(REPLICA, SegmentFile(path, 0, path.stat().st_size, is_indexed=False))
    assert rows.schema == BODIES
    told = rows.to_pylist()
    assert [(row["base_offset"], row["last_offset"]) for row in told] == [(2, 3), (6, 7)]
    positions = [row["position"] for row in told]
    assert positions == [len(parts[0]), sum(map(len, parts[:3]))]
    assert all(row["problem"] for row in told)


def test_a_file_that_is_gone_has_no_rows(tmp_path: Path) -> None:
    """The table of batches says so."""
    path = tmp_path / f"{0:020}.log"
    assert check_bodies(REPLICA, SegmentFile(path, 0, 99, is_indexed=False)).num_rows == 0
