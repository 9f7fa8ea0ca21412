"""Which brokers hold which partition of a new topic.

Replicas go round the brokers in order, each partition beginning one broker further, from a start
that the caller draws; so leaders and load spread evenly over topics that are small alone.
"""

from collections.abc import Sequence


def place(
    partition_count: int, replication_factor: int, brokers: Sequence[int], start: int
) -> tuple[tuple[int, ...], ...]:
    """The replicas of each partition, the preferred leader first."""
    assert 1 <= replication_factor <= len(brokers)
    return tuple(
        tuple(
            brokers[(start + partition + replica) % len(brokers)]
            for replica in range(replication_factor)
        )
        for partition in range(partition_count)
    )
