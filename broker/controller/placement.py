"""The placement of a new topic's replicas on brokers.

The replicas of a partition are on live brokers that follow each other in order, round the end; the
next partition begins one broker further. The caller draws the first broker at random, so leaders
and load spread evenly over many small topics. Brokers that are down get replicas only if there are
fewer live brokers than the replication factor, as Kafka's StripedReplicaPlacer does with fenced
brokers. A live broker is always first, because the first replica leads.

If the brokers are in several racks, a partition has replicas in as many racks as possible, which
comes before an even spread over the brokers, as in Kafka: a lone broker in a rack gets many
replicas. A broker that is down then gets one if no other rack without a replica has a live broker,
unless the partition would have fewer than `live_min` live replicas. Brokers without a rack are in
one rack together. Kafka shuffles the brokers after each round, so that one's partitions do not all
have the same second broker; here each round begins with the next rack, and with its next broker
among those with equally few replicas.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias

Racks: TypeAlias = Mapping[int, str | None]


def place(
    partition_count: int,
    replication_factor: int,
    live: Sequence[int],
    start: int,
    down: Sequence[int] = (),
    racks: Racks | None = None,
    live_min: int = 1,
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each partition, the preferred leader first. With `racks`, neighbours
    in `live` are in different racks (see `alternating`)."""
    assert live
    assert 1 <= replication_factor <= len(live) + len(down)
    if racks is not None and len({racks.get(node) for node in (*live, *down)}) > 1:
        placement = _RackPlacement(live, down, racks, min(live_min, len(live)))
        return tuple(
            placement.next_partition(replication_factor, start + partition)
            for partition in range(partition_count)
        )
    live_count = min(replication_factor, len(live))
    return tuple(
        (
            *_striped(live, start + partition, live_count),
            *_striped(down, start + partition, replication_factor - live_count),
        )
        for partition in range(partition_count)
    )


def _striped(brokers: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """Return `count` brokers in a row, from `start` on and round the end."""
    return tuple(brokers[(start + number) % len(brokers)] for number in range(count))


def alternating(brokers: Iterable[int], racks: Racks) -> tuple[int, ...]:
    """Return the brokers, one of each rack in turn; in their order if they are in one rack."""
    by_rack = _by_rack(brokers, racks)
    turns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return tuple(node for node in chain.from_iterable(turns) if node is not None)


def _by_rack(brokers: Iterable[int], racks: Racks) -> dict[str, list[int]]:
    by_rack: dict[str, list[int]] = {}
    for node in brokers:
        by_rack.setdefault(racks.get(node) or "", []).append(node)
    return by_rack


class _RackPlacement:
    """The placement of partitions over racks, one after another. It takes time in proportion to
    the racks, and to the brokers of one rack, for each replica."""

    def __init__(
        self, live: Sequence[int], down: Sequence[int], racks: Racks, live_min: int
    ) -> None:
        self._live = live
        self._live_nodes = frozenset(live)
        self._live_min = live_min
        self._rack_of = {node: racks.get(node) or "" for node in (*live, *down)}
        self._live_in = _by_rack(live, racks)
        self._down_in = _by_rack(down, racks)
        self._names = sorted({*self._rack_of.values()})
        self._held = Counter[int]()  # replicas by broker, without first ones, which go round
        self._held_in = Counter[str]()  # and by rack

    def next_partition(self, factor: int, number: int) -> tuple[int, ...]:
        """Return the replicas of a partition that the live broker `number` leads, round the end."""
        chosen = [self._live[number % len(self._live)]]
        used = Counter([self._rack_of[chosen[0]]])  # racks of this partition
        turn = number // len(self._live)
        first = self._names.index(self._rack_of[chosen[0]]) + 1 + turn
        live_count = 1
        while len(chosen) < factor:
            may_be_down = factor - len(chosen) > self._live_min - live_count
            offers = {
                rack: offer
                for rack in self._names
                if (offer := self._offer(rack, chosen, may_be_down=may_be_down))
            }
            rack = min(
                offers,
                key=lambda one: (
                    used[one],
                    offers[one][0] not in self._live_nodes,
                    self._held_in[one],
                    (self._names.index(one) - first) % len(self._names),
                ),
            )
            offer = offers[rack]
            node = min(
                (self._held[node], (place - turn) % len(offer), node)
                for place, node in enumerate(offer)
            )[2]
            live_count += node in self._live_nodes
            chosen.append(node)
            used[rack] += 1
            self._held[node] += 1
            self._held_in[rack] += 1
        return tuple(chosen)

    def _offer(self, rack: str, chosen: Sequence[int], *, may_be_down: bool) -> list[int]:
        """Return the brokers of a rack that can get the next replica, live ones if there are."""
        offer = [node for node in self._live_in.get(rack, ()) if node not in chosen]
        if not offer and may_be_down:
            offer = [node for node in self._down_in.get(rack, ()) if node not in chosen]
        return offer
