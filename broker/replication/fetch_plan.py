"""What one fetcher asks its leader next: which partitions, from where, in which order, how long.

A partition is asked for its log end when a request is made; no copy of an offset is kept. It is
left out of a request

* while it is backed off: after an error, 20 ms and twice as long each time that it fails again;
* when it has failed, until its next role;
* while a fsync of it is pending that counts (`flush=always`): a fetch offset is the follower's word
  that it has everything below, and then everything durable.

The log start that a request names is durable, too: a leader acknowledges a deletion by it. While
the disk is too full for the checkpoint of log starts, a request repeats the start that was named
last.

A request does not wait for records longer than the next partition is backed off, so that one does
not wait behind the others; while a fsync is pending it does not wait at all.

An answer counts only if nothing happened meanwhile: the partition is still assigned here, by the
same assignment, in the same role (RM-05, FOL-04). Partitions that got records go to the end of the
order, so that one with much to copy starves nobody (FET-11).

A leader need not wait for a follower that lacks records and sends no FETCH (`follower_silence.py`).
So no request waits there longer than `keepalive_s`, and where there was nothing to ask for so long,
for all partitions are backed off, failed or syncing, `keepalive` asks for nothing.

Requests go in a fetch session (`protocol.messages.fetch`), in which only what changed travels, and
only what may have changed is looked at: the `agenda`. A partition is in it from its assignment, or
from an answer about it, until it is asked for; then the session asks for it in every request. One
that is backed off waits in a heap until its time comes. So thousands of partitions with nothing
new, or whose leaders do not lead them yet, cost a request nothing.

A session that is opened, or that many partitions join at once, takes them in over several requests,
which do not wait: so that none of them holds up the loop here or at the leader. A leader without
room for a session is asked for all in each request.
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
# To open a session anew costs about so much for each partition, here and at the leader together.
REOPENING_S = 0.0001
REOPENING_SHARE = 0.05  # of the time, at most; a broker has several such sessions on both ends


class Backoff:
    """When to try again: after `BACKOFF_S_MIN` seconds, and twice as long after each failure."""

    __slots__ = ("_delay_s", "_delay_s_max", "due")

    def __init__(self, delay_s_max: float) -> None:
        self._delay_s_max = delay_s_max
        self.reset()

    def reset(self) -> None:
        """It went well: the next try is due now."""
        self._delay_s = BACKOFF_S_MIN
        self.due = -math.inf

    def fail(self, now: float) -> None:
        """It failed."""
        self.due = now + min(self._delay_s, self._delay_s_max)
        self._delay_s = min(2 * self._delay_s, self._delay_s_max)


class Assignment:
    """One partition, in one role, of one fetcher. The next one of the partition is another."""

    __slots__ = ("asked", "backoff", "partition", "role")

    def __init__(self, partition: Partition, role: Follower, backoff: Backoff) -> None:
        self.partition = partition
        self.role = role
        self.backoff = backoff
        # What the leader knows that we want, as it was last said in the session.
        self.asked: PartitionFetch | None = None

    @property
    def is_current(self) -> bool:
        """Whether the partition still has the role in which it was assigned."""
        return self.partition.role is self.role

    @property
    def is_open(self) -> bool:
        """Whether it is to be copied at all."""
        return self.is_current and not self.role.failure

    @property
    def is_syncing(self) -> bool:
        """Whether its log end is not durable, and has to be before it may be told."""
        return self.partition.own_end < self.partition.log.log_end

    def ask(self, bytes_max: int, *, is_start_durable: bool) -> PartitionFetch:
        """What to ask for now. A log start that is not durable is not named: the last one that was
        named, or -1, stands for it."""
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
    """A partition whose answer came, and the offset that it was asked for."""

    assignment: Assignment
    offset: int


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What is the same in every request; times in seconds, sizes in bytes."""

    node_id: int
    wait_s_max: float
    bytes_min: int
    bytes_max: int
    partition_bytes_max: int
    backoff_s_max: float
    keepalive_s: float

    @classmethod
    def of(cls, config: Config) -> "FetchLimits":
        """As this broker is configured."""
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
    """See the head of this module. One request is under way at a time."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        # In the order in which they are to be filled.
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._agenda: dict[TopicPartition, Assignment] = {}
        # When each that is backed off is looked at again, and a number that orders equal times.
        self._delayed: list[tuple[float, int, TopicPartition, Assignment]] = []
        # Those whose log start the leader does not know, for it was not durable.
        self._unnamed_starts: dict[TopicPartition, Assignment] = {}
        self._numbers = itertools.count()
        self._session = FetchSessionHandler()
        self._has_room = True  # the leader, for a session
        self._keepalive_at = -math.inf

    def __len__(self) -> int:
        return len(self._assignments)

    def __iter__(self) -> Iterator[Assignment]:
        return iter(self._assignments.values())

    # -- what is assigned

    def add(self, partition: Partition, role: Follower) -> None:
        """Copy a partition, from now on and by this role only."""
        assert partition.role is role
        name, backoff = partition.topic_partition, Backoff(self._limits.backoff_s_max)
        self._assignments[name] = self._agenda[name] = Assignment(partition, role, backoff)
        self._session.renew(name)  # the role is another: what comes for the last one is dropped

    def remove(self, name: TopicPartition) -> None:
        """Copy it no more; an answer that is under way does not count for it."""
        self._assignments.pop(name, None)
        self._agenda.pop(name, None)
        self._session.forget(name)

    # -- asking

    @property
    def is_syncing(self) -> bool:
        """Whether a partition waits for its fsync."""
        return any(each.is_syncing for each in self._agenda.values())

    def next_due(self, now: float) -> float:
        """When to look again, if nobody says so before: when a partition may be asked for that is
        backed off now, and now and then at one that is syncing, for its settings may change."""
        latest = now + SYNCING_LOOK_S if self.is_syncing else math.inf
        dues = [each.backoff.due for each in self._agenda.values() if each.is_open]
        return min([latest, self._next_delayed(), *(due for due in dues if due > now)])

    def next(
        self, now: float, broker_epoch: int, *, are_starts_durable: bool
    ) -> FetchRequest | None:
        """The next request, or None while there is nothing to ask for.

        `are_starts_durable`: the log starts of this broker would survive a power cut.
        """
        session = self._session
        if session.is_new:
            self._agenda = dict(self._assignments)
            self._delayed.clear()
        session.begin()
        self._recall(now)
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
                session.renew(name)  # the last answer was not taken
                heapq.heappush(self._delayed, (each.backoff.due, next(self._numbers), name, each))
            else:
                del self._agenda[name]
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
        """When the leader must hear of this follower, though there is nothing to ask for."""
        return self._keepalive_at

    def keepalive(self, now: float, broker_epoch: int) -> FetchRequest:
        """A request for nothing, in no session. Its answer says nothing."""
        self._keepalive_at = now + self._limits.keepalive_s
        return FetchRequest(
            replica_id=self._limits.node_id, wait_ms_max=0, broker_epoch=broker_epoch
        )

    def _recall(self, now: float) -> None:
        """Look again at what was backed off until now."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, name, each = heapq.heappop(self._delayed)
            if self._assignments.get(name) is each:
                self._agenda.setdefault(name, each)

    def _ask_again(self, assignments: dict[TopicPartition, Assignment]) -> None:
        """Ask for these in the next request, though no answer came. Empties `assignments`."""
        while assignments:
            name, each = assignments.popitem()
            if self._assignments.get(name) is each:
                self._agenda.setdefault(name, each)

    def _next_delayed(self) -> float:
        """When the next partition that is backed off is to be asked for; infinity for none."""
        while self._delayed:
            due, _, name, each = self._delayed[0]
            if self._assignments.get(name) is each and each.is_open:
                return due
            heapq.heappop(self._delayed)
        return math.inf

    # -- what came of it

    def on_response(self, response: FetchResponse) -> None:
        """Follow the answer to the request, which has no error."""
        assert not response.error
        self._has_room = response.session_id != SESSION_NONE
        self._session.on_response(response)

    def may_reopen_at(self, opened_at: float) -> float:
        """From when on the session may be given up for partitions that join: of what a session
        costs to open, the share of the time stays small, however many join one after another."""
        return opened_at + len(self) * REOPENING_S / REOPENING_SHARE

    def end_session(self) -> None:
        """The next request says everything, and opens another session."""
        self._session.reset()

    def complete(self, fetched: PartitionFetched) -> Asked | None:
        """Return what was asked for, if this answer still counts. An answer counts once."""
        name = TopicPartition(fetched.topic, fetched.partition)
        each = self._assignments.get(name)
        if each is None or self._session.asked(name) is None or name in self._agenda:
            return None  # nobody asked, it was answered before, or it was assigned anew
        self._agenda[name] = each
        assert each.asked is not None
        return Asked(each, each.asked.fetch_offset) if each.is_current else None

    def is_valid(self, assignment: Assignment) -> bool:
        """Whether nothing has happened to an assignment since."""
        name = assignment.partition.topic_partition
        return self._assignments.get(name) is assignment and assignment.is_current

    def put_last(self, assignment: Assignment) -> None:
        """It got records: the others come first."""
        name = assignment.partition.topic_partition
        self._assignments[name] = self._assignments.pop(name)
