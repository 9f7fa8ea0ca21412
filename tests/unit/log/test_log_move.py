"""When a copy may take the place of its log, and what it takes over."""

from pathlib import PurePath

import pytest

from minibroker.broker.log import log_move
from minibroker.broker.log.log import Log
from minibroker.broker.log.log_move import LogMove
from minibroker.broker.log.outcomes import Damage, LogLocation
from minibroker.broker.turns import without_pause
from tests.unit.log.workbench import NAME, NOW, UNLIMITED, Bench

OTHER_DISK = PurePath("/other/t-0.future")


class Moving:
    """A log of ten records, all but the last durable, and its copy without the last."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        bench.append(9)
        bench.flush()
        future = Log.open(LogLocation(bench.files, OTHER_DISK, NAME), UNLIMITED, now_ms=NOW)
        self.move = LogMove(bench.log, future, bench.files)
        self.catch_up()
        self.move.sync()
        bench.append()

    def catch_up(self) -> int:
        """Copy a slice."""
        return without_pause(self.move.catch_up(NOW))


def test_what_is_missing_at_the_end_is_copied() -> None:
    """In the turn that ends the move, also if it is not durable yet."""
    one = Moving()
    assert one.move.finish(NOW)
    assert (one.move.future.log_end, one.move.future.durable_end) == (10, 9)


def test_a_copy_that_is_less_durable_does_not_take_the_place() -> None:
    """What was acknowledged because it was on the disk would be gone after a power cut."""
    one = Moving()
    one.bench.flush()
    one.catch_up()
    assert not one.move.finish(NOW)
    one.move.sync()
    assert one.move.finish(NOW)


def test_a_copy_that_lacks_much_does_not_take_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop would be held up."""
    one = Moving()
    monkeypatch.setattr(log_move, "LAST_BYTES", 10)
    assert not one.move.is_near_end
    assert not one.move.finish(NOW)
    assert one.catch_up() > 0
    assert one.catch_up() == 0
    assert one.move.finish(NOW)


def test_a_copy_with_other_records_does_not_take_the_place() -> None:
    """The log was truncated and has others of the same offsets."""
    one = Moving()
    one.bench.log.truncate_to(8, NOW)
    one.bench.append(2)
    assert not one.move.finish(NOW)
    one.catch_up()
    one.catch_up()
    one.move.sync()
    assert one.move.finish(NOW)
    assert one.move.future.epochs.entries == one.bench.log.epochs.entries


def test_what_is_not_cached_is_not_read_in_the_loop() -> None:
    """A worker copies it before."""
    one = Moving()
    one.bench.files.evict()
    one.bench.log._segments.active._recent.clear()
    assert not one.move.finish(NOW)
    one.catch_up()
    assert one.move.finish(NOW)


def test_a_damaged_log_is_not_replaced() -> None:
    """Its loss is not hidden by a copy of what is left."""
    one = Moving()
    one.bench.log.damage = Damage(3, "bad")
    assert not one.move.finish(NOW)


def test_a_copy_takes_over_what_has_no_record() -> None:
    """Epochs, a higher start, and who may begin a transaction."""
    one = Moving()
    log, future = one.bench.log, one.move.future
    log.assign_epoch(7, log.log_end)
    log.raise_start(4)
    assert one.move.finish(NOW)
    assert future.epochs.entries == log.epochs.entries
    assert future.log_start == 4
    assert future.verifications is log.verifications
