"""The index files of one segment, each entry checked against the batches of the segment.

An entry of `.index` names the last offset of a batch and the position where that batch begins. An
entry (t, o) of `.timeindex` says that up to offset o no record is newer than t: t is the largest
timestamp of the batch that ends with o, and of all before it. In both, entries grow strictly.

A time index is complete only if its last entry is the newest batch, since a reader that seeks by
time uses it to skip a whole segment. An offset index may be as sparse as it likes. So an offset
index without its last entries is right, and a time index without them is not.

Brokers write both when a segment is sealed or when they stop cleanly; until then the files may be
missing or stale, and no broker relies on them. They are checked only after that (`is_indexed`).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minibroker.audit.files.checkpoints import explain
from minibroker.audit.files.directories import LogDirectory, Replica, SegmentFile
from minibroker.audit.files.regular import open_file, read_file
from minibroker.audit.files.segments import (
    Located,
    is_sound_batch,
    locate_batches,
)
from minibroker.audit.model import INDEX_ENTRIES
from minibroker.protocol.constants import NO_TIMESTAMP

INDEX: Final = "index"
TIME_INDEX: Final = "timeindex"

_ENTRY: Final = {
    INDEX: np.dtype([("offset", ">u4"), ("position", ">u4")]),
    TIME_INDEX: np.dtype([("timestamp", ">i8"), ("offset", ">u4")]),
}
_Numbers = NDArray[np.int64]
_CUT_TRIES: Final = 3  # index entries that are tried for one cut
_ENDS_BYTES_MAX: Final = (
    16 << 20
)  # of a file that may claim any size; brokers write 10 MB by default


def check_indexes(replica: Replica, segment: SegmentFile) -> pa.RecordBatch:
    """Return the rows of INDEX_ENTRIES for one segment; none if it is not `is_indexed`.

    A segment that cannot be read is reported in BATCHES; its indexes then cannot be checked.
    """
    rows: list[pa.RecordBatch] = []
    if segment.is_indexed:
        try:
            batches = locate_batches(segment)
        except OSError:
            pass
        else:
            rows = [*_check(replica, segment, INDEX, batches)]
            rows += _check(replica, segment, TIME_INDEX, batches)
    return pa.concat_batches(rows or [_row(replica, segment, INDEX).slice(1)])


def indexed_end(log: LogDirectory) -> int:
    """Return the end offset that the offset indexes of a log imply; 0 if they have no entries."""
    end = 0
    for segment in log.segments:
        try:
            data = _read(segment.path.with_suffix(f".{INDEX}"), _ENDS_BYTES_MAX)
        except OSError:
            continue
        entry = _ENTRY[INDEX]
        entries = np.frombuffer(data, entry, count=len(data) // entry.itemsize)
        if len(entries):
            end = max(end, segment.base_offset + int(entries["offset"].max()) + 1)
    return end


def find_cuts(segment: SegmentFile, bytes_each: int) -> list[int]:
    """Return positions at which a segment can be cut into parts of about `bytes_each` bytes.

    At each position the offset index names a batch, whose CRC is right. There are no cuts if the
    file is small, or if the index does not help.
    """
    if segment.size < 2 * bytes_each:
        return []
    cuts: list[int] = []
    try:
        data = read_file(segment.path.with_suffix(f".{INDEX}"))
        entry = _ENTRY[INDEX]
        entries = np.frombuffer(data, entry, count=len(data) // entry.itemsize)
        positions = np.unique(entries["position"].astype(np.int64))
        with open_file(segment.path) as descriptor:
            for wanted in range(bytes_each, segment.size - bytes_each // 2, bytes_each):
                at = int(np.searchsorted(positions, wanted))
                for position in map(int, positions[at : at + _CUT_TRIES]):
                    if is_sound_batch(descriptor, position, segment.size):
                        cuts.append(position)
                        break
    except OSError:
        return []
    return sorted(set(cuts))


def _check(
    replica: Replica, segment: SegmentFile, kind: str, batches: Located
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one index file."""
    entry = _ENTRY[kind]
    whole = len(batches.position) * entry.itemsize  # a batch has at most one entry
    try:
        data = _read(segment.path.with_suffix(f".{kind}"), whole + 1)
    except FileNotFoundError:
        yield _row(replica, segment, kind, problem="missing")
        return
    except OSError as error:
        yield _row(replica, segment, kind, problem=explain(error))
        return
    whole = min(whole, len(data) - len(data) % entry.itemsize)
    fields = np.frombuffer(data[:whole], entry)
    offsets = segment.base_offset + fields["offset"].astype(np.int64)
    columns: dict[str, object] = {"offset": offsets, "entry": np.arange(len(fields), dtype="i4")}
    if kind == INDEX:
        columns["position"] = positions = fields["position"].astype(np.int64)
        problems = _judge_positions(offsets, positions, batches)
    else:
        columns["timestamp"] = timestamps = fields["timestamp"].astype(np.int64)
        problems = _judge_timestamps(offsets, timestamps, batches)
    yield _rows(replica, segment, kind, len(fields), {**columns, "problem": problems})
    if len(data) > whole:
        yield _row(
            replica, segment, kind, problem=f"bytes behind the last of {len(fields)} entries"
        )
    elif kind == TIME_INDEX and not any(problems):
        newest = batches.max_timestamp.max(initial=NO_TIMESTAMP)
        if newest > (timestamps[-1] if len(timestamps) else NO_TIMESTAMP):
            problem = f"it ends before the newest batch, which is of {newest}"
            yield _row(replica, segment, kind, problem=problem)


def _read(path: Path, size_max: int) -> bytes:
    """Return the first bytes of a file."""
    with open_file(path) as descriptor:
        return os.pread(descriptor, size_max, 0)


def _judge_positions(offsets: _Numbers, positions: _Numbers, batches: Located) -> list[str | None]:
    """Return what is wrong with each entry of an offset index; None for a right one."""
    problems: list[str | None] = [None] * len(offsets)
    at, is_there = _look_up(batches.position, positions)
    for entry in np.flatnonzero(~is_there):
        problems[entry] = f"no batch begins at {positions[entry]}"
    ends = batches.last_offset[at]
    for entry in np.flatnonzero(is_there & (ends != offsets)):
        problems[entry] = f"the batch there ends with offset {ends[entry]}"
    _judge_order(problems, positions)
    return problems


def _judge_timestamps(
    offsets: _Numbers, timestamps: _Numbers, batches: Located
) -> list[str | None]:
    """Return what is wrong with each entry of a time index; None for a right one."""
    problems: list[str | None] = [None] * len(offsets)
    order = np.argsort(batches.last_offset, kind="stable")
    found, is_there = _look_up(batches.last_offset[order], offsets)
    for entry in np.flatnonzero(~is_there):
        problems[entry] = f"no batch ends with offset {offsets[entry]}"
    at = order[found]
    newest = batches.max_timestamp[at]
    for entry in np.flatnonzero(is_there & (newest != timestamps)):
        problems[entry] = f"the newest record of that batch is of {newest[entry]}"
    newest_before = np.maximum.accumulate(batches.max_timestamp)[at]
    for entry in np.flatnonzero(is_there & (newest == timestamps) & (newest_before > newest)):
        problems[entry] = f"a record before that is newer, of {newest_before[entry]}"
    _judge_order(problems, timestamps)
    return problems


def _look_up(sorted_values: _Numbers, wanted: _Numbers) -> tuple[_Numbers, NDArray[np.bool_]]:
    """Return the place of each wanted value and whether it exists; any place if it does not."""
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return at, sorted_values[at] == wanted


def _judge_order(problems: list[str | None], values: _Numbers) -> None:
    """Record a problem for right entries that are not above the right entry before them."""
    right = np.array([entry for entry, problem in enumerate(problems) if problem is None], int)
    for entry in right[1:][np.diff(values[right]) <= 0]:
        problems[entry] = "not above the entry before it"


def _row(replica: Replica, segment: SegmentFile, kind: str, **columns: object) -> pa.RecordBatch:
    """Return a row about a file as a whole."""
    return _rows(replica, segment, kind, 1, {k: [v] for k, v in columns.items()})


def _rows(
    replica: Replica, segment: SegmentFile, kind: str, count: int, columns: dict[str, Any]
) -> pa.RecordBatch:
    fixed = {**replica.columns, "segment": segment.base_offset, "kind": kind}
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.repeat(pa.scalar(fixed.get(field.name), field.type), count)
        for field in INDEX_ENTRIES
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=INDEX_ENTRIES)
