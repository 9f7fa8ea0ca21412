"""The leases of the SQLite store: a second file beside it, with the moment at which each ends.

They are renewed several times a second by every broker, so they are kept apart from the metadata:
a renewal forces nothing to the disk (`synchronous=NORMAL`) and does not wait for a transaction of
the other file. What a power cut takes from it is worthless, for it ends all leases anyway: a
deadline counts on the clock of one boot of the machine, which all its processes share and which
runs on while the machine sleeps, and names that boot. One of another boot has passed.

The end of a lease is final. Who finds that a deadline has passed marks it, in a transaction of this
file, before any entry is removed; renewing takes the same lock, reads the clock after it has it,
and finds either its deadline still ahead or no lease. So nobody renews what somebody has ended,
however long he was stopped in between. A row goes when the entries of its lease are gone; if
that does not come about, it stays marked, and the next one to look does the rest.
"""

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Final, NamedTuple

from minibroker.broker.metadata.sqlite_file import Format, connect, errors, transaction
from minibroker.broker.metadata.store import Lease, LeaseLost

ENDED: Final = 0.0  # the deadline of a lease that somebody has ended

FORMAT: Final = Format(
    name="file of leases",
    application_id=int.from_bytes(b"MBKl", "big"),
    version=1,
    schema=(
        "CREATE TABLE leases (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, ttl_s REAL NOT NULL,"
        " deadline REAL NOT NULL)",
    ),
    synchronous="NORMAL",
)
# Never used twice, not even if a power cut takes the row and leaves the entries.
GRANT: Final = "INSERT INTO leases VALUES (random() & 0x7fffffffffffffff, ?, ?, ?) RETURNING id"
RENEW: Final = (
    "UPDATE leases SET deadline = ? + ttl_s WHERE id = ? AND boot_id = ? AND deadline > ?"
)
END: Final = "UPDATE leases SET deadline = ? WHERE id = ?"
END_EXPIRED: Final = "UPDATE leases SET deadline = ? WHERE boot_id <> ? OR deadline <= ?"
NEXT_END: Final = "SELECT min(CASE boot_id WHEN ? THEN deadline ELSE 0 END) FROM leases"


class BootClock(NamedTuple):
    """Seconds since the machine's start, sleep included, and which start that was."""

    boot_id: str
    now: Callable[[], float]


class Census(NamedTuple):
    """The leases that live, and those that are marked as ended."""

    live: frozenset[int]
    ended: frozenset[int]


class Leases:
    """One connection to the file; blocks, and is used by one thread at a time."""

    def __init__(self, path: PurePath, clock: BootClock) -> None:
        self._path = path
        self._clock = clock
        self._connection = connect(path, FORMAT)

    def grant(self, ttl_s: float) -> Lease:
        """See `MetadataStore.grant`."""
        with self._transaction():
            row = (self._clock.boot_id, ttl_s, self._clock.now() + ttl_s)
            [[lease_id]] = self._connection.execute(GRANT, row).fetchall()
        return Lease(lease_id, ttl_s)

    def renew(self, lease_id: int) -> None:
        """See `MetadataStore.renew`."""
        with self._transaction():
            now = self._clock.now()  # not before the lock is held: that may have taken long
            row = (now, lease_id, self._clock.boot_id, now)
            is_renewed = self._connection.execute(RENEW, row).rowcount == 1
        if not is_renewed:
            raise LeaseLost(f"lease {lease_id} has ended")

    def end(self, lease_id: int) -> None:
        """Mark a lease as ended, whatever time it had left."""
        with self._transaction():
            self._connection.execute(END, (ENDED, lease_id))

    def next_end_in(self) -> float:
        """How many seconds from now a lease may end; none or less: one has, and is still here."""
        with errors(self._path):
            rows = self._connection.execute(NEXT_END, (self._clock.boot_id,)).fetchall()
        return math.inf if rows[0][0] is None else float(rows[0][0]) - self._clock.now()

    def end_expired(self) -> Census:
        """Mark all whose time has come, and tell which live."""
        if self.next_end_in() <= 0:
            with self._transaction():
                row = (ENDED, self._clock.boot_id, self._clock.now())
                self._connection.execute(END_EXPIRED, row)
        with errors(self._path):
            rows = self._connection.execute("SELECT id, deadline FROM leases").fetchall()
        live = frozenset(lease_id for lease_id, deadline in rows if deadline != ENDED)
        return Census(live, frozenset(lease_id for lease_id, _ in rows) - live)

    def forget(self, ended: Collection[int]) -> None:
        """Remove leases that were marked, and of which no entry is left."""
        with self._transaction():
            rows = [(lease_id,) for lease_id in ended]
            self._connection.executemany("DELETE FROM leases WHERE id = ?", rows)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._connection.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._connection, self._path, "BEGIN IMMEDIATE")
