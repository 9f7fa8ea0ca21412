"""One SQLite file of ours: opened and checked, its transactions, and its errors in our words.

A transaction takes the write lock before it reads what it decides upon (`BEGIN IMMEDIATE`), is read
with fetchall, and is over when the block ends: none is left open. A writer waits a second for the
lock. If it does not come, the holder most likely was stopped inside a write: that harms nothing,
but nobody can write, and only an operator can change it. So the error names the process.

It is found in /proc/locks and not with F_GETLK, for which the lock's file would have to be opened:
when a process closes any descriptor of a file, POSIX drops all its locks there, SQLite's too.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from minibroker.broker.metadata.store import StoreError, StoreUnavailable

WRITE_LOCK_WAIT_S: Final = 1.0
WRITE_LOCK_BYTE: Final = 120  # in the file `-shm`; part of SQLite's file format
LOCKS: Final = Path("/proc/locks")

# Nothing was written, and another try may go through.
PASSING: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}


class Format(NamedTuple):
    """What makes a database one of ours, and how durable its commits are."""

    name: str
    application_id: int  # in the file's header
    version: int
    schema: tuple[str, ...]
    synchronous: str

    @property
    def statements(self) -> tuple[str, ...]:
        """What makes an empty database one of this format."""
        return (
            *self.schema,
            f"PRAGMA application_id = {self.application_id}",
            f"PRAGMA user_version = {self.version}",
        )


def connect(path: PurePath, form: Format) -> sqlite3.Connection:
    """Open a file, or make it and its directory.

    Raises `StoreError` naming the file if that cannot be done, or if the file is damaged or belongs
    to something else; it is left as it is.
    """
    try:
        Path(path.parent).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the directory of the {form.name}: {error}") from error
    with errors(path):
        connection = sqlite3.connect(
            path, timeout=WRITE_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )
    try:
        _prepare(connection, path, form)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: PurePath, form: Format) -> None:
    """Check that the file is a sound one of this form, or make it one if it is new."""
    with _one_process_at_a_time(path):
        _make_or_recognise(connection, path, form)
    with errors(path):
        verdict = pragma(connection, "quick_check(1)")
    if verdict != "ok":
        raise damaged(path, str(verdict))


def _make_or_recognise(connection: sqlite3.Connection, path: PurePath, form: Format) -> None:
    with errors(path):
        found = pragma(connection, "application_id"), pragma(connection, "user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()[0][0]
    is_new = found == (0, 0) and not tables
    if not is_new and found[0] != form.application_id:
        raise StoreError(f"{path} is a database, but not a {form.name} of minibroker")
    if not is_new and found[1] != form.version:
        raise StoreError(
            f"the {form.name} {path} has format {found[1]}, and this minibroker reads only format"
            f" {form.version}: start with a new data directory, or use the minibroker that wrote it"
        )
    with errors(path):
        pragma(connection, "journal_mode = WAL")
        pragma(connection, f"synchronous = {form.synchronous}")
    if is_new:
        with transaction(connection, path, "BEGIN IMMEDIATE"):
            for statement in form.statements:
                connection.execute(statement)


@contextmanager
def _one_process_at_a_time(path: PurePath) -> Iterator[None]:
    """Several brokers may start at once, and SQLite does not wait for who else begins a WAL.

    The lock is on the directory: closing another descriptor of the file would drop SQLite's locks.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def pragma(connection: sqlite3.Connection, text: str) -> object:
    """What a PRAGMA answers."""
    rows = connection.execute(f"PRAGMA {text}").fetchall()
    return rows[0][0] if rows else None


def damaged(path: PurePath, what: str) -> StoreError:
    """The error that says so, and what to do."""
    return StoreError(
        f"the metadata store {path} is damaged: {what}. Nothing was deleted; put back a copy of "
        f"the file before starting again"
    )


@contextmanager
def errors(path: PurePath) -> Iterator[None]:
    """Turn SQLite's errors into ours; a misuse of its interface stays what it is."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            text = f"the metadata store {path}: {error}; {_holder_of_write_lock(path)}"
            raise StoreUnavailable(text) from error
        if code in PASSING:
            raise StoreUnavailable(f"the metadata store {path}: {error}") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, str(error)) from error
        raise StoreError(f"cannot use the metadata store {path}: {error}") from error


@contextmanager
def transaction(connection: sqlite3.Connection, path: PurePath, begin: str) -> Iterator[None]:
    """All that the block executes, or nothing of it."""
    with errors(path):
        connection.execute(begin)
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _holder_of_write_lock(path: PurePath) -> str:
    """Says which process it is, as far as this system tells."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        locks = [line.split() for line in LOCKS.read_text().splitlines()]
    except OSError:
        return "who holds its write lock cannot be told here"
    for lock in locks:
        # 1: POSIX ADVISORY WRITE 4711 fe:00:10027927 120 120; one that waits has "->" in it.
        is_ours = lock[3] == "WRITE" and lock[5].endswith(f":{inode}")
        if is_ours and lock[6] == str(WRITE_LOCK_BYTE):
            return f"process {lock[4]} holds its write lock{_state(lock[4])}"
    return "nobody holds its write lock any more"


def _state(pid: str) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return " and is stopped: continue or kill it" if state in "Tt" else ""
