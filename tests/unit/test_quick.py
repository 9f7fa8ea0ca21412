"""Which test files `make check` runs."""

import re
from pathlib import Path

import pytest

from tests.quick import ROOT, is_in_share, starts_processes


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("import trio\n", False),
        ("import subprocess\n", True),
        ("from subprocess import run\n", True),
        ("import trio\n\nasync def f():\n    await trio.run_process([])\n", True),
        ("from tests.support.processes import running_broker\n", True),
        ("from tests.support.witness import Lines\n", False),
    ],
)
def test_a_file_that_starts_processes_is_known(tmp_path: Path, text: str, starts: bool) -> None:
    """By what it imports, itself or by way of another module of the tests."""
    path = tmp_path / "test_it.py"
    path.write_text(text, encoding="utf-8")
    assert starts_processes(path) == starts


def test_most_unit_tests_are_quick() -> None:
    """Else the check before a commit would show little."""
    files = list((ROOT / "tests" / "unit").rglob("test_*.py"))
    quick = [path for path in files if not starts_processes(path)]
    assert len(quick) > 0.8 * len(files)


def test_each_file_is_in_one_share() -> None:
    """The shares that `make check` runs are together all files, and none is small."""
    files = list((ROOT / "tests" / "unit").rglob("test_*.py"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    count = int(re.findall(r"--share \$\(@:quick-%=%\)/(\d+)", makefile)[0])
    targets = " ".join(f"quick-{number}" for number in range(1, count + 1))
    assert f"QUICK := {targets}\n" in makefile
    shares = [
        {path for path in files if is_in_share(path, f"{number}/{count}")}
        for number in range(1, count + 1)
    ]
    assert sum(map(len, shares)) == len(files)
    assert set.union(*shares) == set(files)
    assert min(map(len, shares)) > 0.6 * len(files) / count
