"""A pytest plugin, for `make test`: the tests that compute run beside those that wait.

Tests with real brokers and clients mostly wait for something; audits, simulations and short tests
compute: one after the other they leave a part of two processors idle. So they run in two sessions
of pytest beside the others. Those are nicer, so that what depends on time among the others is not
held up by them. The simulations are of whoever has done with its own (`tests/pool.py`), so that no
session ends long after the others. What each prints comes as a whole, right before the summary of
the others, and where one fails they fail.

    python -m pytest -p tests.beside
"""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

import pytest

from tests.pool import CLAIMS, FOLDER, Pool
from tests.support.processes import PART

ROOT: Final = Path(__file__).resolve().parents[1]
# All that need Spark, or take long and need little but a processor.
WITH_SPARK: Final = (
    "tests/audit",
    "tests/acceptance/test_failover.py",
    "tests/interop/test_failover.py",
    "tests/acceptance/test_examples.py",
    "tests/acceptance/test_typing.py",
    "tests/acceptance/test_wheel.py",
)
SHORT: Final = ("tests/unit",)
NICE: Final = 5


class Beside:
    """The other pytest, on these paths below `root`, from the start of a session to its end. `part`
    is its share of the ports. With a directory `claims` it shares the files of the pool, too."""

    def __init__(
        self, root: Path, paths: Sequence[str], part: int = 1, claims: str | None = None
    ) -> None:
        self._paths = [root / path for path in paths]
        self._name = f"beside: {' '.join(paths)}"
        self._told: IO[bytes] = TemporaryFile()  # noqa: SIM115
        command = ["nice", "-n", str(NICE), sys.executable, "-m", "pytest", *paths]
        environment = {**os.environ, PART: str(part)}
        if claims is not None:
            command += [str(FOLDER), "-p", "tests.pool"]
            environment[CLAIMS] = claims
        self._process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider"],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._told,
            stderr=subprocess.STDOUT,
        )

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """What the other one runs."""
        return True if collection_path in self._paths else None

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, None, None]:
        """Before the reporter's own, which ends with the summary."""
        self._process.wait()
        if self._process.returncode and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What it printed."""
        self._told.seek(0)
        terminalreporter.section(self._name)
        terminalreporter.write_line(self._told.read().decode(errors="replace").strip())
        if self._process.returncode:
            terminalreporter.write_line("FAILED beside: see above", red=True)

    def pytest_unconfigure(self) -> None:
        """Whatever ended the session ends the other one."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        self._told.close()


def pytest_configure(config: pytest.Config) -> None:
    """All begin at the same time."""
    claims = TemporaryDirectory(prefix="claims-")
    config.add_cleanup(claims.cleanup)
    register = config.pluginmanager.register
    register(Pool(ROOT / FOLDER, Path(claims.name)))
    register(Beside(ROOT, WITH_SPARK, claims=claims.name))
    register(Beside(ROOT, SHORT, part=2, claims=claims.name))
