"""The metadata store in one SQLite file, and its leases in a second: the embedded default.

Every transaction runs from BEGIN to COMMIT in one call of a worker thread, reads with fetchall, and
has no await inside: neither a cancelled task nor a slow loop can leave a transaction open.
`synchronous=FULL` with the write-ahead log makes a commit durable before it is reported. BEGIN
IMMEDIATE takes the write lock before anything is compared, so two processes on the same file
exclude each other.

No task removes expired entries: every `transact` first removes the entries of leases that have
ended. A watch checks every 20 ms, or when the next lease ends if that is earlier, whether another
connection has written (`data_version`, which reads shared memory) or a lease has ended. The first
watch checks for all of them, in a worker thread that it keeps: a call of the worker for each check
took three times the processor time. Watches and renewals have connections of their own, so a
renewal waits neither for a long transaction nor for the write lock of the entries.

SQLite has no checksums. So each row carries the CRC of its content, and a damaged store is an error
that names the file: the broker stops, and deletes or creates nothing. If the metadata lost a topic,
the brokers would delete its data.
"""

import math
import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import PurePath
from typing import Final

import trio
from crc32c import crc32c

from minibroker.broker.disk import InWorker
from minibroker.broker.metadata.sqlite_file import (
    Format,
    connect,
    damaged,
    errors,
    pragma,
    transaction,
)
from minibroker.broker.metadata.sqlite_leases import BootClock, Leases
from minibroker.broker.metadata.store import (
    ABSENT,
    NO_LEASE,
    Compare,
    Delete,
    Entry,
    Lease,
    LeaseLost,
    Put,
    Snapshot,
    StoreUnavailable,
    TransactionOutcome,
)

LOOK_S: Final = 0.020
LOOK_S_MIN: Final = 0.001
LAST_CHARACTER: Final = "\U0010ffff"
LEASES_SUFFIX: Final = "-leases"  # after the name of the store's file

ENTRIES: Final = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL,"
    " revision INTEGER NOT NULL, lease INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE INDEX leased ON entries (lease) WHERE lease <> {NO_LEASE}",
)
RANGE: Final = (
    "SELECT key, value, revision, lease, crc FROM entries WHERE key >= ? AND key < ? ORDER BY key"
)
PUT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)"
LEASES_IN_USE: Final = f"SELECT DISTINCT lease FROM entries WHERE lease <> {NO_LEASE}"
REMOVE_LEASED: Final = f"DELETE FROM entries WHERE lease = ? AND lease <> {NO_LEASE}"


class SqliteStore:
    """See `MetadataStore`. `open` makes one."""

    def __init__(
        self, entries: "_Entries", watched: "_Entries", own_leases: Leases, in_worker: InWorker
    ) -> None:
        self._entries = entries
        self._watched = watched
        self._own_leases = own_leases
        self._in_worker = in_worker
        # A connection has one transaction at a time: the next caller waits for the worker.
        self._turn = trio.Lock()
        self._lease_turn = trio.Lock()
        self._watch_turn = trio.Lock()
        self._revision = 0  # the newest that a watch has seen
        self._written = threading.Event()  # since the last look

    @classmethod
    async def open(cls, path: PurePath, clock: BootClock, in_worker: InWorker) -> "SqliteStore":
        """Open the file, or make it and its directory.

        Raises `StoreError` naming the file if that cannot be done, or if the file is damaged or
        belongs to something else; it is left as it is.
        """
        return cls(*await in_worker(_open, path, clock), in_worker)

    async def get(self, prefix: str) -> Snapshot:
        async with self._turn:
            return await self._in_worker(self._entries.get, prefix)

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        assert len({write.key for write in writes}) == len(writes), "a key is written twice"
        async with self._turn:
            outcome = await self._in_worker(self._entries.transact, compare, writes)
        self._written.set()
        return outcome

    async def watch(self, prefix: str, after: int) -> Snapshot:
        while (snapshot := await self.get(prefix)).revision <= after:
            while self._revision <= after:
                await self._wait_for_news(after)
        return snapshot

    async def _wait_for_news(self, after: int) -> None:
        async with self._watch_turn:
            if self._revision <= after:
                wait = self._watched.wait_for_news
                self._revision = await self._in_worker(wait, self._revision, self._written)

    async def grant(self, ttl_s: float) -> Lease:
        async with self._lease_turn:
            return await self._in_worker(self._own_leases.grant, ttl_s)

    async def renew(self, lease_id: int) -> None:
        async with self._lease_turn:
            await self._in_worker(self._own_leases.renew, lease_id)

    async def revoke(self, lease_id: int) -> None:
        async with self._lease_turn:
            await self._in_worker(self._own_leases.end, lease_id)
        await self.transact([], [])

    async def close(self) -> None:
        async with self._watch_turn, self._turn, self._lease_turn:
            for part in (self._watched, self._entries, self._own_leases):
                await self._in_worker(part.close)


class _Entries:
    """One connection to the store's file, and one to that of the leases.

    Its calls block; one thread at a time uses it.
    """

    def __init__(self, path: PurePath, clock: BootClock) -> None:
        self._path = path
        self._connection = connect(path, FORMAT)
        try:
            self._leases = Leases(_leases_path(path), clock)
        except BaseException:
            self._connection.close()
            raise
        self._next_end_in = math.inf
        self._data_version: object = None
        self._seen_revision = 0

    def get(self, prefix: str) -> Snapshot:
        with transaction(self._connection, self._path, "BEGIN"):
            revision = self._revision()
            bounds = (prefix, prefix + LAST_CHARACTER)
            rows = self._connection.execute(RANGE, bounds).fetchall()
        return Snapshot(revision, {row[0]: self._entry(*row) for row in rows})

    def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        with transaction(self._connection, self._path, "BEGIN IMMEDIATE"):
            census = self._leases.end_expired()
            self._remove_entries_of_others_than(census.live)
            used = {write.lease for write in writes if isinstance(write, Put)}
            lost = used - census.live - {NO_LEASE}
            is_granted = not lost and all(
                self._revision_of(key) == revision for key, revision in compare
            )
            if is_granted and writes:
                self._write(writes)
            outcome = TransactionOutcome(is_granted, self._revision())
        if census.ended:
            with suppress(StoreUnavailable):  # the next transaction deletes them
                self._leases.forget(census.ended)
        if lost:
            raise LeaseLost(f"leases that have ended: {sorted(lost)}")
        return outcome

    def wait_for_news(self, known: int, written: threading.Event) -> int:
        """Wait until the revision is above `known`, and return it.

        Checks at once when `written` is set, and clears that. Raises `trio.Cancelled` if the task
        that waits for this thread is cancelled.
        """
        while (revision := self._look()) <= known:
            trio.from_thread.check_cancelled()
            written.wait(min(LOOK_S, max(LOOK_S_MIN, self._next_end_in)))
            written.clear()
        return revision

    def _look(self) -> int:
        """Remove the entries of ended leases, and return the revision."""
        self._next_end_in = self._leases.next_end_in()
        if self._next_end_in <= 0:
            self._seen_revision = self.transact([], []).revision
        with errors(self._path):
            data_version = pragma(self._connection, "data_version")
            if data_version != self._data_version:  # another connection has written
                self._data_version, self._seen_revision = data_version, self._revision()
        return self._seen_revision

    def close(self) -> None:
        self._leases.close()
        self._connection.close()

    def _remove_entries_of_others_than(self, live: Collection[int]) -> None:
        in_use = [row[0] for row in self._connection.execute(LEASES_IN_USE).fetchall()]
        ended = [lease_id for lease_id in in_use if lease_id not in live]
        if ended:
            self._next_revision()
        for lease_id in ended:
            self._connection.execute(REMOVE_LEASED, (lease_id,))

    def _write(self, writes: Sequence[Put | Delete]) -> None:
        revision = self._next_revision()
        for write in writes:
            if isinstance(write, Put):
                row = (write.key, write.value, revision, write.lease)
                self._connection.execute(PUT, (*row, _crc(*row)))
            else:
                self._connection.execute("DELETE FROM entries WHERE key = ?", (write.key,))

    def _next_revision(self) -> int:
        self._connection.execute("UPDATE store SET revision = revision + 1")
        return self._revision()

    def _revision(self) -> int:
        return int(self._connection.execute("SELECT revision FROM store").fetchall()[0][0])

    def _revision_of(self, key: str) -> int:
        query = "SELECT revision FROM entries WHERE key = ?"
        rows = self._connection.execute(query, (key,)).fetchall()
        return int(rows[0][0]) if rows else ABSENT

    def _entry(self, key: str, value: bytes, revision: int, lease: int, crc: int) -> Entry:
        if not isinstance(value, bytes) or _crc(key, value, revision, lease) != crc:
            raise damaged(self._path, f"the entry {key!r} fails its checksum")
        return Entry(value, revision)


def _open(path: PurePath, clock: BootClock) -> tuple[_Entries, _Entries, Leases]:
    with ExitStack() as opened:
        entries = opened.enter_context(closing(_Entries(path, clock)))
        # A power cut may have lost leases and kept their entries, which no watch would notice.
        entries.transact([], [])
        watched = opened.enter_context(closing(_Entries(path, clock)))
        own_leases = opened.enter_context(closing(Leases(_leases_path(path), clock)))
        opened.pop_all()
    return entries, watched, own_leases


def _leases_path(path: PurePath) -> PurePath:
    return path.with_name(path.name + LEASES_SUFFIX)


def _crc(key: str, value: bytes, revision: int, lease: int) -> int:
    return crc32c(b"%s\0%d\0%d\0%s" % (key.encode(), revision, lease, value))


FORMAT: Final = Format(
    name="metadata store",
    application_id=int.from_bytes(b"MBKm", "big"),
    version=2,
    schema=(
        *ENTRIES,
        "CREATE TABLE store (revision INTEGER NOT NULL)",
        "INSERT INTO store VALUES (0)",
    ),
    synchronous="FULL",
    reserve_bytes=1 << 20,
)
