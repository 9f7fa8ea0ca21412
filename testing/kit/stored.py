"""What lies in the files of one replica, read from the disk beside the broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records.batch import BatchHeader, iterate_headers
from minibroker.protocol.records.columns import Headers
from minibroker.protocol.records.record import decode_records


class StoredRecord(NamedTuple):
    """A record in a replica's log, and the leader epoch in which it was written; `timestamp` is in
    milliseconds."""

    leader_epoch: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class _Segment(NamedTuple):
    path: Path
    data: bytes
    batches: list[tuple[int, BatchHeader]]  # and where each begins


def stored_records(data_dir: Path, topic: str, partition: int) -> list[StoredRecord]:
    """The records of a replica in order, up to a batch that is not whole.

    Raises `ValueError` where the broker has no such replica, `InvalidBatch` for damaged batches.
    """
    found: list[StoredRecord] = []
    for _, data, batches in _segments(data_dir, topic, partition):
        for position, header in batches:
            records = decode_records(data[position : position + header.size], header)
            found += [StoredRecord(header.leader_epoch, *record) for record in records]
    return found


def flip_bit(data_dir: Path, topic: str, partition: int, offset: int) -> tuple[Path, int]:
    """Turn one bit round in the batch that holds a record; return the file and the position in it.

    Raises `ValueError` where there is no such record.
    """
    for path, _, batches in _segments(data_dir, topic, partition):
        for position, header in batches:
            if header.base_offset <= offset <= header.last_offset:
                middle = position + (BATCH_HEADER_BYTES + header.size) // 2
                flip(path, middle)
                return path, middle
    raise ValueError(f"there is no record {offset} of {topic}-{partition} in {data_dir}")


def flip(path: Path, position: int) -> None:
    """Turn the lowest bit of a byte round."""
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def _segments(data_dir: Path, topic: str, partition: int) -> Iterator[_Segment]:
    directory = data_dir / f"{topic}-{partition}"
    if not directory.is_dir():
        raise ValueError(f"there is no replica of {topic}-{partition} in {data_dir}")
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        yield _Segment(path, data, list(iterate_headers(data)))
