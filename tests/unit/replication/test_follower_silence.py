"""Which followers send no FETCH."""

import math

from minibroker.broker.replication.follower_silence import FollowerSilence

TIMEOUT_S = 2.0
INTERVAL_S = 0.25


def silence() -> FollowerSilence:
    """Of brokers 2 and 3, in-sync followers as of 10 s."""
    found = FollowerSilence(TIMEOUT_S, INTERVAL_S)
    found.tick(10.0)
    for node_id in (2, 3):
        found.expect(node_id, 10.0)
    return found


def test_a_follower_is_silent_after_the_time_out() -> None:
    """It counts from its last FETCH, or from when it was first expected."""
    one = silence()
    assert not one.has_silent(12.0)
    assert one.has_silent(12.1)
    one.record_arrival(2, 11.0)
    assert not one.is_silent(2, 0.0, 13.0)
    assert one.is_silent(2, 0.0, 13.1)
    assert one.is_silent(3, 0.0, 12.1)


def test_the_time_out_begins_at_the_start_of_a_term_at_the_earliest() -> None:
    """And a broker that was never expected has been silent since for ever."""
    one = silence()
    assert not one.is_silent(2, 50.0, 52.0)
    assert one.is_silent(2, 50.0, 52.1)
    assert one.is_silent(4, -math.inf, 10.0)


def test_who_was_expected_before_is_not_forgiven() -> None:
    """Another partition of the same follower does not begin its time-out again."""
    one = silence()
    one.expect(2, 11.9)
    assert one.is_silent(2, 0.0, 12.1)


def test_time_in_which_this_broker_did_not_run_counts_for_nobody() -> None:
    """Requests that came meanwhile are not read yet."""
    one = silence()
    one.tick(10.25)
    one.tick(15.25)
    assert not one.has_silent(16.75)
    assert one.has_silent(16.8)


def test_a_pause_lets_nobody_have_been_heard_in_the_future() -> None:
    """Who was heard before its end has a whole time-out."""
    one = silence()
    one.record_arrival(2, 14.9)
    one.tick(15.0)
    assert one.is_silent(2, 0.0, 17.1)


def test_who_follows_no_more_is_forgotten() -> None:
    """But not who was heard or expected while the review went on."""
    one = silence()
    one.record_arrival(3, 12.5)
    one.keep((), 12.0)
    assert not one.has_silent(14.5)
    one.keep((), 13.0)
    assert not one.has_silent(100.0)
