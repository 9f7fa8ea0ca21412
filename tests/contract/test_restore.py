"""A restore into every metadata store, in one transaction or in several."""

import random
from contextlib import ExitStack

import pytest

from minibroker.broker.clock import boot_id, boottime_s
from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import BackupError, backup_of, dump, load
from minibroker.broker.controller.cluster_id import ensure_cluster_id
from minibroker.broker.controller.restore import carry_out
from minibroker.broker.controller.restore_plan import plan_restore
from minibroker.broker.controller.state import PartitionRecord, TopicRecord
from minibroker.broker.disk import in_worker
from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import EtcdStore
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.sqlite_store import BootClock, SqliteStore
from minibroker.broker.metadata.store import Delete, StoreError, TransactionTooLarge
from minibroker.broker.turns import without_pause
from tests.support.etcd import EVERY_ETCD, running_etcd

WRITES_MAX = 3  # of a store that takes a restore in several transactions only
PARTS = range(1, 6)  # after which a restore of `cluster` is not done yet
NOW_MS = 1_800_000_000_000


class SmallStore:
    """Takes few writes at once, and dies after some transactions that write."""

    def __init__(self, store, transactions=1_000):
        self._store = store
        self._left = transactions
        self.get = store.get

    async def transact(self, compare, writes):
        if len(writes) > WRITES_MAX:
            raise TransactionTooLarge(f"{len(writes)} writes")
        if not self._left:
            raise ConnectionResetError
        self._left -= 1
        return await self._store.transact(compare, writes)


@pytest.fixture(params=["memory", "sqlite", *EVERY_ETCD])
async def store(request, tmp_path):
    with ExitStack() as servers:
        if request.param == "memory":
            opened = MemoryStore()
        elif request.param == "sqlite":
            clock = BootClock(boot_id(), boottime_s)
            opened = await SqliteStore.open(tmp_path / "metadata.db", clock, in_worker)
        else:
            [etcd] = servers.enter_context(running_etcd(tmp_path, program=request.param))
            opened = EtcdStore(Access([etcd.url]), "test/", "1", random.Random(1))
        yield opened
        await opened.close()


def topic(name, partitions, isr=(1, 2), epoch=3, **configs):
    """A topic whose partitions are alike."""
    records = (PartitionRecord(n, isr[0], epoch, 4, isr, (1, 2)) for n in range(partitions))
    return TopicRecord(name.encode() * 16, name, configs, tuple(records))


async def write(store, *topics):
    """Write topics as a controller does."""
    for each in topics:
        puts = [entries.partition_put(each.id, record) for record in each.partitions]
        assert (await store.transact([], [*puts, entries.topic_put(each)])).succeeded


async def cluster(store):
    """A store with two topics, and a backup of it, of which one is deleted and one goes on."""
    counters = [entries.controller_epoch_put(5), entries.producer_ids_put(2_000)]
    await store.transact([], [entries.cluster_id_put("c"), *counters])
    old = topic("o", 2, retention="1")
    await write(store, old, topic("p", 1, retention="1"))
    backup = load(dump(backup_of(await store.get(""), 1)))
    keys = [
        key for key in (await store.get("")).entries if key.startswith(f"partitions/{old.id.hex()}")
    ]
    await store.transact([], [Delete(key) for key in ("topics/o", *keys)])
    await write(store, topic("p", 3, isr=(2,), epoch=9), topic("q", 1))
    return backup


async def planned(store, backup):
    return plan_restore(backup, await store.get(""), NOW_MS)


async def state_of(store):
    return without_pause(entries.read_state((await store.get("")).entries))


def check(state):
    """What every restore of `cluster` leads to."""
    assert {name: len(one.partitions) for name, one in state.topics.items()} == {
        "o": 2,
        "p": 3,
        "q": 1,
    }
    assert state.topics["p"].configs == {"retention": "1"}
    assert [one.leader_epoch for one in state.topics["p"].partitions] == [9, 9, 9]
    for _, record in state.partitions():
        assert (record.leader, record.isr, record.is_restored) == (-1, (1, 2), True)


async def test_a_restore_is_one_transaction(store):
    """The store goes from the state before to that after in one revision."""
    backup = await cluster(store)
    before = await store.get("")
    await carry_out(store, await planned(store, backup))
    assert (await store.get("")).revision == before.revision + 1
    check(await state_of(store))
    assert (await ensure_cluster_id(store, random.Random(1))).cluster_id == "c"


async def test_a_lost_store_is_made_again(store):
    """Into a store that has never had anything."""
    backup = await cluster(store)
    keys = [*(await store.get("")).entries]
    await store.transact([], [Delete(key) for key in keys])
    await carry_out(store, await planned(store, backup))
    state = await state_of(store)
    assert (state.cluster_id, {*state.topics}) == ("c", {"o", "p"})


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("transactions", PARTS)
async def test_a_restore_in_parts_is_continued(store, transactions):
    """It dies after each of its transactions in turn. Until it is run again no broker starts."""
    backup = await cluster(store)
    plan = await planned(store, backup)
    with pytest.raises(ConnectionResetError):
        await carry_out(SmallStore(store, transactions), plan)
    with pytest.raises(StoreError, match="half restored: run `minibroker metadata restore`"):
        await ensure_cluster_id(store, random.Random(1))
    with pytest.raises(BackupError, match="half restored"):
        backup_of(await store.get(""), 1)
    await carry_out(SmallStore(store), await planned(store, backup))
    check(await state_of(store))
    assert (await ensure_cluster_id(store, random.Random(1))).cluster_id == "c"


@pytest.mark.parametrize("small", [False, True])
async def test_a_broker_that_starts_meanwhile(store, small):
    """Nothing is written, or the restore stays half done: it never meets a controller."""
    backup = await cluster(store)
    plan = await planned(store, backup)
    lease = (await store.grant(60)).id
    await store.transact([], entries.active_controller_puts(1, 6, lease))
    before = await store.get("")
    with pytest.raises(BackupError, match="has changed meanwhile: stop all brokers"):
        await carry_out(SmallStore(store) if small else store, plan)
    assert await store.get("") == before
