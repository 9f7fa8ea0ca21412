"""Replication quotas: the measured rate, and what a follower's plan leaves out meanwhile."""

import math

import pytest

from minibroker.broker.properties.quotas import is_listed, rate_limit
from minibroker.broker.replication.quotas import RETRY_S_MAX, ReplicationQuota


def test_no_limit_is_never_exceeded() -> None:
    """Whatever is moved."""
    quota = ReplicationQuota()
    quota.record(10**12, 0.0)
    assert not quota.is_exceeded(0.0)


def test_a_burst_is_exceeded_until_it_has_evened_out() -> None:
    """Ten seconds' worth at once block the quota for ten seconds."""
    quota = ReplicationQuota(1_000)
    assert not quota.is_exceeded(0.0)
    quota.record(10_000, 0.0)
    assert quota.is_exceeded(0.0)
    assert quota.is_exceeded(9.9)
    assert not quota.is_exceeded(10.0)


def test_a_sample_is_dropped_after_eleven_seconds() -> None:
    """As Kafka's quota.window.num and quota.window.size.seconds."""
    quota = ReplicationQuota(1)
    quota.record(1_000_000, 0.0)
    assert quota.is_exceeded(10.9)
    assert quota.rate(11.0) == 0.0
    assert not quota.is_exceeded(11.0)


def test_a_caller_that_waits_as_told_moves_bytes_at_the_limit() -> None:
    """Over a minute, by chunks; no look comes twice at one time."""
    quota = ReplicationQuota(5_000)
    now, moved, looks = 0.0, 0, 0
    while now < 60.0:
        looks += 1
        if quota.is_exceeded(now):
            later = quota.retry_at(now)
            assert now < later <= now + RETRY_S_MAX
            now = later
        else:
            quota.record(1_000, now)
            moved += 1_000
    assert moved == pytest.approx(5_000 * 60, rel=0.05)
    assert looks < 2_000
    assert quota.statistics(now).bytes == moved


def test_a_limit_of_nothing_lets_one_chunk_pass_in_eleven_seconds() -> None:
    """Kafka allows a rate of 0."""
    quota = ReplicationQuota(0)
    assert not quota.is_exceeded(0.0)
    quota.record(1, 0.0)
    assert quota.is_exceeded(5.0)
    assert quota.retry_at(5.0) == 5.0 + RETRY_S_MAX


def test_which_replicas_a_list_names() -> None:
    """All, none or some."""
    assert is_listed("*", 3, 1)
    assert not is_listed("", 3, 1)
    assert is_listed("3:1,4:2", 3, 1)
    assert not is_listed("3:1,4:2", 3, 2)


def test_the_limit_in_force() -> None:
    """A broker's own one, or what its file says; the largest number is no limit."""
    name = "leader.replication.throttled.rate"
    assert rate_limit({name: "5"}, name, 9) == 5.0
    assert rate_limit({}, name, 9) == 9.0
    assert rate_limit({name: "much"}, name, 9) == 9.0
    assert rate_limit({}, name, 2**63 - 1) == math.inf
