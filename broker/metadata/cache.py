"""Apply an UPDATE_METADATA to a broker's image of the cluster: image in, image out.

An update replaces all live brokers and the controller, and the topics and partitions that it names.
A partition is removed with its topic: a leader of -2 says that the topic is deleted. A topic that
was deleted and created again has another id, and takes over nothing from the old one.

A full image comes in many updates. Topics that are not in any of them are removed after the last
one (`without`); until then the known ones stay.

The controller sends one update after another, but one from a broken connection may arrive after a
newer one. So a partition never goes back: of two states of the same topic id the one with the
higher (leader epoch, partition epoch) stays. Nor does a topic: of two with the same name the one
with the higher creation number stays.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from minibroker.broker.metadata.model import (
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from minibroker.protocol.constants import DELETED_LEADER, NO_EPOCH, NO_NODE
from minibroker.protocol.messages.control import (
    GroupState,
    LiveBroker,
    PartitionState,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.types import Endpoint


class Merged(NamedTuple):
    """The image after an update; the topics removed, and those whose settings have changed."""

    image: ClusterImage
    removed: tuple[str, ...]
    reconfigured: tuple[str, ...]


def merged(image: ClusterImage, update: UpdateMetadataRequest) -> Merged:
    """Return the image after an update (MET-02). The time depends on the size of the update, except
    for one copy of the table of topics."""
    before = image.topics
    topics = dict(before)
    named = {state.name: None for state in update.topics}
    for state in update.topics:
        topics[state.name] = _topic(before.get(state.name), state)
    for (name, topic_id), states in _by_topic(update.partitions).items():
        named[name] = None
        topic = topics.get(name)
        if topic is None or topic.id != topic_id:
            continue
        if states[0].leader == DELETED_LEADER:
            del topics[name]
        else:
            topics[name] = _with_states(topic, states)
    after = ClusterImage(
        cluster_id=update.cluster_id or image.cluster_id,
        controller_id=update.controller_id,
        controller_epoch=update.controller_epoch,
        brokers={broker.node_id: _broker(broker) for broker in update.brokers},
        topics=topics,
        groups=image.groups if update.groups is None else _groups(update.groups),
        feature_level=update.feature_level,
    )
    return Merged(
        after,
        tuple(name for name in named if _is_removed(before.get(name), topics.get(name))),
        tuple(name for name in named if _differs(before.get(name), topics.get(name))),
    )


def without(image: ClusterImage, names: Collection[str]) -> ClusterImage:
    """Return the image without these topics."""
    if not names:
        return image
    left = {name: topic for name, topic in image.topics.items() if name not in names}
    return replace(image, topics=left)


def _is_removed(before: TopicImage | None, after: TopicImage | None) -> bool:
    return before is not None and (after is None or before.id != after.id)


def _differs(before: TopicImage | None, after: TopicImage | None) -> bool:
    return after is not None and (
        before is None or before.id != after.id or before.configs != after.configs
    )


def _groups(groups: Iterable[GroupState]) -> dict[str, dict[str, str]]:
    return {each.name: {one.name: one.value for one in each.configs} for each in groups}


def _broker(broker: LiveBroker) -> BrokerImage:
    endpoint = Endpoint(broker.host, broker.port)
    listeners = {listener.name: listener.endpoint for listener in broker.listeners}
    flags = broker.is_shutting_down, listeners, broker.is_fenced, broker.rack
    configs = {entry.name: entry.value for entry in broker.configs}
    return BrokerImage(broker.node_id, endpoint, broker.epoch, *flags, configs)


def _by_topic(
    states: Iterable[PartitionState],
) -> dict[tuple[str, bytes], list[PartitionState]]:
    topics: dict[tuple[str, bytes], list[PartitionState]] = {}
    for state in states:
        topics.setdefault((state.topic, state.topic_id), []).append(state)
    return topics


def _topic(known: TopicImage | None, state: TopicState) -> TopicImage:
    if known is not None and 0 < state.creation < known.creation:
        return known
    configs = {entry.name: entry.value for entry in state.configs}
    partitions = known.partitions if known is not None and known.id == state.id else ()
    partitions = _sized(partitions, state.partition_count)
    return TopicImage(state.id, state.name, configs, partitions, state.creation)


def _sized(partitions: tuple[PartitionImage, ...], count: int) -> tuple[PartitionImage, ...]:
    """Return the partitions, extended to `count` with ones of which nothing is known."""
    added = range(len(partitions), count)
    unknown = (PartitionImage(n, NO_NODE, NO_EPOCH, (), (), NO_EPOCH) for n in added)
    return (*partitions, *unknown)


def _with_states(topic: TopicImage, states: Iterable[PartitionState]) -> TopicImage:
    news = {state.partition: state for state in states if state.partition >= 0}
    partitions = list(_sized(topic.partitions, max(news, default=-1) + 1))
    for number, state in news.items():
        known = partitions[number]
        version = (state.leader_epoch, state.partition_epoch)
        if version >= (known.leader_epoch, known.partition_epoch):
            members = state.isr, state.replicas
            partitions[number] = PartitionImage(
                number, state.leader, state.leader_epoch, *members, version[1], state.original
            )
    return replace(topic, partitions=tuple(partitions))
