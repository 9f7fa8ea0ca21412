"""The partitioner against Kafka's published values."""

import pytest

from minibroker.client.producer.partitioner import murmur2, next_partition, partition_for_key
from minibroker.protocol.types import TopicPartition

P0, P3 = TopicPartition("t", 0), TopicPartition("t", 3)

# From Kafka's own test of its murmur2 (UtilsTest.testMurmur2), as signed 32-bit numbers.
PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_murmur2_is_kafkas(key: bytes) -> None:
    """A key lives in one partition, whichever client wrote it."""
    assert murmur2(key) == PUBLISHED[key] % 2**32


def test_the_sign_bit_is_dropped() -> None:
    """The partition comes from the hash without its sign, as Kafka's toPositive makes it."""
    assert partition_for_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_keys_spread_evenly() -> None:
    """No partition is left out."""
    counts = [0] * 8
    for number in range(8000):
        counts[partition_for_key(b"key-%d" % number, 8)] += 1
    assert min(counts) > 800


def test_partitions_without_a_leader_are_passed_over() -> None:
    """Records without a key go where they can be sent."""
    assert next_partition(P0, 4, lambda candidate: candidate == P3) == 3
    assert next_partition(P3, 4, lambda candidate: True) == 0


def test_where_no_partition_has_a_leader_the_turn_goes_on() -> None:
    """They wait somewhere rather than nowhere."""
    assert next_partition(P0, 4, lambda candidate: False) == 1
