"""What lies in a data directory: ours, on its way out, or somebody else's (rows N4, REC-09)."""

import random
from dataclasses import replace

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.log.directory import DataDirectoryError, RunMarks
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.turns import without_pause
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles
from tests.unit.log.test_manager import (
    ID,
    OTHER_ID,
    ROOT,
    A,
    B,
    append,
    disk,
    ends,
    start,
    with_logs,
)
from tests.unit.log.workbench import NOW, UNLIMITED, encode


def test_a_deleted_log_frees_its_name_at_once():
    """Its directory is renamed, and removed after file.delete.delay.ms."""
    files = disk()
    manager = with_logs(files)
    [part] = manager.get(A).read(0, 1000, 3)
    manager.delete(A, NOW)
    assert manager.get(A) is None
    assert f"a-b.c-0.{ID.hex()}-delete" in files.list(ROOT)
    manager.create(A, OTHER_ID, UNLIMITED, NOW)
    assert ends(manager) == {A: 0, B: 5}
    without_pause(manager.remove_deleted_files(NOW + 999))
    assert len(part.read()) == 3 * len(encode())
    without_pause(manager.remove_deleted_files(NOW + 1000))
    assert not part.is_valid()
    assert not [name for name in files.list(ROOT) if name.endswith("-delete")]


def test_a_deleted_log_is_gone_after_a_restart():
    """What was on its way out at a crash is removed at the next start (REC-09)."""
    files = disk()
    with_logs(files).delete(A, NOW)
    files.kill()
    assert ends(start(files)) == {B: 5}
    assert not [name for name in files.list(ROOT) if name.endswith("-delete")]


def test_a_stray_log_is_kept():
    """Data that nobody knows is set aside and never deleted (N4)."""
    files = disk()
    manager = with_logs(files)
    manager.set_aside(A)
    manager.close({})
    manager = start(files)
    assert ends(manager) == {B: 5}
    [name] = manager.statistics().strays
    assert files.read_bytes(ROOT / name / f"{0:020}.log")
    manager.create(A, ID, UNLIMITED, NOW)
    manager.set_aside(A)
    assert len(manager.statistics().strays) == 2


def test_the_longest_topic_name_can_be_deleted():
    """The renamed directory's name still fits a file system."""
    files = disk()
    manager = start(files)
    name = TopicPartition("t" * 249, 0)
    manager.create(name, ID, UNLIMITED, NOW)
    manager.delete(name, NOW)
    assert max(len(entry) for entry in files.list(ROOT)) <= 255


def test_what_is_left_of_a_creation_is_removed():
    """A directory without a topic id and without a record was never used."""
    files = disk()
    start(files).close({})
    files.make_dir(ROOT / "new-0")
    files.open(ROOT / "new-0" / f"{0:020}.log", create=True).close()
    files.make_dir(ROOT / "not a log")
    manager = start(files)
    assert manager.logs == {}
    assert not files.exists(ROOT / "new-0")
    assert files.exists(ROOT / "not a log")


def test_a_log_without_a_topic_id_is_kept():
    """Records are never thrown away because a file about them is missing."""
    files = disk()
    with_logs(files).close({})
    files.remove(ROOT / "b-12" / "partition.metadata")
    manager = start(files)
    assert (manager.get(B).log_end, manager.get(B).topic_id) == (5, b"")


@pytest.mark.parametrize("kind", ["deleted", "stray"])
def test_a_new_log_does_not_inherit_the_checkpoints_of_its_namesake(kind):
    """Else a crash would find it damaged, or shorter than its start, and empty it."""
    files = disk()
    manager = with_logs(files)
    manager.get(B).restart_at(500, NOW)
    append(manager, B, 5)
    flush(files, manager.get(B))
    manager.record_high_watermarks({B: 505})
    manager.checkpoint_high_watermarks()
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_starts()
    if kind == "deleted":
        manager.delete(B, NOW)
    else:
        manager.set_aside(B)
    files.space_bytes = 0
    with pytest.raises(Refused):
        manager.create(B, ID, UNLIMITED, NOW)
    files.space_bytes = None
    manager.create(B, ID, UNLIMITED, NOW)
    append(manager, B, 20)
    files.kill()
    log = start(files).get(B)
    assert (log.log_start, log.log_end, log.damage) == (0, 20, None)


@pytest.mark.parametrize(
    "directory", ["photos-2024", "do-not-delete", "b-012", "my topic-3", "b-13", "lost+found", "-1"]
)
def test_a_foreign_directory_is_left_alone(directory):
    """What is not ours is neither read nor removed, however it is named."""
    files = disk()
    with_logs(files).close({})
    files.make_dir(ROOT / directory)
    files.write_atomic(ROOT / directory / "a.jpg", b"x")
    if " " in directory:
        files.write_atomic(ROOT / directory / f"{0:020}.log", encode())
    manager = start(files)
    assert ends(manager) == {A: 3, B: 5}
    manager.close({})
    assert ends(start(files)) == {A: 3, B: 5}
    assert files.read_bytes(ROOT / directory / "a.jpg") == b"x"


def test_a_foreign_directory_makes_room_for_a_log():
    """It is renamed, as a stray log is, and kept."""
    files = disk()
    manager = start(files)
    files.make_dir(ROOT / "b-12")
    files.write_atomic(ROOT / "b-12" / "a.jpg", b"x")
    manager.create(B, ID, UNLIMITED, NOW)
    [name] = manager.statistics().strays
    assert files.list(ROOT / name) == ["a.jpg"]


@pytest.mark.parametrize("text", [b"", b"topic_id: A", b"topic_id: \xff\xfe", b"topic_id"])
def test_an_unreadable_topic_id_is_none(text):
    """Records are kept, and the start goes on."""
    files = disk()
    with_logs(files).close({})
    files.write_atomic(ROOT / "b-12" / "partition.metadata", text)
    manager = start(files)
    assert (manager.get(B).log_end, len(manager.get(B).topic_id) in (0, 16)) == (5, True)


def test_a_directory_without_a_boot_id_is_not_taken_for_a_new_one():
    """If it has logs they are checked, and nobody says that their tails are safe."""
    files = disk()
    with_logs(files)
    files.kill()
    files.remove(ROOT / "boot-id")
    assert not start(files).tail_safe


def flush(files: SimulatedFiles, log: Log) -> None:
    """Make all of a log durable."""
    flush = log.start_flush()
    for file in flush.files:
        file.sync_now()
    for directory in flush.directories:
        files.sync_dir(directory)
    log.finish_flush(flush)


def test_the_name_of_the_directory_is_durable():
    """Nothing in it is, if it is not."""
    for seed in range(10):
        files = SimulatedFiles(random.Random(seed))
        LogManager(files, ROOT / "deep" / "down", UNLIMITED).lock()
        files.power_off()
        assert files.is_dir(ROOT / "deep" / "down")


def test_a_clock_that_goes_back_keeps_no_deleted_file():
    """What waited for its removal goes then: no delay grows, and no disk fills over it."""
    files = disk()
    manager = with_logs(files)
    manager.get(B).limits = replace(UNLIMITED, retention_bytes=0)
    manager.delete(A, NOW)
    without_pause(manager.apply_retention(B, 5, NOW))
    without_pause(manager.remove_deleted_files(NOW - 1_000_000))
    assert not [name for name in files.list(ROOT) if name.endswith("-delete")]
    assert not [name for name in files.list(ROOT / str(B)) if name.endswith(".deleted")]


def marked(files: SimulatedFiles, *, boot: str = "boot-1", is_synced: bool = False):
    """A manager that opened the directory, of a run that says so."""
    manager = LogManager(files, ROOT, UNLIMITED)
    manager.start(boot, "c", 1, NOW, RunMarks(bytes([7] * 16), is_synced=is_synced))
    return manager


def test_a_directory_keeps_its_name():
    """It is drawn once; a directory that comes back empty has another (row BRK-04)."""
    files = disk()
    manager = marked(files)
    assert manager.directory.directory_id == "07" * 16
    files.kill()
    assert start(files).directory.directory_id == "07" * 16
    assert start(disk()).directory.directory_id == "00" * 16


def test_a_directory_of_before_there_were_names_gets_one():
    """Cluster and node stay what they were."""
    files = disk()
    files.make_dir(ROOT)
    files.write_atomic(ROOT / "meta.properties", b"version=1\ncluster.id=c\nnode.id=1\n")
    assert marked(files).directory.directory_id == "07" * 16
    files.power_off()
    assert start(files, boot="boot-2").directory.directory_id == "07" * 16
    files.kill()
    with pytest.raises(DataDirectoryError, match=r"node\.id"):
        start(files, node=2)


def test_every_start_is_counted():
    """However the last run ended, and durably before any log is opened (K2)."""
    files = disk()
    assert marked(files).directory.run == 1
    files.kill()
    manager = start(files)
    assert manager.directory.run == 2
    manager.close({})
    with_logs(files)
    files.kill()
    files.fail("open", name=".log")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        start(files)
    files.power_off()
    assert start(files, boot="boot-2").directory.run == 5


@pytest.mark.parametrize("text", [b"", b"x", b"-3", b"\xff synced"])
def test_an_unreadable_run_starts_over(text):
    """A number lower than the one known elsewhere tells that something is wrong."""
    files = disk()
    marked(files, is_synced=True)
    files.kill()
    files.write_atomic(ROOT / "run", text)
    assert start(files).directory.run == 1


def test_the_last_run_says_whether_it_synced():
    """After a power cut that is what counts, not how this run is set (K2)."""
    files = disk()
    runs = [(True, False), (True, True), (False, True), (False, False)]
    for number, (is_synced, was_synced) in enumerate(runs):
        files.kill()
        manager = marked(files, boot=f"boot-{number}", is_synced=is_synced)
        manager.forget_lost_tail()
        assert manager.directory.was_synced == was_synced


def test_a_run_answers_for_nothing_that_the_last_one_left_in_the_page_cache():
    """After a kill of one that forced nothing, only a clean stop or a new boot settles it."""
    files = disk()
    for boot, is_synced, end, was_synced in [
        ("boot-1", False, "kill", False),
        ("boot-1", True, "kill", False),  # it inherited what the first run left
        ("boot-1", True, "clean", False),
        ("boot-1", True, "kill", False),  # after a clean stop: this one is true to its word
        ("boot-2", True, "kill", True),
    ]:
        manager = marked(files, boot=boot, is_synced=is_synced)
        assert manager.directory.was_synced == was_synced
        if end == "clean":
            manager.close({})
        else:
            files.kill()


def test_a_second_crash_hides_neither_a_lost_tail_nor_that_it_was_synced():
    """Until somebody was told, the mark says what it is about (K2)."""
    for is_synced in (True, False):
        files = disk()
        marked(files, is_synced=is_synced)
        for _ in range(3):
            files.kill()
            manager = marked(files, boot="boot-2", is_synced=True)
            assert not manager.tail_safe
            assert manager.directory.was_synced == is_synced


def test_after_a_failed_fsync_the_same_boot_proves_nothing():
    """The page cache may show what the disk lacks; nor does `flush=always` help."""
    files = disk()
    manager = marked(files, is_synced=True)
    manager.directory.distrust_tail()
    files.kill()
    manager = marked(files, is_synced=True)
    assert not manager.tail_safe
    assert not manager.directory.same_boot
    assert not manager.directory.was_synced


def test_a_disk_that_takes_no_mark_hides_no_error():
    """What is to be reported is the fsync that failed."""
    files = disk()
    manager = marked(files)
    files.fail("write_atomic", name="tail-unsafe")
    manager.directory.distrust_tail()
