"""Runs a pytest of its own on test files that are written out, as a user's session would be."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 120


class Session(NamedTuple):
    """How it ended, and all that it printed."""

    code: int
    text: str


class Inner:
    """Sessions in a directory, whose clusters lie in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir()

    def write(self, text: str) -> None:
        """The test file."""
        (self.directory / "test_it.py").write_text(textwrap.dedent(text))

    def start(
        self, *options: str, test: str = "test_it.py", **variables: str
    ) -> "subprocess.Popen[str]":
        """A session on it, or on another file."""
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, test],
            cwd=self.directory,
            env=os.environ
            | {"TMPDIR": str(self.temporary), "PYTHONDONTWRITEBYTECODE": "1"}
            | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str, test: str = "test_it.py", **variables: str) -> Session:
        """A session from its start to its end."""
        process = self.start(*options, test=test, **variables)
        text, _ = process.communicate(timeout=TIMEOUT_S)
        return Session(process.returncode, text)

    def left_files(self) -> list[Path]:
        """What lies where the clusters were."""
        return [path for path in self.temporary.rglob("*") if path.name.startswith("slot-")]

    def left_processes(self) -> list[str]:
        """The command lines of processes that belong to its clusters."""
        shown = subprocess.run(
            ["ps", "-ww", "-eo", "stat=,args="], capture_output=True, text=True, check=True
        )
        return [line for line in shown.stdout.splitlines() if str(self.temporary) in line]
