"""Where a cluster of a test lies: nobody else is there, and nothing stays behind."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.testing.kit.run_directory import (
    KEPT_MAX,
    PORTS_EACH,
    PORTS_MIN,
    AllPortsTaken,
    RunDirectory,
    ports_of,
)
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


def test_ports_come_from_a_range_that_is_set(base: Path) -> None:
    """As many clusters as it has room for, and no port outside of it."""
    ports = ports_of(f"24005-{24_004 + PORTS_MIN + PORTS_EACH}")
    first, second = RunDirectory.reserve(base, ports), RunDirectory.reserve(base, ports)
    bases = {first.base_port, second.base_port}
    assert len(bases) == 2
    assert all(port in ports and port + PORTS_EACH - 1 in ports for port in bases)
    with pytest.raises(AllPortsTaken, match=r"from 24005 to 24147 are taken; each .* 48: end"):
        RunDirectory.reserve(base, ports)
    first.release()
    second.release()
    low = RunDirectory.reserve(base, ports_of("10000-10094"))
    assert low.base_port in ports_of("10000-10094")
    low.release()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("20000", "'20000': expected FIRST-LAST, such as 20000-20400"),
        ("a-b", "'a-b': expected FIRST-LAST"),
        ("80-300", "ports are from 1024 to 65535"),
        ("65000-65600", "ports are from 1024 to 65535"),
        ("20000-20050", "expected at least 95 ports, and 48 more for each"),
        ("20400-20000", "expected at least 95 ports"),
    ],
)
def test_ranges_of_ports_that_cannot_be(text: str, said: str) -> None:
    """The error says what is expected."""
    with pytest.raises(ValueError, match=said):
        ports_of(text)


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
