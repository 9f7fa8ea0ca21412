"""What the controller must still send to one broker, and the requests that do so.

Orders are level-triggered. `Pushes` keeps only the *names* of what the broker has not been sent,
and makes each request from the state at the moment when the request can be sent. So any number of
changes of one partition while a request is under way become one, and the broker never gets an old
state after a new one. A new process is sent everything. A process that only registers again has
kept what it was sent: it gets what it missed, and then the word that all its other roles stand.

One request is under way at a time, and the next is made after its answer, so the broker sets the
pace. A request holds what takes a broker some milliseconds, because it serves no other requests
meanwhile. A request whose connection was lost, or that was refused, is made again. What the broker
has acknowledged is not sent again; otherwise a slow broker would never finish.

* UPDATE_METADATA is sent before roles, because it carries the topics' settings. The first one has
  `begins_image`: the whole image follows.
* STOP_REPLICA is for deleted topics, so that a topic created again under the same name finds its
  directory free; and for replicas that a reassignment has removed from the broker.
* LEADER_AND_ISR. The one that sends the last role has `completes_roles`: then the broker knows
  which logs have no role and which topics do not exist any more, and that its earlier roles stand.

What changed first is sent first, so that a stream of changes delays none of them.

A partition that a broker refuses is sent again later if that can help: while the broker's disk is
full, or while an older topic of the same name still has its directory. FENCED_LEADER_EPOCH is no
such case: the broker knows a higher epoch than the store, so the store is an old copy, and the
controller logs an error.
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.plans import Change
from minibroker.broker.controller.state import BrokerRegistration, State, Tombstone
from minibroker.protocol.constants import (
    DELETED_LEADER,
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.messages.control import (
    GroupState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LiveBroker,
    PartitionState,
    StoppedPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    TopicState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.topics import ConfigEntry
from minibroker.protocol.types import TopicPartition

# Limits of one request. A broker takes about 15 us for a topic, a setting or a partition of the
# image, 120 us for a role, 1 to 2 ms for one whose log it must create, and as long to set a log
# aside.
METADATA_WEIGHT_MAX: Final = 500
ROLES_WEIGHT_MAX: Final = 80
MAKING_WEIGHT: Final = 20
STOPS_MAX: Final = 20
NOTHING: Final = math.inf
REPEATED: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


Name = TypeVar("Name")
_Queue: TypeAlias = OrderedDict[Name, int]


class Push(NamedTuple):
    """One request to a broker."""

    api_key: ApiKey
    request: Any


class Refusal(NamedTuple):
    """A partition for which a broker refused an order."""

    name: TopicPartition
    error: int


class Acknowledgement(NamedTuple):
    """The result of a push: deleted topics and former replicas (with the topic's id) of which the
    broker holds nothing any more, and refusals."""

    stopped: tuple[bytes, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    removed: tuple[tuple[TopicPartition, bytes], ...] = ()


class Pushes:
    """See the head of this module. `change_count` counts the changes."""

    def __init__(
        self, broker: BrokerRegistration, active: ActiveController, controller_epoch: int
    ) -> None:
        self.broker = broker
        self.change_count = 1
        self.uncreated: dict[TopicPartition, int] = {}  # refused and to be repeated: the error
        self._sender = (active.node_id, controller_epoch, broker.epoch)
        self._is_begun = False
        self._is_first_due = True  # the first part of the image
        self._is_last_due = True  # the last part of the roles
        # What to send, each with the number of the change that made it necessary; oldest first.
        self._news: _Queue[None] = OrderedDict()  # brokers, or anything else in the metadata
        self._topics: _Queue[str] = OrderedDict()
        self._deleted: _Queue[tuple[str, bytes]] = OrderedDict()
        self._partitions: _Queue[TopicPartition] = OrderedDict()
        self._stops: _Queue[tuple[bytes, int]] = OrderedDict()
        self._removals: _Queue[TopicPartition] = OrderedDict()  # former replicas of the broker
        self._roles: _Queue[TopicPartition] = OrderedDict()
        self._new_roles: _Queue[TopicPartition] = OrderedDict()  # behind the others: see `_is_new`
        # The partitions of each topic of which the broker has logs, as far as is known.
        self._held: defaultdict[str, set[int]] = defaultdict(set)
        # What the request under way sends, to put back into its queues after a failure.
        self._sent: list[tuple[_Queue[Any], Any, int]] = []
        self._tombstones: dict[bytes, Tombstone] = {}
        self._unstopped: dict[bytes, set[int]] = {}  # the partitions that are not gone yet
        self._failed_stops: dict[tuple[bytes, int], None] = {}
        self._failed_removals: dict[TopicPartition, None] = {}

    def renew(self, broker: BrokerRegistration) -> None:
        """Continue with a new registration of the same process, which knows what it has
        acknowledged."""
        assert broker.process == self.broker.process
        self.fail()
        self.broker = broker
        self._sender = (*self._sender[:2], broker.epoch)
        self.change_count += 1
        self._is_last_due = True

    def resend_all_roles(self) -> int:
        """Confirm all roles to the broker once it has all changes: it may have missed that other
        brokers lead. Return the value that `acknowledged` has then."""
        self.change_count += 1
        self._is_last_due = True
        return self.change_count

    @property
    def acknowledged(self) -> int:
        """The number of the newest change that the broker has acknowledged with all before it."""
        oldest = [number for _, _, number in self._sent]
        oldest += [next(iter(queue.values())) for queue in self._queues if queue]
        if self._is_first_due or self._is_last_due:
            oldest.append(1)
        return min(oldest, default=self.change_count + 1) - 1

    @property
    def has_more(self) -> bool:
        """Whether there is something to send now."""
        return self._is_first_due or self._is_last_due or any(self._queues)

    @property
    def has_refused(self) -> bool:
        """Whether something was refused that is to be sent again later."""
        return bool(self.uncreated or self._failed_stops or self._failed_removals)

    @property
    def _queues(self) -> tuple["_Queue[Any]", ...]:
        return (*self._metadata_queues, self._stops, self._removals, self._roles, self._new_roles)

    @property
    def _metadata_queues(self) -> tuple["_Queue[Any]", ...]:
        return (self._news, self._topics, self._deleted, self._partitions)

    def add(self, change: Change) -> None:
        """Queue a change."""
        self.change_count += 1
        self._news.setdefault(None, self.change_count)
        _add(self._topics, change.topics, self.change_count)
        _add(self._deleted, change.deleted, self.change_count)
        _add(self._partitions, change.partitions, self.change_count)
        _add(self._roles, change.partitions, self.change_count)

    def stop(self, tombstones: Iterable[Tombstone]) -> None:
        """Queue the deletion of the broker's replicas of these topics."""
        for tombstone in tombstones:
            if self.broker.node_id in tombstone.holders:
                self.change_count += 1
                numbers = range(tombstone.partition_count)
                self._tombstones[tombstone.id] = tombstone
                self._unstopped[tombstone.id] = set(numbers)
                _add(self._stops, ((tombstone.id, number) for number in numbers), self.change_count)

    def repeat(self) -> None:
        """Queue what the broker has refused again."""
        if self.has_refused:
            self.change_count += 1
            _add(self._roles, self.uncreated, self.change_count)
            _add(self._stops, self._failed_stops, self.change_count)
            self._failed_stops.clear()
            _add(self._removals, self._failed_removals, self.change_count)
            self._failed_removals.clear()

    def next(self, state: State) -> Push | None:
        """Return the next request; None if nothing is left. `handle_response` or `fail` must
        follow."""
        assert not self._sent, "one request is under way at a time"
        if not self._is_begun:
            self._begin(state)
        metadata = _oldest(*self._metadata_queues)
        others = _oldest(self._stops, self._removals, self._roles, self._new_roles)
        states = _States(state)
        if self._is_first_due or (metadata <= others and metadata < NOTHING):
            return self._next_metadata(states)
        if self._stops or self._removals:
            push = self._next_stops(states)
            if push.request.partitions:
                return push
            self._sent.clear()  # replicas that were assigned again
        push = self._next_roles(states)
        if push.request.partitions or push.request.completes_roles:
            return push
        self._sent.clear()  # roles of other brokers
        if self._removals:
            return self.next(state)
        return None if metadata == NOTHING else self._next_metadata(states)

    def handle_response(self, push: Push, response: Any) -> Acknowledgement | None:
        """Handle the broker's answer. Return None if it refused the request as a whole."""
        if is_refused_whole(response):
            self.fail()
            return None
        self._sent.clear()
        if push.api_key == ApiKey.UPDATE_METADATA:
            self._is_first_due = False
            return Acknowledgement()
        if push.api_key == ApiKey.STOP_REPLICA:
            return self._handle_stops(push.request, response)
        self._is_last_due &= not push.request.completes_roles
        return Acknowledgement(refusals=tuple(self._handle_roles(response)))

    def fail(self) -> None:
        """Queue the request under way again: it may not have arrived."""
        _put_back(self._sent)
        self._sent.clear()

    def _begin(self, state: State) -> None:
        """Queue everything, whatever has changed until now."""
        self._is_begun = True
        for queue in (*self._metadata_queues, self._roles):
            queue.clear()
        _add(self._topics, state.topics, 1)
        _add(self._partitions, (name for name, _ in state.partitions()), 1)
        for name, one in state.partitions():
            if one.partition_epoch > 0 and self.broker.node_id in one.original:
                self._held[name.topic].add(name.partition)
        _add(self._roles, self._partitions, 1)

    def _move_to_sent(self, queue: "_Queue[Name]") -> Name:
        name, number = queue.popitem(last=False)
        self._sent.append((queue, name, number))
        return name

    def _next_metadata(self, states: "_States") -> Push:
        groups = states.groups() if self._news or self._is_first_due else None
        self._move_all_to_sent(self._news)
        topics: list[TopicState] = []
        partitions: list[PartitionState] = []
        room = METADATA_WEIGHT_MAX
        while self._topics and room > 0:
            topic = states.topic(self._move_to_sent(self._topics))
            if topic is not None:
                topics.append(topic)
                room -= 1 + len(topic.configs)
        while self._deleted and room > 0:
            name, topic_id = self._move_to_sent(self._deleted)
            self._held.pop(name, None)
            if name not in states.state.topics:
                partitions.append(_deleted_topic(name, topic_id))
                room -= 1
        while self._partitions and room > 0:
            partition = states.partition(self._move_to_sent(self._partitions))
            if partition is not None:
                partitions.append(partition)
                room -= 1
        request = UpdateMetadataRequest(
            *self._sender,
            cluster_id=states.state.cluster_id,
            brokers=states.brokers,
            topics=tuple(topics),
            partitions=tuple(partitions),
            begins_image=self._is_first_due,
            groups=groups,
            feature_level=states.state.feature_level,
        )
        return Push(ApiKey.UPDATE_METADATA, request)

    def _move_all_to_sent(self, queue: "_Queue[Any]") -> None:
        while queue:
            self._move_to_sent(queue)

    def _next_stops(self, states: "_States") -> Push:
        stopped: list[StoppedPartition] = []
        while self._stops and len(stopped) < STOPS_MAX:
            topic_id, number = self._move_to_sent(self._stops)
            name = self._tombstones[topic_id].name
            stopped.append(
                StoppedPartition(name, topic_id, number, EPOCH_DURING_DELETE, delete=True)
            )
        while self._removals and len(stopped) < STOPS_MAX:
            removal = states.removal(self._move_to_sent(self._removals), self.broker.node_id)
            if removal is not None:
                stopped.append(removal)
        return Push(
            ApiKey.STOP_REPLICA, StopReplicaRequest(*self._sender, partitions=tuple(stopped))
        )

    def _handle_stops(
        self, request: StopReplicaRequest, response: StopReplicaResponse
    ) -> Acknowledgement:
        """Return the deleted topics and former replicas of which the broker holds nothing more."""
        errors = {(one.topic, one.partition): one.error for one in response.partitions}
        stopped: list[bytes] = []
        removed: list[tuple[TopicPartition, bytes]] = []
        refusals: list[Refusal] = []
        for one in request.partitions:
            name, topic_id = TopicPartition(one.topic, one.partition), one.topic_id
            if one.leader_epoch != EPOCH_DURING_DELETE:
                self._held[name.topic].discard(name.partition)
                if error := errors.get(name, 0):
                    self._failed_removals[name] = None
                    refusals.append(Refusal(name, error))
                else:
                    removed.append((name, topic_id))
            elif errors.get(name, 0):
                self._failed_stops[topic_id, name.partition] = None
            else:
                left = self._unstopped[topic_id]
                left.discard(name.partition)
                if not left:
                    del self._unstopped[topic_id], self._tombstones[topic_id]
                    stopped.append(topic_id)
        return Acknowledgement(tuple(stopped), tuple(refusals), tuple(removed))

    def _next_roles(self, states: "_States") -> Push:
        roles: list[PartitionState] = []
        early: list[tuple[_Queue[TopicPartition], TopicPartition, int]] = []
        room = ROLES_WEIGHT_MAX
        for queue in (self._roles, self._new_roles):
            while queue and room > 0:
                name, number = queue.popitem(last=False)
                role = self._role(states, name)
                if role is not None and name.topic in self._topics:
                    early.append((queue, name, number))  # its settings are sent first
                elif role is not None and self._is_new(role, name) and queue is self._roles:
                    self._new_roles.setdefault(name, number)
                elif role is None and states.removal(name, self.broker.node_id) is not None:
                    self._removals.setdefault(name, number)
                else:
                    self._sent.append((queue, name, number))
                    if role is not None:
                        roles.append(role)
                        room -= MAKING_WEIGHT if self._is_new(role, name) else 1
        _put_back(early)
        request = LeaderAndIsrRequest(
            *self._sender,
            partitions=tuple(roles),
            brokers=states.brokers,
            completes_roles=self._is_last_due
            and not (self._roles or self._new_roles or self._removals),
        )
        return Push(ApiKey.LEADER_AND_ISR, request)

    def _role(self, states: "_States", name: TopicPartition) -> PartitionState | None:
        """Return the broker's role for a partition; None if it has none."""
        state = states.partition(name)
        if state is not None and self.broker.node_id in state.replicas:
            return state
        self.uncreated.pop(name, None)
        return None

    def _is_new(self, role: PartitionState, name: TopicPartition) -> bool:
        """Whether the broker may have to create a log: the partition has not changed since its
        creation, or the broker was never sent it."""
        return role.partition_epoch == 0 or name.partition not in self._held.get(name.topic, ())

    def _handle_roles(self, response: LeaderAndIsrResponse) -> Iterator[Refusal]:
        for one in response.partitions:
            name = TopicPartition(one.topic, one.partition)
            if one.error in REPEATED:
                self.uncreated[name] = one.error
            else:
                self.uncreated.pop(name, None)
                self._held[name.topic].add(name.partition)
            if one.error:
                yield Refusal(name, one.error)


def _oldest(*queues: "_Queue[Any]") -> float:
    """Return the number of the oldest change in these queues."""
    return min((next(iter(queue.values())) for queue in queues if queue), default=NOTHING)


def _add(queue: "_Queue[Name]", names: Iterable[Name], number: int) -> None:
    """Queue names; one that waits already keeps its place."""
    for name in names:
        queue.setdefault(name, number)


def _put_back(taken: Sequence[tuple["_Queue[Any]", Any, int]]) -> None:
    """Queue names again, before all that came later."""
    for queue, name, number in reversed(taken):
        queue[name] = number
        queue.move_to_end(name, last=False)


def is_refused_whole(response: Any) -> bool:
    """Whether a response refuses its whole request."""
    return isinstance(
        response, LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse
    ) and bool(response.error)


class _States:
    """A state in the form of messages, which are made on demand."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.brokers = tuple(
            LiveBroker(
                node,
                *broker.endpoint,
                broker.epoch,
                state.is_leaving(node),
                broker.listeners,
                node in state.fenced,
                broker.rack,
                tuple(ConfigEntry(*entry) for entry in state.broker_configs.get(node, {}).items()),
            )
            for node, broker in sorted(state.brokers.items())
        )

    def topic(self, name: str) -> TopicState | None:
        """Return a topic; None if it does not exist."""
        topic = self.state.topics.get(name)
        if topic is None:
            return None
        configs = tuple(ConfigEntry(*entry) for entry in topic.configs.items())
        return TopicState(topic.name, topic.id, configs, len(topic.partitions), topic.creation)

    def groups(self) -> tuple[GroupState, ...]:
        """Return the groups that have settings of their own."""
        return tuple(
            GroupState(group_id, tuple(ConfigEntry(*entry) for entry in configs.items()))
            for group_id, configs in self.state.groups.items()
        )

    def partition(self, name: TopicPartition) -> PartitionState | None:
        """Return a partition; None if it does not exist."""
        record = self.state.partition(name)
        if record is None:
            return None
        return PartitionState(
            topic=name.topic,
            topic_id=self.state.topics[name.topic].id,
            partition=name.partition,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            isr=record.isr,
            replicas=record.replicas,
            original=record.original if record.reassignment is not None else (),
            unclean_epoch=record.unclean_epoch,
        )

    def removal(self, name: TopicPartition, node_id: int) -> StoppedPartition | None:
        """Return the order to delete a former replica; None if it is none."""
        record = self.state.partition(name)
        if record is None or node_id not in record.former:
            return None
        epochs = record.leader_epoch, True, record.partition_epoch
        return StoppedPartition(
            name.topic, self.state.topics[name.topic].id, name.partition, *epochs
        )


def _deleted_topic(name: str, topic_id: bytes) -> PartitionState:
    return PartitionState(name, topic_id, 0, DELETED_LEADER, NO_EPOCH, NO_EPOCH, (), ())
