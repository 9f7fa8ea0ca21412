"""Bulk copies between brokers: how fast they are, and what produces take longer meanwhile.

Three brokers at the settings of `minibroker cluster up`, on one machine with the client. A program
sends one record after the other with acks=all to a topic on all three; the figures are the times
until they are acknowledged. Beside it the log of another topic is copied to a broker: in a
reassignment without and with a throttle, and by a follower that was killed and comes back. The
yardstick of a copy is `shutil.copyfile` of the same files.
"""

import shutil
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from minibroker.client import Admin, NewTopic, Producer
from tests.bench.cluster import fresh_cluster
from tests.bench.rounds import Row, megabytes, milliseconds, run_module
from tests.support.processes import ClusterProcesses, run_cli

PROBED: Final = "probed"
COPIED: Final = "copied"
MOVED_BYTES: Final = 2_000_000_000
MISSED_BYTES: Final = 1_000_000_000
THROTTLE: Final = 50_000_000  # bytes a second
QUIET_S: Final = 10.0
PROBE_EVERY_S: Final = 0.005
COPIED_S_MAX: Final = 600.0
LONG_RETENTION: Final = {"retention.ms": "-1"}  # the records of `raw fill` are of 1970


class Waits(NamedTuple):
    """How long records took to be acknowledged (ms)."""

    p50: float
    p99: float
    longest: float

    def row(self, name: str) -> Row:
        """The row of a table."""
        p50, p99, longest = map(milliseconds, self)
        return Row(f"acks=all {name}: p50, p99, longest", f"{p50}, {p99}, {longest}")


class Probe:
    """Sends a record every few milliseconds, each after the acknowledgement of the one before."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waits_ms: list[float] = []

    async def run(self) -> None:
        """Send until cancelled. A record that is refused raises."""
        async with Producer(self._address, linger_ms=0) as producer:
            while True:
                began = time.perf_counter()
                await producer.send_and_wait(PROBED, b"v" * 100, partition=0)
                self._waits_ms.append((time.perf_counter() - began) * 1000)
                await trio.sleep(PROBE_EVERY_S)

    def take(self) -> Waits:
        """Return what was measured since the last call."""
        waits, self._waits_ms = sorted(self._waits_ms), []
        return Waits(statistics.median(waits), waits[len(waits) * 99 // 100], waits[-1])


@asynccontextmanager
async def probed(address: str) -> AsyncIterator[Probe]:
    """A probe that runs, and has been quiet for some seconds."""
    probe = Probe(address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        await trio.sleep(QUIET_S / 5)
        probe.take()
        await trio.sleep(QUIET_S)
        yield probe
        nursery.cancel_scope.cancel()


async def create(address: str, replicas: tuple[int, ...]) -> None:
    """Create the topic that is probed, on all brokers, and the one that is copied, on these."""
    every = {0: (1, 2, 3)}
    async with Admin(address) as admin:
        await admin.create_topics(
            NewTopic(PROBED, replica_assignments=every),
            NewTopic(COPIED, replica_assignments={0: replicas}, configs=LONG_RETENTION),
        )


def fill(cluster: ClusterProcesses, total: int) -> None:
    """Append so many bytes to the topic that is copied, which broker 1 leads."""
    run_module("raw", "fill", cluster.address_of(1), COPIED, "--total", total)


def size_of(log: Path) -> int:
    """Return the bytes of a log's segments."""
    return sum([path.stat().st_size for path in log.glob("*.log")])


def plain_copy(log: Path) -> float:
    """Copy a log's segments to another folder; return the bytes a second."""
    target = log.parent.parent / "plain-copy"
    target.mkdir()
    began = time.perf_counter()
    for path in log.glob("*.log"):
        shutil.copyfile(path, target / path.name)
    took = time.perf_counter() - began
    size = size_of(target)
    shutil.rmtree(target)
    return size / took


def log_of(cluster: ClusterProcesses, node_id: int) -> Path:
    """Return where a broker has the log that is copied."""
    [directory] = cluster.layout.root.glob(f"**/*{node_id}*/{COPIED}-0")
    return directory


async def wait_for_isr(address: str, replicas: set[int]) -> None:
    """Return once the copied partition has these replicas, all in sync."""
    async with Admin(address) as admin:
        while True:
            [topic] = await admin.describe_topics(COPIED)
            [partition] = topic.partitions
            if {*partition.isr} == {*partition.replicas} == replicas:
                return
            await trio.sleep(0.05)


def reassign(address: str, brokers: str, *options: str) -> None:
    """Move the copied partition with the command, and wait for its end."""
    command = f"partition reassign --topic {COPIED} --brokers {brokers}".split()
    command += ["--bootstrap-server", address, *options]
    done = run_cli(*command, timeout_s=COPIED_S_MAX)
    assert done.returncode == 0, done.stdout + done.stderr


def moved() -> Iterator[Row]:
    """A partition goes to another broker, and comes back with a throttle."""
    with fresh_cluster() as cluster:
        yield from trio.run(_move, cluster)


async def _move(cluster: ClusterProcesses) -> list[Row]:
    address, rows = cluster.addresses, []
    await create(address, (1, 2))
    await trio.to_thread.run_sync(fill, cluster, MOVED_BYTES)
    await wait_for_isr(address, {1, 2})
    async with probed(address) as probe:
        rows.append(probe.take().row("beside nothing"))
        for brokers, options in (("1,3", ()), ("1,2", ("--throttle", str(THROTTLE)))):
            name = (
                f"with a throttle of {megabytes(THROTTLE)}/s" if options else "without a throttle"
            )
            began = time.perf_counter()
            await trio.to_thread.run_sync(reassign, address, brokers, *options)
            took = time.perf_counter() - began
            rows.append(Row(f"2 GB moved {name}", f"{megabytes(MOVED_BYTES / took)}/s"))
            rows.append(probe.take().row(f"while 2 GB are moved {name}"))
    return rows


def caught_up() -> Iterator[Row]:
    """A follower comes back that has missed 1 GB."""
    with fresh_cluster() as cluster:
        yield from trio.run(_catch_up, cluster)


async def _catch_up(cluster: ClusterProcesses) -> list[Row]:
    address = cluster.addresses
    await create(address, (1, 2, 3))
    await wait_for_isr(address, {1, 2, 3})
    await trio.to_thread.run_sync(cluster.kill, 3)
    await trio.to_thread.run_sync(fill, cluster, MISSED_BYTES)
    async with probed(address) as probe:
        before = probe.take()
        await trio.to_thread.run_sync(cluster.start, 3)
        started, began = probe.take(), time.perf_counter()
        await wait_for_isr(address, {1, 2, 3})
        took = time.perf_counter() - began
        meanwhile = probe.take()
    plain = await trio.to_thread.run_sync(plain_copy, log_of(cluster, 1))
    return [
        Row("a follower catches up on 1 GB, once it runs", f"{megabytes(MISSED_BYTES / took)}/s"),
        Row("a plain copy of the same files", f"{megabytes(plain)}/s"),
        before.row("beside nothing, one of three brokers away"),
        started.row("while the broker starts"),
        meanwhile.row("while it catches up"),
    ]


MEASURES: Final = (moved, caught_up)
