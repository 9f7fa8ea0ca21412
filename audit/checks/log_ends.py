"""What is known of a log before it is judged: where it and each of its leader epochs end.

Also where a log will end once it is truncated to a leader's epochs, as its broker will do when it
follows that leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from minibroker.audit.files.cluster import Left
from minibroker.audit.files.inputs import Trace


class EpochEnd(NamedTuple):
    """The end offset of a leader epoch in a log, and how many records of it the log holds."""

    epoch: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The extent of one log, by its batches. `first_offset` is None if there are none.

    `epoch_ends` ascend in epoch and in end; see `ascending`. `is_whole`: no batch fails its CRC,
    each begins where another ends, and all epochs can be true. `digest` is equal for logs with the
    same batches; None if unknown. `cleaned_end` is the offset behind the last batch that compaction
    has visibly changed, 0 if there is none.
    """

    first_offset: int | None
    log_end: int
    epoch_ends: tuple[EpochEnd, ...] = ()
    is_whole: bool = True
    digest: int | None = None
    cleaned_end: int = 0

    @classmethod
    def empty(cls, base_offset: int = 0) -> "LogFacts":
        """Return the facts of a log without batches, whose last segment begins at this offset."""
        return cls(None, base_offset)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to this one in the log, and its end; if all are newer, the
        given epoch and the log's first offset (A9)."""
        upto = [found for found in self.epoch_ends if found.epoch <= epoch]
        if not upto:
            return epoch, self.log_end if self.first_offset is None else self.first_offset
        is_newest = len(upto) == len(self.epoch_ends)
        return upto[-1].epoch, self.log_end if is_newest else upto[-1].end


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """One log at hand, and its values in the broker's checkpoints: None if they have none.

    `state` is that of its broker: "stopped", "killed" or "live". `is_lost`: the broker's data
    directory is at hand, but has no directory of this log; it counts as an empty one. `left` is
    where it ended when its broker stopped in order, `led` where the logs of its followers end that
    replicated from it in the newest epoch: it went at least as far. `trace` is the file beside the
    segments that names the highest offset. `told_cleaned`: its broker's checkpoint says that it has
    compacted the log. `written_ms` is when a segment was last written.
    """

    broker: int
    topic: str
    partition: int
    state: str
    log: LogFacts
    log_start: int | None = None
    high_watermark: int | None = None
    recovery_point: int | None = None
    is_lost: bool = False
    left: Left | None = None
    trace: Trace | None = None
    led: Left | None = None
    told_cleaned: bool = False
    written_ms: int | None = None

    @property
    def as_left(self) -> LogFacts:
        """The log as it was when its broker ended, as far as that is known."""
        log = self.log
        known = [end for end in (self.left, self.led) if end is not None]
        left = max(known, key=lambda end: end.log_end, default=None)
        if left is None or left.log_end <= log.log_end:
            return log
        older = tuple(each for each in log.epoch_ends if each.epoch < left.last_epoch)
        length = left.log_end - (older[-1].end if older else 0)
        ends = (*older, EpochEnd(left.last_epoch, left.log_end, length))
        return replace(log, log_end=left.log_end, epoch_ends=ends)


def ascending(found: Iterable[EpochEnd]) -> tuple[EpochEnd, ...]:
    """Return the epochs of a log that can all be true, with as many records as possible.

    The epoch in a batch's header is not covered by its CRC. Because of one flipped bit there the
    audit must not believe that the log diverged from the leader's at that offset, and so judge
    nothing beyond it.
    """
    chains: list[tuple[int, tuple[EpochEnd, ...]]] = [(0, ())]
    for one in sorted(end for end in found if end.epoch >= 0):
        records, chain = max(
            ((size, chain) for size, chain in chains if not chain or chain[-1].end < one.end),
            key=lambda known: known[0],
        )
        chains.append((records + one.records, (*chain, one)))
    return max(chains, key=lambda known: known[0])[1]


def kept_end(own: LogFacts, leader: LogFacts) -> int:
    """Return where a log will end once it is truncated to the leader's epochs (A11).

    The leader is assumed to be in a later epoch than either log has, as a newly elected one is.
    """
    end = own.log_end
    if not own.epoch_ends:
        return end
    mine = own.epoch_ends[-1].epoch
    while True:
        asked = mine
        theirs, their_end = leader.end_of(asked)
        mine, my_end = own.end_of(theirs)
        end = min(end, my_end)
        if mine == theirs:
            return min(end, their_end)


def start_of(replica: ReplicaFacts) -> int:
    """Return the offset of a log's first record; its end if it has none."""
    if replica.log.first_offset is None:
        return replica.log.log_end
    return min(max(replica.log_start or 0, replica.log.first_offset), replica.log.log_end)


def last_epoch(log: LogFacts) -> int | None:
    """Return the newest leader epoch in a log; None if it has no batches."""
    return log.epoch_ends[-1].epoch if log.epoch_ends else None
