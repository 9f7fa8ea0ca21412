"""The follower's role: a replica copies from its leader, and truncates where their logs diverge.

Every decision depends only on the log and one answer of the leader, and nothing waits.
`handle_answer` applies an answer and returns what the fetcher does next. Invalid answers and
refused requests are values; an exception (an I/O error of this broker's disk) stops the broker.

* The leader's bytes are appended unchanged. The high watermark follows the leader's up to the local
  log end, and may fall; the log start follows upwards (A7).
* A log that diverges is truncated by leader epoch only, never to the high watermark (A11). A
  truncation below the local high watermark would lose committed records. Unless the topic allows
  unclean election, or the log ends in an epoch before an unclean election, it is refused: the
  partition fails, keeps its log, and reports the failure until the next role.
* If the leader does not have the offset, the leader's log start and end decide (A12).

Subclasses may reconcile logs by other rules, whose effect the lab shows. They override
`begin`, `last_fetched_epoch`, `truncation_offset` and `may_truncate_below_high_watermark`.
"""

import logging
from enum import Enum
from typing import NamedTuple

from minibroker.broker.config import TopicConfig
from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import CheckedBatches, UnexpectedOffset
from minibroker.broker.log.log import Log
from minibroker.broker.log.scan import BadBytes
from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET, ErrorCode
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.messages.fetch import PartitionFetched
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import OffsetAndEpoch

logger = logging.getLogger(__name__)


class Next(Enum):
    """What a fetcher does with a partition after an answer."""

    FETCH = "fetch"  # ask for what follows
    BACK_OFF = "back off"  # ask again later, and later still if that fails too
    ASK_RANGE = "ask range"  # ask the leader where its log starts and ends, then `handle_range`
    STOP = "stop"  # nothing until the next role: it has failed


class LeaderAnswer(NamedTuple):
    """A leader's answer for one partition, and the offset of the request.

    `batches` are the answer's records, checked, or the `InvalidBatch` that the check raised.
    """

    asked_offset: int
    fetched: PartitionFetched
    batches: CheckedBatches | InvalidBatch


class FollowerOutcome(NamedTuple):
    """The result of an answer: `size` bytes were appended; `reason` says why that is not all.

    `is_routine`: a failover causes such reasons, and no operator needs to act on them.
    """

    next: Next
    reason: str = ""
    size: int = 0
    is_routine: bool = False


class Follower:
    """The follower's role in one leader epoch; `failure` is "" while it copies.

    `delay` is why the last answer was not usable, so that the partition is asked for again later;
    "" if it was usable.
    """

    error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # the answer to requests for it

    def __init__(self, state: PartitionState, high_watermark: int) -> None:
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.isr: tuple[int, ...] = state.isr  # as the controller last said
        self._unclean_epoch = state.unclean_epoch
        # As the leader sent it, never above the local log end. It may fall: a new leader may not
        # know yet how far its predecessor had committed.
        self.high_watermark = high_watermark
        # The leader's high watermark in its last answer; -1 before the first.
        self.leader_high_watermark = NO_OFFSET
        self.failure = ""
        self.delay = ""

    @property
    def reason(self) -> str:
        """Why a client's request is refused."""
        return self.failure or f"broker {self.leader} leads it"

    def lag(self, log: Log) -> int:
        """Return how many committed records are missing here, as far as is known."""
        return max(0, self.leader_high_watermark - log.log_end)

    def is_at_known_end(self, log: Log) -> bool:
        """Whether no committed record is missing here, by the leader's last answer in this role."""
        return self.leader_high_watermark != NO_OFFSET and self.lag(log) == 0

    # -- the rules that bring two logs together

    def begin(self, log: Log, now_ms: int) -> None:
        """Prepare the log for the first fetch: by rule A11, do nothing."""

    def last_fetched_epoch(self, log: Log) -> int:
        """Return the epoch by which the leader sees whether the logs diverge; -1: do not check."""
        return log.epochs.newest_epoch

    def truncation_offset(self, log: Log, divergence: OffsetAndEpoch) -> int:
        """Return where to truncate, given the leader's largest epoch up to ours and its end (A11).

        If this log does not have that epoch, it is truncated to the end of its largest epoch below,
        and the next fetch compares again.
        """
        ours = log.epochs.end_offset_for(divergence.leader_epoch, log.log_end)
        if ours.leader_epoch == NO_EPOCH:
            return min(divergence.offset, log.log_end)
        if ours.leader_epoch != divergence.leader_epoch:
            return min(ours.offset, log.log_end)
        return min(ours.offset, divergence.offset, log.log_end)

    def may_truncate_below_high_watermark(self, log: Log, settings: TopicConfig) -> bool:
        """Whether truncation may lose committed records: only if unclean elections are allowed, or
        there has been one since the log's newest epoch."""
        is_older = log.epochs.newest_epoch < self._unclean_epoch
        return settings.unclean_leader_election_enable or is_older

    # -- answers

    def handle_answer(
        self, log: Log, answer: LeaderAnswer, settings: TopicConfig, now_ms: int
    ) -> FollowerOutcome:
        """Apply a leader's answer to a FETCH of this role. Raises `OSError` if the disk fails."""
        fetched = answer.fetched
        if fetched.error:
            return self._handle_error(log, fetched.error)
        if answer.asked_offset != log.log_end:
            return self.fail(
                log, f"asked for offset {answer.asked_offset}, but the log ends at {log.log_end}"
            )
        if (fetched.diverging_epoch, fetched.diverging_end) != (NO_EPOCH, NO_OFFSET):
            divergence = OffsetAndEpoch(fetched.diverging_end, fetched.diverging_epoch)
            return self._handle_divergence(log, divergence, settings, now_ms)
        if isinstance(answer.batches, InvalidBatch):
            return FollowerOutcome(Next.BACK_OFF, f"it sent no batches: {answer.batches}")
        return self._append(log, answer.batches, fetched, now_ms)

    def handle_range(
        self, log: Log, theirs: tuple[int, int], settings: TopicConfig, now_ms: int
    ) -> FollowerOutcome:
        """Truncate or restart the log to fit the leader's log start and end, `theirs`, which do not
        include our log end (A12)."""
        start, end = theirs
        if not 0 <= start <= end:
            return FollowerOutcome(
                Next.BACK_OFF, f"it says that its log starts at {start}, ends at {end}"
            )
        if end < log.log_end:
            return self._truncate(log, end, settings, now_ms)
        if start > log.log_end:
            logger.warning(
                "%s: the leader's log starts at %s, above our end %s: starting again there",
                log.topic_partition,
                start,
                log.log_end,
            )
            try:
                log.restart_at(start, now_ms)
            except Refused as refused:
                return FollowerOutcome(Next.BACK_OFF, str(refused))
            self.high_watermark = start
            return FollowerOutcome(Next.FETCH)
        return FollowerOutcome(Next.BACK_OFF, f"it did not have offset {log.log_end}, now it has")

    def fail(self, log: Log, reason: str) -> FollowerOutcome:
        """Stop copying until the next role, and record and log the reason."""
        self.failure = reason
        logger.error(
            "%s: not copied from broker %s any more in epoch %s: %s",
            log.topic_partition,
            self.leader,
            self.leader_epoch,
            reason,
        )
        return FollowerOutcome(Next.STOP, reason)

    def _handle_error(self, log: Log, code: int) -> FollowerOutcome:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return FollowerOutcome(Next.ASK_RANGE)
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            # Routine in a failover: the leader knows the newer epoch, this broker will soon
            # (FOL-11).
            self.failure = f"broker {self.leader} is in a later epoch"
            logger.info("%s: %s than %s", log.topic_partition, self.failure, self.leader_epoch)
            return FollowerOutcome(Next.STOP, self.failure)
        name = ErrorCode(code).name if code in _KNOWN_CODES else f"error {code}"
        is_routine = code != ErrorCode.CORRUPT_MESSAGE
        return FollowerOutcome(
            Next.BACK_OFF, f"broker {self.leader} answers {name}", is_routine=is_routine
        )

    def _handle_divergence(
        self, log: Log, divergence: OffsetAndEpoch, settings: TopicConfig, now_ms: int
    ) -> FollowerOutcome:
        """Truncate only: the rest of such an answer is ignored (FOL-09)."""
        if min(divergence) < 0:
            return FollowerOutcome(Next.BACK_OFF, "it does not say where the logs parted")  # FOL-08
        before = (log.log_end, log.epochs.newest_epoch)
        outcome = self._truncate(log, self.truncation_offset(log, divergence), settings, now_ms)
        if outcome.next is Next.FETCH and (log.log_end, log.epochs.newest_epoch) == before:
            return FollowerOutcome(
                Next.BACK_OFF, f"it says that the logs parted at {divergence}, they did not"
            )
        return outcome

    def _truncate(
        self, log: Log, offset: int, settings: TopicConfig, now_ms: int
    ) -> FollowerOutcome:
        end, high_watermark = log.log_end, self.high_watermark
        if offset < high_watermark and not self.may_truncate_below_high_watermark(log, settings):
            return self.fail(
                log, f"a cut to {offset} would lose records committed below {high_watermark}"
            )
        try:
            log.truncate_to(offset, now_ms)
        except BadBytes as bad:
            return self.fail(log, f"it cannot be cut to {offset}: {bad}")
        except Refused as refused:
            return FollowerOutcome(Next.BACK_OFF, str(refused))
        self.high_watermark = min(high_watermark, log.log_end)
        if log.log_end < end:
            logger.warning(
                "%s: cut from %s to %s, where the log of broker %s in epoch %s parts from it"
                "; high watermark %s",
                log.topic_partition,
                end,
                log.log_end,
                self.leader,
                self.leader_epoch,
                high_watermark,
            )
        return FollowerOutcome(Next.FETCH)

    def _append(
        self, log: Log, batches: CheckedBatches, fetched: PartitionFetched, now_ms: int
    ) -> FollowerOutcome:
        try:
            if batches.headers and batches.headers[-1][1].leader_epoch > self.leader_epoch:
                raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "a batch of a later leader epoch")
            log.append_as_follower(batches, now_ms)
        except UnexpectedOffset as error:
            return self.fail(log, str(error))
        except InvalidBatch as error:
            return FollowerOutcome(Next.BACK_OFF, str(error))
        except Refused as error:
            # What the leader has deleted is deleted here, too: that makes room.
            log.raise_start(min(fetched.log_start, self.high_watermark))
            return FollowerOutcome(Next.BACK_OFF, str(error))
        self.leader_high_watermark = fetched.high_watermark
        self.high_watermark = max(log.log_start, min(fetched.high_watermark, log.log_end))
        if fetched.log_start > self.high_watermark:
            return self.fail(
                log,
                f"the leader's log starts at {fetched.log_start}, above its high watermark"
                f" {fetched.high_watermark}",
            )
        log.raise_start(fetched.log_start)
        return FollowerOutcome(Next.FETCH, size=batches.size)


_KNOWN_CODES = frozenset(ErrorCode)
