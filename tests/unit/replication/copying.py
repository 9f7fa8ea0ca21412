"""What the tests of fetchers share: a follower's broker without connections to it, and its leader.

Time is virtual and the network simulated, so the fetchers are tasks.
"""

import random
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from minibroker.broker.config import NOTHING, Config, load
from minibroker.broker.replication.fetch_connection import Connect, FetchConnection
from minibroker.broker.replication.fetch_task import connect_by_task
from minibroker.broker.replication.follower import FollowerOutcome, LeaderAnswer
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.replica_fetcher import ReplicaFetchers
from minibroker.broker.replication.roles import LocalBroker
from minibroker.client.net.channel import ChannelOptions
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.network import SimulatedNetwork
from tests.support.leaders import LogLeader, leading
from tests.unit.log.workbench import NOW, Bench

EPOCH = 5
ENDPOINT = Endpoint("broker-1", 9092)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ROUND_TRIPS_S = 0.03  # two or three of them, with all that is sent
LONG_POLL_S = 0.5


def state_of(
    name: TopicPartition, *, leader: int = 1, epochs: tuple[int, int] = (EPOCH, 0)
) -> PartitionState:
    """Brokers 1 and 2 hold it."""
    return PartitionState(name.topic, b"i" * 16, name.partition, leader, *epochs, (1, 2), (1, 2))


class Broker:
    """Broker 2: partitions that follow, and the fetchers that copy them."""

    def __init__(
        self, config: Config, connect: Connect, network: SimulatedNetwork | None = None
    ) -> None:
        self.config = config
        self.network = network  # to harm
        self.benches: dict[TopicPartition, Bench] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        self.written: list[TopicPartition] = []
        self.connect_count = 0
        self.broker_epoch = 77
        self.fetchers = ReplicaFetchers(config, self._connect_by(connect), lambda: NOW)
        self.local_broker = LocalBroker(2, 30.0, lambda _: None)
        self._writes = trio.lowlevel.ParkingLot()

    async def has_written(self) -> None:
        """Wait until the next answer was written."""
        await self._writes.park()

    def _connect_by(self, connect: Connect) -> Connect:
        def counted(endpoint: Endpoint) -> AbstractAsyncContextManager[FetchConnection]:
            self.connect_count += 1
            return connect(endpoint)

        return counted

    def apply_answer(
        self, partition: Partition, answer: LeaderAnswer, now: float
    ) -> FollowerOutcome:
        """As `Replicas` does."""
        before = partition.log.log_end
        outcome = partition.follower().handle_answer(partition.log, answer, partition.settings, NOW)
        self._record_write(partition, before)
        return outcome

    async def checkpoint_log_starts(self) -> bool:
        """Nothing is checkpointed here."""
        return True

    def fit_to_range(
        self, partition: Partition, leader_range: tuple[int, int], now: float
    ) -> FollowerOutcome:
        """As `Replicas` does."""
        before = partition.log.log_end
        outcome = partition.follower().handle_range(
            partition.log, leader_range, partition.settings, NOW
        )
        self._record_write(partition, before)
        return outcome

    def _record_write(self, partition: Partition, log_end_before: int) -> None:
        if partition.log.log_end != log_end_before:
            self.written.append(partition.topic_partition)
            self._writes.unpark_all()

    def hold(self, name: TopicPartition, overrides: Mapping[str, str] = NOTHING) -> Partition:
        """A partition with an empty log."""
        bench = self.benches[name] = Bench(name)
        partition = Partition(self.local_broker, bench.log, self.config.for_topic(overrides))
        self.partitions[name] = partition
        return partition

    def follow(self, name: TopicPartition, **state: object) -> Partition:
        """Let it follow, and copy it."""
        partition = self.partitions.get(name) or self.hold(name)
        partition.become_follower(state_of(name, **state))
        self.fetchers.assign(partition)
        return partition


@asynccontextmanager
async def cluster(
    *names: TopicPartition, **settings: str
) -> AsyncIterator[tuple[LogLeader, Broker]]:
    """Broker 1 leads these, and broker 2 runs its fetchers and knows where broker 1 is."""
    flags = {name.replace("_", "."): value for name, value in settings.items()}
    network = SimulatedNetwork(random.Random(1))
    leader = LogLeader(network.host("broker-1"), ENDPOINT, EPOCH)
    leader.logs = {name: Bench(name) for name in names}
    config = load(flags={"node.id": "2", **flags}).config
    options = ChannelOptions(request_timeout_s=5.0)
    broker = Broker(config, connect_by_task(network.host("broker-2"), options), network)
    broker.fetchers.set_endpoints({1: ENDPOINT})
    async with leading(leader), trio.open_nursery() as nursery:
        nursery.start_soon(broker.fetchers.run, broker)
        yield leader, broker
        nursery.cancel_scope.cancel()


def is_same(leader: LogLeader, broker: Broker, name: TopicPartition) -> bool:
    """Whether the files of the segments are equal, byte for byte."""
    one, other = leader.logs[name], broker.benches[name]
    return one.bases() == other.bases() and all(
        one.files.read_bytes(one.path(base)) == other.files.read_bytes(other.path(base))
        for base in one.bases()
    )


async def settle() -> None:
    """Longer than anything takes that does not wait."""
    await trio.sleep(2)


def fetcher_threads_left() -> list[str]:
    """The threads of fetchers that do not end; those at work get a while for it."""
    threads = [each for each in threading.enumerate() if "fetcher" in each.name]
    for each in threads:
        each.join(5)
    return [each.name for each in threads if each.is_alive()]
