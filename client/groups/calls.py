"""What an application asks of a consumer's group: the part of `Consumer` that is about it.

Here are the signatures, and what they promise; `client/groups/group.py` does it.
"""

import re

import trio

from minibroker.client.cluster import Cluster
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.groups.group import Callback, Callbacks, Group, Wanted
from minibroker.client.hand import Hand
from minibroker.client.position import OffsetAndMetadata
from minibroker.protocol.types import TopicPartition


class GroupCalls:
    """All raise `ClientClosed` outside of the `async with` block, `ClientError` without group id.

    Where `partitions` may be left out, all assigned ones are meant.
    """

    _group: Group | None
    _hand: Hand
    _cluster: Cluster | None  # None: not open

    async def subscribe(
        self,
        *topics: str,
        pattern: re.Pattern[str] | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics, or those whose whole names match, with the group: from the next poll.

        It takes the place of what was subscribed to before. The callbacks are async functions of a
        list of partitions, and are called inside of polls, `unsubscribe` and `close`; they may call
        anything but these. `on_revoked` comes before partitions go to others, and may commit;
        `on_lost`, or `on_revoked` where there is none, when that is too late.
        Raises `ClientError` while partitions are assigned by hand.
        """
        group = self._open_group()
        if bool(topics) == (pattern is not None):
            raise ValueError("subscribe to topics or to a pattern")
        await trio.lowlevel.checkpoint()
        self._hand.return_undrawn()
        group.subscribe(topics, pattern, Callbacks(on_assigned, on_revoked, on_lost))

    async def unsubscribe(self) -> None:
        """Let go of all partitions, and leave the group. Raises what `on_revoked` raises."""
        group = self._open_group()
        self._hand.return_undrawn()
        await group.unsubscribe()

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed to, by name; those of a pattern as of the last look."""
        return self._open_group().subscription

    async def commit(self, offsets: Wanted | None = None) -> None:
        """Commit these offsets, those of the next records to read; else all positions, which are
        behind all records that were handed out, so call it when they are done with.

        Raises `CommitFailed` for who is no member any more, `BrokerError` for a partition that is
        refused (the others are committed), and `ClientTimeout` when nobody knows. While another
        task closes the consumer, positions are no longer committed, but for callbacks:
        `ClientClosed`.
        """
        await self.commit_from(offsets, is_callback=False)

    async def commit_from(self, offsets: Wanted | None, *, is_callback: bool) -> None:
        """The same; `is_callback`: whether a rebalance callback is the caller."""
        await self._open_group().commit(offsets, is_callback=is_callback)

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each; None where nothing was.

        Raises `BrokerError` and `ClientTimeout`.
        """
        group = self._open_group()
        return await group.committed(
            [TopicPartition(*n) for n in partitions or self._hand.assignment]
        )

    def _open_group(self) -> Group:
        if self._cluster is None:
            raise ClientClosed("this consumer is closed, or was not opened with `async with`")
        if self._group is None:
            raise ClientError("this consumer is in no group: give it a group_id")
        return self._group
