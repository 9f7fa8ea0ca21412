"""What every metadata store must do about leases and watches (docs/architecture.md, "Failover").

Each test has two holders of one store: the same object, two links to one memory, two objects on
one file. The clock runs as the real one does, and tests leap over what they need not wait for;
SQLite's boot clock is the same one.
"""

import random
import sqlite3
from contextlib import ExitStack

import httpx
import pytest
import trio

from minibroker.broker.disk import in_worker
from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import EtcdStore
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.sqlite_store import BootClock, SqliteStore
from minibroker.broker.metadata.store import ABSENT, Compare, Delete, LeaseLost, Put
from minibroker.testing.store import StoreLink
from tests.support.etcd import EVERY_ETCD, running_etcd

TTL_S = 60.0
STORES = ["memory", "links", "sqlite", "two sqlite"]


class LeapingClock(trio.abc.Clock):
    """A clock whose `jump` also ends the leases of an etcd whose time it takes."""

    def __init__(self):
        self._clock = trio.testing.MockClock(rate=1.0)
        self.url = ""
        self.ends = {}

    def current_time(self):
        return self._clock.current_time()

    def deadline_to_sleep_time(self, deadline):
        return self._clock.deadline_to_sleep_time(deadline)

    def start_clock(self):
        self._clock.start_clock()

    def jump(self, seconds):
        self._clock.jump(seconds)
        for lease_id in [one for one, end in self.ends.items() if end <= self.current_time()]:
            httpx.post(f"{self.url}/v3/lease/revoke", json={"ID": str(lease_id)})
            del self.ends[lease_id]


class LeapingEtcd(EtcdStore):
    """Tells a clock that can leap of the leases that etcd has promised."""

    def __init__(self, clock, access, writer):
        super().__init__(access, "test/", writer, random.Random(writer))
        self._clock = clock

    async def grant(self, ttl_s):
        lease = await super().grant(ttl_s)
        self._clock.ends[lease.id] = trio.current_time() + ttl_s
        return lease

    async def renew(self, lease_id):
        await super().renew(lease_id)
        self._clock.ends[lease_id] = trio.current_time() + TTL_S


@pytest.fixture
def clock():
    return LeapingClock()


@pytest.fixture(params=[*STORES, *EVERY_ETCD])
async def stores(request, tmp_path, clock):
    memory = MemoryStore()
    with ExitStack() as servers:
        if request.param == "memory":
            opened = (memory, memory)
        elif request.param == "sqlite":
            opened = (await open_sqlite(tmp_path, clock),) * 2
        elif request.param == "two sqlite":
            opened = (await open_sqlite(tmp_path, clock), await open_sqlite(tmp_path, clock))
        elif request.param == "links":
            opened = tuple(StoreLink(memory, random.Random(seed)) for seed in (1, 2))
        else:
            [etcd] = servers.enter_context(running_etcd(tmp_path, program=request.param))
            clock.url = etcd.url
            opened = tuple(LeapingEtcd(clock, Access([etcd.url]), writer) for writer in "12")
        yield opened
        for store in opened:
            await store.close()


async def open_sqlite(tmp_path, clock, boot="boot-1"):
    boot_clock = BootClock(boot, clock.current_time)
    return await SqliteStore.open(tmp_path / "metadata.db", boot_clock, in_worker)


async def keys(store):
    """What is there once every lease that has ended was noticed, as a transaction does."""
    await store.transact([], [])
    return list((await store.get("")).entries)


async def test_an_entry_lives_as_long_as_its_lease(stores, clock):
    """What was written with a lease is there until its time to live has passed, and then gone."""
    one, other = stores
    lease = await one.grant(TTL_S)
    await one.transact([], [Put("leased", b"", lease.id), Put("stays", b"")])
    clock.jump(TTL_S / 2)
    assert await keys(other) == ["leased", "stays"]
    clock.jump(TTL_S / 2)
    assert await keys(other) == ["stays"]


async def test_a_renewed_lease_lives_on(stores, clock):
    """A renewal counts the full time again, from when it was done."""
    one, other = stores
    lease = await one.grant(TTL_S)
    await one.transact([], [Put("leased", b"", lease.id)])
    for _ in range(3):
        clock.jump(TTL_S * 0.9)
        await one.renew(lease.id)
    assert await keys(other) == ["leased"]


async def test_a_lost_lease_is_not_renewed(stores, clock):
    """Once it has ended a lease stays so, whether anybody has noticed yet or not (LeaseLost)."""
    one, other = stores
    lease = await one.grant(TTL_S)
    clock.jump(TTL_S)
    with pytest.raises(LeaseLost):
        await one.renew(lease.id)
    await keys(other)
    with pytest.raises(LeaseLost):
        await one.renew(lease.id)


async def test_nothing_is_written_with_a_lost_lease(stores, clock):
    """A transaction that names an ended lease writes nothing at all."""
    one, other = stores
    lease = await one.grant(TTL_S)
    clock.jump(TTL_S)
    with pytest.raises(LeaseLost):
        await one.transact([], [Put("stays", b""), Put("leased", b"", lease.id)])
    assert await keys(other) == []


async def test_the_end_of_a_lease_is_a_write(stores, clock):
    """All entries of the lease go in one revision, so a plan made upon one of them fails."""
    one, other = stores
    lease = await one.grant(TTL_S)
    revision = (await one.transact([], [Put("a", b"", lease.id), Put("b", b"", lease.id)])).revision
    clock.jump(TTL_S)
    outcome = await other.transact([Compare("a", revision)], [Put("a", b"mine")])
    assert (outcome.succeeded, outcome.revision) == (False, revision + 1)
    assert (await other.transact([Compare("a", ABSENT)], [Put("a", b"")])).succeeded
    assert await keys(one) == ["a"]


async def test_a_lease_without_entries_ends_without_a_revision(stores, clock):
    """Nothing has changed for anybody who watches."""
    one, other = stores
    await one.grant(TTL_S)
    clock.jump(TTL_S)
    assert (await other.transact([], [])).revision == 0


async def test_a_revoked_lease_ends_at_once(stores, clock):
    """Its entries are gone for everybody when the call returns; a second revocation is no error."""
    one, other = stores
    lease = await one.grant(TTL_S)
    await one.transact([], [Put("leased", b"", lease.id)])
    await one.revoke(lease.id)
    assert list((await other.get("")).entries) == []
    await other.revoke(lease.id)
    with pytest.raises(LeaseLost):
        await one.renew(lease.id)


async def test_an_entry_belongs_to_the_lease_of_its_last_write(stores, clock):
    """Written again without a lease it stays, with another one it goes with that."""
    one, other = stores
    first, second = await one.grant(TTL_S), await one.grant(2 * TTL_S)
    keys_of_first = [Put(key, b"", first.id) for key in ("moved", "kept", "gone", "again")]
    await one.transact([], keys_of_first)
    await other.transact([], [Put("moved", b"", second.id), Put("kept", b""), Delete("again")])
    await other.transact([], [Put("again", b"")])
    clock.jump(TTL_S)
    assert await keys(one) == ["again", "kept", "moved"]
    clock.jump(TTL_S)
    assert await keys(one) == ["again", "kept"]


async def test_leases_end_one_by_one(stores, clock):
    """The end of one lease takes nothing of another."""
    one, other = stores
    leases = [await one.grant(TTL_S * number) for number in (1, 2, 3)]
    assert len({lease.id for lease in leases}) == 3
    await one.transact([], [Put(f"{lease.ttl_s / TTL_S:.0f}", b"", lease.id) for lease in leases])
    for left in (["2", "3"], ["3"], []):
        clock.jump(TTL_S)
        assert await keys(other) == left


async def test_a_closed_store_ends_no_lease(stores, clock):
    """Who stops without a word keeps what it holds until the time is up."""
    one, other = stores
    lease = await one.grant(TTL_S)
    await one.transact([], [Put("leased", b"", lease.id)])
    if one is not other:
        await one.close()
    assert await keys(other) == ["leased"]


async def test_a_watch_returns_at_once_what_is_newer(stores, clock):
    """Who asks for changes after an old revision gets the present state without waiting."""
    one, other = stores
    await one.transact([], [Put("a/1", b"1"), Put("b", b"2")])
    snapshot = await other.watch("a/", 0)
    assert (snapshot.revision, list(snapshot.entries)) == (1, ["a/1"])


async def test_a_watch_waits_for_a_write(stores, clock):
    """It sleeps while nothing changes, and sees a write of either holder."""
    other = stores[1]
    for writer in stores:
        revision = (await writer.get("")).revision
        with trio.move_on_after(0.05) as scope:
            await other.watch("", revision)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.transact, [], [Put("key", b"%d" % revision)])
            snapshot = await other.watch("", revision)
        assert snapshot.entries["key"].value == b"%d" % revision


async def test_a_watch_sees_the_end_of_a_lease(stores, clock):
    """Nobody needs to call anything: who waits notices that the time is up."""
    one, other = stores
    lease = await one.grant(TTL_S)
    revision = (await one.transact([], [Put("leased", b"", lease.id)])).revision
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_leap, clock)
        snapshot = await other.watch("", revision)
    assert (snapshot.revision, list(snapshot.entries)) == (revision + 1, [])


async def _leap(clock):
    await trio.testing.wait_all_tasks_blocked(0.01)
    clock.jump(TTL_S)


async def test_a_watch_sees_the_end_of_a_lease_granted_later(stores, clock):
    """A lease that ends before all that were known is noticed in time, too."""
    one, other = stores
    await one.grant(10 * TTL_S)
    revisions = []

    async def watch():
        revisions.append((await other.watch("", 1)).revision)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked(0.01)
        lease = await one.grant(TTL_S)
        await one.transact([], [Put("leased", b"", lease.id)])
        await _leap(clock)
    assert revisions == [2]


async def test_many_watch_one_store(stores, clock):
    """All who wait see the last state, and those who are cancelled leave the others alone."""
    one = stores[0]
    seen = []

    async def watch(store, cancelled):
        with trio.CancelScope() as scope:
            if cancelled:
                scope.deadline = trio.current_time() + 0.03
            seen.append((await store.watch("", 0)).revision)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(watch, stores[number % 2], number % 4 < 2)
        await trio.sleep(0.1)
        await one.transact([], [Put("key", b"")])
    assert seen == [1] * 4


async def test_a_lease_of_another_boot_has_ended(tmp_path, clock):
    """The machine has stopped meanwhile, and so has whoever held it, whatever the clock says."""
    store = await open_sqlite(tmp_path, clock)
    lease = await store.grant(TTL_S)
    await store.transact([], [Put("leased", b"", lease.id)])
    await store.close()
    store = await open_sqlite(tmp_path, clock, "boot-2")
    assert (await store.get("")).entries == {}
    with pytest.raises(LeaseLost):
        await store.renew(lease.id)
    await store.close()


async def test_an_entry_whose_lease_was_lost_in_a_power_cut_is_gone(tmp_path, clock):
    """The entries are forced to the disk and the leases are not: no lease is an ended lease."""
    store = await open_sqlite(tmp_path, clock)
    lease = await store.grant(TTL_S)
    await store.transact([], [Put("leased", b"", lease.id)])
    await store.close()
    for path in tmp_path.glob("metadata.db-leases*"):
        path.unlink()
    store = await open_sqlite(tmp_path, clock, "boot-2")
    assert (await store.get("")).entries == {}
    assert (await store.grant(TTL_S)).id != lease.id
    await store.close()


@pytest.mark.parametrize(("waited_s", "is_alive"), [(0.9 * TTL_S, True), (TTL_S, False)])
async def test_a_renewal_counts_from_when_it_has_the_lock(tmp_path, clock, waited_s, is_alive):
    """Who waited long for the lock gets the full time from then, or hears that it was too long."""
    store = await open_sqlite(tmp_path, clock)
    lease = await store.grant(TTL_S)
    lost = []

    async def renew():
        try:
            await store.renew(lease.id)
        except LeaseLost:
            lost.append(lease.id)

    other = sqlite3.connect(tmp_path / "metadata.db-leases", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(renew)
        await trio.sleep(0.05)
        clock.jump(waited_s)
        other.execute("ROLLBACK")
        other.close()
    assert lost == ([] if is_alive else [lease.id])
    if is_alive:
        clock.jump(0.9 * TTL_S)
        await store.renew(lease.id)
    await store.close()


async def test_renewals_do_not_wait_for_a_writer(tmp_path, clock):
    """Who holds the lock of the entries holds up writes, but neither leases nor reads."""
    store = await open_sqlite(tmp_path, clock)
    lease = await store.grant(TTL_S)
    other = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    await store.renew(lease.id)
    await store.grant(TTL_S)
    await store.get("")
    other.execute("ROLLBACK")
    other.close()
    await store.close()


async def test_leases_are_not_forced_to_the_disk(tmp_path, clock):
    """Heartbeats cost no fsync (WAL, synchronous=NORMAL)."""
    store = await open_sqlite(tmp_path, clock)
    connection = store._own_leases._connection
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert connection.execute("PRAGMA synchronous").fetchall() == [(1,)]
    await store.close()


async def test_ended_leases_take_no_room(tmp_path, clock):
    """Their rows go with their entries, however they ended."""
    store = await open_sqlite(tmp_path, clock)
    for ttl_s in (TTL_S, TTL_S, 2 * TTL_S, 2 * TTL_S):
        lease = await store.grant(ttl_s)
        await store.transact([], [Put(str(lease.id), b"", lease.id)])
    await store.revoke(lease.id)
    clock.jump(TTL_S)
    await store.transact([], [])
    query = "SELECT count(*) FROM leases"
    assert store._own_leases._connection.execute(query).fetchall() == [(1,)]
    await store.close()
