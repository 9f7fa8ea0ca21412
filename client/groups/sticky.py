"""An even spread of partitions over members, which moves as few as necessary.

A member may have a partition if it subscribes to its topic. If all members subscribe to the same
topics, even means that their numbers of partitions differ by one at most. If not, it means that no
member can be relieved: no partition, and no chain of them (a gives one to b, which gives another to
c), can go from a member to one that would still have fewer afterwards. There are two steps:

1. The partitions without an owner are dealt out and levelled among those that may have them;
partitions with an owner do not move. 2. All partitions are levelled.

Levelling takes the member with the fewest, finds the members that could pass a partition to it, and
moves one partition along the shortest chain from the one of them with the most, if that has at
least two more. If not, no member that reaches this one can be relieved, and they all are done. So
the end of one walk proves that the spread is even.

With this order of steps a cooperative rebalance ends. In its first round some owned partitions are
withheld until their owners give them up; the partitions that members keep are part of an even
spread. So in the second round step 1 alone finds an even spread, and step 2 moves nothing.

Topics with the same subscribers are one pool, in which all partitions are alike.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.protocol.types import TopicPartition

WORTH_A_MOVE: Final = 2  # a smaller difference would only be reversed


def spread(
    partition_counts: Mapping[str, int],
    subscribers: Mapping[str, Sequence[str]],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return the assignment of the partitions of the topics in `subscribers`.

    Each topic has a subscriber. `owners` are partitions that stay where they are if possible:
    existing ones, of members that subscribe to them.
    """
    partitions = [
        TopicPartition(topic, number)
        for topic in sorted(subscribers)
        for number in range(partition_counts[topic])
    ]
    table = _Table(subscribers)
    table.count(owners.values())
    table.deal(name for name in partitions if name not in owners)
    table.level()
    table.release(owners)
    table.level()
    table.swap_back(owners)
    return table.holders()


class _Pool:
    """Topics with the same subscribers, and by member its partitions that may move.

    Partitions that a member did not own before are last, and are passed on first.
    """

    def __init__(self, subscribers: Sequence[str]) -> None:
        self.subscribers = subscribers
        self.held: defaultdict[str, list[TopicPartition]] = defaultdict(list)

    def take(self, member: str) -> TopicPartition:
        """Remove and return a partition that a member passes on."""
        names = self.held[member]
        name = names.pop()
        if not names:
            del self.held[member]  # so that only members with partitions are looked at
        return name


class _Giver(NamedTuple):
    """One link of a chain: a member can pass a partition of `pool` to `taker`."""

    pool: _Pool
    taker: str


class _Table:
    """The assignment. `loads` also counts the partitions that may not move yet."""

    def __init__(self, subscribers: Mapping[str, Sequence[str]]) -> None:
        self.loads: dict[str, int] = {}
        self._pool_of: dict[str, _Pool] = {}
        self._pools_by_member: defaultdict[str, list[_Pool]] = defaultdict(list)
        pools: dict[tuple[str, ...], _Pool] = {}
        for topic, members in sorted(subscribers.items()):
            key = tuple(members)
            if key not in pools:
                pools[key] = _Pool(members)
                for member in members:
                    self._pools_by_member[member].append(pools[key])
            self._pool_of[topic] = pools[key]
        for member in sorted(self._pools_by_member):
            self.loads[member] = 0

    def count(self, members: Iterable[str]) -> None:
        """Count one partition more for each of these."""
        for member in members:
            self.loads[member] += 1

    def deal(self, names: Iterable[TopicPartition]) -> None:
        """Give each partition to the member with the fewest; first those that few members may
        have."""

        def choice(name: TopicPartition) -> int:
            return len(self._pool_of[name.topic].subscribers)

        for name in sorted(names, key=choice):
            pool = self._pool_of[name.topic]
            member = min(pool.subscribers, key=self.loads.__getitem__)
            pool.held[member].append(name)
            self.loads[member] += 1

    def release(self, owners: Mapping[TopicPartition, str]) -> None:
        """Let these partitions move, too."""
        for name, member in sorted(owners.items(), reverse=True):
            self._pool_of[name.topic].held[member].insert(0, name)

    def level(self) -> None:
        """Level: move partitions until no member can be relieved."""
        left = dict(self.loads)  # the members that are not done
        while left:
            least = min(left, key=self.loads.__getitem__)
            givers = self._givers(least, left)
            most = max(givers, key=self.loads.__getitem__, default=least)
            if self.loads[most] >= self.loads[least] + WORTH_A_MOVE:
                self._relieve(most, givers)
            else:
                for member in (least, *givers):
                    del left[member]

    def _givers(self, least: str, left: Collection[str]) -> dict[str, _Giver]:
        """Yield the remaining members that can pass a partition to `least`, the nearest first.

        It ends at a member that has as many as any and can be relieved.
        """
        load_max = max(self.loads[member] for member in left)
        is_even = load_max < self.loads[least] + WORTH_A_MOVE
        givers: dict[str, _Giver] = {}
        seen: set[_Pool] = set()
        takers = deque([least])
        while takers:
            taker = takers.popleft()
            for pool in self._pools_by_member[taker]:
                if pool in seen:
                    continue
                seen.add(pool)
                for member in pool.held:
                    if member in left and member not in givers and member != least:
                        givers[member] = _Giver(pool, taker)
                        takers.append(member)
                        if self.loads[member] == load_max and not is_even:
                            return givers
        return givers

    def _relieve(self, most: str, givers: Mapping[str, _Giver]) -> None:
        """Move one partition along each link of the chain that begins at `most`."""
        self.loads[most] -= 1
        member = most
        while (giver := givers.get(member)) is not None:
            giver.pool.held[giver.taker].append(giver.pool.take(member))
            member = giver.taker
        self.loads[member] += 1

    def swap_back(self, owners: Mapping[TopicPartition, str]) -> None:
        """Give members that lost a partition, and got another of its pool, their own back."""
        holders = self.holders()
        for name, owner in sorted(owners.items()):
            holder, held = holders[name], self._pool_of[name.topic].held
            if holder == owner:
                continue
            other = next((each for each in held[owner] if owners.get(each) != owner), None)
            if other is not None:
                held[owner].remove(other)
                held[holder].remove(name)
                held[owner].append(name)
                held[holder].append(other)
                holders[name], holders[other] = owner, holder

    def holders(self) -> dict[TopicPartition, str]:
        """Return the member of each partition that may move."""
        return {
            name: member
            for pool in dict.fromkeys(self._pool_of.values())
            for member, names in pool.held.items()
            for name in names
        }
