"""The placement of a new topic's replicas on brokers.

The replicas of a partition are on live brokers that follow each other in order, round the end; the
next partition begins one broker further. The caller draws the first broker at random, so leaders
and load spread evenly over many small topics. Brokers that are down get replicas only if there are
fewer live brokers than the replication factor, as Kafka's StripedReplicaPlacer does with fenced
brokers. A live broker is always first, because the first replica leads.
"""

from collections.abc import Sequence


def place(
    partition_count: int,
    replication_factor: int,
    live: Sequence[int],
    start: int,
    down: Sequence[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each partition, the preferred leader first."""
    assert live
    assert 1 <= replication_factor <= len(live) + len(down)
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
