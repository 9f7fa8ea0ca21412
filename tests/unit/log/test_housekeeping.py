"""Deadlines of recurring duties."""

from minibroker.broker.log.housekeeping import Duty, Housekeeping, Interval


def test_duties_are_due_at_their_time():
    """First after `first_s`, then every `every_s`; the next deadline is the nearest one."""
    house = Housekeeping(
        {Duty.RETENTION: Interval(30, 300), Duty.HIGH_WATERMARKS: Interval(5, 5)}, now=100.0
    )
    assert house.next_deadline == 105.0
    assert house.due(104.9) == []
    assert house.due(105.0) == [Duty.HIGH_WATERMARKS]
    assert house.due(130.0) == [Duty.RETENTION, Duty.HIGH_WATERMARKS]
    assert house.next_deadline == 135.0
    assert house.due(430.0) == [Duty.RETENTION, Duty.HIGH_WATERMARKS]


def test_a_missed_duty_is_due_once():
    """After a pause nothing is made up for."""
    house = Housekeeping({Duty.PRODUCERS: Interval(1, 1)}, now=0.0)
    assert house.due(1000.0) == [Duty.PRODUCERS]
    assert house.due(1000.5) == []
    assert house.next_deadline == 1001.0
