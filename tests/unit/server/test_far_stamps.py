"""Topics whose records are stamped far from the broker's clock."""

from minibroker.broker.server.far_stamps import FAR_MS, TOPICS_MAX, FarStamp, FarStamps
from tests.unit.node import Node, batch_of
from tests.unit.server.producing import answer, request_of

NOW = 1_700_000_000_000


def test_the_last_far_batch_of_each_topic_is_remembered() -> None:
    """Of 64 topics, those with the latest batches; a day before and after the clock is near."""
    stamps = FarStamps()
    stamps.record("t", NOW - FAR_MS, NOW)
    stamps.record("t", NOW + FAR_MS, NOW)
    assert stamps.statistics() == {}
    stamps.record("t", NOW - FAR_MS - 1, NOW)
    stamps.record("t", 1_700_000_000, NOW + 5)
    assert stamps.statistics() == {"t": FarStamp(1_700_000_000, NOW + 5, 2)}
    for number in range(TOPICS_MAX):
        stamps.record(f"t{number}", 0, NOW)
    assert len(stamps.statistics()) == TOPICS_MAX
    assert "t" not in stamps.statistics()


def test_what_is_appended_is_recorded() -> None:
    """No timestamp is none that is wrong, and with LogAppendTime there is no other than now."""
    node = Node()
    node.wall_time_ms = NOW
    node.lead()
    for time_ms in (NOW, -1, NOW // 1000):
        assert not answer(node, request_of(batch_of(time_ms=time_ms))).error
    assert node.services.far_stamps.statistics() == {"t": FarStamp(NOW // 1000, NOW, 1)}
    node = Node()
    node.wall_time_ms = NOW
    node.lead(overrides={"message.timestamp.type": "LogAppendTime"})
    assert not answer(node, request_of(batch_of(time_ms=NOW // 1000))).error
    assert node.services.far_stamps.statistics() == {}
