"""The live groups of one partition, in one leader epoch.

A group is live while it has members or waits for something. An idle group exists only as stored
records; it is rebuilt from them when a request needs it. So an unused group costs no task, no timer
and, once its offsets have expired, no memory.

After each call to a group the caller calls `follow_up`: it appends what the group wants stored,
wakes requests whose tickets are answered, and records the group's next deadline. `written` tells a
group that its record was replayed, so it is committed; `not_written` that it could not be appended,
or took longer than `offsets.commit.timeout.ms`.

A group is of the classic or of the consumer protocol. An empty group becomes one of the other
protocol when such a member comes. A group with members is converted (`convertible_group`) as far as
`group.consumer.migration.policy` allows: a batch has the tombstones of one form and the records of
the other, so every coordinator finds one of them. A group of the consumer protocol waits for its
records without a time-out: its state is that of the log.
"""

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.broker.coordination.shard import APPEND_ERRORS
from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_heartbeats import ConsumerLimits
from minibroker.broker.groups.consumer_journal import FIRST_TOKEN
from minibroker.broker.groups.consumer_records import ConsumerKey, ConsumerValue
from minibroker.broker.groups.convertible_group import ConvertibleGroup, upgraded
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.group_members import GroupLimits
from minibroker.broker.groups.member import Ticket
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.outbox import Batch, Write
from minibroker.broker.groups.records import GroupKey, GroupMetadata, Key, Value
from minibroker.broker.groups.states import ConsumerGroupState, State
from minibroker.broker.groups.subscriptions import Topics
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import CLASSIC, CONSUMER, ListedGroup

LOGGER = logging.getLogger(__name__)
# What the coordinator of groups answers for a failed append (GRP-04); other codes stay as they are.
GROUP_APPEND_ERRORS: Final = {
    **APPEND_ERRORS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
AnyGroup: TypeAlias = Group | ConvertibleGroup
CONSUMER_PROTOCOL: Final = ConsumerGroup.protocol_type
MOMENTS_SPARE: Final = 100  # outdated entries that are allowed even with few groups


def append_error(code: ErrorCode) -> ErrorCode:
    """Return a coordinator's answer for an append that was refused with this code (GRP-04)."""
    return GROUP_APPEND_ERRORS.get(code, code)


class _Waiting(NamedTuple):
    """A group's record in the log that is not replayed yet."""

    end: int
    group: AnyGroup
    token: int
    deadline: float  # of a group of the consumer protocol: never


class GroupRegistry:
    """See the head of this module. `leader_epoch` is that of the partition's leader."""

    def __init__(
        self,
        leader_epoch: int,
        table: OffsetTable,
        limits: GroupLimits,
        *,
        write_timeout_s: float,
        wall_ms: Callable[[], int],
        append: Callable[[list[tuple[Key, Value | None]], float], int],
        wake: Callable[[Ticket[Any]], None],
        topic_names: Callable[[], Mapping[bytes, str]] = dict,
        consumer_limits: Callable[[str], ConsumerLimits] = lambda _: ConsumerLimits(),
    ) -> None:
        """`wall_ms` is the wall clock. `append` appends records and returns the offset after them,
        or raises `Refused`. `wake` wakes the request that waits for a ticket. `topic_names` returns
        the names of the cluster's topics by their ids. `consumer_limits` returns the limits of
        a group of the consumer protocol, which may change."""
        self.leader_epoch = leader_epoch
        self._table = table
        self._limits = limits
        self._consumer_limits = consumer_limits
        self._write_timeout_s = write_timeout_s
        self._wall_ms = wall_ms
        self._append = append
        self._wake = wake
        self._topic_names = topic_names
        self._groups: dict[str, AnyGroup] = {}
        self._held_by: dict[str, int] = {}  # bytes, by group
        self.held_bytes = 0
        self._deleting: set[str] = set()
        self._tickets: dict[str, list[Ticket[Any]]] = {}  # to be woken
        self._waiting: deque[_Waiting] = deque()  # in order of end offset, and of deadline
        self._unconfirmed: deque[_Waiting] = deque()  # of groups of the consumer protocol
        # A heap of times to look at groups, never later than their deadlines. An entry is outdated
        # unless `_moment_of` has it.
        self._moments: list[tuple[float, str]] = []
        self._moment_of: dict[str, float] = {}

    # -- finding groups

    def get(self, group_id: str, now: float) -> Group | None:
        """Return the group, if there is one of the classic protocol."""
        group = self.find(group_id, now)
        return group if isinstance(group, Group) else None

    def consumers(self, group_id: str, now: float) -> ConvertibleGroup | None:
        """Return the group, if there is one of the consumer protocol."""
        group = self.find(group_id, now)
        return group if isinstance(group, ConvertibleGroup) else None

    def find(self, group_id: str, now: float) -> AnyGroup | None:
        """Return the group, of whatever protocol, if there is one."""
        group = self._groups.get(group_id)
        if group is None and self._table.knows(group_id):
            group = self._make(group_id, now)
        elif isinstance(group, ConvertibleGroup):
            group.limits = self._consumer_limits(group_id)
        return group

    def get_or_make(self, group_id: str, now: float) -> AnyGroup:
        """Return the group that a classic member may join, a new one if there is none; `follow_up`
        drops it if nothing keeps it. Raises `Refused`."""
        group = self.find(group_id, now)
        if isinstance(group, ConsumerGroup):
            return group if group.members else self._downgrade_empty(group, now)
        return group or Group(group_id, self._limits, None, now)

    def consumers_or_make(
        self, group_id: str, topics: Topics, clock: Callable[[], float]
    ) -> Turns[ConvertibleGroup]:
        """Return the group of the consumer protocol, as `get_or_make`; one with classic members is
        upgraded.

        Raises `Refused` if that is not possible or not allowed.
        """
        group = self.find(group_id, clock())
        if isinstance(group, Group):
            if group.state is not State.EMPTY:
                self._check_upgrade(group)
            return (yield from self._upgrade(group, topics, clock))
        return group or self._new_consumers(group_id, {}, clock())

    def _new_consumers(
        self,
        group_id: str,
        records: Mapping[ConsumerKey, ConsumerValue],
        now: float,
        *,
        is_committed: bool = True,
    ) -> ConvertibleGroup:
        return ConvertibleGroup(
            group_id,
            self._consumer_limits(group_id),
            self._limits,
            records,
            now,
            is_committed=is_committed,
        )

    # -- conversion

    def _check_upgrade(self, group: Group) -> None:
        """Raise `Refused` unless a group with members may be upgraded."""
        limits = self._consumer_limits(group.group_id)
        if not limits.migration.may_upgrade or group.protocol_type != CONSUMER_PROTOCOL:
            what = "its members have the classic protocol"
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, what)
        if len(group.members) > limits.size_max:
            raise Refused(
                ErrorCode.GROUP_ID_NOT_FOUND, "it has too many members of the classic protocol"
            )

    def _upgrade(
        self, group: Group, topics: Topics, clock: Callable[[], float]
    ) -> Turns[ConvertibleGroup]:
        """Put a group of the consumer protocol in the place of a classic one."""
        group_id = group.group_id
        records = yield from upgraded(group, group_id, topics)
        now = clock()
        if group.members and self._groups.get(group_id) is not group:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group began again")
        end = self._append_or_refuse([(GroupKey(group_id), None), *records.items()], now)
        group.close(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._wake_answered(group_id)
        consumers = self._new_consumers(group_id, records, now, is_committed=False)
        self._unconfirmed.append(_Waiting(end, consumers, FIRST_TOKEN, math.inf))
        self._groups[group_id] = consumers
        counts = (len(consumers.members), group.generation)
        LOGGER.info("[Group %.99s] Upgraded with %d members at epoch %d", group_id, *counts)
        return consumers

    def _downgrade(self, group: ConvertibleGroup, now: float) -> AnyGroup:
        """Put a classic group in the place of one of the consumer protocol, which has only classic
        members. Return the group that there is then."""
        group_id = group.group_id
        metadata = replace(
            group.downgraded(self._topic_names()), state_timestamp_ms=self._wall_ms()
        )
        batches = group.pop_writes()
        keys = dict.fromkeys(group.keys)
        keys |= dict.fromkeys(key for batch in batches for key, _ in batch.records)
        records: list[tuple[Key, Value | None]] = [(key, None) for key in keys]
        try:
            end = self._append([*records, (GroupKey(group_id), metadata)], now)
        except Refused as refused:
            for batch in batches:
                group.not_written(batch.token, append_error(refused.code), now)
            if refused.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
                group.forbid_downgrade()
            return group
        for batch in batches:
            self._unconfirmed.append(_Waiting(end, group, batch.token, math.inf))
        group.end_converted()
        counts = (len(metadata.members), metadata.generation)
        LOGGER.info("[Group %.99s] Downgraded with %d members at epoch %d", group_id, *counts)
        classic = self._groups[group_id] = Group(group_id, self._limits, metadata, now)
        return classic

    def _downgrade_empty(self, group: ConvertibleGroup, now: float) -> Group:
        """Put a classic group without members in the place of one of the consumer protocol."""
        group_id = group.group_id
        metadata = GroupMetadata(CONSUMER_PROTOCOL, group.epoch, state_timestamp_ms=self._wall_ms())
        tombstones: list[tuple[Key, Value | None]] = [(key, None) for key in group.keys]
        self._append_or_refuse([*tombstones, (GroupKey(group_id), metadata)], now)
        group.close(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        self._wake_answered(group_id)
        if self._groups.get(group_id) is group:
            self._drop(group_id)
        return Group(group_id, self._limits, metadata, now)

    def _append_or_refuse(self, records: list[tuple[Key, Value | None]], now: float) -> int:
        try:
            return self._append(records, now)
        except Refused as refused:
            raise Refused(append_error(refused.code), refused.message) from None

    def revive(self, group_id: str, now: float) -> None:
        """Make a live group of a stored one with members."""
        group = self._groups[group_id] = self._make(group_id, now)
        self.follow_up(group, now)

    def _make(self, group_id: str, now: float) -> AnyGroup:
        if records := self._table.consumer_records(group_id):
            return self._new_consumers(group_id, records, now)
        return Group(group_id, self._limits, self._table.metadata(group_id), now)

    def member_count(self, group_id: str) -> int:
        """Return how many members a group has; 0 if there is no such group."""
        group = self._groups.get(group_id)
        return 0 if group is None else len(group.members)

    @property
    def idle(self) -> list[str]:
        """The groups that are only stored, not live."""
        return [group_id for group_id in self._table.group_ids if group_id not in self._groups]

    def listed(self) -> Iterator[ListedGroup]:
        """All groups, live or stored. The caller may wait between two."""
        idle = self.idle
        for group_id, group in list(self._groups.items()):
            kind = CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC
            yield ListedGroup(group_id, group.protocol_type, group.state, kind)
        for group_id in idle:
            metadata = self._table.metadata(group_id)
            if self._table.consumer_records(group_id):
                yield ListedGroup(
                    group_id, ConsumerGroup.protocol_type, ConsumerGroupState.EMPTY, CONSUMER
                )
                continue
            protocol_type = "" if metadata is None else metadata.protocol_type
            yield ListedGroup(group_id, protocol_type, State.EMPTY)

    # -- writes and deadlines

    def follow_up(self, group: AnyGroup, now: float) -> None:
        """Append what a group wants stored, wake answered requests, record the next deadline."""
        if self._is_replaced(group):
            self._wake_answered(group.group_id)
            return
        if isinstance(group, ConvertibleGroup) and group.wants_downgrade:
            group = self._downgrade(group, now)
        while writes := group.pop_writes():
            for write in writes:
                self._store(group, write, now)
        self._wake_answered(group.group_id)
        group_id, deadline = group.group_id, group.deadline
        self._set_held(group_id, group.held_bytes)
        is_unused = group.state in (State.EMPTY, State.DEAD) and deadline == math.inf
        is_unused = is_unused and group_id not in self._deleting
        waiting = self._waiting if isinstance(group, Group) else self._unconfirmed
        if is_unused and not any(item.group is group for item in waiting):
            if self._groups.get(group_id) is group:
                self._drop(group_id)
        else:
            self._groups[group_id] = group
            if deadline < self._moment_of.get(group_id, math.inf):
                self._moment_of[group_id] = deadline
                heapq.heappush(self._moments, (deadline, group_id))

    def _is_replaced(self, group: AnyGroup) -> bool:
        """Whether a group has ended and is not kept any more; another may have its place."""
        is_kept = group.group_id in self._deleting or self._groups.get(group.group_id) is group
        return group.state == State.DEAD and not is_kept

    def _set_held(self, group_id: str, size: int) -> None:
        self.held_bytes += size - self._held_by.pop(group_id, 0)
        if size:
            self._held_by[group_id] = size

    def _drop(self, group_id: str) -> None:
        """Drop a group. Remove outdated heap entries once they are more than half."""
        del self._groups[group_id]
        self._moment_of.pop(group_id, None)
        if len(self._moments) > 2 * len(self._moment_of) + MOMENTS_SPARE:
            self._moments = [(at, each) for each, at in self._moment_of.items()]
            heapq.heapify(self._moments)

    def wait_for(self, group: AnyGroup, ticket: Ticket[Any]) -> None:
        """Wake a request once its ticket is answered."""
        self._tickets.setdefault(group.group_id, []).append(ticket)

    def _wake_answered(self, group_id: str) -> None:
        tickets = self._tickets.pop(group_id, None)
        if tickets is None:
            return
        left = []
        for ticket in tickets:
            if ticket.answer is None:
                left.append(ticket)
            else:
                self._wake(ticket)
        if left:
            self._tickets[group_id] = left

    def _store(self, group: AnyGroup, write: Write | Batch, now: float) -> None:
        records: list[tuple[Key, Value | None]]
        if isinstance(write, Batch):
            records = list(write.records)
            waiting, deadline = self._unconfirmed, math.inf
        else:
            value = replace(write.value, state_timestamp_ms=self._wall_ms())
            records = [(GroupKey(group.group_id), value)]
            waiting, deadline = self._waiting, now + self._write_timeout_s
        try:
            end = self._append(records, now)
        except Refused as refused:
            group.not_written(write.token, append_error(refused.code), now)
        else:
            waiting.append(_Waiting(end, group, write.token, deadline))

    def on_replayed(self, end: int, now: float) -> None:
        """Handle that all records below `end` are committed and in the table; give up late ones."""
        for waiting in (self._waiting, self._unconfirmed):
            while waiting and waiting[0].end <= end:
                item = waiting.popleft()
                item.group.written(item.token, now)
                self.follow_up(item.group, now)
        while self._waiting and self._waiting[0].deadline <= now:
            item = self._waiting.popleft()
            item.group.not_written(item.token, ErrorCode.REQUEST_TIMED_OUT, now)
            self.follow_up(item.group, now)

    @property
    def is_writing(self) -> bool:
        """Whether a group waits for a record of its own."""
        return bool(self._waiting or self._unconfirmed)

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        moment = self._moments[0][0] if self._moments else math.inf
        return min(moment, self._waiting[0].deadline) if self._waiting else moment

    def tick(self, now: float) -> None:
        """Do what is due in every group, once."""
        due = []
        while self._moments and self._moments[0][0] <= now:
            moment, group_id = heapq.heappop(self._moments)
            if self._moment_of.get(group_id) == moment:
                del self._moment_of[group_id]
                due.append(self._groups[group_id])
        for group in due:
            if group.deadline <= now:
                group.tick(now)
            self.follow_up(group, now)

    def begin_delete(self, group_id: str, now: float) -> ErrorCode:
        """Begin to delete a group that has no members; the caller appends its tombstones. Until
        `end_delete`, requests of the group are answered COORDINATOR_NOT_AVAILABLE."""
        group = self.find(group_id, now)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = group.delete(now)
        if not error:
            self._deleting.add(group_id)
            self.follow_up(group, now)
        return error

    def end_delete(self, group_id: str, now: float) -> None:
        """Handle that all tombstones of a group are appended, or one was refused: from then on the
        log says whether the group exists."""
        self._deleting.discard(group_id)
        if group := self._groups.get(group_id):
            self.follow_up(group, now)

    def statistics(self) -> tuple[int, int]:
        """Return how many groups are live, and how many deadlines are recorded, including outdated
        ones."""
        return len(self._groups), len(self._moments)

    def close(self, now: float) -> None:
        """End the registry: waiting requests are answered NOT_COORDINATOR."""
        for group in [*self._groups.values()]:
            group.close(ErrorCode.NOT_COORDINATOR, now)
            self._wake_answered(group.group_id)
        self._groups.clear()
        self._held_by.clear()
        self.held_bytes = 0
        self._deleting.clear()
        self._waiting.clear()
        self._unconfirmed.clear()
        self._moments.clear()
        self._moment_of.clear()
