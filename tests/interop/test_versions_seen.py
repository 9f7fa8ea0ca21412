"""The table of versions in docs/kafka.md is that of the clients that are tested here."""

import pytest

from minibroker.protocol.kafka.adapters.table import ADAPTERS
from tests.interop.clients import NEEDS_KCAT
from tests.interop.compatibility import version_of
from tests.interop.versions_seen import RECIPES, recordings, written


def columns() -> dict[str, dict[str, str]]:
    """The cells of each client that are not empty, by the names of the apis."""
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in written().splitlines()
    ]
    return {
        title: {row[0]: row[number] for row in rows if row[number]}
        for number, title in enumerate(head)
        if title
    }


def shown(found: dict[int, set[int]]) -> dict[str, str]:
    """What was seen, as the page has it."""
    return {
        ADAPTERS[key].api.name: ", ".join(map(str, sorted(versions)))
        for key, versions in found.items()
    }


@pytest.mark.parametrize("title", recordings())
def test_the_page_has_what_was_recorded(title: str) -> None:
    """Of clients that are not installed here."""
    assert columns()[title] == shown(recordings()[title])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NEEDS_KCAT if name == "kcat" else ()) for name in RECIPES]
)
def test_the_page_has_the_installed_clients(name: str) -> None:
    """`python -m tests.interop.versions_seen` runs them and writes their columns."""
    assert {"Produce", "Fetch", "Metadata"} <= columns()[f"{name} {version_of(name)}"].keys()
