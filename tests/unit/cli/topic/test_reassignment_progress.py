"""What is left of reassignments: bytes, time, and the lines that say so."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.cli.topic import reassign
from minibroker.cli.topic.reassign import look
from minibroker.cli.topic.reassignment_progress import (
    LINE_S,
    WINDOW_S,
    Progress,
    Sight,
    Sizes,
    TimeLeft,
    bytes_left,
    in_time,
)
from minibroker.client.admin import LogDirsReport, PartitionReassignment
from minibroker.client.errors import ClientTimeout
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.log_dirs import DescribeLogDirsResponse, LogSize
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
from minibroker.protocol.types import TopicPartition
from tests.support.fake_reassignments import FakeCluster

T0, T1 = ("t", 0), ("t", 1)
ONGOING = {
    T0: PartitionReassignment((4, 1, 2), (4,), (1,)),
    T1: PartitionReassignment((1, 2), (3, 4), (1, 2)),  # it waits for its turn
}


LEADERS = {T0: 1, T1: 2}


def left_of(sizes: Sizes, leaders: dict[tuple[str, int], int] = LEADERS) -> dict[Any, int]:
    return bytes_left(Sight(ONGOING, leaders, sizes))


def test_what_the_added_replicas_lack_is_left() -> None:
    """As much as the leader has; a broker that has not begun lacks all of it."""
    sizes = {1: {T0: 1000, T1: 70}, 2: {T0: 900, T1: 50}, 3: {}, 4: {T0: 300}}
    assert left_of(sizes) == {(T0, 4): 700, (T1, 3): 50, (T1, 4): 50}
    assert left_of({1: {T0: 5}, 4: {T0: 7}}) == {(T0, 4): 0}


def test_what_is_not_known_is_left_out() -> None:
    """Replicas whose broker, or whose leader, does not answer, and partitions without a leader."""
    assert left_of({1: {T0: 9, T1: 5}, 2: {T1: 5}, 3: {}}) == {(T1, 3): 5}
    assert left_of({2: {T0: 9}, 3: {}, 4: {T0: 1}}) == {}
    assert left_of({1: {T0: 9}, 4: {}}, {}) == {}
    assert left_of({1: {T0: 9}, 4: {}}, {T0: -1}) == {}
    assert left_of({}) == {}


@given(st.integers(1, 10**9), st.floats(0.1, 20), st.integers(2, 50))
def test_a_steady_copy_is_estimated_as_it_goes(rate: int, step_s: float, steps: int) -> None:
    """However often it is looked at."""
    time_left = TimeLeft()
    total = rate * steps
    assert time_left.estimate(0.0, total) is None
    for step in range(1, steps + 1):
        left = total - step * rate
        assert time_left.estimate(step * step_s, left) == pytest.approx((steps - step) * step_s)


def test_only_the_last_seconds_count() -> None:
    """A copy that is throttled later takes longer; one that does not move has no end."""
    time_left = TimeLeft()
    for second in range(10):
        time_left.estimate(float(second), 10_000 - 900 * second)
    for second in range(10, 10 + int(WINDOW_S)):
        seconds = time_left.estimate(float(second), 1900 - 10 * (second - 9))
    assert seconds == pytest.approx(160, abs=1)
    for second in range(100, 140):
        seconds = time_left.estimate(float(second), 1600)
    assert seconds is None
    assert time_left.estimate(140.0, 1700) is None


def test_progress_is_printed_when_there_is_news() -> None:
    """At once if a partition is done, at times for bytes, and not if nothing has moved."""
    progress = Progress(3)
    assert progress.line(0.0, copied(0)) == "1 of 3 partitions done, 1.1 kB left"
    assert progress.line(1.0, copied(100)) is None
    line = progress.line(LINE_S, copied(500))
    assert line == "1 of 3 partitions done, 600 B left, about 6 s"
    assert progress.line(3 * LINE_S, copied(500)) is None
    seen = copied(900)
    done = progress.line(16.0, seen._replace(ongoing={T0: ONGOING[T0]}))
    assert done is not None
    assert done.startswith("2 of 3 partitions done, 100 B left, about ")


def test_brokers_that_come_and_go_do_not_spoil_the_time() -> None:
    """Bytes that are not known any more were not copied; the measurement begins anew."""
    progress = Progress(2)
    progress.line(0.0, copied(0))
    progress.line(5.0, copied(100))
    silent = copied(200)
    silent = silent._replace(sizes={1: silent.sizes[1], 2: silent.sizes[2], 3: {}})
    assert progress.line(10.0, silent) == "0 of 2 partitions done, 50 B left"
    assert progress.line(15.0, silent._replace(sizes={})) == "0 of 2 partitions done"
    assert progress.line(20.0, copied(300)) == "0 of 2 partitions done, 800 B left"
    line = progress.line(25.0, copied(400))
    assert line == "0 of 2 partitions done, 700 B left, about 35 s"


def copied(size: int) -> Sight:
    """T0 has 1000 bytes, of which broker 4 has `size`."""
    sizes = {1: {T0: 1000, T1: 50}, 2: {T0: 1000, T1: 50}, 3: {}, 4: {T0: size}}
    return Sight(ONGOING, LEADERS, sizes)


def test_a_duration_is_in_a_unit_that_fits() -> None:
    """Seconds, minutes or hours."""
    assert [in_time(each) for each in (0.2, 89, 200, 9000)] == ["0 s", "89 s", "3 min", "2.5 h"]


class FakeAdmin:
    """Broker 1 leads t-0 and says its size; t-1 has no leader."""

    error: Exception | None = None

    def list_partition_reassignments(self, names: Any) -> dict[Any, PartitionReassignment]:
        return {TopicPartition(*name): ONGOING[name] for name in names}

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        if self.error is not None:
            raise self.error
        partitions = PartitionMetadata(0, leader_id=1), PartitionMetadata(1)
        return [TopicMetadata(name, partitions=partitions) for name in names]

    def describe_log_dirs(self, names: Any) -> LogDirsReport:
        assert [*names] == [T0, T1]
        answer = DescribeLogDirsResponse("data", (LogSize("t", 0, 700),))
        return LogDirsReport({1: answer}, {2: "no answer within 3 s"})


def test_a_look_at_the_cluster() -> None:
    """Whoever answers counts. A topic that was deleted meanwhile is no error."""
    admin: Any = FakeAdmin()
    assert look(admin, [T0, T1]) == Sight(ONGOING, {T0: 1}, {1: {T0: 700}})
    for error in (
        ClientTimeout("no broker answers"),
        BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 't'"),
    ):
        admin.error = error
        assert look(admin, [T0, T1]) == Sight(ONGOING, {}, {})


def test_a_wait_prints_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until no reassignment is under way."""
    looks = [copied(0), copied(400), Sight({}, {}, {})]
    clock = [0.0]
    monkeypatch.setattr(reassign, "look", lambda *_: looks.pop(0))
    monkeypatch.setattr(reassign.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(reassign.time, "sleep", lambda _: clock.append(clock.pop() + LINE_S))
    admin: Any = FakeCluster({T0: (1, 2), T1: (1, 2)}, [1, 2, 3, 4])
    reassign.carry_out(admin, {T0: (4, 1), T1: (3, 4)})
    out, err = capsys.readouterr()
    assert out == "Reassigning 2 partitions.\nReassigned 2 partitions.\n"
    assert err.splitlines() == [
        "% 0 of 2 partitions done, 1.1 kB left",
        "% 0 of 2 partitions done, 700 B left, about 9 s",
    ]
