"""What the doctor sees from this machine: a data directory and a metadata store, and what it says
of them."""

from dataclasses import replace
from pathlib import Path
from random import Random

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller.cluster_id import ensure_cluster_id
from minibroker.broker.findings import Level
from minibroker.broker.findings.storage import (
    GIB,
    DirectorySeen,
    StoreSeen,
    of_directory,
    of_store,
)
from minibroker.cli.broker.stores import open_store
from minibroker.cli.doctor.local import inspect_directory, inspect_store, open_files
from tests.support.etcd import NEEDS_ETCD, running_etcd

FAST = DirectorySeen(Path("/data"), "", 50 * GIB, 100 * GIB, 1.0, 200.0, 65_536)
NEAR = StoreSeen("etcd:http://e:2379", read_ms=2.0)


def bad_store(seen: StoreSeen | None) -> list[tuple[str, str]]:
    """Level and text of what is not well with a store, each with some advice."""
    assert seen is not None
    found = [each for each in of_store(seen) if each.level is not Level.OK]
    assert all(each.advice for each in found)
    return [(each.level, each.what) for each in found]


def bad_directory(seen: DirectorySeen) -> list[tuple[str, str]]:
    """The same of a directory."""
    found = [each for each in of_directory(seen) if each.level is not Level.OK]
    assert all(each.advice for each in found)
    return [(each.level, each.what) for each in found]


# -- a directory


def test_a_good_directory_is_told_so() -> None:
    """Its room, its speed, and how many files a broker may open."""
    assert list(of_directory(FAST)) == [
        ("ok", "/data has 50.0 GiB free, 50 % of its disk", ""),
        ("ok", "a broker started here may open 65536 files", ""),
        ("ok", "/data: 4 KiB are on the disk after 1.0 ms; it takes 200 MB a second", ""),
    ]


def test_a_directory_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    """The file that was written has no name and is gone."""
    seen = inspect_directory(tmp_path)
    assert (seen.path, seen.failure) == (tmp_path, "")
    assert 0 < seen.free_bytes < seen.total_bytes
    assert seen.sync_ms > 0
    assert seen.write_mb_s > 0
    assert list(tmp_path.iterdir()) == []


def test_files_that_everybody_may_read_are_named(tmp_path: Path) -> None:
    """Those in a directory that only its owner may enter are not, whatever their mode."""
    for name, mode in (("open-0", 0o755), ("closed-0", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").touch(0o644)
        (tmp_path / name).chmod(mode)
    (tmp_path / "store").touch(0o600)
    tmp_path.chmod(0o755)
    found = open_files(tmp_path)
    assert found == (tmp_path / "open-0" / "log",)
    [(level, text)] = bad_directory(replace(FAST, open_files=found))
    assert (level, text) == ("note", f"every user of this machine may read {found[0]}")
    tmp_path.chmod(0o700)
    assert open_files(tmp_path) == ()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Because it is none, or would be made in what is none, or leads nowhere."""
    file, below, lost = tmp_path / "file", tmp_path / "file" / "below", tmp_path / "lost"
    file.touch()
    lost.symlink_to(tmp_path / "nowhere")
    said = [each for path in (file, below, lost) for each in bad_directory(inspect_directory(path))]
    texts = [text for level, text in said if level == "problem"]
    assert f"{file} cannot be written: Not a directory" in texts
    assert f"{below} cannot be made: Not a directory" in texts
    assert f"{lost} cannot be written: No such file or directory" in texts
    assert set(tmp_path.iterdir()) == {file, lost}


def test_a_directory_that_the_first_start_makes_is_no_problem(tmp_path: Path) -> None:
    """The disk is tried in the one above it, which is left as it was."""
    path = tmp_path / "below" / "data"
    seen = inspect_directory(path)
    assert seen.sync_ms > 0
    assert seen.free_bytes > 0
    told = bad_directory(replace(FAST, path=path, is_there=seen.is_there))
    assert told == [("note", f"{path} is not there yet: a broker that starts makes it")]
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_told() -> None:
    """Slow to sync, and slow to write."""
    late = "/data: 4 KiB are on the disk after 80 ms"
    assert bad_directory(replace(FAST, sync_ms=80)) == [("note", late)]
    slow = replace(FAST, write_mb_s=9.0)
    assert bad_directory(slow) == [("note", "/data: its disk takes 9 MB a second")]


def test_a_full_disk_and_few_files_are_told_here_too() -> None:
    """As of a broker that runs."""
    full, few = replace(FAST, free_bytes=GIB // 2), replace(FAST, open_files_max=256)
    assert bad_directory(full) == [("problem", "/data has 0.5 GiB free, 0 % of its disk")]
    assert bad_directory(few) == [("note", "a broker started here may open 256 files")]


# -- a store


def test_a_store_that_cannot_be_read_is_a_problem_if_it_was_named() -> None:
    """One that only brokers have named may be out of our reach."""
    failed = replace(NEAR, failure="it is away")
    assert bad_store(failed) == [("problem", "etcd:http://e:2379 cannot be read here: it is away")]
    told = replace(failed, is_named=False)
    text = "etcd:http://e:2379, which the brokers use, cannot be read here: it is away"
    assert bad_store(told) == [("note", text)]


def test_a_slow_store_is_told() -> None:
    """As a note: how it is for the brokers, their leases tell."""
    text = "etcd:http://e:2379 takes 150 ms to be read from here"
    assert bad_store(replace(NEAR, read_ms=150)) == [("note", text)]


def test_a_member_that_is_away_is_told() -> None:
    """While the others still answer."""
    text = "of the etcd, http://f:2379 does not answer here: refused"
    away = replace(NEAR, failures={"http://f:2379": "refused"})
    assert bad_store(away) == [("problem", text)]
    assert bad_store(replace(away, is_named=False)) == [("note", text)]


def test_an_etcd_that_is_not_sound_is_told() -> None:
    """3.5.0 to 3.5.2 may lose their consistency; older ones than 3.5.13 end renewed leases."""

    def of(*versions: str) -> list[tuple[str, str]]:
        return bad_store(replace(NEAR, versions={f"e{i}": v for i, v in enumerate(versions)}))

    for version in ("3.5.0", "3.5.2"):
        text = f"etcd {version} at e0 may lose its consistency in a crash"
        assert of(version) == [("problem", text)]
    for version in ("3.4.23", "3.5.3", "3.5.12"):
        text = f"etcd {version} at e0 may end leases that were renewed, after a stall"
        assert of(version) == [("note", text)]
    assert of("3.5.13") == of("3.6.4") == []
    assert of("3.5.13", "3.6.4") == [("note", "the etcd's members differ: 3.5.13, 3.6.4")]


def test_a_store_in_a_file_is_read(tmp_path: Path) -> None:
    """If it is there; a store that is not there is not made. One that a broker of another machine
    may have named, and one in a broker's memory, cannot be seen."""
    path = tmp_path / "metadata.db"
    config = Config(metadata_store=f"sqlite:{path}", log_dirs=(tmp_path / "data",))
    missing = f"sqlite:{path} is not there yet: the first broker that starts makes it"
    assert bad_store(inspect_store(config, is_named=True)) == [("note", missing)]
    assert list(tmp_path.iterdir()) == []
    trio.run(_make_cluster, config)
    seen = inspect_store(config, is_named=True)
    assert seen is not None
    assert not seen.failure
    assert seen.read_ms > 0
    assert inspect_store(config, is_named=False) is None
    assert inspect_store(Config(metadata_store="memory:"), is_named=True) is None


@NEEDS_ETCD
def test_an_etcd_is_read(tmp_path: Path) -> None:
    """Each member is asked for its version, and the whole for a key; one that is dead is told, and
    so is an etcd without our cluster."""
    with running_etcd(tmp_path) as [etcd]:
        config = Config(metadata_store=f"etcd:{etcd.url},http://127.0.0.1:1")
        empty = inspect_store(config, is_named=True)
        assert empty is not None
        assert empty.failure == "it knows of no cluster under the prefix 'minibroker'"
        trio.run(_make_cluster, config)
        seen = inspect_store(config, is_named=True)
    assert seen is not None
    assert (list(seen.versions), list(seen.failures)) == ([etcd.url], ["http://127.0.0.1:1"])
    assert seen.versions[etcd.url].startswith("3.")
    assert not seen.failure
    assert seen.read_ms > 0
    dead = inspect_store(config, is_named=True)
    assert dead is not None
    assert "cannot be reached" in dead.failure


async def _make_cluster(config: Config) -> None:
    store = await open_store(config, Random(1))
    await ensure_cluster_id(store, Random(1))
    await store.close()
