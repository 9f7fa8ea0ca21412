"""The metadata store in one SQLite file: the embedded default.

Every call is one prepared transaction that runs from BEGIN to COMMIT inside one visit to a worker
thread, is read with fetchall, and never spans an await: no transaction is ever left open for a
cancelled task or a slow loop to forget. `synchronous=FULL` with the write-ahead log makes a commit
durable before it is reported. BEGIN IMMEDIATE takes the write lock before anything is compared, so
two processes on the same file exclude each other.

SQLite keeps no checksums of its own. A row therefore carries the CRC of what it says, and a
damaged store is an error that names the file: the broker stops, nothing is deleted or made anew.
A topic that the metadata forgets would take its data with it.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

import trio
from crc32c import crc32c

from minibroker.broker.disk import InWorker
from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Delete,
    Entry,
    Outcome,
    Put,
    Snapshot,
    StoreError,
    StoreUnavailable,
)

APPLICATION_ID: Final = int.from_bytes(b"MBKm", "big")  # in the file's header: it is one of ours
FORMAT_VERSION: Final = 1
WRITE_LOCK_WAIT_S: Final = 1.0
LAST_CHARACTER: Final = "\U0010ffff"

# Nothing was written, and another try may go through.
PASSING: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}

SCHEMA: Final = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,"
    " crc INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE store (revision INTEGER NOT NULL)",
    "INSERT INTO store VALUES (0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)
RANGE: Final = (
    "SELECT key, value, revision, crc FROM entries WHERE key >= ? AND key < ? ORDER BY key"
)
PUT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)"


class SqliteStore:
    """See `MetadataStore`. Made by `open`."""

    def __init__(self, path: PurePath, connection: sqlite3.Connection, in_worker: InWorker) -> None:
        self._path = path
        self._connection = connection
        self._in_worker = in_worker
        # One connection has one transaction: the next caller waits for the worker to be back.
        self._turn = trio.Lock()

    @classmethod
    async def open(cls, path: PurePath, in_worker: InWorker) -> "SqliteStore":
        """Open the file, or make it and its directory.

        Raises `StoreError` naming the file if that cannot be done, or if the file is damaged or
        belongs to something else; it is left as it is.
        """
        return cls(path, await in_worker(_connect, path), in_worker)

    async def get(self, prefix: str) -> Snapshot:
        async with self._turn:
            return await self._in_worker(self._get, prefix)

    async def transact(self, compare: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
        assert len({write.key for write in writes}) == len(writes), "a key is written twice"
        async with self._turn:
            return await self._in_worker(self._transact, compare, writes)

    async def close(self) -> None:
        async with self._turn:
            await self._in_worker(self._connection.close)

    def _get(self, prefix: str) -> Snapshot:
        with _transaction(self._connection, self._path, "BEGIN"):
            revision = _revision(self._connection)
            bounds = (prefix, prefix + LAST_CHARACTER)
            rows = self._connection.execute(RANGE, bounds).fetchall()
        return Snapshot(revision, {row[0]: _entry(self._path, *row) for row in rows})

    def _transact(self, compare: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
        with _transaction(self._connection, self._path, "BEGIN IMMEDIATE"):
            revision = _revision(self._connection)
            if any(self._revision_of(key) != expected for key, expected in compare):
                return Outcome(False, revision)
            if writes:
                revision += 1
                self._connection.execute("UPDATE store SET revision = ?", (revision,))
            for write in writes:
                self._write(write, revision)
        return Outcome(True, revision)

    def _revision_of(self, key: str) -> int:
        query = "SELECT revision FROM entries WHERE key = ?"
        rows = self._connection.execute(query, (key,)).fetchall()
        return int(rows[0][0]) if rows else ABSENT

    def _write(self, write: Put | Delete, revision: int) -> None:
        if isinstance(write, Put):
            crc = _crc(write.key, write.value, revision)
            self._connection.execute(PUT, (write.key, write.value, revision, crc))
        else:
            self._connection.execute("DELETE FROM entries WHERE key = ?", (write.key,))


def _connect(path: PurePath) -> sqlite3.Connection:
    try:
        Path(path.parent).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the directory of the metadata store: {error}") from error
    with _errors(path):
        connection = sqlite3.connect(
            path, timeout=WRITE_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: PurePath) -> None:
    """Check that the file is a sound store of ours, or make it one if it is new."""
    with _errors(path):
        found = _pragma(connection, "application_id"), _pragma(connection, "user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()[0][0]
    if found == (0, 0) and not tables:
        with _transaction(connection, path, "BEGIN IMMEDIATE"):
            # Another process may have made them while this one waited for the lock.
            for statement in SCHEMA if not _pragma(connection, "user_version") else ():
                connection.execute(statement)
    elif found[0] != APPLICATION_ID:
        raise StoreError(f"{path} is a database, but not a metadata store of minibroker")
    elif found[1] != FORMAT_VERSION:
        raise StoreError(
            f"the metadata store {path} has format {found[1]}; this version reads {FORMAT_VERSION}"
        )
    with _errors(path):
        _pragma(connection, "journal_mode = WAL")
        _pragma(connection, "synchronous = FULL")
        verdict = _pragma(connection, "quick_check(1)")
    if verdict != "ok":
        raise _damaged(path, str(verdict))


def _pragma(connection: sqlite3.Connection, pragma: str) -> object:
    rows = connection.execute(f"PRAGMA {pragma}").fetchall()
    return rows[0][0] if rows else None


def _revision(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT revision FROM store").fetchall()[0][0])


def _crc(key: str, value: bytes, revision: int) -> int:
    return crc32c(b"%s\0%d\0%s" % (key.encode(), revision, value))


def _entry(path: PurePath, key: str, value: bytes, revision: int, crc: int) -> Entry:
    if not isinstance(value, bytes) or _crc(key, value, revision) != crc:
        raise _damaged(path, f"the entry {key!r} fails its checksum")
    return Entry(value, revision)


def _damaged(path: PurePath, what: str) -> StoreError:
    return StoreError(
        f"the metadata store {path} is damaged: {what}. Nothing was deleted; put back a copy of "
        f"the file before starting again"
    )


@contextmanager
def _errors(path: PurePath) -> Iterator[None]:
    """Turn SQLite's errors into ours; a misuse of its interface stays what it is."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in PASSING:
            raise StoreUnavailable(f"the metadata store {path}: {error}") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(path, str(error)) from error
        raise StoreError(f"cannot use the metadata store {path}: {error}") from error


@contextmanager
def _transaction(connection: sqlite3.Connection, path: PurePath, begin: str) -> Iterator[None]:
    """All that the block executes, or nothing of it."""
    with _errors(path):
        connection.execute(begin)
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
