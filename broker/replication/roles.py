"""What a broker is for one partition, one class a role; each carries only what its role needs.

* `Leader`: takes appends, serves reads, and says how far records are committed. It alone moves
  the high watermark, and only upwards.
* `Offline`: holds the log but serves nothing, and says why.

`Partition` is the only one that swaps them. The high watermark is the first offset that is not
committed: every in-sync replica has everything below it. It is looked at again after an own
append, a follower's progress, a change of the in-sync set and the start of a term; and, with
`flush=always`, when an own fsync returns, because then the own end is the durable one.
"""

from minibroker.broker.metadata.model import PartitionState
from minibroker.protocol.constants import NO_OFFSET, ErrorCode


class Offline:
    """No role that serves. `error` and `reason` are what a request gets to hear."""

    __slots__ = ("error", "high_watermark", "reason")

    def __init__(self, error: ErrorCode, reason: str, high_watermark: int) -> None:
        self.error = error
        self.reason = reason
        # As last known: it goes on into checkpoints and into the next role.
        self.high_watermark = high_watermark


class Leader:
    """The leader's term: one leader epoch, from the log end at which it began."""

    __slots__ = (
        "_broker_id",
        "_follower_ends",
        "epoch_start",
        "high_watermark",
        "isr",
        "leader_epoch",
        "replicas",
    )

    def __init__(
        self, broker_id: int, state: PartitionState, epoch_start: int, high_watermark: int
    ) -> None:
        assert state.leader == broker_id, "only the leader leads"
        assert 0 <= high_watermark <= epoch_start, "nothing is committed that the log lacks"
        self._broker_id = broker_id
        self.leader_epoch = state.leader_epoch
        self.epoch_start = epoch_start
        # Never falls within the term, never above the own log end.
        self.high_watermark = high_watermark
        # NO_OFFSET until a follower fetches in this term: before that it may lack anything, and
        # holds the high watermark where it is.
        self._follower_ends: dict[int, int] = {}
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.update(state)

    def update(self, state: PartitionState) -> None:
        """Take over a confirmed in-sync set and assignment of the same term."""
        assert state.leader_epoch == self.leader_epoch, "another term is another Leader"
        known = self._follower_ends
        self.replicas = state.replicas
        self.isr = state.isr
        self._follower_ends = {
            replica: known.get(replica, NO_OFFSET)
            for replica in state.replicas
            if replica != self._broker_id
        }

    def note_fetch(self, replica_id: int, offset: int) -> None:
        """A follower fetched from `offset` on: it has everything below, and nothing is known of
        what the answer brings it."""
        assert replica_id in self._follower_ends, "strangers are refused before"
        self._follower_ends[replica_id] = offset

    def is_isr_large_enough(self, min_insync_replicas: int) -> bool:
        """Whether acks=all may be promised. More than there are replicas cannot be asked for."""
        return len(self.isr) >= min(min_insync_replicas, len(self.replicas))

    def advance(self, own_end: int, min_insync_replicas: int) -> bool:
        """Raise the high watermark to what every in-sync replica has; say whether it rose."""
        if not self.is_isr_large_enough(min_insync_replicas):
            return False
        candidate = own_end
        for replica in self.isr:
            if replica != self._broker_id:
                candidate = min(candidate, self._follower_ends[replica])
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True
