"""Proofs that a corruption did no harm, for those that an audit need not find.

A corrupted file may still be one that a broker could have written: an index is sparse, a high
watermark may be an older one, nobody reads a deleted segment. Each proof reads the file as it is
now by rules of its own and compares it with the batches as they were, or with the file before.
"""

import base64
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from minibroker.broker.log.checkpoints import CheckpointError, load_epochs, load_offsets
from minibroker.protocol.records.batch import BatchHeader, iterate_headers
from minibroker.protocol.types import TopicPartition
from tests.support.damage import Corruption

INDEX_ENTRY: Final = struct.Struct(">iI")
TIME_ENTRY: Final = struct.Struct(">qi")

Offsets = Mapping[TopicPartition, int]


def proof(corruption: Corruption, log_start: int) -> str:
    """Why the corruption is harmless, "" if nothing proves that it is.

    `log_start` is that of the log whose file it is.
    """
    name = corruption.path.name
    if name.endswith(".deleted"):
        return "of a deleted segment"
    if name.endswith("offset-checkpoint"):
        return OFFSETS[name](*map(_offsets, (corruption.before, corruption.after)))
    prove = LOG_FILES.get(corruption.path.suffix or name)
    return prove(corruption, log_start) if prove is not None else ""


# -- the files of a log


def _log(corruption: Corruption, log_start: int) -> str:
    """No byte at or behind the log start is another."""
    first_readable = next(
        position
        for position, header in iterate_headers(corruption.before)
        if header.next_offset > log_start
    )
    is_below = corruption.after[first_readable:] == corruption.before[first_readable:]
    return "below the log start" if is_below else ""


def _index(corruption: Corruption, log_start: int) -> str:
    """Every entry is the last offset and the position of a batch."""
    batches = dict(_batches(corruption))
    entries = _entries(corruption, INDEX_ENTRY)
    if entries is None or any(
        one[0] >= two[0] or one[1] >= two[1] for one, two in pairwise(entries)
    ):
        return ""
    base = int(corruption.path.stem)
    is_right = all(
        position in batches and batches[position].last_offset == base + relative
        for relative, position in entries
    )
    return "a sparser index" if is_right else ""


def _time_index(corruption: Corruption, log_start: int) -> str:
    """Every entry is the last offset of a batch and the newest time up to it, and the last one is
    the newest of all: by it a segment is judged when records of a time are looked for."""
    base = int(corruption.path.stem)
    newest: dict[int, int] = {}
    time = -1
    for _, header in _batches(corruption):
        newest[header.last_offset - base] = time = max(time, header.max_timestamp)
    entries = _entries(corruption, TIME_ENTRY)
    if entries is None or any(
        one[0] >= two[0] or one[1] >= two[1] for one, two in pairwise(entries)
    ):
        return ""
    is_right = entries[-1:] == [(time, max(newest))] and all(
        newest.get(relative) == timestamp for timestamp, relative in entries
    )
    return "a sparser index" if is_right else ""


def _epochs(corruption: Corruption, log_start: int) -> str:
    """It says what it said."""
    try:
        is_same = load_epochs(corruption.after) == load_epochs(corruption.before)
    except CheckpointError:
        return ""
    return "the same epochs" if is_same else ""


def _topic_id(corruption: Corruption, log_start: int) -> str:
    """It names the topic that it named; the last of 22 digits has bits that mean nothing."""
    before, after = (text.splitlines() for text in (corruption.before, corruption.after))
    if len(after) != len(before) or after[0] != before[0] or len(after[1]) != len(before[1]):
        return ""
    digits = (lines[1].partition(b" ")[2] for lines in (before, after))
    try:
        ids = [base64.urlsafe_b64decode(each + b"==") for each in digits]
    except ValueError:
        return ""
    return "the same topic id" if ids[0] == ids[1] else ""


LOG_FILES: Final[Mapping[str, Callable[[Corruption, int], str]]] = {
    ".log": _log,
    ".index": _index,
    ".timeindex": _time_index,
    "leader-epoch-checkpoint": _epochs,
    ".metadata": _topic_id,
}


def _batches(corruption: Corruption) -> list[tuple[int, BatchHeader]]:
    return [*iterate_headers(corruption.path.with_suffix(".log").read_bytes())]


def _entries(corruption: Corruption, entry: struct.Struct) -> list[tuple[int, int]] | None:
    """All entries; None if the file is no whole number of them."""
    if len(corruption.after) % entry.size:
        return None
    return [*entry.iter_unpack(corruption.after)]


# -- the files of a broker


def _offsets(content: bytes) -> Offsets:
    """What it says; nothing if it cannot be read."""
    try:
        return load_offsets(content)
    except CheckpointError:
        return {}


def _not_above(before: Offsets, after: Offsets) -> bool:
    return before.keys() == after.keys() and all(after[name] <= before[name] for name in before)


def _older_high_watermarks(before: Offsets, after: Offsets) -> str:
    return "older high watermarks" if _not_above(before, after) else ""


def _older_recovery_points(before: Offsets, after: Offsets) -> str:
    return "older recovery points" if _not_above(before, after) else ""


def _log_starts(before: Offsets, after: Offsets) -> str:
    return "the same log starts" if before == after else ""


OFFSETS: Final[Mapping[str, Callable[[Offsets, Offsets], str]]] = {
    "replication-offset-checkpoint": _older_high_watermarks,
    "recovery-point-offset-checkpoint": _older_recovery_points,
    "log-start-offset-checkpoint": _log_starts,
}
