"""The `.txnindex` files of a log: for each segment the aborted transactions whose markers it has.

A broker tells a reader of committed records by these files alone which records to pass over. A
segment without an aborted transaction has no file. The files are checked where the other indexes
must be complete, too (`is_indexed`).
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from minibroker.audit.files.checkpoints import explain
from minibroker.audit.files.directories import LogDirectory, SegmentFile
from minibroker.audit.files.regular import read_file
from minibroker.audit.model import ABORTED

SUFFIX: Final = ".txnindex"
_VERSION: Final = 0
_NAMES: Final = ("producer_id", "first_offset", "last_offset", "stable")
_ENTRY: Final = np.dtype([("version", ">i2"), *((name, ">i8") for name in _NAMES)])


def read_aborted(logs: Iterable[LogDirectory]) -> pa.Table:
    """Return the table ABORTED of these logs."""
    tables = [
        table
        for log in logs
        for segment in log.segments
        if segment.is_indexed
        for table in _read(log, segment)
    ]
    return pa.concat_tables([ABORTED.empty_table(), *tables])


def _read(log: LogDirectory, segment: SegmentFile) -> Iterator[pa.Table]:
    yield _rows(log, segment, 1, {})
    path = segment.path.with_suffix(SUFFIX)
    if path.name not in log.names:
        return
    try:
        data = read_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield _rows(log, segment, 1, {"problem": [explain(error)]})
        return
    whole = len(data) - len(data) % _ENTRY.itemsize
    entries = np.frombuffer(data[:whole], _ENTRY)
    columns: dict[str, Any] = {name: entries[name].astype(np.int64) for name in _NAMES}
    problems = [
        None if version == _VERSION else f"an entry of version {version}"
        for version in entries["version"].tolist()
    ]
    columns |= {"entry": np.arange(len(entries), dtype="i4"), "problem": problems}
    yield _rows(log, segment, len(entries), columns)
    if len(data) > whole:
        problem = f"{len(data) - whole} bytes behind the last of {len(entries)} entries"
        yield _rows(log, segment, 1, {"problem": [problem]})


def _rows(log: LogDirectory, segment: SegmentFile, count: int, columns: dict[str, Any]) -> pa.Table:
    fixed: dict[str, Any] = {**log.replica.columns, "segment": segment.base_offset}
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.repeat(pa.scalar(fixed.get(field.name), field.type), count)
        for field in ABORTED
    ]
    return pa.Table.from_arrays(arrays, schema=ABORTED)
