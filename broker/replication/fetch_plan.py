"""The plan of one fetcher: what it asks its leader for next, in which order, waiting how long.

A request reads each partition's log end when it is built; no copy of an offset is kept. It leaves
a partition out

* while it is backed off: 20 ms after an error, and twice as long after each further one;
* when it has failed, until its next role;
* while the follower's quota is exceeded, if it is throttled and not in sync (`quotas.py`): it is
  taken out of the session, too, and is due again when the quota is expected to have room;
* while an fsync of it is pending that counts (`flush=always`): a fetch offset acknowledges
  everything below it, so everything below must be durable.

The log start in a request is durable too, because the leader acknowledges a deletion by it. While
the disk is too full for the checkpoint of log starts, a request repeats the last log start sent.

A request waits at the leader only until the next backed-off partition is due, so that this one is
not delayed by the others; while an fsync is pending it does not wait at all.

An answer counts only if the partition is still assigned here, by the same assignment, in the same
role (RM-05, FOL-04). Partitions that got records go to the end of the order, so that one with much
to copy does not starve the others (FET-11).

A leader does not wait for a follower that lacks records and sends no FETCH (`follower_silence.py`).
So no request waits there longer than `keepalive_s`. If there was nothing to ask for in that time,
because all partitions are backed off, failed or syncing, `keepalive` builds an empty request.

Requests use a fetch session (`protocol.messages.fetch`): only changes are sent, and only partitions
that may have changed, the `agenda`, are looked at. A partition is in the agenda from its
assignment, or from an answer for it, until it is asked for; then the session asks for it in every
request. A backed-off partition waits in a heap until it is due. So thousands of partitions with
nothing new, or whose leaders do not lead them yet, cost a request nothing.

If a session is opened, or many partitions join it at once, several requests add them, and these do
not wait at the leader: so no single request blocks the loop here or there for long. If the leader
has no room for a session, each request asks for all partitions.
"""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.broker.config import Config
from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.quotas import ReplicationQuota, may_throttle_copy
from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.fetch_session_handler import FetchSessionHandler
from minibroker.protocol.messages.fetch import (
    SESSION_NONE,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.types import TopicPartition

BACKOFF_S_MIN = 0.02
SYNCING_LOOK_S = 1.0
# Partitions that one request brings into a session: they cost its leader about 50 us each.
NEWS_MAX = 200
# What it costs to open a session again, for each partition, here and at the leader together.
REOPENING_S = 0.0001
REOPENING_SHARE = 0.05  # of the time, at most; a broker has several sessions, as client and leader


class RetryDelay:
    """When to try again: after `BACKOFF_S_MIN` seconds, and twice as long after each failure."""

    __slots__ = ("_delay_s", "_delay_s_max", "due")

    def __init__(self, delay_s_max: float) -> None:
        self._delay_s_max = delay_s_max
        self.reset()

    def reset(self) -> None:
        """Record a success: the next try is due now."""
        self._delay_s = BACKOFF_S_MIN
        self.due = -math.inf

    def fail(self, now: float) -> None:
        """Record a failure."""
        self.due = now + min(self._delay_s, self._delay_s_max)
        self._delay_s = min(2 * self._delay_s, self._delay_s_max)


class Assignment:
    """One partition, in one role, assigned to one fetcher. Each new role makes a new one."""

    __slots__ = ("asked", "backoff", "partition", "role")

    def __init__(self, partition: Partition, role: Follower, backoff: RetryDelay) -> None:
        self.partition = partition
        self.role = role
        self.backoff = backoff
        # What the session last asked the leader for.
        self.asked: PartitionFetch | None = None

    @property
    def is_current(self) -> bool:
        """Whether the partition still has the role in which it was assigned."""
        return self.partition.role is self.role

    @property
    def is_open(self) -> bool:
        """Whether it is copied: still in its role, and not failed."""
        return self.is_current and not self.role.failure

    @property
    def is_syncing(self) -> bool:
        """Whether its log end must become durable before a request may name it."""
        return self.partition.own_end < self.partition.log.log_end

    def ask(self, bytes_max: int, *, is_start_durable: bool) -> PartitionFetch:
        """Return what to ask for now. In place of a log start that is not durable it names the last
        one that was sent, or -1."""
        log, name = self.partition.log, self.partition.topic_partition
        asked = self.asked
        log_start = log.log_start
        if not is_start_durable:
            log_start = NO_OFFSET if asked is None else min(asked.log_start, log.log_start)
        if (
            asked is not None
            and asked.fetch_offset == log.log_end
            and asked.last_fetched_epoch == self.role.last_fetched_epoch(log)
            and asked.log_start == log_start
        ):
            return asked
        return PartitionFetch(
            *name,
            log.log_end,
            bytes_max,
            self.role.leader_epoch,
            self.role.last_fetched_epoch(log),
            log_start,
            self.partition.topic_id,
        )


class Asked(NamedTuple):
    """A partition that was answered, and the offset of its request."""

    assignment: Assignment
    offset: int


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits of every request; times in seconds, sizes in bytes."""

    node_id: int
    wait_s_max: float
    bytes_min: int
    bytes_max: int
    partition_bytes_max: int
    backoff_s_max: float
    keepalive_s: float

    @classmethod
    def of(cls, config: Config) -> "FetchLimits":
        """Return the limits that this broker is configured with."""
        return cls(
            node_id=config.node_id,
            wait_s_max=config.replica_fetch_wait_max_ms / 1000,
            bytes_min=config.replica_fetch_min_bytes,
            bytes_max=config.replica_fetch_response_max_bytes,
            partition_bytes_max=config.replica_fetch_max_bytes,
            backoff_s_max=config.replica_fetch_backoff_ms / 1000,
            keepalive_s=config.follower_fetch_interval_s,
        )


class FetchPlan:
    """See the head of this module. One request is in flight at a time."""

    def __init__(self, limits: FetchLimits, quota: ReplicationQuota | None = None) -> None:
        """`quota` is the broker's as a follower; its fetchers share it."""
        self._limits = limits
        self._quota = quota or ReplicationQuota()
        # In the order in which they are to be filled.
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._agenda: dict[TopicPartition, Assignment] = {}
        # When each backed-off partition is due, and a number that orders equal times.
        self._delayed: list[tuple[float, int, TopicPartition, Assignment]] = []
        # Those whose log start was not sent, because it was not durable.
        self._unnamed_starts: dict[TopicPartition, Assignment] = {}
        # Those that the session asks for although the quota may hold them back.
        self._limited: dict[TopicPartition, Assignment] = {}
        self._numbers = itertools.count()
        self._session = FetchSessionHandler()
        self._has_room = True  # whether the leader has room for a session
        self._keepalive_at = -math.inf

    def __len__(self) -> int:
        return len(self._assignments)

    def __iter__(self) -> Iterator[Assignment]:
        return iter(self._assignments.values())

    # -- what is assigned

    def add(self, partition: Partition, role: Follower) -> None:
        """Start to copy a partition, in this role only."""
        assert partition.role is role
        name, backoff = partition.topic_partition, RetryDelay(self._limits.backoff_s_max)
        self._assignments[name] = self._agenda[name] = Assignment(partition, role, backoff)
        self._session.renew(name)  # drops an answer that still comes for the role before

    def remove(self, name: TopicPartition) -> None:
        """Stop copying a partition. An answer in flight does not count for it."""
        self._assignments.pop(name, None)
        self._agenda.pop(name, None)
        self._limited.pop(name, None)
        self._session.forget(name)

    # -- asking

    @property
    def is_syncing(self) -> bool:
        """Whether a partition waits for its fsync."""
        return any(each.is_syncing for each in self._agenda.values())

    def next_due(self, now: float) -> float:
        """Return when to plan again if nothing happens before: when the next backed-off partition
        is due, or after `SYNCING_LOOK_S` if one is syncing, because its settings may change."""
        latest = now + SYNCING_LOOK_S if self.is_syncing else math.inf
        dues = [each.backoff.due for each in self._agenda.values() if each.is_open]
        return min([latest, self._next_delayed(), *(due for due in dues if due > now)])

    def next(
        self, now: float, broker_epoch: int, *, are_starts_durable: bool
    ) -> FetchRequest | None:
        """Return the next request, or None while there is nothing to ask for.

        `are_starts_durable`: this broker's log starts are in the checkpoint.
        """
        session = self._session
        if session.is_new:
            self._agenda = dict(self._assignments)
            self._delayed.clear()
            self._limited.clear()
        session.begin()
        self._recall(now)
        if self._quota.is_exceeded(now):
            self._hold_back(now)
        if are_starts_durable:
            self._ask_again(self._unnamed_starts)
        limits = self._limits
        wait_s = min(limits.wait_s_max, limits.keepalive_s)
        news_max = NEWS_MAX if self._has_room else len(self._agenda)
        for name, each in [*self._agenda.items()]:
            if session.changed_count == news_max:
                wait_s = 0.0
                break
            if not each.is_open:
                del self._agenda[name]
                session.forget(name)
            elif each.is_syncing:
                wait_s = 0.0
                session.forget(name)
            elif each.backoff.due > now:
                del self._agenda[name]
                session.renew(name)  # the last answer was not applied
                self._delay(name, each, each.backoff.due)
            else:
                del self._agenda[name]
                if self._may_throttle(each):
                    self._limited[name] = each
                each.asked = each.ask(
                    limits.partition_bytes_max, is_start_durable=are_starts_durable
                )
                if each.asked.log_start != each.partition.log.log_start:
                    self._unnamed_starts[name] = each
                session.ask(name, each.asked)
        wait_s = min(wait_s, self._next_delayed() - now)
        if not session:
            return None
        self._keepalive_at = now + limits.keepalive_s
        return session.build(
            replica_id=limits.node_id,
            wait_ms_max=math.ceil(wait_s * 1000),
            bytes_min=limits.bytes_min,
            bytes_max=limits.bytes_max,
            broker_epoch=broker_epoch,
        )

    @property
    def keepalive_at(self) -> float:
        """When to send the leader a `keepalive` if there is nothing to ask for before."""
        return self._keepalive_at

    def keepalive(self, now: float, broker_epoch: int) -> FetchRequest:
        """Return a request without partitions or session. Its answer carries nothing."""
        self._keepalive_at = now + self._limits.keepalive_s
        return FetchRequest(
            replica_id=self._limits.node_id, wait_ms_max=0, broker_epoch=broker_epoch
        )

    def _hold_back(self, now: float) -> None:
        """Ask for nothing that the quota holds back before it is expected to have room."""
        due = self._quota.retry_at(now)
        for name, each in {**self._limited, **self._agenda}.items():
            if each.backoff.due <= now and each.is_open and self._may_throttle(each):
                self._agenda.pop(name, None)
                self._session.forget(name)
                self._delay(name, each, due)
        self._limited.clear()

    def _may_throttle(self, each: Assignment) -> bool:
        return may_throttle_copy(each.partition, self._limits.node_id)

    def _delay(self, name: TopicPartition, each: Assignment, due: float) -> None:
        heapq.heappush(self._delayed, (due, next(self._numbers), name, each))

    def _recall(self, now: float) -> None:
        """Move partitions whose back-off is over into the agenda."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, name, each = heapq.heappop(self._delayed)
            if self._assignments.get(name) is each:
                self._agenda.setdefault(name, each)

    def _ask_again(self, assignments: dict[TopicPartition, Assignment]) -> None:
        """Put these into the agenda, although no answer for them came. Empties `assignments`."""
        while assignments:
            name, each = assignments.popitem()
            if self._assignments.get(name) is each:
                self._agenda.setdefault(name, each)

    def _next_delayed(self) -> float:
        """Return when the next backed-off partition is due; infinity if there is none."""
        while self._delayed:
            due, _, name, each = self._delayed[0]
            if self._assignments.get(name) is each and each.is_open:
                return due
            heapq.heappop(self._delayed)
        return math.inf

    # -- what came of it

    def on_response(self, response: FetchResponse) -> None:
        """Update the session with the answer to the request, which has no error."""
        assert not response.error
        self._has_room = response.session_id != SESSION_NONE
        self._session.on_response(response)

    def may_reopen_at(self, opened_at: float) -> float:
        """Return when the session may be opened again for partitions that join: opening takes at
        most `REOPENING_SHARE` of the time, however many join one after another."""
        return opened_at + len(self) * REOPENING_S / REOPENING_SHARE

    def end_session(self) -> None:
        """End the session: the next request names all partitions and opens a new one."""
        self._session.reset()

    def complete(self, fetched: PartitionFetched) -> Asked | None:
        """Return what was asked for, if this answer still counts. An answer counts once."""
        name = TopicPartition(fetched.topic, fetched.partition)
        each = self._assignments.get(name)
        if each is None or self._session.asked(name) is None or name in self._agenda:
            return None  # not asked for, answered before, or assigned again
        self._agenda[name] = each
        self._limited.pop(name, None)
        assert each.asked is not None
        return Asked(each, each.asked.fetch_offset) if each.is_current else None

    def is_valid(self, assignment: Assignment) -> bool:
        """Whether an assignment still holds, in the same role."""
        name = assignment.partition.topic_partition
        return self._assignments.get(name) is assignment and assignment.is_current

    def put_last(self, assignment: Assignment) -> None:
        """Move a partition that got records to the end of the order."""
        name = assignment.partition.topic_partition
        self._assignments[name] = self._assignments.pop(name)
