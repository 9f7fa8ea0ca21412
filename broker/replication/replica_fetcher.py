"""The replica fetchers copy partitions from leaders: a `ReplicaFetcher` per leader and fetcher id.

    ReplicaFetchers.run
     `- ReplicaFetcher.run     one per (leader, fetcher id) with partitions: fetch, apply, repeat

A hash of a partition's name, the same in every run, chooses one of the `num.replica.fetchers`
fetchers of its leader. A fetcher ends when it has no partition left.

Assignments are plain calls and take effect at once: after `unassign` no answer changes the
partition, even one in flight (RM-05). A new assignment cancels a long poll, which closes the
connection, so that the partition does not wait behind it (A18). Each time the session must be
opened again, so of many assignments in a row only some do this (`FetchPlan.may_reopen_at`).

A lost connection delays all partitions of a fetcher and drops none (FOL-16). An error or an invalid
batch delays only its partition (FOL-12, FOL-14). `run` raises an I/O error of this broker's disk,
which stops the broker.
"""

import logging
import math
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import trio

from minibroker.broker.config import Config
from minibroker.broker.replication.events import PartitionEvents
from minibroker.broker.replication.fetch_connection import Connect, FetchConnection, Fetched
from minibroker.broker.replication.fetch_plan import Assignment, FetchLimits, FetchPlan, RetryDelay
from minibroker.broker.replication.follower import Follower, FollowerOutcome, LeaderAnswer, Next
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.client.net.channel import ConnectionLost
from minibroker.protocol.constants import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from minibroker.protocol.messages.fetch import FetchRequest
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    PartitionListOffsets,
)
from minibroker.protocol.types import Endpoint, TopicPartition

logger = logging.getLogger(__name__)

SYNC_WAIT_S_MAX = 0.01  # how long a request waits for fsyncs, to include their partitions
RATE_WINDOW_S = 5.0


class FetcherStatistics(NamedTuple):
    """One fetcher now. `lags` counts the committed records that are missing, as far as is known."""

    leader: int
    fetcher_id: int
    requests: int
    bytes: int
    bytes_per_s: float
    lags: dict[TopicPartition, int]


class FollowerReplicas(Protocol):
    """The replicas of this broker, as their fetchers use them."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of the broker's current registration."""

    def apply_answer(
        self, partition: Partition, answer: LeaderAnswer, now: float
    ) -> FollowerOutcome:
        """Apply a leader's answer to a follower. Raises `OSError` if this broker's disk fails."""

    async def checkpoint_log_starts(self) -> bool:
        """Wait until raised log starts are durable. Returns False in a shortage."""

    def fit_to_range(
        self, partition: Partition, leader_range: tuple[int, int], now: float
    ) -> FollowerOutcome:
        """Fit a follower's log to the start and end of its leader's. Raises as `apply_answer`."""


class ReplicaFetchers:
    """All fetchers of a broker, as its `Replicas` use them; see the head of this module."""

    def __init__(self, config: Config, connect: Connect, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` is the wall clock in milliseconds."""
        self.quota = ReplicationQuota()  # of what all of them copy
        self._count = config.num_replica_fetchers
        self._silence_s = config.replica_lag_time_max_ms / 1000
        self._limits = FetchLimits.of(config)
        self._connect = connect
        self._wall_ms = wall_ms
        self._endpoints: dict[int, Endpoint] = {}
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._assigned: dict[TopicPartition, Follower] = {}
        self._running: tuple[trio.Nursery, FollowerReplicas] | None = None

    def assign(self, partition: Partition) -> None:
        """Start to copy a partition that is a follower. No effect if it has the same role as
        before."""
        name, role = partition.topic_partition, partition.role
        assert isinstance(role, Follower), "only a follower copies"
        if self._assigned.get(name) is role:
            return
        self.unassign(name)
        self._assigned[name] = role
        role.begin(partition.log, self._wall_ms())
        key = self._key(name, role)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = ReplicaFetcher(
                *key, self._limits, self._connect, self.quota
            )
            fetcher.endpoint = self._endpoints.get(role.leader)
            self._start(fetcher)
        fetcher.add(partition, role)

    def unassign(self, name: TopicPartition) -> None:
        """Stop copying it. After this call no copied record reaches its log."""
        role = self._assigned.pop(name, None)
        if role is not None:
            self._fetchers[self._key(name, role)].remove(name)

    def set_endpoints(self, endpoints: Mapping[int, Endpoint]) -> None:
        """Set the endpoints of these brokers. Those of other brokers stay as they are (RM-09)."""
        self._endpoints.update(endpoints)
        for (leader, _), fetcher in self._fetchers.items():
            if leader in endpoints:
                fetcher.move(endpoints[leader])

    def on_flushed(self, partition: Partition) -> None:
        """Wake the fetcher of a partition whose log was synced: it may be asked for again."""
        name = partition.topic_partition
        role = self._assigned.get(name)
        if role is not None:
            self._fetchers[self._key(name, role)].wake()

    async def run(self, replicas: FollowerReplicas) -> None:
        """Copy until cancelled."""
        async with trio.open_nursery() as nursery:
            self._running = nursery, replicas
            for fetcher in self._fetchers.values():
                self._start(fetcher)
            try:
                await trio.sleep_forever()
            finally:  # before the nursery closes: roles may arrive until the broker has stopped
                self._running = None

    def statistics(self) -> list[FetcherStatistics]:
        """Return the statistics of every fetcher now."""
        now = trio.current_time()
        return [fetcher.statistics(now) for fetcher in self._fetchers.values()]

    def silent_leaders(self, now: float) -> list[int]:
        """Return the leaders that have not answered for replica.lag.time.max.ms. By then they have
        removed this broker from their in-sync sets, even if this broker cannot know it yet."""
        silent = {
            fetcher.leader
            for fetcher in self._fetchers.values()
            if now - fetcher.answered_at > self._silence_s
        }
        return sorted(silent)

    def _key(self, name: TopicPartition, role: Follower) -> tuple[int, int]:
        return role.leader, zlib.crc32(str(name).encode()) % self._count

    def _start(self, fetcher: "ReplicaFetcher") -> None:
        if self._running is not None:
            nursery, replicas = self._running
            nursery.start_soon(self._run, fetcher, replicas)

    async def _run(self, fetcher: "ReplicaFetcher", replicas: FollowerReplicas) -> None:
        await fetcher.run(replicas)
        # There is no await between its end and this line: nothing was assigned to it in between.
        del self._fetchers[fetcher.leader, fetcher.fetcher_id]


class ReplicaFetcher:
    """Copies some partitions from one leader; see the head of this module."""

    def __init__(
        self,
        leader: int,
        fetcher_id: int,
        limits: FetchLimits,
        connect: Connect,
        quota: ReplicationQuota,
    ) -> None:
        self.leader = leader
        self.fetcher_id = fetcher_id
        self.endpoint: Endpoint | None = None
        self.answered_at = math.inf  # when its leader last answered, or `run` started
        self._limits = limits
        self._connect = connect
        self._plan = FetchPlan(limits, quota)
        self._reconnect = RetryDelay(min(limits.backoff_s_max, 2 * limits.keepalive_s))
        self._news = trio.Event()
        self._events = PartitionEvents(limits.node_id)  # of its partitions, for routine reasons
        self._is_waiting_here = False  # it waits for an event here, not for its leader
        self._connected = trio.CancelScope()
        self._opened_at = -math.inf
        self._requests = 0
        self._bytes = 0
        self._rate = Rate()

    def add(self, partition: Partition, role: Follower) -> None:
        """Start to copy a partition. It does not wait behind the others."""
        self._plan.add(partition, role)
        self._reconnect.reset()
        self._news.set()
        if not self._is_waiting_here:
            may_reopen_at = self._plan.may_reopen_at(self._opened_at)
            self._connected.deadline = min(self._connected.deadline, may_reopen_at)

    def remove(self, name: TopicPartition) -> None:
        """Stop copying a partition."""
        self._plan.remove(name)
        if not self._plan:
            self._interrupt()

    def move(self, endpoint: Endpoint) -> None:
        """Set the leader's endpoint; a new one ends the connection to the old one."""
        if endpoint != self.endpoint:
            self.endpoint = endpoint
            self._reconnect.reset()
            self._interrupt()

    def wake(self) -> None:
        """Look for something to ask for."""
        self._news.set()

    def statistics(self, now: float) -> FetcherStatistics:
        """Return the statistics of this fetcher now."""
        lags = {
            each.partition.topic_partition: each.role.lag(each.partition.log) for each in self._plan
        }
        rate = self._rate.per_s(now)
        return FetcherStatistics(
            self.leader, self.fetcher_id, self._requests, self._bytes, rate, lags
        )

    async def run(self, replicas: FollowerReplicas) -> None:
        """Copy until no partition is left. Raises `OSError` if this broker's disk fails."""
        self.answered_at = trio.current_time()
        while self._plan:
            endpoint = self.endpoint
            if endpoint is None or trio.current_time() < self._reconnect.due:
                await self._wait_until(math.inf if endpoint is None else self._reconnect.due)
                continue
            self._opened_at = trio.current_time()
            with trio.CancelScope() as self._connected:
                try:
                    async with self._connect(endpoint) as connection:
                        await self._copy(connection, endpoint, replicas)
                except ConnectionLost as lost:
                    self._on_connection_lost(lost)
            self._plan.end_session()

    def _interrupt(self) -> None:
        self._news.set()
        if not self._is_waiting_here:
            self._connected.cancel()

    async def _wait_until(self, deadline: float) -> None:
        self._news = trio.Event()
        self._is_waiting_here = True
        try:
            with trio.move_on_at(deadline):
                await self._news.wait()
        finally:
            self._is_waiting_here = False

    def _on_connection_lost(self, lost: ConnectionLost) -> None:
        if self._reconnect.due == -math.inf:
            logger.warning("Broker %s is not copied from: %s", self.leader, lost)
        self._reconnect.fail(trio.current_time())

    async def _copy(
        self, connection: FetchConnection, endpoint: Endpoint, replicas: FollowerReplicas
    ) -> None:
        """Fetch and apply answers while partitions are left and the endpoint stays."""
        while self._plan and self.endpoint == endpoint:
            await self._wait_for_syncs()
            are_starts_durable = await replicas.checkpoint_log_starts()
            now = trio.current_time()
            self._events.flush(now)
            self._connected.deadline = math.inf  # this request includes all that joined
            request = self._plan.next(
                now, replicas.broker_epoch, are_starts_durable=are_starts_durable
            )
            if request is None:
                if now >= self._plan.keepalive_at:
                    await self._fetch(connection, self._plan.keepalive(now, replicas.broker_epoch))
                else:
                    await self._wait_until(min(self._plan.next_due(now), self._plan.keepalive_at))
                continue
            fetched = await self._fetch(connection, request)
            self._plan.on_response(fetched.response)
            without_range = await self._apply(fetched, replicas)
            if without_range:
                await self._fit_to_ranges(connection, without_range, replicas)

    async def _fetch(self, connection: FetchConnection, request: FetchRequest) -> Fetched:
        """Send one request and return its answer."""
        fetched = await connection.fetch(request)
        if fetched.response.error:
            raise ConnectionLost(f"it answers FETCH with error {fetched.response.error}")
        self.answered_at = trio.current_time()
        self._requests += 1
        self._reconnect.reset()
        return fetched

    async def _wait_for_syncs(self) -> None:
        """Wait, at most `SYNC_WAIT_S_MAX`, for the fsyncs that the last answer made necessary."""
        give_up_at = trio.current_time() + SYNC_WAIT_S_MAX
        while self._plan.is_syncing and trio.current_time() < give_up_at:
            await self._wait_until(give_up_at)

    async def _apply(self, fetched: Fetched, replicas: FollowerReplicas) -> list[Assignment]:
        """Apply an answer. Returns the assignments whose log end the leader does not have."""
        without_range = []
        for answer, batches in zip(fetched.response.partitions, fetched.batches, strict=True):
            asked = self._plan.complete(answer)
            if asked is None:
                continue
            each = asked.assignment
            outcome = replicas.apply_answer(
                each.partition, LeaderAnswer(asked.offset, answer, batches), trio.current_time()
            )
            self._record(each, outcome)
            if outcome.next is Next.ASK_RANGE:
                without_range.append(each)
            if outcome.size:
                await trio.lowlevel.checkpoint()  # let other tasks run between appends
        return without_range

    def _record(self, assignment: Assignment, outcome: FollowerOutcome) -> None:
        """Record the outcome of an answer, and when to ask for the partition next."""
        now = trio.current_time()
        if outcome.size:
            self._bytes += outcome.size
            self._rate.add(outcome.size, now)
            self._plan.put_last(assignment)
        assignment.role.delay = outcome.reason if outcome.next is Next.BACK_OFF else ""
        if outcome.next is Next.FETCH:
            assignment.backoff.reset()
        elif outcome.next is Next.BACK_OFF:
            if assignment.backoff.due == -math.inf:
                name = assignment.partition.topic_partition
                text = f"copying from broker {self.leader} is delayed: {outcome.reason}"
                if outcome.is_routine:
                    self._events.record(name, text, now)
                else:
                    logger.warning("%s: %s", name, text)
            assignment.backoff.fail(now)

    async def _fit_to_ranges(
        self,
        connection: FetchConnection,
        assignments: list[Assignment],
        replicas: FollowerReplicas,
    ) -> None:
        """Ask where the leader's logs start and end, and fit the local logs to that range."""
        asked = tuple(
            PartitionListOffsets(*each.partition.topic_partition, time, each.role.leader_epoch)
            for each in assignments
            for time in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        request = ListOffsetsRequest(self._limits.node_id, asked)
        found = (await connection.list_offsets(request)).partitions
        if len(found) != len(asked):
            raise ConnectionLost(f"it answers {len(asked)} of LIST_OFFSETS with {len(found)}")
        for each, start, end in zip(assignments, found[::2], found[1::2], strict=True):
            if not self._plan.is_valid(each):
                continue
            if start.error or end.error:
                outcome = FollowerOutcome(
                    Next.BACK_OFF, "it does not tell where its log starts and ends"
                )
            else:
                theirs = (start.offset, end.offset)
                outcome = replicas.fit_to_range(each.partition, theirs, trio.current_time())
            self._record(each, outcome)


class Rate:
    """A decaying average of bytes per second, with time constant `RATE_WINDOW_S`."""

    __slots__ = ("_per_s", "_since")

    def __init__(self) -> None:
        self._per_s = 0.0
        self._since = 0.0

    def add(self, size: int, now: float) -> None:
        """Count bytes."""
        self._per_s = self.per_s(now) + size / RATE_WINDOW_S
        self._since = now

    def per_s(self, now: float) -> float:
        """Return the rate now."""
        return self._per_s * math.exp((self._since - now) / RATE_WINDOW_S)
