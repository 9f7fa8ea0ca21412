"""Where a broker may keep its data: whose directory it is, and whether it lasts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.cli.broker.data_directory import (
    VOLUME_VARIABLE,
    data_directory,
    log_directories,
    volume_warning,
)
from minibroker.cli.terminal import Failure
from tests.support.processes import run_here

# As root this becomes another user; anybody else is one already.
FOREIGN = """
import os, sys
from pathlib import Path
from minibroker.cli.broker.data_directory import data_directory, log_directories
from minibroker.cli.terminal import Failure

if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(10001, 10001, 10001)
    os.setresuid(10001, 10001, 10001)
for name in sys.argv[1:]:
    try:
        data_directory(Path(name))
    except Failure as failure:
        print(failure)
"""


def test_a_directory_is_made(tmp_path: Path) -> None:
    """With what is above it; one that exists is as good."""
    for _ in range(2):
        assert data_directory(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match=r"is a file, so .* name another one with --data-dir"):
        data_directory(tmp_path / "file" / "data")


def test_the_directory_of_another_user_is_refused() -> None:
    """Whether it exists or would have to be made: both users are named, and both remedies."""
    is_root = os.geteuid() == 0
    uid, gid = (10001, 10001) if is_root else (os.geteuid(), os.getegid())
    paths = ["/etc", "/etc/minibroker/data"]
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN, *paths], capture_output=True, text=True, check=False
    )
    said = (
        f"/etc belongs to user 0, and this broker runs as user {uid}, which may not keep its data"
        f" there: chown -R {uid}:{gid} /etc, or run the broker as user 0"
        " (docker run --user 0:0)\n"
    )
    assert (done.stdout, done.stderr) == (said * 2, "")


def test_data_outside_of_a_volume_are_warned_of(tmp_path: Path) -> None:
    """In a container of the image, on the file system of its root; elsewhere nothing is said."""
    inside = {VOLUME_VARIABLE: "/var/lib/minibroker"}
    warning = volume_warning(tmp_path, inside, top=tmp_path)
    assert f"log.dirs={tmp_path} is not on a volume" in warning
    assert "leave KAFKA_LOG_DIRS at /var/lib/minibroker" in warning
    assert volume_warning(tmp_path, {}, top=tmp_path) == ""
    assert volume_warning(tmp_path, inside, top=Path("/proc")) == ""


def test_log_directories_are_apart(tmp_path: Path) -> None:
    """Also where a link hides it. Only the first is made here."""
    first, second, link = tmp_path / "1", tmp_path / "2", tmp_path / "link"
    assert log_directories(first, second) == (first, second)
    assert (first.exists(), second.exists()) == (True, False)
    link.symlink_to(first)
    with pytest.raises(Failure, match="are the same: name others"):
        log_directories(first, second, link)
    with pytest.raises(Failure, match="lie one in the other"):
        log_directories(first, link / "below")


def test_the_flag_names_several_directories(tmp_path: Path) -> None:
    """As `log.dirs` does: two that are the same are refused before anything starts."""
    done = run_here("start", "--data-dir", f"{tmp_path}/a,{tmp_path}/b,{tmp_path}/a")
    assert done.returncode == 2
    assert "it takes directories, with commas between them" in done.stderr
