"""The transactions of one log, by its transactional batches and markers in the order of the log.

A transaction begins with a producer's first transactional batch after a marker, and ends with its
next marker. The marker may have a newer epoch than the batches: a transaction that its producer did
not end is aborted with the next epoch, and in the second protocol each end raises it.

A marker may end nothing: its partition was added to the transaction and got no record, the marker
was written again by the next coordinator, or retention or compaction took the records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from minibroker.protocol.records.batch import CONTROL
from minibroker.protocol.records.control import COMMIT

COMMITTED: Final = "commit"
ABORTED: Final = "abort"
OPEN: Final = "open"
_OFFSETS_MAX: Final = 1 << 22  # of a range: no header may fill the memory


@dataclass(frozen=True, slots=True)
class Step:
    """A transactional batch or a marker, with the columns of BATCHES."""

    producer_id: int
    producer_epoch: int
    base_offset: int
    last_offset: int
    count: int
    max_timestamp: int
    attributes: int
    marker: int | None
    segment: int
    position: int


class OffsetRange(NamedTuple):
    """Offsets of records, the last one included."""

    first: int
    last: int


class Row(NamedTuple):
    """A row of TRANSACTIONS behind the log's name, in the order of the columns."""

    producer_id: int
    producer_epoch: int
    outcome: str
    first_offset: int | None = None
    last_offset: int | None = None
    records: int | None = None
    first_ms: int | None = None
    marker_offset: int | None = None
    marker_epoch: int | None = None
    marker_segment: int | None = None
    marker_position: int | None = None
    stable: int | None = None
    is_first: bool = False
    uncommitted: Sequence[OffsetRange] = ()


class TransactionHistory:
    """The transactions of one log: `add` its steps in order, then ask for those that are `open`."""

    def __init__(self) -> None:
        self._open: dict[int, Row] = {}  # by producer, in the order of their first offsets
        self._ranges: dict[int, list[OffsetRange]] = {}  # of these transactions' records
        self._ended: set[int] = set()  # producers with a marker

    def add(self, step: Step) -> Row | None:
        """Add a step; return the transaction that it ends, or the row of a marker alone."""
        if step.attributes & CONTROL:
            return None if step.marker is None else self._end(step, step.marker)
        begun = self._open.get(step.producer_id)
        if begun is None:
            begun = Row(
                step.producer_id,
                step.producer_epoch,
                OPEN,
                first_offset=step.base_offset,
                records=0,
                first_ms=step.max_timestamp,
                is_first=step.producer_id not in self._ended,
            )
        self._add_range(step)
        records = (begun.records or 0) + step.count
        self._open[step.producer_id] = begun._replace(last_offset=step.last_offset, records=records)
        return None

    def _add_range(self, step: Step) -> None:
        first, last = step.base_offset, step.last_offset
        if step.count <= 0 or not 0 <= last - first < _OFFSETS_MAX:
            return
        ranges = self._ranges.setdefault(step.producer_id, [])
        if ranges and ranges[-1].last + 1 == first and last - ranges[-1].first < _OFFSETS_MAX:
            first = ranges.pop().first
        ranges.append(OffsetRange(first, last))

    def _end(self, step: Step, marker: int) -> Row:
        alone = Row(
            step.producer_id,
            step.producer_epoch,
            OPEN,
            is_first=step.producer_id not in self._ended,
        )
        self._ended.add(step.producer_id)
        ended = self._open.pop(step.producer_id, alone)
        ranges = self._ranges.pop(step.producer_id, [])
        first_open = next(iter(self._open.values()), None)
        return ended._replace(
            outcome=COMMITTED if marker == COMMIT else ABORTED,
            marker_offset=step.last_offset,
            marker_epoch=step.producer_epoch,
            marker_segment=step.segment,
            marker_position=step.position,
            stable=step.last_offset + 1 if first_open is None else first_open.first_offset,
            uncommitted=[] if marker == COMMIT else ranges,
        )

    def open(self) -> Iterator[Row]:
        """Yield the transactions without a marker, by their first offsets."""
        for producer_id, begun in self._open.items():
            yield begun._replace(uncommitted=self._ranges.get(producer_id, []))
