"""docs/architecture.md names the files that a PRODUCE and a FETCH pass, and the functions of a
failover."""

import re
from pathlib import Path

import pytest

from minibroker.testing.cluster import simulate
from tests.bench.calls import Calls, count

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def way_of(name: str) -> str:
    """The table of a way."""
    begin, end = f"<!-- the way of {name}: begin -->", f"<!-- the way of {name}: end -->"
    _, found, rest = PAGE.read_text().partition(begin)
    assert found
    return rest.partition(end)[0]


@pytest.fixture(scope="module")
def counted() -> dict[str, Calls]:
    """What one request of each kind calls."""
    return dict(zip(("PRODUCE", "FETCH"), simulate(count, 1), strict=True))


@pytest.mark.parametrize("name", ["PRODUCE", "FETCH"])
def test_the_page_names_the_files_of_the_way(name: str, counted: dict[str, Calls]) -> None:
    """All of them, and no other; `python -m tests.bench.calls --list` shows what they do."""
    named = re.findall(r"`([a-z_/]+\.py)`", way_of(name))
    assert len(named) == len(set(named))
    assert set(named) == counted[name].files()


def test_the_functions_of_a_failover_are_in_the_files() -> None:
    """Each that a row names is defined in the file of the row."""
    rows = [line for line in way_of("a failover").splitlines() if line.endswith(".py` |")]
    assert len(rows) > 10
    for row in rows:
        _, _, functions, file, _ = row.split("|")
        source = (ROOT / file.strip(" `")).read_text()
        for function in re.findall(r"`(\w+)`", functions):
            assert f"def {function}(" in source, (function, file)
