"""`make demo`: leaders are killed in the middle of real work, and nothing is lost or twice.
`make demo-etcd`: the same, with the metadata in an etcd of three members instead of SQLite.

Three brokers in their own processes, a topic with 4 partitions on all of them, min.insync.replicas
2. Two idempotent producers send every line of the standard library's Python files with acks=all,
each line under its file's name. A group reads them meanwhile, with one consumer at first and then
with two. The leader of partition 0 is killed with -9 twice and started again, and then a leader is
stopped (SIGSTOP) for longer than its session lasts. Producers and consumers know nothing of it. At
the end what the group has read is compared with the files line by line per key, and the log files
of the three brokers are compared with each other.

Exit code 0 if all is as it was, 1 at any difference. The comparison trusts nobody: it takes the
files as the truth, not what the producers believe.
"""

import itertools
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import trio
from rich.console import Console

from minibroker.cli.terminal import counted
from minibroker.client import Admin, Delivery, NewTopic, Producer
from tests.support.etcd import ETCD, NO_ETCD, running_etcd
from tests.support.processes import COMMAND, EXPORT, ClusterProcesses, running_cluster
from tests.support.readers import Readers
from tests.support.witness import (
    STALLED_S_MAX,
    History,
    Lines,
    differences,
    log_digests,
    standard_library,
)

TOPIC = "standard-library"
GROUP = "readers"
PARTITION_COUNT = 4
BROKER_COUNT = 3
SETTINGS = {"replica.lag.time.max.ms": "3000"}
PRODUCER_COUNT = 2
LINES_MIN = 200_000
LINES_MAX = 400_000
# A producer sends so many lines at once and then rests, so that the work lasts through the faults.
BURST = 500
REST_S = 0.04
HEALED_S_MAX = 30.0
DIFFERENCES_SHOWN = 10

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "demo"
CLUSTER = PLACE / "cluster"
ACKED = tuple(PLACE / f"producer-{number}.jsonl" for number in range(1, PRODUCER_COUNT + 1))
SHOWN = tuple(PLACE / f"consumer-{number}.jsonl" for number in (1, 2))
AUDIT = PLACE / "audit"
# By the exit codes of `minibroker audit`.
VERDICTS = ("clean", "it found something", "it could not check everything", "it failed")


class Coordination(NamedTuple):
    """Where the metadata are, and what follows from it."""

    name: str
    store: str  # as `metadata.store` has it; empty: as of `cluster up`
    settings: Mapping[str, str]
    pause_s: float  # more than twice a session


SQLITE = Coordination("SQLite", "", {}, 2.5)
ETCD_MEMBERS = 3
ETCD_SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


@contextmanager
def running_etcd_for(place: Path) -> Iterator[Coordination]:
    """An etcd of its own, until the block ends."""
    with running_etcd(place, count=ETCD_MEMBERS) as members:
        store = "etcd:" + ",".join(member.url for member in members)
        yield Coordination(f"etcd, {ETCD_MEMBERS} members", store, ETCD_SETTINGS, 5.0)


@dataclass
class Story:
    """What happened, for the table and for the verdict."""

    coordination: Coordination
    history: History = field(default_factory=lambda: History(TOPIC))
    readers: Readers = field(default_factory=lambda: Readers(TOPIC, GROUP))
    began: float = field(default_factory=time.monotonic)
    line_count: int = 0
    byte_count: int = 0
    delivered: int = 0
    log_count: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)
    progress: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def note(self, event: str) -> None:
        """Something was done to the cluster just now."""
        self.events.append((time.monotonic() - self.began, event))

    def lap(self, what: str) -> None:
        """What the time since the last lap went into."""
        spent = time.monotonic() - self.began - sum(self.costs.values())
        self.costs[what] = self.costs.get(what, 0.0) + spent

    def on_delivery(self, delivery: Delivery) -> None:
        """Count what is acknowledged."""
        if delivery.error is not None:
            self.differences.append(f"a batch was not delivered: {delivery.error}")
            return
        self.delivered += delivery.record_count
        self.progress.unpark_all()


async def produce(address: str, lines: Lines, story: Story, ledger: Path) -> None:
    """Send every line, keyed by its file, in order; return when all are acknowledged."""
    told = {"on_delivery": story.on_delivery, "ledger": ledger}
    async with Producer(address, acks="all", **told) as producer:
        pairs = ((key, value) for key, values in lines.items() for value in values)
        for number, (key, value) in enumerate(pairs, start=1):
            await producer.send(TOPIC, value, key)
            if number % BURST == 0:
                await trio.sleep(REST_S)
        await producer.flush()


async def read(address: str, story: Story) -> None:
    """Be a group of one, and of two once there is something to share."""
    async with trio.open_nursery() as members:
        for number, ledger in enumerate(SHOWN, start=1):
            await story.readers.wait_for((number - 1) * story.line_count // 4)
            members.start_soon(story.readers.read, address, ledger)
            story.note(f"consumer {number} joins the group")


async def torment(cluster: ClusterProcesses, story: Story) -> None:
    """Kill a leader twice and pause one once, spread over the work."""
    history = story.history
    for number, fault in enumerate(("kill", "kill", "pause"), start=1):
        while story.delivered < story.line_count * number / 5:
            await story.progress.park()
        await history.wait_for_isr(BROKER_COUNT)
        leader = history.latest[0].leader
        if fault == "kill":
            story.note(f"broker {leader}, leader of partition 0, is killed with -9")
            await trio.to_thread.run_sync(cluster.kill, leader)
        else:
            pause_s = story.coordination.pause_s
            story.note(f"broker {leader}, leader of partition 0, is stopped for {pause_s} s")
            cluster.pause(leader)
            await trio.sleep(pause_s)
        successor = await history.wait_for_another_leader(0, leader)
        story.note(f"broker {successor.leader} leads partition 0")
        if fault == "kill":
            await trio.to_thread.run_sync(cluster.start, leader)
            story.note(f"broker {leader} is started again")
        else:
            cluster.resume(leader)
            story.note(f"broker {leader} goes on")


async def run(story: Story, lines: Lines) -> None:
    """The story from the first start to the comparisons."""
    story.line_count = sum(len(values) for values in lines.values())
    story.byte_count = sum(len(value) for values in lines.values() for value in values)
    settings = {**SETTINGS, **story.coordination.settings}
    with running_cluster(CLUSTER, BROKER_COUNT, settings, story.coordination.store) as cluster:
        story.note("three brokers answer")
        story.lap("to start three brokers")
        address = cluster.addresses
        async with Admin(address) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITION_COUNT))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.history.watch, address)
            async with trio.open_nursery() as group:
                group.start_soon(read, address, story)
                await work(cluster, story, lines)
                with trio.move_on_after(STALLED_S_MAX):
                    await story.readers.wait_for(story.line_count)
                    story.note("the group has read every line")
                story.readers.stop()
            nursery.cancel_scope.cancel()
        story.lap("of work under faults")
        story.differences += differences(lines, story.readers.lines())
        if again := story.readers.read_again:
            story.differences.append(f"{again} records came to the group more than once")
        cluster.export()
        for node_id in cluster.layout.node_ids:
            if (code := cluster.stop(node_id)) != 0:
                story.differences.append(f"exit code {code} of broker {node_id}")
    compare_logs(cluster, story)


async def work(cluster: ClusterProcesses, story: Story, lines: Lines) -> None:
    """Produce under faults, until all is acknowledged and all replicas are in sync."""
    await story.history.wait_for_isr(BROKER_COUNT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(torment, cluster, story)
        async with trio.open_nursery() as producers:
            for number, ledger in enumerate(ACKED):
                share = dict(itertools.islice(lines.items(), number, None, PRODUCER_COUNT))
                producers.start_soon(produce, cluster.addresses, share, story, ledger)
        story.note("every line is acknowledged")
        nursery.cancel_scope.deadline = trio.current_time() + HEALED_S_MAX
    if nursery.cancel_scope.cancelled_caught:
        story.differences.append("the faults took longer than the work and its patience")
        return
    with trio.move_on_after(HEALED_S_MAX):
        await story.history.wait_for_isr(BROKER_COUNT)
        story.note("all replicas are in sync")
        return
    story.differences.append("not all replicas came back into the in-sync sets")


def compare_logs(cluster: ClusterProcesses, story: Story) -> None:
    """Every replica of a partition must hold the same bytes."""
    digests = [log_digests(cluster.layout.data_dir(node), TOPIC) for node in (1, 2, 3)]
    story.log_count = sum(map(len, digests))
    for name in sorted(set().union(*digests)):
        if len({digest.get(name) for digest in digests}) != 1:
            story.differences.append(f"the log files of {name} differ between the brokers")
    if story.log_count != BROKER_COUNT * PARTITION_COUNT:
        story.differences.append(f"{story.log_count} logs were found")


def audited(cluster: Path, out: Path) -> int:
    """The exit code of `minibroker audit run`, which the user sees at work."""
    ledgers = [str(ledger.relative_to(ROOT)) for ledger in (*ACKED, *SHOWN)]
    given = [part for ledger in ledgers for part in ("--ledger", ledger)]
    export = str((cluster / EXPORT).relative_to(ROOT))
    place = (str(cluster.relative_to(ROOT)), "--cluster", export)
    command = ("audit", "run", *place, *given, "--out", str(out.relative_to(ROOT)))
    print(f"\n$ minibroker {shlex.join(command)}", flush=True)
    return subprocess.run([*COMMAND, *command], cwd=ROOT, check=False).returncode


def show(story: Story) -> None:
    """Print the history, and each difference."""
    console = Console(highlight=False)
    changes = [
        (
            change.time,
            f"partition {change.partition}: leader {change.leader} in epoch"
            f" {change.leader_epoch}, in sync {','.join(map(str, change.isr))}",
        )
        for change in story.history.changes
    ]
    for at, text in sorted([*changes, *((at, f"[bold]{text}[/]") for at, text in story.events)]):
        console.print(f"{at:6.2f} s  {text}")
    for difference in story.differences[:DIFFERENCES_SHOWN]:
        console.print(f"[red]DIFFERENT[/red] {difference}")


def what_was_seen(story: Story, audit_code: int) -> list[str]:
    """The demo in five lines, the costs last."""
    found = f"{counted(len(story.differences), 'difference')}, shown above"
    if not story.differences:
        found = "nothing lost, nothing twice, order kept"
    costs = ", ".join(f"{seconds:.0f} s {what}" for what, seconds in story.costs.items())
    return [
        f"{story.delivered:,} of {story.line_count:,} lines ({story.byte_count / 1e6:,.1f} MB) were"
        f" acknowledged. Meanwhile leaders were killed twice with -9, and one was stopped for"
        f" {story.coordination.pause_s} s.",
        f"A group of two consumers read {story.readers.record_count:,} records at the same time,"
        f" {story.readers.read_again:,} of them twice: {found}.",
        f"{story.log_count} logs of {BROKER_COUNT} brokers were compared byte by byte; metadata in"
        f" {story.coordination.name}.",
        f"The audit, a Spark job that reads the brokers' files: {VERDICTS[audit_code]}. Its report:"
        f" {(AUDIT / 'report.html').relative_to(ROOT)}",
        f"It took {sum(story.costs.values()):.0f} s: {costs}.",
    ]


def main(on_etcd: bool = False) -> int:
    """The exit code."""
    if on_etcd and ETCD is None:
        print(NO_ETCD, file=sys.stderr)
        return 1
    lines = standard_library(LINES_MAX)
    shutil.rmtree(PLACE, ignore_errors=True)
    CLUSTER.mkdir(parents=True)
    with running_etcd_for(PLACE) if on_etcd else nullcontext(SQLITE) as coordination:
        story = Story(coordination)
        trio.run(run, story, lines)
    if story.line_count < LINES_MIN:
        story.differences.append(f"{story.line_count} lines are there, {LINES_MIN} are wanted")
    show(story)
    story.lap("to stop the brokers and compare")
    code = audited(CLUSTER, AUDIT)
    story.lap("for the audit")
    print()
    for number, line in enumerate(what_was_seen(story, code), start=1):
        print(f"{number}. {line}")
    return 1 if story.differences or code else 0


if __name__ == "__main__":
    sys.exit(main(on_etcd="--etcd" in sys.argv))
