"""The records in the files of one replica, read from the disk beside the broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records.batch import (
    BatchHeader,
    has_valid_crc,
    iterate_headers,
    read_header,
)
from minibroker.protocol.records.columns import Headers
from minibroker.protocol.records.record import decode_records


class StoredRecord(NamedTuple):
    """A record in a replica's log, and the leader epoch of its batch. `timestamp` is in
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
    """Return the records of a replica in order, up to a torn batch.

    Checksums are not verified. Raises `ValueError` if the broker has no such replica.
    """
    return [
        StoredRecord(header.leader_epoch, *record)
        for batch, header in batches_of(data_dir, topic, partition)
        for record in decode_records(batch, header)
    ]


def batches_of(data_dir: Path, topic: str, partition: int) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield the batches of a replica in order, as `stored_records` reads them."""
    for _, data, batches in _segments(data_dir, topic, partition):
        for position, header in batches:
            yield data[position : position + header.size], header


class FlippedBit(NamedTuple):
    """A bit that was flipped: the lowest one of the byte at `position`, in the batch at `begin`."""

    path: Path
    begin: int
    position: int


def flip_bit(data_dir: Path, topic: str, partition: int, offset: int) -> FlippedBit:
    """Flip one bit in the batch that holds a record.

    Raises `ValueError` if there is no such record.
    """
    for path, _, batches in _segments(data_dir, topic, partition):
        for begin, header in batches:
            if header.base_offset <= offset <= header.last_offset:
                flipped = FlippedBit(path, begin, begin + (BATCH_HEADER_BYTES + header.size) // 2)
                _flip(flipped)
                return flipped
    raise ValueError(f"there is no record {offset} of {topic}-{partition} in {data_dir}")


def flip_back(flipped: FlippedBit) -> None:
    """Flip the bit again, if that repairs the batch. The broker may have replicated the batch again
    since, or truncated its log."""
    try:
        data = bytearray(flipped.path.read_bytes())
    except FileNotFoundError:
        return
    if flipped.position >= len(data) or _is_sound(data, flipped.begin):
        return
    data[flipped.position] ^= 1
    if _is_sound(data, flipped.begin):
        _flip(flipped)


def _is_sound(data: bytearray, begin: int) -> bool:
    header = read_header(data, begin)
    whole = memoryview(data)[begin : begin + header.size]
    return len(whole) == header.size and has_valid_crc(whole, header)


def _flip(flipped: FlippedBit) -> None:
    with flipped.path.open("r+b") as file:
        file.seek(flipped.position)
        [byte] = file.read(1)
        file.seek(flipped.position)
        file.write(bytes([byte ^ 1]))


def _segments(data_dir: Path, topic: str, partition: int) -> Iterator[_Segment]:
    directory = data_dir / f"{topic}-{partition}"
    if not directory.is_dir():
        raise ValueError(f"there is no replica of {topic}-{partition} in {data_dir}")
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        yield _Segment(path, data, list(iterate_headers(data)))
