"""Making, deleting and altering topics, as plans.

Topics of one request are judged one after another, each upon what the ones before it left: a name
that comes twice exists the second time. A refused one changes nothing. Many take several turns.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Final, TypeVar

from minibroker.broker.config import Config, ConfigError, topic_property
from minibroker.broker.controller import entries
from minibroker.broker.controller.placement import place
from minibroker.broker.controller.plans import Draft, Plan
from minibroker.broker.controller.state import PartitionRecord, State, Tombstone, TopicRecord
from minibroker.broker.errors import Refused
from minibroker.broker.metadata.orders import is_topic_name
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import OFFSETS_TOPIC, TOPIC_NAME_CHARS_MAX, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import (
    DEFAULT_COUNT,
    ConfigEntry,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    TopicResult,
)

PARTITIONS_MAX: Final = 10_000  # of the cluster; each keeps files open
INTERNAL_PREFIX: Final = "__"  # __consumer_offsets and such, which no client makes (PRO-08)
# What is kept there is given up by the groups' coordinators, never by its age.
OFFSETS_CONFIGS: Final = (ConfigEntry("retention.ms", "-1"), ConfigEntry("retention.bytes", "-1"))

TOPICS_AT_ONCE: Final = 100  # and partitions of new ones, in one turn of the loop

Wanted = TypeVar("Wanted")


def plan_create(
    state: State, config: Config, request: CreateTopicsRequest, rng: Random
) -> Turns[Plan[CreateTopicsResponse]]:
    """Make the topics that may be made."""

    def create(draft: Draft, wanted: NewTopic) -> TopicResult:
        if wanted.name == OFFSETS_TOPIC:
            wanted = _offsets_topic(config, wanted)
        topic = draft.add_topic(_new_topic(draft, config, wanted, rng))
        return TopicResult(topic.name, topic_id=topic.id)

    draft = Draft(state)
    named = [(topic.name, topic) for topic in request.topics]
    answer = CreateTopicsResponse((yield from _each(draft, named, create)))
    if request.validate_only:
        return Plan(answer, state)
    yield from draft.write_added()
    return draft.plan(answer)


def plan_delete(state: State, request: DeleteTopicsRequest) -> Turns[Plan[DeleteTopicsResponse]]:
    """Delete the topics that exist, each leaving a tombstone of its id (CTL-15)."""

    def delete(draft: Draft, name: str) -> TopicResult:
        if name == OFFSETS_TOPIC:
            what = f"{OFFSETS_TOPIC} holds the offsets of all groups; delete groups instead"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        topic = _topic(draft, name)
        holders = {node for record in topic.partitions for node in record.replicas}
        count = len(topic.partitions)
        draft.remove_topic(topic, Tombstone(topic.id, name, count, tuple(sorted(holders))))
        return TopicResult(name, topic_id=topic.id)

    draft = Draft(state)
    named = [(name, name) for name in request.topics]
    answer = DeleteTopicsResponse((yield from _each(draft, named, delete)))
    return draft.plan(answer)


def plan_alter(
    state: State, config: Config, request: AlterConfigsRequest
) -> Turns[Plan[AlterConfigsResponse]]:
    """Change topics' own settings; of each topic all that is asked for, or nothing."""

    def alter(draft: Draft, wanted: TopicConfigChanges) -> TopicResult:
        topic = _topic(draft, wanted.name)
        configs = dict(topic.configs)
        for change in wanted.changes:
            topic_property(change.name)
            if change.value is None:
                configs.pop(change.name, None)
            else:
                configs[change.name] = change.value
        config.for_topic(configs)
        topic = replace(topic, configs=configs)
        draft.set_topic(topic)
        return TopicResult(topic.name, topic_id=topic.id)

    draft = Draft(state)
    named = [(topic.name, topic) for topic in request.topics]
    answer = AlterConfigsResponse((yield from _each(draft, named, alter)))
    return Plan(answer, state) if request.validate_only else draft.plan(answer)


def plan_forgetting(state: State, topic_ids: Iterable[bytes]) -> Plan[None]:
    """Remove the tombstones of topics of which no broker has anything any more."""
    gone = set(topic_ids)
    left = {one: tombstone for one, tombstone in state.tombstones.items() if one not in gone}
    writes = tuple(map(entries.tombstone_removal, sorted(gone)))
    return Plan(None, replace(state, tombstones=left), writes)


def admit(response: CreateTopicsResponse, uncreated: Mapping[str, int]) -> CreateTopicsResponse:
    """The answer to a request that was carried out, except that so many partitions of some new
    topics have no log yet. The topics exist, and these partitions are offline."""
    return CreateTopicsResponse(
        tuple(
            replace(
                topic,
                error=ErrorCode.KAFKA_STORAGE_ERROR,
                error_message=f"topic {topic.name!r} is made, but there is no room for the logs of"
                f" {uncreated[topic.name]} of its partitions: they are offline until there is",
            )
            if not topic.error and uncreated.get(topic.name)
            else topic
            for topic in response.topics
        )
    )


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
    if name.startswith(INTERNAL_PREFIX) and name != OFFSETS_TOPIC:
        what = f"topic name {name!r}: names that begin with '__' are for the broker's own topics"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if "." in name or "_" in name:
        other = draft.spelled_like(name)
        if other is not None:
            what = f"topic name {name!r} differs from {other!r} in '.' and '_' only"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)


def _offsets_topic(config: Config, wanted: NewTopic) -> NewTopic:
    """The topic of the groups is always made as the controller's settings say, whoever asks."""
    if wanted != NewTopic(OFFSETS_TOPIC):
        what = f"{OFFSETS_TOPIC} is the broker's own; its form is set by offsets.topic..."
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    partition_count = config.offsets_topic_num_partitions
    replication_factor = config.offsets_topic_replication_factor
    return NewTopic(OFFSETS_TOPIC, partition_count, replication_factor, configs=OFFSETS_CONFIGS)


def _topic(draft: Draft, name: str) -> TopicRecord:
    if name not in draft.state.topics:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return draft.state.topics[name]


def _new_topic(draft: Draft, config: Config, wanted: NewTopic, rng: Random) -> TopicRecord:
    """Led by the first replica of each partition, all active ones of them in sync (CTL-01)."""
    state = draft.state
    if wanted.name in state.topics:
        what = f"there is a topic {wanted.name!r} already"
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, what)
    check_name(wanted.name, draft)
    known = sorted(state.admissions)
    active = [node for node in known if state.is_active(node)]
    down = [node for node in known if not state.is_active(node)]
    partition_count = _partition_count(draft, config, wanted.partition_count)
    factor = _replication_factor(len(active), len(down), config, wanted.replication_factor)
    configs = {entry.name: entry.value for entry in wanted.configs}
    _check_active(len(active), len(known), factor, config.for_topic(configs).min_insync_replicas)
    start = rng.randrange(len(active))
    partitions = tuple(
        PartitionRecord(number, replicas[0], 0, 0, replicas[: len(active)], replicas)
        for number, replicas in enumerate(place(partition_count, factor, active, start, down))
    )
    return TopicRecord(rng.randbytes(16), wanted.name, configs, partitions)


def _partition_count(draft: Draft, config: Config, wanted: int) -> int:
    count = config.num_partitions if wanted == DEFAULT_COUNT else wanted
    if count < 1:
        what = f"a topic has at least 1 partition, not {count}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)
    present = draft.partition_count
    if present + count > PARTITIONS_MAX:
        what = f"{count} more partitions than the {present} there are would pass {PARTITIONS_MAX}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)
    return count


def _replication_factor(active: int, down: int, config: Config, wanted: int) -> int:
    factor = config.default_replication_factor if wanted == DEFAULT_COUNT else wanted
    if not 1 <= factor <= active + down:
        brokers = f"{active} live broker{'' if active == 1 else 's'}"
        if down:
            brokers += f" and {down} that {'is' if down == 1 else 'are'} down"
        what = f"replication factor {factor}, with {brokers}"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)
    return factor


def _check_active(active: int, known: int, factor: int, min_insync_replicas: int) -> None:
    """A partition is not created where acks=all would be refused at once."""
    needed = max(1, min(min_insync_replicas, factor))
    if active < needed:
        what = (
            f"replication factor {factor} and min.insync.replicas {min_insync_replicas} need"
            f" {needed} live broker{'' if needed == 1 else 's'}; {active} of {known} live"
        )
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)


def _each(
    draft: Draft,
    named: Iterable[tuple[str, Wanted]],
    decide: Callable[[Draft, Wanted], TopicResult],
) -> Turns[tuple[TopicResult, ...]]:
    """The result of each topic of a request, in its order."""
    results = []
    count = 0  # of partitions since the last turn
    for name, wanted in named:
        before = draft.partition_count
        try:
            results.append(decide(draft, wanted))
        except Refused as refused:
            results.append(TopicResult(name, refused.code, refused.message))
        except ConfigError as error:
            results.append(TopicResult(name, ErrorCode.INVALID_CONFIG, str(error)))
        count += 1 + draft.partition_count - before
        if count >= TOPICS_AT_ONCE:
            count = 0
            yield
    return tuple(results)
