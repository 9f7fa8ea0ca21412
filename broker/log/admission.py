"""What an append may fail at, beyond a producer's sequence: its batch, its place, a full disk.

`protocol.records.batch.validate_batch` knows the format; this module knows the log's limits. Both
refuse with an error code that travels to the producer, and neither looks into the records:
timestamps are judged by the header alone, its first and its largest.
"""

import logging

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
from minibroker.protocol.types import Buffer, TopicPartition

logger = logging.getLogger(__name__)


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


class Room:
    """Whether the disk took a log's last append; tells the operator when that changes."""

    __slots__ = ("_is_missing", "_topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        self._is_missing = False

    def missed(self, error: OSError) -> Exception:
        """What a failed append raises: a full disk its client is told, all else stays as it is."""
        if error.errno not in DISK_IS_FULL:
            return error
        if not self._is_missing:
            self._is_missing = True
            logger.error("%s: the disk is full, appends are refused", self._topic_partition)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    def found(self) -> None:
        """An append was written."""
        if self._is_missing:
            self._is_missing = False
            logger.info("%s: the disk has room again", self._topic_partition)
