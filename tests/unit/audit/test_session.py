"""What Spark is started with: how much at once, and our package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.audit.packaging import write_package
from minibroker.audit.session import local_cores


def test_masters_inside_the_driver_are_told_from_others() -> None:
    """Only those need no package and bind to this machine alone; the number is of tasks at once."""
    told = {"local": 1, "local[3]": 3, "local[2,4]": 2, "local[*]": os.cpu_count()}
    assert {master: local_cores(master) for master in told} == told
    for other in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn", "k8s://https://host"):
        assert local_cores(other) is None


def test_the_package_is_all_that_a_worker_needs(tmp_path: Path) -> None:
    """The zip and the wheels that the docs name are enough to import what reads the logs."""
    package = write_package(tmp_path / "minibroker.zip")
    wheels = Path(pytest.__file__).parents[1]
    # -S: no `.pth` file is read, so an editable install is not found.
    code = (
        f"import sys; sys.path[:0] = [{str(package)!r}, {str(wheels)!r}]\n"
        "import minibroker.audit.source, minibroker.audit.network, minibroker.audit.files.indexes\n"
        "print(minibroker.audit.files.indexes.__file__)"
    )
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert told.stdout.startswith(str(package)), told.stderr
