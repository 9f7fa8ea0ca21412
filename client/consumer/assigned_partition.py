"""One assigned partition of a consumer, and its position. Only positions.py writes it."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.consumer.completed_fetch import CompletedFetch
from minibroker.client.errors import PositionError
from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.types import TopicPartition

# After a passing error, doubled each time; a new leader often comes within a few of these.
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 0.2
# Leader epochs of fetched records; a divergence is found down to the oldest that is kept.
EPOCHS_KEPT_MAX: Final = 100


@dataclass(frozen=True, slots=True, eq=False)
class Reset:
    """A question for the next offset: the earliest or the latest, as `timestamp` says.

    Equal only to itself, so that an answer matches its own question: after a second seek to the
    end, the answer about the first is too old.
    """

    timestamp: int
    reason: str = ""  # why there is no position, unless the application asked for this
    is_gap: bool = False  # whether records may be skipped


class AssignedPartition:
    """One assigned partition.

    Either it has a position, or `reset` asks for one, or there is a failure, or else it waits for
    the group's committed offset. `retry_at` is the earliest time of the next request, and `epochs`
    has the leader epochs of the fetched records.

    The application is done below `processed_offset`; it works on the delivered records from there
    on if `is_in_progress`. `committed` is the last committed offset, as far as this client knows
    it; None after a seek. `reported_end` is the end that was reported to the application as
    reached. `readable_end` is the last known offset up to which records can be read: the high
    watermark, or for committed records alone the last stable offset.
    """

    __slots__ = (
        "committed",
        "epochs",
        "failed_epoch",
        "failure",
        "failures",
        "fetch_offset",
        "fetches",
        "high_watermark",
        "is_in_progress",
        "is_out_of_range",
        "is_paused",
        "last_taken_at",
        "name",
        "position",
        "processed_offset",
        "readable_end",
        "reported_end",
        "reset",
        "retry_at",
    )

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.is_paused = False
        self.high_watermark = NO_OFFSET
        self.readable_end = NO_OFFSET
        self.last_taken_at: float | None = None  # when records were last taken; None after a pause
        self.seek(None)

    def seek(self, offset: int | None, reset: Reset | None = None) -> None:
        """Go on from `offset`, or from the answer to `reset`."""
        self.position = offset
        self.fetch_offset = offset
        self.processed_offset = offset
        self.reported_end: int | None = None
        self.committed: int | None = None
        self.is_in_progress = False
        self.reset = reset
        self.fetches: deque[CompletedFetch] = deque()
        self.failure: tuple[type[PositionError], str] | None = None
        self.is_out_of_range = False
        self.failures = 0
        self.failed_epoch = NO_EPOCH
        self.retry_at = float("-inf")
        self.epochs = EpochHistory(entries_max=EPOCHS_KEPT_MAX)

    def truncate(self, offset: int) -> None:
        """Go on from `offset`, which is not ahead, and keep the epochs of the records before it."""
        epochs = self.epochs
        epochs.truncate_from_end(offset)
        self.seek(offset)
        self.epochs = epochs

    def divergence(self, epoch: int, end: int) -> int:
        """Return the offset up to which the leader's log has the fetched records (A11).

        The leader's largest epoch up to ours is `epoch`, which ended at `end` there.
        """
        assert self.fetch_offset is not None
        ours = self.epochs.end_offset_for(epoch, self.fetch_offset).offset
        return max(0, min(end, self.fetch_offset if ours == NO_OFFSET else ours))

    @property
    def unreported_end(self) -> int | None:
        """The last known end, if all records before it were taken and it was not reported."""
        end = self.readable_end
        is_reached = self.position == end != self.reported_end and not self.fetches
        return end if is_reached and not self.is_paused else None

    @property
    def awaits_committed(self) -> bool:
        """Whether it waits for the group's committed offset."""
        return self.position is None and self.reset is None and self.failure is None

    def start_at(self, committed: OffsetAndMetadata) -> None:
        """Go on from the committed offset."""
        self.seek(committed.offset)
        self.committed = committed.offset
        if committed.offset and committed.leader_epoch != NO_EPOCH:
            self.epochs.assign(committed.leader_epoch, committed.offset - 1)

    def committable(self, offset: int) -> OffsetAndMetadata:
        """Return an offset to commit, with the epoch of the record before it."""
        return OffsetAndMetadata(offset, leader_epoch=self.epochs.epoch_at(offset - 1, NO_EPOCH))

    @property
    def has_uncommitted(self) -> bool:
        """Whether the application is done with more than was committed."""
        return self.processed_offset is not None and (
            self.committed is None or self.processed_offset > self.committed
        )

    def may_ask(self, leader_epoch: int, now: float) -> bool:
        """Whether no request has failed lately. A new leader is a new try (CPR-13, for
        consumers)."""
        return self.retry_at <= now or leader_epoch > self.failed_epoch

    def defer(self, now: float, leader_epoch: int) -> None:
        """Handle a passing error, in this leader epoch: ask again a little later."""
        self.failed_epoch = leader_epoch
        self.retry_at = now + min(RETRY_S * 2 ** min(self.failures, 10), RETRY_S_MAX)
        self.failures += 1

    @property
    def is_fetchable(self) -> bool:
        """Whether more records of it are wanted, if there is room."""
        return (
            self.fetch_offset is not None
            and self.failure is None
            and not self.is_out_of_range
            and not self.is_paused
        )
