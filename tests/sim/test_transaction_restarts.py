"""A producer of the second protocol goes on whenever its broker was restarted.

It is told the end of a transaction before the markers are written. So its next transaction begins
beside the markers of the one before, which the broker writes again after a restart.
"""

import pytest
import trio

from minibroker.client.admin import NewTopic
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import SECOND_PROTOCOL
from minibroker.testing.cluster import SimulatedWorld, open_cluster, simulate
from tests.sim.cluster import NETWORK
from tests.sim.copiers import OUTPUT, TABLE, Copier, Fates, Stage
from tests.sim.transaction_checkers import Source
from tests.sim.transaction_wire import Wire
from tests.sim.workload import TOPIC, Clients, insist
from tests.support.seeds import rest_in_soak

SEEDS = range(12)
TRANSACTIONS = 12
SETTINGS = {
    "auto.create.topics.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "250",
}
FATES = Fates(1, (SECOND_PROTOCOL,), 60_000, 1.0, 0.0, 0.0, 1)


class Writer(Copier):
    """Writes one record in each transaction, and commits or aborts it."""

    async def run(self) -> None:
        """Until all are written."""
        await self._play(self._write_all)

    async def _write_all(self, wire: Wire) -> None:
        for number in range(TRANSACTIONS):
            attempt = self._begin()
            await self._write(wire, attempt, self._stage.output_places[0], [Source(0, number)])
            await self._end(wire, attempt, is_commit=self._rng.random() < 0.7)


async def restart_at_each_end(seed: int) -> None:
    """Raises `Violation` if the writer is told an error that ends a transaction."""
    world = SimulatedWorld(seed, NETWORK)
    rng = world.rng("restarts")
    async with open_cluster(world, SETTINGS, 1) as cluster:
        stage = Stage(world, cluster.address, 1, 1, FATES, lambda _: None)
        new = [NewTopic(name, 1, 1) for name in (TOPIC, OUTPUT, TABLE)]
        async with Clients(world, cluster.address, 1).admin("admin") as admin:
            await insist(lambda: admin.create_topics(*new), ErrorCode.TOPIC_ALREADY_EXISTS)
        writer = Writer(stage, "writer", 0, ())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            while not writer.ended.is_set():
                with trio.move_on_after(5.0):
                    await stage.ended.wait()
                await trio.sleep(rng.choice((0.0, 0.01, 0.05)))
                broker = cluster.brokers[0]
                await rng.choice((broker.kill, broker.stop))()
                await broker.start()


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_the_next_transaction_is_accepted(seed: int) -> None:
    """After `kill -9`, or SIGTERM, in the middle of an end."""

    async def run() -> None:
        await restart_at_each_end(seed)

    simulate(run, seed)
