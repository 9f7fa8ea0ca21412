"""The requests of one process that speaks the protocol itself: to coordinators and leaders, each
one try. `Wire` finds who serves them, as a client does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

from minibroker.client.net.channel import ConnectionLost
from minibroker.client.net.cluster import Cluster, open_cluster
from minibroker.client.net.servers import parse_servers
from minibroker.client.options import AdminOptions, Seams
from minibroker.protocol.constants import READ_COMMITTED, ApiKey, ErrorCode
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch, PartitionFetched
from minibroker.protocol.messages.groups import GROUP_KEY, TRANSACTION_KEY, FindCoordinatorRequest
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.workload import TIMEOUT_MS

FETCH_WAIT_MS: Final = 100
# The broker asked does not serve it now, or another one does.
ELSEWHERE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Wire:
    """See the head of this module."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.cluster = cluster
        self._rng = rng
        self._coordinators: dict[tuple[int, str], int] = {}

    async def ask_of_group(self, group: str, api_key: ApiKey, request: object) -> Any:
        """A group's coordinator's answer; None if it was lost."""
        return await self._ask(GROUP_KEY, group, api_key, request)

    async def ask_of_id(self, transactional_id: str, api_key: ApiKey, request: object) -> Any:
        """A transactional id's coordinator's answer; None if it was lost."""
        return await self._ask(TRANSACTION_KEY, transactional_id, api_key, request)

    async def _ask(self, key_type: int, key: str, api_key: ApiKey, request: object) -> Any:
        try:
            node = self._coordinators.get((key_type, key))
            if node is None:
                find = FindCoordinatorRequest(key, key_type)
                found = await self.cluster.ask(ApiKey.FIND_COORDINATOR, find)
                if found.error != ErrorCode.NONE:
                    return None
                node = self._coordinators[key_type, key] = found.node_id
            channel = await self.cluster.channel(node)
            return await channel.call(api_key, request)
        except ConnectionLost:
            self.look_elsewhere()
            return None

    async def ask_leader(self, place: TopicPartition, api_key: ApiKey, request: object) -> Any:
        """The answer of a partition's leader; None if it was lost."""
        leader = self.cluster.leader_of(place)
        if leader is None or leader.node_id < 0:
            self.look_elsewhere()
            return None
        try:
            channel = await self.cluster.channel(leader.node_id)
            return await channel.call(api_key, request)
        except ConnectionLost:
            self.look_elsewhere()
            return None

    def look_elsewhere(self) -> None:
        """Ask again who coordinates and who leads."""
        self._coordinators.clear()
        self.cluster.request_refresh()

    async def fetch(
        self, place: TopicPartition, offset: int, *, is_large: bool = False
    ) -> PartitionFetched | None:
        """Committed records of a partition from an offset on; None if there is no answer, or an
        error."""
        bytes_max = 10_000 if is_large else self._rng.choice((1, 300, 3_000))
        request = FetchRequest(
            wait_ms_max=FETCH_WAIT_MS,
            partitions=(PartitionFetch(*place, offset, bytes_max),),
            isolation_level=READ_COMMITTED,
        )
        answer = await self.ask_leader(place, ApiKey.FETCH, request)
        if answer is None or answer.error or answer.partitions[0].error:
            self.look_elsewhere()
            return None
        fetched: PartitionFetched = answer.partitions[0]
        return fetched


@asynccontextmanager
async def open_wire(
    world: SimulatedWorld, address: str, who: str, host: str
) -> AsyncIterator[Wire]:
    """The wire of one process on a host."""
    seams = world.seams(host)
    rng = world.rng(who)
    options = AdminOptions(
        bootstrap_servers=parse_servers(address),
        default_api_timeout_ms=TIMEOUT_MS,
        request_timeout_ms=rng.choice((1_000, 3_000)),
    )
    async with open_cluster(options, Seams(seams.network, rng, seams.wall_ms)) as cluster:
        yield Wire(cluster, rng)
