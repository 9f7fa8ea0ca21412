"""Reading records of the offsets topic from the log, a chunk at a time.

A chunk is so small that its replay takes only a few milliseconds of the loop; but a batch, which
one request has made, is read as a whole whatever its size. The reader verifies checksums and the
order of offsets itself; the records of the broker's other reads are verified by the receiver.
"""

from typing import Final, NamedTuple

from minibroker.broker.log.log import Log
from minibroker.protocol.constants import NO_EPOCH, ErrorCode
from minibroker.protocol.records.batch import InvalidBatch, has_valid_crc, iterate_headers
from minibroker.protocol.records.record import Record, decode_records

CHUNK_BYTES: Final = 16 * 1024


class Chunk(NamedTuple):
    """Records in order, the offset after them, and the leader epoch of the last one."""

    records: list[Record]
    next_offset: int
    leader_epoch: int


def read_chunk(log: Log, offset: int, end_offset: int) -> Chunk:
    """Return the records from `offset` on, below `end_offset`; none if there is no whole batch.

    Raises `InvalidBatch` for damaged bytes, `Refused` or `StaleSlice` if the segment cannot be
    opened for now, and `OSError` for errors of the disk.
    """
    parts = log.read(offset, CHUNK_BYTES, end_offset)
    data = memoryview(b"".join(bytes(part.read()) for part in parts))
    records: list[Record] = []
    next_offset, leader_epoch = offset, NO_EPOCH
    for position, header in iterate_headers(data):
        is_next = header.base_offset <= next_offset < header.next_offset
        if not is_next or (position and header.base_offset != next_offset):
            what = f"base offset {header.base_offset} instead of {next_offset}"
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, what)
        batch = data[position : position + header.size]
        if not has_valid_crc(batch, header):
            what = f"the checksum of the batch at offset {header.base_offset} is wrong"
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, what)
        records += decode_records(batch, header)
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
    return Chunk(records, next_offset, leader_epoch)
