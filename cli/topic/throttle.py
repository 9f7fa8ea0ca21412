"""Throttles of reassignments: the settings that limit the copies of a plan, and that end the limit.

As Apache Kafka's kafka-reassign-partitions sets them (KIP-73): a topic lists its throttled replicas
as `partition:broker`, for the leaders' quota those that are there (each may become the leader), for
the followers' quota those that are added. Each broker that has one of them gets the rate for both
of its quotas.

The lists are also the memory of the throttle: they say which brokers take part, after replicas have
left them, too. So the throttle of some partitions ends with their entries, and with the rates of
the brokers in these that no other entry names: another plan may still need those. (Kafka's tool
replaces the lists of a topic, and deletes the rates of all brokers.)
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.properties.quotas import (
    ALL_REPLICAS,
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    REPLICATION_RATES,
    listed_replicas,
)
from minibroker.cli.topic.reassignment_plan import Name

LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

Settings: TypeAlias = dict[str, str | None]  # by property; None: the default


class ThrottleError(ValueError):
    """A plan that cannot be throttled; the text says why, and what to do."""


class PartitionMove(NamedTuple):
    """The brokers that a partition has, and those that it gets, in one reassignment."""

    sources: tuple[int, ...]
    added: tuple[int, ...]


class ThrottleChanges(NamedTuple):
    """The settings to change, of topics and of brokers."""

    topics: dict[str, Settings]
    brokers: dict[int, Settings]


def moves_of(
    plan: Mapping[Name, Sequence[int]],
    replicas: Mapping[Name, Sequence[int]],
    adding: Mapping[Name, Collection[int]],
) -> dict[Name, PartitionMove]:
    """Return the partitions that get replicas by a plan. `replicas` are the present ones, `adding`
    those of them that reassignments under way add. Unknown partitions are left out."""
    moves = {}
    for name, target in plan.items():
        sources = tuple(node for node in replicas.get(name, ()) if node not in adding.get(name, ()))
        added = tuple(node for node in target if node not in sources)
        if sources and added:
            moves[name] = PartitionMove(sources, added)
    return moves


def throttle_changes(
    moves: Mapping[Name, PartitionMove], configs: Mapping[str, Mapping[str, str]], rate: int
) -> ThrottleChanges:
    """Return the settings that throttle these moves to `rate` bytes a second on each broker.

    `configs` has the settings of their topics. Raises `ThrottleError` if one of these throttles all
    its replicas: no list could tell later what this plan has added to it.
    """
    topics: dict[str, Settings] = {}
    for topic in sorted({topic for topic, _ in moves}):
        listed: dict[str, set[tuple[int, int]]] = {}
        for name in LISTS:
            text = configs[topic].get(name, "")
            if text == ALL_REPLICAS:
                what = (
                    f"topic {topic} has {name}=* already: the rates of the brokers hold without"
                    f" --throttle; or take that away with `minibroker topic alter {topic}"
                    f" --delete-config {name}`"
                )
                raise ThrottleError(what)
            listed[name] = {*listed_replicas(text)}
        for (other, number), move in moves.items():
            if other == topic:
                listed[LEADER_REPLICAS] |= {(number, node) for node in move.sources}
                listed[FOLLOWER_REPLICAS] |= {(number, node) for node in move.added}
        topics[topic] = {name: _formatted(listed[name]) for name in LISTS}
    nodes = {node for move in moves.values() for node in (*move.sources, *move.added)}
    rates: Settings = dict.fromkeys(REPLICATION_RATES, str(rate))
    return ThrottleChanges(topics, {node: {**rates} for node in sorted(nodes)})


def removal_changes(
    names: Iterable[Name], configs: Mapping[str, Mapping[str, str]]
) -> ThrottleChanges:
    """Return the settings that end the throttle of these partitions; none if there is none.

    `configs` has the settings of all topics. What lists `*` stays: no plan has set it.
    """
    numbers: dict[str, set[int]] = {}
    for topic, number in names:
        numbers.setdefault(topic, set()).add(number)
    topics: dict[str, Settings] = {}
    ended: set[int] = set()
    kept: set[int] = set()
    for topic, settings in configs.items():
        for name in LISTS:
            listed = {*listed_replicas(settings.get(name, ""))}
            ours = {one for one in listed if one[0] in numbers.get(topic, ())}
            ended |= {node for _, node in ours}
            kept |= {node for _, node in listed - ours}
            if ours:
                topics.setdefault(topic, {})[name] = _formatted(listed - ours) or None
    brokers: dict[int, Settings] = {
        node: dict.fromkeys(REPLICATION_RATES) for node in sorted(ended - kept)
    }
    return ThrottleChanges(topics, brokers)


def _formatted(replicas: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{number}:{node}" for number, node in sorted(replicas))
