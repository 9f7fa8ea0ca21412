"""Which brokers hold which partition of a new topic.

Replicas go round the live brokers in order, each partition beginning one broker further, from a
start that the caller draws; so leaders and load spread evenly over topics that are small alone.
Brokers that are down get replicas only where the live ones are too few for the replication factor,
as Kafka's StripedReplicaPlacer does it with fenced brokers. A live broker is always first, since
the first replica leads.
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
