"""The small files of each broker, which the driver reads itself before it uses Spark.

On a live cluster the order of reading makes the result right: first the high watermarks, then the
in-sync sets (the metadata), then the sizes of the segments. Each replica that is in sync by the
second holds everything below the first, and still does when the third is read. On stopped brokers
nothing changes, and the same order does no harm.

A file that cannot be read becomes a finding of the check `checkpoint` if the broker rebuilds such a
file, and otherwise a reason why something is not judged. No content of a disk raises here.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from minibroker.audit.files.checkpoints import (
    CLEANED_ENDS,
    EPOCH_STARTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    Snapshot,
    Unreadable,
    parse_offset_name,
    read_epoch_starts,
    read_offsets,
    read_snapshots,
)
from minibroker.audit.files.cluster import Cluster
from minibroker.audit.files.directories import (
    LIVE,
    STOPPED,
    BrokerDirectory,
    LogDirectory,
    Replica,
    UsageError,
    find_brokers,
)
from minibroker.audit.model import Finding, Severity
from minibroker.audit.summary import Unjudged
from minibroker.protocol.types import TopicPartition

Offsets = Mapping[TopicPartition, int]
Row = tuple[object, ...]


class Trace(NamedTuple):
    """A file beside the segments of a log, and the end of the log that it implies."""

    file: str
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The four offset checkpoints of a data directory, empty if one cannot be read.

    `log_starts` is None if they are unknown, which is not the same as all being 0. `cleaned_ends`
    are the offsets below which logs were compacted; the file lags behind the logs.
    """

    high_watermarks: Offsets
    recovery_points: Offsets
    log_starts: Offsets | None
    cleaned_ends: Offsets = field(default_factory=dict)

    def log_start(self, name: TopicPartition) -> int | None:
        """Return a log's start; 0 if the file can be read and does not name the log."""
        return None if self.log_starts is None else self.log_starts.get(name, 0)

    def without(self, names: Collection[TopicPartition]) -> "Checkpoints":
        """Return the checkpoints without the ends that they have for these logs."""
        high_watermarks, recovery_points, cleaned_ends = (
            {name: offset for name, offset in file.items() if name not in names}
            for file in (self.high_watermarks, self.recovery_points, self.cleaned_ends)
        )
        return Checkpoints(high_watermarks, recovery_points, self.log_starts, cleaned_ends)


@dataclass(slots=True)
class Inputs:
    """All small inputs. `findings`, `notes` and `unjudged` are results of reading them.

    `epoch_starts` and `producers` are rows of EPOCH_STARTS and PRODUCERS. `traces` has for each log
    the file beside its segments that implies the highest end. `hidden` are logs that exist and
    cannot be judged, since they cannot be read or are of another topic: what they lack is unknown.
    """

    brokers: tuple[BrokerDirectory, ...]
    cluster: Cluster | None
    checkpoints: dict[int, Checkpoints]
    epoch_starts: list[Row] = field(default_factory=list)
    producers: list[Row] = field(default_factory=list)
    traces: dict[Replica, Trace] = field(default_factory=dict)
    hidden: set[Replica] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unjudged: list[Unjudged] = field(default_factory=list)

    @property
    def logs(self) -> Iterator[LogDirectory]:
        """All logs, by broker."""
        return (log for broker in self.brokers for log in broker.logs)

    def hide(self, replicas: Collection[Replica]) -> None:
        """Remove these logs from all inputs, and remember them as hidden."""
        self.hidden.update(replicas)
        self.brokers = tuple(
            replace(broker, logs=tuple(log for log in broker.logs if log.replica not in replicas))
            for broker in self.brokers
        )
        self.epoch_starts = [row for row in self.epoch_starts if row[:3] not in replicas]
        self.producers = [row for row in self.producers if row[:3] not in replicas]
        self.traces = {each: found for each, found in self.traces.items() if each not in replicas}

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The id of the topic that has each name today: by the metadata, else by most logs."""
        return self.cluster.topic_ids if self.cluster else _most_common_ids(self.logs)

    @property
    def is_live(self) -> bool:
        """Whether any broker is running."""
        return any(broker.state == LIVE for broker in self.brokers)


def read_inputs(paths: Sequence[Path], read_cluster: Callable[[], Cluster | None]) -> Inputs:
    """Read all small inputs, in the order that the header explains. Raises UsageError."""
    findings: list[Finding] = []
    checkpoints = {
        broker.broker: _read_checkpoints(broker, findings) for broker in find_brokers(paths)
    }
    cluster = read_cluster()
    brokers = find_brokers(paths)
    if cluster is not None:
        _refuse_others(brokers, cluster)
    known = tuple(broker for broker in brokers if broker.broker in checkpoints)
    inputs = Inputs(known, cluster, checkpoints, findings=findings)
    inputs.unjudged += (_came_late(broker) for broker in brokers if broker not in known)
    for broker in known:
        inputs.unjudged += (_not_read(broker, problem) for problem in broker.problems)
        inputs.hidden.update(broker.hidden)
    _compare_directories(inputs)
    _name_shared_files(inputs)
    _name_unknown_logs(inputs)
    _drop_foreign_logs(inputs)
    for log in inputs.logs:
        inputs.findings += log.problems
        _read_log(log, inputs)
        _find_traces(log, inputs)
    for broker in known:
        for name, end in checkpoints[broker.broker].recovery_points.items():
            _add_traces(inputs, Replica(broker.broker, *name), [Trace(RECOVERY_POINTS, end)])
    return inputs


def _refuse_others(brokers: Iterable[BrokerDirectory], cluster: Cluster) -> None:
    for broker in brokers:
        if broker.cluster_id not in ("", cluster.cluster_id):
            raise UsageError(
                f"the metadata are of cluster {cluster.cluster_id}, and {broker.path} is of"
                f" {broker.cluster_id}"
            )


def _compare_directories(inputs: Inputs) -> None:
    """Hold the verdict back for directories that are not those that the metadata know.

    An older copy of a directory lacks what its broker has stored since, and older metadata do not
    know what brokers have stored since: neither need show in the logs.
    """
    for broker in inputs.brokers if inputs.cluster else ():
        assert inputs.cluster is not None
        admitted = inputs.cluster.admitted.get(broker.broker)
        if admitted is None or broker.state == LIVE:
            continue
        if broker.directory_id and broker.directory_id != admitted.directory_id:
            reason = f"its id is {broker.directory_id}, and the metadata know another"
            reason += f" data directory of this broker, {admitted.directory_id}"
        elif broker.run is not None and broker.run < admitted.run:
            reason = f"it is an older copy: its broker had been started {broker.run} times, and the"
            reason += f" metadata know of {admitted.run}"
        elif broker.run is not None and broker.run > admitted.run and broker.state == STOPPED:
            reason = f"the metadata are older than it: its broker has been started {broker.run}"
            reason += f" times, and they know of {admitted.run}"
        else:
            continue
        reason = f"{broker.path}: {reason}"
        inputs.unjudged.append(Unjudged(reason, holds_back=True, broker=broker.broker))


def _name_shared_files(inputs: Inputs) -> None:
    """Hold the verdict back for logs that are links to another log's files: they are one copy, and
    a broker that starts changes it for both."""
    first: dict[tuple[int, int], LogDirectory] = {}
    for log in inputs.logs:
        known = {segment.inode: segment for segment in log.segments if segment.inode is not None}
        shared = next((inode for inode in known if inode in first), None)
        if shared is not None:
            reason = f"{known[shared].path.name} is a link to the file in {first[shared].path}:"
            reason += " they are one copy, not two"
            place = (log.topic, log.partition, log.broker)
            inputs.unjudged.append(Unjudged(reason, True, *place))
        for inode in known:
            first.setdefault(inode, log)


def _came_late(broker: BrokerDirectory) -> Unjudged:
    """Return a broker as not judged: its high watermarks were not read before its logs."""
    reason = f"{broker.path} appeared while the directories were looked at: run the audit again"
    return Unjudged(reason, holds_back=True, broker=broker.broker)


def _not_read(broker: BrokerDirectory, problem: Unreadable) -> Unjudged:
    reason = f"{problem.path} cannot be read: {problem.reason}"
    return Unjudged(reason, holds_back=True, broker=broker.broker)


def _read_checkpoints(broker: BrokerDirectory, findings: list[Finding]) -> Checkpoints:
    return Checkpoints(
        _read_offsets(broker, HIGH_WATERMARKS, findings) or {},
        _read_offsets(broker, RECOVERY_POINTS, findings) or {},
        _read_offsets(broker, LOG_STARTS, findings),
        _read_offsets(broker, CLEANED_ENDS, findings) or {},
    )


def _read_offsets(broker: BrokerDirectory, name: str, findings: list[Finding]) -> Offsets | None:
    read = read_offsets(broker.path / name)
    if not isinstance(read, Unreadable):
        return read
    # A broker writes them periodically, and all of them when it stops in order; that of compaction
    # once it has compacted a log.
    if not read.is_missing or (broker.state == STOPPED and name != CLEANED_ENDS):
        detail = f"{name}: {read.reason}"
        found = Finding("checkpoint", Severity.WARNING, broker=broker.broker, detail=detail)
        findings.append(found)
    return None


def _read_log(log: LogDirectory, inputs: Inputs) -> None:
    """Read the epoch checkpoint and the snapshots of one log."""
    starts = read_epoch_starts(log.path)
    if isinstance(starts, Unreadable):
        if not starts.is_missing:
            inputs.findings.append(_unreadable(log, "epoch-checkpoint", starts))
    else:
        inputs.epoch_starts += ((*log.replica, epoch, start) for epoch, start in starts)
        _add_traces(inputs, log.replica, (Trace(EPOCH_STARTS, start) for _, start in starts))
    for snapshot in read_snapshots(log.path):
        if isinstance(snapshot, Unreadable):
            inputs.findings.append(_unreadable(log, "snapshot", snapshot))
        else:
            inputs.producers += _producer_rows(log, snapshot)


def _find_traces(log: LogDirectory, inputs: Inputs) -> None:
    """Add the ends of a log that its file names imply."""
    for name in log.names:
        offset = parse_offset_name(name.partition(".")[0])
        if offset is not None:
            _add_traces(inputs, log.replica, [Trace(f"{log.path.name}/{name}", offset)])


def _add_traces(inputs: Inputs, replica: Replica, traces: Iterable[Trace]) -> None:
    """Keep the trace with the highest end."""
    known = [inputs.traces[replica]] if replica in inputs.traces else []
    found = [*known, *traces]
    if found:
        inputs.traces[replica] = max(found, key=lambda trace: trace.end)


def _unreadable(log: LogDirectory, check: str, problem: Unreadable) -> Finding:
    detail = f"{problem.path.name}: {problem.reason}"
    segment = parse_offset_name(problem.path.stem)  # of a snapshot, its offset
    return Finding(check, Severity.WARNING, *_place(log), segment=segment, detail=detail)


def _place(log: LogDirectory) -> tuple[str, int, int]:
    return log.topic, log.partition, log.broker


def _producer_rows(log: LogDirectory, snapshot: Snapshot) -> Iterator[Row]:
    yield (*log.replica, snapshot.offset, None, None, None, None)
    for producer in snapshot.producers:
        yield (*log.replica, snapshot.offset, *producer)


def _drop_foreign_logs(inputs: Inputs) -> None:
    """Drop logs of another topic than the one that has their name today, and their checkpoints.

    Checkpoints are by name. The metadata say which topic that is; without them, most of the logs of
    that name do.
    """
    topic_ids = inputs.topic_ids
    right = {log.topic for log in inputs.logs if log.topic_id == topic_ids.get(log.topic)}
    kept = []
    for broker in inputs.brokers:
        foreign = [log for log in broker.logs if log.topic_id not in ("", topic_ids.get(log.topic))]
        for log in foreign:
            _tell_foreign(log, inputs, right)
        names = {TopicPartition(log.topic, log.partition) for log in foreign}
        inputs.checkpoints[broker.broker] = inputs.checkpoints[broker.broker].without(names)
        logs = tuple(log for log in broker.logs if log not in foreign)
        kept.append(replace(broker, logs=logs))
    inputs.brokers = tuple(kept)


def _tell_foreign(log: LogDirectory, inputs: Inputs, right: Collection[str]) -> None:
    """Say why a log is not judged; `right` are the topics of which some log has the right id."""
    if inputs.cluster is None:
        inputs.notes.append(f"{log.path} is of another topic than most logs of that name")
        return
    if log.topic_id in inputs.cluster.deleted_ids:
        inputs.notes.append(f"{log.path} is of a topic that was deleted")
        return
    inputs.hidden.add(log.replica)
    if log.topic in right:
        detail = (
            f"{PARTITION_METADATA} has the topic id {log.topic_id}, and the metadata have"
            f" {inputs.cluster.topic_ids[log.topic]}: the log is of another topic, or the file was"
            " changed; its records were not judged"
        )
        found = Finding("checkpoint", Severity.ERROR, *_place(log), detail=detail)
        inputs.findings.append(found)
        return
    reason = f"the metadata do not know its topic ({log.topic_id}), and may be older than it"
    unjudged = Unjudged(reason, True, log.topic, log.partition, log.broker)
    inputs.unjudged.append(unjudged)


def _most_common_ids(logs: Iterable[LogDirectory]) -> dict[str, str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for log in logs:
        if log.topic_id:
            counts[log.topic][log.topic_id] += 1
    return {topic: found.most_common(1)[0][0] for topic, found in counts.items()}


def _name_unknown_logs(inputs: Inputs) -> None:
    """Add a finding for each log that a checkpoint names and that does not exist."""
    for broker in inputs.brokers:
        if broker.state != STOPPED:
            continue
        there = {TopicPartition(log.topic, log.partition) for log in broker.logs}
        there |= {TopicPartition(each.topic, each.partition) for each in broker.hidden}
        for name in sorted(inputs.checkpoints[broker.broker].high_watermarks.keys() - there):
            inputs.findings.append(
                Finding(
                    "checkpoint",
                    Severity.WARNING,
                    name.topic,
                    name.partition,
                    broker.broker,
                    detail=f"{HIGH_WATERMARKS} names this log, and it is not there",
                )
            )
