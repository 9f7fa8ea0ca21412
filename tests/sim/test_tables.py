"""Tables forget: what is kept in memory of topics goes with the topics, at brokers and clients."""

import logging
from collections.abc import Sequence

import pytest
import trio

from minibroker.broker.turns import without_pause
from minibroker.client import Admin, Consumer, NewTopic, Producer
from minibroker.testing.cluster import SimulatedCluster, SimulatedWorld, open_cluster, simulate
from tests.support.census import census, grown

SETTINGS = {
    "auto.create.topics.enable": "false",  # or clients would make them again
    "log.segment.delete.delay.ms": "1000",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
}
ROUNDS = [4, pytest.param(16, marks=pytest.mark.soak)]
VISITORS = [20, pytest.param(60, marks=pytest.mark.soak)]
TOPICS_PER_ROUND = 25
IDLE_S = 400.0  # longer than any client asks for a topic that it does not use
# Caches that have a limit of their own.
LIMITED = {
    "minibroker.broker.groups.records.GroupKey",
    "minibroker.broker.groups.records.OffsetKey",
    "minibroker.broker.log.index.OffsetPosition",
    "minibroker.broker.log.segment.Segment._recent",
}


class Traffic:
    """Clients that live as long as the cluster, and use topics that do not."""

    def __init__(
        self, admin: Admin, producer: Producer, consumers: Sequence[Consumer], world: SimulatedWorld
    ) -> None:
        self.admin = admin
        self.producer = producer
        self.consumers = consumers
        self.world = world

    async def use(self, names: list[str]) -> None:
        """Make topics, write, read and commit, and delete them."""
        await self.admin.create_topics(*[NewTopic(name, 1, 2) for name in names])
        for name in names:
            await self.producer.send(name, b"value", key=name.encode())
        await self.producer.flush()
        for consumer in self.consumers:
            consumer.assign([(name, 0) for name in names])
            seen = 0
            with trio.fail_after(60):
                while seen < len(names):
                    seen += len(await consumer.poll(1))
        await self.consumers[0].commit()
        for consumer in self.consumers:
            consumer.assign([])
        await self.admin.delete_topics(*names)
        await trio.sleep(3)

    async def rest(self) -> None:
        """Use nothing of them for long. Each broker is asked for something then."""
        await trio.sleep(IDLE_S)
        for consumer in self.consumers:
            consumer.assign([("stays", 0), ("stays", 1)])
            await consumer.poll(1)
            consumer.assign([])


@pytest.mark.parametrize("rounds", ROUNDS)
def test_hundreds_of_deleted_topics_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture, rounds: int
) -> None:
    """Neither in any table, nor in statistics, nor as objects: with acks=1 and a group's commits,
    and with a broker and clients that saw all of them come and go."""
    caplog.set_level(logging.CRITICAL, logger="minibroker")  # pytest keeps what is logged

    async def main() -> None:
        world = SimulatedWorld(14)
        options = {"metadata_max_age_ms": 30_000}
        reading = {"auto_offset_reset": "earliest", **options}
        async with open_cluster(world, SETTINGS, 2) as cluster:
            at = cluster.address
            async with (
                Admin(at, seams=world.seams("admin")) as admin,
                Producer(at, seams=world.seams("p"), linger_ms=0, acks=1, **options) as producer,
                Consumer(at, seams=world.seams("g"), group_id="g", **reading) as group,
                Consumer(at, seams=world.seams("c"), **reading) as alone,
            ):
                traffic = Traffic(admin, producer, (group, alone), world)
                await admin.create_topics(NewTopic("stays", 2, 2))
                await traffic.use([f"before-{number}" for number in range(TOPICS_PER_ROUND)])
                await traffic.rest()
                before, told_before = census(), told(cluster, traffic)
                for turn in range(rounds):
                    await traffic.use([f"t{turn}-{n}" for n in range(TOPICS_PER_ROUND)])
                await traffic.rest()
                more = grown(before, census(), rounds * TOPICS_PER_ROUND // 2)
                assert not more.keys() - LIMITED, more
                assert told(cluster, traffic) == told_before

    simulate(main, 14)


@pytest.mark.parametrize("count", VISITORS)
def test_producers_groups_and_members_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """Each with a connection, an id and a group of its own, and one more member of a group that
    stays; once their ids and offsets have expired."""
    caplog.set_level(logging.CRITICAL, logger="minibroker")
    short = {
        "group.initial.rebalance.delay.ms": "10",
        "offsets.retention.check.interval.ms": "5000",
        "offsets.retention.minutes": "1",
        "producer.id.expiration.check.interval.ms": "5000",
        "producer.id.expiration.ms": "10000",
    }

    async def visit(world: SimulatedWorld, address: str, number: int) -> None:
        seams = world.seams(f"client-{number % 5}")
        async with Producer(address, seams=seams) as producer:
            await producer.send_and_wait("t", b"value", key=b"%d" % number)
        for group_id in (f"group-{number}", "same"):
            async with Consumer(
                address, seams=seams, group_id=group_id, auto_offset_reset="earliest"
            ) as consumer:
                await consumer.subscribe("t")
                with trio.fail_after(60):
                    while not await consumer.poll(1) and group_id != "same":
                        pass

    async def main() -> None:
        world = SimulatedWorld(15)
        async with open_cluster(world, SETTINGS | short, 2) as cluster:
            async with Admin(cluster.address, seams=world.seams("admin")) as admin:
                await admin.create_topics(NewTopic("t", 1, 2))
            for number in range(5):
                await visit(world, cluster.address, number)
            await trio.sleep(IDLE_S)
            before = census()
            for number in range(count):
                await visit(world, cluster.address, number + 5)
            await trio.sleep(IDLE_S)
            more = grown(before, census(), count // 2)
            assert not more.keys() - LIMITED, more

    simulate(main, 15)


def told(cluster: SimulatedCluster, traffic: Traffic) -> list[object]:
    """What brokers and clients say that they hold."""
    held: list[object] = []
    for broker in cluster.brokers:
        assert broker.replicas is not None
        statistics = without_pause(broker.replicas.statistics())
        names = sorted(each.name for each in statistics.replicas)
        held += [names, statistics.uncreated]
    held += [consumer.statistics() for consumer in traffic.consumers]
    return [*held, traffic.producer.statistics().bytes_held]
