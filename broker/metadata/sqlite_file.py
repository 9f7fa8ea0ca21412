"""One SQLite file of a store: opening and checking it, transactions, and errors.

A transaction takes the write lock before it reads what it decides on (`BEGIN IMMEDIATE`), reads
with fetchall, and ends with the block: none is left open. A writer waits a second for the lock. If
it does not get it, the holder was probably stopped inside a write. That harms no data, but no
process can write, and only an operator can change it. So the error names the process.

A store keeps disk space in reserve, which the logs on the same disk cannot take. What makes room on
a full disk (deleting a topic, other settings) is written here first, and so are the leases that
keep a broker in the cluster. The write-ahead log gets its whole size at once, and is copied into
the database long before it is full; it then begins again at its start. The database has free pages.
A disk that is full at the start gives none.

The process is found in /proc/locks and not with F_GETLK, which needs the lock's file open: when a
process closes any descriptor of a file, POSIX drops all its locks on that file, SQLite's too.
"""

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from minibroker.broker.metadata.sqlite_locks import write_locks
from minibroker.broker.metadata.store import StoreError, StoreFull, StoreUnavailable
from minibroker.broker.private_files import create_private_file, make_private_dir

logger = logging.getLogger(__name__)
WRITE_LOCK_WAIT_S: Final = 1.0
WRITE_LOCK_BYTE: Final = 120  # in the file `-shm`; part of SQLite's file format

CHECKPOINT_PAGES: Final = 400  # in the write-ahead log, after which it is copied: 1.6 MB
LOG_BYTES: Final = 3 << 20  # that, and a large transaction
RESERVE: Final = "reserve"  # the table that makes free pages

# Nothing was written, and another try may succeed.
PASSING: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Format(NamedTuple):
    """The ids and the schema by which a database is recognised, and how durable commits are."""

    name: str
    application_id: int  # in the file's header
    version: int
    schema: tuple[str, ...]
    synchronous: str
    reserve_bytes: int = 0  # free pages of a database that may grow

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that turn an empty database into one of this format."""
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
        make_private_dir(path.parent)
    except OSError as error:
        raise StoreError(f"cannot make the directory of the {form.name}: {error}") from error
    _create_private(path)
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


def _create_private(path: PurePath) -> None:
    """Create the file for this user alone, if there is none. SQLite gives its -wal and -shm files
    the same mode."""
    try:
        create_private_file(path)
    except OSError as error:
        raise StoreError(f"cannot make the metadata store {path}: {error.strerror}") from error
    if not Path(path).is_file():  # a link may lead to one
        raise StoreError(f"{path} is no file: name another metadata.store")


def _prepare(connection: sqlite3.Connection, path: PurePath, form: Format) -> None:
    """Check that the file is sound and of this format; create the tables if it is new."""
    with _one_process_at_a_time(path):
        _make_or_recognise(connection, path, form)
        try:
            _reserve(connection, path, form)
        except StoreFull:
            logger.warning("%s: the disk is full, so no space is kept in reserve", path)
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
        pragma(connection, "temp_store = MEMORY")  # no file is opened later
    if is_new:
        with transaction(connection, path, "BEGIN IMMEDIATE"):
            for statement in form.statements:
                connection.execute(statement)


def _reserve(connection: sqlite3.Connection, path: PurePath, form: Format) -> None:
    """Take disk space for later writes. Raises `StoreFull` if there is too little."""
    with errors(path):
        pragma(connection, f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
        free = int(str(pragma(connection, "freelist_count")))
        free_bytes = free * int(str(pragma(connection, "page_size")))
    if 2 * free_bytes < form.reserve_bytes:
        with transaction(connection, path, "BEGIN IMMEDIATE"):
            connection.execute(f"DROP TABLE IF EXISTS {RESERVE}")
            table = f"CREATE TABLE {RESERVE} AS SELECT zeroblob({form.reserve_bytes})"
            connection.execute(table)
        with errors(path):
            pragma(connection, "wal_checkpoint(PASSIVE)")  # until then it is only in the log
        with transaction(connection, path, "BEGIN IMMEDIATE"):
            connection.execute(f"DROP TABLE {RESERVE}")
    # The log's file has no locks (those are on -shm), so closing a descriptor of it drops none.
    log_path = Path(f"{path}-wal")
    if hasattr(os, "posix_fallocate") and log_path.stat().st_size < LOG_BYTES:
        with transaction(connection, path, "BEGIN IMMEDIATE"):  # nobody writes to the log
            _extend(log_path)


def _extend(log_path: Path) -> None:
    """Give the write-ahead log its whole size. What is behind its last valid frame is ignored."""
    descriptor = os.open(log_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        os.posix_fallocate(descriptor, size, max(1, LOG_BYTES - size))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return  # this file system has no such call: the log grows as it is written
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(f"cannot use the metadata store {log_path}: {error}") from error
        raise StoreFull(f"the metadata store {log_path}: the disk is full: make room") from error
    finally:
        os.close(descriptor)


@contextmanager
def _one_process_at_a_time(path: PurePath) -> Iterator[None]:
    """Let one process at a time open the file: SQLite does not wait while another begins a WAL.

    The lock is on the directory: closing another descriptor of the file would drop SQLite's locks.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def pragma(connection: sqlite3.Connection, text: str) -> object:
    """Return the result of a PRAGMA."""
    rows = connection.execute(f"PRAGMA {text}").fetchall()
    return rows[0][0] if rows else None


def damaged(path: PurePath, what: str) -> StoreError:
    """Return the error that says that a store is damaged, and what to do."""
    return StoreError(
        f"the metadata store {path} is damaged: {what}. Nothing was deleted; put back a copy of "
        f"the file before starting again"
    )


@contextmanager
def errors(path: PurePath) -> Iterator[None]:
    """Turn SQLite's errors into `StoreError`s, except those of a misuse of its interface."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            text = f"the metadata store {path}: {error}; {_holder_of_write_lock(path)}"
            raise StoreUnavailable(text) from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFull(f"the metadata store {path}: the disk is full: make room") from error
        if code in PASSING:
            raise StoreUnavailable(f"the metadata store {path}: {error}") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, str(error)) from error
        raise StoreError(f"cannot use the metadata store {path}: {error}") from error


@contextmanager
def transaction(connection: sqlite3.Connection, path: PurePath, begin: str) -> Iterator[None]:
    """Run the block in a transaction; an exception rolls it back."""
    with errors(path):
        connection.execute(begin)
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _holder_of_write_lock(path: PurePath) -> str:
    """Say which process holds the write lock, as far as this system tells."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        locks = write_locks()
    except OSError:
        return "who holds its write lock cannot be told here"
    for pid, locked, first_byte in locks:
        if (locked, first_byte) == (inode, WRITE_LOCK_BYTE):
            return f"process {pid} holds its write lock{_state(pid)}"
    return "nobody holds its write lock any more"


def _state(pid: int) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return " and is stopped: continue or kill it" if state in "Tt" else ""
