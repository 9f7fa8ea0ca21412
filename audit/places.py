"""Where a finding is to be seen: the file, and the command that shows what lies in it.

A finding names a broker, a log and perhaps a segment; which file holds the fault follows from the
check that found it. Where that is not a segment, the finding's detail says which entry it is.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minibroker.audit.model import Finding
from minibroker.audit.summary import Summary

# Faults outside the segments: the file's name, in the log's directory ...
_IN_LOG: Final[Mapping[str, str]] = {"epoch-checkpoint": "leader-epoch-checkpoint"}
# ... or in the broker's.
_IN_BROKER: Final[Mapping[str, str]] = {"hw-beyond-leo": "replication-offset-checkpoint"}


@dataclass(frozen=True, slots=True)
class Place:
    """A file, or a directory where no single file is at fault; `position` is bytes in it."""

    path: Path
    position: int | None

    @property
    def command(self) -> str:
        """What to type to see it."""
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

    def of(self, finding: Finding) -> Place | None:
        """None where the finding is of no broker, or of one whose files are not at hand."""
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
        name = _IN_LOG.get(finding.check) or _segment_file(finding)
        # The position of an index's finding is where its entry points, in another file.
        position = finding.position if name.endswith(".log") else None
        return Place(log / name, position) if name else Place(log, None)


def _segment_file(finding: Finding) -> str:
    if finding.segment is None:
        return ""
    suffix = {"index": "index", "snapshot": "snapshot"}.get(finding.check, "log")
    if suffix == "index" and "timeindex" in finding.detail:
        suffix = "timeindex"
    return f"{finding.segment:020d}.{suffix}"
