"""Findings about replication quotas: throttles that are left behind, and replicas that never get in
sync because of one.

What a broker copies or sends of throttled replicas counts in its quota, also for replicas that are
in sync; only the others are held back. So a replica that is held back gets in sync only if the rate
is above all that producers write to the throttled partitions: on a follower once for each of them,
on a leader once for each follower.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from minibroker.broker.findings import Finding, Level, counted, listed
from minibroker.broker.properties.quotas import (
    ALL_REPLICAS,
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    is_listed,
    listed_replicas,
)
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata

Configs = Mapping[str, Mapping[str, str]]  # by topic, by property: the effective settings


class QuotaLimits(NamedTuple):
    """The rates of a broker's quotas in bytes per second; infinity without a limit."""

    leader: float
    follower: float


def of_left_throttles(configs: Configs, moving: Collection[TopicPartition]) -> Iterator[Finding]:
    """Report topics that throttle replicas while no throttled partition is reassigned. The throttle
    of a plan ends when the whole plan is done, so one that moves may explain all of them."""
    left: list[str] = []
    for topic, settings in sorted(configs.items()):
        texts = [settings.get(name, "") for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
        if ALL_REPLICAS in texts:
            yield Finding(
                Level.NOTE,
                f"topic {topic} throttles all its replicas: what comes back copies slowly, too",
                "nothing, if that is wanted; else `minibroker topic alter"
                f" {topic} --delete-config {LEADER_REPLICAS} --delete-config {FOLLOWER_REPLICAS}`",
            )
            continue
        numbers = {number for text in texts for number, _ in listed_replicas(text)}
        if any(TopicPartition(topic, number) in moving for number in numbers):
            return
        if numbers:
            left.append(topic)
    if left:
        yield Finding(
            Level.NOTE,
            f"{counted(len(left), 'topic')} with throttled replicas, and none of these is moved:"
            f" {listed(left)}",
            "end the throttle with `minibroker partition reassign --topic TOPIC --cancel`, or"
            " brokers that come back copy at its rate",
        )


def throttled_partitions(
    topics: "Iterable[TopicMetadata]", configs: Configs
) -> "dict[TopicPartition, PartitionMetadata]":
    """Return the partitions with a throttled replica; none if no throttled replica lacks records,
    since then nothing is held back."""
    found: dict[TopicPartition, PartitionMetadata] = {}
    is_held_back = False
    for topic in topics:
        texts = [configs[topic.name].get(one, "") for one in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
        if not any(texts):
            continue
        for one in topic.partitions:
            if any(is_listed(text, one.partition, node) for text in texts for node in one.replicas):
                found[TopicPartition(topic.name, one.partition)] = one
                is_held_back |= len(one.isr) < len(one.replicas)
    return found if is_held_back else {}


def of_slow_replicas(
    partitions: "Mapping[TopicPartition, PartitionMetadata]",
    configs: Configs,
    limits: Mapping[int, QuotaLimits],
    written: Mapping[TopicPartition, float],
) -> Iterator[Finding]:
    """Report brokers whose throttle is not above what is written: replicas never get in sync.

    `partitions` are those with a throttled replica, `written` the bytes per second that are
    appended to them, as far as known.
    """
    copied: dict[int, float] = {}
    sent: dict[int, float] = {}
    behind: dict[int, list[TopicPartition]] = {}
    ahead: dict[int, list[TopicPartition]] = {}
    for name, one in sorted(partitions.items()):
        leaders, followers = (
            configs[name.topic].get(each, "") for each in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        )
        others = [node for node in one.replicas if node != one.leader_id]
        lacking = [node for node in others if node not in one.isr]
        for node in others:
            if is_listed(followers, name.partition, node):
                copied[node] = copied.get(node, 0.0) + written.get(name, 0.0)
                if node in lacking:
                    behind.setdefault(node, []).append(name)
        if is_listed(leaders, name.partition, one.leader_id):
            rate = written.get(name, 0.0) * len(others)
            sent[one.leader_id] = sent.get(one.leader_id, 0.0) + rate
            if lacking:
                ahead.setdefault(one.leader_id, []).append(name)
    for node, names in sorted(behind.items()):
        if node in limits and _is_too_low(limits[node].follower, copied[node]):
            yield _slow(node, "copies", limits[node].follower, copied[node], names)
    for node, names in sorted(ahead.items()):
        if node in limits and _is_too_low(limits[node].leader, sent[node]):
            yield _slow(node, "sends", limits[node].leader, sent[node], names)


def _is_too_low(limit: float, needed: float) -> bool:
    return limit <= needed


def _slow(
    node: int, verb: str, limit: float, needed: float, names: Collection[TopicPartition]
) -> Finding:
    return Finding(
        Level.PROBLEM,
        f"broker {node} {verb} at most {limit:,.0f} bytes a second of throttled replicas, and what"
        f" is written to them needs {needed:,.0f}: replicas of {counted(len(names), 'partition')}"
        f" do not get in sync: {listed(names)}",
        "carry out the same plan with a higher `--throttle`, or write less",
    )
