"""The scenario of one seed with consumer groups: members come and go while brokers suffer.

As in `cluster.py` there are two phases. In the first (`CHAOS_S`) producers send, members join,
leave, crash and stand still, committers commit, and faults of all kinds come on top of each other,
those that hit the coordinators most often. Then all is healed, and within a bounded virtual time
every record is delivered, the cluster is at rest, the group is stable with all its members, has
read to the end and committed that; at last everybody closes, in time.

Beside them most seeds have a group of the consumer protocol, whose members suffer in the same ways
(`consumer_members.py`).

Three kinds of seeds, one after the other:

* calm: only brokers suffer. Then no member loses its generation, and every record is shown to the
  group exactly once; a commit fails only if the group had no coordinator for long.
* wild: members suffer too, and topics come and go. What is shown twice has its excuse.
* steady: no broker suffers, members only join and leave, and there is always something to read.
  Then who keeps a partition never waits for its records, but perhaps for its own commits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple

import trio

from minibroker.broker.groups.consumer_records import ConsumerKey
from minibroker.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    decode,
)
from minibroker.broker.replication.replicas import Replicas
from minibroker.client import TopicPartition
from minibroker.client.admin import NewTopic
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.records.record import Record
from minibroker.testing.cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
    open_cluster,
)
from tests.sim.checkers import Violation
from tests.sim.cluster import FLUSHES, NETWORK, draw_settings, watch_until
from tests.sim.compacted_tables import Table
from tests.sim.consumer_checkers import judge_consumer_log
from tests.sim.consumer_members import (
    ConsumerFates,
    ConsumerGroupSeen,
    consumer_settings,
    draw_consumer_fates,
    play_consumer,
)
from tests.sim.faults import Chaos
from tests.sim.group_checkers import judge_log
from tests.sim.group_loners import commit_alone, look_on, open_loner
from tests.sim.group_members import CONSUMERS, GROUP, LONERS, Stage, draw_fates, play, trickle
from tests.sim.sights import Watcher
from tests.sim.workload import REPLICAS, TOPIC, Clients, churn, insist, produce

CHAOS_S = 5.0
REST_S_MAX = 120.0
STABLE_S_MAX = 60.0
GAP_S_MAX = 1.0
COMMITTERS = 2
KINDS = ("calm", "wild", "steady")


class SeedResult(NamedTuple):
    """What a seed came to; `trace` repeats with it."""

    delivered: int
    faults: int
    terms: int
    virtual_s: float
    generations: int
    repeated: int
    late: int
    trace: list[str]


class GroupChaos(Chaos):
    """Faults that hit coordinators more often than others."""

    coordinator_topics: ClassVar[tuple[str, ...]] = (OFFSETS_TOPIC,)

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, watcher: Watcher, is_flushed: bool
    ) -> None:
        super().__init__(world, cluster, watcher, is_flushed)
        self._faults |= {
            "kill the coordinator": (6, self._kill_coordinator),
            "hold the coordinator": (3, self._hold_coordinator),
            "part the coordinator's heirs": (3, self._part_heirs),
        }

    def _coordinator(self) -> SimulatedBroker | None:
        led = [
            each.leader
            for each in self._watcher.agreed.values()
            if each.name.topic in self.coordinator_topics
        ]
        return self.targets.free_broker(self._rng.choice(led)) if led else None

    async def _kill_coordinator(self) -> None:
        await self._kill_one(self._coordinator())

    async def _part_heirs(self) -> None:
        """The next one leads at once, and is not confirmed for a while."""
        broker = self._coordinator()
        heirs = [each.name for each in self._cluster.brokers if each is not broker]
        if broker is None or self.targets.is_taken(frozenset(heirs)):
            return
        async with self.targets.take(frozenset(heirs), f"part {heirs}"):
            for pair in (heirs, heirs[::-1]):
                self._world.network.hold(*pair)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_one, broker)
                await self._wait()
                for pair in (heirs, heirs[::-1]):
                    self._world.network.release(*pair)

    async def _hold_coordinator(self) -> None:
        """It goes on as if it led, and does not hear that it does not."""
        broker = self._coordinator()
        if broker is None:
            return
        async with self.targets.take(broker.name, f"cut the store of {broker.name}"):
            broker.link.cut()
            await self._wait()
            broker.link.heal()


@dataclass
class GroupScenario:
    """One seed, and what brokers are made of where a mutant runs."""

    seed: int
    replicas_type: type[Replicas] = Replicas
    watcher: Watcher | None = None
    stage: Stage | None = None
    consumers: ConsumerGroupSeen | None = None

    @property
    def kind(self) -> str:
        """See the head of this module."""
        return KINDS[self.seed % len(KINDS)]

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """What all brokers have in common."""
        flush = FLUSHES[self.seed // len(KINDS) % len(FLUSHES)]
        return draw_group_settings(world, flush) | consumer_settings(self._consumer_fates(world))

    def _consumer_fates(self, world: SimulatedWorld) -> ConsumerFates:
        return draw_consumer_fates(world, is_calm=self.kind != "wild")

    @property
    def chaos_type(self) -> type[GroupChaos]:
        """Which faults come."""
        return GroupChaos

    def draw_tables(self) -> dict[str, Table]:
        """Which topics are compacted."""
        return {}

    def stored_commits(self, watcher: Watcher) -> Iterator[list[Record]]:
        """What the offsets topic holds, once for replicas that hold the same."""
        yield [*chain.from_iterable(watcher.records(OFFSETS_TOPIC).values())]

    async def run(self) -> SeedResult:
        """Raises `Violation` where a promise was broken, and what ended a broker."""
        world = SimulatedWorld(self.seed, NETWORK)
        rng = world.rng("shape")
        settings = self.draw_settings(world)
        async with open_cluster(world, settings, 3, self.replicas_type) as cluster:
            self.watcher = watcher = Watcher(world, cluster)
            watcher.tables.update(self.draw_tables())
            clients = Clients(world, cluster.address, rng.randint(2, 6))
            fates = draw_fates(
                world.rng("fates"),
                is_calm=self.kind != "wild",
                must_keep_up=self.kind == "steady",
            )
            self.stage = stage = Stage(world, cluster.address, clients.partitions, fates)
            self.consumers = ConsumerGroupSeen(self._consumer_fates(world))
            stage.others[CONSUMERS] = self.consumers.history
            chaos = self.chaos_type(world, cluster, watcher, settings["flush"] == "always")
            async with trio.open_nursery() as watching:
                watching.start_soon(watcher.run)
                await self._create(clients)
                await self._suffer(clients, stage, chaos, rng.randint(2, 4))
                watching.cancel_scope.cancel()
            repeated = await self._judge(clients, stage, watcher)
            return SeedResult(
                clients.delivered,
                sum(chaos.counts.values()),
                watcher.leaders.terms,
                trio.current_time(),
                stage.group.generations.newest,
                repeated,
                stage.group.commits.late + stage.loners.commits.late,
                watcher.trace,
            )

    async def _create(self, clients: Clients) -> None:
        with trio.fail_after(REST_S_MAX):
            async with clients.admin("admin") as admin:
                new = NewTopic(TOPIC, clients.partitions, REPLICAS)
                await insist(lambda: admin.create_topics(new), ErrorCode.TOPIC_ALREADY_EXISTS)

    async def _suffer(self, clients: Clients, stage: Stage, chaos: GroupChaos, slots: int) -> None:
        """Both phases."""
        watcher, consumers = self.watcher, self.consumers
        assert watcher is not None
        assert consumers is not None
        async with trio.open_nursery() as members:
            for slot in range(slots):
                members.start_soon(play, stage, slot)
            for number in range(COMMITTERS):
                members.start_soon(commit_alone, stage, number)
            members.start_soon(look_on, stage)
            for slot in range(consumers.fates.slots):
                members.start_soon(play_consumer, stage, consumers, slot)
            async with trio.open_nursery() as writers:
                if self.kind == "steady":
                    writers.start_soon(trickle, clients)
                    await trio.sleep(CHAOS_S)
                else:
                    writers.start_soon(produce, clients, 0)
                    if self.kind == "wild":
                        writers.start_soon(churn, clients, 0)
                    with within("the faults do not end", CHAOS_S + REST_S_MAX):
                        await chaos.run(CHAOS_S)
                watcher.note("healed")
                stage.stop.set()
                clients.stop.set()
                writers.cancel_scope.deadline = trio.current_time() + REST_S_MAX
            if writers.cancel_scope.cancelled_caught:
                raise Violation(f"the producer does not get through; {watcher.unsettled()}")
            watcher.note("delivered")
            await self._settle(stage, watcher, slots)
            with within(lambda: consumers.unstable(stage.partitions), STABLE_S_MAX):
                await watch_until(watcher, lambda: not consumers.unstable(stage.partitions))
            stage.drained.set()
            members.cancel_scope.deadline = trio.current_time() + REST_S_MAX
        if members.cancel_scope.cancelled_caught:
            raise Violation("the members do not come to the end")

    async def _settle(self, stage: Stage, watcher: Watcher, slots: int) -> None:
        """The cluster first, then the group."""
        with within(watcher.unsettled, REST_S_MAX):
            await watch_until(watcher, lambda: not watcher.unsettled())
        watcher.note("at rest")
        with within(lambda: unstable(stage, slots), STABLE_S_MAX):
            await watch_until(watcher, lambda: not unstable(stage, slots))
        watcher.note("stable")
        ends = log_ends(watcher)
        with within(lambda: f"{unread(stage, ends)} are not read and committed", REST_S_MAX):
            await watch_until(watcher, lambda: not unread(stage, ends))
        watcher.note("read to the end")

    async def _judge(self, clients: Clients, stage: Stage, watcher: Watcher) -> int:
        """When all have closed. Returns how many records were shown again."""
        committed = {}
        for group in (GROUP, LONERS, CONSUMERS):
            async with open_loner(stage, "judge", group) as loner:
                committed[group] = await loner.committed()
        with within(watcher.unsettled, REST_S_MAX):
            await watch_until(watcher, lambda: not watcher.unsettled())
        clients.ledger.judge(
            {name: each for name, each in watcher.stored().items() if name.topic != OFFSETS_TOPIC}
        )
        holdings = stage.group.holdings
        holdings.judge_end(log_ends(watcher), stage.group.commits.floors)
        stage.group.closes.judge(trio.current_time())
        for records in self.stored_commits(watcher):
            judge_stored(records, committed)
            judge_stored_consumers(records)
        if self.kind == "steady":
            holdings.judge_steady(GAP_S_MAX)
        if self.kind != "wild":
            holdings.judge_unexcused(brokers_suffer=self.kind == "calm")
        return holdings.judge_once()


@contextmanager
def within(what: Callable[[], str] | str, time_s: float) -> Iterator[None]:
    """Raises `Violation` where a block takes longer."""
    with trio.move_on_after(time_s) as scope:
        yield
    if scope.cancelled_caught:
        raise Violation(f"after {time_s:g} s: {what if isinstance(what, str) else what()}")


def unstable(stage: Stage, slots: int) -> str:
    """What the group lacks to be stable with all its members, or "" if it lacks nothing."""
    names = [life.who for life in stage.running.values() if not life.ended.is_set()]
    generations = stage.group.generations
    behind = [who for who in names if generations.of.get(who) != generations.newest]
    if len(names) < slots or behind:
        return f"of {names} {behind} are not in generation {generations.newest}"
    held = sorted(place for who, place in stage.group.holdings.held if who in names)
    wanted = [TopicPartition(TOPIC, number) for number in range(stage.partitions)]
    return "" if held == wanted else f"held are {held}"


def log_ends(watcher: Watcher) -> dict[TopicPartition, int]:
    """Of the topic that is read, for a cluster at rest."""
    return {name: len(records) for name, records in watcher.records(TOPIC).items()}


def unread(stage: Stage, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions that the group has not read to the end, and committed."""
    group = stage.group
    return [
        place
        for place, end in ends.items()
        if group.holdings.ends.get(place, 0) < end or group.commits.floors.get(place, 0) < end
    ]


def judge_stored(
    records: Iterable[Record], committed: Mapping[str, Mapping[TopicPartition, int]]
) -> None:
    """What the log says, replayed from its beginning, is what is told. Raises `Violation`."""
    offsets: dict[str, dict[TopicPartition, int]] = {group: {} for group in committed}
    metadata: dict[str, list[GroupMetadata]] = {group: [] for group in committed}
    for record in records:
        match decode(record.key, record.value):
            case OffsetKey(group, topic, partition), CommittedOffset(offset):
                offsets[group][TopicPartition(topic, partition)] = offset
            case GroupKey(group), GroupMetadata() as generation:
                metadata[group].append(generation)
            case ConsumerKey() | GroupKey(), _:  # `judge_consumer_log` has those of its group
                pass
            case unknown:
                raise Violation(f"the log has {unknown}")
    for group in committed:
        judge_log(metadata[group])
        if offsets[group] != committed[group]:
            raise Violation(f"{group}: told is {committed[group]}, the log has {offsets[group]}")


def judge_stored_consumers(records: Iterable[Record]) -> None:
    """The log says nothing of the group of the consumer protocol that may not be. Raises
    `Violation`."""
    decoded = (decode(record.key, record.value) for record in records)
    judge_consumer_log(
        (key, value)
        for key, value in decoded
        if isinstance(key, ConsumerKey | GroupKey) and key.group_id == CONSUMERS
    )


def draw_group_settings(world: SimulatedWorld, flush: str) -> dict[str, str]:
    """What all brokers of a seed have in common."""
    rng = world.rng("group settings")
    return draw_settings(world, flush) | {
        "offsets.topic.num.partitions": rng.choice(("1", "2")),
        "offsets.topic.replication.factor": str(REPLICAS),
        "offsets.commit.timeout.ms": rng.choice(("1000", "5000")),
        "group.initial.rebalance.delay.ms": rng.choice(("0", "100")),
    }
