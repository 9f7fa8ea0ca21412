"""What type checkers see of the package: inside a working tree, and in a user's program."""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed import ROOT
from tests.support.topology import context_files

PROGRAM = """
import trio

from minibroker.client import Consumer, Producer
from minibroker.client.blocking import Producer as BlockingProducer


async def main() -> None:
    async with Producer("127.0.0.1:9092") as producer:
        await producer.send("words", b"value", key=b"key")
    async with Consumer("127.0.0.1:9092", group_id="readers") as consumer:
        await consumer.subscribe("words")
        async for record in consumer:
            offset: int = record.offset
            print(offset, record.value)
    with BlockingProducer("127.0.0.1:9092") as blocking:
        blocking.send("words", b"value")
    with BlockingProducer("127.0.0.1:9092", value_serializer=str.encode) as texts:
        texts.send("words", "value", key=b"key")
    numbers = Consumer("127.0.0.1:9092", value_deserializer=int)
    total: int = sum([record.value or 0 for record in await numbers.poll()])
    print(total)


trio.run(main)
"""
WRONG = PROGRAM.replace("offset: int", "offset: str")
MYPY = (sys.executable, "-m", "mypy", "--strict", "--no-error-summary")
PYRIGHT = (
    sys.executable,
    "-m",
    "basedpyright",
    "--level",
    "error",
    "--pythonpath",
    sys.executable,
)


CHECKERS = {"mypy": MYPY, "basedpyright": PYRIGHT}
EXAMPLES = ROOT / "examples"


def programs() -> Iterator[tuple[str, str]]:
    """The programs for minibroker's clients that the documents show, each with a name for its
    file. Those for other libraries have no types that we could answer for."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        shown = re.findall(
            r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        for number, text in enumerate(shown, 1):
            if "minibroker" in text:
                yield f"{page.stem}_{number}.py", text


REFUSED = """
from minibroker.client import Consumer, ConsumerConfig, Producer, blocking

Consumer("127.0.0.1:9092", auto_offset_rest="earliest")
blocking.Consumer("127.0.0.1:9092", auto_offset_rest="earliest")
Consumer("127.0.0.1:9092", auto_offset_reset="first")
Producer("127.0.0.1:9092", linger_ms="5")
config: ConsumerConfig = {"bootstrap.servers": "127.0.0.1:9092", "auto.offset.rest": "none"}
"""
TAKEN = """
from minibroker.client import Admin, Consumer, ConsumerConfig, Producer, blocking

config: ConsumerConfig = {"bootstrap.servers": "127.0.0.1:9092", "fetch.min.bytes": "5"}
Consumer(config, auto_offset_reset="earliest")
read: dict[str, str] = {"bootstrap.servers": "127.0.0.1:9092"}
for client in (Admin(read), Consumer(read), Producer(read), blocking.Producer(read, acks="all")):
    print(client)
"""


@pytest.fixture(scope="module", params=CHECKERS.values(), ids=CHECKERS)
def said(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The errors that a type checker tells, by file, in one run over all programs outside of the
    repository: most of the time of a run is for the package."""
    place = tmp_path_factory.mktemp("programs")
    files = {
        "sound.py": PROGRAM,
        "wrong.py": WRONG,
        "refused.py": REFUSED,
        "taken.py": TAKEN,
        **dict(programs()),
        **{path.name: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")},
    }
    for name, text in files.items():
        (place / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [*request.param, *files], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, list[str]] = {name: [] for name in files}
    for line in done.stdout.splitlines():
        if "error" in line and (at := re.search(r"(\w+\.py):\d+", line)):
            found[at[1]].append(line)
    assert found["wrong.py"], done.stdout
    return found


def test_the_programs_of_the_documents_are_typed(said: dict[str, list[str]]) -> None:
    """Users begin with a copy of one, and their editor shows no error in it."""
    names = [name for name, _ in programs()]
    assert len(names) >= 4, "README and docs/audit.md have two each"
    assert [said[name] for name in names] == [[]] * len(names)


def test_the_examples_are_typed(said: dict[str, list[str]]) -> None:
    """As a user's programs."""
    names = [path.name for path in EXAMPLES.glob("*.py")]
    assert len(names) >= 6
    assert [said[name] for name in names] == [[]] * len(names)


def test_a_program_is_checked_against_the_package(said: dict[str, list[str]]) -> None:
    """A sound program is clean, and one that takes an offset for a text is told so at its line."""
    line = WRONG[: WRONG.index("offset: str")].count("\n") + 1
    assert f"wrong.py:{line}" in said["wrong.py"][0]
    assert said["sound.py"] == []


def test_a_wrong_option_is_an_error_in_the_editor(said: dict[str, list[str]]) -> None:
    """Each line with a wrong name or value is refused, and a mapping from a file is taken."""
    lines = {int(line) for line in re.findall(r"refused\.py:(\d+)", "\n".join(said["refused.py"]))}
    assert lines == {4, 5, 6, 7, 8}, said["refused.py"]
    assert said["taken.py"] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the working tree with an environment of its own, in which it is not installed.

    The libraries and tools are those of the environment that runs the tests.
    """
    root = tmp_path / "tree"
    files = [*context_files(), ROOT / "Makefile", ROOT / "tests" / "installed.py"]
    for path in files:
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    home = root / ".venv"
    venv.create(home, symlinks=True, with_pip=False)
    [packages] = home.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "tools.pth").write_text("\n".join(paths), encoding="utf-8")
    (home / "ready").touch()
    return root


def make(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`make` in a tree, as from a shell."""
    names = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        ["make", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_an_editor_shows_the_errors_of_the_repository(tree: Path) -> None:
    """Opened as a folder, without options: pyright takes what it needs from pyproject.toml, and
    finds the one error that there is, with the type of an import from the package."""
    assert make(tree, "installed").returncode == 0
    (tree / "protocol" / "types_added.py").write_text(
        "from minibroker.protocol.types import TopicPartition\n"
        'count: int = TopicPartition("t", 1).topic\n',
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--level", "error", "protocol"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "types_added.py:2:14 - error" in done.stdout
    assert "1 error" in done.stdout.splitlines()[-1]


def test_a_new_file_is_type_checked(tree: Path) -> None:
    """`make types` installs again whenever files were added, without network, so that mypy sees
    an error in one. A second run installs nothing."""
    assert make(tree, "installed").returncode == 0
    (tree / "protocol" / "added.py").write_text('count: int = "one"\n', encoding="utf-8")
    first, second = (make(tree, "types", "TYPED=minibroker.protocol") for _ in range(2))
    for done in (first, second):
        assert done.returncode == 2, done.stdout + done.stderr
        assert "protocol/added.py:1: error: Incompatible types" in done.stdout
    assert "installing minibroker again" in first.stderr
    assert "installing minibroker again" not in second.stderr
