"""`minibroker replica status`: how far each replica is, as the brokers themselves say it.

A row for every replica that the metadata names, those on dead brokers too, and for every one that
a broker holds beside. The lag is counted from the leader with the highest epoch: a broker that was
cut off may believe for a moment that it still leads. A replica with more than its leader has a
negative lag; it has records that nobody was promised, and will cut them off.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from minibroker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    TopicArgument,
    TopicOption,
    one_topic,
    opened_admin,
)

if TYPE_CHECKING:
    from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
    from minibroker.protocol.messages.replicas import DescribeReplicasResponse, ReplicaDescription

LEADER = "leader"

app = typer.Typer(help="Look at replicas.", no_args_is_help=True)


class Row(NamedTuple):
    """One replica; its fields are the names in JSON and, as words, the heads of the columns.

    None: not known, because its broker does not answer or nobody leads.
    """

    topic: str
    partition: int
    broker: int
    role: str
    leader_epoch: int | None
    log_end: int | None
    high_watermark: int | None
    lag: int | None
    in_sync: bool
    reason: str


@app.callback()
def replica() -> None:
    """Look at replicas."""


@app.command()
def status(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Show role, epoch, log end, high watermark and lag of every replica; of all topics if none
    is named."""
    with opened_admin(bootstrap, timeout_s) as admin:
        named = topic is not None or topic_option is not None
        names = [one_topic(topic, topic_option)] if named else admin.list_topics()
        topics = admin.describe_topics(*names)
        answers = admin.describe_replicas(*names) if names else []
    rows = list(replica_rows(topics, answers))
    if output is OutputFormat.JSON:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print("".join(f"{line}\n" for line in table(rows)), end="")


def replica_rows(
    topics: "Iterable[TopicMetadata]", answers: "Iterable[DescribeReplicasResponse]"
) -> Iterator[Row]:
    """By topic, partition and broker."""
    told: dict[tuple[str, int], dict[int, ReplicaDescription]] = {}
    for answer in answers:
        for one in answer.replicas:
            told.setdefault((one.topic, one.partition), {})[answer.broker_id] = one
    for topic in topics:
        for partition in topic.partitions:
            here = told.get((topic.name, partition.partition), {})
            yield from _rows_of(topic.name, partition, here)


def _rows_of(
    topic: str, partition: "PartitionMetadata", told: "dict[int, ReplicaDescription]"
) -> Iterator[Row]:
    """`told` is what brokers said of this partition, by broker."""
    leaders = [one for one in told.values() if one.role == LEADER]
    leader = max(leaders, key=lambda one: one.leader_epoch, default=None)
    # What the leader has confirmed is newer than what the controller has told to everybody.
    isr = leader.isr if leader is not None else partition.isr
    for node_id in sorted({*partition.replicas, *told}):
        one = told.get(node_id)
        yield Row(
            topic=topic,
            partition=partition.partition,
            broker=node_id,
            role=one.role if one is not None else "unreachable",
            leader_epoch=one.leader_epoch if one is not None else None,
            log_end=_known(one.log_end) if one is not None else None,
            high_watermark=_known(one.high_watermark) if one is not None else None,
            lag=_lag(leader, one),
            in_sync=node_id in isr,
            reason=one.reason if one is not None else "",
        )


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _lag(leader: "ReplicaDescription | None", one: "ReplicaDescription | None") -> int | None:
    if leader is None or one is None or one.log_end < 0:
        return None
    return leader.log_end - one.log_end


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line of heads and one for each row, in columns; nothing if there are no rows."""
    if not rows:
        return
    heads = [name.upper().replace("_", "-") for name in Row._fields]
    cells = [heads, *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
