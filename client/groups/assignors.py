"""Assignment of partitions to a group's members: range, roundrobin and cooperative-sticky.

The leader of a group calls the assignor that the coordinator chose, with the members'
subscriptions. The result depends on nothing else: the same members get the same partitions, in
whatever order they are given. Each partition of a topic that has a subscriber goes to one of its
subscribers. Topics that are not in `partition_counts` do not exist, and are left out.

`range` and `roundrobin` are those of Kafka's documentation. Members are in the order of their
instance ids, then those without one by member id, so that static members keep their place:

* range: topic by topic, each subscriber gets a run of partitions; if they cannot be divided evenly,
  the first ones get one more. So topics of equal size and the same subscribers are divided alike:
  the member with partition 3 of one has partition 3 of the other.
* roundrobin: all partitions in order, dealt to the members in turn; a member that does not
  subscribe to a topic is skipped.

With both, each member gives up all its partitions at each rebalance. With cooperative-sticky each
member goes on reading the partitions it keeps, and a partition moves in two rounds. In the first
round no member gets it, because its owner must first learn to give it up; then that member joins
again, and in the second round the partition goes to its new owner. `sticky.py` computes the spread;
this file decides which claims count. A member that missed a rebalance may claim partitions that
others were assigned since: of several claims the one of the newest generation counts. If two
members were assigned the same partition in the same generation, which no correct leader does, both
have to give it up.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from minibroker.client.groups.sticky import spread
from minibroker.protocol.subscription import Subscription
from minibroker.protocol.types import TopicPartition


class GroupMember(NamedTuple):
    """A member as the leader knows it; `instance_id` is a static member's name."""

    subscription: Subscription
    instance_id: str | None = None


# The number of partitions by topic.
PartitionCounts: TypeAlias = Mapping[str, int]
# By member id.
Members: TypeAlias = Mapping[str, GroupMember]
Assignments: TypeAlias = dict[str, list[TopicPartition]]


class Assignor(NamedTuple):
    """One strategy of assignment.

    `assign` gives every member of `members` a sorted list, perhaps an empty one. If it
    `is_cooperative`, members keep reading what they own during a rebalance, and a partition that
    its owner has to give up first goes to no member until the owner has joined again without it.
    """

    name: str
    is_cooperative: bool
    assign: Callable[[PartitionCounts, Members], Assignments]


def assign_range(partition_counts: PartitionCounts, members: Members) -> Assignments:
    """See the head of this module."""
    assignments: Assignments = {member_id: [] for member_id in members}
    subscribers = _subscribers(partition_counts, members)
    for topic in sorted(subscribers):
        takers = subscribers[topic]
        each, rest = divmod(partition_counts[topic], len(takers))
        first = 0
        for index, member_id in enumerate(takers):
            behind = first + each + (index < rest)
            assignments[member_id] += [TopicPartition(topic, n) for n in range(first, behind)]
            first = behind
    return assignments


def assign_in_turn(partition_counts: PartitionCounts, members: Members) -> Assignments:
    """`roundrobin`; see the head of this module."""
    assignments: Assignments = {member_id: [] for member_id in members}
    subscribers = _subscribers(partition_counts, members)
    order = _in_order(members)
    turn = 0
    for topic in sorted(subscribers):
        takers = set(subscribers[topic])
        for number in range(partition_counts[topic]):
            while order[turn % len(order)] not in takers:
                turn += 1
            assignments[order[turn % len(order)]].append(TopicPartition(topic, number))
            turn += 1
    return assignments


def assign_cooperatively(partition_counts: PartitionCounts, members: Members) -> Assignments:
    """`cooperative-sticky`; see the head of this module."""
    subscribers = _subscribers(partition_counts, members)
    claimants = _claimants(members)
    owners = {name: owner for name in claimants if (owner := _owner(claimants[name]))}
    valid = {
        name: owner
        for name, owner in owners.items()
        if owner in subscribers.get(name.topic, ())
        and name.partition < partition_counts[name.topic]
    }
    assignments: Assignments = {member_id: [] for member_id in members}
    for name, member_id in sorted(spread(partition_counts, subscribers, valid).items()):
        if owners.get(name) == member_id or not claimants.get(name):
            assignments[member_id].append(name)
    return assignments


def _claimants(members: Members) -> dict[TopicPartition, dict[str, int]]:
    """By partition, the members that claim to own it, with the generation of each claim."""
    claimants: defaultdict[TopicPartition, dict[str, int]] = defaultdict(dict)
    for member_id, (subscription, _) in members.items():
        for name in subscription.owned:
            claimants[name][member_id] = subscription.generation
    return claimants


def _owner(claims: Mapping[str, int]) -> str | None:
    """Return the member whose claim counts; None if two are of the newest generation."""
    newest = max(claims.values())
    owner, *others = (member_id for member_id, of in claims.items() if of == newest)
    return None if others else owner


def _in_order(members: Members) -> list[str]:
    """The member ids: static members first, by their names."""
    return sorted(
        members,
        key=lambda member_id: (
            members[member_id].instance_id is None,
            members[member_id].instance_id or "",
            member_id,
        ),
    )


def _subscribers(partition_counts: PartitionCounts, members: Members) -> dict[str, list[str]]:
    """By existing topic, its subscribers, in order."""
    subscribers: dict[str, list[str]] = {}
    for member_id in _in_order(members):
        for topic in set(members[member_id].subscription.topics) & partition_counts.keys():
            subscribers.setdefault(topic, []).append(member_id)
    return subscribers


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            Assignor("range", False, assign_range),
            Assignor("roundrobin", False, assign_in_turn),
            Assignor("cooperative-sticky", True, assign_cooperatively),
        )
    }
)
