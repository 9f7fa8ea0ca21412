"""The health of a partition, for the filters of `topic describe` and the counts of
`cluster describe`.

acks=all needs `min.insync.replicas` replicas in sync, but never more than the partition has. The
broker counts in the same way, so a partition that is reported as under its minimum does refuse
acks=all.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minibroker.protocol.messages.metadata import PartitionMetadata


class Health(NamedTuple):
    """Facts about one partition. It is unavailable if it has no leader."""

    is_under_replicated: bool
    is_unavailable: bool
    is_under_min_isr: bool
    is_at_min_isr: bool


def needed_in_sync(replicas: int, configs: Mapping[str, str]) -> int:
    """Return how many in-sync replicas acks=all needs of a partition with `replicas` replicas."""
    return min(int(configs["min.insync.replicas"]), replicas)


def health_of(partition: "PartitionMetadata", configs: Mapping[str, str]) -> Health:
    """Return the health of a partition; `configs` are the topic's effective settings."""
    in_sync, replicas = len(partition.isr), len(partition.replicas)
    needed = needed_in_sync(replicas, configs)
    return Health(
        is_under_replicated=in_sync < replicas,
        is_unavailable=partition.leader_id < 0,
        is_under_min_isr=in_sync < needed,
        is_at_min_isr=in_sync == needed,
    )


def awaited(partition: "PartitionMetadata") -> str:
    """Return, as text, the missing brokers of a partition without a leader; "" if it has one."""
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
