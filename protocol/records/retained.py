"""Writes what compaction keeps of a batch.

A batch that lost some of its records keeps its first and last offset, producer and sequence; the
records keep their offsets and timestamps. Where nothing of a batch is kept, other offsets take its
place: a log has no gaps. An *empty batch* keeps what a producer's state needs; a *filler* covers
the offsets of batches of which nothing is kept, any number of them, of one leader epoch.

A batch with tombstones that compaction meets for the first time gets its delete horizon, as in
Kafka (KIP-534): a time in the place of the base timestamp, marked by an attribute. The deltas of
the records count from it.
"""

from collections.abc import Sequence
from itertools import compress as select
from typing import Final

from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    NO_TIMESTAMP,
)
from minibroker.protocol.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    NO_PRODUCER,
    BatchHeader,
    write_header,
)
from minibroker.protocol.records.columns import Columns
from minibroker.protocol.records.compression import NONE, compress
from minibroker.protocol.records.record import encode_records
from minibroker.protocol.records.varint import SMALL_COUNT, VARINT, encode_varint

# Of one batch of a compacted topic: unpacked in memory, a record takes some hundred bytes.
COMPACTED_RECORDS_MAX: Final = 65_536
OFFSETS_MAX: Final = 2**31  # of one batch: its last offset delta has 32 bits


def retain(
    header: BatchHeader,
    columns: Columns,
    is_kept: Sequence[bool],
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Return a batch with those records that are kept, at least one; compressed as it was.

    `delete_horizon_ms` is set for its tombstones; without one it has the horizon that it had.
    """
    if delete_horizon_ms is None:
        delete_horizon_ms = header.delete_horizon_ms
    offsets = [*select(columns.offsets, is_kept)]
    timestamps = [*select(columns.timestamps, is_kept)]
    rows = zip(columns.timestamps, columns.keys, columns.values, columns.headers, strict=True)
    base_timestamp = timestamps[0] if delete_horizon_ms is None else delete_horizon_ms
    attributes = header.attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON)
    max_timestamp = header.max_timestamp if header.is_log_append_time else max(timestamps)
    deltas = [_varint(offset - header.base_offset) for offset in offsets]
    records = [*select(rows, is_kept)]
    parts, _ = encode_records(records, base_timestamp, deltas)
    if header.compression != NONE:
        parts = [compress(header.compression, b"".join(parts))]
    return _batch(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(offsets),
        ),
        parts,
    )


def empty(header: BatchHeader) -> bytearray:
    """Return a batch without records that stands for one in its producer's state."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    return _batch(header._replace(attributes=attributes, record_count=0), [])


def filler(base_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
    """Return a batch without records and producer that covers these offsets."""
    assert 0 <= last_offset - base_offset < OFFSETS_MAX
    return _batch(
        BatchHeader(
            base_offset,
            0,
            leader_epoch,
            MAGIC,
            0,
            NONE,
            last_offset - base_offset,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            *NO_PRODUCER,
            0,
        ),
        [],
    )


def _varint(number: int) -> bytes:
    return VARINT[number] if number < SMALL_COUNT else encode_varint(number)


def _batch(header: BatchHeader, parts: Sequence[bytes]) -> bytearray:
    batch = bytearray().join((bytes(BATCH_HEADER_BYTES), *parts))
    write_header(batch, header._replace(batch_length=len(batch) - BATCH_OVERHEAD_BYTES))
    return batch
