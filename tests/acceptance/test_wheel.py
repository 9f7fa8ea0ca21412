"""A wheel, built from the archive of the sources, installed where nothing else of the tree is.

The archive is built from what .dockerignore leaves of the tree, so an image has the same wheel.

The environment's dependencies are copied from the one that runs the tests, following what the
wheel itself declares: so a requirement that is not declared is missing there, and no index is
asked.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from minibroker import __version__
from tests.installed import declared_files
from tests.support.topology import ROOT, context_files

PARTS = ("audit", "broker", "cli", "client", "protocol", "testing")


def build_wheel(directory: Path) -> Path:
    """Build the archive of the sources, and the wheel from it alone, in a copy of the tree."""
    source = directory / "source"
    for path in context_files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory]
    done = subprocess.run([*build, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [archive], [wheel] = directory.glob("*.tar.gz"), directory.glob("*.whl")
    assert archive.name == f"minibroker-{__version__}.tar.gz"
    with tarfile.open(archive) as sources:
        folders = {name.split("/")[1] for name in sources.getnames() if name.count("/") > 1}
    assert folders == {*PARTS, "package", "minibroker.egg-info"}
    return wheel


def requirements_of(name: str) -> list[str]:
    """What a distribution needs here, without extras."""
    requirements = [Requirement(text) for text in distribution(name).requires or []]
    return [
        requirement.name
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]


def copy_distributions(names: list[str], target: Path) -> None:
    """Copy installed distributions and all that they need."""
    waiting, done = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        waiting += requirements_of(name)
        for file in distribution(name).files or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), target / file)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it declares, and nothing else."""
    directory = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(directory)
    home = directory / "environment"
    venv.create(home, symlinks=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "install", *options, wheel], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == declared_files(ROOT)
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in text
    declared = [line.split(":", 1)[1] for line in text.splitlines() if "Requires-Dist:" in line]
    needed = [Requirement(line) for line in declared]
    copy_distributions([each.name for each in needed if each.marker is None], packages)
    return home


def run(environment: Path, *command: str, stdin: str = "") -> subprocess.CompletedProcess:
    """Run a program of the environment, outside the tree."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=environment,
        env=clean,
        timeout=60,
        check=False,
    )


def test_start_produce_consume(environment: Path, tmp_path: Path) -> None:
    """The installed command starts a broker, produces and consumes."""
    broker = subprocess.Popen(
        [environment / "bin" / "minibroker", "start", "-d", tmp_path / "data", "-l", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=environment,
    )
    try:
        assert broker.stdout
        address = next(
            line.split()[-1] for line in broker.stdout if line.startswith("Listening on ")
        )
        sent = run(environment, "minibroker", "produce", "t", "-b", address, stdin="a\nb\n")
        assert sent.returncode == 0, sent.stderr
        read = run(environment, "minibroker", "consume", "t", "-b", address, "-o", "-2", "-e")
        assert (read.returncode, read.stdout) == (0, "a\nb\n"), read.stderr
        broker.terminate()
        assert broker.wait(30) == 0
    finally:
        broker.kill()
        broker.communicate()


def test_the_package_runs_as_a_module(environment: Path) -> None:
    """`python -m minibroker` is the command; it, the command and the package name one version."""
    asked = ("import minibroker; print('minibroker', minibroker.__version__)",)
    for command in (("python", "-m", "minibroker", "--version"), ("minibroker", "--version")):
        done = run(environment, *command)
        assert (done.returncode, done.stdout) == (0, f"minibroker {__version__}\n"), done.stderr
    assert run(environment, "python", "-c", *asked).stdout == f"minibroker {__version__}\n"


@pytest.mark.parametrize("part", PARTS)
def test_no_plain_name_is_taken(environment: Path, part: str) -> None:
    """`import client` fails: the package takes no word but its own from anybody."""
    assert run(environment, "python", "-c", f"import minibroker.{part}").returncode == 0
    taken = run(environment, "python", "-c", f"import {part}")
    assert taken.returncode == 1
    assert "ModuleNotFoundError" in taken.stderr


def test_the_audit_says_which_extra_it_needs(environment: Path, tmp_path: Path) -> None:
    """Without Spark everything else works, and the audit is one line that says what to install."""
    done = run(environment, "minibroker", "audit", "run", str(tmp_path))
    assert done.returncode == 2
    assert "pip install 'minibroker[audit]'" in done.stderr
    [page] = environment.glob("lib/python*/site-packages/minibroker/audit/report/page.html")
    assert page.stat().st_size > 0


FIVE_LINES = """
def test_orders(kafka_broker):
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer, kafka_broker.drop_response("PRODUCE", topic=topic):
        producer.send(topic, b"an order").result(10)
    assert [record.value for record in kafka_broker.read_all(topic)] == [b"an order"]
"""


def test_a_test_of_five_lines(environment: Path, tmp_path: Path) -> None:
    """With the extra `pytest`, and without a conftest, the fixtures are there."""
    [packages] = environment.glob("lib/python*/site-packages")
    copy_distributions(["pytest"], packages)
    program = tmp_path / "test_orders.py"
    program.write_text(FIVE_LINES)
    done = run(environment, "python", "-m", "pytest", "-W", "error", str(program))
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
