"""What the plugin costs every pytest session where minibroker is installed."""

import subprocess
import sys
from pathlib import Path

LOADED = """
import pytest, sys
before = set(sys.modules)
import minibroker.testing.pytest_plugin
names = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(names - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("minibroker")))
"""


def test_it_loads_nothing_but_pytest_and_the_standard_library() -> None:
    """Of minibroker itself only the packages that it lies in."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "minibroker",
        "minibroker minibroker.testing minibroker.testing.pytest_plugin",
    ]


def test_pytest_may_be_started_by_a_program_that_uses_minibroker(tmp_path: Path) -> None:
    """pytest warns of plugins' packages that were imported before it began."""
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    options = ["-W", "error", "-p", "no:asyncio"]  # which warns of what is not set here
    program = f"import minibroker.client, pytest, sys; sys.exit(pytest.main({options}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "PytestAssertRewriteWarning" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
