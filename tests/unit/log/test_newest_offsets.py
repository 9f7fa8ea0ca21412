"""The newest offset of each key, within a limit of memory."""

import random
import tracemalloc

from minibroker.broker.log.newest_offsets import ENTRY_BYTES, SORTED_AT_ONCE, NewestOffsets
from tests.unit.log.workbench import finish


def test_only_the_last_record_of_a_key_is_the_newest():
    """Later records supersede earlier ones; a key that the map lacks is not superseded."""
    newest = NewestOffsets(1_000_000, 5)
    assert newest.add([b"a", b"b", None, b"a"], [5, 6, 7, 9], 10)
    assert newest.are_newest([b"a"], [5]) == [False]
    assert newest.are_newest([b"a"], [9]) == [True]
    assert newest.are_newest([b"b"], [6]) == [True]
    assert newest.are_newest([b"c"], [1]) == [True]
    assert newest.end == 10


def test_keys_that_do_not_fit_are_refused_but_for_the_first_batch():
    """A batch whose new keys do not fit changes nothing; known keys always fit."""
    newest = NewestOffsets(2 * ENTRY_BYTES, 0)
    assert newest.add([b"a", b"b", b"c"], [0, 1, 2], 3)
    assert not newest.add([b"a", b"d"], [3, 4], 5)
    assert newest.are_newest([b"a"], [0]) == [True]
    assert newest.end == 3
    assert not newest.add([b"a"], [3], 4) or newest.end == 4


def test_a_long_key_takes_no_more_than_a_short_one():
    """A key of a megabyte is told from others, and not kept."""
    newest = NewestOffsets(1_000_000, 0)
    long = b"x" * 1_000_000
    assert newest.add([long, long + b"y"], [0, 1], 2)
    assert newest.add([long], [2], 3)
    assert newest.are_newest([long], [0]) == [False]
    assert newest.are_newest([long + b"y"], [1]) == [True]
    assert newest.size == 2 * ENTRY_BYTES
    assert max(map(len, newest._offsets)) < 100


def test_the_records_of_a_batch_that_stay_are_found_by_their_offsets():
    """Only for batches that were added as a whole; a record without a key never stays."""
    newest = NewestOffsets(1_000_000, 5)
    newest.add([b"a", b"b", None], [5, 6, 7], 8)
    newest.add([b"c", b"a"], [8, 11], 12)
    finish(newest.sort())
    assert [*newest.kept_in(5, 8)] == [6]
    assert [*newest.kept_in(8, 12)] == [8, 11]
    assert newest.kept_in(4, 8) is None
    assert newest.kept_in(8, 13) is None
    assert [*newest.kept_in(9, 11)] == []


def test_many_offsets_are_sorted_in_steps_and_within_the_limit():
    """No step takes all of them, and what an entry takes is what is counted for it."""
    count = 3 * SORTED_AT_ONCE + 7
    rng = random.Random(5)
    numbers = rng.sample(range(count * 3), count)
    tracemalloc.start()
    newest = NewestOffsets(1 << 40, 0)
    for number in numbers:
        newest.add([b"%032d" % number], [int(str(number + 1000)) - 1000], count * 3)
    steps = []
    finish(newest.sort(), steps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(steps) == 4 + 1 + 4 + 1
    assert [*newest.kept_in(0, count * 3)] == sorted(numbers)
    assert peak < 1.1 * newest.size


def test_no_offset_is_the_newest_of_an_empty_map():
    """Such as of records without keys."""
    newest = NewestOffsets(1_000_000, 0)
    newest.add([None], [0], 1)
    finish(newest.sort())
    assert [*newest.kept_in(0, 1)] == []
