"""`minibroker cluster` as tests type it, for a directory with a cluster of real brokers."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from minibroker.cli.cluster.layout import Layout
from tests.support.processes import COMMAND, run_cli, run_here

PATIENCE_S = 30.0
# Commands that start brokers are run in a process of their own: brokers become its children.
STARTING = {"up", "start", "roll"}


class Cluster:
    """The commands for one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stderr = ""

    def __call__(self, line: str, code: int = 0, stdin: str = "") -> str:
        """A `cluster` command's stdout; it must end with `code`, and never with a traceback."""
        verb, *options = line.split()
        return self._run(["cluster", verb, *options, "--data-dir", str(self.root)], code, stdin)

    def ask(self, line: str, code: int = 0, stdin: str = "") -> str:
        """The same for a command that asks the brokers."""
        return self._run([*line.split(), "-b", Layout.load(self.root).bootstrap], code, stdin)

    def _run(self, arguments: list[str], code: int, stdin: str) -> str:
        if arguments[0] == "cluster" and arguments[1] in STARTING:
            done = run_cli(*arguments, stdin=stdin, timeout_s=90)
        else:
            done = run_here(*arguments, stdin=stdin)
        self.stderr = done.stderr
        assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}{self.logs}"
        assert "Traceback" not in done.stderr
        return done.stdout

    @property
    def states(self) -> list[str]:
        """Of the brokers' processes."""
        return [row["state"] for row in json.loads(self("status --format json"))["brokers"]]

    @property
    def logs(self) -> str:
        """What the brokers have said last, for a failure's message."""
        paths = sorted(self.root.glob("broker-*.log"))
        return "".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in paths)

    def kill_all(self) -> None:
        """Whoever is left."""
        numbers = [path.stem.removeprefix("broker-") for path in self.root.glob("broker-*.pid")]
        if numbers:
            run_cli("cluster", "kill", *numbers, "--data-dir", str(self.root))


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """An `AssertionError` that says what did not come about."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Foreground:
    """`cluster up` that stays; its lines are read as they come."""

    def __init__(self, root: Path, *options: str) -> None:
        self.output = root.parent / "up.output"
        command = [*COMMAND, "cluster", "up", "--data-dir", str(root), *options]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait_for(self, pattern: str) -> None:
        """Until it has said so; an error if it ends instead."""
        wait_until(f"{pattern} in:\n{self.text}", lambda: self._has(pattern))

    def _has(self, pattern: str) -> bool:
        has_ended = self.process.poll() is not None
        if re.search(pattern, self.text):
            return True
        assert not has_ended, self.text
        return False

    @property
    def text(self) -> str:
        """All that it has said."""
        return self.output.read_text()

    def __enter__(self) -> "Foreground":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
