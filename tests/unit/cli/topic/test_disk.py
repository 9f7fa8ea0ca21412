"""`topic describe --disk`: a row for each replica, from what the brokers report."""

import json
from contextlib import contextmanager
from typing import Any

import pytest

from minibroker.cli.topic import commands
from minibroker.client.admin import LogDirsReport
from minibroker.protocol.constants import INT64_MAX
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsResponse,
    LogSize,
    OtherLogDirectory,
)
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
from tests.support.processes import run_here

EVENTS = TopicMetadata(
    "events",
    partitions=(
        PartitionMetadata(0, leader_id=1, replicas=(1, 2, 3)),
        PartitionMetadata(1, leader_id=2, replicas=(2, 4)),
    ),
)
REPORT = LogDirsReport(
    {
        1: DescribeLogDirsResponse(
            "/one",
            (
                LogSize("events", 0, 500, 0, 0, 200, 86_400_000, 7),
                LogSize("events", 1, 30, 0, 1_000, 30, INT64_MAX),  # one that was moved away
                LogSize("other", 0, 10),
            ),
        ),
        2: DescribeLogDirsResponse(
            "/two",
            others=(
                OtherLogDirectory("/more", logs=(LogSize("events", 0),)),
                OtherLogDirectory("/broken", 56, "Input/output error"),
            ),
        ),
    },
    {3: "no answer within 3 s"},
)
DAY_0, DAY_1 = "1970-01-01T00:00:00+00:00", "1970-01-02T00:00:00+00:00"


class FakeAdmin:
    """Answers as brokers 1 and 2 would, while 3 is silent and 4 is dead."""

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        return [EVENTS for _ in names]

    def describe_log_dirs(self, partitions: Any) -> LogDirsReport:
        assert [*partitions] == [("events", 0), ("events", 1)]
        return REPORT


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find this cluster at any address."""

    @contextmanager
    def opened(*_: object) -> Any:
        yield FakeAdmin()

    monkeypatch.setattr(commands, "opened_admin", opened)


def test_each_replica_has_a_row() -> None:
    """With what is not known as null, and why."""
    ended = run_here("topic", "describe", "events", "--disk", "--format", "json")
    shown = [tuple(row.values()) for row in json.loads(ended.stdout)]
    nothing = (None,) * 5
    assert shown == [
        ("events", 0, 1, 500, DAY_0, 200, DAY_1, 7, "/one", ""),
        ("events", 0, 2, 0, None, None, None, None, "/more", ""),
        ("events", 0, 3, *nothing, "", "no answer within 3 s"),
        ("events", 1, 1, 30, "1970-01-01T00:00:01+00:00", 30, f"{INT64_MAX} ms", None, "/one", ""),
        ("events", 1, 2, *nothing, "", "the broker does not have it; offline: /broken"),
        ("events", 1, 4, *nothing, "", "not alive"),
    ]


def test_the_rows_are_in_columns() -> None:
    """Under heads, with a dash for what is not known."""
    ended = run_here("topic", "describe", "events", "--disk")
    head, first, *rest = ended.stdout.splitlines()
    heads = "TOPIC PARTITION BROKER BYTES OLDEST NEXT-BYTES DELETED-AFTER BYTES-LEFT DIRECTORY"
    assert head.split() == [*heads.split(), "REASON"]
    assert first.split() == ["events", "0", "1", "500", DAY_0, "200", DAY_1, "7", "/one"]
    assert len(rest) == 5


@pytest.mark.parametrize(
    "option",
    ["--under-replicated-partitions", "--unavailable-partitions", "--at-min-isr-partitions"],
)
def test_filters_do_not_go_with_it(option: str) -> None:
    """The error names --disk."""
    ended = run_here("topic", "describe", "events", "--disk", option)
    assert ended.returncode == 2
    assert "--disk shows all replicas" in " ".join(ended.stderr.split())
