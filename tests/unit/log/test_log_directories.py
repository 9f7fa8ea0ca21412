"""Several log directories: where a new log goes, how each is checked, and what one that fails or is
missing takes with it."""

import errno
from itertools import count
from pathlib import PurePath

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.log.directory import DataDirectoryError, RunMarks
from minibroker.broker.log.disk_room import DiskRoom
from minibroker.broker.log.manager import DiskSpace, LogManager
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles
from tests.unit.log.test_manager import ID, append, disk, ends
from tests.unit.log.workbench import NOW, UNLIMITED, encode

ROOTS = FIRST, SECOND, THIRD = PurePath("/1/logs"), PurePath("/2/logs"), PurePath("/3/logs")
NAMES = [TopicPartition("t", number) for number in range(6)]
RUNS = count(1)
KNOWN = FIRST / "log-directories"


def start(
    files: SimulatedFiles,
    roots: tuple[PurePath, ...] = ROOTS,
    *,
    boot: str = "boot-1",
    node: int = 1,
    is_settled: bool = True,
) -> LogManager:
    """A manager that opened the directories; if it is settled, after its roles were sent."""
    first, *others = roots
    manager = LogManager(files, first, UNLIMITED, others=others)
    marks = RunMarks(next(RUNS).to_bytes(16, "big"))
    manager.start(boot, "c", node, NOW, marks)
    if is_settled:
        manager.settle()
    return manager


def with_logs(files: SimulatedFiles) -> LogManager:
    """A manager with two logs in each directory, with as many records as their number is."""
    manager = start(files)
    for name in NAMES:
        manager.create(name, ID, UNLIMITED, NOW)
        append(manager, name, name.partition)
    return manager


def places(manager: LogManager) -> dict[PurePath, list[int]]:
    """The partitions in each directory."""
    found: dict[PurePath, list[int]] = {}
    for name, log in manager.logs.items():
        found.setdefault(log.directory.parent, []).append(name.partition)
    return found


def id_of(files: SimulatedFiles, root: PurePath) -> str:
    """The `directory.id` in a directory."""
    text = files.read_bytes(root / "meta.properties").decode()
    return text.partition("directory.id=")[2].strip()


def numbers(names: object) -> list[int]:
    """The numbers of partitions of the topic."""
    return sorted(name.partition for name in names)  # type: ignore[attr-defined]


def test_a_new_log_goes_where_the_fewest_are() -> None:
    """Of equal ones to the first, as they are named."""
    files = disk()
    manager = with_logs(files)
    assert places(manager) == {FIRST: [0, 3], SECOND: [1, 4], THIRD: [2, 5]}
    manager.delete(NAMES[1], NOW)
    manager.create(TopicPartition("u", 9), ID, UNLIMITED, NOW)
    assert places(manager)[SECOND] == [4, 9]


def test_each_directory_has_its_own_files() -> None:
    """Lock, owner, marks and checkpoints; all have other ids. A clean start finds all logs."""
    files = disk()
    with_logs(files).close({name: name.partition for name in NAMES})
    for number, root in enumerate(ROOTS):
        rows = f"t {number} {number}\nt {number + 3} {number + 3}\n"
        text = files.read_bytes(root / "replication-offset-checkpoint").decode()
        assert text == f"0\n2\n{rows}"
        assert files.exists(root / "clean-shutdown")
    assert len({id_of(files, root) for root in ROOTS}) == 3
    manager = start(files, boot="boot-2")
    assert manager.tail_safe
    assert ends(manager) == {name: name.partition for name in NAMES}
    assert manager.offline == frozenset()
    manager.close({})


def test_one_directory_has_the_files_of_before() -> None:
    """Nothing says that there could be others."""
    files = disk()
    start(files, (FIRST,)).close({})
    assert files.list(FIRST) == [
        ".lock",
        "boot-id",
        "clean-shutdown",
        "log-start-offset-checkpoint",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "run",
    ]


def test_a_directory_may_be_added() -> None:
    """To one that was alone before; nothing is lost by it."""
    files = disk()
    manager = start(files, (FIRST,))
    manager.create(NAMES[0], ID, UNLIMITED, NOW)
    manager.close({})
    manager = start(files, boot="boot-2")
    assert manager.tail_safe
    manager.create(NAMES[1], ID, UNLIMITED, NOW)
    assert places(manager) == {FIRST: [0], SECOND: [1]}


@pytest.mark.parametrize("root", [SECOND, THIRD])
def test_the_directory_of_another_is_refused(root: PurePath) -> None:
    """Of another broker, or one that another broker has locked, or the first of another."""
    files = disk()
    manager = start(files, (root,), node=2)
    with pytest.raises(DataDirectoryError, match=f"{root} is in use by another broker"):
        start(files)
    manager.close({})
    with pytest.raises(DataDirectoryError, match=r"node\.id '2' .* this broker has '1'"):
        start(files)
    start(files, (FIRST, SECOND), node=1) if root == THIRD else start(files, (FIRST, THIRD))


def test_the_first_directory_stays_the_first() -> None:
    """It has what is the broker's own."""
    files = disk()
    with_logs(files).close({})
    with pytest.raises(DataDirectoryError, match="was the first of a broker: name it first"):
        start(files, (SECOND, FIRST, THIRD))


def test_a_copy_of_a_directory_is_refused() -> None:
    """Two directories have the same id."""
    files = disk()
    with_logs(files).close({})
    files.make_dir(PurePath("/4"))
    files.write_atomic(PurePath("/4/meta.properties"), files.read_bytes(SECOND / "meta.properties"))
    with pytest.raises(DataDirectoryError, match=r"/2/logs and /4 have the same directory\.id"):
        start(files, (*ROOTS, PurePath("/4")))


def test_a_partition_in_two_directories_is_refused() -> None:
    """The broker does not guess which of them is the newer."""
    files = disk()
    with_logs(files).close({})
    files.make_dir(THIRD / "t-1")
    text = "partition t-1 is in two log directories, /2/logs and /3/logs: move the older one away"
    with pytest.raises(DataDirectoryError, match=text):
        start(files)


# -- failures while it runs


def test_an_error_takes_off_the_logs_of_its_directory_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are refused as on a full disk, the others go on; nobody writes to that disk again."""
    files = disk()
    manager = with_logs(files)
    files.fail("append", name="/2/logs")
    log = manager.get(NAMES[4])
    assert log is not None
    for _ in range(2):
        with pytest.raises(Refused, match="/2/logs is offline: Input/output error") as caught:
            log.append_as_leader(memoryview(encode()), 0, NOW)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(Refused, match="is offline"):
        manager.create(NAMES[4], ID, UNLIMITED, NOW)
    assert caplog.text.count("guarded_files:") == 1
    before = files.read_bytes(SECOND / "t-4" / f"{0:020}.log")
    assert numbers(manager.take_off_failed()) == [1, 4]
    assert manager.take_off_failed() == []
    assert numbers(manager.offline) == [1, 4]
    assert places(manager) == {FIRST: [0, 3], THIRD: [2, 5]}
    append(manager, NAMES[3])
    with pytest.raises(Refused, match="is offline"):
        manager.create(NAMES[4], ID, UNLIMITED, NOW)
    manager.create(TopicPartition("u", 9), ID, UNLIMITED, NOW)
    manager.checkpoint_recovery_points()
    assert manager.checkpoint_log_starts()
    assert manager.close({})
    assert files.read_bytes(SECOND / "t-4" / f"{0:020}.log") == before
    assert not files.exists(SECOND / "clean-shutdown")
    assert SECOND / ".lock" not in files.locks


@pytest.mark.parametrize("operation", ["append", "write_atomic", "open", "truncate"])
def test_every_duty_goes_on_beside_a_directory_that_fails(operation: str) -> None:
    """Whatever meets the error first."""
    files = disk()
    manager = with_logs(files)
    files.fail(operation, name="/2/logs", times=1_000)
    manager.delete(NAMES[1], NOW)
    for name in NAMES:
        without_pause(manager.apply_retention(name, 0, NOW))
    without_pause(manager.remove_deleted_files(NOW + 2_000))
    without_pause(manager.expire_producers(NOW))
    manager.record_high_watermarks(dict.fromkeys(NAMES, 1))
    for write in (
        manager.checkpoint_recovery_points,
        manager.checkpoint_high_watermarks,
        manager.checkpoint_log_starts,
        manager.checkpoint_first_dirty,
    ):
        assert write()
    manager.take_off_failed()
    manager.close({})


def test_an_error_in_the_first_directory_is_raised() -> None:
    """As with a single directory: it ends the broker."""
    files = disk()
    manager = with_logs(files)
    files.fail("append", name="/1/logs")
    with pytest.raises(OSError, match="Input/output error") as caught:
        append(manager, NAMES[0])
    assert caught.value.errno == errno.EIO


def test_what_failed_is_not_trusted_when_it_comes_back() -> None:
    """On the same boot, too: what was not synced may be lost. Once the controller was told, it is
    forgotten."""
    files = disk()
    manager = with_logs(files)
    files.fail("append", name="/2/logs", times=1)
    with pytest.raises(Refused):
        append(manager, NAMES[1])
    manager.take_off_failed()
    manager.write_known()
    files.kill()
    manager = start(files)
    assert not manager.tail_safe
    assert ends(manager) == {name: name.partition for name in NAMES}
    manager.forget_lost_tail()
    files.kill()
    assert start(files).tail_safe


# -- directories that are missing at a start


def unmount(files: SimulatedFiles, root: PurePath) -> None:
    """Put an empty directory in the place of one."""
    files.rename(root, root.with_name("elsewhere"))
    files.make_dir(root)


def test_a_missing_directory_is_offline_with_its_logs() -> None:
    """Its mount point is empty, or not there. It is not made anew."""
    files = disk()
    with_logs(files).close({})
    unmount(files, SECOND)
    for _ in range(2):
        manager = start(files, is_settled=False)
        assert numbers(manager.offline) == [1, 4]
        assert places(manager) == {FIRST: [0, 3], THIRD: [2, 5]}
        assert "mount its disk" in manager.directories[1].failure
        with pytest.raises(Refused, match="/2/logs is offline"):
            manager.create(NAMES[1], ID, UNLIMITED, NOW)
        manager.close({})
        assert not files.exists(SECOND) or files.list(SECOND) == []
        files.remove_tree(SECOND)
    files.rename(SECOND.with_name("elsewhere"), SECOND)
    assert ends(start(files)) == {name: name.partition for name in NAMES}


@pytest.mark.parametrize("operation", ["lock", "read", "open"])
def test_a_directory_that_cannot_be_read_is_offline(operation: str) -> None:
    """From the first look at it, or while its logs are opened; the others start."""
    files = disk()
    with_logs(files).close({})
    files.fail(operation, name="/2/logs", times=1_000)
    manager = start(files)
    assert numbers(manager.offline) == [1, 4]
    manager.close({})


def test_a_log_that_is_not_found_is_offline_until_all_roles_were_sent() -> None:
    """The newest logs of a missing directory are not remembered; the roles of this broker, as they
    were before the start, name them. What comes later is new."""
    files = disk()
    manager = with_logs(files)
    manager.write_known()
    newest = [TopicPartition("u", number) for number in range(3)]
    for name in newest:
        manager.create(name, ID, UNLIMITED, NOW)
    files.kill()
    unmount(files, SECOND)
    manager = start(files, is_settled=False)
    assert newest[1] not in manager.offline
    with pytest.raises(Refused, match="/2/logs is offline"):
        manager.create(newest[1], ID, UNLIMITED, NOW)
    assert newest[1] in manager.offline
    manager.settle()
    with pytest.raises(Refused, match="/2/logs is offline"):
        manager.create(newest[1], ID, UNLIMITED, NOW)
    manager.create(TopicPartition("v", 0), ID, UNLIMITED, NOW)


def test_a_directory_may_move_to_another_path() -> None:
    """Its id tells which it is."""
    files = disk()
    with_logs(files).close({})
    files.make_dir(PurePath("/4"))
    files.rename(SECOND, PurePath("/4/logs"))
    manager = start(files, (FIRST, PurePath("/4/logs"), THIRD))
    assert manager.tail_safe
    assert ends(manager) == {name: name.partition for name in NAMES}


def test_a_directory_with_logs_is_not_left_out_by_mistake() -> None:
    """Only an operator's word makes it lost; then the controller sees another data directory."""
    files = disk()
    with_logs(files).close({})
    lost, before = id_of(files, SECOND), id_of(files, FIRST)
    text = (
        f"log.dirs lacks /2/logs, which has 2 logs of this broker.* remove /1/logs/logs-of-{lost}"
    )
    with pytest.raises(DataDirectoryError, match=text):
        start(files, (FIRST, THIRD))
    files.remove(FIRST / f"logs-of-{lost}")
    manager = start(files, (FIRST, THIRD), is_settled=False)
    assert manager.directory.directory_id == id_of(files, FIRST) != before
    manager.create(NAMES[1], ID, UNLIMITED, NOW)
    manager.close({})
    assert id_of(files, FIRST) == start(files, (FIRST, THIRD)).directory.directory_id


def test_a_disk_that_was_replaced_is_taken_on_an_operators_word() -> None:
    """The empty one in its place is a new directory then."""
    files = disk()
    with_logs(files).close({})
    lost, before = id_of(files, SECOND), id_of(files, FIRST)
    files.remove_tree(SECOND)
    files.remove(FIRST / f"logs-of-{lost}")
    manager = start(files)
    assert manager.directory.directory_id != before
    assert id_of(files, SECOND) not in (lost, "")
    manager.create(NAMES[1], ID, UNLIMITED, NOW)
    assert places(manager)[SECOND] == [1]


def test_an_old_copy_of_a_directory_is_not_trusted() -> None:
    """It was put back in the place of a newer one, or nobody knows where it comes from."""
    files = disk()
    with_logs(files).close({})
    old = files.read_bytes(SECOND / "run")
    start(files).close({})
    files.write_atomic(SECOND / "run", old)
    manager = start(files)
    assert not manager.tail_safe
    manager.forget_lost_tail()
    manager.close({})
    files.remove(KNOWN)
    assert not start(files).tail_safe


def test_a_new_directory_that_cannot_be_used_is_refused() -> None:
    """A wrong path or a wrong owner: there is nothing in it."""
    files = disk()
    files.fail("make_dir", name="/2/logs", number=errno.EACCES, times=9)
    with pytest.raises(DataDirectoryError, match="/2/logs cannot be used: Permission denied"):
        start(files)


def test_a_damaged_list_of_directories_is_refused() -> None:
    """Without it nobody knows which are missing."""
    files = disk()
    with_logs(files).close({})
    files.write_atomic(KNOWN, b"garbage\n")
    with pytest.raises(DataDirectoryError, match="log-directories is damaged: put it back"):
        start(files)


# -- room


def test_each_directory_has_its_own_free_space() -> None:
    """Records are refused where too little is free. The bytes of the logs count together."""
    files = disk()
    first, *others = ROOTS
    manager = LogManager(files, first, UNLIMITED, room=DiskRoom(100, 10_000), others=others)
    manager.start("boot", "c", 1, NOW)
    for name in NAMES[:3]:
        manager.create(name, ID, UNLIMITED, NOW)
    spaces = [DiskSpace(1_000, 2_000), DiskSpace(50, 2_000), DiskSpace(1_000, 2_000)]
    without_pause(manager.observe_disks(spaces))
    append(manager, NAMES[0])
    with pytest.raises(Refused, match="50 bytes are free on the disk"):
        append(manager, NAMES[1])
    found = manager.room_statistics()
    assert (found.free_bytes, found.is_short) == (50, True)
    manager.room.log_bytes_max = 1
    without_pause(manager.observe_disks([DiskSpace(1_000, 2_000)] * 3))
    with pytest.raises(Refused, match=r"the logs have \d+ bytes, and log.dirs.max.bytes is 1:"):
        append(manager, NAMES[0])
