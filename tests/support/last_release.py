"""The last release, taken from the history of this repository, beside the package of today.

Its libraries are those of this environment: the release is a folder `minibroker` of links, which
stands before the installed package in `PYTHONPATH` of a broker's process. Nothing is installed.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.topology import ROOT


class Release(NamedTuple):
    """A release: its tag, and the commit, which a clone has even without tags."""

    tag: str
    commit: str


# What brokers of today are rolled from, and back to. Each release sets it to the one before it;
# before v0.1.0 it is a commit that stands in its place.
LAST_RELEASE: Final = Release("v0.1.0", "ccc1aa23af9498e682cfde73af806d452d60249c")


def last_release(place: Path) -> Path:
    """Lay out the last release in a directory, and return what goes into `PYTHONPATH`."""
    git = ["git", "-C", str(ROOT), "archive", LAST_RELEASE.commit]
    done = subprocess.run(git, capture_output=True, check=False)
    assert done.returncode == 0, (
        f"the history has no {LAST_RELEASE.commit} ({LAST_RELEASE.tag}); a shallow clone gets it by"
        f" `git fetch --unshallow`: {done.stderr.decode()}"
    )
    source = place / "source"
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(source, filter="data")
    return _linked(source, place / "path")


def _linked(source: Path, path: Path) -> Path:
    """Make the package of a tree importable, and return where."""
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    places = dict(project["tool"]["setuptools"]["package-dir"])
    package = path / "minibroker"
    package.mkdir(parents=True)
    for file in (source / places.pop("minibroker")).iterdir():
        (package / file.name).symlink_to(file)
    for name, folder in places.items():
        (package / name.removeprefix("minibroker.")).symlink_to(source / folder)
    asked = [sys.executable, "-c", "import minibroker.broker.app as app; print(app.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    told = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).is_relative_to(path), f"{told.stdout} is imported instead"
    return path
