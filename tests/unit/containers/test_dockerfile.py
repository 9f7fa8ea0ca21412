"""The Dockerfile: what a linter says of it, and what docs/containers.md tells of its images."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.topology import ROOT, context_files, read_images

DOCKERFILE = ROOT / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
IMAGES = read_images(DOCKERFILE)
FINAL = ("broker", "audit")


def test_the_linter_finds_nothing() -> None:
    """hadolint, which also looks into the shell's lines."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_base_is_pinned() -> None:
    """One base, with its whole version and Debian's; Python is one that the package takes."""
    foreign = [name for name in re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) if ":" in name]
    [version] = [re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-[a-z]+", name) for name in foreign]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version
    assert project["requires-python"] == f">={version[1]}"


@pytest.mark.parametrize("target", FINAL)
def test_an_image_runs_without_root(target: str) -> None:
    """By a number, which needs no list of users to be checked, as nobody that the base knows."""
    user, group = map(int, IMAGES[target].user.split(":"))
    assert min(user, group) >= 10_000
    assert f"useradd --uid {user} --gid {group}" in TEXT
    for directory in ("/var/lib/minibroker", "/evidence"):
        made = rf"install --directory --owner {user} --group {group} .*{directory}"
        assert re.search(made, TEXT), f"{directory} is not the user's"


def test_the_broker_is_process_one() -> None:
    """No shell stands between it and signals: entrypoint and command are lists. Its data are in a
    volume, and it is told so by a variable, whatever else is in a file."""
    broker = IMAGES["broker"]
    assert broker.command == ("minibroker", "start", "--config", "/mnt/shared/config")
    assert broker.volumes == {broker.environment["KAFKA_LOG_DIRS"]}
    assert broker.stop_signal == "SIGTERM"
    assert broker.environment["PYTHONUNBUFFERED"] == "1"
    assert IMAGES["audit"].health is None


def test_the_last_stage_is_the_broker() -> None:
    """`docker build .` without a target makes it."""
    assert list(IMAGES)[-1] == "broker"


def test_requirements_are_those_of_the_project(tmp_path: Path) -> None:
    """What the two lines of Python in the Dockerfile print, run as they stand there."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = re.findall(r"^RUN (python -c '.*?' > requirements.txt)", TEXT, re.DOTALL | re.MULTILINE)
    told = []
    for line in lines:
        command = line.replace("\\\n", "").replace("python", sys.executable, 1)
        subprocess.run(["sh", "-euc", command], cwd=tmp_path, check=True)
        told.append((tmp_path / "requirements.txt").read_text(encoding="utf-8").splitlines())
    assert told == [project["dependencies"], project["optional-dependencies"]["audit"]]


def test_the_context_is_small() -> None:
    """Source, and nothing that this machine has made of it or that only developers need."""
    names = {path.relative_to(ROOT).as_posix() for path in context_files()}
    assert {"pyproject.toml", "README.md", "broker/py.typed", "docker/server.properties"} <= names
    folders = {name.split("/")[0] for name in names if "/" in name}
    assert folders == {"audit", "broker", "cli", "client", "docker", "protocol", "testing"}
    assert not [name for name in names if name.endswith(".pyc")]
