"""Which test files `make check` runs."""

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
    """Both shares together are all, and neither is small."""
    files = list((ROOT / "tests" / "unit").rglob("test_*.py"))
    shares = [{path for path in files if is_in_share(path, f"{n}/2")} for n in (1, 2)]
    assert shares[0] | shares[1] == set(files)
    assert not shares[0] & shares[1]
    assert min(map(len, shares)) > 0.3 * len(files)
