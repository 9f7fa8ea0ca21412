"""Reading records of a coordinator's topic from the log, a chunk at a time.

A chunk is so small that its replay takes only a few milliseconds of the loop. One request, such as
a commit for all partitions of a cluster, may have made a batch with many more records; its chunks
are parts of the batch. The reader verifies checksums and the order of offsets itself; the records
of the broker's other reads are verified by the receiver.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from minibroker.broker.log.cached_reads import read_slice
from minibroker.broker.log.log import Log
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    NO_EPOCH,
    NO_PRODUCER_ID,
    ErrorCode,
)
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    has_valid_crc,
    iterate_headers,
)
from minibroker.protocol.records.compression import NONE
from minibroker.protocol.records.control import EndMarker, read_end_marker
from minibroker.protocol.records.record import Record, decode_records
from minibroker.protocol.records.varint import VARINT_BYTES_MAX, decode_varint

CHUNK_BYTES: Final = 16 * 1024


class Chunk(NamedTuple):
    """Records in order, the offset after them, and the leader epoch of the last one.

    `producer_id` is that of the transaction which all of them belong to, -1 if to none. A chunk of
    a `marker` has no records: it ends the transaction of its producer.
    """

    records: list[Record]
    next_offset: int
    leader_epoch: int
    producer_id: int = NO_PRODUCER_ID
    marker: EndMarker | None = None


def read_chunks(
    log: Log, offset: int, end_offset: int, *, may_block: bool = True
) -> Iterator[Chunk]:
    """Yield the records from `offset` on, below `end_offset`, of one read of the log; nothing if
    there is no whole batch.

    Raises `InvalidBatch` for damaged bytes, `Refused` or `StaleSlice` if the segment cannot be
    opened for now, `OSError` for errors of the disk, and `NotCached` unless it `may_block`.
    """
    parts = log.read(offset, CHUNK_BYTES, end_offset, may_block=may_block)
    data = memoryview(b"".join([read_slice(part, may_block=may_block) for part in parts]))
    records: list[Record] = []
    next_offset, leader_epoch = offset, NO_EPOCH
    producer_id = NO_PRODUCER_ID
    for position, header in iterate_headers(data):
        is_next = header.base_offset <= next_offset < header.next_offset
        if not is_next or (position and header.base_offset != next_offset):
            what = f"base offset {header.base_offset} instead of {next_offset}"
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, what)
        batch = data[position : position + header.size]
        if not has_valid_crc(batch, header):
            what = f"the checksum of the batch at offset {header.base_offset} is wrong"
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, what)
        its_producer = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        if its_producer != producer_id or header.is_control:
            if next_offset != offset:
                yield Chunk(records, next_offset, leader_epoch, producer_id)
            offset, records, producer_id = next_offset, [], its_producer
        if header.is_control:
            marker = read_end_marker(batch, header)
            offset = next_offset = header.next_offset
            leader_epoch = header.leader_epoch
            yield Chunk([], next_offset, leader_epoch, its_producer, marker)
            producer_id = NO_PRODUCER_ID
            continue
        for some in _parts_of(batch, header):
            if records and len(records) + len(some) > AT_ONCE:
                yield Chunk(records, next_offset, leader_epoch, producer_id)
                records = []
            records += some
            leader_epoch = header.leader_epoch
            if some:
                next_offset = some[-1].offset + 1
        next_offset = header.next_offset
    if next_offset != offset:
        last = [Chunk(records, next_offset, leader_epoch, producer_id)]
        records, some = [], []  # the iterator may rest here for long
        yield last.pop()


def _parts_of(batch: memoryview, header: BatchHeader) -> Iterator[list[Record]]:
    """Yield the records of a batch, at most `AT_ONCE` at a time. (Brokers, which alone write these
    batches, do not compress them.)"""
    if header.record_count <= AT_ONCE or header.compression != NONE:
        yield decode_records(batch, header)
        return
    body = bytes(batch[BATCH_HEADER_BYTES:])
    start, left = 0, header.record_count
    while left:
        count = min(left, AT_ONCE)
        left -= count
        end = _end_of(body, start, count) if left else len(body)
        part = bytes(BATCH_HEADER_BYTES) + body[start:end]
        size = header.batch_length - len(batch) + len(part)
        yield decode_records(part, header._replace(record_count=count, batch_length=size))
        start = end


def _end_of(body: bytes, at: int, count: int) -> int:
    """Return the position behind `count` records."""
    try:
        for _ in range(count):
            size, at = decode_varint(body, at, VARINT_BYTES_MAX)
            at += max(0, size)
    except (IndexError, ValueError) as error:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "the records are cut short") from error
    return at
