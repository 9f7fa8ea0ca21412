"""Duties that concern all partitions take turns, and what happens in their pauses harms nothing."""

import pytest

from minibroker.broker.log import log_directory
from minibroker.broker.turns import at_once, without_pause
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, state_of

NAMES = [TopicPartition("t", number) for number in range(3)]
OLD_MS = 10_000


def with_old_records() -> Node:
    """A broker whose partitions hold records that are too old."""
    node = Node(log_retention_ms="1000")
    node.lead(*map(state_of, NAMES))
    for name in NAMES:
        node.append(name=name)
    node.wall_time_ms += OLD_MS
    return node


def test_retention_pauses_behind_each_log_that_it_cuts() -> None:
    """Each of them writes and syncs a checkpoint."""
    node = with_old_records()
    pauses = sum(1 for _ in node.replicas.apply_retention(node.wall_time_ms))
    assert pauses >= len(NAMES)
    assert [node.partition(name).log.log_start for name in NAMES] == [1, 1, 1]
    assert sum(1 for _ in node.replicas.apply_retention(node.wall_time_ms)) == 1


def test_retention_leaves_what_is_deleted_in_a_pause() -> None:
    """The others are cut."""
    node = with_old_records()
    retention = node.replicas.apply_retention(node.wall_time_ms)
    next(retention)
    node.stop(state_of(NAMES[1]), delete=True, leader_epoch=-2)
    without_pause(retention)
    assert [node.partition(name).log.log_start for name in (NAMES[0], NAMES[2])] == [1, 1]


def test_a_log_may_be_deleted_while_its_segments_go() -> None:
    """Its directory has another name by then; the others are cut."""
    node = with_old_records()
    retention = node.replicas.apply_retention(node.wall_time_ms)
    next(retention)
    assert node.partition(NAMES[0]).log.log_start == 1
    node.stop(state_of(NAMES[0]), delete=True, leader_epoch=-2)
    without_pause(retention)
    assert [node.partition(name).log.log_start for name in NAMES[1:]] == [1, 1]


def test_retention_goes_by_the_high_watermark_of_its_turn() -> None:
    """What is not committed any more when its turn comes stays."""
    node = with_old_records()
    retention = node.replicas.apply_retention(node.wall_time_ms)
    next(retention)
    state = state_of(NAMES[1], epochs=(1, 1), leader=2, isr=(2,), replicas=(1, 2))
    node.apply(state)
    node.partition(NAMES[1]).role.high_watermark = 0
    without_pause(retention)
    assert node.partition(NAMES[1]).log.log_start == 0


def test_what_is_given_up_in_a_pause_is_not_made() -> None:
    """Two logs had no room; one of them is not wanted any more when there is room."""
    node = Node()
    node.files.space_bytes = 0
    node.apply(*map(state_of, NAMES))
    node.files.space_bytes = None
    making = node.replicas.retry(lambda: 0.0)
    next(making)
    node.stop(state_of(NAMES[1]), delete=True, leader_epoch=0)
    without_pause(making)
    assert [*node.replicas.partitions] == [NAMES[0], NAMES[2]]


def test_a_log_that_is_deleted_in_a_pause_goes_in_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its files have moved by then, and stay as long as the delay says; those of others go."""
    monkeypatch.setattr(log_directory, "at_once", lambda items, _=1: at_once(items, 1))
    node = with_old_records()
    without_pause(node.replicas.apply_retention(node.wall_time_ms))
    node.stop(state_of(NAMES[0]), delete=True, leader_epoch=-2)
    node.wall_time_ms += 10 * OLD_MS
    removal = node.manager.remove_deleted_files(node.wall_time_ms)
    remove = next(removal)
    assert remove is not None
    remove()
    node.stop(state_of(NAMES[2]), delete=True, leader_epoch=-2)
    without_pause(removal)
    assert node.manager.statistics().deleting_count == 1
    assert node.manager.logs.keys() == {NAMES[1]}
    assert not [
        name
        for name in node.files.list(node.partition(NAMES[1]).log.directory)
        if name.endswith(".deleted")
    ]
