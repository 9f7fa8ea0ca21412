"""How an UPDATE_METADATA changes what a broker knows of the cluster: image in, image out.

The live brokers and the controller are replaced wholly; topics and partitions as far as they are
named. A partition goes with its topic: a leader of -2 says that the topic is deleted. A name that
was deleted and made anew has another id, and takes over nothing from the old one.

A full image comes in many updates. Only behind the last one is it known which topics are no more
(`without`); until then those stay that were known.

Updates come one after another, but one that was under way on a connection that broke may still
arrive after a newer one. So a partition is never set back: of two states of the same topic id the
one with the higher (leader epoch, partition epoch) stays. Nor is a topic: of two with the same name
the one with the higher creation number stays.
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
    LiveBroker,
    PartitionState,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.types import Endpoint


class Merged(NamedTuple):
    """The image after an update; which topics went, and which have other settings now."""

    image: ClusterImage
    removed: tuple[str, ...]
    reconfigured: tuple[str, ...]


def merged(image: ClusterImage, update: UpdateMetadataRequest) -> Merged:
    """The image as `update` changes it (MET-02). Takes as long as what is told, but for a copy of
    the table of topics."""
    before = image.topics
    topics = dict(before)
    named = {told.name: None for told in update.topics}
    for told in update.topics:
        topics[told.name] = _topic(before.get(told.name), told)
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
    )
    return Merged(
        after,
        tuple(name for name in named if _is_removed(before.get(name), topics.get(name))),
        tuple(name for name in named if _differs(before.get(name), topics.get(name))),
    )


def without(image: ClusterImage, names: Collection[str]) -> ClusterImage:
    """The image without these topics."""
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


def _broker(broker: LiveBroker) -> BrokerImage:
    endpoint = Endpoint(broker.host, broker.port)
    listeners = {listener.name: listener.endpoint for listener in broker.listeners}
    flags = broker.is_shutting_down, listeners, broker.is_fenced
    return BrokerImage(broker.node_id, endpoint, broker.epoch, *flags)


def _by_topic(
    states: Iterable[PartitionState],
) -> dict[tuple[str, bytes], list[PartitionState]]:
    topics: dict[tuple[str, bytes], list[PartitionState]] = {}
    for state in states:
        topics.setdefault((state.topic, state.topic_id), []).append(state)
    return topics


def _topic(known: TopicImage | None, told: TopicState) -> TopicImage:
    if known is not None and 0 < told.creation < known.creation:
        return known
    configs = {entry.name: entry.value for entry in told.configs}
    partitions = known.partitions if known is not None and known.id == told.id else ()
    partitions = _sized(partitions, told.partition_count)
    return TopicImage(told.id, told.name, configs, partitions, told.creation)


def _sized(partitions: tuple[PartitionImage, ...], count: int) -> tuple[PartitionImage, ...]:
    """At least `count` partitions, in their places; of those that are added nothing is known."""
    added = range(len(partitions), count)
    unknown = (PartitionImage(n, NO_NODE, NO_EPOCH, (), (), NO_EPOCH) for n in added)
    return (*partitions, *unknown)


def _with_states(topic: TopicImage, states: Iterable[PartitionState]) -> TopicImage:
    news = {state.partition: state for state in states if state.partition >= 0}
    partitions = list(_sized(topic.partitions, max(news, default=-1) + 1))
    for number, state in news.items():
        known = partitions[number]
        told = (state.leader_epoch, state.partition_epoch)
        if told >= (known.leader_epoch, known.partition_epoch):
            partitions[number] = PartitionImage(
                number, state.leader, state.leader_epoch, state.isr, state.replicas, told[1]
            )
    return replace(topic, partitions=tuple(partitions))
