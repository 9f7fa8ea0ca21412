"""How far the logs of a partition are judged: up to where each replica must hold the same.

Offsets are judged below `judged_end`. Each rule for it claims no more than the brokers promise.

* Brokers that are down: below the smallest end that the in-sync members would have after truncating
  their logs to the leader's epochs. A member may hold a tail of an old epoch that it has not
  truncated yet. A checkpointed high watermark alone would judge nothing: after `kill -9` it is up
  to 5 s old, or 0.
* Brokers that run: below the largest high watermark that was checkpointed before anything else was
  read. The metadata must be read after it and before the logs: a replica that is in sync by then
  has all that was committed before.
* Always: below every checkpointed high watermark, as far as the log that it belongs to goes.
  Records below it were committed, wherever an in-sync member ends now.

If that judges none of the records of a log whose high watermark is unknown, the verdict is held
back: it would be clean whatever has been lost. The same applies to a partition whose logs are
empty, if a file beside the segments shows that it had records, or if nothing shows that it never
had any.

In-sync replicas are those in the ISR that are not `unsafe`: the mark of replicas that may have lost
the end of their logs and must re-replicate from one that has not. If all are unsafe, the whole ISR
is in sync. A broker that stops in order leaves the ISR first, so after a shutdown of the cluster
only the last broker to stop is in it. The metadata record how far each log went by then: a log is
judged as its broker left it, whatever has happened to it since, and a replica that ended at or
above `judged_end` counts as in sync. If the metadata do not have a broker's end, its own files are
read, but they cannot excuse it: if it lacks what others have, it is unknown whether it ever had
that, and the verdict is held back. Running brokers are excused, since the ISR in the metadata is
the current one. Without metadata all replicas at hand count as in sync.

Logs are truncated to the epochs of the leader. If there is no leader or its log is not at hand, the
in-sync replica with the newest last epoch takes its place, and among those the longest log: it
would be elected. All logs are compared with the reference: that same log, unless another in-sync
one goes further, has no damage of its own, or is the same on more replicas. So a finding names, as
far as possible, the log that is wrong.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from minibroker.audit.checks.doubts import Doubts
from minibroker.audit.checks.log_ends import (
    LogFacts,
    ReplicaFacts,
    kept_end,
    last_epoch,
    start_of,
)
from minibroker.audit.files.cluster import Assignment, Left
from minibroker.audit.files.directories import LIVE, STOPPED, Replica
from minibroker.audit.summary import Unjudged, plural
from minibroker.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One row of REPLICAS, its fields in the order of the columns."""

    broker: int
    topic: str
    partition: int
    is_leader: bool | None
    in_isr: bool | None
    is_reference: bool
    is_compacted: bool
    log_start: int | None
    first_offset: int | None
    log_end: int
    last_epoch: int | None
    high_watermark: int | None
    recovery_point: int | None
    kept_end: int
    judged_end: int
    left_end: int | None
    led_end: int | None
    committed_end: int
    state: str
    may_be_cleaned: bool
    cleaned_end: int
    delete_retention_ms: int | None
    written_ms: int | None


def judge(
    found: Sequence[ReplicaFacts],
    assignments: Mapping[TopicPartition, Assignment] | None,
    brokers: Mapping[int, str],
    hidden: Collection[Replica] = (),
) -> tuple[list[ReplicaRow], list[Unjudged]]:
    """Return the rows of REPLICAS, and what could not be judged.

    `brokers` are those whose directories are at hand, with their states: an assigned replica that
    is not in `found` is a lost log on such a broker, and unknown on any other. A partition that the
    metadata do not name is judged as if no metadata were given, and holds the verdict back.
    `hidden` logs exist and cannot be read: they are not in `found`, and they are not lost.
    """
    names = {TopicPartition(replica.topic, replica.partition) for replica in found}
    names.update(assignments or ())
    rows: list[ReplicaRow] = []
    unjudged: list[Unjudged] = []
    above: list[int] = []
    by_name: dict[TopicPartition, list[ReplicaFacts]] = {name: [] for name in sorted(names)}
    for replica in found:
        by_name[TopicPartition(replica.topic, replica.partition)].append(replica)
    for name, replicas in by_name.items():
        readable = {
            broker: state
            for broker, state in brokers.items()
            if Replica(broker, *name) not in hidden
        }
        partition = _Partition(name, replicas, (assignments or {}).get(name), readable)
        rows += partition.rows()
        # Why a hidden log cannot be judged was said where it was found.
        unjudged += (
            each
            for each in partition.unjudged
            if each.broker is None or Replica(each.broker, *name) not in hidden
        )
        if assignments is not None and name not in assignments:
            reason = "the metadata do not have this partition: they may be older than its logs"
            unjudged.append(Unjudged(reason, True, *name))
        if partition.above:
            above.append(partition.above)
    if above:
        reason = (
            f"above the high watermarks of {plural(len(above), 'partition')}, whose brokers run"
        )
        unjudged.append(Unjudged(reason, holds_back=False, records=sum(above)))
    return rows, unjudged


class _Partition:
    """One partition being judged. `unjudged` collects what cannot be judged; `above` is how many
    records lie above the high watermark of running brokers."""

    def __init__(
        self,
        name: TopicPartition,
        replicas: Sequence[ReplicaFacts],
        assignment: Assignment | None,
        brokers: Mapping[int, str],
    ) -> None:
        self._name = name
        self._assignment = assignment
        self._newest = Counter(last_epoch(replica.log) for replica in replicas)
        there = map(self._as_known, [*replicas, *self._lost(replicas, brokers)])
        self._replicas = sorted(there, key=lambda replica: replica.broker)
        self._replicas = [*map(self._as_led, self._replicas)]
        self._in_sync = _in_sync(replicas, assignment)
        self.unjudged: list[Unjudged] = []
        self._brokers = brokers
        self.above = 0

    def rows(self) -> list[ReplicaRow]:
        """Return the partition's rows of REPLICAS; none if no replica is at hand."""
        if not self._replicas:
            self._add_doubts({}, 0)
            return []
        leader = max(self._replicas, key=self._claim_to_lead)
        kept = {replica.broker: _kept_end(replica, leader) for replica in self._replicas}
        left = {
            replica.broker: max(kept[replica.broker], kept_end(replica.as_left, leader.as_left))
            for replica in self._replicas
        }
        judged_end = self._judged_end(left)
        self._in_sync |= self._stopped_in_sync(left, judged_end)
        self._add_doubts(kept, judged_end)
        self.above = self._above(judged_end)
        reference = max(
            self._replicas,
            key=lambda replica: (
                replica.broker in self._in_sync,
                replica.log.log_end >= judged_end,
                replica.log.is_whole,
                self._agreeing(replica),
                self._claim_to_lead(replica),
            ),
        )
        return [
            self._row(replica, replica is reference, kept[replica.broker], judged_end)
            for replica in self._replicas
        ]

    def _as_known(self, replica: ReplicaFacts) -> ReplicaFacts:
        """Return the replica without epochs newer than the leader's, and with `left` set."""
        if self._assignment is None:
            return replica
        if replica.state != LIVE:
            replica = replace(replica, left=self._assignment.left.get(replica.broker))
        log = replica.log
        newest = last_epoch(log)
        if newest is None or newest <= self._assignment.leader_epoch:
            return replica
        upto = (end for end in log.epoch_ends if end.epoch <= self._assignment.leader_epoch)
        return replace(replica, log=replace(log, epoch_ends=tuple(upto), is_whole=False))

    def _as_led(self, replica: ReplicaFacts) -> ReplicaFacts:
        """Return the replica with `led` set, if it leads and another log shows that it lost its
        end.

        All records of the newest epoch were appended by its leader first. So if a whole log has
        more of them than the leader's, the leader's has become shorter.
        """
        assignment = self._assignment
        if assignment is None or replica.broker != assignment.leader:
            return replica
        if any(each.state == LIVE for each in self._replicas):
            return replica
        ends = [
            each.log.log_end
            for each in self._replicas
            if each.log.is_whole
            and each.broker in assignment.replicas
            and last_epoch(each.log) == assignment.leader_epoch
            and (each.left is None or each.log.log_end <= each.left.log_end)
        ]
        end = max(ends, default=0)
        if end <= replica.log.log_end:
            return replica
        return replace(replica, led=Left(assignment.leader_epoch, end))

    def _lost(
        self, replicas: Sequence[ReplicaFacts], brokers: Mapping[int, str]
    ) -> list[ReplicaFacts]:
        """Return the assigned replicas whose broker's directory is at hand, but not their log."""
        there = {replica.broker for replica in replicas}
        assigned = self._assignment.replicas if self._assignment else ()
        return [
            ReplicaFacts(broker, *self._name, brokers[broker], LogFacts.empty(), is_lost=True)
            for broker in assigned
            if broker in brokers and broker not in there
        ]

    def _add_doubts(self, kept: Mapping[int, int], judged_end: int) -> None:
        known = (self._name, self._replicas, self._assignment, self._brokers)
        doubts = Doubts(*known, self._in_sync, self._newest)
        doubts.add_all(kept, judged_end)
        self.unjudged += doubts.found

    def _claim_to_lead(self, replica: ReplicaFacts) -> tuple[bool, bool, bool, int, int]:
        """Return the sort key that is largest for the leader, or the replica to be elected."""
        epoch = last_epoch(replica.log)
        return (
            not replica.is_lost,
            self._assignment is not None and replica.broker == self._assignment.leader,
            replica.broker in self._in_sync,
            -1 if epoch is None else epoch,
            replica.log.log_end,
        )

    def _agreeing(self, replica: ReplicaFacts) -> int:
        """Return how many in-sync logs are the same from end to end as this one."""
        digest = replica.log.digest
        return sum(
            digest is not None and each.log.digest == digest
            for each in self._replicas
            if each.broker in self._in_sync
        )

    def _judged_end(self, kept: Mapping[int, int]) -> int:
        committed = self._committed()[0]
        if any(replica.state == LIVE for replica in self._replicas):
            return committed
        # What lies behind the end at a stop in order is no part of a log: its files were changed.
        ends = [
            kept[each.broker] if each.left is None else min(kept[each.broker], each.left.log_end)
            for each in self._replicas
            if each.broker in self._in_sync
        ]
        return max(committed, min(ends, default=0))

    def _committed(self) -> tuple[int, int]:
        """Return the largest high watermark that a broker wrote down and the broker, as far as it
        can be believed."""
        claims = sorted((_claimed(each), each.broker) for each in self._replicas)
        while len(claims) > 1 and self._is_refuted(*claims[-1]):
            claims.pop()
        return claims[-1]

    def _is_refuted(self, claim: int, broker: int) -> bool:
        """Whether only a follower claims this high watermark, against an in-sync log.

        A follower learns the high watermark from the leader, which learns from each in-sync
        follower that it has the records. So if an in-sync log ends below the claim, is whole, and
        neither the leader's high watermark nor any other broker's says more, the claim is wrong.
        """
        leader = self._assignment.leader if self._assignment else None
        others = [each for each in self._replicas if each.broker != broker]
        leading = [each for each in others if each.broker == leader]
        if not any(each.led is None and each.high_watermark is not None for each in leading):
            return False
        shorter = [
            each
            for each in others
            if each.broker in self._in_sync
            and each.log.is_whole
            and not each.is_lost
            and max(each.as_left.log_end, each.recovery_point or 0) == each.log.log_end < claim
        ]
        return any(all(_told(other) <= each.log.log_end for other in others) for each in shorter)

    def _stopped_in_sync(self, left: Mapping[int, int], judged_end: int) -> set[int]:
        """Return the brokers that stopped in order with all that is judged: by the metadata, else
        by their log or its high watermark, which covers a log that was damaged since."""
        unsafe = self._assignment.unsafe if self._assignment else ()
        committed = max(
            (_told(each) for each in self._replicas if each.broker in self._in_sync), default=0
        )
        wanted = max(judged_end, committed)
        return {
            replica.broker
            for replica in self._replicas
            if replica.broker not in unsafe
            and (self._assignment is None or replica.broker in self._assignment.replicas)
            and (
                left[replica.broker] >= wanted
                if replica.left is not None
                else replica.state == STOPPED
                and max(left[replica.broker], replica.high_watermark or 0) >= wanted > 0
            )
        }

    def _above(self, judged_end: int) -> int:
        """Return how many records on running brokers are not judged yet."""
        ends = (
            replica.log.log_end - max(judged_end, start_of(replica))
            for replica in self._replicas
            if replica.state == LIVE
        )
        return max(0, max(ends, default=0))

    def _row(
        self, replica: ReplicaFacts, is_reference: bool, kept: int, judged_end: int
    ) -> ReplicaRow:
        assignment = self._assignment
        return ReplicaRow(
            replica.broker,
            *self._name,
            None if assignment is None else replica.broker == assignment.leader,
            None if assignment is None else replica.broker in self._in_sync,
            is_reference,
            assignment is not None and assignment.is_compacted,
            replica.log_start,
            replica.log.first_offset,
            replica.log.log_end,
            last_epoch(replica.log),
            replica.high_watermark,
            replica.recovery_point,
            kept,
            judged_end,
            None if replica.left is None else replica.left.log_end,
            None if replica.led is None else replica.led.log_end,
            self._committed()[0],
            replica.state,
            (assignment is not None and assignment.is_compacted)
            or any(each.told_cleaned for each in self._replicas),
            replica.log.cleaned_end,
            None if assignment is None else assignment.delete_retention_ms,
            replica.written_ms,
        )


def _told(replica: ReplicaFacts) -> int:
    """Return the high watermark that a broker wrote down; no larger than the end that its log had
    when it stopped in order."""
    told = replica.high_watermark or 0
    return told if replica.left is None else min(told, replica.left.log_end)


def _claimed(replica: ReplicaFacts) -> int:
    """Return the high watermark that a broker wrote down, as far as its log goes."""
    return min(_told(replica), replica.log.log_end)


def _kept_end(replica: ReplicaFacts, leader: ReplicaFacts) -> int:
    """Return `kept_end` of a log; it is never truncated below its high watermark (A7)."""
    return max(_claimed(replica), kept_end(replica.log, leader.as_left))


def _in_sync(replicas: Sequence[ReplicaFacts], assignment: Assignment | None) -> frozenset[int]:
    """Return the in-sync brokers; without metadata all that are there."""
    if assignment is None:
        return frozenset(replica.broker for replica in replicas)
    isr = frozenset(assignment.isr)
    return isr.difference(assignment.unsafe) or isr
