"""One topic on three simulated brokers, to do one harm to: what the scenarios of faults begin with.

    async def scenario() -> None:
        async with open_trial(flush="always") as trial:
            await trial.send(10)
            await trial.leader.power_off()
            await trial.send(10)
            await trial.leader.start()
            await trial.settle()

    play(scenario)

`send` returns when its records are acknowledged with acks=all, and notes which offset each has.
`settle` waits until every replica is in sync, and compares: what lies on the three disks is equal
to the byte, every acknowledged record is at its offset, and no record is there twice. Meanwhile the
checkers of `checkers.py` look on, except where a scenario harms bytes on purpose (`is_watched`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any

import trio

from minibroker.broker.replication.partition import Partition
from minibroker.client import Admin, Consumer, Producer
from minibroker.client.admin import NewTopic
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.cluster import (
    DATA_DIRECTORY,
    PORT,
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
    open_cluster,
    simulate,
)
from minibroker.testing.disk import Tail
from tests.sim.checkers import Agreed
from tests.sim.sights import Watcher, decode, read_agreed, read_log

TOPIC = "t"
NAME = TopicPartition(TOPIC, 0)
LOG = DATA_DIRECTORY / str(NAME)
SEED = 7
PATIENCE_S = 60.0
LAG_S = 2.0
SESSION_S = 1.0
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
    "broker.heartbeat.interval.ms": "250",
    "replica.lag.time.max.ms": f"{LAG_S * 1000:.0f}",
    "replica.socket.timeout.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "200",
    "flush": "never",
}


class Trial:
    """See the head of this module. Broker 1 leads first; partition 0 is the only one."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, producer: Producer, is_flushed: bool
    ) -> None:
        self.world = world
        self.is_flushed = is_flushed
        self.cluster = cluster
        self.acked: dict[int, bytes] = {}
        self.watcher = Watcher(world, cluster)
        self._producer = producer
        self._sent = 0

    async def agreed(self) -> Agreed:
        """What the store says of the partition."""
        found = read_agreed(await self.world.store.get("")).values()
        return next(agreed for agreed in found if agreed.name == NAME)

    async def controller(self) -> int:
        """The node id of the controller, as the store has it."""
        await self.watcher.look()
        return self.watcher.controller

    @property
    def leader(self) -> SimulatedBroker:
        """The broker that leads, as far as brokers know; of two the one of the later epoch."""
        leaders = [
            (partition.leader_epoch, broker.node_id)
            for broker in self.cluster.brokers
            if broker.is_running and (partition := self.partition(broker)) and partition.is_leader
        ]
        return self.cluster.broker(max(leaders)[1])

    @property
    def followers(self) -> list[SimulatedBroker]:
        """The brokers that run and do not lead."""
        leader = self.leader
        return [each for each in self.cluster.brokers if each.is_running and each is not leader]

    def partition(self, broker: SimulatedBroker) -> Partition | None:
        """The replica on a broker."""
        return None if broker.replicas is None else broker.replicas.get(NAME)

    async def send(self, count: int = 1, *, wait_s: float = PATIENCE_S) -> None:
        """Have so many records acknowledged."""
        with trio.fail_after(wait_s):
            for _ in range(count):
                self._sent += 1
                value = b"0:%d" % self._sent
                told = await self._producer.send_and_wait(TOPIC, value, partition=0)
                self.acked[told.offset] = value

    async def ask(self, broker: SimulatedBroker, api_key: ApiKey, request: object) -> Any:
        """The answer to one request from a stranger."""
        network = self.world.network.host("stranger")
        async with open_channel(network, Endpoint(broker.name, PORT), ChannelOptions()) as channel:
            return await channel.call(api_key, request)

    async def power_off(self, broker: SimulatedBroker, tail: Tail) -> None:
        """Stop its machine; what the checkers may ask of it then depends on `flush`."""
        await self.watcher.look()
        self.watcher.note_power_off(broker.node_id, is_tail_lost=not self.is_flushed)
        await broker.power_off(tail)

    async def until(self, is_so: Callable[[Agreed], bool]) -> Agreed:
        """Wait until the store says so of the partition."""
        with trio.fail_after(PATIENCE_S):
            while not is_so(agreed := await self.agreed()):  # noqa: ASYNC110 -- others change it
                await trio.sleep(0.05)
        return agreed

    async def settle(self) -> None:
        """Wait for rest, and compare; see the head of this module."""
        with trio.fail_after(PATIENCE_S):
            await self.watcher.look()
            while self.watcher.unsettled():
                await trio.sleep(0.1)
                await self.watcher.look()
        self.compare(self.watcher.stored()[NAME])

    def forget_from(self, offset: int) -> None:
        """What was acknowledged from there on may be lost."""
        self.acked = {at: value for at, value in self.acked.items() if at < offset}

    def compare(self, stored: list[tuple[int, bytes]]) -> None:
        """Nothing acknowledged is missing, nothing is there twice."""
        there = dict(stored)
        assert len(set(there.values())) == len(stored), "records are there twice"
        missing = {offset for offset, value in self.acked.items() if there.get(offset) != value}
        assert not missing, f"acknowledged and not there: {sorted(missing)}"

    def records(self, broker: SimulatedBroker) -> list[tuple[int, bytes]]:
        """What the log of a broker holds."""
        partition = self.partition(broker)
        assert partition is not None
        return decode(read_log(partition.log, 0, partition.log.log_end))

    async def consume(self) -> list[bytes]:
        """What a new consumer reads from the beginning to the end."""
        seams = self.world.seams("consumer")
        async with Consumer(
            self.cluster.address, auto_offset_reset="earliest", seams=seams
        ) as consumer:
            await consumer.assign_topics(TOPIC)
            (end,) = (await consumer.end_offsets(NAME)).values()
            values: list[bytes] = []
            while (consumer.position(NAME) or 0) < end:
                values += [bytes(record.value or b"") for record in await consumer.poll(1.0)]
            return values


def segment(base_offset: int = 0) -> PurePath:
    """A segment of the partition's log."""
    return LOG / f"{base_offset:020}.log"


def rot(broker: SimulatedBroker, offset: int) -> None:
    """Flip a bit in the records of the batch at an offset of the first segment."""
    data = broker.files.read_bytes(segment())
    (end,) = [
        at + header.size for at, header in iterate_headers(data) if header.base_offset == offset
    ]
    broker.files.flip(segment(), end - 1)


@asynccontextmanager
async def open_trial(
    *, is_watched: bool = True, replicas: int = 3, before: int = 0, **settings: str
) -> AsyncIterator[Trial]:
    """A cluster with its topic, in sync; killed at the end. Each broker has so many logs of another
    topic `before` the topic's."""
    world = SimulatedWorld(SEED)
    named = {name.replace("_", "."): value for name, value in settings.items()}
    async with open_cluster(world, SETTINGS | named, 3) as cluster:
        async with Admin(cluster.address, seams=world.seams("admin")) as admin:
            if before:
                await admin.create_topics(NewTopic("before", before, 3))
            await admin.create_topics(NewTopic(TOPIC, 1, replicas))
        producer = Producer(
            cluster.address, seams=world.seams("producer"), linger_ms=0, request_timeout_ms=1000
        )
        async with producer, trio.open_nursery() as nursery:
            trial = Trial(world, cluster, producer, named.get("flush") == "always")
            if is_watched:
                nursery.start_soon(trial.watcher.run)
            yield trial
            nursery.cancel_scope.cancel()


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario on virtual time."""
    simulate(scenario, SEED)
