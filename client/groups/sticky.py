"""Partitions spread evenly over those who may have them, moving as few as that takes.

A member may have a partition if it subscribes to its topic. Where all subscribe to the same, even
means that sizes differ by one at most. Where they do not, it means that nobody can be relieved: no
partition, and no chain of them (a gives one to b, who gives another to c), can go from a member to
one that would still have fewer afterwards. Two steps lead there:

1. What nobody owns is dealt out, and levelled among who may have it; nothing that is owned moves.
2. All of it is levelled.

Levelling takes the member with the least, looks who could pass something on to it, and moves one
partition along the shortest chain from who of them has the most, if that is at least two more. If
it is not, nobody who reaches this member can be relieved, and they all are done with. So it ends
with the proof that it is even, in one walk over who may have what.

The order of the steps is what lets a cooperative rebalance end. After its first round some owned
partitions are withheld until they are given back; what the members keep is part of a spread that is
even, so that in the second round step 1 alone finds one as even, and step 2 moves nothing.

Topics with the same subscribers are one pool: within it any partition is as good as another.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.protocol.types import TopicPartition

WORTH_A_MOVE: Final = 2  # a smaller difference would only be turned round


def spread(
    partition_counts: Mapping[str, int],
    subscribers: Mapping[str, Sequence[str]],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Who shall have each partition of the topics in `subscribers`.

    Each of these has a subscriber. `owners` are partitions that stay where they are if they can:
    only ones that exist, of members that subscribe to them.
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
    """Topics with the same subscribers, and by member what of them may be moved.

    What a member did not own before stands last, and is passed on first.
    """

    def __init__(self, subscribers: Sequence[str]) -> None:
        self.subscribers = subscribers
        self.held: defaultdict[str, list[TopicPartition]] = defaultdict(list)

    def take(self, member: str) -> TopicPartition:
        """Something that this member passes on."""
        names = self.held[member]
        name = names.pop()
        if not names:
            del self.held[member]  # so that only who holds something is looked at
        return name


class _Giver(NamedTuple):
    """What a member can pass something of, and to whom; it may be passed on from there."""

    pool: _Pool
    taker: str


class _Table:
    """Who has what. `loads` counts also the partitions that may not be moved yet."""

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
        """Each of these has one partition more."""
        for member in members:
            self.loads[member] += 1

    def deal(self, names: Iterable[TopicPartition]) -> None:
        """Give each to who has the least; first what the fewest may have."""

        def choice(name: TopicPartition) -> int:
            return len(self._pool_of[name.topic].subscribers)

        for name in sorted(names, key=choice):
            pool = self._pool_of[name.topic]
            member = min(pool.subscribers, key=self.loads.__getitem__)
            pool.held[member].append(name)
            self.loads[member] += 1

    def release(self, owners: Mapping[TopicPartition, str]) -> None:
        """From now on these may be moved, too."""
        for name, member in sorted(owners.items(), reverse=True):
            self._pool_of[name.topic].held[member].insert(0, name)

    def level(self) -> None:
        """Move what may be moved until nobody can be relieved."""
        left = dict(self.loads)  # the members that are not done with
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
        """Who of those left can pass something on to `least`, the nearest first.

        It looks no further than to one that has as much as anybody and can be relieved.
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
        """Who lost a partition and has another one of its pool instead gets its own back."""
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
        """Who has each partition that may be moved."""
        return {
            name: member
            for pool in dict.fromkeys(self._pool_of.values())
            for member, names in pool.held.items()
            for name in names
        }
