"""Committers without a membership, in a group that has no members: the wire and nothing else.

Each commits ever higher offsets of its own partition and asks for all. So coordinators are put
to the test without anything that a consumer does. One more looks at what the members commit.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from minibroker.client import TopicPartition
from minibroker.client.net.channel import ConnectionLost
from minibroker.client.net.cluster import Cluster, open_cluster
from minibroker.client.net.servers import parse_servers
from minibroker.client.options import AdminOptions
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import FindCoordinatorRequest
from tests.sim.group_members import GROUP, LONERS, Stage
from tests.sim.workload import TIMEOUT_MS, TOPIC


class Loner:
    """Commits and asks until it is answered."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def commit(self, place: TopicPartition, offset: int) -> None:
        """Until it is acknowledged."""
        commit = PartitionCommit(*place, offset)
        while True:
            request = OffsetCommitRequest(self._group, partitions=(commit,))
            answer = await self._call(ApiKey.OFFSET_COMMIT, request)
            if answer.partitions[0].error == ErrorCode.NONE:
                return
            await trio.sleep(0.05)

    async def committed(self) -> dict[TopicPartition, int]:
        """All that is committed."""
        while True:
            answer = await self._call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(self._group))
            if answer.error == ErrorCode.NONE:
                return {
                    TopicPartition(each.topic, each.partition): each.offset
                    for each in answer.partitions
                }
            await trio.sleep(0.05)

    async def _call(self, api_key: ApiKey, request: object) -> Any:
        while True:
            find = FindCoordinatorRequest(self._group)
            found = await self._cluster.ask(ApiKey.FIND_COORDINATOR, find)
            if found.error == ErrorCode.NONE:
                try:
                    channel = await self._cluster.channel(found.node_id)
                    return await channel.call(api_key, request)
                except ConnectionLost:
                    pass
            await trio.sleep(0.05)


async def commit_alone(stage: Stage, partition: int) -> None:
    """Commit ever higher offsets, and ask for all, until told to stop."""
    who = f"committer-{partition}"
    rng = stage.world.rng(who)
    place = TopicPartition(TOPIC, partition)
    offset = 0
    async with open_loner(stage, who, LONERS) as loner:
        while not stage.stop.is_set():
            offset += rng.randint(1, 5)
            await loner.commit(place, offset)
            if rng.random() < 0.5:
                await loner.committed()
            await trio.sleep(rng.expovariate(1 / 0.3))
        await stage.drained.wait()
        await loner.committed()


async def look_on(stage: Stage) -> None:
    """Ask what the members have committed, until told to stop."""
    rng = stage.world.rng("onlooker")
    async with open_loner(stage, "onlooker", GROUP) as loner:
        while not stage.stop.is_set():
            await loner.committed()
            await trio.sleep(rng.expovariate(1 / 0.2))


@asynccontextmanager
async def open_loner(stage: Stage, who: str, group: str) -> AsyncIterator[Loner]:
    """On a host of its own."""
    _, seams = stage.seams(who, who)
    timeout_ms = seams.rng.choice((1_000, 3_000))
    options = AdminOptions(
        bootstrap_servers=parse_servers(stage.address),
        default_api_timeout_ms=TIMEOUT_MS,
        request_timeout_ms=timeout_ms,
    )
    async with open_cluster(options, seams) as cluster:
        yield Loner(cluster, group)
