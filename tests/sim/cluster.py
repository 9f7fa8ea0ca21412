"""The scenario of one seed: a cluster under load and faults, then at rest, then judged.

Everything is drawn from the seed: how many brokers, their settings, what clients send, which
faults come when. Two phases. In the first (`CHAOS_S`) faults come on top of each other and only
safety is asked for: the checkers look at every broker and at the store all the time. Then all is
healed and the clients end, and within `REST_S_MAX` every record must be delivered, every partition
be led, every replica in sync, everything that belongs to no topic be gone, and every consumer at
the end. Then the ledgers are compared with what lies on the disks.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import trio

from minibroker.broker.replication.replicas import Replicas
from minibroker.client.admin import NewTopic
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import SimulatedWorld, open_cluster, simulate
from minibroker.testing.network import NetworkOptions
from tests.sim.checkers import Violation
from tests.sim.compacted_tables import Table
from tests.sim.faults import Chaos
from tests.sim.sights import Watcher
from tests.sim.workload import (
    REPLICAS,
    TOPIC,
    Clients,
    churn,
    consume,
    insist,
    keep_in_sync,
    produce,
    produce_to_crowd,
    reassign,
    reread,
    throttle,
    trim,
)

CHAOS_S = 15.0
REST_S_MAX = 120.0
PRODUCERS = 2
FLUSHES = ("never", "interval", "always")
CROWD_PER_LOOK = 20  # with so many topics more, looks are made half as often
NETWORK = NetworkOptions(delay_s_min=0.001, delay_s_max=0.02)


class SeedResult(NamedTuple):
    """What a seed came to; `trace` repeats with it."""

    delivered: int
    faults: int
    terms: int
    virtual_s: float
    trace: list[str]


@dataclass
class Scenario:
    """One seed, and what brokers are made of where a mutant runs. `trace` grows as it runs."""

    chaos_type: ClassVar[type[Chaos]] = Chaos
    chaos_s: ClassVar[float] = CHAOS_S
    deletes_records: ClassVar[bool] = False
    reassigns: ClassVar[bool] = False
    broker_counts: ClassVar[Sequence[int]] = (3, 3, 3, 4, 5)
    produce_to_crowd: ClassVar[Callable[[Clients], Awaitable[None]]] = produce_to_crowd

    seed: int
    replicas_type: type[Replicas] = Replicas
    watcher: Watcher | None = None

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """What all brokers have in common."""
        return draw_settings(world, FLUSHES[self.seed % len(FLUSHES)])

    def draw_topic(self, _world: SimulatedWorld, partitions: int) -> NewTopic:
        """The topic that stays."""
        return NewTopic(TOPIC, partitions, REPLICAS)

    def draw_crowd(self, _world: SimulatedWorld) -> tuple[NewTopic, ...]:
        """More topics that stay."""
        return ()

    def draw_tables(self, _crowd: Sequence[NewTopic]) -> dict[str, Table]:
        """Which of these are compacted."""
        return {}

    async def run(self) -> SeedResult:
        """Raises `Violation` where a promise was broken, and what ended a broker."""
        world = SimulatedWorld(self.seed, NETWORK)
        rng = world.rng("shape")
        settings = self.draw_settings(world)
        count = rng.choice(self.broker_counts)
        async with open_cluster(world, settings, count, self.replicas_type) as cluster:
            self.watcher = watcher = Watcher(world, cluster)
            clients = Clients(world, cluster.address, rng.randint(1, 4))
            chaos = self.chaos_type(world, cluster, watcher, settings["flush"] == "always")
            async with trio.open_nursery() as watching:
                watching.start_soon(watcher.run)
                clients.crowd = self.draw_crowd(world)
                watcher.tables.update(self.draw_tables(clients.crowd))
                if self.deletes_records:
                    clients.ledger.deletions = watcher.deletions
                    watching.start_soon(trim, clients)
                if self.reassigns:
                    clients.movers = range(1, count + 1)
                watcher.interval_s *= 1 + len(clients.crowd) // CROWD_PER_LOOK
                await create(clients, self.draw_topic(world, clients.partitions), *clients.crowd)
                writer = type(self).produce_to_crowd
                await suffer(clients, watcher, chaos, self.chaos_s, writer)
                watching.cancel_scope.cancel()
            await watcher.look()
            judge(clients, watcher)
            return SeedResult(
                clients.delivered,
                sum(chaos.counts.values()),
                watcher.leaders.terms,
                trio.current_time(),
                watcher.trace,
            )


def draw_settings(world: SimulatedWorld, flush: str) -> dict[str, str]:
    """What all brokers of a seed have in common."""
    rng = world.rng("settings")
    return {
        "flush": flush,
        "flush.ms": "200",
        "default.replication.factor": str(REPLICAS),
        "min.insync.replicas": "2",
        "auto.create.topics.enable": "false",
        "broker.session.timeout.ms": "1000",
        "broker.heartbeat.interval.ms": "250",
        "replica.lag.time.max.ms": rng.choice(("1000", "2000", "4000")),
        "replica.fetch.wait.max.ms": rng.choice(("100", "500")),
        "replica.fetch.max.bytes": rng.choice(("1000", "1000000")),
        "replica.socket.timeout.ms": "3000",
        "num.replica.fetchers": rng.choice(("1", "2")),
        "replica.high.watermark.checkpoint.interval.ms": rng.choice(("200", "5000")),
        "controlled.shutdown.retry.backoff.ms": "200",
        "log.segment.bytes": rng.choice(("2000", "20000", "1000000")),
        "log.index.interval.bytes": "300",
    }


async def create(clients: Clients, *new: NewTopic) -> None:
    """Make the topics that stay, while nothing fails yet."""
    with trio.fail_after(REST_S_MAX):
        async with clients.admin("admin") as admin:
            await insist(lambda: admin.create_topics(*new), ErrorCode.TOPIC_ALREADY_EXISTS)


async def suffer(
    clients: Clients,
    watcher: Watcher,
    chaos: Chaos,
    chaos_s: float,
    write_to_crowd: Callable[[Clients], Awaitable[None]] = produce_to_crowd,
) -> None:
    """Both phases."""
    async with trio.open_nursery() as readers:
        readers.start_soon(consume, clients, 0)
        readers.start_soon(reread, clients)
        async with trio.open_nursery() as writers:
            for number in range(PRODUCERS):
                writers.start_soon(produce, clients, number)
            writers.start_soon(churn, clients, 0)
            if clients.movers:
                writers.start_soon(reassign, clients)
                writers.start_soon(throttle, clients)
            if clients.crowd:
                writers.start_soon(write_to_crowd, clients)
            with trio.move_on_after(chaos_s + REST_S_MAX) as scope:
                await chaos.run(chaos_s)
            if scope.cancelled_caught:
                raise Violation("the faults do not end: a broker does not start")
            watcher.note("healed")
            clients.stop.set()
            writers.cancel_scope.deadline = trio.current_time() + REST_S_MAX
        if writers.cancel_scope.cancelled_caught:
            raise Violation(f"the producers do not get through; {watcher.unsettled()}")
        watcher.note("delivered")
        with trio.move_on_after(REST_S_MAX) as scope:
            await watch_until(watcher, lambda: not watcher.unsettled())
        if scope.cancelled_caught:
            raise Violation(f"the cluster does not come to rest: {watcher.unsettled()}")
        watcher.note("at rest")
        if clients.movers:
            await keep_in_sync(clients, lambda: in_sync_sets(watcher))
            await watch_until(watcher, lambda: not watcher.unsettled())
        clients.drained.set()
        readers.cancel_scope.deadline = trio.current_time() + REST_S_MAX
    if readers.cancel_scope.cancelled_caught:
        raise Violation("the consumers do not come to the end")


def in_sync_sets(watcher: Watcher) -> dict[TopicPartition, set[int]]:
    """The in-sync set of each partition of the topic that stays, at the last look."""
    return {each.name: {*each.isr} for each in watcher.agreed.values() if each.name.topic == TOPIC}


async def watch_until(watcher: Watcher, is_done: Callable[[], bool]) -> None:
    """Look until then."""
    await watcher.look()
    while not is_done():
        await trio.sleep(0.1)
        await watcher.look()


def judge(clients: Clients, watcher: Watcher) -> None:
    """Compare what clients were told with what is there. Raises `Violation`."""
    stored = watcher.stored()
    clients.ledger.judge(stored)
    for name, acked in clients.keyed.items():
        watcher.tables[name.topic].judge(acked)
    shown = clients.shown.values
    there = {
        (name, offset): value
        for name, records in stored.items()
        if name.topic == TOPIC
        for offset, value in records
    }
    if shown != there:
        wrong = [place for place in there if shown.get(place) != there[place]]
        gone = [place for place in shown if place not in there]
        raise Violation(f"shown and stored differ at {wrong[:5]}, gone are {gone[:5]}")


def run_seed(seed: int, replicas_type: type[Replicas] = Replicas) -> SeedResult:
    """One deterministic run."""
    return simulate(Scenario(seed, replicas_type).run, seed)
