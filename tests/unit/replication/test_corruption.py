"""A leader whose bytes are not what it wrote: found by who copies it (FOL-14, REC-03)."""

import logging
from dataclasses import replace

import pytest

from minibroker.broker.replication.corruption import find_corruption
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from tests.unit.node import ROOT, T0, Node, batch_of, state_of
from tests.unit.server.fetching import SMALL, answer, append, want

LOG = ROOT / str(T0) / f"{0:020}.log"


def leading(*isr: int) -> Node:
    """A leader of three replicas with five batches of one record."""
    node = Node()
    node.live(1, 2, 3)
    node.lead(state_of(isr=isr, replicas=(1, 2, 3)))
    append(node, *[batch_of() for _ in range(5)])
    return node


def flip_in(node: Node, number: int, position: int = -1) -> None:
    """Let a bit of a batch rot; the last byte, unless another is named."""
    node.files.flip(LOG, number * SMALL + position % SMALL)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("position", [-1, 3, 7, 11, 12, 16, 40])
def test_the_first_bad_batch_is_found(number: int, position: int) -> None:
    """Wherever a bit of a batch flips, the damage begins at that batch, also in its offset and its
    epoch (12), which no checksum covers."""
    node = leading(1, 2, 3)
    log = node.partition().log
    assert find_corruption(log, 0) is None
    flip_in(node, number, position)
    damage = find_corruption(log, 0)
    assert damage is not None
    assert damage.offset == number
    assert find_corruption(log, 5) is None


def test_who_asks_again_makes_the_leader_look() -> None:
    """Bad bytes are given once; asked for them again the leader gives the partition up, remembers
    the damage on the disk, and the controller is to hear of it."""
    node = leading(1, 2)
    flip_in(node, 2)
    assert answer(node, want(0), replica_id=3).records
    assert node.partition().is_leader
    again = answer(node, want(0), replica_id=3)
    assert (again.error, len(again.records)) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
    damage = node.partition().log.damage
    assert damage is not None
    assert damage.offset == 2
    assert node.files.exists(LOG.with_name(f"{2:020}.damaged"))
    assert node.damage_count == 1


def test_bytes_that_cannot_be_read_for_now_are_not_called_bad() -> None:
    """Where no file descriptor is free, the leader leads on, and looks when it is asked again."""
    node = leading(1, 2)
    log = node.partition().log
    log.limits = replace(log.limits, segment_bytes=SMALL)
    append(node, batch_of(), batch_of())
    flip_in(node, 2)
    assert node.manager._sealed_files.give_back(100)
    node.files.descriptors_max = 0
    assert find_corruption(log, 0) is None
    node.files.descriptors_max = None
    damage = find_corruption(log, 0)
    assert damage is not None
    assert damage.offset == 2


def test_sound_bytes_are_given_as_often_as_they_are_asked_for() -> None:
    """What was harmed on its way is sent again; who moves on is not looked at."""
    node = leading(1, 2)
    for _ in range(3):
        assert answer(node, want(0), replica_id=3).records
    flip_in(node, 0)
    assert answer(node, want(1), replica_id=3).records
    assert node.partition().is_leader
    assert node.damage_count == 0


def test_a_leader_alone_in_the_isr_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """It may have the only copy of all the rest: it says once what is bad, and leads on."""
    node = leading(1)
    flip_in(node, 2)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert answer(node, want(0), replica_id=3).records
    assert node.partition().log.damage is None
    assert caplog.text.count("t-0 has bad bytes at offset 2") == 1


def test_what_was_said_of_a_deleted_topic_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """The same damage in a topic of the same name is said once more."""
    node = leading(1)
    for _ in range(2):
        flip_in(node, 0)
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                assert answer(node, want(0), replica_id=3).records
        node.stop(state_of(), delete=True, leader_epoch=0)
        node.lead(state_of(isr=(1,), replicas=(1, 2, 3)))
        append(node, batch_of())
    assert caplog.text.count("t-0 has bad bytes at offset 0") == 2


def test_a_leader_that_may_be_alone_by_now_goes_on() -> None:
    """The controller may have granted that the others leave: given up, nobody could lead."""
    node = leading(1, 2)
    without_pause(node.replicas.review_isrs(1e9))
    assert node.leader().maximal_isr == (1, 2)
    flip_in(node, 2)
    for _ in range(2):
        assert answer(node, want(0), replica_id=3).records
    assert node.partition().is_leader
    assert node.damage_count == 0


def test_given_up_it_is_cut_and_copies_again() -> None:
    """REC-03: out of the in-sync set, it follows the next leader from where its loss begins."""
    node = leading(1, 2)
    flip_in(node, 2)
    for _ in range(2):
        answer(node, want(0), replica_id=3)
    node.lead(state_of(epochs=(1, 1), leader=2, isr=(2,), replicas=(1, 2, 3)))
    log = node.partition().log
    assert (log.log_end, log.damage) == (2, None)
    assert T0 in node.fetchers.assigned
