"""The metadata store that forgets: for tests, simulations and `metadata.store=memory:`.

It outlives the broker that uses it, not the process: `close` keeps the entries, so that a
simulated broker finds them when it starts again.
"""

from collections.abc import Sequence

import trio

from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Delete,
    Entry,
    Outcome,
    Put,
    Snapshot,
)


class MemoryStore:
    """See `MetadataStore`. Every call is a checkpoint before it does anything, never after."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def get(self, prefix: str) -> Snapshot:
        await trio.lowlevel.checkpoint()
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(self._revision, {key: self._entries[key] for key in keys})

    async def transact(self, compare: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
        assert len({write.key for write in writes}) == len(writes), "a key is written twice"
        await trio.lowlevel.checkpoint()
        if any(self._revision_of(key) != revision for key, revision in compare):
            return Outcome(False, self._revision)
        if writes:
            self._revision += 1
        for write in writes:
            if isinstance(write, Put):
                self._entries[write.key] = Entry(write.value, self._revision)
            else:
                self._entries.pop(write.key, None)
        return Outcome(True, self._revision)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    def _revision_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return ABSENT if entry is None else entry.revision
