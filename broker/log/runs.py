"""Runs of batches: the contiguous bytes of a segment that a read returns.

No checksum covers offset, length and leader epoch of a batch, so a corrupt header could send a
reader past records, or to offsets that do not exist. The segment knows which offset and epoch each
batch must have: the first from the index or the memory, which were made when it was written, all
others from the batch before. So a read compares the header of every batch of a run, and clients
need not. It does not read the bytes of the records.
"""

from typing import NamedTuple

from minibroker.broker.log.cached_reads import Readable
from minibroker.broker.log.scan import BadBytes, chained_batches, is_intact
from minibroker.broker.log.segment import Segment, bounded
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.records.batch import BatchHeader

# A run of small batches ends after so many, which takes about a millisecond.
BATCHES_MAX = 1024


class Run(NamedTuple):
    """Whole batches, from `start` to `end` of a segment, and the offset that follows them."""

    start: int
    end: int
    next_offset: int


def find_run(
    segment: Segment,
    offset: int,
    end_offset: int,
    bytes_max: int,
    epochs: EpochHistory,
    *,
    may_block: bool = True,
) -> Run | None:
    """Return the batches from the one with `offset` on, below `end_offset`; at most `bytes_max`
    bytes, but the first at any size. None if the first does not end below `end_offset`.

    The run ends before the first damaged batch. Raises BadBytes if that is its first batch, and
    NotCached unless it `may_block`.
    """
    file = segment.reads(may_block=may_block)
    found = segment.find(offset, file)
    if found is None:
        raise BadBytes(offset, segment.size, "the segment does not hold it")
    start, first = found
    if first.last_offset >= end_offset:
        if not is_intact(file, start, first):
            raise BadBytes(first.base_offset, start, "the checksum is wrong")
        return None
    try:
        return _walk(file, found, end_offset, start + bytes_max, epochs)
    except BadBytes as bad:
        if bad.position <= start:
            raise bounded(bad, file) from None
        return Run(start, bad.position, bad.offset)


def _walk(
    file: Readable,
    found: tuple[int, BatchHeader],
    end_offset: int,
    limit: int,
    epochs: EpochHistory,
) -> Run:
    """Compare headers up to the end of the run. Raises BadBytes at the first mismatch."""
    start, first = found
    end, last = start, None
    batches = chained_batches(file, start, first.base_offset, file.size)
    for count, (position, header) in enumerate(batches):
        is_over = header.last_offset >= end_offset or position + header.size > limit
        if last is not None and (is_over or count == BATCHES_MAX):
            break
        # Between two batches of one epoch no other was written.
        if last is None or header.leader_epoch != last.leader_epoch:
            _check_epoch(position, header, epochs)
        end, last = position + header.size, header
    assert last is not None, "the first batch was found"
    _check_epoch(end - last.size, last, epochs)
    return Run(start, end, last.next_offset)


def _check_epoch(position: int, header: BatchHeader, epochs: EpochHistory) -> None:
    if header.leader_epoch != epochs.epoch_at(header.base_offset, header.leader_epoch):
        reason = f"leader epoch {header.leader_epoch}, which did not write them"
        raise BadBytes(header.base_offset, position, reason)
