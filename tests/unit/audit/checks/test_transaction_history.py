"""The transactions of a log, folded from its batches and markers."""

from minibroker.audit.checks.transaction_history import Row, Step, TransactionHistory
from minibroker.protocol.records.batch import CONTROL, TRANSACTIONAL
from minibroker.protocol.records.control import ABORT, COMMIT


def records(producer_id: int, at: int, count: int = 3, epoch: int = 0) -> Step:
    """A batch of a transaction."""
    last = at + count - 1
    return Step(producer_id, epoch, at, last, count, 1000 + at, TRANSACTIONAL, None, 0, at)


def marker(producer_id: int, at: int, kind: int | None, epoch: int = 1) -> Step:
    attributes = TRANSACTIONAL | CONTROL
    return Step(producer_id, epoch, at, at, 1, 1000 + at, attributes, kind, 0, at)


def fold(*steps: Step) -> tuple[list[Row], list[Row]]:
    """What has ended, and what is open."""
    history = TransactionHistory()
    ended = [row for step in steps if (row := history.add(step)) is not None]
    return ended, [*history.open()]


def test_a_transaction_is_from_its_first_batch_to_its_marker():
    """It has all batches in between, of this producer only."""
    [row], still_open = fold(
        records(1, 0), records(2, 3), records(1, 6, count=5), marker(1, 11, COMMIT)
    )
    assert (row.producer_id, row.producer_epoch, row.outcome) == (1, 0, "commit")
    assert (row.first_offset, row.last_offset, row.records, row.first_ms) == (0, 10, 8, 1000)
    assert (row.marker_offset, row.marker_epoch, row.marker_position) == (11, 1, 11)
    [other] = still_open
    assert (other.outcome, other.first_offset, other.last_offset) == ("open", 3, 5)
    assert other.marker_offset is None


def test_all_is_decided_below_the_first_open_one():
    """Right behind the marker, if no other is open."""
    ended, _ = fold(
        records(1, 0), records(2, 3), marker(2, 6, ABORT), marker(1, 7, ABORT), records(1, 8)
    )
    assert [(row.producer_id, row.stable) for row in ended] == [(2, 0), (1, 8)]


def test_a_marker_may_end_nothing():
    """Such a row has no first offset; what comes after it begins another transaction."""
    ended, [still_open] = fold(marker(1, 0, ABORT), marker(1, 1, COMMIT), records(1, 2))
    assert [(row.first_offset, row.outcome, row.is_first) for row in ended] == [
        (None, "abort", True),
        (None, "commit", False),
    ]
    assert not still_open.is_first


def test_a_control_batch_of_another_type_ends_nothing():
    """As in the broker."""
    ended, [still_open] = fold(records(1, 0), marker(1, 3, None))
    assert (ended, still_open.first_offset) == ([], 0)
