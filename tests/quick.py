"""A pytest plugin, for `make check`: only the tests that start no process.

    python -m pytest -p tests.quick [--share 1/4]

A test file is left out if it imports what starts processes, itself or by way of another module of
the tests, and a test if it needs Spark. A test that starts a process all the same fails. What takes
minutes is left out, too: `LONG`. With `--share` only a part of the files runs, so that several
processors can run one each.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
STARTERS: Final = {"subprocess", "multiprocessing", "trio.run_process", "os.fork"}
# Folders of processes, Spark and simulated clusters; interrupts at each line of a program and each
# cancellation of a task, all orders of pushes, each bit of a header, fuzzing, a real disk's syncs.
LONG: Final = {
    *(
        ROOT / "tests" / name
        for name in ("acceptance", "adversary", "audit", "bench", "fuzz", "kit", "sim")
    ),
    *(
        ROOT / "tests" / "unit" / name
        for name in (
            "client/asyncio/test_asyncio_clients.py",
            "client/blocking/test_blocking_interrupts.py",
            "controller/test_failover.py",
            "controller/test_pushes.py",
            "kafka/test_fuzz.py",
            "log/test_real_disk.py",
            "test_damaged_headers.py",
        )
    ),
}
STARTING: Final = {"spark", "kafka_broker", "kafka_cluster"}
EVENTS: Final = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


class ProcessStarted(Exception):
    """A test of a file that seemed to start no process has started one."""


def _named(tree: ast.AST) -> Iterator[str]:
    """What a file imports, and its uses of the form `module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


@cache
def _names_of(path: Path) -> frozenset[str]:
    return frozenset(_named(ast.parse(path.read_text(encoding="utf-8"), str(path))))


def starts_processes(path: Path) -> bool:
    """Whether a module of the tests imports what starts processes."""
    waiting, seen = [path], {path}
    while waiting:
        names = _names_of(waiting.pop())
        if names & STARTERS:
            return True
        ours = (name.replace(".", "/") for name in names if name.startswith("tests."))
        found = {ROOT / f"{name}.py" for name in ours} - seen
        seen |= found
        waiting += [module for module in found if module.is_file()]
    return False


def is_in_share(path: Path, share: str) -> bool:
    """Whether a file is in the share `N/M`: each file is in one of the M."""
    number, _, count = share.partition("/")
    return crc32(path.relative_to(ROOT).as_posix().encode()) % int(count) == int(number) - 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """The share."""
    parser.addoption("--share", default="1/1", metavar="N/M", help="Run this part of the files.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that start processes, those of other shares, and what takes minutes."""
    if collection_path in LONG:
        return True
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    is_ours = is_in_share(collection_path, config.getoption("share"))
    return True if not is_ours or starts_processes(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests whose fixtures start processes: Spark, and the kit's brokers."""
    left = [item for item in items if STARTING & {*getattr(item, "fixturenames", ())}]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in EVENTS:
        raise ProcessStarted(f"{event}{arguments[:2]}: `make check` runs what starts no process")


def pytest_sessionstart() -> None:
    """From here on a process that is started is an error."""
    sys.addaudithook(_refuse)
