"""One suite for the disk, real and simulated: what the log relies on (`broker.log.files`)."""

import os
import random
import time
from pathlib import PurePath

import pytest

from minibroker.broker.disk import RealFiles
from minibroker.broker.log.files import Files
from minibroker.testing.disk import SimulatedFiles


@pytest.fixture(params=["real", "simulated"])
def disk(request, tmp_path) -> tuple[Files, PurePath]:
    """A disk, and a directory on it that exists and is empty."""
    if request.param == "real":
        return RealFiles(), tmp_path
    files = SimulatedFiles(random.Random(1))
    root = PurePath("/data")
    files.make_dir(root)
    return files, root


def test_appended_bytes_are_read_back(disk):
    """Buffers are appended end to end, and a read ends at the end of the file."""
    files, root = disk
    file = files.open(root / "f", create=True)
    file.append([b"ab", memoryview(b"cde")])
    file.append([bytearray(b"f")])
    assert file.size == 6
    assert file.read(1, 3) == b"bcd"
    assert file.read(4, 100) == b"ef"
    assert file.read(6, 1) == b""
    file.close()
    file.close()


def test_a_read_of_what_is_cached(disk):
    """What was just written is cached, and read as `read` reads it, up to the end of the file."""
    files, root = disk
    file = files.open(root / "f", create=True)
    file.append([b"abcdef"])
    for position, size in ((1, 3), (4, 100), (6, 1), (9, 1), (0, 0)):
        assert file.read_cached(position, size) == file.read(position, size)
    file.truncate(2)
    assert file.read_cached(1, 3) == b"b"
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_cached(0, 1)


def test_a_truncated_file_goes_on_at_its_new_end(disk):
    """After a cut, the next append lies at the cut."""
    files, root = disk
    file = files.open(root / "f", create=True)
    file.append([b"abcdef"])
    file.truncate(2)
    file.append([b"X"])
    assert (file.size, file.read(0, 9)) == (3, b"abX")
    file.close()


def test_a_file_is_never_made_longer(disk):
    """A cut beyond the end is a programmer's error."""
    files, root = disk
    file = files.open(root / "f", create=True)
    with pytest.raises(AssertionError):
        file.truncate(1)
    file.close()


def test_a_missing_file_is_an_error_without_create(disk):
    """Opening, reading and renaming what is not there fails; removing it does not."""
    files, root = disk
    with pytest.raises(FileNotFoundError):
        files.open(root / "f")
    with pytest.raises(FileNotFoundError):
        files.read_bytes(root / "f")
    with pytest.raises(FileNotFoundError):
        files.rename(root / "f", root / "g")
    with pytest.raises(FileNotFoundError):
        files.open(root / "no" / "f", create=True)
    with pytest.raises(FileNotFoundError):
        files.list(root / "no")
    files.remove(root / "f")
    files.remove_tree(root / "f")


def test_a_reopened_file_keeps_its_bytes(disk):
    """Two handles see the same file, and `create` keeps what is there."""
    files, root = disk
    first = files.open(root / "f", create=True)
    first.append([b"abc"])
    second = files.open(root / "f", create=True)
    assert second.read(0, 9) == b"abc"
    assert second.size == 3
    first.close()
    second.close()


def test_names(disk):
    """Directories are made with their parents, listed in order, renamed and removed whole."""
    files, root = disk
    files.make_dir(root / "a" / "b")
    files.make_dir(root / "a" / "b")
    for name in ("2", "10", "1"):
        files.open(root / "a" / "b" / name, create=True).close()
    assert files.list(root / "a" / "b") == ["1", "10", "2"]
    assert files.list(root / "a") == ["b"]
    assert files.is_dir(root / "a")
    assert not files.is_dir(root / "a" / "b" / "1")
    files.rename(root / "a", root / "c")
    assert not files.exists(root / "a" / "b" / "1")
    assert files.exists(root / "c" / "b" / "1")
    files.remove(root / "c" / "b" / "1")
    assert files.list(root / "c" / "b") == ["10", "2"]
    files.remove_tree(root / "c")
    assert files.list(root) == []


def test_a_file_in_the_place_of_a_directory(disk):
    """A directory is not made where a file is, nor a file inside a file."""
    files, root = disk
    files.open(root / "f", create=True).close()
    with pytest.raises((NotADirectoryError, FileExistsError)):
        files.make_dir(root / "f" / "g")
    with pytest.raises(NotADirectoryError):
        files.open(root / "f" / "g", create=True)


def test_a_renamed_file_replaces_the_target(disk):
    """An open handle goes on to be the file it opened."""
    files, root = disk
    files.write_atomic(root / "old", b"old")
    files.write_atomic(root / "new", b"new")
    handle = files.open(root / "old")
    files.rename(root / "new", root / "old")
    assert files.read_bytes(root / "old") == b"new"
    assert handle.read(0, 9) == b"old"
    assert files.list(root) == ["old"]
    handle.close()


def test_write_atomic_replaces_the_whole_file(disk):
    """With and without fsync a reader sees the new bytes and no temporary file."""
    files, root = disk
    files.write_atomic(root / "f", b"one")
    files.write_atomic(root / "f", b"2", sync=False)
    assert files.read_bytes(root / "f") == b"2"
    assert files.list(root) == ["f"]


def test_a_lock_has_one_holder(disk):
    """A second holder is refused until the first releases; releasing twice is allowed."""
    files, root = disk
    held = files.lock(root / ".lock")
    with pytest.raises(BlockingIOError):
        files.lock(root / ".lock")
    held.release()
    held.release()
    files.lock(root / ".lock").release()


async def test_sync(disk):
    """Both forms of sync return, and a file may be closed while one is under way."""
    files, root = disk
    file = files.open(root / "f", create=True)
    file.append([b"abc"])
    await file.sync()
    file.sync_now()
    files.sync_dir(root)
    assert file.is_cached(0, 3)
    file.close()


async def test_a_closed_file_is_not_used(disk):
    """But a flush that meets one that was closed meanwhile (by a cut) goes on."""
    files, root = disk
    file = files.open(root / "f", create=True)
    file.append([b"abc"])
    file.close()
    await file.sync()
    file.sync_now()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)


def test_a_file_has_the_time_of_its_last_write(disk):
    """An append and a cut set it; opening, reading and renaming do not."""
    files, root = disk
    now = [2_000_000_000_000]
    if isinstance(files, SimulatedFiles):
        files.clock_ms = lambda: now[0]
    file = files.open(root / "f", create=True)
    file.append([b"abc"])
    first = files.modified_ms(root / "f")
    if isinstance(files, SimulatedFiles):
        assert first == now[0]
    else:
        assert abs(first - time.time() * 1000) < 60_000
        os.utime(root / "f", ns=(0, 0))
    now[0] += 1000
    before = files.modified_ms(root / "f")
    files.rename(root / "f", root / "g")
    assert file.read(0, 3) == b"abc"
    assert files.modified_ms(root / "g") == before
    file.truncate(1)
    assert files.modified_ms(root / "g") > before
    file.close()
