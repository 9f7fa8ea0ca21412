"""The roles of a replica, one class each; a class holds only the state that its role needs.

* `Leader`: accepts appends, serves reads, and says how far records are committed. It alone moves
  the high watermark, and only upwards.
* `Follower` (`follower.py`): copies the leader's log.
* `Offline`: keeps the log but serves nothing, and says why.

Only `Partition` swaps them. The high watermark is the first offset that is not committed: every
replica that counts has everything below it. The replicas that count are the in-sync set and those
about to join it: a replica that keeps up but is not confirmed yet also holds the high watermark
back, or it would have to catch up with a moving target. The leader recomputes the high watermark
after its own append, a follower's progress, a change of the in-sync set, the start of a term and
on a timer; with `flush=always` also when its own fsync returns, because its end is then the durable
one.

Only the controller changes the in-sync set. A leader proposes one change at a time. Until the
answer arrives it counts with the stricter of both sets: a replica that joins counts at once, one
that leaves counts until the controller has confirmed the removal. Otherwise a leader that was
replaced in the meantime could commit records that its successor does not have.

Before the controller elects another leader while this one is alive, it tells this one to hand over
(HAND_OVER): the leader refuses records that it would acknowledge alone (acks 0 and 1) until the
target has everything appended before. The leader still accepts acks=all, which no in-sync set
without the target can acknowledge. So the election loses no acknowledged record.

Methods that decide are small and public, so that a test can replace the one rule it is about.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.follower_silence import FollowerSilence
from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET, ErrorCode
from minibroker.protocol.messages.control import PartitionState

NEVER: Final = -math.inf  # a clock may begin at 0


class LocalBroker(NamedTuple):
    """The broker that a replica is on, and what it knows about the other brokers.

    `lag_s_max` is how long a follower may be behind; `live_broker` looks up a registered broker;
    `follower_silence` knows which followers send no FETCH.
    """

    broker_id: int
    lag_s_max: float
    live_broker: Callable[[int], BrokerImage | None]
    follower_silence: FollowerSilence = FollowerSilence(math.inf)


class Committed(NamedTuple):
    """The in-sync set as the controller confirmed it, with no change in flight."""

    isr: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that count: the in-sync set."""
        return self.isr


@dataclass(frozen=True, slots=True, eq=False)
class PendingExpand:
    """A proposal to add a replica, in flight. Equal only to itself, so that an answer matches only
    its own proposal."""

    isr: tuple[int, ...]
    proposed: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that count: a replica that joins counts at once."""
        return self.proposed


@dataclass(frozen=True, slots=True, eq=False)
class PendingShrink:
    """A proposal to remove replicas, in flight. Equal only to itself."""

    isr: tuple[int, ...]
    proposed: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that count: those that leave count until the removal is confirmed."""
        return self.isr


Pending: TypeAlias = PendingExpand | PendingShrink
IsrState: TypeAlias = Committed | Pending


class FollowerFetch(NamedTuple):
    """What a follower reports with a fetch: it has everything below `offset`."""

    replica_id: int
    offset: int
    log_start: int = NO_OFFSET
    broker_epoch: int = NO_EPOCH


class LastFetch:
    """A follower's last fetch in one fetch session. It counts for every partition that rests in
    this session. `fetched_at` in seconds."""

    __slots__ = ("broker_epoch", "fetched_at")

    def __init__(self) -> None:
        self.fetched_at = NEVER
        self.broker_epoch = NO_EPOCH


class Progress:
    """A leader's view of one follower (A1). Times in seconds, offsets -1 until it fetches.

    `sent_from` is the first offset of the records sent in answer to its last fetch, -1 if none
    were. `leader_end` is the leader's log end at the follower's last fetch. `caught_up_at` is the
    last time at which the follower is known to have had everything that the leader had.

    While the partition rests in a fetch session, each fetch of the session repeats the follower's
    last fetch of the partition, at the leader's end. Then the times are those of `_resting_in`.
    """

    __slots__ = (
        "_broker_epoch",
        "_caught_up_at",
        "_fetched_at",
        "_resting_in",
        "leader_end",
        "log_end",
        "log_start",
        "sent_from",
    )

    def __init__(self, caught_up_at: float = NEVER) -> None:
        self.log_end = NO_OFFSET
        self.log_start = NO_OFFSET
        self.leader_end = NO_OFFSET
        self.sent_from = NO_OFFSET
        self._broker_epoch = NO_EPOCH
        self._fetched_at = NEVER
        self._caught_up_at = caught_up_at
        self._resting_in: LastFetch | None = None

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of the follower at its last fetch."""
        last = self._resting_in
        return self._broker_epoch if last is None else last.broker_epoch

    @property
    def fetched_at(self) -> float:
        """When the follower last fetched."""
        last = self._resting_in
        return self._fetched_at if last is None else last.fetched_at

    @property
    def caught_up_at(self) -> float:
        """When the follower last had everything that the leader had."""
        last = self._resting_in
        return self._caught_up_at if last is None else last.fetched_at

    @property
    def is_resting(self) -> bool:
        """Whether the fetches of a session count without being recorded one by one."""
        return self._resting_in is not None

    def record_fetch(self, fetch: FollowerFetch, leader_end: int, now: float) -> None:
        """Record a fetch.

        A follower that has reached the leader's end as of its previous fetch was caught up at that
        time: otherwise a busy leader would have no in-sync follower.
        """
        self._keep_times()
        if fetch.offset >= leader_end:
            self._caught_up_at = max(self._caught_up_at, now)
        elif fetch.offset >= self.leader_end:
            self._caught_up_at = max(self._caught_up_at, self._fetched_at)
        self.log_end = fetch.offset
        self.log_start = fetch.log_start
        self.leader_end = max(self.leader_end, leader_end)
        self.sent_from = NO_OFFSET
        self._broker_epoch = fetch.broker_epoch
        self._fetched_at = now

    def carry_on(self, *, is_in_sync: bool, leader_end: int, now: float) -> None:
        """Start the same leader's next term: keep what it knows about the follower's log."""
        self._keep_times()
        self.leader_end = leader_end
        self._caught_up_at = self._fetched_at = now if is_in_sync else NEVER

    def rest_in(self, last: LastFetch) -> None:
        """Count the fetches of a session from now on. Its last fetch, at the leader's end, was
        recorded."""
        self._resting_in = last

    def end_rest(self, last: LastFetch) -> None:
        """Stop counting the fetches of this session."""
        if self._resting_in is last:
            self._keep_times()

    def _keep_times(self) -> None:
        last = self._resting_in
        if last is not None:
            self._fetched_at = self._caught_up_at = last.fetched_at
            self._broker_epoch = last.broker_epoch
            self._resting_in = None


class Handover(NamedTuple):
    """The target that is to lead next, and the log end that it must reach first: nothing above it
    was appended with acks 0 or 1. A handover expires at `until` (seconds)."""

    target: int
    end: int
    until: float


class Offline:
    """A replica that serves nothing. Requests are refused with `error` and `reason`."""

    __slots__ = ("error", "high_watermark", "reason")

    def __init__(self, error: ErrorCode, reason: str, high_watermark: int) -> None:
        self.error = error
        self.reason = reason
        # The last known one, for checkpoints and for the next role.
        self.high_watermark = high_watermark


class Leader:
    """The leader role in one term: a leader epoch, and the log end at which it began.

    `own_end` in the methods is `Partition.own_end`: this replica's log end, as far as it counts for
    the high watermark.
    """

    __slots__ = (
        "_handover",
        "_local_broker",
        "_progress",
        "assigned",
        "epoch_start",
        "high_watermark",
        "isr_state",
        "leader_epoch",
        "replicas",
        "start_required",
    )

    def __init__(
        self,
        local_broker: LocalBroker,
        state: PartitionState,
        epoch_start: int,
        high_watermark: int,
        now: float,
    ) -> None:
        assert state.leader == local_broker.broker_id, "only the leader leads"
        assert 0 <= high_watermark <= epoch_start, "nothing is committed that the log lacks"
        self._local_broker = local_broker
        self.leader_epoch = state.leader_epoch
        self.epoch_start = epoch_start
        # Never falls within the term, never above the own log end.
        self.high_watermark = high_watermark
        # A follower's end is unknown until it fetches in this term: until then it may lack
        # anything, and holds the high watermark where it is.
        self._progress = {
            replica: Progress(caught_up_at=now if replica in state.isr else NEVER)
            for replica in state.replicas
            if replica != local_broker.broker_id
        }
        self.replicas: tuple[int, ...] = state.replicas
        # The assignment before a reassignment under way: min.insync.replicas counts with it, so
        # that a partition with one replica goes on while its second one copies.
        self.assigned: tuple[int, ...] = state.original or state.replicas
        self.isr_state: IsrState = Committed(state.isr)
        self._handover: Handover | None = None
        # A follower whose log starts below this may hold deleted records, and must not lead.
        self.start_required = 0

    def succeed(self, before: "Leader", now: float) -> None:
        """Keep the followers' progress from the term right before, in which this broker led too.

        After any other term nothing is kept: a leader in between may have made the followers
        truncate their logs.
        """
        assert before.leader_epoch + 1 == self.leader_epoch
        for replica in self._progress:
            known = before.progress_of(replica)
            if known is not None:
                is_in_sync = replica in self.isr
                known.carry_on(is_in_sync=is_in_sync, leader_end=self.epoch_start, now=now)
                self._progress[replica] = known

    def update(self, state: PartitionState) -> None:
        """Set a confirmed in-sync set and assignment of the same term. It settles a pending
        proposal."""
        assert state.leader_epoch == self.leader_epoch, "another term is another Leader"
        known = self._progress
        self.replicas = state.replicas
        self.assigned = state.original or state.replicas
        self.isr_state = Committed(state.isr)
        self._progress = {
            replica: known.get(replica) or Progress()
            for replica in state.replicas
            if replica != self._local_broker.broker_id
        }

    # -- handing over

    def hand_over(self, target: int, log_end: int, now: float, until: float) -> None:
        """Refuse records with acks 0 or 1 until `until`. If the order is repeated before it
        expires, the log end of the first one stays."""
        before = self._handover
        end = log_end
        if before is not None and self.is_handing_over(now) and before.target == target:
            end = before.end
        self._handover = Handover(target, end, until)

    def keep_leading(self) -> None:
        """End the handover."""
        self._handover = None

    def is_handing_over(self, now: float) -> bool:
        """Whether records with acks 0 and 1 are refused."""
        return self._handover is not None and now < self._handover.until

    def has_handed_over(self) -> bool:
        """Whether the target has every record that this leader acknowledged alone."""
        handover = self._handover
        if handover is None:
            return False
        progress = self._progress.get(handover.target)
        return (
            progress is not None
            and progress.log_end >= handover.end
            and self.is_eligible(handover.target, progress)
        )

    # -- the in-sync set

    @property
    def broker_id(self) -> int:
        """The id of the leading broker."""
        return self._local_broker.broker_id

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync set as confirmed."""
        return self.isr_state.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that count: in sync now or after the change in flight (K1)."""
        return self.isr_state.maximal_isr

    @property
    def minimal_isr(self) -> tuple[int, ...]:
        """The replicas that are in sync both now and after the change in flight."""
        state = self.isr_state
        return state.proposed if isinstance(state, PendingShrink) else state.isr

    def must_keep_up(self, replica_id: int) -> bool:
        """Whether acks=all may wait for a follower, so that no quota may hold it back: it is in
        sync now or after the change in flight."""
        return replica_id in self.maximal_isr

    def progress_of(self, replica_id: int) -> Progress | None:
        """The progress of a follower; None for a broker that is not one."""
        return self._progress.get(replica_id)

    def is_caught_up(self, progress: Progress, own_end: int, now: float) -> bool:
        """Whether a follower is at the end, or was within `lag_s_max` (PAR-11, PAR-13).

        If the log is empty, even a follower that never fetched is at the end: it may still be busy
        creating its other logs.
        """
        return (
            own_end == 0
            or progress.log_end >= own_end
            or now - progress.caught_up_at <= self._local_broker.lag_s_max
        )

    def is_eligible(self, replica_id: int, progress: Progress) -> bool:
        """Whether a follower may join: it is live, not fenced, not shutting down, and its current
        registration is the one that fetched (A3.3)."""
        live = self._local_broker.live_broker(replica_id)
        return (
            live is not None
            and not live.is_shutting_down
            and not live.is_fenced
            and progress.broker_epoch in (NO_EPOCH, live.epoch)
        )

    def has_reached(self, progress: Progress) -> bool:
        """Whether a follower has everything that may be committed (A3.4, A3.5; PAR-06).

        The start of the term counts because a new leader's high watermark may lag behind what its
        predecessor committed, and all of that lies below the start.
        """
        return progress.log_end >= max(self.high_watermark, self.epoch_start)

    def has_deleted(self, progress: Progress) -> bool:
        """Whether a follower has none of the deleted records (A3.6)."""
        return self.start_required == 0 or progress.log_start >= self.start_required

    def low_watermark(self, log_start: int) -> int:
        """The lowest log start of the replicas that may lead now or soon: those in sync, and those
        that are live and not fenced. -1 while one of them has not reported it in this term.
        `log_start` is this replica's own."""
        starts = [
            progress.log_start
            for replica, progress in self._progress.items()
            if replica in self.maximal_isr or self._is_live_and_unfenced(replica)
        ]
        return min([log_start, *starts])

    def _is_live_and_unfenced(self, replica_id: int) -> bool:
        live = self._local_broker.live_broker(replica_id)
        return live is not None and not live.is_fenced

    def grow_isr(self, replica_id: int) -> PendingExpand | None:
        """Propose to add a follower to the in-sync set, if it may join and no change is in flight
        (A3). Returns the proposal, or None."""
        state = self.isr_state
        progress = self._progress.get(replica_id)
        if not isinstance(state, Committed) or progress is None or replica_id in state.isr:
            return None
        if not self.has_reached(progress) or not self.is_eligible(replica_id, progress):
            return None
        if not self.has_deleted(progress):
            return None
        pending = PendingExpand(state.isr, (*state.isr, replica_id))
        self.isr_state = pending
        return pending

    def shrink_isr(
        self, own_end: int, min_insync_replicas: int, now: float
    ) -> PendingShrink | None:
        """Propose to remove followers that fell behind, if no change is in flight (A4). Followers
        that lack records and send no FETCH are removed sooner, if enough stay for acks=all."""
        state = self.isr_state
        if not isinstance(state, Committed):
            return None
        staying = tuple(r for r in state.isr if not self._is_out(r, own_end, now))
        heard = tuple(r for r in staying if not self._is_silent(r, own_end, now))
        if self.may_leave_silent(heard, min_insync_replicas):
            staying = heard
        if len(staying) == len(state.isr):
            return None
        pending = PendingShrink(state.isr, staying)
        self.isr_state = pending
        return pending

    def _is_out(self, replica_id: int, own_end: int, now: float) -> bool:
        if replica_id == self._local_broker.broker_id:
            return False
        progress = self._progress.get(replica_id)
        return progress is None or not self.is_caught_up(progress, own_end, now)

    def _is_silent(self, replica_id: int, own_end: int, now: float) -> bool:
        """Whether a follower lacks records and sends no FETCH. The time-out starts again in each
        term. No follower lacks records of an empty log."""
        progress = self._progress.get(replica_id)
        return (
            progress is not None
            and max(0, progress.log_end) < own_end
            and self._local_broker.follower_silence.is_silent(
                replica_id, progress.caught_up_at, now
            )
        )

    def may_leave_silent(self, staying: Collection[int], min_insync_replicas: int) -> bool:
        """Whether silent followers leave: not if acks=all would then only be refused sooner. All of
        them leave or none, since acks=all waits for each that stays."""
        return self.are_enough(staying, min_insync_replicas)

    def are_enough(self, staying: Collection[int], min_insync_replicas: int) -> bool:
        """Whether an in-sync set of these replicas is large enough for acks=all."""
        return len(staying) >= min(min_insync_replicas, len(self.assigned))

    # -- what is committed

    def record_fetch(self, fetch: FollowerFetch, own_end: int, now: float) -> bool:
        """Record that a follower has everything below the offset that it fetches from. What this
        answer sends does not count yet (PAR-03). Returns whether the offset changed."""
        progress = self._progress[fetch.replica_id]
        before = progress.log_end
        progress.record_fetch(fetch, own_end, now)
        return before != fetch.offset

    def record_sent(self, replica_id: int, offset: int) -> None:
        """Record that a follower's fetch is answered with records starting at this offset."""
        progress = self._progress.get(replica_id)
        if progress is not None:
            progress.sent_from = offset

    def is_asked_again(self, fetch: FollowerFetch) -> bool:
        """Whether a follower asks again for records that it was sent: they did not arrive, or it
        cannot use them."""
        progress = self._progress.get(fetch.replica_id)
        return progress is not None and progress.sent_from == fetch.offset

    def rest(self, replica_id: int, offset: int, last: LastFetch) -> Progress | None:
        """Let the fetches of a session count for a follower whose last fetch was at the log end,
        this offset. Returns its progress; or None if each fetch must be recorded: the follower may
        join the in-sync set, or another fetch by it was recorded in the meantime."""
        progress = self._progress.get(replica_id)
        if (
            progress is None
            or progress.is_resting
            or progress.log_end != offset
            or not progress.fetched_at == progress.caught_up_at == last.fetched_at
            or replica_id not in self.isr
        ):
            return None
        progress.rest_in(last)
        return progress

    def is_resting(self, replica_id: int) -> bool:
        """Whether the fetches of a session count for a follower."""
        progress = self._progress.get(replica_id)
        return progress is not None and progress.is_resting

    def is_isr_large_enough(self, min_insync_replicas: int) -> bool:
        """Whether acks=all appends are accepted: enough replicas are in sync. At most as many are
        required as the partition has replicas."""
        return self.are_enough(self.isr, min_insync_replicas)

    def is_abandoned(self, now: float, silence_s: float) -> bool:
        """Whether no other in-sync replica has fetched for `silence_s`: they may then have another
        leader."""
        others = [one for replica in self.isr if (one := self.progress_of(replica)) is not None]
        return bool(others) and all(
            now - max(one.fetched_at, one.caught_up_at) > silence_s for one in others
        )

    def is_acknowledgeable(self, min_insync_replicas: int) -> bool:
        """Whether acks=all may be acknowledged. Here a replica that is joining counts too (A16)."""
        return self.are_enough(self.maximal_isr, min_insync_replicas)

    def is_committed(self, end: int) -> bool:
        """Whether acks=all is satisfied up to `end`."""
        return self.high_watermark >= end

    def advance(self, own_end: int, min_insync_replicas: int, now: float) -> bool:
        """Raise the high watermark to the lowest log end of the replicas that count (A2). Returns
        whether it rose."""
        if not self.is_isr_large_enough(min_insync_replicas):
            return False
        candidate = own_end
        for replica, progress in self._progress.items():
            if progress.log_end < candidate and self._counts(replica, progress, own_end, now):
                candidate = progress.log_end
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    def _counts(self, replica_id: int, progress: Progress, own_end: int, now: float) -> bool:
        return replica_id in self.maximal_isr or (
            self.is_caught_up(progress, own_end, now)
            and self.is_eligible(replica_id, progress)
            and not self._is_silent(replica_id, own_end, now)
        )


class IsrProposal(NamedTuple):
    """A change of an in-sync set that a leader proposes to the controller.

    `pending` is the leader's state that waits for the answer. `broker_epochs` are the epochs of the
    proposed members at their last fetch, in the same order; the leader's own is -1 here.
    """

    topic: str
    partition: int
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    pending: Pending
    broker_epochs: tuple[int, ...]
