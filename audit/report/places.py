"""The place of a finding: the file, and the command that shows its contents.

A finding names a broker, a log and perhaps a segment; the check determines which file has the
fault. If that is not a segment, the finding's detail says which entry of the file it is. If a
finding names an offset and no segment, the segments' names show which one it would be in, provided
that the log still exists at that path.
"""

import shlex
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minibroker.audit.files.checkpoints import parse_offset_name
from minibroker.audit.model import Finding
from minibroker.audit.summary import Summary

# Faults in the files beside a segment: their suffixes.
_SUFFIXES: Final[Mapping[str, str]] = {
    "index": "index",
    "snapshot": "snapshot",
    "transaction-index": "txnindex",
}
# Faults outside the segments: the name of the file in the log's directory ...
_IN_LOG: Final[Mapping[str, str]] = {"epoch-checkpoint": "leader-epoch-checkpoint"}
# ... or in the broker's.
_IN_BROKER: Final[Mapping[str, str]] = {"hw-beyond-leo": "replication-offset-checkpoint"}


@dataclass(frozen=True, slots=True)
class Place:
    """A file, or a directory if no single file is at fault; `position` is bytes in it."""

    path: Path
    position: int | None

    @property
    def command(self) -> str:
        """The command that shows the place."""
        return f"minibroker log dump {shlex.quote(str(self.path))}"

    def __str__(self) -> str:
        at = "" if self.position is None else f" at {self.position:,}"
        return f"{self.path.name}{at}"


class Places:
    """Finds the place of each finding of one audit."""

    def __init__(self, summary: Summary) -> None:
        self._brokers = {seen.broker: Path(seen.path) for seen in summary.brokers}
        self._logs = {
            (lane.broker, partition.topic, partition.partition): Path(lane.path)
            for partition in summary.partitions
            for lane in partition.lanes
            if lane.path
        }
        self._segments: dict[Path, Sequence[int]] = {}

    def of(self, finding: Finding) -> Place | None:
        """Return a finding's place; None if it names no broker, or one without files at hand."""
        if finding.broker is None:
            return None
        broker = self._brokers.get(finding.broker)
        if finding.check in _IN_BROKER and broker is not None:
            return Place(broker / _IN_BROKER[finding.check], None)
        if finding.topic is None or finding.partition is None:
            return None if broker is None else Place(broker, None)
        log = self._logs.get((finding.broker, finding.topic, finding.partition))
        if log is None:
            return None
        name = _IN_LOG.get(finding.check) or self._segment_file(finding, log)
        # The position in an index's finding is the entry's target, in another file.
        position = finding.position if name.endswith(".log") else None
        return Place(log / name, position) if name else Place(log, None)

    def _segment_file(self, finding: Finding, log: Path) -> str:
        segment = finding.segment
        if segment is None:
            if log not in self._segments:
                self._segments[log] = _segments_in(log)
            at = bisect_right(self._segments[log], -1 if finding.offset is None else finding.offset)
            return _file_name(self._segments[log][at - 1], "log") if at else ""
        suffix = _SUFFIXES.get(finding.check, "log")
        if suffix == "index" and "timeindex" in finding.detail:
            suffix = "timeindex"
        return _file_name(segment, suffix)


def _file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}.{suffix}"


def _segments_in(log: Path) -> Sequence[int]:
    """Return the offsets in the names of a log's segments; empty if the log no longer exists."""
    if "\0" in str(log):  # no path has it, but a damaged ledger may; Python 3.13 refuses it
        return ()
    offsets = (parse_offset_name(path.stem) for path in log.glob("*.log"))
    return sorted(offset for offset in offsets if offset is not None)
