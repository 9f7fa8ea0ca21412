"""Reading records of the offsets topic back from the log, a chunk at a time.

A chunk is small enough that its replay holds the loop up for a few milliseconds only; one batch
comes whole whatever its size, and a batch is what one request made. Bytes are checked by their
checksum, and offsets by each other, since here, unlike in a broker's other reads, no client will.
"""

from typing import Final, NamedTuple

from minibroker.broker.log.log import Log
from minibroker.protocol.constants import NO_EPOCH, ErrorCode
from minibroker.protocol.records.batch import InvalidBatch, has_valid_crc, iterate_headers
from minibroker.protocol.records.record import Record, decode_records

CHUNK_BYTES: Final = 16 * 1024


class Chunk(NamedTuple):
    """Records in order, the offset behind them, and the leader epoch of the last one."""

    records: list[Record]
    next_offset: int
    leader_epoch: int


def read_chunk(log: Log, offset: int, end_offset: int) -> Chunk:
    """What lies at `offset` and behind, below `end_offset`; nothing if no whole batch does.

    Raises `InvalidBatch` for bytes that are not what was written, and an `OSError` of the disk.
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
