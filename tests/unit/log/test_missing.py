"""Files that somebody took away: a log whose front or directory is gone says so (REC-03)."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.recovery import accept_damage
from minibroker.broker.turns import without_pause
from minibroker.testing.disk import SimulatedFiles, Stopped
from tests.unit.log.test_directory import flush
from tests.unit.log.test_manager import ID, OTHER_ID, ROOT, A, B, append, disk, start, with_logs
from tests.unit.log.workbench import NOW, UNLIMITED, encode

LOG_STARTS = ROOT / "log-start-offset-checkpoint"
SMALL = replace(UNLIMITED, segment_bytes=2 * len(encode()), file_delete_delay_ms=0)


def with_segments(files: SimulatedFiles) -> LogManager:
    """Logs A with segments from 0, 2 and 4 on, and 5 records; all is synced and checkpointed."""
    manager = start(files)
    append_to(manager.create(A, ID, SMALL, NOW), 5)
    checkpoint(files, manager)
    return manager


def append_to(log, count: int) -> None:
    for _ in range(count):
        log.append_as_leader(memoryview(encode()), 0, NOW)


def checkpoint(files: SimulatedFiles, manager: LogManager) -> None:
    for log in manager.logs.values():
        flush(files, log)
    manager.record_high_watermarks({name: log.log_end for name, log in manager.logs.items()})
    manager.checkpoint_recovery_points()
    manager.checkpoint_high_watermarks()
    manager.checkpoint_log_starts()


def remove_first_segment(files: SimulatedFiles) -> None:
    files.remove(ROOT / str(A) / f"{0:020}.log")


def state(manager: LogManager) -> tuple[int, int, int | None]:
    """Start, end, and from where on there is damage."""
    log = manager.get(A)
    return log.log_start, log.log_end, log.damage and log.damage.offset


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_missing_first_segment_is_damage_until_it_is_accepted(is_clean, boot):
    """The log start is checkpointed, so a later first segment is a loss, at every start."""
    files = disk()
    manager = with_segments(files)
    if is_clean:
        manager.close({A: 5})
    files.kill()
    remove_first_segment(files)
    for _ in range(2):
        assert state(start(files, boot=boot)) == (2, 5, 0)
        files.kill()
    accept_damage(files, ROOT / str(A))
    assert state(start(files, boot=boot)) == (2, 5, None)


def test_a_directory_that_is_put_back_is_whole():
    """As long as nobody accepted the loss nothing is done that could not be undone."""
    files = disk()
    with_segments(files).close({A: 5})
    files.rename(ROOT / str(A), ROOT / "elsewhere")
    manager = start(files)
    manager.checkpoint_log_starts()
    manager.close({A: 5})
    files.remove_tree(ROOT / str(A))
    files.rename(ROOT / "elsewhere", ROOT / str(A))
    assert state(start(files)) == (0, 5, None)


def test_a_second_loss_is_told_from_an_accepted_one():
    """What was given up is the first part of the log only."""
    files = disk()
    with_segments(files).close({A: 5})
    remove_first_segment(files)
    start(files).close({A: 5})
    accept_damage(files, ROOT / str(A))
    start(files).close({A: 5})
    files.remove(ROOT / str(A) / f"{2:020}.log")
    assert state(start(files)) == (4, 5, 2)


def test_all_segments_of_a_log_are_missing():
    """It goes on at its end: no offset is given out twice."""
    files = disk()
    with_segments(files).close({A: 5})
    for name in files.list(ROOT / str(A)):
        if name != "partition.metadata":
            files.remove(ROOT / str(A) / name)
    assert state(start(files)) == (5, 5, 0)


@pytest.mark.parametrize("is_gone", ["the only segment", "all but the last"])
def test_a_young_log_misses_its_front_too(is_gone):
    """A log that no log start was checkpointed of yet starts at 0: what is gone there is damage."""
    files = disk()
    manager = start(files)
    limits = UNLIMITED if is_gone == "the only segment" else SMALL
    append_to(manager.create(A, ID, limits, NOW), 5)
    manager.record_high_watermarks({A: 5})
    manager.checkpoint_high_watermarks()
    files.kill()
    remove_first_segment(files)
    assert state(start(files))[2] == 0


@pytest.mark.parametrize("offset", [1, 4])
def test_a_young_log_that_was_restarted_misses_nothing(offset):
    """A start that moves is written down at once, also of a log that was never checkpointed."""
    files = disk()
    manager = start(files)
    log = manager.create(A, ID, SMALL, NOW)
    append_to(log, 2)
    log.restart_at(offset, NOW)
    append_to(log, 1)
    manager.record_high_watermarks({A: offset + 1})
    manager.checkpoint_high_watermarks()
    files.kill()
    assert state(start(files)) == (offset, offset + 1, None)


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_without_a_checkpoint_nothing_is_said(content):
    """Then a log begins where its first segment does."""
    files = disk()
    with_segments(files).close({A: 5})
    remove_first_segment(files)
    files.remove(LOG_STARTS)
    if content is not None:
        files.write_atomic(LOG_STARTS, content)
    assert state(start(files)) == (2, 5, None)


@pytest.mark.parametrize("is_full", [False, True])
def test_what_retention_took_is_no_damage(is_full):
    """The log start is checkpointed before the segments go; on a full disk nothing is said."""
    files = disk()
    manager = with_segments(files)
    manager.get(A).limits = replace(SMALL, retention_ms=10)
    if is_full:
        files.space_bytes = 0
    assert without_pause(manager.apply_retention(A, 4, NOW + 1000)) == 2
    assert files.exists(LOG_STARTS) == (not is_full)
    files.space_bytes = None
    files.kill()
    assert state(start(files)) == (4, 5, None)


@pytest.mark.parametrize("offset", [300, 50])
def test_a_crash_around_a_restart_is_no_damage(offset):
    """A log that goes on at a later or an earlier offset, and dies at any operation (REC-08)."""
    total = restarted(offset, None)
    for count in range(total):
        restarted(offset, count)


def restarted(offset: int, stop_at: int | None) -> int:
    files = disk()
    manager = with_segments(files)
    manager.get(A).restart_at(100, NOW)
    append_to(manager.get(A), 5)
    checkpoint(files, manager)
    before = files.operation_count
    if stop_at is not None:
        files.stop_at(stop_at)
    with suppress(Stopped):
        manager.get(A).restart_at(offset, NOW)
        append_to(manager.get(A), 1)
        flush(files, manager.get(A))
        manager.checkpoint_recovery_points()
    done = files.operation_count - before
    files.kill()
    start_, end, damage = state(start(files))
    assert damage is None
    assert stop_at is not None or (start_, end) == (offset, offset + 1)
    return done


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_missing_directory_is_damage(is_clean):
    """In its place is an empty log that goes on where the lost one ended, and says what is lost."""
    files = disk()
    manager = with_segments(files)
    if is_clean:
        manager.close({A: 5})
    files.kill()
    files.remove_tree(ROOT / str(A))
    manager = start(files)
    assert (state(manager), manager.statistics().damaged) == ((5, 5, 0), (A,))
    manager.claim(A, ID)
    files.kill()
    manager = start(files)
    assert (state(manager), manager.get(A).topic_id) == ((5, 5, 0), ID)
    files.kill()
    accept_damage(files, ROOT / str(A))
    assert state(start(files)) == (5, 5, None)


def test_a_missing_directory_is_not_forgotten_with_the_checkpoints():
    """What was made in its place says so, though it does not name its topic yet."""
    files = disk()
    with_segments(files).close({A: 5})
    files.remove_tree(ROOT / str(A))
    start(files)
    files.kill()
    for name in files.list(ROOT):
        if name.endswith("-checkpoint"):
            files.remove(ROOT / name)
    assert state(start(files)) == (5, 5, 0)


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_missing_directory_is_not_forgotten_by_a_crash(is_power_cut):
    """A start that dies at any operation leaves it to be found by the next."""
    for count in range(200):
        files = SimulatedFiles(random.Random(count))
        with_segments(files).close({A: 5})
        files.remove_tree(ROOT / str(A))
        files.sync_dir(ROOT)
        files.stop_at(count)
        died = False
        try:
            start(files)
        except Stopped:
            died = True
        if is_power_cut:
            files.power_off()
        else:
            files.kill()
        assert state(start(files, boot="boot-2" if is_power_cut else "boot-1")) == (5, 5, 0)
        if not died:
            return
    raise AssertionError("the start never ended")


@pytest.mark.parametrize("kind", ["deleted", "removed", "stray"])
def test_a_log_that_went_through_us_is_not_missed(kind):
    """What a checkpoint still says of it is no reason to look for it."""
    files = disk()
    manager = with_logs(files)
    checkpoint(files, manager)
    if kind == "stray":
        manager.set_aside(B)
    else:
        manager.delete(B, NOW)
    if kind == "removed":
        without_pause(manager.remove_deleted_files(NOW + 1000))
    files.kill()
    assert [*start(files).logs] == [A]
    files.kill()
    assert [*start(files).logs] == [A]


def test_a_new_log_of_the_name_is_not_missed_instead_of_a_deleted_one():
    """A log that was deleted and made again, and is lost after a clean stop, is damage."""
    files = disk()
    manager = with_segments(files)
    manager.delete(A, NOW)
    manager.create(A, OTHER_ID, SMALL, NOW)
    append(manager, A, 3)
    manager.close({A: 3})
    files.remove_tree(ROOT / str(A))
    assert state(start(files)) == (3, 3, 0)


def empty(files: SimulatedFiles, name: str) -> None:
    """Leave a file of log A without a byte, as a power cut may."""
    files.write_atomic(ROOT / str(A) / name, b"")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"topic_id: A", bytes(44)])
def test_a_log_without_its_topic_is_damaged(content, is_clean):
    """Its records may be another topic's: it is damaged until it is replicated again, or until an
    operator accepts it. Then its topic claims it, and a second loss is damage again."""
    files = disk()
    manager = with_segments(files)
    if is_clean:
        manager.close({A: 5})
    path = ROOT / str(A) / "partition.metadata"
    for _ in range(2):
        files.kill()
        files.remove(path)
        if content is not None:
            files.write_atomic(path, content)
        manager = start(files)
        assert (state(manager), manager.damaged) == ((0, 5, 0), (A,))
        manager.claim(A, ID)
        assert state(manager) == (0, 5, 0)
        files.kill()
        manager = start(files)
        assert (state(manager), manager.get(A).topic_id) == ((0, 5, 0), ID)
        files.kill()
        files.remove(path)
        assert state(start(files)) == (0, 5, 0)
        files.kill()
        accept_damage(files, ROOT / str(A))
        manager = start(files)
        assert (state(manager), manager.get(A).topic_id) == ((0, 5, None), b"")
        manager.claim(A, ID)
        manager.close({A: 5})


def test_a_log_that_was_replicated_again_is_damaged_by_a_second_loss():
    """The mark ends with the first one."""
    files = disk()
    with_segments(files).close({A: 5})
    empty(files, "partition.metadata")
    manager = start(files)
    manager.claim(A, ID)
    manager.get(A).truncate_to(0, NOW)
    manager.get(A).accept_damage()
    append_to(manager.get(A), 3)
    files.kill()
    assert state(start(files)) == (0, 3, None)
    files.kill()
    empty(files, "partition.metadata")
    assert state(start(files)) == (0, 3, 0)


def test_an_empty_log_without_its_topic_is_no_loss():
    """A power cut after a creation: there never was a record."""
    files = disk()
    start(files).create(A, ID, UNLIMITED, NOW)
    files.kill()
    empty(files, "partition.metadata")
    manager = start(files)
    assert (state(manager), manager.get(A).topic_id) == ((0, 0, None), b"")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("base", [0, 2, 4])
def test_a_segment_without_a_byte_is_damage(base, is_clean):
    """A checkpoint says that there were records. What is left behind the gap is kept aside."""
    files = disk()
    manager = with_segments(files)
    if is_clean:
        manager.close({A: 5})
    files.kill()
    empty(files, f"{base:020}.log")
    assert state(start(files)) == (0, base, base)
    files.kill()
    assert state(start(files))[2] == base


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_high_watermark_alone_tells_that_records_are_missing(boot):
    """After a clean stop, with the recovery points unreadable."""
    files = disk()
    manager = start(files)
    append_to(manager.create(A, ID, UNLIMITED, NOW), 5)
    manager.close({A: 5})
    files.remove(ROOT / "recovery-point-offset-checkpoint")
    empty(files, f"{0:020}.log")
    assert state(start(files, boot=boot)) == (0, 0, 0)
