"""What the doctor says of replication quotas."""

import math

import pytest

from minibroker.broker.findings import Level
from minibroker.broker.findings.throttles import (
    QuotaLimits,
    of_left_throttles,
    of_slow_replicas,
    throttled_partitions,
)
from minibroker.broker.properties.quotas import FOLLOWER_REPLICAS, LEADER_REPLICAS
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
from minibroker.protocol.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
# t-0 gets a replica on broker 4; t-1 has one there, in sync.
MOVED = PartitionMetadata(0, leader_id=1, replicas=(4, 2, 1), isr=(1, 2))
DONE = PartitionMetadata(1, leader_id=2, replicas=(2, 4), isr=(2, 4))
TOPIC = TopicMetadata("t", partitions=(MOVED, DONE))
CONFIGS = {
    "t": {LEADER_REPLICAS: "0:1,0:2,1:2", FOLLOWER_REPLICAS: "0:4,1:4"},
    "u": {"retention.ms": "5"},
}
NO_LIMIT = QuotaLimits(math.inf, math.inf)


def test_a_throttle_is_left_behind_once_nothing_moves() -> None:
    """While one throttled partition moves, the plan it belongs to may have throttled the others."""
    [finding] = of_left_throttles(CONFIGS, ())
    assert finding.level is Level.NOTE
    assert finding.what == "1 topic with throttled replicas, and none of these is moved: t"
    assert "partition reassign --topic TOPIC --cancel" in finding.advice
    other = {"s": {FOLLOWER_REPLICAS: "7:1"}, **CONFIGS}
    assert "2 topics with throttled replicas" in next(of_left_throttles(other, ())).what
    assert not [*of_left_throttles(other, [T1])]
    assert [*of_left_throttles(CONFIGS, [TopicPartition("u", 0), TopicPartition("t", 2)])]
    assert not [*of_left_throttles({"u": CONFIGS["u"]}, ())]


def test_a_topic_that_throttles_all_replicas_is_noted() -> None:
    """It was set by hand, and no plan ends it."""
    [finding] = of_left_throttles({"t": {LEADER_REPLICAS: "*"}}, [T0])
    assert finding.level is Level.NOTE
    assert finding.what.startswith("topic t throttles all its replicas")
    assert "topic alter t --delete-config" in finding.advice


def test_throttled_partitions_matter_while_one_lacks_records() -> None:
    """Else nothing is held back, and nothing needs to be measured."""
    assert throttled_partitions([TOPIC], CONFIGS) == {T0: MOVED, T1: DONE}
    assert throttled_partitions([TopicMetadata("t", partitions=(DONE,))], CONFIGS) == {}
    assert throttled_partitions([TOPIC], {"t": {}}) == {}
    assert throttled_partitions([TOPIC], {"t": {FOLLOWER_REPLICAS: "0:9"}}) == {}


@pytest.mark.parametrize(
    ("limits", "written", "expected"),
    [
        ({4: QuotaLimits(math.inf, 100)}, {T0: 60, T1: 30}, []),
        ({4: QuotaLimits(1, 100)}, {T0: 60, T1: 50}, ["broker 4 copies at most 100 bytes"]),
        ({4: QuotaLimits(1, 100)}, {T0: 100}, ["broker 4 copies at most 100 bytes"]),
        ({1: QuotaLimits(100, 1)}, {T0: 49}, []),
        ({1: QuotaLimits(100, 1)}, {T0: 51}, ["broker 1 sends at most 100 bytes"]),
        ({2: QuotaLimits(1, 1)}, {T0: 9, T1: 9}, []),
        ({4: QuotaLimits(0, 0)}, {}, ["broker 4 copies at most 0 bytes"]),
        ({4: QuotaLimits(9, 9)}, {}, []),
        ({}, {T0: 10**9}, []),
        ({1: NO_LIMIT, 4: NO_LIMIT}, {T0: 10**9}, []),
    ],
)
def test_a_rate_below_what_is_written_is_named(
    limits: dict[int, QuotaLimits], written: dict[TopicPartition, float], expected: list[str]
) -> None:
    """A leader sends to each follower, also to those in sync; a follower copies each partition
    once. A broker with no replica behind is well."""
    partitions = throttled_partitions([TOPIC], CONFIGS)
    found = [*of_slow_replicas(partitions, CONFIGS, limits, written)]
    assert [one.what.split(" a second")[0] for one in found] == expected
    for one in found:
        assert one.level is Level.PROBLEM
        assert one.what.endswith("replicas of 1 partition do not get in sync: t-0")
        assert "higher `--throttle`" in one.advice
