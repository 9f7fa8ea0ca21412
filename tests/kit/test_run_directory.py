"""Where a cluster of a test lies: nobody else is there, and nothing stays behind."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.testing.kit.run_directory import KEPT_MAX, PORTS_EACH, RunDirectory
from minibroker.testing.kit.settings import HOST

TAKE_AND_DIE = """
import os, sys
from pathlib import Path
from minibroker.testing.kit.run_directory import RunDirectory
taken = RunDirectory.reserve(Path(sys.argv[1]))
(taken.root / "file").write_text("left")
print(taken.root, flush=True)
os._exit(9)
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Where the slots are."""
    return tmp_path / "base"


def test_each_has_a_directory_and_ports_of_its_own(base: Path) -> None:
    """Also while others come and go, and nothing is left of those that went."""
    first, second = RunDirectory.reserve(base), RunDirectory.reserve(base)
    assert first.root != second.root
    assert abs(first.base_port - second.base_port) >= PORTS_EACH
    first.release()
    assert not first.root.parent.exists()
    third = RunDirectory.reserve(base)
    assert third.root != second.root
    third.release()
    second.release()
    assert not base.exists()


def test_what_a_killed_session_left_is_removed_by_the_next(base: Path) -> None:
    """Its lock ended with it."""
    done = subprocess.run(
        [sys.executable, "-c", TAKE_AND_DIE, str(base)], capture_output=True, text=True, check=False
    )
    left = Path(done.stdout.strip())
    assert done.returncode == 9
    assert (left / "file").read_text() == "left"
    taken = RunDirectory.reserve(base)
    assert not (left / "file").exists()
    taken.release()
    assert not base.exists()


def test_what_another_session_holds_stays(base: Path) -> None:
    """Taking a slot removes only what nobody holds."""
    held = RunDirectory.reserve(base)
    (held.root / "file").write_text("mine")
    RunDirectory.reserve(base).release()
    assert (held.root / "file").read_text() == "mine"
    held.release()


def test_ports_that_somebody_else_has_are_passed_over(base: Path) -> None:
    """One of a range is enough."""
    first = RunDirectory.reserve(base)
    port = first.base_port + 2 * PORTS_EACH - 1
    first.release()
    with socket.create_server((HOST, port)):
        other = RunDirectory.reserve(base)
        assert port not in range(other.base_port, other.base_port + PORTS_EACH)
        other.release()


def test_the_ports_of_a_cluster_that_has_ended_rest(base: Path) -> None:
    """A client of it that was left open would find the next cluster there."""
    bases = []
    for _ in range(5):
        taken = RunDirectory.reserve(base)
        bases.append(taken.base_port)
        taken.release()
    assert len({*bases}) == 5


def test_the_newest_clusters_of_failed_tests_are_kept(base: Path) -> None:
    """And older ones removed."""
    kept = []
    for number in range(KEPT_MAX + 2):
        taken = RunDirectory.reserve(base)
        (taken.root / "file").write_text(str(number))
        kept.append(taken.kept_as.with_name(f"{number}"))
        taken.release(kept[-1])
    assert [path.exists() for path in kept] == [False] * 2 + [True] * KEPT_MAX
    assert (kept[-1] / "file").read_text() == str(KEPT_MAX + 1)
    assert os.listdir(base) == ["kept"]
