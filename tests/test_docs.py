"""What the documents point at is there: pages, files, and the tests that show a promise."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
NAMED_FILE = re.compile(
    r"`((?:tests|broker|client|package|protocol|cli|testing|docs)/[\w/]+\.(?:py|md))`"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    """Every link, file and test that a page names exists."""
    text = page.read_text(encoding="utf-8")
    missing = [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    missing += [name for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()]
    for name, test in NAMED_TEST.findall(text):
        path = ROOT / name
        if not path.exists() or not re.search(rf"def {test}\(", path.read_text(encoding="utf-8")):
            missing.append(f"{name}::{test}")
    assert missing == [], f"{page.name} names what is not there"


def test_every_promise_is_shown() -> None:
    """Each row of the guarantees names a test."""
    rows = [
        line
        for line in (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(rows) > 10
    assert [row for row in rows if not NAMED_TEST.search(row)] == []
