"""What the controller decides, as functions of what it knows.

Each request becomes a `Plan`: the answer, what to write, and the image once that is written. The
controller performs it: transaction, orders, answer. Nothing here waits, and nothing is remembered
between calls, so a plan that lost its transaction is simply made again.

Topics of one request are judged one after another, each upon what the ones before it left: a name
that comes twice exists the second time.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Generic, TypeAlias, TypeVar

from minibroker.broker.config import Config, ConfigError, topic_property
from minibroker.broker.controller import entries
from minibroker.broker.controller.placement import place
from minibroker.broker.log.validate import Refused
from minibroker.broker.metadata.model import (
    ClusterImage,
    PartitionImage,
    PartitionState,
    StoppedPartition,
    TopicImage,
)
from minibroker.broker.metadata.store import Delete, Put
from minibroker.protocol.constants import NO_NODE, TOPIC_NAME_CHARS_MAX, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import (
    DEFAULT_COUNT,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    TopicResult,
)

PARTITIONS_MAX: Final = 10_000  # of the cluster; each keeps files open
INTERNAL_PREFIX: Final = "__"  # __consumer_offsets and such, which no client makes (PRO-08)
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")

TopicsRequest: TypeAlias = CreateTopicsRequest | DeleteTopicsRequest | AlterConfigsRequest
TopicsResponse: TypeAlias = CreateTopicsResponse | DeleteTopicsResponse | AlterConfigsResponse
Answer = TypeVar("Answer", bound=TopicsResponse, covariant=True)
Wanted = TypeVar("Wanted")


@dataclass(frozen=True, slots=True)
class Plan(Generic[Answer]):
    """What to do for a request. Without `writes` there is nothing to do but answer."""

    answer: Answer
    image: ClusterImage
    writes: tuple[Put | Delete, ...] = ()
    created: tuple[TopicImage, ...] = ()
    deleted: tuple[TopicImage, ...] = ()
    altered: tuple[TopicImage, ...] = ()


@dataclass(slots=True)
class _Draft:
    """A plan in the making: the image so far, and the last write to each key."""

    image: ClusterImage
    writes: dict[str, Put | Delete] = field(default_factory=dict)
    touched: dict[str, TopicImage] = field(default_factory=dict)

    def write(self, writes: Iterable[Put | Delete]) -> None:
        self.writes.update((write.key, write) for write in writes)

    def topic(self, name: str) -> TopicImage:
        if name not in self.image.topics:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return self.image.topics[name]


def elect(
    partition: PartitionImage, live: Collection[int], *, is_unclean_allowed: bool
) -> PartitionImage:
    """The partition after an election: both epochs higher (CTL-02, CTL-04, CTL-05).

    The first live member of the ISR in order of preference leads. Without one nobody does and the
    ISR stays, unless any live replica may lead.
    """
    isr = tuple(node for node in partition.isr if node in live)
    leader = next((node for node in partition.replicas if node in isr), NO_NODE)
    if leader == NO_NODE and is_unclean_allowed:
        leader = next((node for node in partition.replicas if node in live), NO_NODE)
        isr = (leader,) if leader != NO_NODE else ()
    return replace(
        partition,
        leader=leader,
        isr=isr or partition.isr,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def elect_all(
    image: ClusterImage, config: Config, node_id: int, damaged: Collection[tuple[str, int]]
) -> ClusterImage:
    """The image after every partition was elected anew, with `node_id` the one live broker.

    A partition that this broker found damaged does not count it as live: it stays offline, because
    leading would make the loss of its damaged end silent (REC-03).
    """
    topics = {}
    for name, topic in image.topics.items():
        is_unclean_allowed = config.for_topic(topic.configs).unclean_leader_election_enable
        topics[name] = replace(
            topic,
            partitions=tuple(
                elect(partition, (), is_unclean_allowed=False)
                if (name, partition.partition) in damaged
                else elect(partition, (node_id,), is_unclean_allowed=is_unclean_allowed)
                for partition in topic.partitions
            ),
        )
    return replace(image, topics=topics)


def plan_create(
    image: ClusterImage, config: Config, request: CreateTopicsRequest, rng: Random
) -> Plan[CreateTopicsResponse]:
    """Make the topics that may be made."""

    def create(draft: _Draft, wanted: NewTopic) -> TopicResult:
        topic = _new_topic(draft.image, config, wanted, rng)
        draft.image = draft.image.with_topic(topic)
        draft.touched[topic.name] = topic
        draft.write([entries.topic_put(topic), *entries.partition_puts(topic)])
        return TopicResult(topic.name, topic_id=topic.id)

    draft = _Draft(image)
    answer = CreateTopicsResponse(
        _each(draft, [(topic.name, topic) for topic in request.topics], create)
    )
    if request.validate_only:
        return Plan(answer, image)
    created = tuple(draft.touched.values())
    return Plan(answer, draft.image, tuple(draft.writes.values()), created=created)


def plan_delete(image: ClusterImage, request: DeleteTopicsRequest) -> Plan[DeleteTopicsResponse]:
    """Delete the topics that exist, each leaving a tombstone of its id (CTL-15)."""

    def delete(draft: _Draft, name: str) -> TopicResult:
        topic = draft.topic(name)
        draft.image = draft.image.without_topic(name)
        draft.touched[name] = topic
        draft.write(entries.topic_removal(topic))
        return TopicResult(name, topic_id=topic.id)

    draft = _Draft(image)
    answer = DeleteTopicsResponse(_each(draft, [(name, name) for name in request.topics], delete))
    deleted = tuple(draft.touched.values())
    return Plan(answer, draft.image, tuple(draft.writes.values()), deleted=deleted)


def plan_alter(
    image: ClusterImage, config: Config, request: AlterConfigsRequest
) -> Plan[AlterConfigsResponse]:
    """Change topics' own settings; of each topic all that is asked for, or nothing."""

    def alter(draft: _Draft, wanted: TopicConfigChanges) -> TopicResult:
        topic = draft.topic(wanted.name)
        configs = dict(topic.configs)
        for change in wanted.changes:
            topic_property(change.name)
            if change.value is None:
                configs.pop(change.name, None)
            else:
                configs[change.name] = change.value
        config.for_topic(configs)
        topic = replace(topic, configs=configs)
        draft.image = draft.image.with_topic(topic)
        draft.touched[topic.name] = topic
        draft.write([entries.topic_put(topic)])
        return TopicResult(topic.name, topic_id=topic.id)

    draft = _Draft(image)
    answer = AlterConfigsResponse(
        _each(draft, [(topic.name, topic) for topic in request.topics], alter)
    )
    if request.validate_only:
        return Plan(answer, image)
    altered = tuple(draft.touched.values())
    return Plan(answer, draft.image, tuple(draft.writes.values()), altered=altered)


def refuse(request: TopicsRequest, code: ErrorCode, message: str) -> TopicsResponse:
    """The answer to a request of which nothing is done."""
    match request:
        case CreateTopicsRequest(topics=new):
            return CreateTopicsResponse(_refused((topic.name for topic in new), code, message))
        case DeleteTopicsRequest(topics=names):
            return DeleteTopicsResponse(_refused(names, code, message))
        case AlterConfigsRequest(topics=changed):
            return AlterConfigsResponse(_refused((topic.name for topic in changed), code, message))


def admit(response: TopicsResponse, unmade: Mapping[str, int]) -> TopicsResponse:
    """The answer to a request that was carried out, except that so many partitions of some new
    topics have no log yet. The topics exist, and these partitions are offline."""
    if not isinstance(response, CreateTopicsResponse) or not unmade:
        return response
    return CreateTopicsResponse(
        tuple(
            replace(
                topic,
                error=ErrorCode.KAFKA_STORAGE_ERROR,
                error_message=f"topic {topic.name!r} is made, but there is no room for the logs of"
                f" {unmade[topic.name]} of its partitions: they are offline until there is",
            )
            if topic.name in unmade
            else topic
            for topic in response.topics
        )
    )


def states_of(topics: Iterable[TopicImage]) -> tuple[PartitionState, ...]:
    """What the partitions of these topics shall be, as orders."""
    return tuple(
        PartitionState(
            topic=topic.name,
            topic_id=topic.id,
            partition=partition.partition,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=partition.isr,
            replicas=partition.replicas,
        )
        for topic in topics
        for partition in topic.partitions
    )


def stops_of(topics: Iterable[TopicImage]) -> tuple[StoppedPartition, ...]:
    """The partitions of these topics, as orders to give them up."""
    return tuple(
        StoppedPartition(topic.name, topic.id, partition.partition, partition.leader_epoch)
        for topic in topics
        for partition in topic.partitions
    )


def check_name(name: str, others: Collection[str]) -> None:
    """Kafka's rules for a new topic's name. Raises `Refused` (INVALID_TOPIC_EXCEPTION).

    Names that differ in `.` and `_` only would share the name of their metrics.
    """
    if not 0 < len(name) <= TOPIC_NAME_CHARS_MAX:
        what = f"a topic name has 1 to {TOPIC_NAME_CHARS_MAX} characters, this one {len(name)}"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if name in (".", "..") or not TOPIC_NAME.fullmatch(name):
        what = f"topic name {name!r}: only letters, digits, '.', '_' and '-', and not '.' or '..'"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if name.startswith(INTERNAL_PREFIX):
        what = f"topic name {name!r}: names that begin with '__' are for the broker's own topics"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
    if "." in name or "_" in name:
        spelled = name.replace(".", "_")
        for other in others:
            if other.replace(".", "_") == spelled:
                what = f"topic name {name!r} differs from {other!r} in '.' and '_' only"
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)


def _new_topic(image: ClusterImage, config: Config, wanted: NewTopic, rng: Random) -> TopicImage:
    if wanted.name in image.topics:
        what = f"there is a topic {wanted.name!r} already"
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, what)
    check_name(wanted.name, image.topics)
    partition_count = _partition_count(image, config, wanted.partition_count)
    replication_factor = _replication_factor(image, config, wanted.replication_factor)
    configs = {entry.name: entry.value for entry in wanted.configs}
    config.for_topic(configs)
    brokers = sorted(image.brokers)
    start = rng.randrange(len(brokers))
    partitions = tuple(
        PartitionImage(number, replicas[0], 0, replicas, replicas, 0)
        for number, replicas in enumerate(
            place(partition_count, replication_factor, brokers, start)
        )
    )
    return TopicImage(rng.randbytes(16), wanted.name, configs, partitions)


def _partition_count(image: ClusterImage, config: Config, wanted: int) -> int:
    count = config.num_partitions if wanted == DEFAULT_COUNT else wanted
    if count < 1:
        what = f"a topic has at least 1 partition, not {count}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)
    present = sum(len(topic.partitions) for topic in image.topics.values())
    if present + count > PARTITIONS_MAX:
        what = f"{count} more partitions than the {present} there are would pass {PARTITIONS_MAX}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, what)
    return count


def _replication_factor(image: ClusterImage, config: Config, wanted: int) -> int:
    factor = config.default_replication_factor if wanted == DEFAULT_COUNT else wanted
    if not 1 <= factor <= len(image.brokers):
        count = len(image.brokers)
        live = "1 live broker" if count == 1 else f"{count} live brokers"
        what = f"replication factor {factor}, with {live}"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)
    return factor


def _refused(names: Iterable[str], code: ErrorCode, message: str) -> tuple[TopicResult, ...]:
    return tuple(TopicResult(name, code, message) for name in names)


def _each(
    draft: _Draft,
    named: Iterable[tuple[str, Wanted]],
    decide: Callable[[_Draft, Wanted], TopicResult],
) -> tuple[TopicResult, ...]:
    """The result of each topic of a request, in its order; a refused one changes nothing."""
    results = []
    for name, wanted in named:
        try:
            results.append(decide(draft, wanted))
        except Refused as refused:
            results.append(TopicResult(name, refused.code, refused.message))
        except ConfigError as error:
            results.append(TopicResult(name, ErrorCode.INVALID_CONFIG, str(error)))
    return tuple(results)
