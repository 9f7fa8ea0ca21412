"""What lies in a data directory: ours, on its way out, or somebody else's (rows N4, REC-09)."""

import random
from dataclasses import replace

import pytest

from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.validate import Refused
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
    manager.remove_deleted_files(NOW + 999)
    assert len(part.read()) == 3 * len(encode())
    manager.remove_deleted_files(NOW + 1000)
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
    manager.note_high_watermarks({B: 505})
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
    manager.apply_retention({B: 5}, NOW)
    manager.remove_deleted_files(NOW - 1_000_000)
    assert not [name for name in files.list(ROOT) if name.endswith("-delete")]
    assert not [name for name in files.list(ROOT / str(B)) if name.endswith(".deleted")]
