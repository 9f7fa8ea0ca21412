"""The leader epochs of what a reader has fetched: where each began, as far as it has seen.

After an unclean election a leader may lack records that a consumer has read, or hold others at
their offsets. So each FETCH names the epoch of the last record before its offset, as a follower's
does, and a leader whose log parts from the reader's answers with an epoch and where that ended
(A10). The reader's own trail then tells, by the follower's rule (A11), the offset up to
which both are surely the same. A trail of many epochs forgets the oldest: then a reader goes back
no further than to where the oldest that is left began.

This takes the place of OFFSETS_FOR_LEADER_EPOCH, which Kafka's consumers ask once they learn of a
new leader: it costs no round trip, needs no state between, and checks every read, at the leader,
in the same moment.
"""

from typing import Final

from minibroker.protocol.constants import NO_EPOCH
from minibroker.protocol.types import OffsetAndEpoch

EPOCHS_KEPT_MAX: Final = 100


class EpochHistory:
    """Epochs and their first offsets, both strictly increasing."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: list[OffsetAndEpoch] = []

    @property
    def last_epoch(self) -> int:
        """That of the last record fetched; -1 where none was."""
        return self._starts[-1].leader_epoch if self._starts else NO_EPOCH

    def epoch_before(self, offset: int) -> int:
        """That of the last record before an offset that was fetched; -1 where it is not known."""
        before = (start.leader_epoch for start in self._starts if start.offset < offset)
        return max(before, default=NO_EPOCH)

    def record(self, start: OffsetAndEpoch) -> None:
        """A batch of this epoch was fetched, from this offset on."""
        if start.leader_epoch > self.last_epoch:
            self._starts.append(start)
            del self._starts[:-EPOCHS_KEPT_MAX]

    def divergence(self, epoch: int, end: int, fetch_offset: int) -> int:
        """Up to where the logs are the same, if in the leader's `epoch` ended at `end`."""
        later = (start.offset for start in self._starts if start.leader_epoch > epoch)
        return max(0, min(end, next(later, fetch_offset)))

    def truncate(self, offset: int) -> None:
        """Forget what was fetched from this offset on."""
        self._starts = [start for start in self._starts if start.offset < offset]
