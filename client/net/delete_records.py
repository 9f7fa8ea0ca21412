"""DELETE_RECORDS of many partitions: each leader is asked until it is done.

A repeated request does no harm: deleted records stay deleted. An answer may be late, because a live
replica has not deleted the records yet; then the leader is asked again, too.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import trio

from minibroker.client.errors import ClientTimeout, error_code
from minibroker.client.net.cluster import Cluster
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE, BrokerError
from minibroker.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    PartitionDeleteRecords,
    PartitionRecordsDeleted,
)
from minibroker.protocol.types import TopicPartition

# A leader that has not answered by then, or its successor, is asked again.
ROUND_S: Final = 3.0
ANSWER_MS: Final = 2_000  # how long a leader waits for its followers in one round
PAUSE_S: Final = 0.05

Offsets = Mapping[TopicPartition, int]


async def delete_records(cluster: Cluster, offsets: Offsets) -> dict[TopicPartition, int]:
    """Delete the records below these offsets (-1: all committed ones); return the low watermarks.

    Raises `BrokerError`, and `ClientTimeout`: then some records may be deleted.
    """
    done: dict[TopicPartition, int] = {}
    reason = "no leader is known"
    with trio.move_on_after(cluster.options.call_timeout_ms / 1000):
        while len(done) < len(offsets):
            missing = {name: offset for name, offset in offsets.items() if name not in done}
            for answer in await _ask(cluster, missing):
                name, error = TopicPartition(answer.topic, answer.partition), answer.error
                if not error:
                    done[name] = answer.low_watermark
                    continue
                code = error_code(error)
                reason = f"{name}: {answer.error_message or code.name}"
                if code not in RETRIABLE:
                    raise BrokerError(code, reason)
                if code in REFRESH_METADATA:
                    cluster.request_refresh()
            if len(done) < len(offsets):
                await trio.sleep(PAUSE_S)
        return done
    for name in offsets:
        if name not in done and (missed := cluster.why_missing(name)) is not None:
            raise missed
    raise ClientTimeout(f"records are not deleted on all replicas ({reason}): {cluster.timeout()}")


async def _ask(cluster: Cluster, offsets: Offsets) -> list[PartitionRecordsDeleted]:
    """Send one request to each leader. Partitions without leader or answer are missing in the
    result, and the metadata are refreshed."""
    by_node: dict[int, list[PartitionDeleteRecords]] = defaultdict(list)
    for name, offset in offsets.items():
        if (leader := cluster.leader_of(name)) is None:
            cluster.request_topic(name.topic)
        else:
            topic_id = cluster.topic_id(name.topic) or b""
            by_node[leader.node_id].append(PartitionDeleteRecords(*name, offset, topic_id))
    answers: list[PartitionRecordsDeleted] = []
    with trio.move_on_after(ROUND_S) as scope:
        async with trio.open_nursery() as nursery:
            for node_id, asked in by_node.items():
                nursery.start_soon(_ask_node, cluster, node_id, tuple(asked), answers)
    if scope.cancelled_caught:
        cluster.request_refresh()
    return answers


async def _ask_node(
    cluster: Cluster,
    node_id: int,
    asked: tuple[PartitionDeleteRecords, ...],
    answers: list[PartitionRecordsDeleted],
) -> None:
    try:
        channel = await cluster.channel(node_id)
        response = await channel.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(asked, ANSWER_MS))
    except OSError:
        cluster.request_refresh()
        return
    answers += response.partitions
