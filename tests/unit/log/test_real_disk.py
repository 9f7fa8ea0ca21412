"""The log on the operating system's files: what a simulated disk cannot show."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import PurePath

import pytest
import trio

from minibroker.broker.disk import RealFiles, Workers, in_worker
from minibroker.broker.log.checkpoints import read_offsets
from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import LastKnownState, LogLocation
from tests.unit.log.workbench import NAME, NOW, UNLIMITED, encode


def test_a_log_lives_on(tmp_path):
    """Append, roll, reopen clean and unclean, cut, on real files."""
    location = LogLocation(RealFiles(), tmp_path / "t-0", NAME)
    limits = replace(UNLIMITED, segment_bytes=4096, index_interval_bytes=200)
    log = Log.open(location, limits, now_ms=NOW)
    for _ in range(200):
        log.append_as_leader(memoryview(encode()), 1, NOW)
    before = b"".join(part.read() for part in log.read(0, 1 << 20, 200))
    log.close()
    for opening in (
        LastKnownState(is_clean=True),
        LastKnownState(),
        LastKnownState(same_boot=True),
    ):
        log = Log.open(location, limits, opening, now_ms=NOW)
        assert log.log_end == 200
        assert b"".join(part.read() for part in log.read(0, 1 << 20, 200)) == before
        log.abandon()
    log = Log.open(location, limits, LastKnownState(), now_ms=NOW)
    log.truncate_to(50, NOW)
    assert sum(len(part) for part in log.read(0, 1 << 20, 50)) == len(before) // 4
    [part, *_] = log.read(49, 1 << 20, 50)
    assert os.pread(part.fileno(), len(part), part.position) == part.read()
    log.close()


def test_only_cached_bytes_are_read_without_waiting(tmp_path):
    """Of a file that is not in the page cache, or only in part, the system reads nothing; once a
    worker has read it all is there."""
    path = tmp_path / "f"
    file = RealFiles().open(path, create=True)
    size = 1 << 20
    file.append([os.urandom(size)])
    file.sync_now()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert file.read_cached(0, 61) is None
    start = file.read(0, 61)
    assert file.read_cached(0, 61) == start
    assert file.read_cached(0, size) is None, "the first page does not stand for the others"
    whole = file.read(0, size)
    assert file.read_cached(0, size) == whole
    file.close()


def refused(root) -> str:
    """What a start in this directory says."""
    manager = LogManager(RealFiles(), root, UNLIMITED)
    with pytest.raises(DataDirectoryError) as caught:
        manager.start("boot", "cluster", 1, NOW)
    return str(caught.value)


async def test_workers_of_their_own_are_few():
    """Those that wait for a slow disk leave the threads of syncs alone."""
    count = 3
    workers, began, may_end = Workers(count), threading.Semaphore(0), threading.Event()

    def read() -> None:
        began.release()
        may_end.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(50):  # more than trio has threads
            nursery.start_soon(workers, read)
        for _ in range(count):
            await in_worker(began.acquire)
        await in_worker(int)
        has_begun_more = began.acquire(blocking=False)
        may_end.set()
    assert not has_begun_more


def test_a_file_in_the_place_of_the_directory(tmp_path):
    """The message names it and says what to do; for root too."""
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        text = refused(root)
        assert "not a directory" in text
        assert "--data-dir" in text


def test_a_second_broker(tmp_path):
    """The lock of a real file keeps a second broker out (BRK-08)."""
    manager = LogManager(RealFiles(), tmp_path, UNLIMITED)
    manager.start("boot", "cluster", 1, NOW)
    assert "in use by another broker" in refused(tmp_path)
    manager.close({})
    again = LogManager(RealFiles(), tmp_path, UNLIMITED)
    again.start("boot", "cluster", 1, NOW)
    again.close({})


@pytest.mark.parametrize("number", [13, 30, 28, 5])
def test_a_directory_that_cannot_be_written(tmp_path, number):
    """A read-only mount, wrong owner, full or failing disk: one error, with what to do."""

    class Failing(RealFiles):
        def write_atomic(self, path, data, *, sync=True):
            raise OSError(number, os.strerror(number), str(path))

    manager = LogManager(Failing(), tmp_path / "data", UNLIMITED)
    with pytest.raises(DataDirectoryError, match=os.strerror(number)):
        manager.start("boot", "cluster", 1, NOW)
    # The failed start gave the lock back.
    manager = LogManager(RealFiles(), tmp_path / "data", UNLIMITED)
    manager.start("boot", "cluster", 1, NOW)
    manager.close({})


def test_two_threads_write_the_checkpoints(tmp_path):
    """A worker's checkpoint and a cut in the loop meet; the file is whole, and not too high."""
    files = RealFiles()
    manager = LogManager(files, tmp_path, UNLIMITED)
    manager.start("boot", "cluster", 1, NOW)
    log = manager.create(NAME, bytes(16), UNLIMITED, NOW)
    path = tmp_path / "replication-offset-checkpoint"
    is_over = threading.Event()

    def checkpoint() -> None:
        while not is_over.is_set():
            manager.checkpoint_high_watermarks()

    with ThreadPoolExecutor() as pool:
        worker = pool.submit(checkpoint)
        for _ in range(100):
            end = log.append_as_leader(memoryview(encode()), 0, NOW).last_offset + 1
            manager.record_high_watermarks({NAME: end})
            manager.checkpoint_high_watermarks()
            log.truncate_to(end - 1, NOW)
            assert read_offsets(files, path)[NAME] == end - 1
            log.append_as_leader(memoryview(encode()), 0, NOW)
        is_over.set()
        worker.result()
    manager.close({})


def stopped(root) -> None:
    """A data directory with the log `t-0` of three records, after a clean stop."""
    manager = LogManager(RealFiles(), root, UNLIMITED)
    manager.start("boot", "cluster", 1, NOW)
    log = manager.create(NAME, bytes(range(16)), UNLIMITED, NOW)
    for _ in range(3):
        log.append_as_leader(memoryview(encode()), 1, NOW)
    manager.close({NAME: 3})


LOG = f"{NAME}/{0:020}.log"
FILES = [
    LOG,
    LOG.replace(".log", ".index"),
    f"{NAME}/partition.metadata",
    f"{NAME}/leader-epoch-checkpoint",
    "meta.properties",
    "replication-offset-checkpoint",
    ".lock",
    "run",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "pipe", "device"])
def test_only_regular_files_are_opened(tmp_path, kind: str, name: str):
    """A broker does not start with another thing in the place of a file, and names it. Nothing is
    followed, truncated or deleted."""
    root, outside = tmp_path / "data", tmp_path / "outside"
    stopped(root)
    outside.write_text("not ours")
    place = root / name
    place.unlink()
    match kind:
        case "link":
            place.symlink_to(outside)
        case "dangling link":
            place.symlink_to(tmp_path / "nothing")
        case "device":
            place.symlink_to("/dev/zero")
        case "directory":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
    text = refused(root)
    assert str(place) in text
    assert "move it away" in text
    assert outside.read_text() == "not ours"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", [str(NAME), f"x-0.{'0' * 32}-delete"])
def test_a_link_is_no_log(tmp_path, name: str):
    """Neither as a log nor as one to remove."""
    root, outside = tmp_path / "data", tmp_path / "outside"
    stopped(root)
    (root / str(NAME)).rename(outside)
    (root / name).symlink_to(outside)
    assert f"{root / name} is a symbolic link" in refused(root)
    assert (outside / PurePath(LOG).name).stat().st_size > 0


def test_a_link_in_the_place_of_a_temporary_file_is_replaced(tmp_path):
    """What is written next to it does not go through it."""
    (tmp_path / "outside").write_text("not ours")
    (tmp_path / "run.tmp").symlink_to(tmp_path / "outside")
    RealFiles().write_atomic(tmp_path / "run", b"1")
    assert (tmp_path / "outside").read_text() == "not ours"


def test_a_foreign_link_is_left_alone(tmp_path):
    """As any other name that is not ours. The data directory itself may be a link."""
    stopped(tmp_path / "data")
    (tmp_path / "data" / "backup").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    manager = LogManager(RealFiles(), tmp_path / "link", UNLIMITED)
    manager.start("boot", "cluster", 1, NOW)
    assert [*manager.logs] == [NAME]
    manager.abandon()


def test_a_huge_file_is_not_read_whole(tmp_path):
    """Neither a topic's id nor a checkpoint."""
    stopped(tmp_path / "data")
    os.truncate(tmp_path / "data" / str(NAME) / "partition.metadata", 1 << 40)
    os.truncate(tmp_path / "data" / "replication-offset-checkpoint", 1 << 40)
    assert "far larger" in refused(tmp_path / "data")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_new_is_private(tmp_path, mask: int):
    """Records are for the broker's user alone, whatever the umask allows (0700, 0600)."""
    before = os.umask(mask)
    try:
        stopped(tmp_path / "deep" / "data")
    finally:
        os.umask(before)
    for path in (tmp_path / "deep", *(tmp_path / "deep").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_is_open_stays_open(tmp_path):
    """A directory that an operator opened keeps its mode, and so do the files in it."""
    root = tmp_path / "data"
    root.mkdir(mode=0o755)
    stopped(root)
    root.chmod(0o755)
    (root / LOG).chmod(0o644)
    manager = LogManager(RealFiles(), root, UNLIMITED)
    manager.start("boot", "cluster", 1, NOW)
    manager.close({NAME: 3})
    assert root.stat().st_mode & 0o777 == 0o755
    assert (root / LOG).stat().st_mode & 0o777 == 0o644
