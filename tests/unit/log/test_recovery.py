"""Opening a log after a clean stop, a kill, a power cut, and rot (rows REC, PID-13, PID-14)."""

import pytest

from minibroker.broker.log.outcomes import LastKnownState
from minibroker.protocol.epoch_history import EpochStart
from tests.unit.log.workbench import DIRECTORY, NOW, Bench, encode, stored

SIZE = len(encode())
KILLED = LastKnownState(same_boot=True)
POWER_CUT = LastKnownState()


def filled(count: int = 7, **limits) -> Bench:
    """Segments of 3 batches of one record each; all killed without a close."""
    bench = Bench(**{"segment_bytes": 3 * SIZE, "index_interval_bytes": 0, **limits})
    for step in range(count):
        bench.append(epoch=step // 2, time_ms=NOW + step, producer=(5, 0, step))
    return bench


def add(bench: Bench, base_offset: int, data: bytes) -> None:
    """Write bytes behind a segment's end."""
    bench.files.open(bench.path(base_offset)).append([data])


def lose(bench: Bench, base_offset: int, count: int) -> None:
    """Take bytes from a segment's end."""
    file = bench.files.open(bench.path(base_offset))
    file.truncate(file.size - count)


def kept(bench: Bench) -> list[str]:
    """The files that keep lost records."""
    return bench.names(".damaged")


def test_a_clean_log_is_not_read():
    """After a clean stop sealed segments are not scanned, and the recovery point is the end."""
    bench = filled()
    bench.log.close()
    bench.files.flip(bench.path(0), SIZE + 70)
    bench.open(LastKnownState(is_clean=True))
    assert bench.log.damage is None
    assert (bench.log.log_end, bench.log.recovery_point) == (7, 7)


def test_only_what_is_behind_the_recovery_point_is_read():
    """Segments before the one that holds the recovery point are taken as they are (REC-02)."""
    bench = filled()
    for base_offset in (0, 3):
        bench.files.flip(bench.path(base_offset), SIZE - 1)
    bench.open(LastKnownState(recovery_point=7, same_boot=True))
    assert bench.log.damage is None
    bench.open(LastKnownState(recovery_point=4, same_boot=True))
    assert bench.log.damage.offset == 3


@pytest.mark.parametrize("opening", [KILLED, POWER_CUT])
@pytest.mark.parametrize("tail", [b"\x00" * 500, b"\xff" * 70, b"x", encode()[:-1]])
def test_a_torn_tail_is_cut(opening, tail):
    """Garbage or half a batch at the end is cut, silently, and leaves nothing behind (REC-03)."""
    bench = filled()
    add(bench, 6, tail)
    bench.open(opening)
    assert bench.log.damage is None
    assert kept(bench) == []
    assert (bench.log.log_end, bench.log.size) == (7, 7 * SIZE)
    assert bench.append(epoch=9).base_offset == 7
    assert bench.offsets() == list(range(8))


@pytest.mark.parametrize("opening", [KILLED, POWER_CUT])
def test_a_batch_inside_a_torn_one_is_no_damage(opening):
    """A producer may send batches as values (a backup of a log); they are no log."""
    bench = filled()
    value = encode(value=b"inner") + bytes(200)
    add(bench, 6, stored(7, epoch=9, value=bytes(value))[:-100])
    bench.open(opening)
    assert bench.log.damage is None
    assert bench.log.log_end == 7


def test_a_rotted_length_is_damage():
    """It reaches beyond the file, like a torn batch; but the batch behind it continues it."""
    bench = filled(5, segment_bytes=5 * SIZE)
    bench.files.flip(bench.path(0), SIZE + 9, 3)
    bench.open(KILLED)
    assert bench.log.damage.offset == 1


def test_a_valid_batch_behind_a_bad_one_is_damage():
    """It is no torn tail: the bytes are kept, and every start says so until given up (REC-03)."""
    bench = filled(9, segment_bytes=5 * SIZE)
    bytes_before = bench.files.read_bytes(bench.path(5))
    bench.files.flip(bench.path(5), SIZE + 40)
    for opening in (POWER_CUT, KILLED, LastKnownState(is_clean=True, recovery_point=6)):
        bench.open(opening)
        assert bench.log.damage.offset == 6
        assert (bench.log.log_end, bench.offsets()) == (6, list(range(6)))
        assert kept(bench) == [f"{6:020}.damaged"]
        aside = bytearray(bench.files.read_bytes(DIRECTORY / kept(bench)[0]))
        aside[40] ^= 1
        assert aside == bytes_before[SIZE:]
        bench.log.abandon()
    bench.open(KILLED)
    bench.log.accept_damage()
    assert bench.log.damage is None
    bench.open(KILLED)
    assert bench.log.damage is None
    assert bench.names(".damaged-accepted") == [f"{6:020}.damaged-accepted"]


def test_whole_segments_behind_a_bad_batch_are_kept_aside():
    """While the machine runs, nothing but damage explains them (REC-03)."""
    bench = filled()
    lose(bench, 0, 1)
    bench.open(KILLED)
    assert bench.log.damage.offset == 2
    assert kept(bench) == [f"{offset:020}.damaged" for offset in (2, 3, 6)]
    assert bench.bases() == [0]
    assert bench.offsets() == [0, 1]


def test_segments_behind_a_hole_are_a_lost_tail_after_a_power_cut():
    """What was not synced may be lost in any order; it vanishes from the end only."""
    bench = filled()
    lose(bench, 3, 2 * SIZE)
    bench.open(POWER_CUT)
    assert bench.log.damage is None
    assert (bench.offsets(), bench.bases()) == ([0, 1, 2, 3], [0, 3])


def test_a_cut_that_a_power_cut_undid_is_found():
    """A segment that ends at the recovery point is looked at, too: it may have grown back."""
    bench = filled()
    add(bench, 0, stored(3, epoch=1))
    bench.open(LastKnownState(recovery_point=3))
    assert bench.log.damage is None
    assert bench.offsets() == [0, 1, 2, 3]
    assert bench.bases() == [0]


def test_old_batches_behind_new_ones_are_no_log():
    """A segment of an older epoch, back after a power cut, does not continue a newer one."""
    bench = Bench(segment_bytes=3 * SIZE)
    bench.follow(*(stored(offset, epoch=5) for offset in range(3)))
    bench.follow(stored(3, epoch=7))
    other = bench.files.open(bench.path(0))
    other.truncate(0)
    other.append([stored(offset, epoch=8) for offset in range(3)])
    bench.open(POWER_CUT)
    assert bench.log.damage is None
    assert [(h.base_offset, h.leader_epoch) for h in bench.headers()] == [(0, 8), (1, 8), (2, 8)]


def test_after_a_power_cut_snapshots_above_the_recovery_point_are_not_used():
    """They may be of a past that was cut; the batches are asked instead."""
    bench = filled()
    other = filled()
    other.append(epoch=9, producer=(77, 0, 0))
    other.log.close()
    data = other.files.read_bytes(other.path(8, ".snapshot"))
    bench.files.write_atomic(bench.path(6, ".snapshot"), data)
    bench.open(LastKnownState(recovery_point=4))
    assert bench.log.producers.get(77) is None
    assert bench.log.producers.get(5).last_sequence == 6


@pytest.mark.parametrize("opening", [POWER_CUT, KILLED])
def test_an_end_below_the_recovery_point_is_damage(opening):
    """What was synced must be there (REC-03)."""
    bench = filled()
    lose(bench, 6, 1)
    bench.open(LastKnownState(recovery_point=7, same_boot=opening.same_boot))
    assert bench.log.damage.offset == 6
    assert kept(bench) == [f"{6:020}.damaged"]
    bench.open(KILLED)
    assert bench.log.damage.offset == 6


def test_an_end_below_the_high_watermark():
    """Damage while the machine runs, a lost tail after a power cut (REC-03)."""
    bench = filled()
    lose(bench, 6, SIZE)
    bench.open(LastKnownState(high_watermark=7))
    assert bench.log.damage is None
    bench.open(LastKnownState(high_watermark=7, same_boot=True))
    assert bench.log.damage.offset == 6


@pytest.mark.parametrize(
    ("opening", "high_watermark"),
    [
        (LastKnownState(high_watermark=6, recovery_point=4), 4),
        (LastKnownState(high_watermark=6, recovery_point=4, same_boot=True), 6),
        (LastKnownState(high_watermark=3, recovery_point=4), 3),
        (LastKnownState(high_watermark=9, recovery_point=7, is_clean=True), 7),
    ],
)
def test_how_much_of_a_high_watermark_is_believed(opening, high_watermark):
    """After a power cut only what was synced: a cut behind that may have been undone (A8, A11)."""
    bench = filled()
    bench.open(opening)
    assert bench.log.checkpointed_high_watermark == high_watermark


@pytest.mark.parametrize("position", range(0, 2 * SIZE, 3))
def test_a_flipped_bit_never_changes_a_record(position):
    """Whatever bit rots in what is scanned is damage, and what is left is unchanged.

    Offset and epoch of a batch lie outside its CRC (a leader writes them): there the batches
    behind it tell, not the batch itself.
    """
    bench = filled(6)
    before = b"".join(part.read() for part in bench.log.read(0, 1 << 20, 6))
    bench.files.flip(bench.path(3), position)
    bench.open(KILLED)
    assert bench.log.damage is not None
    after = b"".join(part.read() for part in bench.log.read(0, 1 << 20, bench.log.log_end))
    if position % SIZE >= 17:
        assert len(after) == (3 + position // SIZE) * SIZE
        assert before.startswith(after)


def test_indexes_and_epochs_are_made_from_the_batches():
    """Recovery rebuilds indexes and the epoch cache (REC-05, REC-07)."""
    bench = filled()
    entries = bench.log.epochs.entries
    for name in bench.names():
        if not name.endswith(".log"):
            bench.files.remove(DIRECTORY / name)
    bench.open(KILLED)
    assert bench.log.epochs.entries == entries
    assert bench.names(".index") == [f"{0:020}.index", f"{3:020}.index"]
    assert [bench.offsets(offset)[0] for offset in range(7)] == list(range(7))
    assert bench.offset_at(NOW + 4, 7).offset == 4
    assert bench.log.producers.get(5).last_sequence == 6


@pytest.mark.parametrize("text", [b"", b"garbage", b"0\n1\n0 0\n", b"0\n2\n0 0\n1 1\n"])
@pytest.mark.parametrize(
    "opening", [LastKnownState(recovery_point=7), LastKnownState(is_clean=True)]
)
def test_an_epoch_file_that_disagrees_with_the_batches_is_made_anew(text, opening):
    """A lost, damaged or old epoch file is rebuilt, after a clean stop too (A11)."""
    bench = filled()
    entries = bench.log.epochs.entries
    bench.log.close()
    bench.files.write_atomic(DIRECTORY / "leader-epoch-checkpoint", text)
    bench.open(opening)
    assert bench.log.epochs.entries == entries


@pytest.mark.parametrize(
    "opening", [LastKnownState(recovery_point=7), LastKnownState(is_clean=True)]
)
def test_an_epoch_file_that_lacks_the_first_batches_is_made_anew(opening):
    """Retention died after it had cut the file, and before a segment was gone (REC-07)."""
    bench = filled()
    entries = bench.log.epochs.entries
    bench.log.close()
    bench.files.write_atomic(DIRECTORY / "leader-epoch-checkpoint", b"0\n3\n1 3\n2 4\n3 6\n")
    bench.open(opening)
    assert bench.log.epochs.entries == entries


def test_epochs_are_fitted_to_the_log():
    """On open, entries at or behind the end go, and the head is fitted to the start (REC-07)."""
    bench = filled()
    bench.log.assign_epoch(9, 7)
    bench.log.abandon()
    bench.open(LastKnownState(same_boot=True, log_start=3))
    assert bench.log.log_start == 3
    assert bench.log.epochs.entries == (EpochStart(1, 3), EpochStart(2, 4), EpochStart(3, 6))


def test_a_log_that_ends_below_its_start_is_emptied():
    """If the checkpointed start lies above the end, the log goes on empty there (REC-08)."""
    bench = filled()
    bench.open(LastKnownState(log_start=50))
    assert (bench.log.log_start, bench.log.log_end, bench.bases()) == (50, 50, [50])
    assert bench.append(epoch=9).base_offset == 50


def test_leftovers_are_removed():
    """Files of interrupted operations go at the next opening (REC-09)."""
    bench = filled()
    for name in (f"{0:020}.log.deleted", "leader-epoch-checkpoint.tmp", f"{3:020}.log.cleaned"):
        bench.files.write_atomic(DIRECTORY / name, b"x")
    bench.open(KILLED)
    assert not bench.names(".deleted") + bench.names(".tmp") + bench.names(".cleaned")


def test_opening_twice_gives_the_same_log():
    """Recovery of a recovered log changes nothing (REC-09)."""
    bench = filled()
    add(bench, 6, b"garbage")
    states = []
    for _ in range(3):
        bench.open(KILLED)
        states.append((bench.log.statistics(), bench.log.epochs.entries, bench.headers()))
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "missing"])
def test_bad_snapshots_are_deleted_and_older_ones_used(how):
    """With no good one left, the replay starts at the first batch (PID-13, PID-14)."""
    bench = filled()
    before = bench.log.producers.get(5).batches
    bench.log.close()
    paths = [DIRECTORY / name for name in bench.names(".snapshot")]
    for count in range(1, len(paths) + 1):
        for path in paths[-count:]:
            good = bench.files.read_bytes(path) if bench.files.exists(path) else b"\0" * 40
            bad = {"empty": b"", "cut": good[:-1], "flipped": bytes([good[0] ^ 1]) + good[1:]}
            bench.files.remove(path)
            if how != "missing":
                bench.files.write_atomic(path, bad[how])
        bench.open(LastKnownState(is_clean=True))
        assert bench.log.producers.get(5).batches == before
        assert [path for path in paths[-count:] if bench.files.exists(path)] == []


def test_snapshots_behind_the_end_are_removed():
    """A snapshot of an offset that the log does not have is of another past (PID-16)."""
    bench = filled()
    data = bench.files.read_bytes(bench.path(6, ".snapshot"))
    bench.files.write_atomic(bench.path(90, ".snapshot"), data)
    bench.open(KILLED)
    assert f"{90:020}.snapshot" not in bench.names()


def test_a_snapshot_is_taken_at_each_roll():
    """Named by the new segment's base (PID-16)."""
    bench = filled()
    assert bench.names(".snapshot") == [f"{3:020}.snapshot", f"{6:020}.snapshot"]
    bench.log.close()
    assert bench.names(".snapshot")[-1] == f"{7:020}.snapshot"


def test_a_recovered_log_is_durable_only_after_a_flush():
    """After an unclean stop the recovery point stays where it was until fsync returned."""
    bench = filled()
    bench.open(LastKnownState(recovery_point=2, same_boot=True))
    assert bench.log.durable_end == 2
    bench.flush()
    assert bench.log.durable_end == 7


def test_closing_twice_and_after_an_abandon():
    """Both calls return."""
    bench = filled()
    bench.log.close()
    bench.log.close()
    bench.log.abandon()


def test_statistics():
    """What a log says of itself."""
    statistics = filled().log.statistics()
    assert (statistics.log_start, statistics.log_end, statistics.segment_count) == (0, 7, 3)
    assert (statistics.size, statistics.producer_count) == (7 * SIZE, 1)
    assert (statistics.recovery_point, statistics.is_damaged) == (0, False)
