"""A consumer's group, as its application sees it: rebalances, commits, and the end.

The assignment changes only while the application polls (or closes), because then it is done with
all records that were delivered to it. `advance` does what is due there, in this order:

1. It drops lost partitions, after `on_lost`; nothing of them is committed. 2. It raises an error
that the application has to know. 3. It gives up partitions that others get: `on_revoked`, then,
with `enable.auto.commit`, a commit, then it drops them. With range or roundrobin these are all,
before each JOIN; with cooperative-sticky only those that move, after SYNC, and the member joins
again to say so. 4. It takes over the new assignment: `on_assigned`. If the callback does not seek,
a new partition begins at the group's committed offset.

If the application cancels a step, the next poll repeats it. An exception of a callback leaves the
poll once the step is done. If another task is in `advance`, `close` ends that first.

With `assign` and a group id there is no membership: offsets are committed and fetched, nothing
more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from minibroker.client.committed_offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    Offsets,
    OffsetsToCommit,
    read_offsets,
)
from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.consumer.positions import Positions
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.groups.membership import Membership, State
from minibroker.client.groups.membership_tasks import MembershipTasks
from minibroker.client.groups.offset_commits import CommitAnswer, OffsetCommits
from minibroker.client.groups.queued_commits import OnCommit, QueuedCommits
from minibroker.client.net.cluster import Cluster
from minibroker.client.net.coordinator_client import CoordinatorClient
from minibroker.client.options import ConsumerOptions
from minibroker.client.topic_selection import TopicSelection
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition

Callback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[object]]

# How much of the time for a close is kept for the LEAVE.
LEAVE_S: Final = 1.0
INSIDE: Final = "a callback cannot leave the group: raise an error, or do it later"

log = logging.getLogger("minibroker.client")


class RebalanceCallbacks(NamedTuple):
    """The application's callbacks. Without `lost`, `revoked` is called instead."""

    assigned: Callback | None = None
    revoked: Callback | None = None
    lost: Callback | None = None


class ConsumerGroup:
    """One consumer's membership in its group."""

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        positions: Positions,
        delivered: DeliveredPositions[Any, Any],
        record_answer: Callable[[CommitAnswer], None],
    ) -> None:
        options = cluster.options
        assert isinstance(options, ConsumerOptions)
        self._options = options
        self._fetcher = fetcher
        self._positions = positions
        self._delivered = delivered
        self._callbacks = RebalanceCallbacks()
        self._turn = trio.StrictFIFOLock()  # held by the task that changes the assignment
        self._advancing = trio.CancelScope()
        self._is_polled = False
        self._wait_count = 0  # calls in which the application waits for the group
        self._unannounced: set[TopicPartition] = set()  # assigned; `on_assigned` is still to return
        self._is_closing = False
        self._is_gone = False  # close has dropped all partitions
        self._new_partitions = trio.lowlevel.ParkingLot()
        self.membership = Membership(options)
        coordinator = CoordinatorClient(cluster, options.group_id)
        self._tasks = MembershipTasks(cluster, coordinator, self.membership, delivered, self._wake)
        self._commits = OffsetCommits(coordinator, self.membership, record_answer)
        self._queued = QueuedCommits(options.group_id, self._commit_now)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what does not need the application, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._tasks.run)
            nursery.start_soon(self._start_new_partitions)
            nursery.start_soon(self._queued.run)
            if self._options.enable_auto_commit:
                nursery.start_soon(self._auto_commit)
            task_status.started()

    # -- which topics

    @property
    def subscription(self) -> list[str]:
        """The topics that it reads as a member; those of a pattern once they have been looked
        up."""
        return list(self._tasks.subscription.topics)

    def subscribe(self, selection: TopicSelection, callbacks: RebalanceCallbacks) -> None:
        """Replace the subscription, from the next poll on.

        Joining begins at once, so `max.poll.interval.ms` counts from now.
        """
        if not self.membership.is_subscribed and self._positions.assignment:
            raise ClientError("partitions are assigned by hand: `unsubscribe` first")
        self._callbacks = callbacks
        self._tasks.subscription.set_topics(*selection)
        self.membership.request_join()
        if not self._wait_count:
            self.membership.end_poll(trio.current_time())
        self._tasks.wake()

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group."""
        self.check_outside()
        self._begin_wait()
        try:
            async with self._turn:
                failure = await self._give_up()
                await self._leave()
        finally:
            self._end_wait()
        if failure is not None:
            raise failure

    def check_not_subscribed(self) -> None:
        """Raise `ClientError` if the consumer is a member: it cannot assign by hand, too."""
        if self.membership.is_subscribed:
            raise ClientError("this consumer is subscribed: `unsubscribe` before you assign")

    def check_outside(self) -> None:
        """Raise `ClientError` if called in a callback, where the consumer cannot leave."""
        if self._turn.statistics().owner is trio.lowlevel.current_task():
            raise ClientError(INSIDE)

    def on_manual_assignment(self) -> None:
        """Handle that the application has assigned partitions by hand."""
        self._new_partitions.unpark_all()

    # -- polling

    def begin_poll(self) -> None:
        """Record that the application polls. Raises `ClientError` if another poll is under way."""
        if self._is_polled:
            raise ClientError("a consumer is polled by one task, and not by a callback of its poll")
        self._is_polled = True
        self._begin_wait()

    def end_poll(self) -> None:
        """Record that a poll ends, with or without records."""
        self._is_polled = False
        self._end_wait()

    def _begin_wait(self) -> None:
        """Stop `max.poll.interval.ms`: the application waits in poll, unsubscribe or close."""
        self._wait_count += 1
        self.membership.begin_poll()

    def _end_wait(self) -> None:
        self._wait_count -= 1
        if not self._wait_count:
            self.membership.end_poll(trio.current_time())

    async def advance(self) -> bool:
        """Do what is due; return whether records may be delivered then.

        It has no checkpoint if nothing is due. Raises what a callback raised, or what a broker
        refused.
        """
        if self._needs_application:
            with trio.CancelScope() as self._advancing:
                async with self._turn:
                    await self._advance()
            if self._advancing.cancelled_caught:
                raise ClientClosed("this consumer was closed")
        is_in_doubt = self.membership.is_in_doubt(trio.current_time())
        self._tasks.is_withholding = is_in_doubt
        return not is_in_doubt

    @property
    def _needs_application(self) -> bool:
        return self._tasks.needs_application or bool(self._unannounced)

    async def _advance(self) -> None:
        member = self.membership
        while self._needs_application:
            failure: Exception | None = None
            if member.is_lost:
                failure = await self._drop_lost()
            elif member.failure is not None:
                failure = member.pop_failure()
                self._new_partitions.unpark_all()
            elif member.state is State.ASSIGNED:
                failure = await self._complete_rebalance()
            elif released := self._tasks.to_release():
                failure = await self._revoke(released)
            else:
                failure = await self._call_on_assigned()
            self._tasks.wake()
            if failure is not None:
                raise failure

    async def _drop_lost(self) -> Exception | None:
        failure: Exception | None = None
        if lost := self._positions.assignment:
            failure = await self._call(self._callbacks.lost or self._callbacks.revoked, lost)
        self._assign(())
        self.membership.accept_loss()
        return failure

    async def _revoke(self, revoked: list[TopicPartition]) -> Exception | None:
        failure = await self._call(self._callbacks.revoked, revoked)
        if not self.membership.is_lost:
            await self._commit_without_raising()
            # A later repetition of another task's commit would overwrite the next owner's.
            await self._queued.finish()
            await self._commits.finish()
        elif self._options.enable_auto_commit and self._delivered.uncommitted():
            text = "group %s: auto commit: this member was put out before; records are read again"
            log.warning(text, self.membership.group_id)
        self._assign(set(self._positions.assignment).difference(revoked))
        return failure

    async def _complete_rebalance(self) -> Exception | None:
        generation, assigned = self.membership.generation, set(self.membership.assignment)
        held = set(self._positions.assignment)
        failure: Exception | None = None
        if revoked := sorted(held - assigned):
            failure = await self._revoke(revoked)
        if self.membership.is_lost or self.membership.generation != generation:
            return failure
        self._assign(assigned)
        self._unannounced = assigned - held
        self.membership.complete_rebalance(must_join=bool(revoked))
        self._tasks.wake()
        return await self._call_on_assigned() or failure

    async def _call_on_assigned(self) -> Exception | None:
        failure = await self._call(self._callbacks.assigned, sorted(self._unannounced))
        self._unannounced = set()
        return failure

    async def _call(
        self, callback: Callback | None, partitions: list[TopicPartition]
    ) -> Exception | None:
        """Call a callback; its exception is raised when the step is done.

        The callback is the application's work, so `max.poll.interval.ms` applies to it as between
        polls; but not in `close`, which has a time limit of its own.
        """
        if callback is None:
            return None
        if not self._is_closing:
            self.membership.end_poll(trio.current_time())
        try:
            called = callback(partitions)
            if not isinstance(called, Awaitable):
                raise TypeError(
                    f"{callback!r} is no async function: a rebalance callback is awaited"
                )
            await called
        except Exception as error:
            return error
        finally:
            if self._wait_count:
                self.membership.begin_poll()
        return None

    def _assign(self, names: Iterable[TopicPartition]) -> None:
        names = set(names)
        self._unannounced &= names
        self._positions.assign(sorted(names))
        self._fetcher.fetch_now()
        self._new_partitions.unpark_all()

    def _wake(self) -> None:
        """Wake a task that polls or iterates, because something is due."""
        self._delivered.return_buffered()
        self._fetcher.arrived.unpark_all()

    # -- commits

    async def commit(self, offsets: OffsetsToCommit | None, *, is_callback: bool) -> None:
        """See `Consumer.commit`. `is_callback`: whether a rebalance callback is the caller."""
        chosen = self._chosen(offsets, is_callback=is_callback)
        await self._queued.finish()

        def choose() -> Offsets:
            if self._is_gone:
                raise ClientClosed("this consumer was closed before it could commit")
            return self._delivered.not_behind_committed(chosen) if offsets is None else chosen

        timeout_s = self._options.default_api_timeout_ms / 1000
        self._delivered.record_committed(await self._commits.commit(choose, timeout_s))

    def metadata(self) -> ConsumerGroupMetadata:
        """See `Consumer.group_metadata`."""
        asked = self.membership.commit(())
        return ConsumerGroupMetadata(
            asked.group_id, asked.generation, asked.member_id, asked.instance_id
        )

    def commit_async(
        self, offsets: OffsetsToCommit | None, on_commit: OnCommit | None, *, is_callback: bool
    ) -> None:
        """See `Consumer.commit_async`."""
        if self._is_gone:
            raise ClientClosed("this consumer was closed")
        chosen = self._chosen(offsets, is_callback=is_callback)
        self._queued.add(chosen, on_commit)

    def _chosen(self, offsets: OffsetsToCommit | None, *, is_callback: bool) -> Offsets:
        """Return the offsets that a commit names, as of now."""
        is_callback = is_callback or self._turn.statistics().owner is trio.lowlevel.current_task()
        if offsets is not None:
            return read_offsets(offsets, self._positions.committable)
        if self._delivered.is_abandoned and not is_callback:
            raise ClientClosed(
                "this consumer is closing: the records of its last poll are not done"
            )
        return self._delivered.committable_offsets()

    async def _commit_now(self, offsets: Offsets) -> None:
        timeout_s = self._options.default_api_timeout_ms / 1000
        self._delivered.record_committed(await self._commits.commit(lambda: offsets, timeout_s))

    async def committed(
        self, names: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See `Consumer.committed`."""
        return await self._commits.fetch(names, self._options.default_api_timeout_ms / 1000)

    async def _commit_done(self) -> None:
        """Commit up to where the application is done, as far as that is not committed."""

        def choose() -> Offsets:
            self._delivered.record_iteration()
            return self._delivered.uncommitted()

        if choose():
            await self._queued.finish()
            timeout_s = self._options.default_api_timeout_ms / 1000
            self._delivered.record_committed(await self._commits.commit(choose, timeout_s))

    async def _commit_without_raising(self) -> None:
        if self._options.enable_auto_commit:
            try:
                await self._commit_done()
            except (ClientError, BrokerError) as error:
                log.warning("group %s: auto commit: %s", self.membership.group_id, error)

    async def _auto_commit(self) -> None:
        while True:
            await trio.sleep(self._options.auto_commit_interval_ms / 1000)
            if not self.membership.is_lost:
                await self._commit_without_raising()

    async def _start_new_partitions(self) -> None:
        """Set new partitions to their committed offsets."""
        while True:
            if not (waiting := {each.name: each for each in self._positions.awaiting_committed()}):
                await self._new_partitions.park()
                continue
            try:
                found = await self._commits.fetch(waiting, float("inf"))
            except BrokerError as error:
                self.membership.report(error)
                self._wake()
                await self._new_partitions.park()
                continue
            for name, committed in found.items():
                self._positions.start_at(waiting[name], committed)
            self._fetcher.fetch_now()

    # -- the end

    async def close(self, timeout_s: float, *, may_call: bool) -> None:
        """Commit, drop the partitions, and leave. With `may_call`, call the callbacks.

        The last part of the time is for the LEAVE: without it, the group would wait a session for
        this member. So is a second after a cancellation. A close with less time than that still
        ends the membership: the consumer sends no heartbeats any more.
        """
        self._is_closing = True
        self._begin_wait()
        self._advancing.cancel()
        failure: Exception | None = None
        commit_s = time_to_commit_s(timeout_s) if self.membership.says_leave else timeout_s
        try:
            with trio.move_on_after(commit_s) as scope:
                async with self._turn:
                    if not may_call:
                        self._callbacks = RebalanceCallbacks()
                    failure = await self._give_up()
            if scope.cancelled_caught:
                text = "group %s: closed after %g s without the last commit, which had no answer"
                log.warning(text, self._options.group_id, commit_s)
            await self._leave()
        finally:
            with trio.move_on_after(LEAVE_S, shield=True):
                await self._leave()  # unless that was done
        if failure is not None:
            raise failure

    async def _give_up(self) -> Exception | None:
        """Have the application give up all partitions, and commit; return what a callback
        raised."""
        if self.membership.is_lost:
            return await self._drop_lost()
        if self.membership.is_subscribed:
            held = self._positions.assignment
            return await self._revoke(held) if held else None
        await self._commit_without_raising()
        await self._queued.finish()
        return None

    async def _leave(self) -> None:
        """End the membership, and tell the coordinator. Does nothing more when repeated."""
        self._is_gone = self._is_closing
        request = self.membership.leave()
        self._tasks.subscription.set_topics((), None)
        self._tasks.abandon_join()
        self._assign(())
        if request is not None:
            await self._tasks.leave(request)


def time_to_commit_s(timeout_s: float) -> float:
    """Return how much of the time for a close is for the callbacks and the last commit."""
    return timeout_s - min(LEAVE_S, timeout_s / 2)
