"""The adversarial run: a cluster, producers and a group, and everything that goes wrong with them.

Three brokers on this machine, each a process; producers (producer.py) and members of one group
(consumer.py), each a process that goes through many clients. While they work, workers are killed,
paused for less and for more than their session, and started again; brokers are killed, restarted
and paused, one at a time and now and then all at once. Inside the workers chance raises
interrupts, closes clients from other threads and tasks, and leaves blocks in every way there is.

Then there is peace. The producers end, the group drains the topic, everything stops in order, and
`judge` compares what was told with what is there.

Chance comes from the seed. It repeats the plan, not the run: that happens in real time.
"""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio

from minibroker.client import Admin, Consumer, NewTopic
from minibroker.client.errors import ClientError
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition
from tests.adversary.guard import Guard
from tests.adversary.journal import read_journal
from tests.adversary.judge import judge
from tests.adversary.verdict import Process, Run, Seen, Verdict
from tests.adversary.worker import PEACE
from tests.support.processes import ClusterProcesses, Machine
from tests.support.witness import History, log_digests

TOPIC = "adversary"
GROUP = "adversaries"
PARTITIONS = 6
NODES = (1, 2, 3)
SETTINGS = {"replica.lag.time.max.ms": "3000"}
FACES = ("blocking", "asyncio")  # the kinds of clients (faces.py)
SESSION_S = 3.0
LOOK_EVERY_S = 0.2
HEALED_S_MAX = 60.0
DRAINED_S_MAX = 120.0
STOPPED_S_MAX = 120.0
DUMP_S = 1.0
TELL_EVERY_S = 30.0


@dataclass(frozen=True)
class Pace:
    """How long, how many and how often. A pair is the least and the most, in seconds."""

    seconds: float
    producers: int = 2
    dynamic_members: int = 3
    static_members: int = 1
    records_per_s: float = 600.0
    life_s: float = 8.0
    worker_fault_s: tuple[float, float] = (3.0, 15.0)
    broker_fault_s: tuple[float, float] = (2.0, 8.0)
    faces: tuple[str, ...] = FACES


class Cluster(ClusterProcesses):
    """Brokers that do not outlive the run."""

    def __init__(self, root: Path, guard: Guard) -> None:
        super().__init__(root, len(NODES), SETTINGS)
        self._guard = guard
        self.outputs: list[str] = []  # of brokers that have ended

    def machine_of(self, node_id: int) -> Machine:
        return self._guard

    def kill(self, *node_ids: int) -> None:
        super().kill(*node_ids)
        self.outputs += [self.brokers[node_id].output for node_id in node_ids]


@dataclass
class Worker:
    """One process of a worker, and its files."""

    name: str
    journal: Path
    process: subprocess.Popen
    killed: float | None = None
    pauses: list[tuple[float, float]] = field(default_factory=list)
    is_paused: bool = False

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """A signal, if it runs."""
        if self.is_running:
            self.process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP."""
        self.send(signal.SIGSTOP)
        self.is_paused = True
        self.pauses.append((time.monotonic(), float("inf")))

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)
        if self.is_paused:
            self.pauses[-1] = (self.pauses[-1][0], time.monotonic())
        self.is_paused = False

    def kill(self) -> None:
        """`kill -9`, unless it has ended by itself."""
        if self.is_running:
            self.killed = time.monotonic()
            self.process.kill()

    def account(self) -> Process:
        """What it leaves."""
        own_codes = {
            int(event.words[0]) for event in read_journal(self.journal) if event.kind == "exiting"
        }
        code = self.process.returncode
        if code == -signal.SIGTERM and not self.journal.stat().st_size:
            code = 0  # it was stopped before it had begun
        return Process(
            self.name,
            read_journal(self.journal),
            0 if code in own_codes else code,
            self.killed,
            self.journal.with_suffix(".errors").read_text(errors="replace"),
            self.pauses,
        )


class Adversary:
    """One run. `tell` is given a line for people now and then."""

    def __init__(
        self, place: Path, seed: int, pace: Pace, tell: Callable[[str], object] = print
    ) -> None:
        self._place = place
        self._seed = seed
        self._pace = pace
        self._tell = tell
        self._rng = Random(f"{seed}:brokers")
        self._guard = Guard()
        self._cluster: Cluster
        self._workers: dict[str, list[Worker]] = {}
        self._seen: list[Seen] = []
        self._history = History(TOPIC)
        self._has_peace = trio.Event()
        self.faults: Counter[str] = Counter()
        self.verdict: Verdict

    async def run(self) -> Verdict:
        """The whole of it."""
        try:
            with self._guard:
                self._cluster = Cluster(self._place / "cluster", self._guard)
                await trio.to_thread.run_sync(self._cluster.start)
                log, troubles = await self._torment()
                self._stop_brokers(troubles)
        finally:
            for worker in self._all():
                worker.process.wait()
        accounts = {worker.name: worker.account() for worker in self._all()}
        producers = [each for name, each in accounts.items() if name.startswith("producer")]
        consumers = [each for name, each in accounts.items() if not name.startswith("producer")]
        verdict = judge(Run(log, producers, consumers, self._seen))
        for kind, text in troubles:
            verdict.findings.add(kind, text)
        return verdict

    def _all(self) -> list[Worker]:
        return [worker for workers in self._workers.values() for worker in workers]

    # The run

    async def _torment(self) -> tuple[dict[int, list[bytes]], list[tuple[str, str]]]:
        """Faults, then peace. Returns the log, and what went wrong with the end of it."""
        pace = self._pace
        troubles: list[tuple[str, str]] = []
        async with Admin(self._cluster.addresses) as admin, trio.open_nursery() as watching:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
            watching.start_soon(self._history.watch, self._cluster.addresses)
            watching.start_soon(self._watch_commits)
            watching.start_soon(self._tell_now_and_then)
            async with trio.open_nursery() as nursery:
                names = [f"producer{number}" for number in range(pace.producers)]
                names += [f"member{number}" for number in range(pace.dynamic_members)]
                names += [f"static{number}" for number in range(pace.static_members)]
                for name in names:
                    self._workers[name] = []
                    nursery.start_soon(self._torment_worker, name)
                nursery.start_soon(self._torment_brokers)
                await trio.sleep(pace.seconds)
                self._has_peace.set()
                nursery.cancel_scope.deadline = trio.current_time() + HEALED_S_MAX
            if nursery.cancel_scope.cancelled_caught:
                troubles.append(("not healed", f"a fault did not end in {HEALED_S_MAX} s"))
            await self._heal(troubles)
            ends = await self._drain(admin, troubles)
            await self._stop_workers([*self._all()], troubles)
            log = await read_log(self._cluster.addresses, ends)
            with trio.move_on_after(HEALED_S_MAX) as scope:
                await self._history.wait_for_isr(len(NODES))
            if scope.cancelled_caught:
                troubles.append(("not healed", f"replicas are out of sync: {self._history.latest}"))
            watching.cancel_scope.cancel()
        return log, troubles

    async def _pause_for(self, least_s: float, most_s: float, rng: Random) -> bool:
        """Wait, less if there is peace before. Whether there is no peace yet."""
        with trio.move_on_after(rng.uniform(least_s, most_s)):
            await self._has_peace.wait()
        return not self._has_peace.is_set()

    async def _torment_worker(self, name: str) -> None:
        """Keep one process of this name running, and do something to it now and then."""
        rng = Random(f"{self._seed}:{name}")
        while not self._has_peace.is_set():
            worker = self._start(name)
            while worker.is_running and await self._pause_for(*self._pace.worker_fault_s, rng):
                await self._torment_once(worker, rng)

    async def _torment_once(self, worker: Worker, rng: Random) -> None:
        fault = rng.choice(("kill", "pause", "long pause"))
        if not worker.is_running:
            return
        self.faults[f"worker: {fault}"] += 1
        if fault == "kill":
            worker.kill()
            await trio.to_thread.run_sync(worker.process.wait)
        else:
            worker.pause()
            is_long = fault == "long pause"
            await trio.sleep(SESSION_S * (rng.uniform(1.2, 2) if is_long else rng.uniform(0, 0.4)))
            # Some are killed while they stand still.
            if rng.random() < 0.1:
                self.faults["worker: kill"] += 1
                worker.kill()
            worker.resume()

    def _start(self, name: str) -> Worker:
        number = len(self._workers[name])
        full = f"{name}-{number}"
        journal = self._place / f"{full}.journal"
        journal.touch()
        program = "producer" if name.startswith("producer") else "consumer"
        pace = self._pace
        command = [sys.executable, "-m", f"tests.adversary.{program}", str(journal)]
        command += [self._cluster.addresses, TOPIC, full, f"{self._seed}:{full}"]
        command += ["--life-s", str(pace.life_s), "--group", GROUP]
        command += ["--rate", str(pace.records_per_s / pace.producers)]
        command += ["--faces", *pace.faces]
        with journal.with_suffix(".errors").open("wb") as errors:
            process = self._guard.popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        worker = Worker(full, journal, process)
        self._workers[name].append(worker)
        return worker

    async def _torment_brokers(self) -> None:
        """One fault after another; most begin when all replicas are in sync."""
        rng = self._rng
        async with Admin(self._cluster.addresses, default_api_timeout_ms=5_000) as admin:
            while await self._pause_for(*self._pace.broker_fault_s, rng):
                if rng.random() < 0.8:
                    with trio.move_on_after(HEALED_S_MAX):
                        await self._history.wait_for_isr(len(NODES))
                victim = await self._victim(admin, rng)
                fault = rng.choice(("kill", "kill", "pause", "long pause", "restart", "kill all"))
                if fault == "kill all" and rng.random() < 0.7:
                    fault = "kill"
                self.faults[f"broker: {fault}"] += 1
                await self._torment_broker(victim, fault, rng)

    async def _victim(self, admin: Admin, rng: Random) -> int:
        """A leader, the controller, the group's coordinator, or any broker."""
        try:
            match rng.choice(("leader", "controller", "coordinator", "any")):
                case "leader" if self._history.latest:
                    victim = self._history.latest[0].leader
                case "controller":
                    victim = (await admin.describe_cluster()).controller_id
                case "coordinator":
                    [group] = await admin.describe_groups(GROUP)
                    victim = group.coordinator_id
                case _:
                    victim = rng.choice(NODES)
        except (ClientError, BrokerError):
            victim = -1
        return victim if victim in NODES else rng.choice(NODES)

    async def _torment_broker(self, victim: int, fault: str, rng: Random) -> None:
        cluster, in_thread = self._cluster, trio.to_thread.run_sync
        if fault in ("pause", "long pause"):
            cluster.pause(victim)
            await trio.sleep(rng.uniform(2, 6) if fault == "long pause" else rng.uniform(0, 0.8))
            cluster.resume(victim)
        elif fault == "restart":
            await in_thread(cluster.restart, victim)
        else:
            victims = NODES if fault == "kill all" else (victim,)
            await in_thread(cluster.kill, *victims)
            await trio.sleep(rng.uniform(0, 4))
            await in_thread(cluster.start, *victims)

    async def _watch_commits(self) -> None:
        """Look at what is committed, again and again."""
        name = self._cluster.addresses
        async with Admin(name, default_api_timeout_ms=5_000, request_timeout_ms=4_000) as admin:
            while True:
                asked = time.monotonic()
                try:
                    found = await admin.committed_offsets(GROUP)
                except (ClientError, BrokerError):
                    found = {}
                offsets = {each.partition: told.offset for each, told in found.items()}
                self._seen.append(Seen(asked, time.monotonic(), offsets))
                await trio.sleep(LOOK_EVERY_S)

    async def _tell_now_and_then(self) -> None:
        begin = time.monotonic()
        while True:
            await trio.sleep(TELL_EVERY_S)
            done = sum(self._seen[-1].offsets.values()) if self._seen else 0
            self._tell(
                f"{time.monotonic() - begin:.0f} s: {done:,} records committed by the group,"
                f" {len(self._all())} processes, {self.faults.total()} faults from outside"
            )

    # The end

    async def _heal(self, troubles: list[tuple[str, str]]) -> None:
        """Everything runs, nothing is interrupted, and the producers have ended."""
        for node in NODES:
            if self._cluster.brokers[node].is_running:
                self._cluster.resume(node)
            else:
                await trio.to_thread.run_sync(self._cluster.start, node)
        for worker in self._all():
            worker.resume()
        (self._place / PEACE).touch()
        producers = [each for each in self._all() if each.name.startswith("producer")]
        await self._stop_workers(producers, troubles)

    async def _drain(
        self, admin: Admin, troubles: list[tuple[str, str]]
    ) -> dict[TopicPartition, int]:
        """The group commits everything. Returns the ends of the partitions."""
        names = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        found = await admin.list_offsets(names)
        ends = {name: found[name].offset for name in names}
        wanted = {name.partition: end for name, end in ends.items() if end}
        self._tell(f"peace: {sum(ends.values()):,} records are in the topic")
        with trio.move_on_after(DRAINED_S_MAX) as scope:
            while not self._seen or self._seen[-1].offsets != wanted:
                self._revive()
                await trio.sleep(LOOK_EVERY_S)
        if scope.cancelled_caught:
            text = f"committed is {self._seen[-1].offsets}, the topic ends at {wanted}"
            troubles.append(("not drained", text))
            for worker in self._all():
                worker.send(signal.SIGUSR1)
        return ends

    def _revive(self) -> None:
        """A member whose process has ended before it knew of the peace is started again."""
        for name, workers in self._workers.items():
            if not name.startswith("producer") and not workers[-1].is_running:
                self._start(name)

    async def _stop_workers(self, workers: list[Worker], troubles: list[tuple[str, str]]) -> None:
        """SIGTERM, and all stacks of a process that does not end."""
        for worker in workers:
            worker.send(signal.SIGTERM)
        with trio.move_on_after(STOPPED_S_MAX):
            for worker in workers:
                await trio.to_thread.run_sync(worker.process.wait, abandon_on_cancel=True)
            return
        for worker in workers:
            if worker.is_running:
                worker.send(signal.SIGUSR1)
                await trio.sleep(DUMP_S)
                worker.process.send_signal(signal.SIGKILL)
                stacks = worker.journal.with_suffix(".stacks").read_text()
                troubles.append(("hangs", f"{worker.name} did not end:\n{stacks}"))

    def _stop_brokers(self, troubles: list[tuple[str, str]]) -> None:
        """In order; the replicas hold the same bytes then."""
        cluster = self._cluster
        for node in NODES:
            if code := cluster.stop(node):
                text = f"broker {node}: {code}\n{cluster.brokers[node].output[-2000:]}"
                troubles.append(("exit codes", text))
        troubles += [
            ("tracebacks of brokers", output[-4000:])
            for output in (*cluster.outputs, cluster.output)
            if "Traceback" in output
        ]
        digests = [log_digests(cluster.layout.data_dir(node), TOPIC) for node in NODES]
        if not digests[0] == digests[1] == digests[2]:
            troubles.append(("replicas that differ", str(digests)))


async def read_log(addresses: str, ends: dict[TopicPartition, int]) -> dict[int, list[bytes]]:
    """All values of each partition, up to these ends."""
    log: dict[int, list[bytes]] = {name.partition: [] for name in ends}
    async with Consumer(addresses, auto_offset_reset="earliest") as consumer:
        consumer.assign(ends)
        missing = sum(ends.values())
        while missing:
            with trio.fail_after(HEALED_S_MAX):
                records = await consumer.poll()
            for record in records:
                values = log[record.partition]
                assert record.offset == len(values), "the log has a gap"
                values.append(record.value or b"")
            missing -= len(records)
    return log


def report(verdict: Verdict, faults: Counter[str]) -> str:
    """All counts, and what is wrong."""
    lines = [f"{count:>12,}  {name}" for name, count in sorted(verdict.counts.items())]
    lines += [f"{count:>12,}  {name}" for name, count in sorted(faults.items())]
    lines += [
        f"{count:>12,}  repetitions excused: {why}" for why, count in verdict.excused.most_common()
    ]
    counts = verdict.findings.counts
    for name, kinds in HEADLINES.items():
        lines.append(f"{sum(counts[kind] for kind in kinds):>12,}  {name.upper()}")
    others = counts.total() - sum(counts[kind] for kinds in HEADLINES.values() for kind in kinds)
    lines += [f"{others:>12,}  OTHER FINDINGS", *verdict.findings]
    return "\n".join(lines)


HEADLINES = {
    "losses": (
        "losses: records never handled",
        "losses of acknowledged records",
        "records silently dropped by a producer",
    ),
    "doubles": ("doubles",),
    "unexplained repetitions": ("unexplained repetitions", "repetitions of committed records"),
}
