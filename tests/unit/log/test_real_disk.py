"""The log on the operating system's files: what a simulated disk cannot show."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from minibroker.broker.disk import RealFiles
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


def refused(root) -> str:
    """What a start in this directory says."""
    manager = LogManager(RealFiles(), root, UNLIMITED)
    with pytest.raises(DataDirectoryError) as caught:
        manager.start("boot", "cluster", 1, NOW)
    return str(caught.value)


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
