"""The scenario of one seed with transactions: copiers consume, transform and produce.

A producer fills the input. Copiers (`copiers.py`) copy it in transactions, crash, stand still and
are replaced while they go on; readers of committed records look on, and faults of all kinds come on
top of each other, those that hit the coordinators most often. Then all is healed, and within a
bounded virtual time the cluster is at rest, all of the input is copied, and no transaction is open
anywhere: on each replica the last stable offset is the high watermark. At last each input record
was transformed once, and each transaction is visible as a whole or not at all.

In every other seed the brokers' wall clocks agree. Then a transaction that its process has left
must end by its time-out, too. (After a jump of its clock a broker lets nothing expire for an hour.)
In two of four seeds the topics of the coordinators are compacted all the time. The compacted topic
to which the copiers write always is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from minibroker.broker.coordination.record_fields import Unreadable
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.transactions.records import decode
from minibroker.broker.transactions.states import IDLE
from minibroker.broker.transactions.transaction import Transaction
from minibroker.client.admin import NewTopic
from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ErrorCode
from minibroker.protocol.records.record import Record
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import SimulatedCluster, SimulatedWorld, open_cluster
from tests.sim.checkers import Replica, Violation
from tests.sim.cluster import FLUSHES, NETWORK, watch_until
from tests.sim.compacted_tables import Table
from tests.sim.copiers import OUTPUT, TABLE, Copier, Stage, draw_fates, play_slot
from tests.sim.faults import Chaos
from tests.sim.group_scenario import draw_group_settings, log_ends, within
from tests.sim.sights import Watcher, decode_batches, decode_keyed
from tests.sim.transaction_checkers import (
    Outcome,
    Shown,
    decode_written,
    judge_copies,
    judge_table,
)
from tests.sim.transaction_faults import COORDINATORS, AgreeingChaos, TransactionChaos
from tests.sim.transaction_logs import RightMarkers, SoundBeliefs, held_back
from tests.sim.transaction_readers import consume, look_on, read_to, reread
from tests.sim.transaction_wire import open_wire
from tests.sim.workload import REPLICAS, TOPIC, Clients, insist, produce

CHAOS_S: Final = 5.0
REST_S_MAX: Final = 120.0
OPEN_S_MAX: Final = 60.0  # until the last transaction has ended
LOOK_S: Final = 0.1  # between looks at what replicas have of transactions
# Of tombstones and markers: longer than the faults of a seed. A follower that was behind for longer
# would keep what its leader has dropped, as in `group_compaction.py`.
RETENTION_S: Final = 20


class SeedResult(NamedTuple):
    """What a seed came to; `trace` repeats with it. `committed` and `attempts` count transactions,
    `delivered` the records of the input."""

    delivered: int
    faults: int
    terms: int
    virtual_s: float
    committed: int
    attempts: int
    trace: list[str]


class Uncompared(Table):
    """A compacted topic with transactions, which are judged in other ways."""

    def __init__(self) -> None:
        super().__init__(decode_keyed, 0.0)

    def compare(self, replica: Replica, end: int, now: float) -> None:
        """Anything is right."""


@dataclass
class TransactionScenario:
    """One seed, and what brokers are made of where a mutant runs."""

    seed: int
    replicas_type: type[Replicas] = Replicas
    watcher: Watcher | None = None

    @property
    def do_clocks_agree(self) -> bool:
        """See the head of this module."""
        return self.seed % 2 == 0

    @property
    def is_compacting(self) -> bool:
        """See the head of this module."""
        return self.seed // 2 % 2 == 1

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """What all brokers have in common."""
        rng = world.rng("transaction settings")
        settings = draw_group_settings(world, FLUSHES[self.seed // 4 % len(FLUSHES)])
        late_ms = rng.choice(("50", "200"))
        settings |= {
            "transaction.state.log.num.partitions": rng.choice(("1", "2")),
            "transaction.state.log.replication.factor": str(REPLICAS),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": late_ms,
            "log.cleaner.backoff.ms": rng.choice(("50", "300")),
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.cleaner.delete.retention.ms": str(1000 * RETENTION_S),
            "log.segment.delete.delay.ms": rng.choice(("0", "1000")),
            "leader.imbalance.check.interval.seconds": rng.choice(("1", "300")),
        }
        if self.is_compacting:
            settings |= {
                "transaction.state.log.num.partitions": "1",  # a table is of one partition
                "transaction.state.log.segment.bytes": rng.choice(("2000", "3000")),
                "offsets.topic.segment.bytes": rng.choice(("2000", "3000")),
            }
        return settings

    async def run(self) -> SeedResult:
        """Raises `Violation` where a promise was broken, and what ended a broker."""
        world = SimulatedWorld(self.seed, NETWORK)
        rng = world.rng("shape")
        settings = self.draw_settings(world)
        async with open_cluster(world, settings, 3, self.replicas_type) as cluster:
            self.watcher = watcher = Watcher(world, cluster)
            self._leave_uncompared(watcher)
            clients = Clients(world, cluster.address, rng.randint(1, 3))
            fates = draw_fates(world.rng("fates"), clients.partitions)
            stage = Stage(
                world, cluster.address, clients.partitions, rng.randint(1, 2), fates, watcher.note
            )
            kind = AgreeingChaos if self.do_clocks_agree else TransactionChaos
            is_flushed = settings["flush"] == "always"
            chaos = kind(world, cluster, watcher, stage, is_flushed=is_flushed)
            beliefs = SoundBeliefs((TABLE, *COORDINATORS))
            async with trio.open_nursery() as watching:
                watching.start_soon(watcher.run)
                watching.start_soon(look_at_beliefs, beliefs, cluster)
                if self.do_clocks_agree:
                    right = RightMarkers(TABLE, stage.attempts)
                    watching.start_soon(look_at_markers, right, cluster)
                await self._create(clients, stage)
                await self._suffer(clients, stage, chaos, cluster)
                watching.cancel_scope.cancel()
            with within(watcher.unsettled, REST_S_MAX):
                await watch_until(watcher, lambda: not watcher.unsettled())
            beliefs.look(cluster.brokers, is_whole=True)
            RightMarkers(OUTPUT, stage.attempts).look(cluster.brokers)
            await self._judge(clients, stage)
            attempts = stage.attempts.all.values()
            return SeedResult(
                clients.delivered,
                sum(chaos.counts.values()),
                watcher.leaders.terms,
                trio.current_time(),
                sum(one.outcome is Outcome.COMMITTED for one in attempts),
                len(attempts),
                watcher.trace,
            )

    def _leave_uncompared(self, watcher: Watcher) -> None:
        tables: dict[str, Table] = {TABLE: Uncompared()}
        if self.is_compacting:
            tables[OFFSETS_TOPIC] = Uncompared()
            retention_s = RETENTION_S if self.do_clocks_agree else 0
            tables[TRANSACTIONS_TOPIC] = Table(decode_keyed, retention_s)
        watcher.tables.update(tables)

    async def _create(self, clients: Clients, stage: Stage) -> None:
        compacted = {
            "cleanup.policy": "compact",
            "segment.bytes": "300",  # a marker soon leaves the active segment
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(1000 * RETENTION_S),
        }
        new = (
            NewTopic(TOPIC, clients.partitions, REPLICAS),
            NewTopic(OUTPUT, stage.outputs, REPLICAS),
            NewTopic(TABLE, 1, REPLICAS, configs=compacted),
        )
        with trio.fail_after(REST_S_MAX):
            async with clients.admin("admin") as admin:
                await insist(lambda: admin.create_topics(*new), ErrorCode.TOPIC_ALREADY_EXISTS)

    async def _suffer(
        self, clients: Clients, stage: Stage, chaos: Chaos, cluster: SimulatedCluster
    ) -> None:
        """Both phases."""
        watcher = self.watcher
        assert watcher is not None
        async with trio.open_nursery() as members:
            for look in (consume, reread, look_on):
                members.start_soon(look, stage)
            for slot in range(stage.fates.slots):
                members.start_soon(play_slot, stage, slot)
            async with trio.open_nursery() as writers:
                writers.start_soon(produce, clients, 0)
                with within("the faults do not end", CHAOS_S + REST_S_MAX):
                    await chaos.run(CHAOS_S)
                watcher.note("healed")
                stage.stop.set()
                clients.stop.set()
                writers.cancel_scope.deadline = trio.current_time() + REST_S_MAX
            if writers.cancel_scope.cancelled_caught:
                raise Violation(f"the producer does not get through; {watcher.unsettled()}")
            watcher.note("delivered")
            await self._settle(stage, watcher, cluster)
            stage.ends |= log_ends_of(watcher, OUTPUT)
            stage.drained.set()
            members.cancel_scope.deadline = trio.current_time() + REST_S_MAX
        if members.cancel_scope.cancelled_caught:
            raise Violation("the copiers and readers do not come to the end")

    async def _settle(self, stage: Stage, watcher: Watcher, cluster: SimulatedCluster) -> None:
        """The cluster first, then the copiers, then the last transaction."""
        with within(watcher.unsettled, REST_S_MAX):
            await watch_until(watcher, lambda: not watcher.unsettled())
        watcher.note("at rest")
        if self.do_clocks_agree:
            with within("no transaction can be begun", REST_S_MAX):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(Copier(stage, "leaver", 0, ()).leave_open)
        ends = log_ends(watcher)
        with within(lambda: f"copied is {stage.offsets.floors} of {ends}", REST_S_MAX):
            await watch_until(watcher, lambda: stage.is_copied(ends))
        watcher.note("copied")
        with within(lambda: held_back(cluster.brokers) or watcher.unsettled(), OPEN_S_MAX):
            await watch_until(
                watcher, lambda: not (held_back(cluster.brokers) or watcher.unsettled())
            )
        watcher.note("no transaction is open")

    async def _judge(self, clients: Clients, stage: Stage) -> None:
        """When all have ended."""
        watcher = self.watcher
        assert watcher is not None
        inputs = {name: each for name, each in watcher.stored().items() if name.topic == TOPIC}
        clients.ledger.judge(inputs)
        views = stage.views.records
        stage.attempts.judge((place, one.value) for place in views for one in views[place])
        values = [record.value for place in views for record in views[place]]
        judge_copies(values, {name.partition: len(each) for name, each in inputs.items()})
        names = dict.fromkeys(decode_written(value).attempt for value in values)
        with within("the compacted topic is not read to its end", REST_S_MAX):
            newest = await self._read_table(stage, watcher)
        judge_table([stage.attempts.all[name] for name in names], newest)
        for replica in watcher.replicas(TRANSACTIONS_TOPIC):
            judge_ids(decode_batches(replica.read(replica.log_start, replica.log_end)))

    async def _read_table(self, stage: Stage, watcher: Watcher) -> list[Shown]:
        place = TopicPartition(TABLE, 0)
        async with open_wire(stage.world, stage.address, "judge", "judge") as wire:
            await wire.cluster.topic(TABLE)
            return await read_to(wire, place, log_ends_of(watcher, TABLE)[place])


async def look_at_beliefs(beliefs: SoundBeliefs, cluster: SimulatedCluster) -> None:
    """Look for ever."""
    while True:
        beliefs.look(cluster.brokers)
        await trio.sleep(LOOK_S)


async def look_at_markers(markers: RightMarkers, cluster: SimulatedCluster) -> None:
    """Look for ever."""
    while True:
        markers.look(cluster.brokers)
        await trio.sleep(LOOK_S)


def log_ends_of(watcher: Watcher, topic: str) -> Mapping[TopicPartition, int]:
    """Where the logs of a topic at rest end, with markers and what was compacted."""
    return {each.name: each.log_end for each in watcher.replicas(topic)}


def judge_ids(records: Iterable[Record]) -> None:
    """In the end no transactional id has an open transaction. Raises `Violation`."""
    states: dict[str, Transaction] = {}
    for record in records:
        decoded = decode(record.key, record.value)
        if isinstance(decoded, Unreadable):
            raise Violation(f"offset {record.offset}: {decoded.reason}")
        transactional_id, state = decoded
        if state is None:
            states.pop(transactional_id, None)
        else:
            states[transactional_id] = state
    for transactional_id, state in states.items():
        if state.state not in IDLE:
            raise Violation(f"{transactional_id} is left as {state}")
