"""`top`: rates from what grows between two looks."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minibroker.cli import top
from minibroker.cli.top import TopicLook, table
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
from minibroker.protocol.messages.offsets import PartitionOffset
from tests.support.processes import run_here


def test_the_busiest_topic_is_the_first() -> None:
    """With records a second; a topic that is new, or was created again, has no rate yet."""
    before = {
        "slow": TopicLook(1, 0, 0, 100),
        "quick": TopicLook(2, 1, 0, 10),
        "again": TopicLook(1, 0, 0, 7),
        "gone": TopicLook(1, 0, 0, 7),
    }
    after = {
        "slow": TopicLook(1, 0, 0, 101),
        "quick": TopicLook(2, 1, 0, 3010),
        "again": TopicLook(1, 0, 1, 3),
        "new": TopicLook(1, 0, 0, 5),
    }
    rows = [line.split() for line in table(before, after, 2.0, 3).splitlines()]
    assert rows == [
        ["TOPIC", "PARTITIONS", "NOT-IN-SYNC", "NO-LEADER", "RECORDS", "RECORDS/S"],
        ["quick", "2", "1", "0", "3010", "1,500.0"],
        ["slow", "1", "0", "0", "101", "0.5"],
        ["new", "1", "0", "0", "5", "-"],
        ["...", "1", "more"],
    ]
    assert table({}, {}, 0.0, 3) == ""


class FakeAdmin:
    """A topic that gets ten records between two looks, and a partition without a leader."""

    def __init__(self) -> None:
        self.end = 0

    def list_topics(self) -> list[str]:
        return ["__internal", "t"]

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        assert names == ("t",)
        alive = PartitionMetadata(0, leader_id=1, replicas=(1, 2), isr=(1,))
        return [TopicMetadata("t", partitions=(alive, PartitionMetadata(1, leader_id=-1)))]

    def list_offsets(self, names: Any) -> dict[Any, PartitionOffset]:
        assert names == [("t", 0)]
        self.end += 10
        return {names[0]: PartitionOffset("t", 0, offset=self.end)}


def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as it is told; what is no terminal gets one table after the other."""
    now = [100.0]

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield FakeAdmin()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(top, "opened_admin", opened)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    done = run_here("top", "-n", "3", "--interval-s", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("t ")] == [
        ["2", "1", "1", "10", "-"],
        ["2", "1", "1", "20", "2.0"],
        ["2", "1", "1", "30", "2.0"],
    ]
    assert "\x1b" not in done.stdout
