"""Truncation and restart (A13, A12, rows REC-11, EPO-08), and retention (LOG-13, LOG-14)."""

from dataclasses import replace

import pytest

from minibroker.broker.log.log_segments import NEVER, ExpiredSegments, OldestSegment
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import INT64_MAX, NO_TIMESTAMP
from tests.unit.log.workbench import FOREVER, NOW, Bench, encode, stored

SIZE = len(encode())


def filled(count: int = 7, **limits) -> Bench:
    """Segments of 3 batches of one record each."""
    bench = Bench(**{"segment_bytes": 3 * SIZE, "index_interval_bytes": 0, **limits})
    for step in range(count):
        bench.append(epoch=step // 2, time_ms=NOW + step, producer=(5, 0, step))
    return bench


def test_a_cut_inside_the_active_segment():
    """Batches from the offset on are gone, and so are their epochs and sequences (A13)."""
    bench = filled(6)
    bench.log.truncate_to(4, NOW)
    assert (bench.log.log_end, bench.offsets()) == (4, [0, 1, 2, 3])
    assert bench.log.epochs.entries == ((0, 0), (1, 2))
    assert bench.log.producers.get(5).last_sequence == 3
    assert bench.append(epoch=9, producer=(5, 0, 4)).base_offset == 4
    bench.reopen_killed()
    assert bench.offsets() == [0, 1, 2, 3, 4]


def test_a_cut_of_whole_segments():
    """Later segments and their snapshots are removed (A13)."""
    bench = filled()
    assert bench.names(".snapshot") == [f"{3:020}.snapshot", f"{6:020}.snapshot"]
    bench.log.truncate_to(3, NOW)
    assert bench.bases() == [0, 3]
    assert bench.names(".snapshot") == [f"{3:020}.snapshot"]
    bench.log.truncate_to(2, NOW)
    assert bench.bases() == [0]
    assert bench.names(".snapshot") == []
    assert bench.log.generation == 2


def test_a_batch_goes_whole():
    """A cut inside a batch removes all of it, as a restart would."""
    bench = Bench()
    bench.append(3)
    bench.append(3)
    bench.log.truncate_to(4, NOW)
    assert (bench.log.log_end, bench.offsets()) == (3, [0])


@pytest.mark.parametrize("offset", [1, 3, 4, 6])
def test_a_cut_inside_a_batch_lowers_the_recovery_point_to_its_start(offset):
    """Nothing beyond the end is called durable, nor asked for at the next start (REC-11)."""
    bench = Bench()
    bench.follow(stored(0, 3), stored(3, 2), stored(5, 2))
    bench.flush()
    bench.log.truncate_to(offset, NOW)
    end = bench.log.log_end
    assert (bench.log.recovery_point, bench.truncations) == (end, [end])


def test_a_flush_after_a_roll_syncs_the_indexes_of_the_segment_before():
    """Also if the flush before ended right where the log rolled."""
    bench = filled(3)
    bench.flush()
    bench.append(epoch=9)
    assert len([*bench.log.start_flush().files]) == 4
    bench.flush()
    bench.append(epoch=9)
    assert len([*bench.log.start_flush().files]) == 1


def test_a_flush_meets_segments_that_went_meanwhile():
    """Of what was cut or deleted since it began nothing has to be durable."""
    bench = filled(retention_bytes=0)
    flush = bench.log.start_flush()
    bench.log.truncate_to(4, NOW)
    without_pause(bench.log.apply_retention(4, NOW))
    without_pause(bench.log.remove_deleted_files(NOW + 1000))
    bench.sync(flush)
    assert bench.log.durable_end == 0
    bench.flush()
    assert bench.log.durable_end == 4


def test_a_restart_lowers_what_is_checkpointed_to_the_log_start():
    """A crash between the removal and the new file finds an empty log, no damage (REC-11)."""
    bench = filled()
    bench.flush()
    bench.log.restart_at(50, NOW)
    assert bench.truncations == [0]


def test_a_cut_at_the_end_removes_only_the_epoch_of_a_failed_leadership():
    """Cutting at or above the log end leaves the batches, but no epoch without any (A13)."""
    bench = filled()
    bench.log.assign_epoch(8, 7)
    bench.log.truncate_to(9, NOW)
    assert bench.log.log_end == 7
    assert bench.log.epochs.newest_epoch == 3
    assert bench.log.generation == 0


def test_a_cut_below_everything_restarts_there():
    """Below the first segment all is dropped, and the log goes on at the offset (A13)."""
    bench = filled()
    bench.log.restart_at(50, NOW)
    assert (bench.log.log_start, bench.log.log_end, bench.bases()) == (50, 50, [50])
    assert len(bench.log.producers) == 0
    bench.follow(stored(50, epoch=9))
    bench.log.truncate_to(20, NOW)
    assert (bench.log.log_start, bench.log.log_end, bench.bases()) == (20, 20, [20])
    bench.append(epoch=9)
    bench.reopen_killed()
    assert bench.offsets() == [20]


def test_a_cut_before_the_log_start_lowers_it():
    """logStart = min(logStart, offset) (A13)."""
    bench = filled(3)
    bench.log.log_start = 2
    bench.log.truncate_to(1, NOW)
    assert (bench.log.log_start, bench.log.log_end) == (1, 1)


def test_the_recovery_point_is_lowered_before_the_cut():
    """Who checkpoints is told first, with the log still whole (REC-11)."""
    bench = filled()
    bench.flush()
    seen = []
    bench.before_truncation = lambda offset: seen.append(
        (offset, bench.log.log_end, bench.log.recovery_point)
    )
    bench.log.truncate_to(4, NOW)
    assert seen == [(4, 7, 4)]


def test_a_flush_over_a_cut_proves_nothing():
    """A flush that began before a cut does not raise the recovery point (REC-11)."""
    bench = filled()
    flush = bench.log.start_flush()
    bench.log.truncate_to(4, NOW)
    bench.append(epoch=9)
    bench.sync(flush)
    assert bench.log.recovery_point == 0
    bench.flush()
    assert bench.log.recovery_point == 5


def test_flushing_moves_the_recovery_point_forward_only_after_it():
    """The durable end is what was there when the flush began, once it is finished (REC-11)."""
    bench = filled()
    flush = bench.log.start_flush()
    bench.append(epoch=9)
    assert bench.log.durable_end == 0
    bench.sync(flush)
    assert bench.log.durable_end == 7
    bench.flush()
    assert bench.log.durable_end == 8
    assert [*bench.log.start_flush().files] == []


def test_a_flush_syncs_names_after_a_roll():
    """Directories are part of a flush when files were made since the last one, and only then."""
    bench = filled()
    assert bench.log.start_flush().directories == (
        bench.location.directory,
        bench.location.directory.parent,
    )
    bench.flush()
    bench.append(epoch=9)
    assert bench.log.start_flush().directories == ()


def test_a_cut_is_durable_before_the_log_rolls():
    """Else a power cut may undo the cut and keep the new file, and old batches run on into new."""
    bench = filled(6)
    bench.flush()
    bench.log.truncate_to(4, NOW)
    syncs = bench.files.sync_count
    bench.append(epoch=9)
    bench.append(epoch=9)
    assert bench.files.sync_count == syncs
    bench.append(epoch=9)
    assert bench.bases() == [0, 3, 6]
    assert bench.files.sync_count == syncs + 1
    for _ in range(3):
        bench.append(epoch=9)
    assert bench.files.sync_count == syncs + 1


def test_a_restart_forgets_the_producers():
    """What a dropped log knew says nothing of the one that follows, even at the same offset."""
    bench = filled()
    bench.reopen_clean()
    bench.log.restart_at(7, NOW)
    assert len(bench.log.producers) == 0
    bench.reopen_killed()
    assert len(bench.log.producers) == 0


# -- retention


def test_retention_by_time():
    """A segment goes when its newest record is older than retention.ms, strictly (LOG-14)."""
    bench = filled(retention_ms=100)
    assert without_pause(bench.log.apply_retention(7, NOW + 2 + 100)) == 0
    assert without_pause(bench.log.apply_retention(7, NOW + 2 + 101)) == 1
    assert (bench.log.log_start, bench.bases(), bench.offsets()) == (3, [3, 6], [3, 4, 5, 6])
    assert bench.log.epochs.entries == ((1, 3), (2, 4), (3, 6))


@pytest.mark.parametrize(
    ("time_ms", "says"),
    [(NOW * 1_000_000, "that timestamp is wrong"), (-1, "it has no timestamps")],
)
def test_a_record_with_a_wrong_time_holds_up_no_retention(caplog, time_ms, says):
    """A segment whose largest timestamp is none, or one that would be refused, is as old as its
    file, and what is behind it goes in its turn (LOG-14)."""
    bench = Bench(retention_ms=100, segment_bytes=2 * SIZE)
    bench.append(time_ms=time_ms)
    bench.append(time_ms=time_ms)
    bench.append()
    bench.append()
    bench.append(time_ms=NOW + 140)
    bench.log.limits = replace(bench.limits, timestamp_after_max_ms=50)
    assert bench.bases() == [0, 2, 4]
    with caplog.at_level("INFO"):
        assert without_pause(bench.log.apply_retention(5, NOW + 100)) == 0
        assert without_pause(bench.log.apply_retention(5, NOW + 101)) == 2
    assert bench.offsets() == [4]
    assert says in caplog.text


def test_a_time_that_is_allowed_counts():
    """Where a topic takes times of any future, records are kept until those times have passed."""
    bench = Bench(retention_ms=100)
    bench.append(time_ms=NOW + 5000)
    assert without_pause(bench.log.apply_retention(1, NOW + 5100)) == 0
    assert without_pause(bench.log.apply_retention(1, NOW + 5101)) == 1


def test_retention_by_size():
    """A segment goes only if the log keeps retention.bytes without it (LOG-14)."""
    assert without_pause(filled(retention_bytes=4 * SIZE + 1).log.apply_retention(7, NOW)) == 0
    assert without_pause(filled(retention_bytes=4 * SIZE).log.apply_retention(7, NOW)) == 1
    assert without_pause(filled(retention_bytes=1).log.apply_retention(7, NOW)) == 2


@pytest.mark.parametrize(
    ("limits", "start", "says"),
    [
        ({"retention_ms": 0}, 0, "older than retention.ms=0"),
        ({"retention_bytes": 1}, 0, "the log keeps retention.bytes=1 without that"),
        ({}, 6, "below the log start"),
    ],
)
def test_retention_says_what_it_deletes_and_why(caplog, limits, start, says):
    """Records stamped in seconds are 50 years old at once, and nothing else tells of their end."""
    bench = filled(**limits)
    bench.log.raise_start(start)
    with caplog.at_level("INFO"):
        assert without_pause(bench.log.apply_retention(6, NOW + 1000)) == 2
    [line] = [each.getMessage() for each in caplog.records if "retention deletes" in each.message]
    assert "2 segments, up to offset 5, of " in line
    assert "largest timestamp 1970-01-01T00:16:40.005+00:00: " + says in line


def test_a_time_that_no_calendar_has_is_a_number():
    """Records in microseconds lie 50,000 years ahead."""
    told = str(ExpiredSegments("old", 1, 1, 1, 1_700_000_000_000_000_000))
    assert told.startswith("1 segment, up to offset 0, of 1 bytes, ")
    assert told.endswith("largest timestamp 1700000000000000000 ms: old")


def test_nothing_above_the_high_watermark_goes():
    """Segments that end above the high watermark stay (LOG-13)."""
    bench = filled(retention_ms=0)
    assert without_pause(bench.log.apply_retention(5, NOW + 1000)) == 1
    assert without_pause(bench.log.apply_retention(2, NOW + 1000)) == 0


def test_segments_go_one_in_each_turn():
    """A log may have thousands, each with several files: others are served in between. Whatever is
    truncated meanwhile ends it."""
    bench = filled(retention_ms=0)
    turns = bench.log.apply_retention(7, NOW + 1000)
    next(turns)
    assert (bench.log.log_start, bench.bases()) == (7, [3, 6, 7])
    bench.log.restart_at(2, NOW)
    bench.append(epoch=9)
    without_pause(turns)
    assert (bench.bases(), bench.offsets()) == ([2], [2])


def test_when_all_go_a_new_segment_comes_first():
    """A log that loses everything goes on at its end, and stays so (LOG-13)."""
    bench = filled(retention_ms=0)
    assert without_pause(bench.log.apply_retention(7, NOW + 1000)) == 3
    assert (bench.log.log_start, bench.log.log_end, bench.bases()) == (7, 7, [7])
    assert without_pause(bench.log.apply_retention(7, NOW + 9000)) == 0
    bench.reopen_killed()
    assert (bench.log.log_start, bench.log.log_end) == (7, 7)


def test_deleted_files_are_renamed_and_removed_later():
    """Renamed at once, gone after file.delete.delay.ms, or at the next start (LOG-14, REC-09)."""
    bench = filled(retention_ms=0)
    without_pause(bench.log.apply_retention(3, NOW + 1000))
    deleted = [f"{0:020}{suffix}.deleted" for suffix in (".index", ".log", ".timeindex")]
    assert bench.names(".deleted") == deleted
    without_pause(bench.log.remove_deleted_files(NOW + 1999))
    assert bench.names(".deleted") == deleted
    without_pause(bench.log.remove_deleted_files(NOW + 2000))
    assert bench.names(".deleted") == []
    without_pause(bench.log.apply_retention(6, NOW + 3000))
    bench.reopen_killed()
    assert bench.names(".deleted") == []
    assert bench.offsets() == [6]


def test_retention_forgets_no_producer():
    """A producer whose batches were all deleted is still known, after a kill too (PID-12)."""
    bench = filled(retention_ms=0)
    without_pause(bench.log.apply_retention(7, NOW + 1000))
    bench.reopen_killed()
    assert bench.append(epoch=9, producer=(5, 0, 7)).base_offset == 7


def test_retention_needs_no_older_snapshot():
    """The same if only some segments go, and older snapshots were lost in a power cut."""
    bench = filled(3)
    for _ in range(4):
        bench.append(epoch=9, time_ms=NOW + 500)
    for name in bench.names(".snapshot"):
        bench.files.remove(bench.location.directory / name)
    bench.log.limits = replace(bench.limits, retention_ms=100)
    assert without_pause(bench.log.apply_retention(7, NOW + 550)) == 1
    bench.reopen_killed()
    assert bench.append(epoch=9, producer=(5, 0, 3)).base_offset == 7


@pytest.mark.parametrize("room", [0, 30])
def test_retention_works_on_a_full_disk(room):
    """When the disk is full, expired segments can still go."""
    bench = filled(retention_ms=100)
    bench.files.space_bytes = 1 << 40
    bench.files.space_bytes -= bench.files.room() - room
    assert without_pause(bench.log.apply_retention(7, NOW + 2 + 101)) == 1


def test_on_a_full_disk_all_but_the_newest_segment_go():
    """If all are expired a new one must come first, for which there is no room before others go."""
    bench = filled(retention_ms=0)
    bench.files.space_bytes = bench.files.used_bytes
    assert without_pause(bench.log.apply_retention(7, NOW + 1000)) == 2
    assert (bench.log.log_start, bench.bases(), bench.offsets()) == (6, [6], [6])
    without_pause(bench.log.remove_deleted_files(NOW + 9000))
    assert without_pause(bench.log.apply_retention(7, NOW + 9000)) == 1
    assert (bench.log.log_start, bench.log.log_end, bench.bases()) == (7, 7, [7])


def told(bench: Bench, now_ms: int = NOW) -> OldestSegment:
    """What the log tells about its oldest segment."""
    return bench.log.oldest_segment(now_ms)


def test_the_oldest_segment_says_when_it_goes_by_age():
    """When that time is over it is deleted; never, if it is empty or nothing limits its age."""
    bench = filled(retention_ms=100)
    first, size, due_ms, bytes_left = told(bench)
    assert (first, size, bytes_left) == (NOW, bench.log._segments.first.size, NEVER)
    assert without_pause(bench.log.apply_retention(7, due_ms)) == 0
    assert without_pause(bench.log.apply_retention(7, due_ms + 1)) == 1
    assert told(Bench(retention_ms=100, retention_bytes=9)) == (NO_TIMESTAMP, 0, NEVER, NEVER)
    assert told(filled())[2:] == (NEVER, NEVER)
    assert told(filled(retention_ms=INT64_MAX)).due_ms == INT64_MAX


def test_the_oldest_segment_with_a_wrong_time_goes_by_its_last_append():
    """As retention counts it."""
    bench = Bench(retention_ms=100, timestamp_after_max_ms=FOREVER)
    bench.append(time_ms=NOW + 5000)
    bench.log.limits = replace(bench.log.limits, timestamp_after_max_ms=10)
    assert told(bench).due_ms == bench.log._segments.first.modified_ms() + 100


def test_the_oldest_segment_says_after_how_many_bytes_it_goes():
    """Retention deletes it as soon as they are appended; an active one rolls before that."""
    for more in (0, 1, SIZE):
        bench = filled(retention_bytes=4 * SIZE + more)
        assert told(bench).bytes_left == more
        deleted = without_pause(bench.log.apply_retention(7, NOW))
        assert deleted == (0 if more else 1)
    alone = Bench(retention_bytes=SIZE, segment_bytes=3 * SIZE)
    alone.append()
    assert told(alone).bytes_left == 2 * SIZE + SIZE
    assert told(filled(retention_bytes=INT64_MAX)).bytes_left <= INT64_MAX


def test_a_segment_below_the_log_start_is_due():
    """Whatever the limits are."""
    bench = filled()
    bench.log.raise_start(bench.log._segments[1].base_offset)
    assert told(bench)[2:] == (NOW, 0)
