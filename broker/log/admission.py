"""What is checked before an append, beyond a producer's sequence.

`protocol.records.batch.validate_batch` knows the format; this module knows the log's limits. Both
refuse with an error code that travels to the producer, and neither looks into the records:
timestamps are judged by the header alone, its first and its largest.
"""

from minibroker.broker.log.limits import LogLimits
from minibroker.broker.log.outcomes import DISK_IS_FULL
from minibroker.broker.log.validate import Refused
from minibroker.protocol.constants import NO_TIMESTAMP, ErrorCode
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    iterate_headers,
    validate_batch,
)
from minibroker.protocol.types import Buffer


class UnexpectedOffset(Exception):
    """A follower was given batches that do not continue its log; nothing was written."""


def check_append(batch: Buffer, limits: LogLimits, now_ms: int) -> BatchHeader:
    """The header of a batch that a leader may append now, or Refused."""
    try:
        header = validate_batch(batch, limits.batch_bytes_max)
    except InvalidBatch as invalid:
        raise Refused(invalid.code, invalid.message) from None
    if len(batch) > limits.segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {len(batch)} bytes, a segment has {limits.segment_bytes}",
        )
    if limits.timestamp_type == "CreateTime":
        _check_timestamp(header.base_timestamp, limits, now_ms)
        _check_timestamp(header.max_timestamp, limits, now_ms)
    return header


def _check_timestamp(timestamp: int, limits: LogLimits, now_ms: int) -> None:
    """The window is closed on both sides; a record without a time is always inside."""
    if timestamp == NO_TIMESTAMP:
        return
    if not -limits.timestamp_after_max_ms <= now_ms - timestamp <= limits.timestamp_before_max_ms:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is too far from {now_ms}"
        )


def check_continuation(records: Buffer, log_end: int) -> list[tuple[int, BatchHeader]]:
    """Position and header of each whole batch that a follower may append, or UnexpectedOffset.

    Gaps are allowed, steps back are not. CRCs were checked on arrival.
    """
    batches = list(iterate_headers(records))
    for _, header in batches:
        if header.base_offset < log_end:
            raise UnexpectedOffset(
                f"a batch of offset {header.base_offset} where {log_end} or later must follow"
            )
        log_end = header.next_offset
    return batches


def what_to_raise(error: OSError) -> Exception:
    """A full disk is what its client is told; any other error of an append stays what it is."""
    if error.errno in DISK_IS_FULL:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    return error
