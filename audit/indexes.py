"""The index files of one segment, each entry held against the batches of the segment.

An entry of `.index` names the last offset of a batch and the position where that batch begins. An
entry (t, o) of `.timeindex` says that up to offset o no record is newer than t: t is the largest
timestamp of the batch that ends with o, and of all before it. In both, entries grow strictly.

A time index is complete only if its last entry is the newest batch, for a reader who asks by time
passes over the whole segment by it. An offset index may be as sparse as it likes. So an offset
index that lost its last entries is right, and a time index that did is not.

Both are written when a segment is sealed or its broker stops cleanly; before that their files may
be missing or stale, and nobody relies on them. Only then are they judged (`is_indexed`).
"""

from typing import Final

import numpy as np
import pyarrow as pa

from minibroker.audit.directories import Replica, SegmentFile
from minibroker.audit.model import INDEX_ENTRIES

INDEX: Final = "index"
TIME_INDEX: Final = "timeindex"

_ENTRY = {
    INDEX: np.dtype([("offset", ">u4"), ("position", ">u4")]),
    TIME_INDEX: np.dtype([("timestamp", ">i8"), ("offset", ">u4")]),
}


def check_indexes(replica: Replica, segment: SegmentFile) -> pa.RecordBatch:
    """The rows of INDEX_ENTRIES for one segment; none if it is not `is_indexed`."""
    rows: list[dict[str, object]] = []
    return pa.RecordBatch.from_pylist(rows, schema=INDEX_ENTRIES)
