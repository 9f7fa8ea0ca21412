"""Creating, deleting and altering topics and adding partitions, as plans.

The topics of one request are decided one after another, each on the state after the ones before: a
name that a request has twice exists the second time. A refused topic changes nothing. A request of
many topics takes several turns of the loop.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from minibroker.broker.config import Config, ConfigError
from minibroker.broker.controller import entries
from minibroker.broker.controller.assignment import (
    assign_partitions,
    brokers_of,
    check_factor,
    in_order,
    place_partitions,
)
from minibroker.broker.controller.broker_configs import altered_broker
from minibroker.broker.controller.group_configs import altered_group
from minibroker.broker.controller.plans import Draft, Plan
from minibroker.broker.controller.state import PartitionRecord, State, Tombstone, TopicRecord
from minibroker.broker.controller.topic_configs import altered, check_alterable
from minibroker.broker.errors import Refused
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TOPIC_NAME_CHARS_MAX,
    ConfigResourceType,
    ErrorCode,
)
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import (
    DEFAULT_COUNT,
    ConfigEntry,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewPartitions,
    NewTopic,
    TopicResult,
    UnclearTopic,
)
from minibroker.protocol.topic_names import is_topic_name

PARTITIONS_MAX: Final = 10_000  # of the cluster; each keeps files open
INTERNAL_PREFIX: Final = "__"  # __consumer_offsets and such, which no client makes (PRO-08)
TOPICS_AT_ONCE: Final = 100  # and partitions of new ones, in one turn of the loop

Wanted = TypeVar("Wanted")
Added = TypeVar("Added", bound=CreateTopicsResponse | CreatePartitionsResponse)


def plan_create(
    state: State, config: Config, request: CreateTopicsRequest, rng: Random
) -> Turns[Plan[CreateTopicsResponse]]:
    """Plan to create topics; each is created or refused by itself."""

    def create(draft: Draft, wanted: NewTopic) -> TopicResult:
        if wanted.name in INTERNAL_TOPICS:
            wanted = _internal_topic(config, wanted)
        topic = draft.add_topic(_new_topic(draft, config, wanted, rng))
        counts = len(topic.partitions), len(topic.partitions[0].replicas)
        return TopicResult(topic.name, 0, None, topic.id, *counts)

    return (yield from _plan_additions(state, request, create, CreateTopicsResponse))


def plan_create_partitions(
    state: State, config: Config, request: CreatePartitionsRequest, rng: Random
) -> Turns[Plan[CreatePartitionsResponse]]:
    """Plan to add partitions to topics; their placement continues the present one (CTL-16)."""
    times = Counter(topic.name for topic in request.topics)

    def grow(draft: Draft, wanted: NewPartitions) -> TopicResult:
        if times[wanted.name] > 1:
            what = f"topic {wanted.name!r} is named {times[wanted.name]} times"
            raise Refused(ErrorCode.INVALID_REQUEST, what)
        topic = _topic(draft, wanted.name)
        topic = draft.add_partitions(topic, _more_partitions(draft, config, topic, wanted, rng))
        counts = len(topic.partitions), len(topic.partitions[0].target)
        return TopicResult(topic.name, 0, None, topic.id, *counts)

    return (yield from _plan_additions(state, request, grow, CreatePartitionsResponse))


def plan_delete(state: State, request: DeleteTopicsRequest) -> Turns[Plan[DeleteTopicsResponse]]:
    """Plan to delete topics; each leaves a tombstone with its id (CTL-15)."""

    def delete(draft: Draft, name: str) -> TopicResult:
        if name in INTERNAL_TOPICS:
            what = f"{name} {INTERNAL_TOPICS[name]}"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        topic = _topic(draft, name)
        holders = {
            node for record in topic.partitions for node in (*record.replicas, *record.former)
        }
        count = len(topic.partitions)
        draft.remove_topic(topic, Tombstone(topic.id, name, count, tuple(sorted(holders))))
        return TopicResult(name, topic_id=topic.id)

    def delete_by_id(draft: Draft, topic_id: bytes) -> TopicResult:
        name = names.get(topic_id)
        if name is None or name not in draft.state.topics:
            return TopicResult("", ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id", topic_id)
        try:
            return delete(draft, name)
        except Refused as refused:
            return TopicResult(name, refused.code, refused.message, topic_id)

    def refuse(draft: Draft, unclear: UnclearTopic) -> TopicResult:
        named = "a name and an id" if unclear.name else "neither a name nor an id"
        what = f"a topic to delete has either a name or an id; this has {named}"
        return TopicResult(unclear.name, ErrorCode.INVALID_REQUEST, what, unclear.topic_id)

    draft = Draft(state)
    named = [(name, name) for name in request.topics]
    results = yield from _each(draft, named, delete)
    names = {topic.id: topic.name for topic in state.topics.values()} if request.topic_ids else {}
    by_id = [("", topic_id) for topic_id in request.topic_ids]
    results += yield from _each(draft, by_id, delete_by_id)
    results += yield from _each(draft, ((one.name, one) for one in request.unclear), refuse)
    return draft.plan(DeleteTopicsResponse(results))


def plan_alter(
    state: State, config: Config, request: AlterConfigsRequest
) -> Turns[Plan[AlterConfigsResponse]]:
    """Plan to change topics', groups' and brokers' own settings: of each all changes, or none."""
    times = Counter((topic.resource_type, topic.name) for topic in request.topics)

    def alter(draft: Draft, wanted: TopicConfigChanges) -> TopicResult:
        if times[wanted.resource_type, wanted.name] > 1:
            what = f"{wanted.name!r} is named {times[wanted.resource_type, wanted.name]} times"
            raise Refused(ErrorCode.INVALID_REQUEST, what)
        check_alterable(wanted)
        if wanted.resource_type == ConfigResourceType.GROUP:
            groups, reset = draft.state.groups, request.reset_others
            own = altered_group(config, groups, wanted.name, wanted.changes, reset_others=reset)
            draft.set_group(wanted.name, own)
            return TopicResult(wanted.name)
        if wanted.resource_type == ConfigResourceType.BROKER:
            reset = request.reset_others
            node_id, own = altered_broker(config, draft.state, wanted, reset_others=reset)
            draft.set_broker_configs(node_id, own)
            return TopicResult(wanted.name)
        if not is_topic_name(wanted.name):
            what = f"no topic can have the name {wanted.name!r}"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        topic = _topic(draft, wanted.name)
        defaults = config.own_settings(topic.name)
        before = defaults if request.reset_others else topic.configs
        configs = altered(config, before, defaults, wanted.changes)
        topic = replace(topic, configs=configs)
        draft.set_topic(topic)
        return TopicResult(topic.name, topic_id=topic.id)

    draft = Draft(state)
    named = [(topic.name, topic) for topic in request.topics]
    answer = AlterConfigsResponse((yield from _each(draft, named, alter)))
    return Plan(answer, state) if request.validate_only else draft.plan(answer)


def plan_forgetting(state: State, topic_ids: Iterable[bytes]) -> Plan[None]:
    """Plan to remove the tombstones of topics of which no broker has a replica any more."""
    gone = set(topic_ids)
    left = {one: tombstone for one, tombstone in state.tombstones.items() if one not in gone}
    writes = tuple(map(entries.tombstone_removal, sorted(gone)))
    return Plan(None, replace(state, tombstones=left), writes)


def admit(response: Added, uncreated: Mapping[str, int]) -> Added:
    """Return the answer to a request that was carried out, with an error for topics some of whose
    partitions have no log yet. Those partitions exist, and are offline."""
    results = tuple(
        replace(
            topic,
            error=ErrorCode.KAFKA_STORAGE_ERROR,
            error_message=f"the partitions of topic {topic.name!r} are made, but there is no room"
            f" for the logs of {uncreated[topic.name]} of its partitions: they are offline until"
            " there is",
        )
        if not topic.error and uncreated.get(topic.name)
        else topic
        for topic in response.topics
    )
    return replace(response, topics=results)


def check_name(name: str, draft: Draft) -> None:
    """Kafka's rules for a new topic's name. Raises `Refused` (INVALID_TOPIC_EXCEPTION).

    Names that differ in `.` and `_` only would share the name of their metrics.
    """
    if not 0 < len(name) <= TOPIC_NAME_CHARS_MAX:
        what = f"a topic name has 1 to {TOPIC_NAME_CHARS_MAX} characters, this one {len(name)}"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if not is_topic_name(name):
        what = f"topic name {name!r}: only letters, digits, '.', '_' and '-', and not '.' or '..'"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if name.startswith(INTERNAL_PREFIX) and name not in INTERNAL_TOPICS:
        what = f"topic name {name!r}: names that begin with '__' are for the broker's own topics"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if "." in name or "_" in name:
        other = draft.spelled_like(name)
        if other is not None:
            what = f"topic name {name!r} differs from {other!r} in '.' and '_' only"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)


def _internal_topic(config: Config, wanted: NewTopic) -> NewTopic:
    """Return a topic of the brokers' own as the controller's settings define it."""
    name = wanted.name
    partition_count = config.transaction_state_log_num_partitions
    replication_factor = config.transaction_state_log_replication_factor
    prefix = "transaction.state.log"
    if name == OFFSETS_TOPIC:
        partition_count = config.offsets_topic_num_partitions
        replication_factor = config.offsets_topic_replication_factor
        prefix = "offsets.topic"
    if wanted != NewTopic(name):
        what = f"{name} is the broker's own; its form is set by {prefix}..."
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    configs = tuple(ConfigEntry(*item) for item in config.own_settings(name).items())
    return NewTopic(name, partition_count, replication_factor, configs)


def _plan_additions(
    state: State,
    request: CreateTopicsRequest | CreatePartitionsRequest,
    add: Callable[[Draft, Any], TopicResult],
    response: Callable[[tuple[TopicResult, ...]], Added],
) -> Turns[Plan[Added]]:
    """Plan to add the partitions of each topic in the request, unless it only validates."""
    draft = Draft(state)
    named = [(topic.name, topic) for topic in request.topics]
    answer = response((yield from _each(draft, named, add)))
    if request.validate_only:
        return Plan(answer, state)
    yield from draft.write_added()
    return draft.plan(answer)


def _topic(draft: Draft, name: str) -> TopicRecord:
    if name not in draft.state.topics:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return draft.state.topics[name]


def _new_topic(draft: Draft, config: Config, wanted: NewTopic, rng: Random) -> TopicRecord:
    """Return the topic that a request creates. Raises `Refused` if it exists."""
    state = draft.state
    if wanted.name in state.topics:
        what = f"there is a topic {wanted.name!r} already"
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, what)
    check_name(wanted.name, draft)
    brokers = brokers_of(state)
    configs = {entry.name: entry.value for entry in wanted.configs}
    if wanted.assignments:
        assignments = in_order(wanted)
        _check_count(draft, len(assignments), wanted.name)
        min_isr = config.for_topic(configs).min_insync_replicas
        partitions = assign_partitions(brokers, assignments, min_isr)
        return TopicRecord(rng.randbytes(16), wanted.name, configs, partitions)
    count, factor = wanted.partition_count, wanted.replication_factor
    count = config.num_partitions if count == DEFAULT_COUNT else count
    factor = config.default_replication_factor if factor == DEFAULT_COUNT else factor
    _check_count(draft, count, wanted.name)
    min_isr = config.for_topic(configs).min_insync_replicas
    check_factor(brokers, factor, min_isr)
    start = rng.randrange(len(brokers.active))
    partitions = place_partitions(brokers, count, factor, min_isr, start)
    return TopicRecord(rng.randbytes(16), wanted.name, configs, partitions)


def _more_partitions(
    draft: Draft, config: Config, topic: TopicRecord, wanted: NewPartitions, rng: Random
) -> tuple[PartitionRecord, ...]:
    """Return the partitions to add, with as many replicas as the present ones."""
    present = len(topic.partitions)
    if topic.name in INTERNAL_TOPICS:
        what = f"{topic.name} keeps its partitions: what it holds is where its name says"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if wanted.count <= present:
        what = f"topic {topic.name!r} has {present} partitions, and cannot have {wanted.count}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)
    count = wanted.count - present
    _check_count(draft, count, topic.name)
    brokers = brokers_of(draft.state)
    factor = len(topic.partitions[0].target)
    min_isr = config.for_topic(topic.configs).min_insync_replicas
    if wanted.assignments is not None:
        if len(wanted.assignments) != count:
            what = f"{count} new partitions, and brokers for {len(wanted.assignments)}"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, what)
        return assign_partitions(brokers, wanted.assignments, min_isr, factor, present)
    check_factor(brokers, factor, min_isr)
    first = topic.partitions[0].target[0]
    if first in brokers.active:
        start = brokers.active.index(first) + present
    else:
        start = rng.randrange(len(brokers.active))
    return place_partitions(brokers, count, factor, min_isr, start, present)


def _check_count(draft: Draft, count: int, name: str) -> None:
    """Check that a topic may get so many more partitions. Raises `Refused`.

    A topic of the brokers' own also comes to a full cluster: there would be no groups without it.
    """
    if count < 1:
        what = f"a topic has at least 1 partition, not {count}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)
    present = 0 if name in INTERNAL_TOPICS else draft.partition_count
    if present + count > PARTITIONS_MAX:
        what = f"{count} more partitions than the {present} there are would pass {PARTITIONS_MAX}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)


def _each(
    draft: Draft,
    named: Iterable[tuple[str, Wanted]],
    decide: Callable[[Draft, Wanted], TopicResult],
) -> Turns[tuple[TopicResult, ...]]:
    """Return the result of each topic of a request, in order."""
    results = []
    count = 0  # of partitions since the last turn
    for name, wanted in named:
        before = draft.partition_count
        try:
            results.append(decide(draft, wanted))
        except Refused as refused:
            results.append(TopicResult(name, refused.code, refused.message))
        except ConfigError as error:
            invalid = Refused(ErrorCode.INVALID_CONFIG, str(error))
            results.append(TopicResult(name, invalid.code, invalid.message))
        count += 1 + draft.partition_count - before
        if count >= TOPICS_AT_ONCE:
            count = 0
            yield
    return tuple(results)
