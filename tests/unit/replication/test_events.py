"""Few lines, however many partitions."""

import logging

import pytest

from minibroker.broker.replication.events import LINES_MAX, PartitionEvents
from minibroker.protocol.types import TopicPartition


def test_many_events_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    """The first of a second as they are, then how many more there were; and so each second."""
    caplog.set_level(logging.INFO)
    events = PartitionEvents(3)
    for number in range(1000):
        events.record(TopicPartition("t", number), "leads", 5.0 + number / 2000)
    assert len(caplog.messages) == LINES_MAX
    assert caplog.messages[0] == "[Partition t-0 broker=3] leads"
    events.flush(5.9)
    assert len(caplog.messages) == LINES_MAX
    events.flush(6.0)
    assert caplog.messages[LINES_MAX:] == [
        f"[Broker id=3] (and {1000 - LINES_MAX} more like these)"
    ]
    events.record(TopicPartition("t", 1), "follows", 6.1)
    assert caplog.messages[-1] == "[Partition t-1 broker=3] follows"
    events.flush(100.0)
    assert caplog.messages[-1] == "[Partition t-1 broker=3] follows"
