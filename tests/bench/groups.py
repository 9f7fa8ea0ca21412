"""Consumer groups: how fast they commit, how soon a dead member is replaced, how soon many join.

One broker, and three with replication factor 3 as `minibroker cluster up` has them.

A dead member is known by its silence, so most of what its successor waits for is the session that
it asked for: the coordinator counts it from the last heartbeat, sent up to `heartbeat.interval.ms`
(3 s) before the crash, and the others learn of the rebalance by their next heartbeat, up to as
much after its end. All members of this measurement die in one run, a second apart, so that they
are at different points of that beat.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from minibroker.client import Consumer, NewTopic, Producer, TopicPartition
from tests.bench.cluster import NODES, TOPIC, create_topics, fresh_cluster
from tests.bench.rounds import Row, fresh_broker, run_module, seconds

COMMITTED = (1, 50)  # partitions of one commit
COMMITS_ROUNDS = 3
COMMITS_WANTED = 200
SESSIONS_S = (6.0, 45.0)
HEARTBEAT_S = 3.0
CRASHES = 3  # for each session
CRASH_EVERY_S = 1.0
SUCCEEDED_S_MAX = 120.0
SEND_EVERY_S = 0.02
MEMBERS = 100
JOIN_ROUNDS = 3
JOIN_S_WANTED = 5.0


@contextmanager
def _brokers(count: int) -> Iterator[str]:
    """Their addresses."""
    with ExitStack() as stack:
        if count == 1:
            yield stack.enter_context(fresh_broker()).address
        else:
            yield stack.enter_context(fresh_cluster()).addresses


def group_commits() -> Iterator[Row]:
    """One member that commits again and again, against records sent in the same manner."""
    for broker_count in (1, NODES):
        with _brokers(broker_count) as address:
            for partition_count in COMMITTED:
                topic = f"{TOPIC}-{partition_count}"
                trio.run(create_topics, address, NewTopic(topic, partition_count))
                measure = partial(run_module, "group_clients", "commit", address, topic)
                found = [measure() for _ in range(COMMITS_ROUNDS)]
                ours = statistics.median(each["commits_per_s"] for each in found)
                theirs = statistics.median(each["sends_per_s"] for each in found)
                ratio = statistics.median(
                    each["commits_per_s"] / each["sends_per_s"] for each in found
                )
                yield Row(
                    f"commits of a group, one after another, {partition_count} partition"
                    f"{'s' * (partition_count > 1)}, {broker_count} broker"
                    f"{'s' * (broker_count > 1)}",
                    f"{ours:,.0f} /s",
                    "acks=all records, one after another",
                    f"{theirs:,.0f} /s",
                    f"{ratio:.2f}",
                    f">= {COMMITS_WANTED} /s",
                    ours >= COMMITS_WANTED,
                )


class _Heir:
    """A member of a group of two, the other one of which is killed, and when it read on."""

    def __init__(self, number: int, session_s: float, address: str, place: Path) -> None:
        self.session_s = session_s
        self._options = {
            "bootstrap.servers": address,
            "group.id": f"bench-{number}-{session_s:.0f}",
            "session.timeout.ms": f"{session_s * 1000:.0f}",
        }
        file = place / self._options["group.id"]
        command = [sys.executable, "-m", "tests.support.group_worker", str(file), address, TOPIC]
        options = [f"{name}={value}" for name, value in self._options.items()]
        self._other = subprocess.Popen([*command, *options[1:]])
        self._file = file
        self._is_sharing = trio.Event()
        self._read = trio.Event()
        self._awaited: set[TopicPartition] = set()

    async def read(self) -> None:
        """Be a member until cancelled."""
        async with Consumer(self._options) as consumer:
            await consumer.subscribe(TOPIC)
            while True:
                records = await consumer.poll()
                if len(held := consumer.assignment) == 1 and self._other_reads():
                    self._awaited = {TopicPartition(TOPIC, number) for number in (0, 1)} - {*held}
                    self._is_sharing.set()
                if any((each.topic, each.partition) in self._awaited for each in records):
                    self._read.set()

    def _other_reads(self) -> bool:
        return self._file.exists() and b"\ncommitted\n" in self._file.read_bytes()

    async def crash(self, at: float, found: dict[float, list[float]]) -> None:
        """Kill the other one; the seconds until its partition is read on go to `found`."""
        await self._is_sharing.wait()
        await trio.sleep(HEARTBEAT_S + at)
        assert not self._read.is_set()
        began = time.perf_counter()
        self.end()
        await self._read.wait()
        found.setdefault(self.session_s, []).append(time.perf_counter() - began)

    def end(self) -> None:
        """`kill -9` of the other one."""
        self._other.kill()
        self._other.wait()


async def _send(address: str) -> None:
    async with Producer(address, linger_ms=0) as producer:
        while True:
            for partition in (0, 1):
                await producer.send(TOPIC, b"", partition=partition)
            await trio.sleep(SEND_EVERY_S)


async def _crash(address: str, heirs: list[_Heir]) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    with trio.fail_after(SUCCEEDED_S_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, address)
            for heir in heirs:
                nursery.start_soon(heir.read)
            async with trio.open_nursery() as crashes:
                for number, heir in enumerate(heirs):
                    crashes.start_soon(heir.crash, number * CRASH_EVERY_S, found)
            nursery.cancel_scope.cancel()
    return found


def group_crash() -> Iterator[Row]:
    """kill -9 of a member until its successor reads on, at 6 s and at the default session."""
    with (
        fresh_cluster() as cluster,
        TemporaryDirectory(prefix="minibroker-bench-") as directory,
        ExitStack() as stack,
    ):
        trio.run(create_topics, cluster.addresses, NewTopic(TOPIC, 2))
        heirs = []
        for session_s in SESSIONS_S:
            for number in range(CRASHES):
                heir = _Heir(number, session_s, cluster.addresses, Path(directory))
                stack.callback(heir.end)
                heirs.append(heir)
        found = trio.run(_crash, cluster.addresses, heirs)
    for session_s in SESSIONS_S:
        worst = max(found[session_s])
        is_default = " (default)" if session_s == max(SESSIONS_S) else ""
        yield Row(
            f"kill -9 of a member to its successor's first record, session.timeout.ms="
            f"{session_s * 1000:.0f}{is_default}, median and slowest of {CRASHES}",
            f"{seconds(statistics.median(found[session_s]))}, {seconds(worst)}",
            wanted=f"< {session_s + HEARTBEAT_S + 1:.0f} s",
            is_met=worst < session_s + HEARTBEAT_S + 1,
        )


def group_join() -> Iterator[Row]:
    """Many members that come at once."""
    with fresh_cluster() as cluster:
        trio.run(create_topics, cluster.addresses, NewTopic(TOPIC, MEMBERS))
        arguments = ("group_clients", "join", cluster.addresses, TOPIC, "--count", MEMBERS)
        found = [
            run_module(*arguments, "--group", f"bench-{number}") for number in range(JOIN_ROUNDS)
        ]
    took = statistics.median(each["seconds"] for each in found)
    cpu_s = statistics.median(each["cpu_s"] for each in found)
    yield Row(
        f"{MEMBERS} members of one process join at once, until each has its partition",
        seconds(took),
        "of it the CPU of that process",
        seconds(cpu_s),
        f"{took / cpu_s:.2f}",
        f"< {JOIN_S_WANTED:.0f} s",
        took < JOIN_S_WANTED,
    )


MEASURES = (group_commits, group_crash, group_join)
