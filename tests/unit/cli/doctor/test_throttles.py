"""What the doctor asks about replication quotas, and when it reports what it finds."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from minibroker.broker.findings.throttles import QuotaLimits
from minibroker.broker.properties.quotas import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from minibroker.cli.doctor import throttles
from minibroker.cli.doctor.brokers import ClusterSeen
from minibroker.cli.doctor.commands import of_moves
from minibroker.cli.doctor.throttles import LOOK_S, QuotasSeen, inspect_quotas
from minibroker.client.admin import LogDirsReport
from minibroker.protocol.constants import INT64_MAX
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.log_dirs import DescribeLogDirsResponse, LogSize
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
from minibroker.protocol.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MOVED = PartitionMetadata(0, leader_id=1, replicas=(4, 1), isr=(1,))
LEADERLESS = PartitionMetadata(1, replicas=(2,))
TOPICS = [TopicMetadata("t", partitions=(MOVED, LEADERLESS))]
CONFIGS = {"t": {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:4"}}


class FakeAdmin:
    """The log of t-0 grows by 500 bytes from look to look; broker 4 has a rate."""

    looks = 0

    def describe_log_dirs(self, names: Iterable[TopicPartition]) -> LogDirsReport:
        assert [*names] == [T0]
        self.looks += 1
        leader = DescribeLogDirsResponse("d", (LogSize("t", 0, 500 * self.looks),))
        return LogDirsReport(
            {1: leader, 4: DescribeLogDirsResponse("d", (LogSize("t", 0, 9),))}, {}
        )

    def describe_broker_configs(self, node: int, *names: str) -> tuple[ConfigDescription, ...]:
        rates = {LEADER_RATE: INT64_MAX, FOLLOWER_RATE: 7 if node == 4 else INT64_MAX}
        return tuple(ConfigDescription(name, str(rates[name])) for name in names)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on only while the doctor waits."""
    now = [0.0]
    monkeypatch.setattr(throttles.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(throttles.time, "sleep", lambda seconds: now.append(now.pop() + seconds))


def test_the_rate_of_writes_is_measured_at_the_leader() -> None:
    """By two looks; a broker that is not live is not asked for its rates."""
    admin: Any = FakeAdmin()
    seen = inspect_quotas(admin, TOPICS, CONFIGS, [1, 4])
    limits = {1: QuotaLimits(math.inf, math.inf), 4: QuotaLimits(math.inf, 7)}
    assert seen == QuotasSeen({T0: MOVED}, limits, {T0: 500 / LOOK_S})
    assert inspect_quotas(admin, TOPICS, CONFIGS, [1]).limits == {1: limits[1]}


def test_without_a_throttle_nothing_is_measured() -> None:
    """And nobody waits for the second look."""
    admin: Any = FakeAdmin()
    assert inspect_quotas(admin, TOPICS, {"t": {}}, [1, 4]) == QuotasSeen()
    assert admin.looks == 0


def test_what_is_wrong_with_moves_and_throttles_is_reported() -> None:
    """Unless the controller could not be asked which moves are under way."""
    admin: Any = FakeAdmin()
    adding = {T0: (4,), T1: ()}
    quotas = inspect_quotas(admin, TOPICS, CONFIGS, [1, 4])
    cluster = ClusterSeen([], [], TOPICS, CONFIGS, {}, adding, quotas)
    assert [one.what.split(":")[0] for one in of_moves(cluster)] == [
        "1 reassignment cannot end while broker 4 is not alive or fenced",
        "1 reassignment cannot go on without a leader to copy from",
        "broker 4 copies at most 7 bytes a second of throttled replicas, and what is written to"
        " them needs 250",
    ]
    [left] = of_moves(ClusterSeen([], [], TOPICS, CONFIGS, {}))
    assert "1 topic with throttled replicas, and none of these is moved: t" in left.what
    assert not [*of_moves(ClusterSeen([], [], TOPICS, CONFIGS, None))]
