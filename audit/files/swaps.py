"""Copies that compaction had finished, and not yet put in the place of the segments they replace.

Compaction writes the copy of some segments to `N.log.cleaned`, which a start removes. Once it is
whole it is renamed to `N.log.swap`: from then on it is the log, and a start removes the segments
whose offsets it has. A broker that was killed in between leaves both.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from minibroker.audit.files.regular import open_file
from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC
from minibroker.protocol.records.batch import read_header

SWAP_SUFFIX: Final = ".log.swap"


def replaced_by(
    directory: Path, swaps: Sequence[int], bases: Sequence[int]
) -> Mapping[int, Sequence[int]]:
    """Return the copies that count, by base offset, each with the base offsets of the segments that
    it replaces. `swaps` and `bases` are the base offsets in the names of copies and segments."""
    found: dict[int, Sequence[int]] = {}
    for base_offset in swaps:
        end = _end_of(directory / f"{base_offset:020}{SWAP_SUFFIX}")
        if end is None and base_offset in bases:
            continue  # it is damaged: its broker keeps the segments
        found[base_offset] = [each for each in bases if base_offset <= each < (end or 0)]
    return found


def _end_of(path: Path) -> int | None:
    """Return the offset behind the last batch of a whole copy; None if it is not whole."""
    position, end = 0, None
    try:
        with open_file(path) as descriptor:
            size = os.fstat(descriptor).st_size
            while size - position >= BATCH_HEADER_BYTES:
                header = read_header(os.pread(descriptor, BATCH_HEADER_BYTES, position))
                if header.magic != MAGIC or header.size < BATCH_HEADER_BYTES:
                    return None
                position += header.size
                end = header.next_offset
    except (OSError, struct.error):
        return None
    return end if position == size else None
