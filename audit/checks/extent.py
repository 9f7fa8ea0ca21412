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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from minibroker.audit.files.cluster import Assignment, Left
from minibroker.audit.files.directories import LIVE, STOPPED, Replica
from minibroker.audit.files.inputs import Trace
from minibroker.audit.summary import Unjudged, plural
from minibroker.protocol.types import TopicPartition


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
    same batches; None if unknown.
    """

    first_offset: int | None
    log_end: int
    epoch_ends: tuple[EpochEnd, ...] = ()
    is_whole: bool = True
    digest: int | None = None

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
    segments that names the highest offset.
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
            self._add_not_at_hand(0)
            return []
        leader = max(self._replicas, key=self._claim_to_lead)
        kept = {replica.broker: _kept_end(replica, leader) for replica in self._replicas}
        left = {
            replica.broker: max(kept[replica.broker], kept_end(replica.as_left, leader.as_left))
            for replica in self._replicas
        }
        judged_end = self._judged_end(left)
        self._in_sync |= self._stopped_in_sync(left, judged_end)
        self._add_not_at_hand(judged_end)
        self._add_doubts(judged_end)
        self._add_emptied()
        self._add_unexplained(kept, judged_end)
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
        newest = _last_epoch(log)
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
            and _last_epoch(each.log) == assignment.leader_epoch
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

    def _add_not_at_hand(self, judged_end: int) -> None:
        """Record the assigned replicas whose broker's directory is not given, and the given ones
        that are assigned to nobody.

        A broker that stopped in order is in no ISR, so the ISR alone does not excuse a replica that
        is not there. Only two facts do: a running broker says that the ISR is the current one, or
        the metadata say that the broker left with less than is judged, or may have lost it.
        """
        if self._assignment is None:
            return
        is_current = LIVE in self._brokers.values()
        for broker in self._assignment.replicas:
            if broker not in self._brokers:
                left = self._assignment.left.get(broker)
                is_excused = (
                    is_current
                    or broker in self._assignment.unsafe
                    or (left is not None and left.log_end < judged_end)
                )
                holds_back = broker in self._in_sync or not is_excused
                reason = "its data directory was not given"
                self.unjudged.append(self._unjudged(reason, broker, holds_back))
        for replica in self._replicas:
            if replica.broker not in self._assignment.replicas:
                reason = "the metadata do not assign the partition to this broker"
                self.unjudged.append(self._unjudged(reason, replica.broker, holds_back=False))

    def _unjudged(self, reason: str, broker: int | None, holds_back: bool) -> Unjudged:
        return Unjudged(reason, holds_back, *self._name, broker)

    def _claim_to_lead(self, replica: ReplicaFacts) -> tuple[bool, bool, bool, int, int]:
        """Return the sort key that is largest for the leader, or the replica to be elected."""
        epoch = _last_epoch(replica.log)
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
        ends = [end for broker, end in kept.items() if broker in self._in_sync]
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

    def _add_unexplained(self, kept: Mapping[int, int], judged_end: int) -> None:
        """Hold the verdict back for assigned replicas that lack records, if only their own files
        could say why."""
        if self._assignment is None or any(each.state == LIVE for each in self._replicas):
            return
        short = [
            replica
            for replica in self._replicas
            if kept[replica.broker] < judged_end
            and replica.broker in self._assignment.replicas
            and replica.broker not in self._in_sync
            and replica.broker not in self._assignment.unsafe
        ]
        unexplained = [replica.broker for replica in short if replica.left is None]
        if unexplained:
            start = min(kept[broker] for broker in unexplained)
            count = sum(
                broker in kept and kept[broker] >= judged_end
                for broker in self._assignment.replicas
            )
            reason = (
                f"the records from offset {start:,} to {judged_end:,} are on {count} of"
                f" {len(self._assignment.replicas)} replicas, and the metadata do not say whether"
                f" {brokers_named(unexplained)} ever had them"
            )
            self.unjudged.append(self._unjudged(reason, None, holds_back=True))

    def _add_doubts(self, judged_end: int) -> None:
        """Record the logs of which too little would be judged: the log is gone, its start is
        impossible, or it is unknown what of it was committed."""
        longest = max(replica.log.log_end for replica in self._replicas)
        for replica in self._replicas:
            holds_back = replica.broker in self._in_sync
            if replica.is_lost and holds_back and judged_end < longest:
                reason = f"it is in sync and its log is not there; others end at {longest:,}"
                self.unjudged.append(self._unjudged(reason, replica.broker, holds_back))
            if (replica.log_start or 0) > replica.log.log_end:
                reason = (
                    f"its log start, {replica.log_start:,}, lies above its log end,"
                    f" {replica.log.log_end:,}"
                )
                self.unjudged.append(self._unjudged(reason, replica.broker, holds_back))
            if replica.left is not None and replica.log.log_end > replica.left.log_end:
                reason = (
                    f"its log ends at {replica.log.log_end:,}, and its broker had stopped in order"
                    f" with {replica.left.log_end:,}: the files were changed since, or the metadata"
                    " are older than they are"
                )
                self.unjudged.append(self._unjudged(reason, replica.broker, holds_back=True))
        unknown = [
            replica.log.log_end - _start(replica)
            for replica in self._replicas
            if replica.broker in self._in_sync
            and replica.high_watermark is None
            and judged_end <= _start(replica)
        ]
        if any(unknown):
            reason = (
                "no high watermark of it is known, and so nothing was judged of its"
                f" {plural(max(unknown), 'record')}"
            )
            self.unjudged.append(self._unjudged(reason, None, holds_back=True))

    def _add_emptied(self) -> None:
        """Hold the verdict back on a partition without records that may have had some.

        Files beside the segments may show records even if no log and no high watermark does. If
        nothing shows any, two facts still show that files are gone. A partition whose leader has
        changed is older than the interval at which brokers checkpoint high watermarks. And a broker
        creates the directory of a log before anything else.
        """
        in_sync = [each for each in self._replicas if each.broker in self._in_sync]
        logs = in_sync or self._replicas
        if any(each.log.first_offset is not None for each in logs):
            return
        is_live = any(each.state == LIVE for each in self._replicas)
        log_end = max(each.log.log_end for each in logs)
        traces = [
            (each.trace.end, each.broker, each.trace.file)
            for each in self._replicas
            if each.trace is not None and each.trace.end > max(log_end, each.log.log_end)
        ]
        if traces and not is_live:
            end, broker, file = max(traces)
            reason = f"it is empty, and {file} of broker {broker} tells of records up to {end:,}"
            self.unjudged.append(self._unjudged(reason, None, holds_back=True))
        if self._assignment is None or any(
            each.high_watermark is not None or each.left is not None for each in self._replicas
        ):
            return
        if log_end == 0:
            is_gone = self._assignment.leader_epoch > 0 or all(each.is_lost for each in logs)
            reason = "it is empty, and no high watermark says whether it ever had records"
            self.unjudged.append(self._unjudged(reason, None, is_gone and not is_live))

    def _above(self, judged_end: int) -> int:
        """Return how many records on running brokers are not judged yet."""
        ends = (
            replica.log.log_end - max(judged_end, _start(replica))
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
            _last_epoch(replica.log),
            replica.high_watermark,
            replica.recovery_point,
            kept,
            judged_end,
            None if replica.left is None else replica.left.log_end,
            None if replica.led is None else replica.led.log_end,
            self._committed()[0],
            replica.state,
        )


def brokers_named(numbers: Sequence[int]) -> str:
    """Return the brokers in words: `broker 1`, `brokers 1, 2`."""
    return ("broker " if len(numbers) == 1 else "brokers ") + ", ".join(map(str, numbers))


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


def _start(replica: ReplicaFacts) -> int:
    """Return the offset of a log's first record; its end if it has none."""
    if replica.log.first_offset is None:
        return replica.log.log_end
    return min(max(replica.log_start or 0, replica.log.first_offset), replica.log.log_end)


def _last_epoch(log: LogFacts) -> int | None:
    return log.epoch_ends[-1].epoch if log.epoch_ends else None


def _in_sync(replicas: Sequence[ReplicaFacts], assignment: Assignment | None) -> frozenset[int]:
    """Return the in-sync brokers; without metadata all that are there."""
    if assignment is None:
        return frozenset(replica.broker for replica in replicas)
    isr = frozenset(assignment.isr)
    return isr.difference(assignment.unsafe) or isr
