"""The members of a simulated group: processes that join, read, commit, and end in many ways.

A slot is a machine on which one process runs after the other. Each is a consumer that polls,
takes some time over each record, and commits when it is done with them (or has the client do it).
It notes what its application sees; its wires are listened to (`group_tap.py`). What becomes of it
is drawn from the seed (`Fates`): it leaves, crashes, stands still for longer than its session or
not, or is too slow for `max.poll.interval.ms`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

import trio

from minibroker.client import Consumer, TopicPartition
from minibroker.client.errors import ClientError
from minibroker.client.options import Seams
from minibroker.protocol.errors import BrokerError
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.group_checkers import (
    Fenced,
    Generations,
    Holdings,
    OneOwner,
    OnlyDone,
    PromptClose,
    RisingCommits,
)
from tests.sim.group_events import (
    Assigned,
    Closed,
    Closing,
    CommitBegun,
    CommitEnded,
    CommitFailed,
    Crashed,
    Done,
    Event,
    History,
    Lost,
    Revoked,
    Shown,
)
from tests.sim.group_tap import Tap
from tests.sim.processes import Process
from tests.sim.workload import TOPIC, Clients

GROUP = "readers"
LONERS = "loners"  # the group of those who commit without being members
CONSUMERS = "consumers"  # the group of the consumer protocol: `consumer_members.py`
TRICKLE_S = 0.2
SLOW_INTERVALS_MAX = 3.0  # longest time over a record, of max.poll.interval.ms: 30 s at most
WILD_FATES = ("leave", "crash", "pause", "pause", "slow")
ASSIGNORS = ("cooperative-sticky", "cooperative-sticky", "range", "roundrobin")


class Group:
    """One group: its history, and the checkers that it is shown to."""

    def __init__(self) -> None:
        self.commits = RisingCommits()
        self.holdings = Holdings()
        self.closes = PromptClose()
        self.generations = Generations()
        self.history = History(
            (
                self.commits,
                self.holdings,
                self.closes,
                self.generations,
                OneOwner(),
                Fenced(),
                OnlyDone(),
            )
        )


class Loners:
    """One without members."""

    def __init__(self) -> None:
        self.commits = RisingCommits()
        self.history = History((self.commits,))


class Fates(NamedTuple):
    """What the members of a seed are like. Times are milliseconds, or seconds on average."""

    is_calm: bool  # none crashes or stands still, and all have the time that they need
    assignor: str
    is_auto_commit: bool
    session_timeout_ms: int
    max_poll_interval_ms: int
    life_s: float
    record_s: float
    poll_records: tuple[int, ...]
    static_slots: int


def draw_fates(rng: Random, *, is_calm: bool, must_keep_up: bool) -> Fates:
    """For all members of a seed: they must agree on an assignor."""
    return Fates(
        is_calm,
        assignor=rng.choice(ASSIGNORS),
        is_auto_commit=rng.random() < 0.4,
        session_timeout_ms=20_000 if is_calm else rng.choice((1_000, 1_000, 3_000)),
        max_poll_interval_ms=30_000 if is_calm else rng.choice((3_000, 10_000)),
        life_s=rng.choice((1.0, 2.0, 4.0)),
        record_s=rng.choice((0.0, 0.001, 0.01) if is_calm else (0.005, 0.02)),
        poll_records=(500,) if must_keep_up else (1, 10, 50),
        static_slots=rng.choice((0, 0, 1, 5)),
    )


@dataclass
class Stage:
    """What all members share; `stop` ends their fates, `drained` ends them."""

    world: SimulatedWorld
    address: str
    partitions: int
    fates: Fates
    group: Group = field(default_factory=Group)
    loners: Loners = field(default_factory=Loners)
    others: dict[str, History] = field(default_factory=dict)  # of groups of other kinds, by name
    stop: trio.Event = field(default_factory=trio.Event)
    drained: trio.Event = field(default_factory=trio.Event)
    running: "dict[int, Life]" = field(default_factory=dict)  # by slot
    numbers: "count[int]" = field(default_factory=count)

    def note(self, group: str, event: Event) -> None:
        """It happens now. Raises `Violation`."""
        histories = {GROUP: self.group.history, LONERS: self.loners.history} | self.others
        histories[group].note(trio.current_time(), event)

    def seams(self, who: str, host: str) -> tuple[Tap, Seams]:
        """For a process on a host."""
        seams = self.world.seams(host)
        tap = Tap(who, seams.network, self.note, self.numbers)
        return tap, Seams(tap, self.world.rng(who), seams.wall_ms)


class Life(Process):
    """One process of a member, from its start to its end."""

    def __init__(self, stage: Stage, slot: int, number: int) -> None:
        super().__init__(stage.world, f"member-{slot}.{number}", f"member-{slot}")
        self.delay_s = 0.0  # once, before the next record
        self._stage = stage
        self._rng = stage.world.rng(self.who)
        self._slot = slot
        self._tap, self._seams = stage.seams(self.who, self._host)

    def note(self, event: Event) -> None:
        """Unless it is dead."""
        if not self.is_crashed:
            self._stage.note(GROUP, event)

    def crash(self) -> None:
        """`kill -9`."""
        self.note(Crashed(self.who))
        self._tap.die()
        super().crash()

    async def run(self) -> None:
        """Be a member until told to leave."""
        with self._living():
            consumer = self._consumer()
            async with consumer:
                await self._join(consumer)
                while not self.leaving.is_set():
                    await self._poll(consumer)
                await self._close(consumer)

    def _consumer(self) -> Consumer:
        fates = self._stage.fates
        static = {"group_instance_id": self._host} if self._slot < fates.static_slots else {}
        return Consumer(
            self._stage.address,
            group_id=GROUP,
            seams=self._seams,
            auto_offset_reset="earliest",
            default_api_timeout_ms=fates.max_poll_interval_ms,
            request_timeout_ms=self._rng.choice((1_000, 3_000)),
            session_timeout_ms=fates.session_timeout_ms,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=fates.max_poll_interval_ms,
            max_poll_records=self._rng.choice(fates.poll_records),
            enable_auto_commit=fates.is_auto_commit,
            auto_commit_interval_ms=self._rng.choice((300, 1_000)),
            partition_assignment_strategy=fates.assignor,
            **static,
        )

    async def _join(self, consumer: Consumer) -> None:
        async def on_assigned(places: Sequence[TopicPartition]) -> None:
            await trio.lowlevel.checkpoint()
            self.note(Assigned(self.who, tuple(places)))

        async def on_revoked(places: Sequence[TopicPartition]) -> None:
            await self._commit(consumer)
            self.note(Revoked(self.who, tuple(places)))

        async def on_lost(places: Sequence[TopicPartition]) -> None:
            await trio.lowlevel.checkpoint()
            self.note(Lost(self.who, tuple(places)))

        await consumer.subscribe(
            TOPIC, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost
        )

    async def _poll(self, consumer: Consumer) -> None:
        records = await consumer.poll(0.2)
        places = [(TopicPartition(*record[:2]), record.offset) for record in records]
        for place, offset in places:
            self.note(Shown(self.who, place, offset))
        for place, offset in places:
            delay_s, self.delay_s = self.delay_s, 0.0
            if self._stage.fates.record_s:
                delay_s += self._rng.expovariate(1 / self._stage.fates.record_s)
            if delay_s:
                await trio.sleep(delay_s)
            self.note(Done(self.who, place, offset))
        if places:
            await self._commit(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        """What is done, unless the client does it."""
        if self._stage.fates.is_auto_commit:
            await trio.lowlevel.checkpoint()
            return
        self.note(CommitBegun(self.who))
        try:
            await consumer.commit()
        except (BrokerError, ClientError) as error:
            self.note(CommitFailed(self.who, str(error)))
        finally:
            self.note(CommitEnded(self.who))

    async def _close(self, consumer: Consumer) -> None:
        timeout_s = 30.0 if self._stage.fates.is_calm else self._rng.choice((0.2, 2.0, 10.0))
        self.note(Closing(self.who, timeout_s))
        await consumer.close(timeout_s)
        self.note(Closed(self.who))


async def play(stage: Stage, slot: int) -> None:
    """One process after the other in a slot, until all is drained; the last one leaves."""
    rng = stage.world.rng(f"slot-{slot}")
    async with trio.open_nursery() as nursery:
        await trio.sleep(rng.uniform(0, 2))
        for number in count():
            life = stage.running[slot] = Life(stage, slot, number)
            nursery.start_soon(life.run)
            if await lives_on(stage, life, rng):
                break
            del stage.running[slot]
            with trio.move_on_after(rng.expovariate(1 / 1.0)):
                await stage.stop.wait()
        await stage.drained.wait()
        life.leaving.set()


async def lives_on(stage: Stage, life: Life, rng: Random) -> bool:
    """What becomes of a process: whether it is still there when all is to `stop`."""
    fates = stage.fates
    session_s = fates.session_timeout_ms / 1000
    while True:
        with trio.move_on_after(rng.expovariate(1 / fates.life_s)):
            await stage.stop.wait()
        fate = rng.choice(("leave",) if fates.is_calm else WILD_FATES)
        if stage.stop.is_set():
            return True
        if fate == "leave":
            life.leaving.set()
            await life.ended.wait()
            return False
        if fate == "crash":
            life.crash()
            return False
        if fate == "pause":
            await life.pause(rng.uniform(0.2, 2.0) * session_s)
        else:
            interval_s = fates.max_poll_interval_ms / 1000
            life.delay_s = min(rng.expovariate(1 / interval_s), SLOW_INTERVALS_MAX * interval_s)


async def trickle(clients: Clients) -> None:
    """Send so that there is always something to read in every partition, until told to stop."""
    rng = clients.world.rng("trickle")
    async with clients.producer("producer-0", rng) as producer:
        for number in count():
            if clients.stop.is_set():
                break
            for partition in range(clients.partitions):
                value = b"0:%d" % (number * clients.partitions + partition)
                clients.ledger.note_sent(TOPIC, value)
                await producer.send(TOPIC, value, partition=partition)
            await trio.sleep(TRICKLE_S)
        await producer.flush()
