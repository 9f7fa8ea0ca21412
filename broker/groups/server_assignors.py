"""The assignors of the coordinator: which member of a consumer group is to have which partitions.

    uniform     as many partitions for each member as possible, and as few moved as possible
    range       of each topic, each member has a range; topics with as many partitions are divided
                in the same way

An assignor is a computation in turns from values to values. Each partition of a topic that members
subscribe to is assigned to exactly one of these members.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.groups.consumer_records import NO_PARTITIONS, Partitions, TopicIdPartition
from minibroker.broker.turns import Turn, Turns

PASSES_MAX: Final = 16  # over all members, to even out what they have


class Subscriber(NamedTuple):
    """A member: the ids of the topics that it subscribes to, and what it was to have before."""

    topics: frozenset[bytes]
    before: Partitions = NO_PARTITIONS
    instance_id: str | None = None


Subscribers: TypeAlias = Mapping[str, Subscriber]  # by member id
Topics: TypeAlias = Mapping[bytes, int]  # the number of partitions by topic id
Assignor: TypeAlias = Callable[[Subscribers, Topics], Turns[dict[str, Partitions]]]


def assign_uniform(subscribers: Subscribers, topics: Topics) -> Turns[dict[str, Partitions]]:
    """Assign as evenly as subscriptions allow; members keep what they had as far as that goes."""
    turn = Turn()
    by_topic = yield from _subscribers_by_topic(subscribers, topics, turn)
    having: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in subscribers}
    known = frozenset(topics)
    is_uniform = len({member.topics & known for member in subscribers.values()}) == 1
    total = sum(topics[topic_id] for topic_id in by_topic)
    quota, extra = divmod(total, max(1, len(subscribers)))
    taken: set[TopicIdPartition] = set()
    for member_id, member in subscribers.items():
        for partition in sorted(member.before):
            if turn.is_over():
                yield
            is_there = partition.partition < topics.get(partition.topic_id, 0)
            if is_there and partition.topic_id in member.topics and partition not in taken:
                count = len(having[member_id])
                if is_uniform and count >= quota:
                    if count > quota or not extra:
                        continue
                    extra -= 1
                taken.add(partition)
                having[member_id].append(partition)
    # What few subscribe to comes first: the others can make up for it.
    for topic_id in sorted(by_topic, key=lambda each: (len(by_topic[each]), each)):
        for number in range(topics[topic_id]):
            partition = TopicIdPartition(topic_id, number)
            if partition not in taken:
                member_id = min(by_topic[topic_id], key=lambda each: len(having[each]))
                having[member_id].append(partition)
            if turn.is_over(1 + len(by_topic[topic_id]) // 8):
                yield
    yield from _even_out(having, by_topic, turn)
    return {member_id: frozenset(partitions) for member_id, partitions in having.items()}


def _subscribers_by_topic(
    subscribers: Subscribers, topics: Topics, turn: Turn
) -> Turns[dict[bytes, list[str]]]:
    """Return the members that subscribe to each topic, in the order of their ids."""
    by_topic: dict[bytes, list[str]] = {}
    for member_id in sorted(subscribers):
        for topic_id in subscribers[member_id].topics:
            if topic_id in topics:
                by_topic.setdefault(topic_id, []).append(member_id)
            if turn.is_over():
                yield
    return by_topic


def _even_out(
    having: dict[str, list[TopicIdPartition]], by_topic: Mapping[bytes, list[str]], turn: Turn
) -> Turns[None]:
    """Move partitions from members with more to subscribers with at least two fewer. Each move
    makes the numbers more even, so there is an end."""
    for _ in range(PASSES_MAX):
        has_moved = False
        for member_id in sorted(having, key=lambda each: (-len(having[each]), each)):
            kept: list[TopicIdPartition] = []
            own = having[member_id]
            count = len(own)
            for partition in reversed(own):
                others = by_topic[partition.topic_id]
                least = min(others, key=lambda each: len(having[each]))
                if least != member_id and len(having[least]) + 1 < count:
                    having[least].append(partition)
                    count -= 1
                    has_moved = True
                else:
                    kept.append(partition)
                if turn.is_over(1 + len(others) // 8):
                    yield
            own[:] = reversed(kept)
        if not has_moved:
            return


def assign_range(subscribers: Subscribers, topics: Topics) -> Turns[dict[str, Partitions]]:
    """Give each member a range of each of its topics. Members are in the order of their instance
    ids, or of their ids; the first have one partition more where the numbers do not divide."""
    turn = Turn()
    by_topic = yield from _subscribers_by_topic(subscribers, topics, turn)
    having: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in subscribers}
    for topic_id, members in by_topic.items():
        members.sort(key=lambda each: _place(each, subscribers[each]))
        quota, extra = divmod(topics[topic_id], len(members))
        first = 0
        for place, member_id in enumerate(members):
            end = first + quota + (place < extra)
            having[member_id].update(_range(topic_id, range(first, end)))
            if turn.is_over(1 + end - first):
                yield
            first = end
    return {member_id: frozenset(partitions) for member_id, partitions in having.items()}


def _place(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Static members come first, so that they have the same ranges after a restart."""
    return member.instance_id is None, member.instance_id or member_id


def _range(topic_id: bytes, numbers: Iterable[int]) -> Iterable[TopicIdPartition]:
    return (TopicIdPartition(topic_id, number) for number in numbers)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
