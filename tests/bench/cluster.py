"""Three brokers: how fast records are on two of them, and how long it takes when one is gone.

Replication factor 3, min.insync.replicas 2, acks=all, at the settings of `minibroker cluster up`.
All three brokers and the client share this machine, so what they can do together is what its cores
can do.

A failover is measured from outside: the time from `kill -9` of a leader to the first answer to a
record that was sent after it, which only another leader can have given. What it consists of is
read from the brokers' own log lines.
"""

import json
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import trio

from minibroker.cli.cluster.layout import Layout
from minibroker.client import Admin, Delivery, NewTopic, Producer
from tests.bench.rounds import Row, median_of, millions, milliseconds, run_module, seconds
from tests.support.processes import ClusterProcesses, free_base_port, run_cli, running_cluster
from tests.support.typed_cluster import Cluster
from tests.support.witness import History

TOPIC = "bench"
NODES = 3
PRODUCED_COUNT = 500_000
LATENCY_S = 4
KILLS = 20  # for each number of partitions
FAILOVER_S_WANTED = 1.5
SHUTDOWN_MS_WANTED = 200.0
ROLLS = 5
PROBE_EVERY_S = 0.005
HEALED_S_MAX = 60.0


@contextmanager
def fresh_cluster() -> Iterator[ClusterProcesses]:
    """Three brokers with nothing in them; their data is gone afterwards."""
    with (
        TemporaryDirectory(prefix="minibroker-bench-") as directory,
        running_cluster(Path(directory), NODES) as cluster,
    ):
        try:
            yield cluster
        except Exception as error:
            cluster.kill_all()
            error.add_note(f"the brokers said:\n{cluster.output[-10_000:]}")
            raise


async def create_topics(address: str, *topics: NewTopic) -> None:
    """Make them, or fail."""
    async with Admin(address) as admin:
        await admin.create_topics(*topics)


def replicated_produce() -> Iterator[Row]:
    """acks=all over three brokers."""
    for partition_count, batch_bytes in ((1, 16_384), (4, 16_384), (4, 1_000_000)):
        ours = median_of(partial(_produce, partition_count, batch_bytes))
        yield Row(
            f"acks=all on 3 brokers, send_many, {partition_count} partition"
            f"{'s' * (partition_count > 1)}, batches of {batch_bytes / 1000:.0f} KB",
            millions(ours),
        )


def _produce(partition_count: int, batch_bytes: int) -> float:
    with fresh_cluster() as cluster:
        trio.run(create_topics, cluster.addresses, NewTopic(TOPIC, partition_count))
        options = ["--way", "send_many", "--batch-size", batch_bytes, "--acks", "all"]
        options += ["--count", PRODUCED_COUNT]
        return run_module("clients", "produce", cluster.addresses, TOPIC, *options)["records_per_s"]


def replicated_latency() -> Iterator[Row]:
    """From the moment a record was due to be sent until poll returned it, 1,000 a second."""
    with fresh_cluster() as cluster:
        arguments = f"bench latency --format json --rate 1000 --seconds {LATENCY_S}"
        done = run_cli(*arguments.split(), "--bootstrap-server", cluster.addresses)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    p50, p99 = found["p50_ms"], found["p99_ms"]
    name = "produce to consume through 3 brokers at 1,000 records/s"
    yield Row(f"{name}, p50", milliseconds(p50))
    yield Row(f"{name}, p99", milliseconds(p99))


class Failover(NamedTuple):
    """Seconds from `kill -9` to what each step was seen."""

    lost: float  # the controller knows
    led: float  # another broker has become leader
    acknowledged: float


class _Probe:
    """A producer that sends a record every few milliseconds, and when each was acknowledged."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._sent: dict[bytes, float] = {}
        self._after = float("inf")
        self._first: float | None = None
        self._acknowledged = trio.Event()
        self._is_over = False

    def take(self, delivery: Delivery) -> None:
        """An answer came."""
        if self._is_over:
            return
        assert delivery.error is None, delivery.error
        now = time.time()
        for record in delivery.records():
            sent = self._sent.pop(record.value)
            self.longest_s = max(self.longest_s, now - sent)
            if sent >= self._after and self._first is None:
                self._first = now
                self._acknowledged.set()

    async def send(self, address: str) -> None:
        """Until cancelled."""
        async with Producer(address, on_delivery=self.take, linger_ms=0) as producer:
            try:
                for number in count():
                    value = b"%d" % number
                    self._sent[value] = time.time()
                    await producer.send(TOPIC, value, partition=0)
                    await trio.sleep(PROBE_EVERY_S)
            finally:
                self._is_over = True  # what is under way now is of no interest

    async def first_after(self, moment: float) -> float:
        """When the first record was acknowledged of those sent at `moment` or later."""
        self._after, self._first, self._acknowledged = moment, None, trio.Event()
        await self._acknowledged.wait()
        assert self._first is not None
        return self._first


async def _fail_over(cluster: ClusterProcesses, partition_count: int) -> list[Failover]:
    """Kill the leader of partition 0 again and again."""
    address = cluster.addresses
    await create_topics(address, NewTopic(TOPIC, partition_count))
    history, probe, found = History(TOPIC), _Probe(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.watch, address)
        nursery.start_soon(probe.send, address)
        for _ in range(KILLS):
            with trio.fail_after(HEALED_S_MAX):
                await history.wait_for_isr(NODES)
                await trio.sleep(1.0)
                victim = history.latest[0].leader
                killed = time.time()
                cluster.kill(victim)
                acknowledged = await probe.first_after(killed) - killed
                lost = _first_line(cluster, victim, killed, LOST) - killed
                led = _first_line(cluster, victim, killed, LED) - killed
                found.append(Failover(lost, led, acknowledged))
                await trio.to_thread.run_sync(cluster.start, victim)
        nursery.cancel_scope.cancel()
    return found


LINE_TIME = re.compile(r"^\[(\d+-\d+-\d+ \d+:\d+:\d+,\d+)\]")
LOST = re.compile(r"went: \d|\] Elected")  # a new controller finds it gone
LED = re.compile(rf"\[Partition {TOPIC}-0 .*\] Leader in")


def _first_line(
    cluster: ClusterProcesses, but: int, since: float, pattern: re.Pattern[str]
) -> float:
    """The time of the first such line that another broker than `but` logged since then."""
    times = []
    for node_id, broker in cluster.brokers.items():
        for line in broker.lines if node_id != but else ():
            stamp = LINE_TIME.match(line)
            if stamp and pattern.search(line):
                times.append(datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp())
    return min((each for each in times if each >= since), default=float("nan"))


def failover() -> Iterator[Row]:
    """kill -9 of a leader until a produce is acknowledged by the next, with few and many."""
    for partition_count in (1, 300):
        with fresh_cluster() as cluster:
            found = trio.run(_fail_over, cluster, partition_count)
        median = statistics.median(each.acknowledged for each in found)
        worst = max(each.acknowledged for each in found)
        name = f"kill -9 of a leader, {partition_count} partition{'s' * (partition_count > 1)}"
        yield Row(
            f"{name}: to the first acknowledged record, median of {KILLS}",
            seconds(median),
            wanted=f"< {FAILOVER_S_WANTED} s",
            is_met=median < FAILOVER_S_WANTED,
        )
        yield Row(f"{name}: the slowest", seconds(worst))
        lost = statistics.median(each.lost for each in found)
        led = statistics.median(each.led - each.lost for each in found)
        rest = statistics.median(each.acknowledged - each.led for each in found)
        yield Row(f"{name}: its lease ends and the controller knows", seconds(lost))
        yield Row(f"{name}: election, push, the next leader leads", seconds(led))
        yield Row(f"{name}: first fetches, client's retry, answer", seconds(rest))


def shutdown() -> Iterator[Row]:
    """How long the longest produce waits while each broker in turn is stopped in order."""
    with fresh_cluster() as cluster:
        longest_s = trio.run(_shut_down, cluster)
    yield Row(
        "longest acks=all produce during three controlled shutdowns",
        milliseconds(longest_s * 1000),
        wanted=f"< {milliseconds(SHUTDOWN_MS_WANTED)}",
        is_met=longest_s * 1000 < SHUTDOWN_MS_WANTED,
    )


async def _shut_down(cluster: ClusterProcesses) -> float:
    address = cluster.addresses
    await create_topics(address, NewTopic(TOPIC, 1))
    history, probe = History(TOPIC), _Probe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.watch, address)
        nursery.start_soon(probe.send, address)
        await history.wait_for_isr(NODES)
        await trio.sleep(1.0)
        probe.longest_s = 0.0  # what the start cost is not asked here
        for _ in range(NODES):
            with trio.fail_after(HEALED_S_MAX):
                await history.wait_for_isr(NODES)
                await trio.to_thread.run_sync(cluster.restart, history.latest[0].leader)
                await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    return probe.longest_s


def roll() -> Iterator[Row]:
    """How long the longest produce waits while `minibroker cluster roll` restarts every broker."""
    with TemporaryDirectory(prefix="minibroker-bench-") as directory:
        cluster = Cluster(Path(directory) / "cluster")
        try:
            cluster(f"up -n {NODES} --base-port {free_base_port(NODES)} --detach")
            waits, times = trio.run(_roll, cluster)
        finally:
            cluster.kill_all()
    yield Row(
        f"longest acks=all produce during a rolling restart, median of {ROLLS}",
        milliseconds(statistics.median(waits) * 1000),
        wanted=f"< {milliseconds(SHUTDOWN_MS_WANTED)}",
        is_met=statistics.median(waits) * 1000 < SHUTDOWN_MS_WANTED,
    )
    yield Row(f"the longest in {ROLLS} rolling restarts", milliseconds(max(waits) * 1000))
    yield Row(
        f"rolling restart of {NODES} brokers, the whole command", seconds(statistics.median(times))
    )


async def _roll(cluster: Cluster) -> tuple[list[float], list[float]]:
    """The longest wait in each roll, and how long it took, in seconds."""
    address = Layout.load(cluster.root).bootstrap
    await create_topics(address, NewTopic(TOPIC, 1))
    probe = _Probe()
    waits, times = [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.send, address)
        for _ in range(ROLLS):
            await trio.sleep(1.0)
            probe.longest_s = 0.0
            began = time.perf_counter()
            await trio.to_thread.run_sync(cluster, "roll")
            times.append(time.perf_counter() - began)
            waits.append(probe.longest_s)
        nursery.cancel_scope.cancel()
    return waits, times


MEASURES = (replicated_produce, replicated_latency, failover, shutdown, roll)
