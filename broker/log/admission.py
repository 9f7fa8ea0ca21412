"""What a leader checks before it appends a producer's batch, beyond its producer's sequence.

`protocol.records.batch.validate_batch` knows the format; this module knows the log's limits. Both
refuse with an error code that travels to the producer, and neither looks into the records:
timestamps are judged by the header alone, its first and its largest.
"""

from minibroker.broker.log.limits import LogLimits
from minibroker.broker.log.validate import Refused
from minibroker.protocol.constants import NO_TIMESTAMP, ErrorCode
from minibroker.protocol.records.batch import BatchHeader, InvalidBatch, validate_batch
from minibroker.protocol.types import Buffer


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
