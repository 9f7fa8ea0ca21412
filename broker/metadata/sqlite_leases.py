"""The leases of the SQLite store: a second file beside it, with the moment at which each ends.

Every broker renews its lease several times a second, so the leases are not in the metadata's file:
a renewal does not sync the disk (`synchronous=NORMAL`) and does not wait for a transaction of the
other file. A power cut may lose renewals, but it ends all leases anyway: a deadline names the boot
of the machine whose clock it uses. All processes of the machine share that clock, and it runs on
while the machine sleeps. A deadline of another boot has passed.

The end of a lease is final. A process that finds a deadline passed marks the lease as ended, in a
transaction of this file, before it removes entries. A renewal takes the same lock and then reads
the clock, so it finds the deadline either ahead or marked. So no lease is renewed after its end,
however long a process was stopped in between. The row is deleted once the lease's entries are gone.
If a process fails in between, the lease stays marked, and the next process removes the rest.
"""

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Final, NamedTuple

from minibroker.broker.metadata.sqlite_file import Format, connect, errors, transaction
from minibroker.broker.metadata.store import Lease, LeaseLost

ENDED: Final = 0.0  # the deadline of a lease that is marked as ended

FORMAT: Final = Format(
    name="file of leases",
    application_id=int.from_bytes(b"MBKl", "big"),
    version=1,
    schema=(
        "CREATE TABLE leases (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, ttl_s REAL NOT NULL,"
        " deadline REAL NOT NULL)",
    ),
    synchronous="NORMAL",
    reserve_bytes=1 << 16,
)
# No id is used twice, even if a power cut loses the row and keeps the entries.
GRANT: Final = "INSERT INTO leases VALUES (random() & 0x7fffffffffffffff, ?, ?, ?) RETURNING id"
RENEW: Final = (
    "UPDATE leases SET deadline = ? + ttl_s WHERE id = ? AND boot_id = ? AND deadline > ?"
)
END: Final = "UPDATE leases SET deadline = ? WHERE id = ?"
END_EXPIRED: Final = "UPDATE leases SET deadline = ? WHERE boot_id <> ? OR deadline <= ?"
NEXT_END: Final = "SELECT min(CASE boot_id WHEN ? THEN deadline ELSE 0 END) FROM leases"


class BootClock(NamedTuple):
    """The id of the machine's boot, and a clock of seconds since that, sleep included."""

    boot_id: str
    now: Callable[[], float]


class Census(NamedTuple):
    """The ids of the live leases, and of those marked as ended."""

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
            now = self._clock.now()  # once the lock is held, since that may have taken long
            row = (now, lease_id, self._clock.boot_id, now)
            is_renewed = self._connection.execute(RENEW, row).rowcount == 1
        if not is_renewed:
            raise LeaseLost(f"lease {lease_id} has ended")

    def end(self, lease_id: int) -> None:
        """Mark a lease as ended, whatever time it had left."""
        with self._transaction():
            self._connection.execute(END, (ENDED, lease_id))

    def next_end_in(self) -> float:
        """Return in how many seconds a lease may end; 0 or less: one has ended, unmarked."""
        with errors(self._path):
            rows = self._connection.execute(NEXT_END, (self._clock.boot_id,)).fetchall()
        return math.inf if rows[0][0] is None else float(rows[0][0]) - self._clock.now()

    def end_expired(self) -> Census:
        """Mark the leases whose deadline has passed, and return the live and the marked ones."""
        if self.next_end_in() <= 0:
            with self._transaction():
                row = (ENDED, self._clock.boot_id, self._clock.now())
                self._connection.execute(END_EXPIRED, row)
        with errors(self._path):
            rows = self._connection.execute("SELECT id, deadline FROM leases").fetchall()
        live = frozenset(lease_id for lease_id, deadline in rows if deadline != ENDED)
        return Census(live, frozenset(lease_id for lease_id, _ in rows) - live)

    def forget(self, ended: Collection[int]) -> None:
        """Delete marked leases that have no entries left."""
        with self._transaction():
            rows = [(lease_id,) for lease_id in ended]
            self._connection.executemany("DELETE FROM leases WHERE id = ?", rows)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._connection.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._connection, self._path, "BEGIN IMMEDIATE")
