"""All logs of a broker and its data directory (rows BRK-01 to BRK-09, REC-01, A8)."""

import random
from pathlib import PurePath

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.manager import LogManager
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles
from tests.unit.log.workbench import NOW, UNLIMITED, encode

ROOT = PurePath("/data")
A, B = TopicPartition("a-b.c", 0), TopicPartition("b", 12)
ID, OTHER_ID = bytes(range(16)), bytes(16)


def disk() -> SimulatedFiles:
    """An empty disk."""
    return SimulatedFiles(random.Random(1))


def start(files: SimulatedFiles, *, boot: str = "boot-1", cluster: str = "c", node: int = 1):
    """A manager that opened the directory."""
    manager = LogManager(files, ROOT, UNLIMITED)
    manager.start(boot, cluster, node, NOW)
    return manager


def append(manager: LogManager, name: TopicPartition, count: int = 1) -> None:
    """Append batches of one record."""
    for _ in range(count):
        manager.get(name).append_as_leader(memoryview(encode()), 0, NOW)


def with_logs(files: SimulatedFiles) -> LogManager:
    """A started manager with two logs of 3 and 5 records."""
    manager = start(files)
    manager.create(A, ID, UNLIMITED, NOW)
    manager.create(B, OTHER_ID, UNLIMITED, NOW)
    append(manager, A, 3)
    append(manager, B, 5)
    return manager


def ends(manager: LogManager) -> dict[TopicPartition, int]:
    """The log ends."""
    return {name: log.log_end for name, log in manager.logs.items()}


def test_a_clean_stop_and_start():
    """All records, high watermarks, ids and recovery points are there again (BRK-02, BRK-05)."""
    files = disk()
    manager = with_logs(files)
    manager.close({A: 2, B: 5})
    assert files.exists(ROOT / "clean-shutdown")
    assert files.read_bytes(ROOT / "replication-offset-checkpoint") == b"0\n2\na-b.c 0 2\nb 12 5\n"
    manager = start(files, boot="boot-2")
    assert manager.tail_safe
    assert ends(manager) == {A: 3, B: 5}
    log = manager.get(A)
    assert (log.checkpointed_high_watermark, log.durable_end, log.topic_id) == (2, 3, ID)


def test_the_clean_mark_is_gone_before_logs_open():
    """A crash while logs are opened counts as an unclean stop (REC-01)."""
    files = disk()
    with_logs(files).close({})
    files.fail("open", name=".log")
    with pytest.raises(DataDirectoryError):
        start(files)
    assert not files.exists(ROOT / "clean-shutdown")
    files.kill()
    assert ends(start(files)) == {A: 3, B: 5}


def test_a_kill_loses_nothing():
    """What a process wrote before it died is there, and its tail is safe on the same boot."""
    files = disk()
    with_logs(files)
    files.kill()
    manager = start(files)
    assert ends(manager) == {A: 3, B: 5}
    assert manager.tail_safe
    assert manager.get(A).durable_end == 0


def test_a_power_cut_is_remembered_until_somebody_was_told():
    """A second crash does not hide a lost tail (K2)."""
    files = disk()
    with_logs(files)
    files.kill()
    for _ in range(3):
        manager = start(files, boot="boot-2")
        assert not manager.tail_safe
        files.kill()
    manager = start(files, boot="boot-2")
    manager.close({})
    manager = start(files, boot="boot-2")
    assert not manager.tail_safe
    manager.forget_lost_tail()
    manager.abandon()
    assert start(files, boot="boot-2").tail_safe


def test_a_kill_after_a_power_cut_still_counts_as_a_power_cut():
    """Until the logs were opened and somebody was told, the same boot proves nothing (REC-03)."""
    files = disk()
    manager = with_logs(files)
    manager.record_high_watermarks({A: 3, B: 5})
    manager.checkpoint_high_watermarks()
    files.kill()
    files.open(ROOT / "a-b.c-0" / f"{0:020}.log").truncate(0)
    files.fail("open", name=".log")
    with pytest.raises(DataDirectoryError):
        start(files, boot="boot-2")
    files.kill()
    assert start(files, boot="boot-2").get(A).damage is None


def test_a_lost_tail_is_no_damage_to_the_start_after_it():
    """A high watermark that the log lost in a power cut is not asked for again."""
    files = disk()
    manager = with_logs(files)
    manager.record_high_watermarks({A: 3, B: 5})
    manager.checkpoint_high_watermarks()
    files.kill()
    files.open(ROOT / "a-b.c-0" / f"{0:020}.log").truncate(0)
    manager = start(files, boot="boot-2")
    assert (manager.get(A).log_end, manager.get(A).damage) == (0, None)
    manager.forget_lost_tail()
    files.kill()
    assert start(files, boot="boot-2").get(A).damage is None


def test_damage_is_reported():
    """Statistics name the partitions that are not what they were."""
    files = disk()
    manager = with_logs(files)
    manager.record_high_watermarks({A: 3})
    manager.checkpoint_high_watermarks()
    files.kill()
    files.open(ROOT / "a-b.c-0" / f"{0:020}.log").truncate(0)
    assert start(files).statistics().damaged == (A,)


def test_one_process_only():
    """A second broker on the directory fails to start, and says so (BRK-08)."""
    files = disk()
    manager = start(files)
    with pytest.raises(DataDirectoryError, match="in use by another broker"):
        start(files)
    manager.close({})
    start(files)


def test_another_cluster_or_node_is_refused():
    """The directory knows whose it is; it stays as it was."""
    files = disk()
    start(files).close({})
    with pytest.raises(DataDirectoryError, match=r"cluster.id 'c' .* this broker has 'd'"):
        start(files, cluster="d")
    with pytest.raises(DataDirectoryError, match=r"node\.id"):
        start(files, node=2)
    assert files.exists(ROOT / "clean-shutdown")
    start(files)


def test_unreadable_checkpoints_mean_to_read_more():
    """Garbage in place of a checkpoint is no failure (REC-02)."""
    files = disk()
    manager = with_logs(files)
    manager.record_high_watermarks({A: 3})
    manager.checkpoint_high_watermarks()
    for kind in ("replication", "recovery-point", "log-start"):
        files.write_atomic(ROOT / f"{kind}-offset-checkpoint", b"garbage")
    files.kill()
    manager = start(files)
    assert ends(manager) == {A: 3, B: 5}
    assert manager.get(A).checkpointed_high_watermark == 0


def test_a_partition_without_a_role_keeps_its_high_watermark():
    """A checkpoint that does not name a partition leaves what was known of it (A8)."""
    files = disk()
    with_logs(files).close({A: 2, B: 4})
    manager = start(files)
    manager.record_high_watermarks({A: 3})
    manager.checkpoint_high_watermarks()
    manager.close({})
    manager = start(files)
    assert manager.get(A).checkpointed_high_watermark == 3
    assert manager.get(B).checkpointed_high_watermark == 4


@pytest.mark.parametrize("size", [0, 20, 40])
def test_a_part_of_a_topic_id_is_none(size):
    """A power cut may leave a part of the file: it must not look like another topic's id."""
    files = disk()
    manager = start(files)
    manager.create(A, ID, UNLIMITED, NOW)
    path = ROOT / str(A) / "partition.metadata"
    files.write_atomic(path, files.read_bytes(path)[:size])
    files.kill()
    assert start(files).get(A).topic_id == b""


def test_a_cut_is_checkpointed_before_it_happens():
    """A crash right after a cut finds a whole, shorter log, no damage (REC-11)."""
    files = disk()
    manager = with_logs(files)
    log = manager.get(B)
    for file in (flush := log.start_flush()).files:
        file.sync_now()
    log.finish_flush(flush)
    manager.checkpoint_recovery_points()
    manager.record_high_watermarks({B: 5})
    manager.checkpoint_high_watermarks()
    log.truncate_to(2, NOW)
    files.kill()
    manager = start(files)
    assert (manager.get(B).log_end, manager.get(B).damage) == (2, None)


def test_a_cut_on_a_full_disk_does_not_happen():
    """If the lower recovery point cannot be written the log stays as it is (REC-11)."""
    files = disk()
    manager = with_logs(files)
    manager.record_high_watermarks({B: 5})
    manager.checkpoint_high_watermarks()
    files.space_bytes = 0
    with pytest.raises(Refused) as caught:
        manager.get(B).truncate_to(2, NOW)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.get(B).log_end == 5


def test_a_full_disk_keeps_the_old_checkpoint():
    """A checkpoint that finds no space leaves the old file; the next one is written."""
    files = disk()
    manager = with_logs(files)
    manager.record_high_watermarks({A: 1})
    manager.checkpoint_high_watermarks()
    before = files.read_bytes(ROOT / "replication-offset-checkpoint")
    files.space_bytes = 0
    manager.record_high_watermarks({A: 2})
    manager.checkpoint_high_watermarks()
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_starts()
    assert files.read_bytes(ROOT / "replication-offset-checkpoint") == before
    files.space_bytes = None
    manager.record_high_watermarks({A: 2})
    manager.checkpoint_high_watermarks()
    assert b"a-b.c 0 2" in files.read_bytes(ROOT / "replication-offset-checkpoint")


def test_a_stop_on_a_full_disk_is_not_clean():
    """Nothing is lost, but the next start reads the logs."""
    files = disk()
    manager = with_logs(files)
    files.space_bytes = 0
    manager.close({A: 3})
    files.space_bytes = None
    assert not files.exists(ROOT / "clean-shutdown")
    assert ends(start(files)) == {A: 3, B: 5}


def test_creating_on_a_full_disk_is_refused_and_leaves_nothing():
    """The topic can be created again when there is space."""
    files = disk()
    manager = start(files)
    files.space_bytes = 0
    with pytest.raises(Refused):
        manager.create(A, ID, UNLIMITED, NOW)
    files.space_bytes = None
    assert not files.exists(ROOT / "a-b.c-0")
    manager.create(A, ID, UNLIMITED, NOW)


def test_duties():
    """Retention below the high watermark, and forgetting producers, for all logs."""
    manager = with_logs(disk())
    manager.get(A).limits = manager.get(B).limits = UNLIMITED
    assert without_pause(manager.apply_retention(A, 3, NOW)) == 0
    without_pause(manager.expire_producers(NOW))
    assert manager.statistics().log_count == 2


def test_closing_twice():
    """Both calls return, and the directory is free (BRK-09)."""
    files = disk()
    manager = with_logs(files)
    manager.close({})
    manager.close({})
    manager.abandon()
    start(files)


def test_a_stop_that_cannot_write_a_checkpoint_is_not_clean():
    """Even if there was nothing else to write (BRK-05)."""
    files = disk()
    with_logs(files).close({A: 1, B: 1})
    manager = start(files)
    files.space_bytes = 0
    manager.close({A: 3, B: 5})
    assert not files.exists(ROOT / "clean-shutdown")
