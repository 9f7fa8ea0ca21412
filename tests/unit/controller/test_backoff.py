"""The pauses before an attempt that failed before."""

from random import Random

from minibroker.broker.controller.backoff import Backoff


def test_each_failure_doubles_the_pause():
    """Drawn from half of it up, to eight times the first at most."""
    backoff = Backoff(2.0, Random(1))
    assert backoff.draw_pause_s() == 0
    for longest in (2.0, 4.0, 8.0, 16.0, 16.0):
        backoff.on_failure()
        drawn = {backoff.draw_pause_s() for _ in range(100)}
        assert len(drawn) > 90
        assert longest / 2 <= min(drawn) < max(drawn) <= longest


def test_a_success_ends_the_pauses():
    """The pause after the next failure is the first again."""
    backoff = Backoff(2.0, Random(1))
    backoff.on_failure()
    backoff.on_failure()
    backoff.on_success()
    assert backoff.draw_pause_s() == 0
    backoff.on_failure()
    assert backoff.draw_pause_s() <= 2.0
