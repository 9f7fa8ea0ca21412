"""`minibroker leader elect --unclean`: what each replica of a partition has, what would be lost
with it, and the election.

The loss is what live replicas have and the leader to be does not. What only replicas on dead
brokers have is lost as well, and nobody can say how much it is: a high watermark that a live
replica knows is what it was at least.

Of two logs the one whose last leader epoch is larger has all committed records of the other; of the
same epoch it is the longer one. Logs of different last epochs may part below the end of the shorter
one, so the loss is then a lower bound.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from minibroker.cli.terminal import Failure, confirm, in_columns, note
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.client.admin import ReplicasReport
    from minibroker.client.blocking import Admin
    from minibroker.protocol.messages.metadata import PartitionMetadata
    from minibroker.protocol.messages.replicas import ReplicaDescription


class Candidate(NamedTuple):
    """One replica; -1 stands for what is not known. `is_in_sync`: at the last known state."""

    broker: int
    is_alive: bool
    is_in_sync: bool
    log_end: int = -1
    last_epoch: int = -1
    high_watermark: int = -1
    newest_timestamp: int = -1
    reason: str = ""

    @property
    def tail(self) -> tuple[int, int]:
        """The larger one has all committed records of the smaller one."""
        return self.last_epoch, self.log_end


class Loss(NamedTuple):
    """The offsets from `begin` to before `end` that the live broker `holder` has and a candidate
    does not. With `is_minimum` it may be more, because the logs are of different epochs."""

    begin: int
    end: int
    holder: int
    is_minimum: bool


def candidates_of(
    name: TopicPartition, partition: "PartitionMetadata", report: "ReplicasReport"
) -> list[Candidate]:
    """Return what is known of each replica, in order of preference."""
    found = []
    for node in partition.replicas:
        is_in_sync = node in partition.isr
        if node not in report.answers:
            why = report.silent.get(node, "no answer")
            found.append(Candidate(node, node not in report.silent, is_in_sync, reason=why))
            continue
        replica = _replica(report, node, name)
        if replica is None or replica.log_end < 0:
            why = replica.reason if replica is not None else "the broker does not have it"
            found.append(Candidate(node, True, is_in_sync, reason=why))
            continue
        described = (
            replica.log_end,
            replica.last_epoch,
            replica.high_watermark,
            replica.newest_timestamp,
        )
        found.append(Candidate(node, True, is_in_sync, *described))
    return found


def _replica(
    report: "ReplicasReport", node: int, name: TopicPartition
) -> "ReplicaDescription | None":
    for one in report.answers[node].replicas:
        if (one.topic, one.partition) == name:
            return one
    return None


def losses(chosen: Candidate, candidates: Sequence[Candidate]) -> list[Loss]:
    """Return what other live replicas have and the chosen one does not."""
    found = []
    for other in candidates:
        if other.log_end < 0 or other.broker == chosen.broker:
            continue
        is_newer = other.last_epoch > chosen.last_epoch
        if other.log_end > chosen.log_end:
            parts = other.last_epoch != chosen.last_epoch
            found.append(Loss(chosen.log_end, other.log_end, other.broker, parts))
        elif is_newer:
            found.append(Loss(other.log_end - 1, other.log_end, other.broker, True))
    return found


def best_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate with which the least is lost, of equal ones the first; None if no live
    replica has a log."""
    known = [one for one in candidates if one.log_end >= 0]
    return max(known, key=lambda one: one.tail, default=None)


def elect_uncleanly(
    admin: "Admin", name: TopicPartition, wanted: int | None, *, is_agreed: bool
) -> None:
    """Show what would be lost, ask, and elect. Raises `Failure`."""
    [topic] = admin.describe_topics(name.topic)
    found = [one for one in topic.partitions if one.partition == name.partition]
    if not found:
        raise Failure(f"there is no partition {name}: {name.topic} has {len(topic.partitions)}")
    [partition] = found
    if partition.leader_id >= 0:
        print(f"Broker {partition.leader_id} leads {name}: no election is needed.")
        return
    candidates = candidates_of(name, partition, admin.describe_replicas(name.topic))
    best = best_of(candidates)
    print(table(candidates, best), end="")
    if best is None:
        nodes = ",".join(str(one.broker) for one in candidates)
        raise Failure(f"no live replica of {name} has a log: start one of the brokers {nodes}")
    chosen = best if wanted is None else _named(name, wanted, candidates)
    for line in outlook(name, chosen, candidates):
        note(line)
    confirm(f"Elect broker {chosen.broker}, and lose this?", is_agreed=is_agreed)
    report = admin.elect_leaders([name], is_unclean=True, leader=chosen.broker)
    if name in report.failed:
        raise Failure(f"{name}: {report.failed[name]}")
    if name in report.not_needed:
        print(f"{name} has got a leader meanwhile: no election is needed.")
        return
    print(f"Elected broker {chosen.broker} the leader of {name}, from offset {chosen.log_end} on.")


def _named(name: TopicPartition, wanted: int, candidates: Sequence[Candidate]) -> Candidate:
    for one in candidates:
        if one.broker == wanted:
            if one.log_end < 0:
                raise Failure(f"broker {wanted} cannot lead {name}: {one.reason}")
            return one
    nodes = ",".join(str(one.broker) for one in candidates)
    raise Failure(f"broker {wanted} has no replica of {name}; its replicas are on {nodes}")


def outlook(name: TopicPartition, chosen: Candidate, candidates: Sequence[Candidate]) -> list[str]:
    """Say what is lost if the chosen replica leads, one fact a line."""
    lines = [
        f"with broker {chosen.broker} {name} loses {_offsets(loss)}, which broker {loss.holder} has"
        for loss in losses(chosen, candidates)
    ]
    committed = max(one.high_watermark for one in candidates)
    if committed > chosen.log_end:
        lines.append(
            f"of this the records from offset {chosen.log_end} to {committed - 1} were committed"
        )
    unknown = [one.broker for one in candidates if one.is_in_sync and one.log_end < 0]
    if unknown:
        lines.append(
            f"lost is also what only broker {','.join(map(str, unknown))} has, in sync and not"
            " readable now: if it can be started, nothing needs to be lost"
        )
    return lines or [f"with broker {chosen.broker} nothing is lost that a live replica has"]


def _offsets(loss: Loss) -> str:
    least = " at least" if loss.is_minimum else ""
    return f"offsets {loss.begin} to {loss.end - 1}{least}"


def table(candidates: Sequence[Candidate], best: Candidate | None) -> str:
    """Return a line of heads and a line per replica, in columns."""
    heads = (
        "BROKER",
        "ALIVE",
        "IN-SYNC",
        "LOG-END",
        "LAST-EPOCH",
        "HIGH-WATERMARK",
        "NEWEST-RECORD",
        "LOSES",
    )
    rows = [
        (
            one.broker,
            one.is_alive,
            one.is_in_sync,
            *(value if value >= 0 else None for value in (*reversed(one.tail), one.high_watermark)),
            _moment(one.newest_timestamp),
            _loss_text(one, candidates) + (" (the least)" if one is best else ""),
        )
        for one in candidates
    ]
    return in_columns(heads, rows)


def _loss_text(one: Candidate, candidates: Sequence[Candidate]) -> str:
    if one.log_end < 0:
        return f"cannot lead: {one.reason}"
    found = [f"{_offsets(loss)} of broker {loss.holder}" for loss in losses(one, candidates)]
    return "; ".join(found) or "nothing of live replicas"


def _moment(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
