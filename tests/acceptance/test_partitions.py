"""Networks that break between brokers, the members of an etcd and clients, one way or both.

Producers with acks=all and a reader work on while one fault after another comes and is healed.
What they were told is judged as in `tests/acceptance/test_failover.py`; and nobody, whichever
broker it was that they asked, ever named two leaders of one epoch. For each fault a line is
printed, see `Rounds`: the table in docs/faults.md is made of these.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import trio

from minibroker.client import Admin, NewTopic
from tests.support.audited import assert_clean
from tests.support.etcd import NEEDS_ETCD
from tests.support.evidence import PARTITIONS, TOPIC, Evidence, judge, produce, read
from tests.support.namespaces import NEEDS_NAMESPACES
from tests.support.spread import BROKERS, CLIENT, ETCDS, NODES, SpreadCluster, running_spread
from tests.support.witness import Change, History, log_digests

pytestmark = [NEEDS_ETCD, NEEDS_NAMESPACES]

PRODUCERS = 2
READERS = 1
PAUSE_S = 0.05
SESSION_S = 2.0
# Nothing may have to wait for the lag time: it is longer than the patience.
SESSION = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "600000",
}
# What brokers have by themselves with an etcd, but not in a cluster on one machine.
USUAL_SESSION = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1500"}
LASTS_S = (8.0, 15.0, 30.0)  # in long runs; an election takes up to 7 s, with a fence 12 s more
PATIENCE_S = 60.0
LOG_CHARS = 4000  # of each broker's, where patience ended


def node_of(name: str) -> int:
    """The number of a broker."""
    return BROKERS.index(name) + 1


def others(name: str) -> list[str]:
    """The brokers but one."""
    return [broker for broker in BROKERS if broker != name]


def cut_off(cluster: SpreadCluster, victim: str) -> None:
    """From everybody."""
    cluster.net.separate(victim, *others(victim), *ETCDS, CLIENT)


def cut_off_from_brokers(cluster: SpreadCluster, victim: str) -> None:
    """But not from etcd, nor from clients."""
    cluster.net.separate(victim, *others(victim))


def cut_off_from_etcd(cluster: SpreadCluster, victim: str) -> None:
    """But not from brokers, nor from clients."""
    cluster.net.separate(victim, *ETCDS)


def deaf_to_etcd(cluster: SpreadCluster, victim: str) -> None:
    """What it asks arrives; the answers are lost."""
    for member in ETCDS:
        cluster.net.cut(member, victim)


def mute_to_etcd(cluster: SpreadCluster, victim: str) -> None:
    """What it asks is lost; what etcd has to say arrives."""
    for member in ETCDS:
        cluster.net.cut(victim, member)


def deaf_to_brokers(cluster: SpreadCluster, victim: str) -> None:
    """What it sends arrives, at its followers too; what they send is lost."""
    for broker in others(victim):
        cluster.net.cut(broker, victim)


def mute_to_brokers(cluster: SpreadCluster, victim: str) -> None:
    """What its followers ask arrives; the answers are lost."""
    for broker in others(victim):
        cluster.net.cut(victim, broker)


def parted_from_one(cluster: SpreadCluster, victim: str) -> None:
    """The wire to one other broker alone, which may be the controller, or copy from it."""
    cluster.net.separate(victim, others(victim)[0])


def deaf_to_one(cluster: SpreadCluster, victim: str) -> None:
    """What one other broker sends to it is lost, and nothing else."""
    cluster.net.cut(others(victim)[0], victim)


def mute_to_clients(cluster: SpreadCluster, victim: str) -> None:
    """What they send arrives and is done; the answers are lost."""
    cluster.net.cut(victim, CLIENT)


def deaf_to_clients(cluster: SpreadCluster, victim: str) -> None:
    """What they send is lost."""
    cluster.net.cut(CLIENT, victim)


def without_one_member(cluster: SpreadCluster, _victim: str) -> None:
    """`kill -9` of one of etcd's."""
    cluster.members[ETCDS[0]].kill()


def without_two_members(cluster: SpreadCluster, _victim: str) -> None:
    """So that there is no majority."""
    for name in ETCDS[:2]:
        cluster.members[name].kill()


def without_etcd(cluster: SpreadCluster, _victim: str) -> None:
    """All of it."""
    for member in cluster.members.values():
        member.kill()


def killed_while_cut_off(cluster: SpreadCluster, victim: str) -> None:
    """So that nobody hears of the end of its connections."""
    cut_off(cluster, victim)
    cluster.kill(node_of(victim))


class Meanwhile(Enum):
    """What the cluster does while a fault lasts."""

    GOES_ON = "nothing is noticed"
    ANOTHER_LEADS = "another broker leads what the victim has led, and all is served"
    ONE_LEADS = "the victim or another broker leads, and all is served"
    WAITS = "what the victim has to do with may wait until it is healed"


class Fault(NamedTuple):
    """What is done with a broker that leads, and for how long at least."""

    inflict: Callable[[SpreadCluster, str], None]
    meanwhile: Meanwhile
    lasts_s: float = 4.0

    @property
    def name(self) -> str:
        """For people."""
        return self.inflict.__name__.replace("_", " ")


EACH_ONCE = (
    Fault(cut_off, Meanwhile.ANOTHER_LEADS),
    Fault(mute_to_brokers, Meanwhile.ANOTHER_LEADS),
    Fault(cut_off_from_etcd, Meanwhile.ANOTHER_LEADS),
    Fault(parted_from_one, Meanwhile.ONE_LEADS),
    Fault(without_one_member, Meanwhile.GOES_ON, lasts_s=2.0),
)
MORE = (
    Fault(without_two_members, Meanwhile.GOES_ON, lasts_s=20.0),
    Fault(cut_off_from_brokers, Meanwhile.ANOTHER_LEADS),
    Fault(deaf_to_etcd, Meanwhile.ANOTHER_LEADS),
    Fault(mute_to_etcd, Meanwhile.ANOTHER_LEADS),
    Fault(deaf_to_brokers, Meanwhile.ANOTHER_LEADS),
    Fault(deaf_to_one, Meanwhile.ONE_LEADS),
    Fault(mute_to_clients, Meanwhile.WAITS),
    Fault(deaf_to_clients, Meanwhile.WAITS),
    Fault(killed_while_cut_off, Meanwhile.ANOTHER_LEADS),
    Fault(without_etcd, Meanwhile.GOES_ON),
)


@dataclass
class Rounds:
    """A cluster under load and faults, and what was seen. A row of `table` is one fault: who
    suffered it, how long it lasted, the longest that a record waited that was sent meanwhile or
    before all was healed, after how long each partition served again, and all were in sync."""

    cluster: SpreadCluster
    evidence: Evidence
    histories: list[History]  # one asks each broker: who is cut off does not know what is new
    table: list[str] = field(default_factory=list)

    async def wait_for_all_in_sync(self) -> None:
        """Whoever is asked."""
        for history in self.histories:
            await history.wait_for_isr(len(NODES))

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """A block that takes no longer, or an `AssertionError` that tells how all stood instead."""
        with trio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            stood = [
                f"broker {node} said: {sorted(history.latest.values())}"
                for node, history in zip(NODES, self.histories, strict=True)
            ]
            logs = [
                f"broker {node} logged: ...{broker.output[-LOG_CHARS:]}"
                for node, broker in self.cluster.brokers.items()
            ]
            raise AssertionError("\n".join([f"not within {seconds:g} s: {what}", *stood, *logs]))

    def latest(self) -> Change:
        """How the first partition stands."""
        return max(
            (history.latest[0] for history in self.histories), key=lambda one: one.leader_epoch
        )

    async def suffer(self, fault: Fault) -> None:
        """One fault, until all is as before."""
        await self.wait_for_all_in_sync()
        with self.within(PATIENCE_S, f"all acknowledged before {fault.name}"):
            await self.evidence.wait_until_all_acknowledged(time.monotonic())
        before = self.latest()
        victim = before.leader
        self.evidence.longest_wait_s = 0.0
        began = time.monotonic()
        with self.within(PATIENCE_S + fault.lasts_s, f"{fault.name}, and service in spite of it"):
            await trio.to_thread.run_sync(fault.inflict, self.cluster, f"kafka-{victim}")
            await trio.sleep(fault.lasts_s)
            if fault.meanwhile is not Meanwhile.WAITS:
                await self.evidence.wait_for_service(time.monotonic())
        healed = time.monotonic()
        with self.within(PATIENCE_S, f"all in sync after {fault.name}"):
            await trio.to_thread.run_sync(self._heal)
            served_s = await self.evidence.wait_for_service(healed)
            await self.wait_for_all_in_sync()
        in_sync_s = time.monotonic() - healed
        was_elected = self.latest().leader_epoch > before.leader_epoch
        if fault.meanwhile is not Meanwhile.ONE_LEADS:
            assert was_elected == (fault.meanwhile is Meanwhile.ANOTHER_LEADS), fault.name
        waited_s = self.evidence.longest_wait_s
        row = f"{fault.name:22} | broker {victim} | {healed - began:5.1f} | {waited_s:5.1f}"
        self.table.append(f"{row} | {served_s:5.1f} | {in_sync_s:5.1f}")
        print(self.table[-1], flush=True)

    async def outlive_etcd(self) -> None:
        """All of etcd is away, and a leader dies meanwhile."""
        await self.wait_for_all_in_sync()
        before = self.latest()
        survivors = [node for node in NODES if node != before.leader]
        without_etcd(self.cluster, "")
        await trio.sleep(2 * SESSION_S)
        with self.within(PATIENCE_S, "service without etcd"):
            await self.evidence.wait_for_service(time.monotonic())
        await trio.to_thread.run_sync(self.cluster.kill, before.leader)
        await trio.sleep(2 * SESSION_S)
        assert self.latest().leader_epoch == before.leader_epoch, "elected without etcd"
        for member in self.cluster.members.values():
            member.start()
        with self.within(PATIENCE_S, "service with etcd again"):
            served_s = await self.evidence.wait_for_service(time.monotonic())
        assert self.latest().leader_epoch > before.leader_epoch
        began = time.monotonic()
        with self.within(PATIENCE_S, f"all in sync with broker {before.leader} again"):
            await trio.to_thread.run_sync(self.cluster.start, before.leader)
            await self.wait_for_all_in_sync()
        in_sync_s = time.monotonic() - began
        row = f"{'without etcd, killed':22} | broker {before.leader} | {'':5} | {'':5}"
        print(f"{row} | {served_s:5.1f} | {in_sync_s:5.1f}", flush=True)
        for node in survivors:
            said = self.cluster.brokers[node].output
            assert "The metadata store cannot be used: etcd at " in said
            assert "The metadata store can be used again, after " in said

    def _heal(self) -> None:
        self.cluster.net.heal()
        for member in self.cluster.members.values():
            if not member.is_running:
                member.start()
        for node, broker in self.cluster.brokers.items():
            if not broker.is_running:
                self.cluster.start(node)


async def work(
    cluster: SpreadCluster, place: Path, seed: int, torment: Callable[[Rounds], Awaitable[None]]
) -> Rounds:
    """Load and faults, until all is healed and has been read."""
    seams = cluster.seams(seed)
    rounds = Rounds(cluster, Evidence(place, seams), [History(TOPIC, seams) for _ in NODES])
    address, evidence = cluster.addresses, rounds.evidence
    async with Admin(address, seams=seams) as admin:
        await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
    stop, drained = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        for node, history in zip(NODES, rounds.histories, strict=True):
            nursery.start_soon(history.watch, cluster.address_of(node))
        async with trio.open_nursery() as readers:
            for _ in range(READERS):
                readers.start_soon(read, address, evidence, drained)
            async with trio.open_nursery() as writers:
                for number in range(PRODUCERS):
                    load = partial(produce, pause_s=PAUSE_S)
                    writers.start_soon(load, address, number, evidence, stop)
                await torment(rounds)
                stop.set()
            drained.set()
        await read(address, evidence, drained)
        nursery.cancel_scope.cancel()
    return rounds


def one_leader_for_each_epoch(histories: list[History]) -> None:
    """Whoever was asked, nobody ever named two for one."""
    leaders: dict[tuple[int, int], int] = {}
    for change in chain.from_iterable(history.changes for history in histories):
        if change.leader >= 0:
            known = leaders.setdefault((change.partition, change.leader_epoch), change.leader)
            assert known == change.leader, f"{change}: and broker {known} leads in that epoch, too"


def judge_rounds(rounds: Rounds) -> None:
    """After the brokers have stopped: nothing is lost, and all replicas hold the same bytes."""
    judge(rounds.evidence)
    one_leader_for_each_epoch(rounds.histories)
    root = rounds.cluster.layout
    digests = [log_digests(root.data_dir(node), TOPIC) for node in NODES]
    assert len(digests[0]) == PARTITIONS
    assert digests[0] == digests[1] == digests[2]


async def test_nothing_is_lost_where_networks_break(tmp_path) -> None:
    """Each fault once: soon after it is healed records are acknowledged on all partitions and shown
    to readers; and all that were acknowledged are there once, in order."""

    async def torment(rounds: Rounds) -> None:
        for fault in EACH_ONCE:
            await rounds.suffer(fault)
        await rounds.outlive_etcd()

    with running_spread(tmp_path, SESSION) as cluster:
        rounds = await work(cluster, tmp_path, 1, torment)
        for node in NODES:
            assert cluster.stop(node) == 0
    judge_rounds(rounds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_over_long_faults(spark, tmp_path, seed: int) -> None:
    """Every fault, in any order and for any time; the audit has nothing to say."""
    rng = Random(seed)

    async def torment(rounds: Rounds) -> None:
        for fault in rng.sample(EACH_ONCE + MORE, len(EACH_ONCE + MORE)):
            longer = fault._replace(lasts_s=rng.choice(LASTS_S))
            await rounds.suffer(longer)

    with running_spread(tmp_path, USUAL_SESSION) as cluster:
        rounds = await work(cluster, tmp_path, seed, torment)
        cluster.export()
        for node in NODES:
            assert cluster.stop(node) == 0
    judge_rounds(rounds)
    ledgers = rounds.evidence.ledgers
    await trio.to_thread.run_sync(assert_clean, spark, tmp_path, tmp_path / "audit", ledgers)
