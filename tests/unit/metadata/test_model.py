"""The cluster image: an immutable value."""

import pytest

from minibroker.broker.metadata.model import ClusterImage, PartitionImage, TopicImage
from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.types import TopicPartition

TOPIC = TopicImage(bytes(16), "t", {}, (PartitionImage(0, 1, 0, (1,), (1,), 0),))


def test_a_partition_is_found_by_name_and_number():
    """An unknown topic or number is None, never another partition (MET-07)."""
    image = ClusterImage(topics={"t": TOPIC})
    assert image.partition(TopicPartition("t", 0)) is TOPIC.partitions[0]
    assert image.partition(TopicPartition("t", 1)) is None
    assert image.partition(TopicPartition("t", -1)) is None
    assert image.partition(TopicPartition("u", 0)) is None


@pytest.mark.parametrize(("leader", "isr"), [(NO_NODE, ()), (2, (1,))])
def test_an_impossible_partition_is_refused(leader, isr):
    """An ISR is never empty, and a leader is in it (CTL-05)."""
    with pytest.raises(AssertionError):
        PartitionImage(0, leader, 0, isr, (1, 2), 0)
