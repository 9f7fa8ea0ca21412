"""The compatibility table of docs/kafka.md, made by the tests of this folder.

    python -m tests.interop.compatibility              # runs them, and rewrites the table
    python -m tests.interop.compatibility --no-run     # prints the rows that they are for

A test that shows a feature with a client is marked so (`tests/interop/features.py`). The table has
what passed, and the versions with which it did. It stays as it is if a test fails or is skipped.
"""

import argparse
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from tests.interop.clients import kcat_versions
from tests.interop.features import Feature, shown_by

FOLDER: Final = Path(__file__).parent
PAGE: Final = FOLDER.parents[1] / "docs" / "kafka.md"
BEGIN: Final = "<!-- what clients can do: begin -->\n"
END: Final = "<!-- what clients can do: end -->\n"
CLIENTS: Final = ("kafka-python", "aiokafka", "confluent-kafka", "kcat", "faststream")
OURS: Final = "minibroker"  # some tests run it beside the others

Shown = set[tuple[Feature, str]]


class Collected:
    """A plugin of pytest: what the tests show, by their names, and which ones did not pass."""

    def __init__(self) -> None:
        self.shown: dict[str, Shown] = {}
        self.missed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Those that are run."""
        self.shown = {item.nodeid: set(shown_by(item)) for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of a fixture or of the test itself."""
        if not report.passed:
            self.missed.add(report.nodeid)


def version_of(client: str) -> str:
    """What is installed; of a client with a librdkafka its version, too."""
    if client == "kcat":
        program, library = kcat_versions()
        return f"{program}, librdkafka {library}"
    library = f", librdkafka {confluent_kafka.libversion()[0]}" if "confluent" in client else ""
    return version(client) + library


def rows(shown: Iterable[tuple[Feature, str]]) -> list[str]:
    """A line for each feature, with a cell for each of `CLIENTS`."""
    found = {(feature, client) for feature, client in shown if client != OURS}
    strange = {client for _, client in found}.difference(CLIENTS)
    assert not strange, f"the table has no column for {strange}"
    lines = []
    for feature in Feature:
        cells = ("yes" if (feature, client) in found else "" for client in CLIENTS)
        lines.append(f"| {feature.value} | {' | '.join(cells)} |")
    return lines


def table(shown: Iterable[tuple[Feature, str]]) -> str:
    """All of it."""
    names = [f"{client} {version_of(client)}" for client in CLIENTS]
    head = [f"| | {' | '.join(names)} |", "|---" * (len(CLIENTS) + 1) + "|"]
    return "\n".join((*head, *rows(shown))) + "\n"


def main() -> int:
    """Run the tests, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-run", action="store_true", help="only collect, and print the rows")
    is_run = not parser.parse_args().no_run
    collected = Collected()
    more = () if is_run else ("--collect-only", "-qq", "--no-summary")
    code = pytest.main([str(FOLDER), "-p", "no:cacheprovider", *more], plugins=[collected])
    if code != pytest.ExitCode.OK or collected.missed:
        print(f"The table stays as it is: {sorted(collected.missed)} did not pass", file=sys.stderr)
        return 1
    shown = set().union(*collected.shown.values())
    if not is_run:
        print("\n".join(rows(shown)))
        return 0
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    page = before + BEGIN + table(shown) + END + rest.split(END)[1]
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
