"""The requests of `minibroker doctor` about replication quotas: their rates, and how fast producers
write to throttled partitions, from the sizes of logs at two times."""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from minibroker.broker.findings.throttles import QuotaLimits, throttled_partitions
from minibroker.broker.properties.quotas import (
    FOLLOWER_RATE,
    LEADER_RATE,
    REPLICATION_RATES,
    rate_limit,
)
from minibroker.protocol.constants import INT64_MAX

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin
    from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
    from minibroker.protocol.types import TopicPartition

LOOK_S: Final = 2.0  # between the two looks at the sizes of logs


@dataclass(frozen=True, slots=True)
class QuotasSeen:
    """The partitions with a throttled replica, if one lacks records; the rates of their brokers'
    quotas; and the bytes per second that are appended to each, as far as its leader answers."""

    partitions: "Mapping[TopicPartition, PartitionMetadata]" = field(default_factory=dict)
    limits: Mapping[int, QuotaLimits] = field(default_factory=dict)
    written: "Mapping[TopicPartition, float]" = field(default_factory=dict)


def inspect_quotas(
    admin: "Admin",
    topics: "Iterable[TopicMetadata]",
    configs: Mapping[str, Mapping[str, str]],
    live: Collection[int],
) -> QuotasSeen:
    """Ask the brokers of throttled partitions, if a throttled replica lacks records. This takes
    `LOOK_S` seconds then. Raises `Admin`'s errors."""
    partitions = throttled_partitions(topics, configs)
    if not partitions:
        return QuotasSeen()
    before, began = _leader_sizes(admin, partitions), time.monotonic()
    limits = {}
    for node in sorted({node for one in partitions.values() for node in one.replicas}):
        if node in live:
            described = admin.describe_broker_configs(node, *REPLICATION_RATES)
            own = {one.name: one.value for one in described}
            rates = (rate_limit(own, name, INT64_MAX) for name in (LEADER_RATE, FOLLOWER_RATE))
            limits[node] = QuotaLimits(*rates)
    time.sleep(LOOK_S)
    after, elapsed_s = _leader_sizes(admin, partitions), time.monotonic() - began
    written = {
        name: max(0, size - before[name]) / elapsed_s
        for name, size in after.items()
        if name in before
    }
    return QuotasSeen(partitions, limits, written)


def _leader_sizes(
    admin: "Admin", partitions: "Mapping[TopicPartition, PartitionMetadata]"
) -> "dict[TopicPartition, int]":
    """Return the bytes of each partition's log at its leader, if that answers."""
    from minibroker.protocol.messages.log_dirs import present_logs
    from minibroker.protocol.types import TopicPartition

    sizes = {}
    for node, answer in admin.describe_log_dirs(partitions).answers.items():
        for log in present_logs(answer):
            name = TopicPartition(log.topic, log.partition)
            if name in partitions and partitions[name].leader_id == node:
                sizes[name] = log.size
    return sizes
