"""What holds for every test, what is said of those that were skipped, and the Spark session that
some of them share."""

from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import HealthCheck, settings

from tests.installed import problem
from tests.support.deadline import TEST_S_MAX, deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fixed examples, so that a red run is red again; `make soak` draws new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

CLOCK = "autojump_clock"
"""The fixture whose clock jumps to the next deadline as soon as every task waits."""


def pytest_configure() -> None:
    """Refuse to run with a package that is not the one in this tree."""
    if why := problem():
        raise pytest.UsageError(why)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test runs on the clock that its fixtures ask for. pytest-trio gives it only the one that is
    an argument of the test itself: others would sleep for real."""
    if not isinstance(item, pytest.Function) or CLOCK not in item.fixturenames:
        return

    def run(main: Any, **options: Any) -> object:
        options["clock"] = item.funcargs[CLOCK]
        return trio.run(main, **options)

    item.add_marker(pytest.mark.trio(run=run), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Each test has a deadline; those of `make soak` are long."""
    if item.get_closest_marker("soak"):
        return (yield)
    with deadline(TEST_S_MAX):
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine lacks: pytest itself only counts, or names each test."""
    skipped = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in skipped.items():
        why = reason.removeprefix("Skipped: ")
        terminalreporter.write_line(f"{count} tests were not run: {why}")


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One session with two tasks at once for all tests that need Spark: it takes longer to start
    than most of them run. Who does not ask for it does not load Spark."""
    from minibroker.audit.session import spark_session

    session = spark_session("local[2]", app_name="tests")
    yield session
    session.stop()
