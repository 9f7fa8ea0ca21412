"""The newest offset of each key, within a limit of memory."""

from minibroker.broker.log.newest_offsets import ENTRY_BYTES, NewestOffsets


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
