"""Batches of a segment whose records cannot be read although their CRC is right.

A broker stores what a producer sent without decoding it, so the CRC, and all replicas, may agree on
bytes that are not records. Only decoding all of them shows that. It is done as `files.records` does
it, and only what is wrong is kept. Batches with a wrong CRC and control batches are left out: other
columns report those.
"""

import os
import struct
from typing import Any

import pyarrow as pa

from minibroker.audit.files.directories import Replica, SegmentFile
from minibroker.audit.files.records import NoRecords, decode_batch, find_batches
from minibroker.audit.files.regular import open_file
from minibroker.audit.model import BODIES
from minibroker.protocol.records.batch import read_header


def check_bodies(replica: Replica, segment: SegmentFile, begin: int = 0) -> pa.RecordBatch:
    """Return the rows of BODIES for one file from the position `begin` on.

    A file that cannot be read is reported in BATCHES.
    """
    rows: list[dict[str, Any]] = []
    try:
        with open_file(segment.path) as descriptor:
            for position, size in find_batches(replica, segment, begin=begin):
                batch = os.pread(descriptor, size, position)
                try:
                    decode_batch(batch)
                except NoRecords as problem:
                    header = read_header(batch)
                    place = {"segment": segment.base_offset, "position": position}
                    offsets = {"base_offset": header.base_offset, "last_offset": header.last_offset}
                    rows.append({**replica.columns, **place, **offsets, "problem": str(problem)})
                except struct.error:
                    pass  # the file was truncated since the scan
    except OSError:
        pass
    return pa.RecordBatch.from_pylist(rows, schema=BODIES)
