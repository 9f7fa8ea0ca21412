"""What the logs say of a committed offset."""

from typing import Any

import pytest

from minibroker.audit.checks.commit_history import Row
from minibroker.audit.checks.group_offsets import Home, Judge, LogBounds, seek_command
from minibroker.audit.checks.log_ends import EpochEnd
from minibroker.audit.files.cluster import Assignment
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition

EPOCHS = (EpochEnd(1, 10, 10), EpochEnd(3, 25, 15))
BOUNDS = LogBounds(0, 25, 25, {1: 25}, 0, EPOCHS)
NAME = TopicPartition("t", 0)


def judged(name: TopicPartition, offset: int, epoch: int, leader_epoch: int) -> list[str]:
    """What is wrong with a commit of a group, in words; the metadata have t-0 in `leader_epoch`."""
    row: dict[str, Any] = {"broker": 1, "home": 0}
    row |= Row(0, "g", *name, offset, epoch, offset, 1, 0, 0, None, "")._asdict()
    home = Home(0, 1, True, False, {1: {("g", *name): row}}, (), LogBounds(0, 1, 1))
    assignments = {NAME: Assignment("id", 1, leader_epoch, (1,), (1,))}
    bounds = {NAME: BOUNDS, TopicPartition("t", 7): BOUNDS}
    return [found.detail for found in Judge([home], bounds, assignments).findings()]


@pytest.mark.parametrize(
    ("offset", "epoch", "cut"),
    [(10, 0, (1, 0)), (10, 1, None), (11, 1, (3, 10)), (25, 2, (3, 10)), (25, 3, None)],
)
def test_where_a_log_was_cut_below_a_commit(
    offset: int, epoch: int, cut: tuple[int, int] | None
) -> None:
    """At the start of the first newer epoch, if the commit lies above it."""
    assert BOUNDS.cut_below(offset, epoch) == cut
    assert [BOUNDS.epoch_at(at) for at in (0, 9, 10, 24, 25)] == [1, 1, 3, 3, -1]


def test_metadata_that_are_older_than_the_logs_accuse_no_group() -> None:
    """They do not know the newest leader epoch, nor a partition that was added."""
    assert any("never was" in text for text in judged(NAME, 25, 4, leader_epoch=3))
    assert not judged(NAME, 25, 4, leader_epoch=2)
    assert any("does not have" in text for text in judged(TopicPartition("t", 9), 25, -1, 3))
    assert not judged(TopicPartition("t", 7), 25, -1, leader_epoch=3)


@pytest.mark.parametrize(("group", "known", "count"), [("g", 4, 0), ("g", 3, 0), ("k", 5, 1)])
def test_metadata_that_lack_a_partition_misplace_no_group(
    group: str, known: int, count: int
) -> None:
    """Where a group belongs follows from the number of partitions of the offsets topic."""
    row: dict[str, Any] = {"broker": 1, "home": 3}
    row |= Row(0, group, *NAME, 5, -1, 5, 1, 0, 0, None, "")._asdict()
    home = Home(3, 1, True, False, {1: {(group, *NAME): row}}, (), LogBounds(0, 1, 1))
    names = [NAME, *(TopicPartition(OFFSETS_TOPIC, number) for number in range(known))]
    assignments = dict.fromkeys(names, Assignment("id", 1, 3, (1,), (1,)))
    found = [*Judge([home], {NAME: BOUNDS}, assignments).findings()]
    assert [each.check for each in found] == ["group-record"] * count


def test_a_command_can_be_pasted() -> None:
    """Whatever the names are made of."""
    assert seek_command("my group", "t", 3, "--to-latest") == (
        "to do: minibroker group seek 'my group' --topic t:3 --to-latest"
    )
