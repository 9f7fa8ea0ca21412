"""The trail of a reader: up to where its log and a leader's are the same (A11)."""

import pytest

from minibroker.client.trail import EPOCHS_KEPT_MAX, Trail
from minibroker.protocol.types import OffsetAndEpoch


def trail(*starts: tuple[int, int]) -> Trail:
    """One that has read these (offset, epoch)."""
    made = Trail()
    for start in starts:
        made.note(OffsetAndEpoch(*start))
    return made


def test_the_last_epoch_is_that_of_the_last_record() -> None:
    """-1 before anything was read; an older epoch changes nothing."""
    assert trail().last_epoch == -1
    assert trail((5, 2), (9, 4), (12, 4)).last_epoch == 4


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
    assert trail((5, 2), (9, 4)).parting(epoch, end, fetch_offset=20) == expected


def test_each_answer_brings_the_parting_further_back() -> None:
    """Asking again after a cut ends: the last epoch that was read is always one less."""
    read = trail((5, 2), (9, 4), (15, 6))
    read.cut(read.parting(5, 100, fetch_offset=20))
    assert read.last_epoch == 4
    read.cut(read.parting(3, 100, fetch_offset=15))
    assert read.last_epoch == 2
    read.cut(read.parting(0, 100, fetch_offset=9))
    assert read.last_epoch == -1


def test_a_long_trail_forgets_its_oldest_epochs() -> None:
    """What it keeps is bounded."""
    read = trail(*((epoch, epoch) for epoch in range(EPOCHS_KEPT_MAX + 5)))
    assert read.parting(0, 1000, fetch_offset=1000) == 5
