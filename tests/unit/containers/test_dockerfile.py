"""The Dockerfile: what a linter says of it, and what docs/containers.md tells of its images."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minibroker
from tests.support.topology import ROOT, context_files, read_images

DOCKERFILE = ROOT / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
IMAGES = read_images(DOCKERFILE)
FINAL = ("broker", "audit")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_linter_finds_nothing() -> None:
    """hadolint, which also looks into the shell's lines."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_base_is_pinned() -> None:
    """One base, with its whole version and Debian's; Python is one that the package takes."""
    foreign = [name for name in re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) if ":" in name]
    [version] = [re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-[a-z]+", name) for name in foreign]
    assert version
    assert PROJECT["project"]["requires-python"] == f">={version[1]}"


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
    assert broker.volumes == {broker.environment["MINIBROKER_VOLUME"]}
    assert broker.stop_signal == "SIGTERM"
    assert broker.environment["PYTHONUNBUFFERED"] == "1"
    assert IMAGES["audit"].health is None


def test_the_last_stage_is_the_broker() -> None:
    """`docker build .` without a target makes it."""
    assert list(IMAGES)[-1] == "broker"


def locked(name: str) -> dict[str, Requirement]:
    """The requirements of a lock by name, each with at least one hash."""
    text = (ROOT / "docker" / f"{name}.lock.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = [entry for entry in re.split(r"(?<!\\)\n", "\n".join(lines)) if entry.strip()]
    assert all("--hash=sha256:" in entry for entry in entries), "a requirement without its hash"
    found = [Requirement(entry.split("\\")[0].strip()) for entry in entries]
    return {canonicalize_name(one.name): one for one in found}


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("build", PROJECT["build-system"]["requires"]),
        ("libraries", PROJECT["project"]["dependencies"]),
        ("audit", PROJECT["project"]["optional-dependencies"]["audit"]),
    ],
)
def test_the_locks_have_what_the_project_requires(lock: str, wanted: list[str]) -> None:
    """Each requirement in one version, which the project takes; `make locks` makes them anew."""
    found = locked(lock)
    for requirement in map(Requirement, wanted):
        one = found[canonicalize_name(requirement.name)]
        [version] = [each.version for each in one.specifier if each.operator == "=="]
        assert requirement.specifier.contains(version), f"{one} in docker/{lock}.lock.txt"
        assert f"COPY docker/{lock}.lock.txt ." in TEXT
        assert f"--requirement {lock}.lock.txt" in TEXT


def test_the_audit_has_the_libraries_of_the_broker() -> None:
    """In the same versions: one image is made on top of the other's libraries."""
    base, more = locked("libraries"), locked("audit")
    shared = base.keys() & more.keys()
    assert {name: str(base[name].specifier) for name in shared} == {
        name: str(more[name].specifier) for name in shared
    }


@pytest.mark.parametrize("target", FINAL)
def test_an_image_says_what_it_is(target: str) -> None:
    """By labels that registries and tools read: the package's version and licence."""
    labels = IMAGES[target].labels
    assert labels["org.opencontainers.image.version"] == minibroker.__version__
    assert labels["org.opencontainers.image.licenses"] == PROJECT["project"]["license"]
    assert labels["org.opencontainers.image.title"] == "minibroker"


def test_the_context_is_small() -> None:
    """Source, and nothing that this machine has made of it or that only developers need."""
    names = {path.relative_to(ROOT).as_posix() for path in context_files()}
    assert {"pyproject.toml", "README.md", "LICENSE", "package/py.typed"} <= names
    folders = {name.split("/")[0] for name in names if "/" in name}
    parts = {"audit", "broker", "cli", "client", "package", "protocol", "testing"}
    assert folders == {*parts, "docker"}
    assert not [name for name in names if name.endswith(".pyc")]
