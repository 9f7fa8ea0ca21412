"""A store between processes, killed and stopped ones too: SQLite and etcd."""

import itertools
import os
import signal
import subprocess
import sys
from random import Random

import pytest
import trio

from minibroker.broker.clock import boot_id, boottime_s
from minibroker.broker.config import Config
from minibroker.broker.disk import in_worker
from minibroker.broker.metadata import sqlite_file
from minibroker.broker.metadata.sqlite_store import BootClock, SqliteStore
from minibroker.broker.metadata.store import ABSENT, Compare, Put, StoreUnavailable
from minibroker.cli.broker.stores import open_store
from tests.support.etcd import EVERY_ETCD, running_etcd

TTL_S = 1.0
PATIENCE_S = 30.0
EVERY_STORE = pytest.mark.parametrize("name", ["sqlite", *EVERY_ETCD], indirect=True)
NODE_IDS = itertools.count(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


@pytest.fixture
def name(request, path):
    """A store as `metadata.store` names it; SQLite's, if the test does not say."""
    program = getattr(request, "param", "sqlite")
    if program == "sqlite":
        yield f"sqlite:{path}"
        return
    with running_etcd(path.parent, program=program) as [etcd]:
        yield f"etcd:{etcd.url}"


@pytest.fixture
async def store(name):
    opened = await open_store(Config(metadata_store=name, node_id=0), Random())
    with trio.fail_after(PATIENCE_S):
        yield opened
        await opened.close()


class Child:
    """See `store_process`; killed at the end if it still runs."""

    def __init__(self, name):
        arguments = (name, str(next(NODE_IDS)))
        command = [sys.executable, "-m", "tests.contract.store_process", *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.pid = self._process.pid

    async def call(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return await self.answer()

    async def stop(self):
        """Between two of its writes: SQLite's others wait for one that is stopped in a write, see
        `test_who_is_stopped_in_a_write_is_named`."""
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        await in_worker(os.waitid, os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    async def go_on(self):
        self.send(signal.SIGCONT)
        assert await self.answer() == "continued"

    async def answer(self):
        return (await in_worker(self._process.stdout.readline)).rstrip("\n")

    def send(self, number):
        self._process.send_signal(number)

    def end(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
async def child(name, store):
    started = Child(name)
    assert await started.answer() == "ready"
    yield started
    started.end()


async def until_gone(store, key, revision):
    """Watch until there is no such key."""
    while key in (snapshot := await store.watch(key, revision)).entries:
        revision = snapshot.revision
    return snapshot


async def test_a_lease_is_seen_by_others_and_ends_with_its_process(store, child):
    """It lives on while the process renews it, and not much longer than a killed process."""
    revision = int(await child.call(f"hold {TTL_S} key"))
    assert (await store.watch("key", 0)).entries["key"].value == b"held"
    with trio.move_on_after(1.5 * TTL_S) as scope:
        await store.watch("key", revision)
    assert scope.cancelled_caught
    child.send(signal.SIGKILL)
    assert (await until_gone(store, "key", revision)).revision == revision + 1


@EVERY_STORE
async def test_a_stopped_holder_can_do_nothing_when_it_goes_on(store, child):
    """Others took over meanwhile: its lease is lost, and its comparison fails."""
    revision = int(await child.call(f"hold {TTL_S} key"))
    await child.stop()
    await until_gone(store, "key", revision)
    assert (await store.transact([Compare("key", ABSENT)], [Put("key", b"taken")])).succeeded
    await child.go_on()
    assert await child.call("put key unleased") == "False"
    assert await child.call("put key leased") == "LeaseLost"
    assert await child.call("renew") == "LeaseLost"
    assert (await store.get("key")).entries["key"].value == b"taken"


async def test_a_stopped_holder_finds_its_lease_lost_though_nobody_looked(path, child, store):
    """It needs no other process to take the lease away."""
    await child.call(f"hold {TTL_S} key")
    await child.stop()
    await trio.sleep(1.2 * TTL_S)
    await child.go_on()
    assert await child.call("put key leased") == "LeaseLost"
    assert await child.call("renew") == "LeaseLost"
    assert (await store.get("key")).entries == {}


@pytest.mark.parametrize("suffix", ["", "-leases"])
async def test_who_is_stopped_in_a_write_is_named(path, store, child, suffix, monkeypatch):
    """Writers hear which process to continue or kill; then they go on, and nothing is lost."""
    lease = await store.grant(60)
    await store.close()
    monkeypatch.setattr(sqlite_file, "WRITE_LOCK_WAIT_S", 0.2)
    clock = BootClock(boot_id(), boottime_s)
    store = await SqliteStore.open(path, clock, in_worker)
    assert await child.call(f"lock {path}{suffix}") == "locked"
    child.send(signal.SIGSTOP)
    who = "it" if sys.platform != "linux" else f"process {child.pid} holds .* is stopped"

    async def write():
        if suffix:
            await store.renew(lease.id)
        else:
            assert (await store.transact([], [Put("key", b"")])).succeeded

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=who):
            await write()
    await store.get("")
    child.send(signal.SIGCONT)
    assert await child.call("unlock") == "unlocked"
    await write()
    await store.close()


@EVERY_STORE
async def test_of_two_that_race_for_a_key_one_wins(name, store, child):
    """Every round has one winner, and it is the one whose value is there."""
    other = Child(name)
    rounds, won = 200, {}
    assert await other.answer() == "ready"

    async def race(racer, name):
        answer = await racer.call(f"race {name} {rounds}")
        won[name] = [int(number) for number in answer.split(",") if number]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(race, child, "one")
        nursery.start_soon(race, other, "other")
        await trio.sleep(0.1)
        await store.transact([], [Put("go", b"")])
    other.end()
    found = (await store.get("round/")).entries
    assert {int(key.partition("/")[2]): entry.value for key, entry in found.items()} == {
        number: name.encode() for name, numbers in won.items() for number in numbers
    }
    assert sorted([*won["one"], *won["other"]]) == list(range(rounds))


async def test_a_new_store_may_be_opened_by_several_at_once(path):
    """Brokers that start together make one store, and none of them stumbles over the other."""
    children = [Child(f"sqlite:{path.parent / 'new' / 'metadata.db'}") for _ in range(3)]
    assert [await child.answer() for child in children] == ["ready"] * 3
    for child in children:
        child.end()
