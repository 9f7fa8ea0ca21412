"""Metrics of consumer groups, exposed by each group's coordinator.

The lag of a group needs the partition's high watermark. The coordinator knows it only if it has a
replica of that partition; for others it exposes no lag, and a query can compute it from the metrics
of their leaders.
"""

from collections.abc import Iterator
from typing import Final

import trio
from prometheus_client.core import Metric

from minibroker.broker.groups.coordinator import Coordinator, KeptGroup
from minibroker.broker.observe.metrics.exposition import gauge, single
from minibroker.broker.replication.replicas import Replicas
from minibroker.protocol.types import TopicPartition

GROUPS_AT_ONCE: Final = 100
MANAGER: Final = "kafka_coordinator_group_groupmetadatamanager"


def broker_families(groups: Coordinator) -> Iterator[Metric]:
    """Make the counts of groups and of committed offsets."""
    group_count, offset_count = groups.statistics()
    yield single(f"{MANAGER}_numgroups", "Groups that are kept here", group_count)
    yield single(f"{MANAGER}_numoffsets", "Offsets that they have committed", offset_count)


async def read_groups(groups: Coordinator) -> list[KeptGroup]:
    """Return all groups of this coordinator; other tasks run meanwhile."""
    found = []
    for group in groups.groups_kept():
        found.append(group)
        if len(found) % GROUPS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return found


def group_families(found: list[KeptGroup], replicas: Replicas) -> Iterator[Metric]:
    """Make the metrics of each group, with the names of kafka_exporter."""
    members = gauge("kafka_consumergroup_members", "Members of a group", "consumergroup")
    for group in found:
        members.add_metric([group.group_id], group.members)
    yield members
    labels = ("consumergroup", "topic", "partition")
    text = "Offset that a group has committed: of the record that it reads next"
    current = gauge("kafka_consumergroup_current_offset", text, *labels)
    text = "Records that a group has not read yet, by what it has committed"
    lag = gauge("kafka_consumergroup_lag", text, *labels)
    for group in found:
        for name, offset in group.offsets.items():
            place = [group.group_id, name.topic, str(name.partition)]
            current.add_metric(place, offset)
            end = _end(replicas, name)
            if end is not None:
                lag.add_metric(place, max(0, end - offset))
    yield current
    yield lag


def _end(replicas: Replicas, name: TopicPartition) -> int | None:
    partition = replicas.get(name)
    return None if partition is None else partition.high_watermark
