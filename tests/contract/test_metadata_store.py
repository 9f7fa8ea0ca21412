"""What every metadata store must do: memory, SQLite and etcd alike."""

import os
import random
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trio

from minibroker.broker.clock import boot_id, boottime_s
from minibroker.broker.controller import entries
from minibroker.broker.controller.state import PartitionRecord, Reassignment, TopicRecord
from minibroker.broker.disk import in_worker
from minibroker.broker.metadata import sqlite_file
from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import EtcdStore
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.sqlite_store import FORMAT, BootClock, SqliteStore
from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Delete,
    Entry,
    Put,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from minibroker.broker.turns import without_pause
from minibroker.testing.store import StoreLink
from tests.support.etcd import EVERY_ETCD, running_etcd


async def open_sqlite(path):
    return await SqliteStore.open(path, BootClock(boot_id(), boottime_s), in_worker)


@pytest.fixture(params=["memory", "link", "sqlite", *EVERY_ETCD])
async def store(request, tmp_path):
    with ExitStack() as servers:
        if request.param == "memory":
            opened = MemoryStore()
        elif request.param == "link":
            opened = StoreLink(MemoryStore(), random.Random(1))
        elif request.param == "sqlite":
            opened = await open_sqlite(tmp_path / "metadata.db")
        else:
            [etcd] = servers.enter_context(running_etcd(tmp_path, program=request.param))
            opened = EtcdStore(Access([etcd.url]), "test/", "1", random.Random(1))
        yield opened
        await opened.close()


async def test_a_new_store_is_empty(store):
    """A new store has no entries and revision 0."""
    snapshot = await store.get("")
    assert (snapshot.revision, dict(snapshot.entries)) == (0, {})


async def test_a_partition_under_reassignment_is_what_was_written(store):
    """All of the reassignment is in the store: a next controller has nothing else."""
    moving = Reassignment((1, 2, 3), (4, 1, 2))
    record = PartitionRecord(0, 1, 5, 9, (1, 2), (4, 1, 2, 3), reassignment=moving, former=(5,))
    topic = TopicRecord(b"i" * 16, "t", {"flush": "always"}, (record,), 7)
    puts = [entries.partition_put(topic.id, record), entries.topic_put(topic)]
    assert (await store.transact([], puts)).succeeded
    state = without_pause(entries.read_state((await store.get("")).entries))
    assert state.topics == {"t": topic}


async def test_what_was_put_is_there(store):
    """A value comes back byte for byte, with the revision of the transaction that wrote it."""
    value = bytes(range(256))
    outcome = await store.transact([], [Put("a/1", value), Put("a/2", b"")])
    assert (outcome.succeeded, outcome.revision) == (True, 1)
    snapshot = await store.get("a/")
    assert snapshot.revision == 1
    assert dict(snapshot.entries) == {"a/1": Entry(value, 1), "a/2": Entry(b"", 1)}


async def test_a_prefix_selects_and_orders(store):
    """Only keys that begin with the prefix come back, in ascending order."""
    keys = ["topics/b", "topics/a", "topics", "topics0", "old/topics/0", "topics/a/1"]
    values = [b"%d" % number for number in reversed(range(len(keys)))]
    await store.transact([], [Put(*entry) for entry in zip(keys, values, strict=True)])
    assert list((await store.get("topics/")).entries) == ["topics/a", "topics/a/1", "topics/b"]
    assert list((await store.get("")).entries) == sorted(keys)
    assert list((await store.get("nothing")).entries) == []


async def test_a_comparison_that_holds_lets_the_write_through(store):
    """A write planned upon the revision that an entry still has is made."""
    await store.transact([], [Put("key", b"old")])
    outcome = await store.transact([Compare("key", 1)], [Put("key", b"new")])
    assert outcome.succeeded
    assert (await store.get("key")).entries["key"] == Entry(b"new", 2)


@pytest.mark.parametrize("compare", [Compare("key", 1), Compare("key", ABSENT), Compare("no", 1)])
async def test_one_failed_comparison_writes_nothing(store, compare):
    """If any comparison fails, none of the writes is made and the revision stays."""
    await store.transact([], [Put("key", b"1")])
    await store.transact([], [Put("key", b"2"), Put("other", b"2")])
    writes = [Put("key", b"3"), Delete("other"), Put("new", b"3")]
    outcome = await store.transact([Compare("key", 2), compare], writes)
    assert (outcome.succeeded, outcome.revision) == (False, 2)
    snapshot = await store.get("")
    assert dict(snapshot.entries) == {"key": Entry(b"2", 2), "other": Entry(b"2", 2)}


async def test_absent_is_compared_with_revision_zero(store):
    """Revision 0 holds for a key that is not there, never or no longer."""
    assert (await store.transact([Compare("key", ABSENT)], [Put("key", b"")])).succeeded
    assert not (await store.transact([Compare("key", ABSENT)], [Put("key", b"")])).succeeded
    assert (await store.transact([Compare("key", 1)], [Delete("key")])).succeeded
    assert (await store.transact([Compare("key", ABSENT)], [Put("key", b"")])).succeeded


async def test_a_key_made_again_has_another_revision(store):
    """An entry deleted and put again is not mistaken for the old one."""
    await store.transact([], [Put("key", b"same")])
    await store.transact([], [Delete("key")])
    await store.transact([], [Put("key", b"same")])
    assert not (await store.transact([Compare("key", 1)], [Put("key", b"late")])).succeeded


async def test_a_delete_of_nothing_is_no_error(store):
    """Deleting an absent key succeeds."""
    assert (await store.transact([], [Delete("key")])).succeeded


async def test_the_revision_grows_with_every_write(store):
    """Each transaction that writes gets the next revision; one that only compares gets none."""
    revisions = [(await store.transact([], [Put("key", b"")])).revision for _ in range(5)]
    assert revisions == [1, 2, 3, 4, 5]
    assert (await store.transact([Compare("key", 5)], [])) == (
        await store.transact([Compare("key", 5)], [])
    )
    assert (await store.get("")).revision == 5


async def test_concurrent_increments_lose_none(store):
    """Many tasks that read, compare and write one key add up, whatever their interleaving."""

    async def increment():
        while True:
            entry = (await store.get("count")).entries["count"]
            new = b"%d" % (int(entry.value) + 1)
            compare = [Compare("count", entry.revision)]
            if (await store.transact(compare, [Put("count", new)])).succeeded:
                return

    await store.transact([], [Put("count", b"0")])
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(increment)
    assert (await store.get("count")).entries["count"].value == b"10"


async def test_a_cancelled_transaction_is_made_or_not_and_leaves_the_store_usable(store):
    """Cancelling a call never leaves half a transaction, or a lock, behind."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.transact([], [Put("a", b""), Put("b", b"")])
    assert len((await store.get("")).entries) in (0, 2)
    assert (await store.transact([], [Put("c", b"")])).succeeded


async def test_closing_twice_is_no_error(store):
    """`close` may be called twice."""
    await store.close()


async def test_sqlite_survives_a_reopen(tmp_path):
    """Entries and the revision are there when the file is opened again."""
    first = await open_sqlite(tmp_path / "metadata.db")
    await first.transact([], [Put("key", b"1")])
    await first.transact([], [Put("key", b"2")])
    await first.close()
    second = await open_sqlite(tmp_path / "metadata.db")
    snapshot = await second.get("")
    await second.close()
    assert (snapshot.revision, dict(snapshot.entries)) == (2, {"key": Entry(b"2", 2)})


async def test_sqlite_files_are_private(tmp_path):
    """The store, its log and its directory are for the broker's user alone, under any umask; a
    store that others may read keeps its mode."""
    before = os.umask(0o000)
    try:
        store = await open_sqlite(tmp_path / "deep" / "metadata.db")
        await store.transact([], [Put("a", b"1")])
        modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "deep").iterdir()}
        assert {"metadata.db", "metadata.db-wal", "metadata.db-shm"} < {*modes}
        assert {*modes.values()} == {0o600}
        assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700
        await store.close()
        (tmp_path / "deep" / "metadata.db").chmod(0o644)
        await (await open_sqlite(tmp_path / "deep" / "metadata.db")).close()
        assert (tmp_path / "deep" / "metadata.db").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


@pytest.mark.parametrize("kind", ["directory", "pipe"])
async def test_what_is_no_file_is_no_store(tmp_path, kind: str):
    """It is named, and nobody waits for the other end of a pipe."""
    path = tmp_path / "metadata.db"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(StoreError, match=r"metadata\.db is no file"):
        await open_sqlite(path)


def test_a_full_disk_of_the_store_is_told(tmp_path):
    """SQLite's limit of pages stands for the disk's; the error says what to do."""
    path = tmp_path / "metadata.db"
    with closing(sqlite_file.connect(path, FORMAT)) as connection:
        sqlite_file.pragma(connection, "max_page_count = 1")
        with (
            pytest.raises(StoreFull, match="the disk is full: make room"),
            sqlite_file.transaction(connection, path, "BEGIN IMMEDIATE"),
        ):
            connection.execute("CREATE TABLE large AS SELECT zeroblob(2000000)")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system has no such call")
async def test_sqlite_keeps_disk_space_in_reserve(tmp_path):
    """The logs on the same disk cannot take it: neither file grows while much is written, and a
    process that is killed leaves files that the next one reads."""
    path = tmp_path / "metadata.db"
    store = await open_sqlite(path)
    lease = await store.grant(60.0)

    def held() -> dict[str, int]:
        return {each.name: each.stat().st_size for each in sorted(tmp_path.iterdir())}

    before = held()
    assert before["metadata.db-wal"] == before["metadata.db-leases-wal"] == sqlite_file.LOG_BYTES
    assert before["metadata.db"] >= FORMAT.reserve_bytes
    for each in tmp_path.iterdir():
        assert each.stat().st_blocks * 512 >= before[each.name], "its bytes are on the disk"
    for number in range(150):
        await store.transact([], [Put(f"key-{number % 20}", b"%d" % number * 5_000)])
        for _ in range(6):
            await store.renew(lease.id)
    assert held() == before
    entries = (await store.get("")).entries
    assert await entries_in(copied(tmp_path, tmp_path / "killed")) == entries
    await store.close()
    # The log of a store that was closed in order begins without a frame.
    with closing(sqlite_file.connect(path, FORMAT)):
        assert await entries_in(copied(tmp_path, tmp_path / "killed early")) == entries


def copied(directory: Path, copy: Path) -> Path:
    """The store that a process leaves which is killed now."""
    copy.mkdir()
    for path in directory.glob("metadata.db*"):
        if not path.name.endswith("-shm"):
            (copy / path.name).write_bytes(path.read_bytes())
    return copy / "metadata.db"


async def entries_in(path: Path) -> Mapping[str, Entry]:
    """All entries of a store that nobody has open."""
    store = await open_sqlite(path)
    entries = (await store.get("")).entries
    await store.close()
    return entries


def test_sqlite_opens_no_file_later(tmp_path):
    """A process may have no descriptor left, and the disk no room for a temporary file."""
    with closing(sqlite_file.connect(tmp_path / "metadata.db", FORMAT)) as connection:
        assert sqlite_file.pragma(connection, "temp_store") == 2


async def test_sqlite_is_shared_by_two_openers(tmp_path):
    """Two openers of one file exclude each other by comparison."""
    first = await open_sqlite(tmp_path / "metadata.db")
    second = await open_sqlite(tmp_path / "metadata.db")
    assert (await first.transact([Compare("key", ABSENT)], [Put("key", b"1")])).succeeded
    assert not (await second.transact([Compare("key", ABSENT)], [Put("key", b"2")])).succeeded
    assert (await second.get("")).entries["key"].value == b"1"
    await first.close()
    await second.close()


async def test_sqlite_commits_are_synced(tmp_path):
    """The write-ahead log is on and a commit is forced to the disk (WAL, synchronous=FULL)."""
    store = await open_sqlite(tmp_path / "metadata.db")
    connection = store._entries._connection
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
    await store.close()


async def test_sqlite_undoes_a_transaction_that_fails_in_the_middle(tmp_path):
    """An error between two writes undoes the first, and the store goes on."""
    store = await open_sqlite(tmp_path / "metadata.db")
    with pytest.raises(TypeError):
        await store.transact([], [Put("first", b""), Put("second", None)])
    assert (await store.transact([], [Put("third", b"")])).revision == 1
    assert list((await store.get("")).entries) == ["third"]
    await store.close()


async def filled(path):
    store = await open_sqlite(path)
    await store.transact([], [Put(f"key/{number}", b"value" * 50) for number in range(200)])
    await store.close()


@pytest.mark.parametrize("kind", ["garbage", "cut", "header", "foreign", "newer"])
async def test_a_damaged_or_foreign_file_is_refused_and_kept(tmp_path, kind):
    """What is no sound store of ours is an error that names the file, and stays as it is."""
    path = tmp_path / "metadata.db"
    await filled(path)
    if kind in ("foreign", "newer"):
        statement = "application_id = 7" if kind == "foreign" else "user_version = 99"
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA {statement}")
        connection.close()
    else:
        data = bytearray(path.read_bytes())
        if kind == "garbage":
            data[4096:] = b"\xa5" * len(data[4096:])
        elif kind == "header":
            data[:16] = b"something else.."
        path.write_bytes(data[:6000] if kind == "cut" else data)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"metadata\.db"):
        await open_sqlite(path)
    assert path.read_bytes() == before


async def test_a_changed_value_is_found_by_its_checksum(tmp_path):
    """A flipped bit in a value, which SQLite does not notice, is an error when it is read."""
    path = tmp_path / "metadata.db"
    store = await open_sqlite(path)
    await store.transact([], [Put("key", b"precious")])
    await store.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"precious", b"prexious"))
    store = await open_sqlite(path)
    with pytest.raises(StoreError, match="checksum"):
        await store.get("")
    await store.close()


async def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path):
    """A file where the directory should be, or a directory in the file's place, is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="directory of the metadata store"):
        await open_sqlite(tmp_path / "file" / "metadata.db")
    (tmp_path / "metadata.db").mkdir()
    with pytest.raises(StoreError, match=r"metadata\.db"):
        await open_sqlite(tmp_path / "metadata.db")


async def test_a_file_locked_by_another_is_unavailable_not_damaged(tmp_path, monkeypatch):
    """A writer that another process holds off says that a retry may help."""
    monkeypatch.setattr(sqlite_file, "WRITE_LOCK_WAIT_S", 0.01)
    store = await open_sqlite(tmp_path / "metadata.db")
    other = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await store.transact([], [Put("key", b"")])
    other.execute("ROLLBACK")
    other.close()
    assert (await store.transact([], [Put("key", b"")])).succeeded
    await store.close()


async def test_a_store_of_another_format_is_refused_in_one_sentence(tmp_path):
    """Older or newer: the error names the file, both formats and what to do; the file stays as it
    is."""
    path = tmp_path / "metadata.db"
    for version in (1, 99):
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB)")
        connection.execute(f"PRAGMA application_id = {int.from_bytes(b'MBKm', 'big')}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        before = path.read_bytes()
        with pytest.raises(StoreError) as caught:
            await open_sqlite(path)
        assert str(caught.value) == (
            f"the metadata store {path} has format {version}, and this minibroker reads only format"
            " 2: start with a new data directory, or use the minibroker that wrote it"
        )
        assert path.read_bytes() == before
