"""LIST_OFFSETS of many partitions, each asked of its leader."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import trio

from minibroker.client.errors import ClientTimeout, error_code
from minibroker.client.net.cluster import Cluster
from minibroker.protocol.constants import LATEST_TIMESTAMP, NO_OFFSET, ApiKey
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE, BrokerError
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    PartitionListOffsets,
    PartitionOffset,
)
from minibroker.protocol.types import TopicPartition

# The client asks a broker that is silent for this long again, and waits no longer for it.
ROUND_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 0.1
PAUSE_S: Final = 0.05

# What is asked for each partition: a time in ms, or a sentinel: the earliest or latest offset.
Timestamps = Mapping[TopicPartition, int]


class OffsetAndTimestamp(NamedTuple):
    """The offset of the first record at or after a time, and that record's time in ms."""

    offset: int
    timestamp: int


async def ask_offsets(
    cluster: Cluster, wanted: Timestamps
) -> dict[TopicPartition, PartitionOffset]:
    """Ask each leader once. Partitions without leader or answer are missing in the result, and the
    metadata are refreshed.

    An error in an answer is one that will not change by asking again.
    """
    by_node: dict[int, list[PartitionListOffsets]] = defaultdict(list)
    for name, timestamp in wanted.items():
        if (leader := cluster.leader_of(name)) is None:
            cluster.request_topic(name.topic)
        else:
            topic_id = cluster.topic_id(name.topic) or b""
            asked = PartitionListOffsets(*name, timestamp, leader.leader_epoch, topic_id)
            by_node[leader.node_id].append(asked)
    answers: list[PartitionOffset] = []
    with trio.move_on_after(ROUND_S):
        async with trio.open_nursery() as nursery:
            for node_id, asked_there in by_node.items():
                nursery.start_soon(_ask_node, cluster, node_id, asked_there, answers)
    found = {}
    for answer in answers:
        error = error_code(answer.error)
        name = TopicPartition(answer.topic, answer.partition)
        if error not in RETRIABLE:
            found[name] = answer
        elif error in REFRESH_METADATA:
            cluster.request_refresh()
    return found


async def _ask_node(
    cluster: Cluster,
    node_id: int,
    asked: list[PartitionListOffsets],
    answers: list[PartitionOffset],
) -> None:
    try:
        with trio.move_on_after(CONNECT_TIMEOUT_S) as scope:
            channel = await cluster.channel(node_id)
        if scope.cancelled_caught:  # goes on; another broker may become leader
            cluster.request_refresh()
            return
        isolation_level = cluster.options.isolation
        request = ListOffsetsRequest(partitions=tuple(asked), isolation_level=isolation_level)
        response = await channel.call(ApiKey.LIST_OFFSETS, request)
    except OSError:
        cluster.request_refresh()
        return
    answers += response.partitions


async def list_offsets(
    cluster: Cluster, wanted: Timestamps
) -> dict[TopicPartition, PartitionOffset]:
    """Ask until all partitions have answers. Raises `BrokerError` and `ClientTimeout`."""
    found: dict[TopicPartition, PartitionOffset] = {}
    with trio.move_on_after(cluster.options.call_timeout_ms / 1000):
        while len(found) < len(wanted):
            missing = {name: wanted[name] for name in wanted if name not in found}
            answered = await ask_offsets(cluster, missing)
            for name, answer in answered.items():
                if answer.error:
                    raise BrokerError(error_code(answer.error), f"the offsets of {name}")
            found.update(answered)
            if not answered:
                await trio.sleep(PAUSE_S)
        return found
    missing_names = [name for name in wanted if name not in found]
    for name in missing_names:
        if (reason := cluster.why_missing(name)) is not None:
            raise reason
    raise ClientTimeout(f"no offsets of {', '.join(map(str, missing_names))}: {cluster.timeout()}")


async def find_time(
    cluster: Cluster, names: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """Return the first offset at or after a time, or the end if no record is as late.

    The end is asked for first: a record that is appended in between is found, not left out.
    """
    ends = await list_offsets(cluster, dict.fromkeys(names, LATEST_TIMESTAMP))
    found = await list_offsets(cluster, dict.fromkeys(ends, timestamp_ms))
    return {
        name: ends[name].offset if answer.offset == NO_OFFSET else answer.offset
        for name, answer in found.items()
    }
