"""What may be wrong with a partition, as the filters of `topic describe` and the counts of
`cluster describe` mean it.

acks=all needs `min.insync.replicas` of them in sync, but never more than the partition has: the
broker reckons in the same way, so nobody is told of a partition that is under its minimum and yet
takes records.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minibroker.protocol.messages.metadata import PartitionMetadata


class Health(NamedTuple):
    """Facts about one partition; unavailable: nobody alive leads it."""

    is_under_replicated: bool
    is_unavailable: bool
    is_under_min_isr: bool
    is_at_min_isr: bool


def needed_in_sync(replicas: int, configs: Mapping[str, str]) -> int:
    """How many in-sync replicas acks=all needs, of a partition with so many replicas."""
    return min(int(configs["min.insync.replicas"]), replicas)


def health_of(partition: "PartitionMetadata", configs: Mapping[str, str]) -> Health:
    """`configs` are the topic's, as they are in force."""
    in_sync, replicas = len(partition.isr), len(partition.replicas)
    needed = needed_in_sync(replicas, configs)
    return Health(
        is_under_replicated=in_sync < replicas,
        is_unavailable=partition.leader_id < 0,
        is_under_min_isr=in_sync < needed,
        is_at_min_isr=in_sync == needed,
    )


def awaited(partition: "PartitionMetadata") -> str:
    """Of a partition that nobody leads, who is missing, as words; "" of one that is led."""
    if partition.leader_id >= 0:
        return ""
    missing = partition.offline_replicas
    if in_sync := [node for node in missing if node in partition.isr]:
        return f"in sync, but not alive: broker {_listed(in_sync)}"
    if missing:
        return f"not alive: broker {_listed(missing)}"
    return "all its brokers are alive; the log of the controller says why"


def _listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes))
