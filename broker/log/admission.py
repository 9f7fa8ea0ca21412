"""The checks of an append, apart from a producer's sequence: batch, offset and epoch, shortages.

`protocol.records.batch.validate_batch` knows the format; this module knows the log's limits. Both
refuse with an error code for the producer, and neither reads the records:
timestamps are checked by the header alone, its first and its largest.
"""

import logging
from typing import NamedTuple

from minibroker.broker.errors import Refused
from minibroker.broker.log.outcomes import DISK_FULL_TEXT, SHORTAGES, LogLimits, shortage_text
from minibroker.protocol.constants import INT64_MAX, MAGIC, NO_RECORD, NO_TIMESTAMP, ErrorCode
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    has_valid_crc,
    iterate_headers,
    validate_batch,
)
from minibroker.protocol.records.retained import filler
from minibroker.protocol.types import Buffer, TopicPartition

logger = logging.getLogger(__name__)


class UnexpectedOffset(Exception):
    """Raised when batches do not continue a follower's log; nothing was written."""


def check_batch(
    batch: Buffer, limits: LogLimits, *, may_lack_sequence: bool = False
) -> BatchHeader:
    """Return the header of a batch that a leader may append if its timestamps are right. Raises
    `Refused`. The last argument as in `validate_batch`."""
    try:
        header = validate_batch(batch, limits.batch_bytes_max, may_lack_sequence=may_lack_sequence)
    except InvalidBatch as invalid:
        raise Refused(invalid.code, invalid.message) from None
    if len(batch) > limits.segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {len(batch)} bytes, a segment has {limits.segment_bytes}",
        )
    return header


def check_timestamps(header: BatchHeader, limits: LogLimits, now_ms: int) -> None:
    """Refuse a producer's timestamps that are negative or outside the window, bounds included; no
    timestamp is always inside."""
    if limits.timestamp_type != "CreateTime":
        return
    earliest = max(NO_TIMESTAMP, now_ms - limits.timestamp_before_max_ms)
    latest = now_ms + limits.timestamp_after_max_ms
    if earliest <= header.base_timestamp <= latest and earliest <= header.max_timestamp <= latest:
        return
    for number, time in enumerate((header.base_timestamp, header.max_timestamp)):
        if time < NO_TIMESTAMP:
            raise Refused(ErrorCode.INVALID_TIMESTAMP, f"timestamp {time} is negative")
        if time == NO_TIMESTAMP:
            continue
        if time - now_ms > limits.timestamp_after_max_ms:
            name, side, most = "after", "ahead of", limits.timestamp_after_max_ms
        elif now_ms - time > limits.timestamp_before_max_ms:
            name, side, most = "before", "behind", limits.timestamp_before_max_ms
        else:
            continue
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {time} is {abs(time - now_ms)} ms {side} the broker's clock, and"
            f" message.timestamp.{name}.max.ms is {most}: timestamps are milliseconds since 1970",
            NO_RECORD if number else 0,  # the header begins with the first record's
        )


class CheckedBatches(NamedTuple):
    """Whole batches, end to end, with the position and header of each."""

    records: memoryview
    headers: list[tuple[int, BatchHeader]]

    @property
    def size(self) -> int:
        """The size of all batches in bytes."""
        if not self.headers:
            return 0
        position, header = self.headers[-1]
        return position + header.size


def check_batches(records: memoryview) -> CheckedBatches:
    """Check the batches that a leader sent. Leaves out an incomplete batch at the end.

    Raises InvalidBatch. The CRC does not cover offset and leader epoch, and a wrong one would harm
    other records. So offsets must follow each other, which they do in a compacted log, too, and
    epochs must not decrease.
    """
    headers: list[tuple[int, BatchHeader]] = []
    epoch = 0
    for position, header in iterate_headers(records):
        if header.magic != MAGIC or header.last_offset_delta < 0:
            raise _corrupt(f"format {header.magic}, last offset delta {header.last_offset_delta}")
        next_offset = headers[-1][1].next_offset if headers else max(0, header.base_offset)
        if header.base_offset != next_offset or header.next_offset > INT64_MAX:
            raise _corrupt(f"base offset {header.base_offset} instead of {next_offset}")
        if header.leader_epoch < epoch:
            raise _corrupt(f"leader epoch {header.leader_epoch} after {epoch}")
        if not has_valid_crc(records[position : position + header.size], header):
            raise _corrupt(f"the checksum of the batch at offset {header.base_offset} is wrong")
        headers.append((position, header))
        epoch = header.leader_epoch
    if len(records) and not headers:
        raise _corrupt(f"no whole batch in {len(records)} bytes")
    return CheckedBatches(records, headers)


def _corrupt(message: str) -> InvalidBatch:
    return InvalidBatch(ErrorCode.CORRUPT_MESSAGE, message)


def check_continuation(batches: CheckedBatches, log_end: int, newest_epoch: int) -> None:
    """Check that a follower may append these. Raises UnexpectedOffset or InvalidBatch.

    An offset beyond the next one can only be corrupt, and so can an epoch older than the log's
    newest, which would remove the newer epochs.
    """
    if batches.headers:
        first = batches.headers[0][1]
        if first.base_offset < log_end:
            raise UnexpectedOffset(f"base offset {first.base_offset} instead of {log_end}")
        if first.base_offset > log_end:
            raise _corrupt(f"base offset {first.base_offset} instead of {log_end}")
        if first.leader_epoch < newest_epoch:
            raise _corrupt(f"leader epoch {first.leader_epoch} after {newest_epoch}")


def begins_within(batches: CheckedBatches, offset: int) -> bool:
    """Whether an offset lies inside the first of these batches, not at its beginning. An empty log
    begins with such a batch where records were deleted up to the offset (FOL-17)."""
    if not batches.headers:
        return False
    first = batches.headers[0][1]
    return first.base_offset < offset < first.next_offset


def from_inside_filler(batches: CheckedBatches, offset: int) -> CheckedBatches:
    """Return the batches with a filler that begins at `offset`, if it lies inside the first of
    these and that is a filler: a leader's compaction has joined what a follower has with what it
    lacks."""
    if not begins_within(batches, offset):
        return batches
    first = batches.headers[0][1]
    if first.record_count or first.has_producer:
        return batches
    start = filler(offset, first.last_offset, first.leader_epoch)
    rest = batches.records[first.size : batches.size]
    return check_batches(memoryview(b"".join((start, rest))))


class ShortageLatch:
    """Remembers whether a log's last append met a full disk, or no file descriptor was free for a
    new segment; logs each change for the operator."""

    __slots__ = ("_short", "_topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        self._short = ""

    def on_error(self, error: OSError) -> Exception:
        """Return what a failed append raises: `Refused` in a shortage, else the error itself."""
        if error.errno not in SHORTAGES:
            return error
        text = shortage_text(error)
        if self._short != text:
            self._short = text
            logger.error("%s: %s, appends are refused", self._topic_partition, text)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, text)

    def on_success(self) -> None:
        """Reset after an append was written."""
        if self._short:
            is_full = self._short == DISK_FULL_TEXT
            again = "the disk has room again" if is_full else "a file descriptor is free again"
            logger.info("%s: %s", self._topic_partition, again)
            self._short = ""
