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
class Report:
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


async def produce(address: str, lines: Lines, report: Report, ledger: Path) -> None:
    """Send every line, keyed by its file, in order; return when all are acknowledged."""
    told = {"on_delivery": report.on_delivery, "ledger": ledger}
    async with Producer(address, acks="all", **told) as producer:
        pairs = ((key, value) for key, values in lines.items() for value in values)
        for number, (key, value) in enumerate(pairs, start=1):
            await producer.send(TOPIC, value, key)
            if number % BURST == 0:
                await trio.sleep(REST_S)
        await producer.flush()


async def read(address: str, report: Report) -> None:
    """Be a group of one, and of two once there is something to share."""
    async with trio.open_nursery() as members:
        for number, ledger in enumerate(SHOWN, start=1):
            await report.readers.wait_for((number - 1) * report.line_count // 4)
            members.start_soon(report.readers.read, address, ledger)
            report.note(f"consumer {number} joins the group")


async def torment(cluster: ClusterProcesses, report: Report) -> None:
    """Kill a leader twice and pause one once, spread over the work."""
    history = report.history
    for number, fault in enumerate(("kill", "kill", "pause"), start=1):
        while report.delivered < report.line_count * number / 5:
            await report.progress.park()
        await history.wait_for_isr(BROKER_COUNT)
        leader = history.latest[0].leader
        if fault == "kill":
            report.note(f"broker {leader}, leader of partition 0, is killed with -9")
            await trio.to_thread.run_sync(cluster.kill, leader)
        else:
            pause_s = report.coordination.pause_s
            report.note(f"broker {leader}, leader of partition 0, is stopped for {pause_s} s")
            cluster.pause(leader)
            await trio.sleep(pause_s)
        successor = await history.wait_for_another_leader(0, leader)
        report.note(f"broker {successor.leader} leads partition 0")
        if fault == "kill":
            await trio.to_thread.run_sync(cluster.start, leader)
            report.note(f"broker {leader} is started again")
        else:
            cluster.resume(leader)
            report.note(f"broker {leader} goes on")


async def run(report: Report, lines: Lines) -> None:
    """Run the demo, from the first start to the comparisons."""
    report.line_count = sum(len(values) for values in lines.values())
    report.byte_count = sum(len(value) for values in lines.values() for value in values)
    settings = {**SETTINGS, **report.coordination.settings}
    with running_cluster(CLUSTER, BROKER_COUNT, settings, report.coordination.store) as cluster:
        report.note("three brokers answer")
        report.lap("to start three brokers")
        address = cluster.addresses
        async with Admin(address) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITION_COUNT))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report.history.watch, address)
            async with trio.open_nursery() as group:
                group.start_soon(read, address, report)
                await work(cluster, report, lines)
                with trio.move_on_after(STALLED_S_MAX):
                    await report.readers.wait_for(report.line_count)
                    report.note("the group has read every line")
                report.readers.stop()
            nursery.cancel_scope.cancel()
        report.lap("of work under faults")
        report.differences += differences(lines, report.readers.lines())
        if again := report.readers.read_again:
            report.differences.append(f"{again} records came to the group more than once")
        cluster.export()
        for node_id in cluster.layout.node_ids:
            if (code := cluster.stop(node_id)) != 0:
                report.differences.append(f"exit code {code} of broker {node_id}")
    compare_logs(cluster, report)


async def work(cluster: ClusterProcesses, report: Report, lines: Lines) -> None:
    """Produce under faults, until all is acknowledged and all replicas are in sync."""
    await report.history.wait_for_isr(BROKER_COUNT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(torment, cluster, report)
        async with trio.open_nursery() as producers:
            for number, ledger in enumerate(ACKED):
                share = dict(itertools.islice(lines.items(), number, None, PRODUCER_COUNT))
                producers.start_soon(produce, cluster.addresses, share, report, ledger)
        report.note("every line is acknowledged")
        nursery.cancel_scope.deadline = trio.current_time() + HEALED_S_MAX
    if nursery.cancel_scope.cancelled_caught:
        report.differences.append(
            f"{HEALED_S_MAX:g} s after the last acknowledgement the faults had not ended"
        )
        return
    with trio.move_on_after(HEALED_S_MAX):
        await report.history.wait_for_isr(BROKER_COUNT)
        report.note("all replicas are in sync")
        return
    report.differences.append("not all replicas came back into the in-sync sets")


def compare_logs(cluster: ClusterProcesses, report: Report) -> None:
    """Every replica of a partition must hold the same bytes."""
    digests = [log_digests(cluster.layout.data_dir(node), TOPIC) for node in (1, 2, 3)]
    report.log_count = sum(map(len, digests))
    for name in sorted(set().union(*digests)):
        if len({digest.get(name) for digest in digests}) != 1:
            report.differences.append(f"the log files of {name} differ between the brokers")
    if report.log_count != BROKER_COUNT * PARTITION_COUNT:
        report.differences.append(f"{report.log_count} logs were found")


def audited(cluster: Path, out: Path) -> int:
    """The exit code of `minibroker audit run`, which the user sees at work."""
    ledgers = [str(ledger.relative_to(ROOT)) for ledger in (*ACKED, *SHOWN)]
    given = [part for ledger in ledgers for part in ("--ledger", ledger)]
    export = str((cluster / EXPORT).relative_to(ROOT))
    place = (str(cluster.relative_to(ROOT)), "--cluster", export)
    command = ("audit", "run", *place, *given, "--out", str(out.relative_to(ROOT)))
    print(f"\n$ minibroker {shlex.join(command)}", flush=True)
    return subprocess.run([*COMMAND, *command], cwd=ROOT, check=False).returncode


def show(report: Report) -> None:
    """Print the history, and each difference."""
    console = Console(highlight=False)
    changes = [
        (
            change.time,
            f"partition {change.partition}: leader {change.leader} in epoch"
            f" {change.leader_epoch}, in sync {','.join(map(str, change.isr))}",
        )
        for change in report.history.changes
    ]
    for at, text in sorted([*changes, *((at, f"[bold]{text}[/]") for at, text in report.events)]):
        console.print(f"{at:6.2f} s  {text}")
    for difference in report.differences[:DIFFERENCES_SHOWN]:
        console.print(f"[red]DIFFERENT[/red] {difference}")


def what_was_seen(report: Report, audit_code: int) -> list[str]:
    """The demo in five lines, the costs last."""
    found = f"{counted(len(report.differences), 'difference')}, shown above"
    if not report.differences:
        found = "nothing lost, nothing twice, order kept"
    costs = ", ".join(f"{seconds:.0f} s {what}" for what, seconds in report.costs.items())
    return [
        f"{report.delivered:,} of {report.line_count:,} lines ({report.byte_count / 1e6:,.1f} MB)"
        f" were acknowledged. Meanwhile leaders were killed twice with -9, and one was stopped for"
        f" {report.coordination.pause_s} s.",
        f"A group of two consumers read {report.readers.record_count:,} records at the same time,"
        f" {report.readers.read_again:,} of them twice: {found}.",
        f"{report.log_count} logs of {BROKER_COUNT} brokers were compared byte by byte; metadata in"
        f" {report.coordination.name}.",
        f"The audit, a Spark job that reads the brokers' files: {VERDICTS[audit_code]}. Its report:"
        f" {(AUDIT / 'report.html').relative_to(ROOT)}",
        f"It took {sum(report.costs.values()):.0f} s: {costs}.",
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
        report = Report(coordination)
        trio.run(run, report, lines)
    if report.line_count < LINES_MIN:
        report.differences.append(f"{report.line_count} lines are there, {LINES_MIN} are wanted")
    show(report)
    report.lap("to stop the brokers and compare")
    code = audited(CLUSTER, AUDIT)
    report.lap("for the audit")
    print()
    for number, line in enumerate(what_was_seen(report, code), start=1):
        print(f"{number}. {line}")
    return 1 if report.differences or code else 0


if __name__ == "__main__":
    sys.exit(main(on_etcd="--etcd" in sys.argv))
