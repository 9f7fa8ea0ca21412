"""`minibroker replica status`: the state of each replica, as its broker reports it.

There is a row for every replica in the metadata, including those on dead brokers, and for every
other replica that a broker holds. The lag is counted from the leader with the highest epoch: a
broker that is cut off may believe for a moment that it still leads. A replica with more records
than its leader has a negative lag; the extra records were never committed, and it will truncate
them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    TopicArgument,
    TopicOption,
    in_columns,
    one_topic,
    opened_admin,
)

if TYPE_CHECKING:
    from minibroker.client.admin import ReplicasReport
    from minibroker.protocol.messages.metadata import TopicMetadata
    from minibroker.protocol.messages.replicas import ReplicaDescription

LEADER = "leader"

app = typer.Typer(help="Show replicas.", no_args_is_help=True)


class Row(NamedTuple):
    """One replica; its fields are the names in JSON and, as words, the heads of the columns.

    None: unknown, because its broker does not answer or there is no leader. `remote_log_end`,
    `last_fetch_s` and `caught_up_s` are what the leader knows of a follower: its log end as of its
    last fetch, and how many seconds ago that came and the follower last had all that the leader
    had. None: nothing yet in this leader epoch.
    """

    topic: str
    partition: int
    broker: int
    role: str = "unreachable"
    leader_epoch: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    in_sync: bool = False
    remote_log_end: int | None = None
    last_fetch_s: float | None = None
    caught_up_s: float | None = None
    last_stable_offset: int | None = None
    reason: str = ""


@app.callback()
def replica() -> None:
    """Show replicas."""


@app.command()
def status(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Show role, epoch, log end, high watermark, last stable offset and lag of every replica, and
    what its leader knows of it; of all topics if none is named."""
    with opened_admin(bootstrap, timeout_s) as admin:
        named = topic is not None or topic_option is not None
        names = [one_topic(topic, topic_option)] if named else admin.list_topics()
        topics = admin.describe_topics(*names)
        report = admin.describe_replicas(*names)
    rows = list(replica_rows(topics, report))
    if output is OutputFormat.JSON:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print(table(rows), end="")


def replica_rows(topics: "Iterable[TopicMetadata]", report: "ReplicasReport") -> Iterator[Row]:
    """Yield the rows, by topic, partition and broker."""
    from minibroker.broker.findings.partitions import awaited

    descriptions: dict[tuple[str, int], dict[int, ReplicaDescription]] = {}
    for node_id, answer in report.answers.items():
        for one in answer.replicas:
            descriptions.setdefault((one.topic, one.partition), {})[node_id] = one
    for topic in topics:
        for partition in topic.partitions:
            replicas_by_broker = descriptions.get((topic.name, partition.partition), {})
            leaders = [one for one in replicas_by_broker.values() if one.role == LEADER]
            leader = max(leaders, key=lambda one: one.leader_epoch, default=None)
            # The leader's confirmed ISR is newer than the one that the controller pushed.
            isr = leader.isr if leader is not None else partition.isr
            for node_id in sorted({*partition.replicas, *replicas_by_broker}):
                row = Row(topic.name, partition.partition, node_id, in_sync=node_id in isr)
                row = _as_the_leader_knows(row, leader)
                if node_id in replicas_by_broker:
                    described = _describe(row, replicas_by_broker[node_id], leader)
                    reasons = (described.reason, awaited(partition) if leader is None else "")
                    yield described._replace(reason="; ".join(filter(None, reasons)))
                elif node_id in report.answers:
                    yield row._replace(role="missing", reason="the broker does not have it")
                else:
                    yield row._replace(reason=report.silent.get(node_id, ""))


def _as_the_leader_knows(row: Row, leader: "ReplicaDescription | None") -> Row:
    """Return the row with what the leader knows of this replica, if it is a follower."""
    for known in () if leader is None else leader.followers:
        if known.broker_id == row.broker:
            return row._replace(
                remote_log_end=known.log_end if known.log_end >= 0 else None,
                last_fetch_s=known.fetch_age_ms / 1000 if known.fetch_age_ms >= 0 else None,
                caught_up_s=known.caught_up_age_ms / 1000 if known.caught_up_age_ms >= 0 else None,
            )
    return row


def _describe(row: Row, one: "ReplicaDescription", leader: "ReplicaDescription | None") -> Row:
    """Return the row with the values that the replica's broker reported."""
    is_there = one.log_end >= 0
    return row._replace(
        role=one.role,
        leader_epoch=one.leader_epoch,
        log_end=one.log_end if is_there else None,
        high_watermark=one.high_watermark if one.high_watermark >= 0 else None,
        last_stable_offset=one.last_stable_offset if one.last_stable_offset >= 0 else None,
        lag=leader.log_end - one.log_end if leader is not None and is_there else None,
        reason=one.reason,
    )


def table(rows: Sequence[Row]) -> str:
    """Return a line of heads and a line per row, in columns; "" if there are no rows."""
    return in_columns([name.upper().replace("_", "-") for name in Row._fields], rows)
