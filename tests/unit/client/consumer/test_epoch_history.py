"""The epoch history of a reader: up to where its log and a leader's are the same (A11)."""

import pytest

from minibroker.client.consumer.assigned_partition import EPOCHS_KEPT_MAX, AssignedPartition
from minibroker.client.consumer.positions import STUBBORN_FAILURES, Positions
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.fetch import PartitionFetch, PartitionFetched
from minibroker.protocol.records.batch import stamp
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition

A = TopicPartition("t", 0)


def fetched(fetch_offset: int, *starts: tuple[int, int]) -> AssignedPartition:
    """A partition that was fetched up to there, in which these epochs began at these offsets."""
    made = AssignedPartition(A)
    made.seek(fetch_offset)
    for offset, epoch in starts:
        made.epochs.assign(epoch, offset)
    return made


@pytest.mark.parametrize(
    ("epoch", "end", "expected"),
    [
        (4, 13, 13),  # the leader's log of the reader's last epoch is shorter
        (2, 9, 9),  # the leader never had epoch 4
        (2, 7, 7),  # nor all of epoch 2
        (2, 30, 9),  # its epoch 2 went on where the reader had begun to read epoch 4
        (3, 30, 9),  # it has an epoch between them
        (0, 3, 3),  # older than all that was read
        (0, 30, 5),  # and longer: all that was read is another leader's
        (1, -1, 0),  # no offset is below 0
    ],
)
def test_logs_part_where_the_first_of_both_ends(epoch: int, end: int, expected: int) -> None:
    """The smaller of where the leader's epoch ended, and where the reader's did."""
    assert fetched(20, (5, 2), (9, 4)).divergence(epoch, end) == expected


def test_each_answer_brings_the_divergence_further_back() -> None:
    """Asking again after a cut ends: the last epoch that was read is always one less."""
    read = fetched(20, (5, 2), (9, 4), (15, 6))
    for epoch, newest in ((5, 4), (3, 2), (0, -1)):
        read.truncate(read.divergence(epoch, 100))
        assert read.epochs.newest_epoch == newest


def test_a_long_history_forgets_its_oldest_epochs() -> None:
    """What it keeps is bounded."""
    read = fetched(1000, *((epoch, epoch) for epoch in range(EPOCHS_KEPT_MAX + 5)))
    assert read.divergence(0, 1000) == 5
    assert len(read.epochs.entries) == EPOCHS_KEPT_MAX


def batch(base: int, count: int, leader_epoch: int) -> bytes:
    """A stored batch of some term."""
    made = encode_batch([(0, None, b"x", ())] * count)
    stamp(made, base, leader_epoch)
    return bytes(made)


def reader(at: int) -> Positions:
    """A consumer of one partition that stands there."""
    positions = Positions(read_options(ConsumerOptions, "h:1", {}))
    positions.assign([A])
    positions.seek(A, at)
    return positions


def asked(positions: Positions, leader_epoch: int = 9, now: float = 0.0) -> PartitionFetch:
    """What a leader of that epoch is asked for."""
    ((wanted,), _) = positions.plan(lambda _: leader_epoch, now)
    return wanted


def test_a_fetch_names_the_epoch_of_the_last_record() -> None:
    """None before anything was read and after a seek; batches of several terms may come at once."""
    positions = reader(2)
    assert asked(positions).last_fetched_epoch == -1
    records = batch(0, 5, 3) + batch(5, 1, 3) + batch(6, 2, 7)
    positions.handle_answer(asked(positions), PartitionFetched(*A, records=records), 0.0)
    assert (asked(positions).fetch_offset, asked(positions).last_fetched_epoch) == (8, 7)
    positions.seek(A, 1)
    assert asked(positions).last_fetched_epoch == -1


def test_after_a_cut_the_epoch_is_that_of_what_is_left() -> None:
    """So the next fetch is checked too, and a second cut goes further back."""
    positions = reader(2)
    records = batch(0, 5, 3) + batch(5, 1, 4) + batch(6, 2, 7)
    positions.handle_answer(asked(positions), PartitionFetched(*A, records=records), 0.0)
    positions.take_records(100)
    for epoch, end, offset, left in ((6, 50, 6, 4), (3, 4, 4, 3), (1, 50, 2, -1)):
        parted = PartitionFetched(*A, diverging_epoch=epoch, diverging_end=end)
        positions.handle_answer(asked(positions), parted, 0.0)
        assert positions.position(A) == offset
        assert (asked(positions).fetch_offset, asked(positions).last_fetched_epoch) == (
            offset,
            left,
        )


def test_an_epoch_above_the_leader_s_is_not_believed() -> None:
    """N3: the checksum does not cover it, and no leader could say anything to it."""
    positions = reader(0)
    records = batch(0, 1, 9) + batch(1, 1, 1 << 30)
    positions.handle_answer(asked(positions), PartitionFetched(*A, records=records), 0.0)
    assert asked(positions).last_fetched_epoch == 9


def test_an_epoch_that_no_leader_knows_for_long_has_the_leader_asked_for() -> None:
    """CCO-04: UNKNOWN_LEADER_EPOCH is only retried, but not for ever: the topic may be another."""
    positions = reader(0)
    unknown = PartitionFetched(*A, ErrorCode.UNKNOWN_LEADER_EPOCH)
    answers = [
        positions.handle_answer(asked(positions, now=now), unknown, float(now))
        for now in range(STUBBORN_FAILURES + 2)
    ]
    assert answers == [False] * STUBBORN_FAILURES + [True] * 2


def test_a_new_leader_is_a_new_try() -> None:
    """CPR-13: what was refused under an older epoch waits for no back-off."""
    positions = reader(0)
    positions.handle_answer(
        asked(positions), PartitionFetched(*A, ErrorCode.NOT_LEADER_OR_FOLLOWER), 0.0
    )
    assert positions.plan(lambda _: 9, 0.0)[0] == []
    assert asked(positions, leader_epoch=10).leader_epoch == 10
    assert asked(positions, now=0.03).leader_epoch == 9
