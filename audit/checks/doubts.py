"""Why a clean verdict on a partition would claim too much, although no log is known to be wrong.

Each doubt is something that would have to be judged and cannot be: a replica that is not there, a
log whose files contradict each other or the metadata, records of which nobody knows whether they
were committed, and partitions that are empty and may not always have been.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from minibroker.audit.checks.log_ends import ReplicaFacts, start_of
from minibroker.audit.files.checkpoints import RECOVERY_POINTS
from minibroker.audit.files.cluster import Assignment
from minibroker.audit.files.directories import LIVE
from minibroker.audit.files.inputs import Trace
from minibroker.audit.summary import Unjudged, plural
from minibroker.protocol.types import TopicPartition


class Doubts:
    """The doubts about one partition, collected in `found`.

    `brokers` are those whose directories are at hand, with their states; `in_sync` those that count
    as in sync; `newest` counts the logs by the newest epoch in their batches.
    """

    def __init__(
        self,
        name: TopicPartition,
        replicas: Sequence[ReplicaFacts],
        assignment: Assignment | None,
        brokers: Mapping[int, str],
        in_sync: Collection[int],
        newest: Counter[int | None],
    ) -> None:
        self._name = name
        self._replicas = replicas
        self._assignment = assignment
        self._brokers = brokers
        self._in_sync = in_sync
        self._newest = newest
        self.found: list[Unjudged] = []

    def add_all(self, kept: Mapping[int, int], judged_end: int) -> None:
        """Find all doubts; `kept` is where each broker's log will end, by broker."""
        self._add_not_at_hand(judged_end)
        if not self._replicas:
            return
        self._add_doubts(judged_end)
        self._add_newer_epochs()
        self._add_emptied()
        self._add_unexplained(kept, judged_end)

    def _unjudged(self, reason: str, broker: int | None, holds_back: bool) -> Unjudged:
        return Unjudged(reason, holds_back, *self._name, broker)

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
                self.found.append(self._unjudged(reason, broker, holds_back))
        for replica in self._replicas:
            if replica.broker not in self._assignment.replicas:
                reason = "the metadata do not assign the partition to this broker"
                self.found.append(self._unjudged(reason, replica.broker, holds_back=False))

    def _add_doubts(self, judged_end: int) -> None:
        """Record the logs of which too little would be judged: the log is gone, its start is
        impossible, or it is unknown what of it was committed."""
        longest = max(replica.log.log_end for replica in self._replicas)
        for replica in self._replicas:
            holds_back = replica.broker in self._in_sync
            if replica.is_lost and holds_back and judged_end < longest:
                reason = f"it is in sync and its log is not there; others end at {longest:,}"
                self.found.append(self._unjudged(reason, replica.broker, holds_back))
            if (replica.log_start or 0) > replica.log.log_end:
                reason = (
                    f"its log start, {replica.log_start:,}, lies above its log end,"
                    f" {replica.log.log_end:,}"
                )
                self.found.append(self._unjudged(reason, replica.broker, holds_back))
            if self._is_start_odd(replica):
                reason = (
                    f"its log start, {replica.log_start:,}, lies above the leader's, and neither"
                    " retention nor the leader has raised it"
                )
                self.found.append(self._unjudged(reason, replica.broker, holds_back))
            trace = replica.trace
            is_longer = trace is not None and trace.end > replica.log.log_end
            if trace is not None and is_longer and self._is_telling(replica, trace):
                reason = (
                    f"its log ends at {replica.log.log_end:,}, and {trace.file} tells of records up"
                    f" to {trace.end:,}"
                )
                self.found.append(self._unjudged(reason, replica.broker, holds_back))
            if replica.left is not None and replica.log.log_end > replica.left.log_end:
                reason = (
                    f"its log ends at {replica.log.log_end:,}, and its broker had stopped in order"
                    f" with {replica.left.log_end:,}: the files were changed since, or the metadata"
                    " are older than they are"
                )
                self.found.append(self._unjudged(reason, replica.broker, holds_back=True))
        unknown = [
            replica.log.log_end - start_of(replica)
            for replica in self._replicas
            if replica.broker in self._in_sync
            and replica.high_watermark is None
            and judged_end <= start_of(replica)
        ]
        if any(unknown):
            reason = (
                "no high watermark of it is known, and so nothing was judged of its"
                f" {plural(max(unknown), 'record')}"
            )
            self.found.append(self._unjudged(reason, None, holds_back=True))

    def _is_start_odd(self, replica: ReplicaFacts) -> bool:
        """Whether a follower's log start cannot be right: retention removes whole segments, and
        anything else that raises a log start begins at the leader."""
        leader = next((each for each in self._replicas if self._leads(each)), None)
        if leader is None or leader is replica or replica.state == LIVE:
            return False
        if leader.log_start is None:
            return False  # the leader's file cannot be read, so nothing contradicts this one
        first = replica.log.first_offset
        start = replica.log_start or 0
        is_raised = first is not None and first < start <= replica.log.log_end
        return is_raised and start > start_of(leader)

    def _leads(self, replica: ReplicaFacts) -> bool:
        leader = self._assignment.leader if self._assignment else None
        return replica.broker == leader and not replica.is_lost

    def _is_telling(self, replica: ReplicaFacts, trace: Trace) -> bool:
        """Whether a file beside the segments proves that the log was longer. Nothing does on a
        running broker, and not the files of a truncation. Of an empty log `_add_emptied` tells, and
        of a recovery point a finding."""
        is_left_over = trace.file.endswith(".deleted") or trace.file == RECOVERY_POINTS
        return replica.state != LIVE and replica.log.first_offset is not None and not is_left_over

    def _add_newer_epochs(self) -> None:
        """Hold the verdict back if several logs have an epoch that the metadata do not know: they
        are older than the logs. In a single log it may be a flipped bit, which is found there."""
        # A running broker may have been elected since the metadata were read.
        if self._assignment is None or any(each.state == LIVE for each in self._replicas):
            return
        known = self._assignment.leader_epoch
        for epoch, count in self._newest.items():
            if epoch is not None and epoch > known and count > len(self._replicas) // 2:
                reason = (
                    f"{plural(count, 'log')} of it have records of leader epoch {epoch}, and the"
                    f" metadata know none after {known}: they are older than the logs"
                )
                self.found.append(self._unjudged(reason, None, holds_back=True))

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
            self.found.append(self._unjudged(reason, None, holds_back=True))
        if self._assignment is None or any(
            each.high_watermark is not None or each.left is not None for each in self._replicas
        ):
            return
        if log_end == 0:
            is_gone = self._assignment.leader_epoch > 0 or all(each.is_lost for each in logs)
            reason = "it is empty, and no high watermark says whether it ever had records"
            self.found.append(self._unjudged(reason, None, is_gone and not is_live))

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
            self.found.append(self._unjudged(reason, None, holds_back=True))


def brokers_named(numbers: Sequence[int]) -> str:
    """Return the brokers in words: `broker 1`, `brokers 1, 2`."""
    return ("broker " if len(numbers) == 1 else "brokers ") + ", ".join(map(str, numbers))
