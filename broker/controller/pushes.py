"""What one broker, in one registration, still has to be told, and the requests that tell it.

Orders are level-triggered. Nothing is queued: this remembers only *what* the broker has not been
told of, by name, and a request is made from the state of the moment when it can be sent. So any
number of changes while one push is under way become one push, and a name never carries an old
state after a new one. At first, and after any failure, the broker is told everything, marked full;
what a lost connection may or may not have delivered need not be known then.

A push is up to three kinds of requests, in this order on one connection:

* UPDATE_METADATA, before a role is given: it carries the topics' settings.
* STOP_REPLICA, for deleted topics: a topic made again under the same name finds its place free.
* LEADER_AND_ISR.

Requests have a size limit, and a broker that makes logs serves nobody else meanwhile. So a large
push comes in parts, each sent when the one before is answered. Of a full LEADER_AND_ISR the last
part is marked full (only then are the logs known that have no role), of a full UPDATE_METADATA the
first (it replaces what was known, the others add to it).

A partition that a broker refuses is told again later, where that can help: while its disk is full,
or an older topic of the same name is still in the way. FENCED_LEADER_EPOCH is no such case: the
broker knows a higher epoch than the store, so the store is an old copy, and that is an error to
be logged.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from minibroker.broker.controller.entries import Office
from minibroker.broker.controller.state import (
    PartitionRecord,
    Registered,
    State,
    Tombstone,
    TopicRecord,
)
from minibroker.protocol.constants import (
    DELETED_LEADER,
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LiveBroker,
    PartitionObeyed,
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

PART_WEIGHT_MAX: Final = 2_000  # of a request: partitions, topics and settings count 1
# Of a role for which a log may have to be made. That takes up to 25 ms of a busy broker's loop, and
# a renewal of its lease some turns of it: no turn may take much of a heartbeat.
MAKING_WEIGHT: Final = 500
REPEATED: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


class Change(NamedTuple):
    """How one state differs from another: what brokers have to be told."""

    topics: tuple[str, ...] = ()  # new, or with other settings
    deleted: tuple[tuple[str, bytes], ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    has_other_brokers: bool = False


class Push(NamedTuple):
    """One request."""

    api_key: ApiKey
    request: Any


class Refusal(NamedTuple):
    """What a broker did not do."""

    name: TopicPartition
    error: int


class Told(NamedTuple):
    """What came of a push: deleted topics that are gone there, and what was refused."""

    stopped: tuple[bytes, ...] = ()
    refusals: tuple[Refusal, ...] = ()


class Pushes:
    """See the head of this module. `told` follows `wanted`, which counts the changes."""

    def __init__(self, broker: Registered, office: Office, controller_epoch: int) -> None:
        self.broker = broker
        self.wanted = 1
        self.told = 0
        self.unmade: dict[TopicPartition, int] = {}  # refused and to be repeated: the error
        self._sender = (office.node_id, controller_epoch, broker.epoch)
        self._sending = 0
        self._is_full = True
        self._has_news = True  # of brokers, or of anything else in the metadata
        self._topics: dict[str, None] = {}
        self._deleted: dict[str, bytes] = {}
        self._partitions: dict[TopicPartition, None] = {}
        self._stops: dict[bytes, Tombstone] = {}

    def note(self, change: Change) -> None:
        """Something is not as it was told."""
        self.wanted += 1
        self._has_news = True
        self._topics.update(dict.fromkeys(change.topics))
        self._deleted.update(change.deleted)
        self._partitions.update(dict.fromkeys(change.partitions))

    def stop(self, tombstones: Iterable[Tombstone]) -> None:
        """Have the broker delete what it holds of these topics."""
        for tombstone in tombstones:
            if self.broker.node_id in tombstone.holders:
                self._stops[tombstone.id] = tombstone
                self.wanted += 1

    def repeat(self) -> None:
        """Tell again what was refused."""
        if self.unmade:
            self._partitions.update(dict.fromkeys(self.unmade))
            self.wanted += 1

    def take(self, state: State) -> tuple[Push, ...]:
        """The requests that tell all there is to tell now; `settle` or `fail` must follow."""
        self._sending = self.wanted
        states = _States(state)
        pushes = (*self._metadata(states), *self._deletions(), *self._roles(states))
        for name in list(self.unmade) if self._is_full else self._partitions:
            self.unmade.pop(name, None)
        self._is_full = self._has_news = False
        self._topics.clear()
        self._deleted.clear()
        self._partitions.clear()
        return pushes

    def fail(self) -> None:
        """Nobody knows what of the last push arrived."""
        self._is_full = True

    def settle(self, pushes: Sequence[Push], responses: Sequence[Any]) -> Told | None:
        """What the broker answered to the last push; None if it refused a request as a whole,
        after which the others were not sent."""
        if responses and is_refused_whole(responses[-1]):
            self.fail()
            return None
        asked, failed = set[bytes](), set[str]()
        refusals: list[Refusal] = []
        for push, response in zip(pushes, responses, strict=True):
            if push.api_key == ApiKey.STOP_REPLICA:
                asked.update(one.topic_id for one in push.request.partitions)
                failed.update(one.topic for one in response.partitions if one.error)
            elif push.api_key == ApiKey.LEADER_AND_ISR:
                refusals += self._settle_roles(response.partitions)
        stopped = tuple(one for one in sorted(asked) if self._stops[one].name not in failed)
        for topic_id in stopped:
            del self._stops[topic_id]
        self.told = self._sending
        return Told(stopped, tuple(refusals))

    def _settle_roles(self, obeyed: Iterable[PartitionObeyed]) -> Iterator[Refusal]:
        for one in obeyed:
            name = TopicPartition(one.topic, one.partition)
            if one.error in REPEATED:
                self.unmade[name] = one.error
            if one.error:
                yield Refusal(name, one.error)

    def _metadata(self, states: "_States") -> Iterator[Push]:
        if not self._is_full and not self._has_news:
            return
        topics = states.topics(None if self._is_full else self._topics)
        partitions = states.partitions(None if self._is_full else self._partitions)
        deleted = [
            PartitionState(name, topic_id, 0, DELETED_LEADER, NO_EPOCH, NO_EPOCH, (), ())
            for name, topic_id in self._deleted.items()
            if not self._is_full and name not in states.state.topics
        ]
        is_full = self._is_full
        weights = [1 + len(topic.configs) for topic in topics] + [1] * len(deleted + partitions)
        for part in _parts([*topics, *deleted, *partitions], weights):
            request = UpdateMetadataRequest(
                *self._sender,
                cluster_id=states.state.cluster_id,
                brokers=states.brokers,
                topics=tuple(one for one in part if isinstance(one, TopicState)),
                partitions=tuple(one for one in part if isinstance(one, PartitionState)),
                is_full=is_full,
            )
            yield Push(ApiKey.UPDATE_METADATA, request)
            is_full = False

    def _deletions(self) -> Iterator[Push]:
        stopped = [
            StoppedPartition(tombstone.name, topic_id, number, EPOCH_DURING_DELETE, delete=True)
            for topic_id, tombstone in self._stops.items()
            for number in range(tombstone.partition_count)
        ]
        if stopped:
            for part in _parts(stopped, [1] * len(stopped)):
                yield Push(
                    ApiKey.STOP_REPLICA, StopReplicaRequest(*self._sender, partitions=tuple(part))
                )

    def _roles(self, states: "_States") -> Iterator[Push]:
        node = self.broker.node_id
        named = states.partitions(None if self._is_full else self._partitions)
        roles = [one for one in named if node in one.replicas]
        roles.sort(key=_is_new)  # behind those where clients may be waiting for a leader
        if not roles and not self._is_full:
            return
        weights = [MAKING_WEIGHT if _is_new(one) else 1 for one in roles]
        parts = _parts(roles, weights)
        for number, part in enumerate(parts, start=1):
            request = LeaderAndIsrRequest(
                *self._sender,
                partitions=tuple(part),
                brokers=states.brokers,
                is_full=self._is_full and number == len(parts),
            )
            yield Push(ApiKey.LEADER_AND_ISR, request)


def is_refused_whole(response: Any) -> bool:
    """Whether nothing of the request was done."""
    return isinstance(
        response, LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse
    ) and bool(response.error)


class _States:
    """A state in the form of messages, made as far as it is asked for."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.brokers = tuple(
            LiveBroker(
                node, *broker.endpoint, broker.epoch, state.is_leaving(node), broker.listeners
            )
            for node, broker in sorted(state.brokers.items())
        )
        self._made: dict[TopicPartition, PartitionState] = {}

    def topics(self, names: Iterable[str] | None) -> list[TopicState]:
        """These topics as far as they exist, or all."""
        found = self.state.topics
        return [
            _topic_state(found[name])
            for name in (found if names is None else names)
            if name in found
        ]

    def partitions(self, names: Iterable[TopicPartition] | None) -> list[PartitionState]:
        """These partitions as far as they exist, or all."""
        if names is None:
            return [self._partition(name, record) for name, record in self.state.partitions()]
        found = ((name, self.state.partition(name)) for name in names)
        return [self._partition(name, record) for name, record in found if record is not None]

    def _partition(self, name: TopicPartition, record: PartitionRecord) -> PartitionState:
        if name not in self._made:
            self._made[name] = PartitionState(
                topic=name.topic,
                topic_id=self.state.topics[name.topic].id,
                partition=name.partition,
                leader=record.leader,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
                isr=record.isr,
                replicas=record.replicas,
            )
        return self._made[name]


def difference(old: State, new: State) -> Change:
    """What brokers that were told of `old` do not know. Takes as long as there are topics."""
    topics: list[str] = []
    partitions: list[TopicPartition] = []
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is topic:
            continue
        is_new = before is None or before.id != topic.id
        if before is None or is_new or before.configs != topic.configs:
            topics.append(name)
        known = () if before is None or is_new else before.partitions
        partitions += (
            TopicPartition(name, record.number)
            for record in topic.partitions
            if record.number >= len(known) or known[record.number] is not record
        )
    deleted = [(name, topic.id) for name, topic in old.topics.items() if name not in new.topics]
    has_other_brokers = old.brokers != new.brokers or old.admissions != new.admissions
    return Change(tuple(topics), tuple(deleted), tuple(partitions), has_other_brokers)


def _is_new(state: PartitionState) -> bool:
    """Whether nothing has happened to it since it was made."""
    return state.partition_epoch == 0


def _topic_state(topic: TopicRecord) -> TopicState:
    configs = tuple(ConfigEntry(name, value) for name, value in topic.configs.items())
    return TopicState(topic.name, topic.id, configs, len(topic.partitions))


def _parts(items: Sequence[Any], weights: Sequence[int]) -> list[list[Any]]:
    """The items in lists that fit into one request each; at least one."""
    parts: list[list[Any]] = [[]]
    total = 0
    for item, weight in zip(items, weights, strict=True):
        if total + weight > PART_WEIGHT_MAX:
            parts.append([])
            total = 0
        parts[-1].append(item)
        total += weight
    return parts
