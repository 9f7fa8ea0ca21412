"""The simulated disk loses what a real one may lose, and nothing else."""

import errno
import random
from pathlib import PurePath

import pytest

from minibroker.testing.disk import SimulatedFiles, Tail

ROOT = PurePath("/d")


def make_disk(seed: int) -> SimulatedFiles:
    files = SimulatedFiles(random.Random(seed))
    files.make_dir(ROOT)
    files.open(ROOT / "f", create=True)
    files.sync_dir(ROOT)
    return files


def test_power_off_keeps_what_was_synced():
    """Whatever the seed, synced bytes and names survive; the rest is lost only from the end."""
    outcomes = set()
    for seed in range(200):
        files = make_disk(seed)
        file = files.open(ROOT / "f")
        file.append([b"synced"])
        file.sync_now()
        file.append([b"x" * 1000])
        files.power_off()
        found = files.read_bytes(ROOT / "f")
        assert found.startswith(b"synced"), f"seed {seed}"
        assert len(found) <= 1006, f"seed {seed}"
        outcomes.add((len(found) == 6, len(found) == 1006, set(found[6:]) <= {ord("x")}))
    assert len(outcomes) >= 3, "seeds lose all, some, and tear"


def test_an_unsynced_cut_may_be_undone():
    """After a cut that was not synced, either the old file or the cut one is found."""
    found = set()
    for seed in range(50):
        files = make_disk(seed)
        file = files.open(ROOT / "f")
        file.append([b"abcdef"])
        file.sync_now()
        file.truncate(2)
        files.power_off()
        found.add(files.read_bytes(ROOT / "f"))
    assert found == {b"ab", b"abcdef"}


def test_names_survive_in_order():
    """Of the unsynced names those made first survive, and a synced directory has them all."""
    counts = set()
    for seed in range(50):
        files = make_disk(seed)
        for name in ("a", "b"):
            files.open(ROOT / name, create=True)
        files.power_off()
        counts.add(tuple(files.list(ROOT)))
    assert counts == {("f",), ("a", "f"), ("a", "b", "f")}


def test_a_power_cut_may_be_told_what_it_leaves():
    """With `Tail.LOST` nothing is there that was not synced, with `Tail.KEPT` everything is."""
    for tail, names, data in ((Tail.LOST, ["f"], b"abc"), (Tail.KEPT, ["f", "g"], b"abcdef")):
        for seed in range(10):
            files = make_disk(seed)
            file = files.open(ROOT / "f", create=True)
            file.append([b"abc"])
            file.sync_now()
            files.sync_dir(ROOT)
            file.append([b"def"])
            files.open(ROOT / "g", create=True)
            files.power_off(tail)
            assert files.list(ROOT) == names
            assert files.read_bytes(ROOT / "f") == data


def test_kill_loses_no_byte_and_frees_the_lock():
    """A killed process leaves its writes; its handles are of no more use."""
    files = make_disk(1)
    file = files.open(ROOT / "f")
    files.lock(ROOT / ".lock")
    file.append([b"abc"])
    files.kill()
    assert files.read_bytes(ROOT / "f") == b"abc"
    files.lock(ROOT / ".lock")
    with pytest.raises(AssertionError):
        file.append([b"d"])


def test_a_full_disk_takes_what_fits():
    """ENOSPC comes after the bytes that fitted; with space again, appends go on."""
    files = make_disk(1)
    file = files.open(ROOT / "f")
    files.space_bytes = 4
    with pytest.raises(OSError, match="space") as caught:
        file.append([b"abc", b"def"])
    assert caught.value.errno == errno.ENOSPC
    assert file.size == 4
    files.space_bytes = None
    file.append([b"x"])
    assert file.size == 5


def test_faults_that_were_asked_for():
    """`fail` answers so many times, only for matching names; `flip` changes one bit."""
    files = make_disk(1)
    file = files.open(ROOT / "f")
    files.fail("append", times=2, name="/f")
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            file.append([b"a"])
    file.append([b"a"])
    files.flip(ROOT / "f", 0, 1)
    assert file.read(0, 1) == bytes([ord("a") ^ 2])


async def test_a_sync_covers_what_was_written_before_it(autojump_clock):
    """Bytes appended while a sync is under way are not covered by it."""
    for seed in range(30):
        files = make_disk(seed)
        file = files.open(ROOT / "f")
        file.append([b"abc"])
        await file.sync()
        file.append([b"d"])
        files.power_off()
        assert files.read_bytes(ROOT / "f")[:3] == b"abc", f"seed {seed}"


def test_descriptors_are_counted() -> None:
    """An open file and a lock use one each, and what opens a file for a moment needs one; renames
    and removals need none."""
    files = SimulatedFiles(random.Random(1))
    files.make_dir(ROOT)
    files.descriptors_max = 2
    lock = files.lock(ROOT / "lock")
    file = files.open(ROOT / "a", create=True)
    assert files.descriptors == 2
    for use in (
        lambda: files.open(ROOT / "b", create=True),
        lambda: files.read_bytes(ROOT / "a"),
        lambda: files.write_atomic(ROOT / "b", b""),
        lambda: files.list(ROOT),
        lambda: files.sync_dir(ROOT),
        lambda: files.remove_tree(ROOT),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            use()
    file.append([b"x"])
    file.sync_now()
    files.rename(ROOT / "a", ROOT / "c")
    file.close()
    file.close()
    assert files.descriptors == 1
    files.write_atomic(ROOT / "b", b"")
    assert files.list(ROOT) == ["b", "c", "lock"]
    lock.release()
    assert files.descriptors == 0
