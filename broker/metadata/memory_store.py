"""The metadata store in memory: for tests, simulations and `metadata.store=memory:`.

It lives as long as the process, not the broker: `close` keeps the entries, so that a simulated
broker finds them when it starts again. Several brokers of one process may share it.

Leases use trio's clock, virtual or not, and need no task: every call first ends the expired ones,
and `watch` wakes when the next one expires. So an entry is gone for all callers at the moment its
lease ends, and a watch notices it then.
"""

import math
from collections.abc import Sequence

import trio

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
    TransactionOutcome,
)


class _Held:
    """A lease: its deadline on trio's clock, and the keys written with it."""

    __slots__ = ("deadline", "keys", "ttl_s")

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.deadline = trio.current_time() + ttl_s
        self.keys: dict[str, None] = {}  # a set would have no order


class MemoryStore:
    """See `MetadataStore`. Every call has one checkpoint, before it does anything."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self._leases: dict[int, _Held] = {}
        self._lease_of: dict[str, int] = {}
        self._last_lease = NO_LEASE
        self._changed = trio.Event()

    async def get(self, prefix: str) -> Snapshot:
        await trio.lowlevel.checkpoint()
        self._end_expired()
        return self._snapshot(prefix)

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        assert len({write.key for write in writes}) == len(writes), "a key is written twice"
        await trio.lowlevel.checkpoint()
        self._end_expired()
        for write in writes:
            if isinstance(write, Put) and write.lease != NO_LEASE:
                self._held(write.lease)
        if any(self._revision_of(key) != revision for key, revision in compare):
            return TransactionOutcome(False, self._revision)
        if writes:
            self._write(writes)
        return TransactionOutcome(True, self._revision)

    async def watch(self, prefix: str, after: int) -> Snapshot:
        await trio.lowlevel.checkpoint()
        self._end_expired()
        while self._revision <= after:
            deadlines = [held.deadline for held in self._leases.values()]
            with trio.move_on_at(min(deadlines, default=math.inf)):
                await self._changed.wait()
            self._end_expired()
        return self._snapshot(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        await trio.lowlevel.checkpoint()
        self._last_lease += 1
        self._leases[self._last_lease] = _Held(ttl_s)
        return Lease(self._last_lease, ttl_s)

    async def renew(self, lease_id: int) -> None:
        await trio.lowlevel.checkpoint()
        self._end_expired()
        held = self._held(lease_id)
        held.deadline = trio.current_time() + held.ttl_s

    async def revoke(self, lease_id: int) -> None:
        await trio.lowlevel.checkpoint()
        self._end_expired()
        if lease_id in self._leases:
            self._end([lease_id])

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    def _end_expired(self) -> None:
        now = trio.current_time()
        self._end([lease_id for lease_id, held in self._leases.items() if held.deadline <= now])

    def _end(self, lease_ids: Sequence[int]) -> None:
        keys = [key for lease_id in lease_ids for key in self._leases.pop(lease_id).keys]
        if keys:
            self._write([Delete(key) for key in keys])

    def _write(self, writes: Sequence[Put | Delete]) -> None:
        self._revision += 1
        for write in writes:
            self._leave_lease(write.key)
            if isinstance(write, Delete):
                self._entries.pop(write.key, None)
                continue
            self._entries[write.key] = Entry(write.value, self._revision)
            if write.lease != NO_LEASE:
                self._lease_of[write.key] = write.lease
                self._leases[write.lease].keys[write.key] = None
        self._wake()

    def _leave_lease(self, key: str) -> None:
        held = self._leases.get(self._lease_of.pop(key, NO_LEASE))
        if held is not None:
            del held.keys[key]

    def _held(self, lease_id: int) -> _Held:
        if lease_id not in self._leases:
            raise LeaseLost(f"lease {lease_id} has ended")
        return self._leases[lease_id]

    def _snapshot(self, prefix: str) -> Snapshot:
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(self._revision, {key: self._entries[key] for key in keys})

    def _revision_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return ABSENT if entry is None else entry.revision

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
