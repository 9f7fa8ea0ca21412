"""A record batch as a whole: its header, the broker's checks and the fields that it writes.

A batch is immutable except for a few header fields. The CRC does not cover base offset and leader
epoch, so a leader writes them in place (`stamp`) and changes nothing else. A leader that sets the
append time, or corrects the largest timestamp, and a client that renumbers its batches write more,
and recompute the CRC. This module
does not read the records: a broker stores the bytes that it received.

`BatchHeader` lists the fields, `_HEADER` has their sizes.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    ErrorCode,
)
from minibroker.protocol.records.compression import (
    CODEC_NAMES,
    NONE,
    RATIOS_MAX,
    UNPACKED_BYTES_MAX,
)
from minibroker.protocol.types import Buffer

RECORD_BYTES_MIN: Final = 7  # one each: length, attributes, time, offset, key, value, headers
COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40  # set by compaction only

_HEADER = Struct(">qiibIhiqqqhii")
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_PRODUCER = Struct(">qhi")

_LEADER_EPOCH_AT = 12
_CRC_AT = 17
_ATTRIBUTES_AT = 21  # the CRC covers all bytes from here on
_MAX_TIMESTAMP_AT = 35
_PRODUCER_AT = 43

assert _HEADER.size == BATCH_HEADER_BYTES


class InvalidBatch(Exception):
    """The bytes are no batch, or a batch that a broker refuses; `code` is the reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ProducerStamp(NamedTuple):
    """A batch's producer, and the sequence number of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_PRODUCER: Final = ProducerStamp(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)


class BatchHeader(NamedTuple):
    """The fields of the 61 bytes before the records, in order; timestamps in ms since the epoch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return BATCH_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are undefined."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the time of the append, which is `max_timestamp`."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which on compaction removes the tombstones of the batch; None before a
        compaction has met them. It is in the place of the base timestamp (Kafka's KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer(self) -> bool:
        """Whether the batch has a sequence number, so that a broker recognises a duplicate."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        if not self.has_producer:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def increment_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` records later; the sequence after SEQUENCE_MAX is 0."""
    return sequence + count & SEQUENCE_MAX


def decrement_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` records earlier; the sequence before 0 is SEQUENCE_MAX."""
    return sequence - count & SEQUENCE_MAX


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`, unchecked. The caller ensures that 61 bytes are there."""
    # Not by its own `__new__`, a call more: each PRODUCE reads three headers.
    return tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))


def is_transactional(batch: Buffer) -> bool:
    """Return whether bytes are long enough to be a batch, and it has the attribute."""
    return len(batch) >= BATCH_HEADER_BYTES and batch[_ATTRIBUTES_AT + 1] & TRANSACTIONAL != 0


def read_max_timestamp(batch: Buffer) -> int:
    """Return the largest timestamp in the header of a whole batch (ms since the epoch)."""
    (timestamp,) = _MAX_TIMESTAMP.unpack_from(batch, _MAX_TIMESTAMP_AT)
    return int(timestamp)


def _compute_crc(batch: Buffer, size: int) -> int:
    return crc32c(memoryview(batch)[_ATTRIBUTES_AT:size])


def has_valid_crc(view: Buffer, header: BatchHeader) -> bool:
    """Return whether the CRC matches for the whole batch that starts at byte 0 of `view`."""
    return _compute_crc(view, header.size) == header.crc


def validate_batch(view: Buffer, size_max: int, *, may_lack_sequence: bool = False) -> BatchHeader:
    """Check the bytes that a producer sent for one partition, and return the batch's header. With
    `may_lack_sequence` it may have a producer and no sequence: a coordinator writes it for one.

    Raises InvalidBatch. The sizes are checked first, then the CRC, then the fields that it covers.
    """
    header = _read_whole(view, size_max)
    if crc32c(view[_ATTRIBUTES_AT:]) != header.crc:  # of a view in a broker: nothing is copied
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "the checksum does not match")
    if header.attributes:
        _check_attributes(header)
    if header.base_offset != 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"base offset {header.base_offset}, a client sends 0"
        )
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records, last offset delta {header.last_offset_delta}",
        )
    bytes_min = header.record_count * RECORD_BYTES_MIN
    if bytes_min > len(view) - BATCH_HEADER_BYTES and bytes_min > _unpacked_bytes_max(header):
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records cannot be in a batch of {header.size} bytes",
        )
    # Without a producer id epoch and sequence have no meaning: aiokafka writes sequence 0, kafkajs
    # epoch 0 and sequence 0, and Kafka accepts both.
    if header.producer_id == NO_PRODUCER_ID:
        return header
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    if min(producer[:2] if may_lack_sequence else producer) < 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"producer id, epoch and sequence {producer}: none may be negative with an id",
        )
    return header


def _unpacked_bytes_max(header: BatchHeader) -> int:
    """Return how many bytes the records can have, unpacked, by the batch's size and codec."""
    size = header.size - BATCH_HEADER_BYTES
    if header.compression == NONE:
        return size
    return min(UNPACKED_BYTES_MAX, size * RATIOS_MAX[header.compression])


def _check_attributes(header: BatchHeader) -> None:
    """Raise InvalidBatch for an unknown codec, or an attribute that a client may not set."""
    if header.compression >= len(CODEC_NAMES):
        raise InvalidBatch(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {header.compression}"
        )
    if header.is_log_append_time:
        raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "only a broker sets the append time")
    if header.attributes & ~(COMPRESSION_MASK | TRANSACTIONAL):
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"attributes {header.attributes:#x}: only a broker writes control batches",
        )
    if header.is_transactional and not header.has_producer:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")


def _read_whole(view: Buffer, size_max: int) -> BatchHeader:
    """Return the header of a view that is exactly one batch. Raises InvalidBatch."""
    given = len(view)
    if given == 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "no batch")
    if given < BATCH_HEADER_BYTES:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{given} bytes are no batch")
    header = read_header(view)
    size = header.size
    if header.magic != MAGIC:
        raise InvalidBatch(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"format {header.magic}, only 2 is taken"
        )
    if size > size_max:
        raise InvalidBatch(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, at most {size_max}"
        )
    if size < BATCH_HEADER_BYTES or size > given:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes in {given}")
    if size < given:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"a batch of {size} bytes in {given}: send one"
        )
    return header


def iterate_headers(view: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every whole batch; an incomplete one at the end is left out.

    Raises InvalidBatch (CORRUPT_MESSAGE) at a length that no batch can have.
    """
    position = 0
    while position + BATCH_HEADER_BYTES <= len(view):
        header = read_header(view, position)
        if header.size < BATCH_HEADER_BYTES:
            raise InvalidBatch(
                ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes at {position}"
            )
        if position + header.size > len(view):
            return
        yield position, header
        position += header.size


def stamp(view: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the fields that the leader sets, in place; the CRC does not cover them."""
    _BASE_OFFSET.pack_into(view, 0, base_offset)
    _LEADER_EPOCH.pack_into(view, _LEADER_EPOCH_AT, leader_epoch)


def stamp_max_timestamp(view: bytearray | memoryview, time_ms: int) -> None:
    """Set the largest timestamp (ms since the epoch) of one batch; recompute the CRC."""
    _MAX_TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, time_ms)
    _CRC.pack_into(view, _CRC_AT, _compute_crc(view, len(view)))


def stamp_append_time(view: bytearray | memoryview, now_ms: int) -> None:
    """Set the append time (ms since the epoch) for all records of one batch; recompute the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(view, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(view, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    stamp_max_timestamp(view, now_ms)


def stamp_transaction(batch: bytearray, producer: ProducerStamp) -> None:
    """Make one whole batch part of a producer's transaction, as `stamp_producer` does."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | TRANSACTIONAL)
    stamp_producer(batch, producer)


def stamp_producer(batch: bytearray, producer: ProducerStamp) -> None:
    """Write producer id, epoch and sequence into one whole batch; recompute the CRC."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, *producer)
    _CRC.pack_into(batch, _CRC_AT, _compute_crc(batch, len(batch)))


def write_header(batch: bytearray, header: tuple[int, ...], *, with_crc: bool = True) -> None:
    """Write the header of one whole batch; the CRC is computed, not taken from `header`.

    Without `with_crc` the batch has no valid CRC until `stamp_producer` has computed it.
    """
    _HEADER.pack_into(batch, 0, *header)
    if with_crc:
        _CRC.pack_into(batch, _CRC_AT, _compute_crc(batch, len(batch)))
