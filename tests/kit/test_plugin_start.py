"""What the plugin costs every pytest session where minibroker is installed."""

import subprocess
import sys

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
