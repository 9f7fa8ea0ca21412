"""What a broker is for one partition, one class a role; each carries only what its role needs.

* `Leader`: takes appends, serves reads, and says how far records are committed. It alone moves
  the high watermark, and only upwards.
* `Follower` (`follower.py`): copies the leader's log.
* `Offline`: holds the log but serves nothing, and says why.

`Partition` is the only one that swaps them. The high watermark is the first offset that is not
committed: every replica that counts has everything below it. Those that count are the in-sync set,
and who is about to join it: a replica that keeps up but is not confirmed yet holds the high
watermark as well, or it would have to catch up with a moving target. It is looked at again after
an own append, a follower's progress, a change of the in-sync set, the start of a term and the
timer's turn; and, with `flush=always`, when an own fsync returns, because then the own end is the
durable one.

The in-sync set is the controller's to change. A leader asks for a change, one at a time, and until
the answer is there it counts with the more careful of both: a replica that is to join counts at
once, one that is to leave counts until the controller has confirmed that it may go. Otherwise a
leader that was replaced meanwhile could commit what its successor does not have.

Before the controller elects another leader while this one lives, it has this one hand over
(HAND_OVER): the leader takes no more records that it would acknowledge alone (acks 0 and 1), until
the target has all that it took before. It goes on with acks=all, which no in-sync set without the
target can acknowledge. So the election loses nothing that was acknowledged.

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
    """The broker that a replica is on, and what it knows of the others.

    `lag_s_max` is how long a follower may be behind; `live_broker` looks a registered broker up;
    `follower_silence` knows which followers send no FETCH.
    """

    broker_id: int
    lag_s_max: float
    live_broker: Callable[[int], BrokerImage | None]
    follower_silence: FollowerSilence = FollowerSilence(math.inf)


class Committed(NamedTuple):
    """The in-sync set as the controller has it, and nothing under way."""

    isr: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Who counts."""
        return self.isr


@dataclass(frozen=True, slots=True, eq=False)
class PendingExpand:
    """A replica is to join; equal only to itself, so that an answer finds its own question."""

    isr: tuple[int, ...]
    wanted: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Who counts: who is to join, at once."""
        return self.wanted


@dataclass(frozen=True, slots=True, eq=False)
class PendingShrink:
    """Replicas are to leave; equal only to itself."""

    isr: tuple[int, ...]
    wanted: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Who counts: who is to leave, until that is confirmed."""
        return self.isr


Pending: TypeAlias = PendingExpand | PendingShrink
IsrState: TypeAlias = Committed | Pending


class FollowerFetch(NamedTuple):
    """What a follower says with a fetch: it has everything below `offset`."""

    replica_id: int
    offset: int
    log_start: int = NO_OFFSET
    broker_epoch: int = NO_EPOCH


class LastFetch:
    """A follower's last fetch in one fetch session, which counts for every partition that rests in
    this session; `fetched_at` in seconds."""

    __slots__ = ("broker_epoch", "fetched_at")

    def __init__(self) -> None:
        self.fetched_at = NEVER
        self.broker_epoch = NO_EPOCH


class Progress:
    """What a leader knows of one follower (A1). Times in seconds, offsets -1 until it fetches.

    `sent_from` is the first offset of the records that answered its last fetch, -1 without any.

    `leader_end` is how far the leader was at the follower's last fetch; `caught_up_at` when it was
    last known to have all that the leader had at that time.

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
        """The registration in which the follower last fetched."""
        last = self._resting_in
        return self._broker_epoch if last is None else last.broker_epoch

    @property
    def fetched_at(self) -> float:
        """When the follower last fetched."""
        last = self._resting_in
        return self._fetched_at if last is None else last.fetched_at

    @property
    def caught_up_at(self) -> float:
        """When the follower last had all that the leader had."""
        last = self._resting_in
        return self._caught_up_at if last is None else last.fetched_at

    @property
    def is_resting(self) -> bool:
        """Whether the fetches of a session count without being noted one by one."""
        return self._resting_in is not None

    def record_fetch(self, fetch: FollowerFetch, leader_end: int, now: float) -> None:
        """Record a fetch. A follower that reaches the leader's end as of its previous fetch was
        caught up then: otherwise a busy leader would have no in-sync follower."""
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
        """The same leader begins its next term: what it knows of the follower's log stays."""
        self._keep_times()
        self.leader_end = leader_end
        self._caught_up_at = self._fetched_at = now if is_in_sync else NEVER

    def rest_in(self, last: LastFetch) -> None:
        """From now on the fetches of a session count. The last one was noted, at the leader's
        end."""
        self._resting_in = last

    def end_rest(self, last: LastFetch) -> None:
        """From now on the fetches of this session count no more."""
        if self._resting_in is last:
            self._keep_times()

    def _keep_times(self) -> None:
        last = self._resting_in
        if last is not None:
            self._fetched_at = self._caught_up_at = last.fetched_at
            self._broker_epoch = last.broker_epoch
            self._resting_in = None


class Handover(NamedTuple):
    """Who is to lead next, and the log end that it must reach first: nothing above was taken with
    acks 0 or 1. It lapses at `until` (seconds)."""

    target: int
    end: int
    until: float


class Offline:
    """No role that serves. `error` and `reason` are what a request gets to hear."""

    __slots__ = ("error", "high_watermark", "reason")

    def __init__(self, error: ErrorCode, reason: str, high_watermark: int) -> None:
        self.error = error
        self.reason = reason
        # As last known: it goes on into checkpoints and into the next role.
        self.high_watermark = high_watermark


class Leader:
    """The leader's term: one leader epoch, from the log end at which it began.

    `own_end` in the methods is how far this replica has the log, as it counts here.
    """

    __slots__ = (
        "_handover",
        "_local_broker",
        "_progress",
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
        # Nobody's end is known until it fetches in this term: it may lack anything before that,
        # and holds the high watermark where it is.
        self._progress = {
            replica: Progress(caught_up_at=now if replica in state.isr else NEVER)
            for replica in state.replicas
            if replica != local_broker.broker_id
        }
        self.replicas: tuple[int, ...] = state.replicas
        self.isr_state: IsrState = Committed(state.isr)
        self._handover: Handover | None = None
        # A follower whose log starts below may hold records that were deleted, and must not lead.
        self.start_required = 0

    def succeed(self, before: "Leader", now: float) -> None:
        """Keep what this broker learnt in the term right before, which was its own.

        After any other term nothing is kept: a leader in between may have cut the followers' logs.
        """
        assert before.leader_epoch + 1 == self.leader_epoch
        for replica in self._progress:
            known = before.progress_of(replica)
            if known is not None:
                is_in_sync = replica in self.isr
                known.carry_on(is_in_sync=is_in_sync, leader_end=self.epoch_start, now=now)
                self._progress[replica] = known

    def update(self, state: PartitionState) -> None:
        """Take over a confirmed in-sync set and assignment of the same term; what was pending is
        decided by it."""
        assert state.leader_epoch == self.leader_epoch, "another term is another Leader"
        known = self._progress
        self.replicas = state.replicas
        self.isr_state = Committed(state.isr)
        self._progress = {
            replica: known.get(replica) or Progress()
            for replica in state.replicas
            if replica != self._local_broker.broker_id
        }

    # -- handing over

    def hand_over(self, target: int, log_end: int, now: float, until: float) -> None:
        """Take no records with acks 0 or 1 before `until`. An order that is repeated in time keeps
        the log end of the first one."""
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
        """Whether the target has every record that was acknowledged here alone."""
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
        """Of the broker that leads."""
        return self._local_broker.broker_id

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync set as confirmed."""
        return self.isr_state.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that count, whatever becomes of the change that is under way (K1)."""
        return self.isr_state.maximal_isr

    @property
    def minimal_isr(self) -> tuple[int, ...]:
        """The replicas that are in sync whatever becomes of the change that is under way."""
        state = self.isr_state
        return state.wanted if isinstance(state, PendingShrink) else state.isr

    def progress_of(self, replica_id: int) -> Progress | None:
        """What is known of a follower; None for who is none."""
        return self._progress.get(replica_id)

    def is_caught_up(self, progress: Progress, own_end: int, now: float) -> bool:
        """Whether a follower keeps up: it is at the end, or was not long ago (PAR-11, PAR-13).

        Where nothing was written yet, even a follower that never fetched is at the end: it may
        still be busy with the other logs that it has to make.
        """
        return (
            own_end == 0
            or progress.log_end >= own_end
            or now - progress.caught_up_at <= self._local_broker.lag_s_max
        )

    def is_eligible(self, replica_id: int, progress: Progress) -> bool:
        """Whether a follower may join: it lives, stays, and is who has fetched (A3.3)."""
        live = self._local_broker.live_broker(replica_id)
        return (
            live is not None
            and not live.is_shutting_down
            and not live.is_fenced
            and progress.broker_epoch in (NO_EPOCH, live.epoch)
        )

    def has_reached(self, progress: Progress) -> bool:
        """Whether a follower has all that may be committed (A3.4, A3.5; PAR-06).

        The start of the term counts because a new leader's high watermark may lag behind what the
        leader before it had committed, and all of that lies below the start.
        """
        return progress.log_end >= max(self.high_watermark, self.epoch_start)

    def has_deleted(self, progress: Progress) -> bool:
        """Whether a follower has none of the records that were deleted (A3.6)."""
        return self.start_required == 0 or progress.log_start >= self.start_required

    def low_watermark(self, log_start: int) -> int:
        """The lowest log start of the replicas that may lead now or soon: those in sync, and those
        that live. -1 while one of them has not said it in this term. `log_start` is the own one."""
        starts = [
            progress.log_start
            for replica, progress in self._progress.items()
            if replica in self.maximal_isr or self._is_heard(replica)
        ]
        return min([log_start, *starts])

    def _is_heard(self, replica_id: int) -> bool:
        live = self._local_broker.live_broker(replica_id)
        return live is not None and not live.is_fenced

    def grow_isr(self, replica_id: int) -> PendingExpand | None:
        """Want a follower in the in-sync set, if it may join and nothing is under way (A3)."""
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
        """Want who fell behind out of the in-sync set, if nothing is under way (A4); and sooner who
        lacks records and sends no FETCH, if enough stay for acks=all."""
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
        """Whether a follower lacks records and sends no FETCH. In each term it has the whole
        time-out. Nobody lacks anything of an empty log."""
        progress = self._progress.get(replica_id)
        return (
            progress is not None
            and max(0, progress.log_end) < own_end
            and self._local_broker.follower_silence.is_silent(
                replica_id, progress.caught_up_at, now
            )
        )

    def may_leave_silent(self, staying: Collection[int], min_insync_replicas: int) -> bool:
        """Whether the silent ones leave: not if acks=all would only be refused sooner. All of them
        leave or none, since those that stay are waited for."""
        return self.are_enough(staying, min_insync_replicas)

    def are_enough(self, staying: Collection[int], min_insync_replicas: int) -> bool:
        """Whether an in-sync set of these acknowledges acks=all."""
        return len(staying) >= min(min_insync_replicas, len(self.replicas))

    # -- what is committed

    def record_fetch(self, fetch: FollowerFetch, own_end: int, now: float) -> bool:
        """Record that a follower has everything below the offset that it fetches from; what the
        answer brings it is not known yet (PAR-03). Returns whether the offset changed."""
        progress = self._progress[fetch.replica_id]
        before = progress.log_end
        progress.record_fetch(fetch, own_end, now)
        return before != fetch.offset

    def record_sent(self, replica_id: int, offset: int) -> None:
        """Record that a follower's fetch is answered with records from this offset on."""
        progress = self._progress.get(replica_id)
        if progress is not None:
            progress.sent_from = offset

    def is_asked_again(self, fetch: FollowerFetch) -> bool:
        """Whether a follower asks again for what it was sent: it got nothing, or cannot use it."""
        progress = self._progress.get(fetch.replica_id)
        return progress is not None and progress.sent_from == fetch.offset

    def rest(self, replica_id: int, offset: int, last: LastFetch) -> Progress | None:
        """Let the fetches of a session count for a follower whose last one was from the log end, at
        this offset; its progress. None where each of them must be noted: it may join the in-sync
        set, or another fetch of it was noted meanwhile."""
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
        """Whether acks=all may be promised. More than there are replicas cannot be asked for."""
        return self.are_enough(self.isr, min_insync_replicas)

    def is_abandoned(self, now: float, patience_s: float) -> bool:
        """Whether none of the others that are in sync has asked for anything for so long: then
        they may have another leader."""
        others = [one for replica in self.isr if (one := self.progress_of(replica)) is not None]
        return bool(others) and all(
            now - max(one.fetched_at, one.caught_up_at) > patience_s for one in others
        )

    def is_acknowledgeable(self, min_insync_replicas: int) -> bool:
        """Whether acks=all may be acknowledged: by then a replica that joins counts too (A16)."""
        return self.are_enough(self.maximal_isr, min_insync_replicas)

    def is_committed(self, end: int) -> bool:
        """Whether acks=all is satisfied up to `end`."""
        return self.high_watermark >= end

    def advance(self, own_end: int, min_insync_replicas: int, now: float) -> bool:
        """Raise the high watermark to what every replica that counts has (A2); whether it rose."""
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
    """A change of an in-sync set that a leader asks the controller for.

    `pending` is the state of the leader that waits for it. `broker_epochs` are those in which the
    wanted members were seen, in their order; the leader's own is -1 here.
    """

    topic: str
    partition: int
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    pending: Pending
    broker_epochs: tuple[int, ...]
