"""Six consumers of one group in processes of their own, three brokers, and `kill -9` among both.

Each consumer works on its records and then commits them (`tests/support/group_worker.py`); its file
says what it had done when it was killed. The files together say whether the group has done
everything, and why it has done something twice: the consumer that did it first was killed before it
had committed, or was not a member any more when it wanted to. At the end the replicas of the
group's records are compared; what the audit says of such a group, `make demo` shows.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
import trio

from minibroker.client import Admin, GroupDescription, NewTopic, Producer, TopicPartition
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.errors import BrokerError
from tests.support.group_worker import Account, Place, is_at_work, read_account
from tests.support.processes import ClusterProcesses, running_cluster
from tests.support.witness import History, log_digests

TOPIC = "work"
GROUP = "workers"
PARTITIONS = 12
NODES = (1, 2, 3)
RECORDS = 100_000
CONSUMERS = 6
VICTIMS = 2
BURST = 500  # records that are sent at once
PRODUCE_S = 5.0  # for all of them: while it lasts, brokers and consumers are killed
SESSION_S = 3.0
OPTIONS = (
    f"group.id={GROUP}",
    "auto.offset.reset=earliest",
    "enable.auto.commit=false",
    f"session.timeout.ms={SESSION_S * 1000:.0f}",
    "heartbeat.interval.ms=500",
)
LOOK_EVERY_S = 0.05
MEMBERS_S_MAX = 30.0
DONE_S_MAX = 60.0
STOP_S_MAX = 20.0


class Worker:
    """One process, and its file."""

    def __init__(self, place: Path, bootstrap: str, number: int, options: tuple[str, ...]) -> None:
        self.file = place / f"worker-{number}.txt"
        self.is_killed = False
        self.has_stood_still = False
        worker = [sys.executable, "-m", "tests.support.group_worker"]
        command = [*worker, str(self.file), bootstrap, TOPIC]
        self.process = subprocess.Popen(
            [*command, f"client.id=worker-{number}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    async def stop_at_work(self) -> None:
        """SIGSTOP while there is work that it has done and not committed, nor asked to."""
        while not self._stands_at_work():
            self.process.send_signal(SIGCONT)
            await trio.sleep(LOOK_EVERY_S)

    def _stands_at_work(self) -> bool:
        self.process.send_signal(SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        return is_at_work(self.file)

    async def kill_at_work(self) -> None:
        """`kill -9` in such a moment."""
        await self.stop_at_work()
        self.process.send_signal(SIGKILL)
        self.is_killed = True

    def go_on(self) -> None:
        """SIGCONT, after its session has ended."""
        self.process.send_signal(SIGCONT)
        self.has_stood_still = True

    def end(self) -> None:
        """However the test went."""
        self.process.kill()
        self.process.communicate()


def stop(workers: list[Worker]) -> None:
    """In order, those that are left: they leave the group."""
    left = [worker.process for worker in workers if not worker.is_killed]
    for process in left:
        process.send_signal(SIGTERM)
    for process in left:
        output, _ = process.communicate(timeout=STOP_S_MAX)
        assert process.returncode == 0, output.decode()


@contextmanager
def running_workers(
    place: Path, bootstrap: str, options: tuple[str, ...]
) -> Iterator[list[Worker]]:
    """They are gone when the block ends, however that happens."""
    workers = [Worker(place, bootstrap, number, options) for number in range(CONSUMERS)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


async def produce(bootstrap: str, reached: dict[int, trio.Event]) -> None:
    """Send numbered records, evenly over the time; set each event once so many were sent."""
    begin = trio.current_time()
    async with Producer(bootstrap) as producer:
        for first in range(0, RECORDS, BURST):
            for number in range(first, first + BURST):
                await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            for count, event in reached.items():
                if first + BURST >= count:
                    event.set()
            await trio.sleep_until(begin + PRODUCE_S * first / RECORDS)


async def described(admin: Admin) -> GroupDescription | None:
    """The group now; None while there is none."""
    try:
        [group] = await admin.describe_groups(GROUP)
    except BrokerError:
        return None
    return group


async def wait_for_members(admin: Admin, count: int) -> GroupDescription:
    """Until the group is stable, and so many members share all partitions evenly."""
    while True:
        group = await described(admin)
        if group is not None and group.state == "Stable" and len(group.members) == count:
            shares = [len(member.assignment) for member in group.members]
            if sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1:
                return group
        await trio.sleep(LOOK_EVERY_S)


async def wait_until_done(admin: Admin, ends: dict[TopicPartition, int]) -> None:
    """Until the group has committed everything."""
    while True:
        committed = await admin.committed_offsets(GROUP)
        if {name: each.offset for name, each in committed.items()} == ends:
            return
        await trio.sleep(LOOK_EVERY_S)


async def work_among_failures(
    cluster: ClusterProcesses, workers: list[Worker], rng: random.Random, pauses: bool
) -> None:
    """Records come; the coordinator goes, and a consumer with it, and another one later. With
    `pauses` it only stands still, and so does a third consumer, until others have what it had."""
    first = round(RECORDS * rng.uniform(0.1, 0.3))
    second = round(RECORDS * rng.uniform(0.4, 0.6))
    ends = {
        TopicPartition(TOPIC, number): len(range(number, RECORDS, PARTITIONS))
        for number in range(PARTITIONS)
    }
    reached = {count: trio.Event() for count in (first, second)}
    history = History(OFFSETS_TOPIC)
    async with Admin(cluster.addresses) as admin, trio.open_nursery() as nursery:
        with trio.fail_after(MEMBERS_S_MAX):
            coordinator = (await wait_for_members(admin, CONSUMERS)).coordinator_id
        nursery.start_soon(history.watch, cluster.addresses)
        nursery.start_soon(produce, cluster.addresses, reached)
        with trio.fail_after(DONE_S_MAX):
            await reached[first].wait()
            await trio.to_thread.run_sync(cluster.pause if pauses else cluster.kill, coordinator)
            await workers[0].kill_at_work()
            await reached[second].wait()
            await workers[1].kill_at_work()
            if pauses:
                await workers[2].stop_at_work()
            await trio.to_thread.run_sync(cluster.resume if pauses else cluster.start, coordinator)
            if pauses:
                await wait_for_members(admin, CONSUMERS - VICTIMS - 1)
                workers[2].go_on()
            group = await wait_for_members(admin, CONSUMERS - VICTIMS)
            await wait_until_done(admin, ends)
            await history.wait_for_isr(len(NODES))
        assert group.coordinator_id != coordinator
        nursery.cancel_scope.cancel()


def judge(workers: list[Worker]) -> str:
    """Whether all was done, and nothing twice without a reason; the count, for people."""
    accounts = {worker.file.name: read_account(worker.file) for worker in workers}
    values: dict[Place, bytes] = {}
    for account in accounts.values():
        for place, value in account.values.items():
            assert values.setdefault(place, value) == value, f"{place} was two records"
    assert len(values) == RECORDS, "a record was not worked on"
    assert set(map(int, values.values())) == set(range(RECORDS))
    times = Counter(place for account in accounts.values() for place in account.worked_on)
    commits = Counter(place for account in accounts.values() for place in account.committed)
    assert [place for place, count in commits.items() if count > 1] == [], "again after a commit"
    crashed = [worker.file.name for worker in workers if worker.is_killed]
    assert len(crashed) == VICTIMS
    for name, account in accounts.items():
        if name in crashed:
            assert account.open, f"{name} was killed at work"
            once = [place for place in account.open if times[place] == 1]
            assert once == [], f"{name} did not commit this, and nobody did it again"
        else:
            assert not account.open, f"{name} stopped in order, and did not commit"
    for worker in workers:
        if worker.has_stood_still:
            refused = accounts[worker.file.name].refused
            assert refused, "it was not a member any more, and committed"
            assert [place for place in refused if times[place] == 1] == []
    return count_of(times, [accounts[name] for name in crashed], list(accounts.values()))


def count_of(times: Counter[Place], crashed: list[Account], accounts: list[Account]) -> str:
    """Every record that was done again was left uncommitted by somebody, and by whom."""
    again = times.total() - len(times)
    by_crash = sum(len(account.open) for account in crashed)
    by_loss = sum(len(account.refused) for account in accounts)
    assert by_crash <= again <= by_crash + by_loss
    return (
        f"{len(times):,} records, {again:,} of them again: {by_crash:,} after a crash before their"
        f" commit, {again - by_crash:,} of {by_loss:,} whose commit came after the session"
    )


async def run(place: Path, seed: int, *options: str, pauses: bool = False) -> None:
    """The whole of it."""
    with running_cluster(place / "cluster", len(NODES)) as cluster:
        async with Admin(cluster.addresses) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
        with running_workers(place, cluster.addresses, OPTIONS + options) as workers:
            await work_among_failures(cluster, workers, random.Random(seed), pauses)
            await trio.to_thread.run_sync(stop, workers)
            print(judge(workers))
        for node in NODES:
            assert cluster.stop(node) == 0, cluster.brokers[node].output
    digests = [log_digests(cluster.layout.data_dir(node), OFFSETS_TOPIC) for node in NODES]
    assert digests[0] == digests[1] == digests[2], "replicas tell different offsets"


async def test_a_group_among_failures_does_everything(tmp_path: Path) -> None:
    """Every record is worked on, and only those twice whose worker was killed before it had
    committed them, or had lost its place: while the coordinator and two of six consumers die."""
    await run(tmp_path, 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
async def test_a_group_with_any_assignor_does_everything(
    tmp_path: Path, strategy: str, pauses: bool, seed: int
) -> None:
    """The same with each assignor, and with a consumer that stands still past its session: what it
    had done and not committed is done again, and its commit is refused."""
    await run(tmp_path, seed, f"partition.assignment.strategy={strategy}", pauses=pauses)
