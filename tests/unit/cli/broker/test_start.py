"""What `start` makes of its settings before there is a broker."""

import subprocess
import sys
from pathlib import Path

import pytest

STOPPED_AT_ITS_FIRST_IMPORT = """
import os, signal, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name in ("logging", "minibroker.cli.commands", "typer", "trio"):
            os.kill(os.getpid(), signal.SIGTERM)

import minibroker.cli.main
for name in ("logging", "typer", "trio"):
    assert name not in sys.modules, name
sys.meta_path.insert(0, Stop())
sys.argv = ["minibroker", "start", "--data-dir", "/dev/null/never"]
minibroker.cli.main.main()
"""


def test_a_stop_is_obeyed_before_anything_is_imported() -> None:
    """SIGTERM at the first import of the command ends it in order: as process 1 of a container it
    would be ignored otherwise, and the container be killed ten seconds later."""
    command = [sys.executable, "-c", STOPPED_AT_ITS_FIRST_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("store", [None, b""])
def test_a_lost_metadata_store_is_not_made_anew(tmp_path: Path, store: bytes | None) -> None:
    """Where an earlier run has left data, a store without topics would set all of it aside."""
    (tmp_path / "meta.properties").write_text("version=1\n")
    path = tmp_path / "metadata.db"
    if store is not None:
        path.write_bytes(store)
    before = sorted(tmp_path.iterdir())
    command = [sys.executable, "-m", "minibroker.cli", "start", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"% ERROR: the metadata store {path} is ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("place", "options", "part"),
    [
        (".", [], "directory of a cluster"),
        (".", ["--set", "metadata.store=memory:"], "directory of a cluster"),
        ("broker-2", [], "minibroker cluster start 2 --data-dir"),
    ],
)
def test_what_belongs_to_a_cluster_is_left_alone(
    tmp_path: Path, place: str, options: list[str], part: str
) -> None:
    """A single broker does not start in a cluster's directory, nor in that of one of its brokers,
    without the cluster's store; nothing is written."""
    (tmp_path / "cluster.properties").write_text("cluster.brokers=3\ncluster.base.port=7000\n")
    (tmp_path / "broker-2").mkdir()
    root = tmp_path / place
    before = sorted(root.iterdir())
    command = [sys.executable, "-m", "minibroker.cli", "start", "--data-dir", str(root), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert part in done.stderr
    assert sorted(root.iterdir()) == before
