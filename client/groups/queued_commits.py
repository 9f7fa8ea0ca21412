"""Commits that nobody waits for (`Consumer.commit_async`).

One task sends them, all that gathered during the last one at once. A later commit of a partition
takes the place of an earlier one that was not sent yet, so what waits is one offset for each
partition, however fast the application is; every caller is told of its own all the same.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from minibroker.client.committed_offsets import OffsetAndMetadata, Offsets
from minibroker.client.errors import ClientError
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition

# Called with what a `commit_async` was about, and with why it failed or None.
OnCommit: TypeAlias = Callable[[Offsets, Exception | None], object]

log = logging.getLogger("minibroker.client")


class QueuedCommits:
    """Those of one consumer. `commit` sends offsets and waits for the answer."""

    def __init__(self, group_id: str, commit: Callable[[Offsets], Awaitable[None]]) -> None:
        self._group_id = group_id
        self._commit = commit
        self._offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self._calls: list[tuple[Offsets, OnCommit | None]] = []
        self._is_committing = False
        self._changed = trio.lowlevel.ParkingLot()

    def add(self, offsets: Offsets, on_commit: OnCommit | None) -> None:
        """Commit these soon."""
        self._offsets |= offsets
        self._calls.append((offsets, on_commit))
        self._changed.unpark_all()

    async def finish(self) -> None:
        """Wait until nothing is left of what was added before."""
        while self._calls or self._is_committing:
            await self._changed.park()

    async def run(self) -> None:
        """Send what is added, until cancelled."""
        while True:
            if not self._calls:
                await self._changed.park()
                continue
            offsets, self._offsets = self._offsets, {}
            calls, self._calls = self._calls, []
            failure: Exception | None = None
            self._is_committing = True
            try:
                await self._commit(offsets)
            except (ClientError, BrokerError) as error:
                failure = error
            finally:
                self._is_committing = False
                self._changed.unpark_all()
            for chosen, on_commit in calls:
                if on_commit is not None:
                    on_commit(chosen, failure)
            if failure is not None and not all(on_commit for _, on_commit in calls):
                log.warning("group %s: commit_async: %s", self._group_id, failure)
