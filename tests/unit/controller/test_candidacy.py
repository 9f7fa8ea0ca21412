"""When a broker stands for election after it resigned."""

from random import Random

from minibroker.broker.controller.candidacy import Candidacy


def test_who_resigned_for_want_of_others_waits_longer_each_time():
    """From half of a pause that doubles, up to eight times the first."""
    candidacy = Candidacy(2.0, Random(1))
    assert candidacy.draw_pause_s() == 0
    for longest in (2.0, 4.0, 8.0, 16.0, 16.0):
        candidacy.on_isolation()
        drawn = {candidacy.draw_pause_s() for _ in range(100)}
        assert len(drawn) > 90
        assert longest / 2 <= min(drawn) < max(drawn) <= longest


def test_who_is_heard_stands_at_once_again():
    """It is not cut off any more; the next pause is the first again."""
    candidacy = Candidacy(2.0, Random(1))
    candidacy.on_isolation()
    candidacy.on_isolation()
    candidacy.on_contact()
    assert candidacy.draw_pause_s() == 0
    candidacy.on_isolation()
    assert candidacy.draw_pause_s() <= 2.0
