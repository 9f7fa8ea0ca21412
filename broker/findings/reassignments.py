"""Findings about reassignments under way: those that wait for a broker that cannot copy."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from minibroker.broker.findings import Finding, Level, counted, listed

if TYPE_CHECKING:
    from minibroker.protocol.types import TopicPartition


def of_reassignments(
    adding: "Mapping[TopicPartition, Collection[int]]", live: Collection[int]
) -> Iterator[Finding]:
    """Report reassignments that make no progress. `adding` has the brokers that each adds; `live`
    are the live brokers that the controller hears."""
    waiting: dict[int, list[TopicPartition]] = {}
    for name, nodes in sorted(adding.items()):
        for node in nodes:
            if node not in live:
                waiting.setdefault(node, []).append(name)
    for node, names in sorted(waiting.items()):
        yield Finding(
            Level.PROBLEM,
            f"{counted(len(names), 'reassignment')} cannot end while broker {node} is not alive or"
            f" fenced: {listed(names)}",
            f"start broker {node}, or lead them back with `minibroker partition reassign --topic"
            " TOPIC --cancel`",
        )
