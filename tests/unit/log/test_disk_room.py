"""Which appends are refused before a disk is full, and by what limit."""

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.log.disk_room import AGAIN, FREE_BYTES_KEPT, DiskRoom, RoomStatistics
from minibroker.protocol.constants import ErrorCode

GIB = 1 << 30


def refused(room: DiskRoom) -> tuple[bool, bool]:
    """Whether producers' records are refused, and the copies of them."""
    found = []
    for check in (room.check_records, room.check_copies):
        try:
            check()
        except Refused as error:
            found.append(error.code == ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            found.append(False)
    return found[0], found[1]


def test_nothing_is_refused_where_nothing_is_known() -> None:
    """Before the first look, and where the machine does not tell."""
    room = DiskRoom(1_000)
    assert refused(room) == (False, False)
    assert room.observe(-1, -1) == ""
    room.on_written(10_000)
    assert refused(room) == (False, False)
    assert room.statistics() == RoomStatistics()


def test_the_free_space_is_kept_and_followers_may_use_half_of_it() -> None:
    """At the limit itself records are still taken."""
    room = DiskRoom(1_000)
    assert room.observe(1_000, 10_000) == ""
    assert refused(room) == (False, False)
    assert room.observe(999, 10_000).startswith("records are refused: 999 bytes are free")
    assert refused(room) == (True, False)
    assert room.observe(500, 10_000) == ""  # which was told
    assert refused(room) == (True, False)
    room.observe(499, 10_000)
    assert refused(room) == (True, True)
    assert room.statistics() == RoomStatistics(499, 1_000, -1, -1, True)
    assert room.observe(1_000, 10_000) == AGAIN
    assert refused(room) == (False, False)


def test_appends_count_between_two_looks() -> None:
    """A fast producer does not run past either limit until the next one."""
    room = DiskRoom(1_000, 5_000)
    room.observe(1_100, 10_000, 100)
    room.on_written(100)
    assert refused(room) == (False, False)
    room.on_written(1)
    assert refused(room) == (True, False)
    room.on_written(5_000)
    assert refused(room) == (True, True)
    assert room.statistics().free_bytes == 0


def test_the_limit_suits_the_disk_by_default() -> None:
    """512 MiB, and less on a small disk; 0 keeps nothing."""
    room = DiskRoom()
    room.observe(FREE_BYTES_KEPT, 100 * GIB)
    assert room.statistics()[:2] == (FREE_BYTES_KEPT, FREE_BYTES_KEPT)
    room.observe(FREE_BYTES_KEPT, GIB)
    assert room.statistics().free_bytes_min == GIB // 20
    room = DiskRoom(0)
    room.observe(0, GIB)
    room.on_written(5)
    assert refused(room) == (False, False)


def test_the_bytes_of_the_logs_bind_leaders_alone() -> None:
    """A follower copies on; the refusal says what to do."""
    room = DiskRoom(0, 1_000)
    assert room.needs_log_bytes
    room.observe(GIB, GIB, 999)
    assert refused(room) == (False, False)
    room.on_written(1)
    assert refused(room) == (True, False)
    with pytest.raises(
        Refused, match=r"have 1000 bytes, and log\.dirs\.max\.bytes is 1000: delete"
    ):
        room.check_records()
    room.observe(GIB, GIB, 0)
    assert refused(room) == (False, False)
