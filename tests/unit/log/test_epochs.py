"""The epoch history of a log: rows EPO-01 to EPO-09 and algorithm A9."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.checkpoints import CheckpointError, dump_epochs, load_epochs
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.types import OffsetAndEpoch

UNKNOWN = OffsetAndEpoch(-1, -1)


def cache_of(*starts: tuple[int, int]) -> EpochHistory:
    cache = EpochHistory()
    for epoch, offset in starts:
        assert cache.assign(epoch, offset)
    return cache


def test_the_newest_epoch_ends_at_the_log_end():
    """EPO-01: requesting the newest epoch returns that epoch and the log end."""
    assert cache_of((2, 5)).end_offset_for(2, log_end=9) == OffsetAndEpoch(9, 2)


def test_an_older_epoch_ends_where_the_next_starts():
    """EPO-02: with (5,10),(6,15),(7,20), epoch 5 ends at 15."""
    cache = cache_of((5, 10), (6, 15), (7, 20))
    assert cache.end_offset_for(5, log_end=30) == OffsetAndEpoch(15, 5)


def test_an_epoch_between_two_is_the_older_one():
    """EPO-03: with (0,10),(2,13),(4,17), epoch 3 gives epoch 2, which ends at 17."""
    cache = cache_of((0, 10), (2, 13), (4, 17))
    assert cache.end_offset_for(3, log_end=30) == OffsetAndEpoch(17, 2)


def test_an_epoch_older_than_all_ends_where_the_oldest_starts():
    """A9: no entry up to the requested epoch: it is returned with the start of the first."""
    cache = cache_of((5, 10), (6, 15))
    assert cache.end_offset_for(3, log_end=30) == OffsetAndEpoch(10, 3)


def test_what_the_log_cannot_know():
    """EPO-05: a larger epoch than all known, -1, or an empty cache give (-1, -1)."""
    cache = cache_of((5, 10))
    assert cache.end_offset_for(6, log_end=30) == UNKNOWN
    assert cache.end_offset_for(-1, log_end=30) == UNKNOWN
    assert EpochHistory().end_offset_for(0, log_end=30) == UNKNOWN
    assert EpochHistory().end_offset_for(-1, log_end=30) == UNKNOWN


def test_the_first_offset_of_an_epoch_stays():
    """EPO-06: assigning the newest epoch again at a later offset changes nothing."""
    cache = cache_of((2, 5))
    assert not cache.assign(2, 7)
    assert not cache.assign(2, 5)
    assert cache.entries == ((2, 5),)
    assert cache.newest_epoch == 2


def test_assigning_drops_what_it_contradicts():
    """A9: entries with a larger epoch or a later start leave the tail."""
    cache = cache_of((1, 0), (2, 5), (4, 9))
    assert cache.assign(3, 7)
    assert cache.entries == ((1, 0), (2, 5), (3, 7))
    assert cache.assign(4, 5)
    assert cache.entries == ((1, 0), (4, 5))
    assert cache.assign(4, 3), "the same epoch, but from an earlier offset on"
    assert cache.entries == ((1, 0), (4, 3))


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
def test_negative_assignments_are_errors(epoch, offset):
    """A9: an undefined epoch or offset is a mistake of the caller."""
    with pytest.raises(AssertionError):
        EpochHistory().assign(epoch, offset)


@pytest.mark.parametrize(
    ("offset", "left"),
    [(-1, 3), (12, 3), (11, 2), (9, 2), (8, 1), (7, 1), (6, 0), (0, 0)],
)
def test_cutting_from_the_end(offset, left):
    """EPO-08: entries that start at or after the cut go; -1 drops nothing."""
    starts = [(2, 6), (3, 8), (4, 11)]
    cache = cache_of(*starts)
    assert cache.truncate_from_end(offset) == (left < 3)
    assert list(cache.entries) == starts[:left]


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (5, [(2, 6), (3, 8), (4, 11)]),
        (6, [(2, 6), (3, 8), (4, 11)]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (99, [(4, 99)]),
    ],
)
def test_cutting_from_the_start(offset, left):
    """EPO-09: the epoch that covers the cut keeps an entry; past all, the newest does."""
    before = [(2, 6), (3, 8), (4, 11)]
    cache = cache_of(*before)
    assert cache.truncate_from_start(offset) == (left != before)
    assert list(cache.entries) == left


def test_an_empty_cache_can_be_cut():
    """Nothing to forget is no error."""
    cache = EpochHistory()
    assert not cache.truncate_from_end(5)
    assert not cache.truncate_from_start(5)
    assert cache.newest_epoch == -1


assignments = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=20)


@given(assignments, st.integers(-1, 30), st.integers(0, 30))
def test_both_columns_always_ascend(pairs, cut_end, cut_start):
    """A9: after any assignments and cuts, epochs and starts ascend strictly, and survive a dump."""
    cache = EpochHistory()
    for epoch, offset in pairs:
        cache.assign(epoch, offset)
        assert cache.newest_epoch == epoch
    cache.truncate_from_end(cut_end)
    cache.truncate_from_start(cut_start)
    for column in zip(*cache.entries, strict=True):
        assert list(column) == sorted(set(column))
    assert EpochHistory(load_epochs(dump_epochs(cache.entries))).entries == cache.entries


@given(assignments, st.integers(0, 10))
def test_an_end_is_where_a_larger_epoch_starts(pairs, epoch):
    """A9: the answer is the first start of a larger epoch, from the definition."""
    cache = EpochHistory()
    for pair in pairs:
        cache.assign(*pair)
    known = [entry.epoch for entry in cache.entries]
    found = cache.end_offset_for(epoch, log_end=99)
    larger = [entry for entry in cache.entries if entry.epoch > epoch]
    if epoch in known[-1:]:
        assert found == OffsetAndEpoch(99, epoch)
    elif not larger:
        assert found == UNKNOWN
    else:
        older = [known_epoch for known_epoch in known if known_epoch <= epoch]
        assert found == OffsetAndEpoch(larger[0].offset, older[-1] if older else epoch)


def test_a_bad_file_is_refused():
    """A damaged checkpoint raises."""
    with pytest.raises(CheckpointError):
        load_epochs(b"0\n2\n1 0\n")
