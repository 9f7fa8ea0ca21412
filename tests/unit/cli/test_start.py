"""What `start` makes of its settings before there is a broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.broker.config import Config
from minibroker.cli.start import limited


@pytest.mark.parametrize(
    ("wanted", "files_max", "connections"),
    [(2**31 - 1, 65_536, 32_768), (100, 65_536, 100), (2**31 - 1, 256, 128), (9, 1, 1)],
)
def test_connections_leave_files_to_the_logs(wanted: int, files_max: int, connections: int) -> None:
    """However many connections are allowed, half of the descriptors stay for segments."""
    config = limited(Config(max_connections=wanted), files_max)
    assert config.max_connections == connections


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
