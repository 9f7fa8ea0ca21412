"""Findings about reassignments under way: those that wait for a broker or for a leader."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from minibroker.broker.findings import Finding, Level, counted, listed

if TYPE_CHECKING:
    from minibroker.protocol.types import TopicPartition


def of_reassignments(
    adding: "Mapping[TopicPartition, Collection[int]]",
    live: Collection[int],
    leaderless: "Collection[TopicPartition]" = (),
) -> Iterator[Finding]:
    """Report reassignments that make no progress. `adding` has the brokers that each adds; `live`
    are the live brokers that the controller hears; `leaderless` partitions have no leader."""
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
    if unled := sorted({*adding}.intersection(leaderless)):
        yield Finding(
            Level.PROBLEM,
            f"{counted(len(unled), 'reassignment')} cannot go on without a leader to copy from:"
            f" {listed(unled)}",
            "start a broker of their in-sync sets; if none ever comes back, `minibroker leader"
            " elect --unclean` says what that costs",
        )
