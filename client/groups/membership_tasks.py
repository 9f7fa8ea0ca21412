"""The tasks that keep a consumer a member of its group, beside the application.

    run ---- _join             finds the coordinator, sends JOIN, assigns, sends SYNC
         |-- _send_heartbeats  on a connection that no other request holds up
         |-- _watch_poll       leaves if the application does not poll for max.poll.interval.ms
         |-- _watch_pattern    finds the topics that a pattern matches
         |-- _watch_missing    says which topics do not exist
         `-- _watch_topics     in the group's leader: assigns again when partitions are added

The application is needed only to revoke partitions or to take them over; then `on_news` is called,
and the next poll does that (consumer_group.py). All else goes on between polls: a member of a
cooperative group joins the next generation while its application works on what it keeps.

While a JOIN waits for others, heartbeats go on. Their answers then show only that the coordinator
is alive. If it is not, the JOIN is sent again. The JOIN is also sent again when a heartbeat reports
a newer generation and the answer to the JOIN does not come.
"""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio

from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.client.errors import error_code
from minibroker.client.groups.assignors import ASSIGNORS, GroupMember
from minibroker.client.groups.membership import (
    NOT_THE_COORDINATOR,
    Membership,
    NextStep,
    State,
)
from minibroker.client.groups.topic_subscription import TopicSubscription
from minibroker.client.net.cluster import Cluster
from minibroker.client.net.connection_pool import HEARTBEATS, JOINS
from minibroker.client.net.coordinator_client import CoordinatorClient
from minibroker.client.options import ConsumerOptions
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import NOT_A_MEMBER, BrokerError, ProtocolError
from minibroker.protocol.messages.groups import (
    NO_GENERATION,
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
)
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.protocol.types import TopicPartition

# A heartbeat without an answer is sent again, over another connection, after this part of a
# session; so is a JOIN whose answer was lost.
ANSWER_TIMEOUT_SHARE: Final = 1 / 3
# How long the client tries to tell the coordinator that a member leaves.
LEAVE_TIMEOUT_S: Final = 5.0
# Interval of checks for a subscribed topic that does not exist.
MISSING_TOPIC_S: Final = 1.0

log = logging.getLogger("minibroker.client")


class MembershipTasks:
    """The tasks of one consumer. `on_news` is called when the application has something to do."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: CoordinatorClient,
        membership: Membership,
        delivered: DeliveredPositions[Any, Any],
        on_news: Callable[[], None],
    ) -> None:
        options = cluster.options
        assert isinstance(options, ConsumerOptions)
        self._options = options
        self._cluster = cluster
        self._coordinator = coordinator
        self._membership = membership
        self._delivered = delivered
        self._on_news = on_news
        strategies = (ASSIGNORS[name] for name in options.partition_assignment_strategy)
        self._answer_timeout_s = ANSWER_TIMEOUT_SHARE * options.session_timeout_ms / 1000
        self._is_eager = not all(strategy.is_cooperative for strategy in strategies)
        self._joining = trio.CancelScope()
        self._join_attempt = trio.CancelScope()  # around one JOIN and SYNC
        self._join_sent_at = float("inf")
        self._answer_missing_since = float("inf")  # a heartbeat has shown that it was answered
        # If this member leads the group: how many partitions of each topic it has assigned.
        self._assigned_counts: dict[str, int] | None = None
        self._assigned_topics: tuple[str, ...] = ()
        self._buffered_seen = 0
        self._changed = trio.lowlevel.ParkingLot()
        self.is_withholding = False  # records, because the member is in doubt
        self.subscription = TopicSubscription(cluster)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Join and stay a member whenever the consumer subscribes, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._join)
            nursery.start_soon(self._send_heartbeats)
            nursery.start_soon(self._watch_poll)
            nursery.start_soon(self._watch_pattern)
            nursery.start_soon(self._watch_missing)
            nursery.start_soon(self._watch_topics)
            task_status.started()

    # -- with the application

    def wake(self) -> None:
        """Wake the tasks, because the membership has changed."""
        self._changed.unpark_all()
        if self.needs_application or self.is_withholding:
            self._on_news()

    @property
    def needs_application(self) -> bool:
        """Whether the application has to give up or take over partitions, or get an error."""
        member = self._membership
        is_waiting = member.is_lost or member.failure is not None
        return is_waiting or member.state is State.ASSIGNED or bool(self.to_release())

    def to_release(self) -> list[TopicPartition]:
        """Return the partitions to give up before the next JOIN."""
        member = self._membership
        if not (member.must_join and member.state in (State.OUT, State.STABLE)):
            return []
        held, topics = self._delivered.assignment, self.subscription.topics
        return [name for name in held if self._is_eager or name.topic not in topics]

    def abandon_join(self) -> None:
        """Stop waiting for the answer to a JOIN: the membership has ended."""
        self._joining.cancel()
        self.wake()

    async def leave(self, request: LeaveGroupRequest) -> None:
        """Tell the coordinator that a member leaves. If that fails, its session will expire."""
        failures = 0
        with trio.move_on_after(LEAVE_TIMEOUT_S):
            while True:
                try:
                    answer = await self._coordinator.ask(ApiKey.LEAVE_GROUP, request, HEARTBEATS)
                    if error_code(answer.error) not in NOT_THE_COORDINATOR:
                        return
                    self._coordinator.forget()
                except (OSError, BrokerError):
                    pass  # if the coordinator changes, the next one is told
                await self._coordinator.pause(failures)
                failures += 1

    # -- joining

    async def _join(self) -> None:
        while True:
            if self._membership.may_join and self.subscription.is_known and not self.to_release():
                self._membership.begin_join()
                self._changed.unpark_all()
                with trio.CancelScope() as self._joining:
                    await self._join_until_assigned()
                self._compare_topics()
                self.wake()
            else:
                await self._changed.park()

    async def _join_until_assigned(self) -> None:
        member = self._membership
        failures = 0
        while member.state is State.JOINING:
            step = NextStep.RETRY_LATER
            try:
                with trio.CancelScope() as self._join_attempt:
                    step = await self._join_and_sync()
            except OSError as error:
                log.debug("group %s: %s", member.group_id, error)
            except BrokerError as error:
                member.fail(error)
                return
            if step is NextStep.RETRY_LATER:
                member.on_disconnect()
            if step is NextStep.FIND_COORDINATOR:
                self._coordinator.forget()
            if step in (NextStep.FIND_COORDINATOR, NextStep.RETRY_LATER):
                await self._coordinator.pause(failures)
                failures += 1

    async def _join_and_sync(self) -> NextStep:
        member = self._membership
        self._join_sent_at, self._answer_missing_since = trio.current_time(), float("inf")
        asked = member.join(self._protocols())
        joined = await self._coordinator.ask(ApiKey.JOIN_GROUP, asked, JOINS)
        if not member.is_in(State.JOINING):
            return NextStep.STOP  # it left meanwhile
        step = member.handle_join(joined, trio.current_time())
        if step is not NextStep.CONTINUE:
            return step
        assignments = await self._assign(joined)
        sent_at = trio.current_time()
        if not member.is_in(State.SYNCING):
            return NextStep.STOP
        synced = await self._coordinator.ask(ApiKey.SYNC_GROUP, member.sync(assignments), JOINS)
        is_static_return = asked.instance_id is not None and not asked.member_id
        if self._assigned_counts is not None and is_static_return:
            self._assigned_counts = await self._assigned()
        return member.handle_sync(synced, sent_at) if member.is_in(State.SYNCING) else NextStep.STOP

    def _protocols(self) -> tuple[GroupProtocol, ...]:
        """Return the assignors that this member supports, with its subscription for the leader."""
        owned = () if self._is_eager else tuple(self._delivered.assignment)
        generation = self._membership.held_generation if owned else NO_GENERATION
        data = encode_subscription(Subscription(self.subscription.topics, owned, generation))
        return tuple(GroupProtocol(n, data) for n in self._options.partition_assignment_strategy)

    async def _assign(self, joined: JoinGroupResponse) -> tuple[MemberAssignment, ...]:
        """Compute all assignments, if this member leads and the coordinator asks for them.

        If a static member comes back as the leader, the coordinator keeps the stored assignments.
        """
        if joined.leader != joined.member_id:
            self._assigned_counts = None
            return ()
        members: dict[str, GroupMember] = {}
        for each in joined.members:
            try:
                subscription = decode_subscription(each.metadata)
            except ProtocolError as error:
                log.warning("group member %s is given nothing: %s", each.member_id, error)
                subscription = Subscription(())
            members[each.member_id] = GroupMember(subscription, each.instance_id)
        topics = {topic for member in members.values() for topic in member.subscription.topics}
        self._assigned_topics = tuple(sorted(topics or self.subscription.topics))
        self._assigned_counts = await self.subscription.fetch_counts(self._assigned_topics)
        if not members:
            return ()
        parts = ASSIGNORS[joined.protocol].assign(self._assigned_counts, members)
        return tuple(
            MemberAssignment(member_id, encode_assignment(Assignment(tuple(names))))
            for member_id, names in parts.items()
        )

    async def _assigned(self) -> dict[str, int]:
        """Return how many partitions of each topic the group has assigned, maybe before this member
        came back. Partitions added since would otherwise belong to no member."""
        request = DescribeGroupsRequest((self._membership.group_id,))
        answer = await self._coordinator.ask(ApiKey.DESCRIBE_GROUPS, request, JOINS)
        counts: Counter[str] = Counter()
        for each in answer.groups[0].members:
            with suppress(ProtocolError):
                counts.update(name.topic for name in decode_assignment(each.assignment).partitions)
        return dict(counts)

    # -- being a member

    async def _send_heartbeats(self) -> None:
        failures = 0
        while True:
            if self._membership.is_in(State.OUT):
                await self._changed.park()
                continue
            if failures:
                await self._coordinator.pause(failures - 1)
            else:
                await trio.sleep(self._options.heartbeat_interval_ms / 1000)
            self._record_progress()
            if not self._membership.is_in(State.OUT):
                failures = 0 if await self._send_heartbeat() else failures + 1
            if failures:
                self._join_attempt.cancel()  # this connection may be dead, too

    async def _send_heartbeat(self) -> bool:
        """Send a heartbeat; return whether the coordinator answered."""
        member = self._membership
        asked, sent_at = member.heartbeat(), trio.current_time()
        step = NextStep.FIND_COORDINATOR
        with trio.move_on_after(self._answer_timeout_s):
            try:
                answer = await self._coordinator.ask(ApiKey.HEARTBEAT, asked, HEARTBEATS)
            except (OSError, BrokerError) as error:
                log.debug("group %s: %s", member.group_id, error)
                return False
            code = error_code(answer.error)
            step = member.handle_heartbeat(asked, code, sent_at, is_loading=answer.is_loading)
            self._find_lost_answer(asked, code, sent_at)
        if step is NextStep.FIND_COORDINATOR:
            self._coordinator.forget()
        self.wake()
        return step is not NextStep.FIND_COORDINATOR

    def _find_lost_answer(self, asked: HeartbeatRequest, error: ErrorCode, sent_at: float) -> None:
        """Send the JOIN again if the group is in another generation: then it was answered, perhaps
        over a connection that a device in the network has dropped."""
        is_waiting = self._membership.is_in(State.JOINING) and sent_at > self._join_sent_at
        if is_waiting and error in NOT_A_MEMBER and asked.generation != NO_GENERATION:
            self._answer_missing_since = min(self._answer_missing_since, sent_at)
            if sent_at >= self._answer_missing_since + self._answer_timeout_s:
                self._join_attempt.cancel()

    def _record_progress(self) -> None:
        """Count iteration as polling: it polls only once for many records."""
        count = self._delivered.buffered_count
        if count != self._buffered_seen and self._membership.poll_deadline < float("inf"):
            self._membership.end_poll(trio.current_time())
        self._buffered_seen = count

    async def _watch_poll(self) -> None:
        member = self._membership
        interval_s = self._options.max_poll_interval_ms / 1000
        while True:
            if member.is_in(State.OUT):
                await self._changed.park()
                continue
            await trio.sleep_until(min(member.poll_deadline, trio.current_time() + interval_s))
            self._record_progress()
            if not member.is_in(State.OUT) and trio.current_time() >= member.poll_deadline:
                text = "group %s: no poll for max.poll.interval.ms (%d): this consumer leaves"
                log.warning(text, member.group_id, self._options.max_poll_interval_ms)
                request = member.expire()
                self.abandon_join()
                if request is not None:
                    await self.leave(request)

    # -- topics

    async def _watch_pattern(self) -> None:
        while True:
            if self.subscription.pattern is None:
                await self._changed.park()
                continue
            if await self.subscription.match_pattern():
                self._membership.request_join()
                self.wake()
            with trio.move_on_after(self._options.metadata_max_age_ms / 1000):
                while self.subscription.is_known:
                    await self._changed.park()

    async def _watch_missing(self) -> None:
        while True:
            await self._cluster.wait_changed()
            self.subscription.warn_of_missing()

    async def _watch_topics(self) -> None:
        while True:
            if self._assigned_counts is None:
                await self._changed.park()
                continue
            is_missing = len(self._assigned_counts) < len(self._assigned_topics)
            with trio.move_on_after(MISSING_TOPIC_S if is_missing else float("inf")):
                await self._cluster.wait_changed()
            if is_missing:
                self._cluster.request_refresh()
            if self._compare_topics():
                self.wake()

    def _compare_topics(self) -> bool:
        """Return whether topics have more or fewer partitions than the group has assigned."""
        member = self._membership
        if self._assigned_counts is None or member.state not in (State.ASSIGNED, State.STABLE):
            return False
        is_changed = self.subscription.counts(self._assigned_topics) != self._assigned_counts
        if is_changed and not member.must_join:
            log.info("group %s: its topics have changed", member.group_id)
            member.request_join()
        return is_changed
