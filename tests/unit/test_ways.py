"""docs/architecture.md names the files that a PRODUCE and a FETCH pass."""

import re
from pathlib import Path

import pytest

from minibroker.testing.cluster import simulate
from tests.bench.calls import Calls, count

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def counted() -> dict[str, Calls]:
    """What one request of each kind calls."""
    return dict(zip(("PRODUCE", "FETCH"), simulate(count, 1), strict=True))


@pytest.mark.parametrize("name", ["PRODUCE", "FETCH"])
def test_the_page_names_the_files_of_the_way(name: str, counted: dict[str, Calls]) -> None:
    """All of them, and no other; `python -m tests.bench.calls --list` shows what they do."""
    begin, end = f"<!-- the way of {name}: begin -->", f"<!-- the way of {name}: end -->"
    _, found, rest = PAGE.read_text().partition(begin)
    assert found
    named = re.findall(r"`([a-z_/]+\.py)`", rest.partition(end)[0])
    assert len(named) == len(set(named))
    assert set(named) == counted[name].files()
