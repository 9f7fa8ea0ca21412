"""What documents, comments and docstrings point at is there: pages and their sections, files, the
rules of docs/rules.md, and the tests that show a promise or a rule.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_tidy import SOURCES, TEXTS, nodes_of, text_of

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
NAMED_FILE = re.compile(
    r"`((?:audit|tests|broker|client|package|protocol|cli|testing|docs)/[\w/]+\.(?:py|md))`"
)
# A page of docs/, and perhaps `, "SECTION"` behind it; a line may end between any two words.
NAMED_SECTION = re.compile(r"\bdocs/([\w/-]+\.md)(?:,[\s#]+(?:\"([^\"]+)\"|(\d[\d.]*)))?")
LINK_TO_SECTION = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
# A program of docs/tutorial.md, and the file that has it.
PROGRAM = re.compile(r"^<!-- (\S+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (?:\d+\. )?(.*)$", re.MULTILINE)

# One letter and a number (A11), or a part of such a rule (A3.5), is a rule where prose has it; a
# family and two digits (PAR-06) anywhere. KIP-98 and UTF-16 look like the latter.
RULE_ROW = re.compile(r"^\| ([A-Z]+-?\d+) \|.*$", re.MULTILINE)
FAMILY_RULE = re.compile(r"\b(?!KIP|UTF|CRC|SHA)[A-Z]{2,3}-\d\d\b")
RULE = re.compile(rf"{FAMILY_RULE.pattern}|\b[AKLNQR]\d{{1,2}}\b")
BARE_SECTION = re.compile(r"\(\d{1,2}\.\d{1,2}\)|\barchitecture,? \d")


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


@cache
def rules() -> dict[str, str]:
    """The rows of docs/rules.md by their codes."""
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    return {row.group(1): row.group() for row in RULE_ROW.finditer(page)}


def test_every_rule_is_shown() -> None:
    """Each rule stands once, and names a test."""
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    codes = RULE_ROW.findall(page)
    assert len(codes) > 100
    assert sorted(codes) == sorted(set(codes))
    assert [code for code, row in rules().items() if not NAMED_TEST.search(row)] == []


def prose_of(name: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment and docstring of a source file."""
    for token in tokenize.generate_tokens(io.StringIO(text_of(name)).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in nodes_of(name):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield from enumerate(text.splitlines(), node.lineno)


@pytest.mark.parametrize("name", [name for name in SOURCES if RULE.search(text_of(name))])
def test_rules_that_are_cited_are_in_the_catalogue(name: str) -> None:
    """A reader of a comment finds what A11 or PAR-06 means in docs/rules.md."""
    missing = [
        f"{name}:{line}: {code} is not in docs/rules.md"
        for line, text in prose_of(name)
        for code in RULE.findall(text)
        if code not in rules()
    ]
    assert not missing, "\n" + "\n".join(missing)


def headings_of(page: Path) -> list[str]:
    """The headings of a page, without the numbers before some."""
    return HEADING.findall(page.read_text(encoding="utf-8"))


def anchor_of(heading: str) -> str:
    """What a link to a heading is written as (its number, where it has one, left out)."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", [name for name in TEXTS if "docs/" in text_of(name)])
def test_pages_and_sections_that_are_cited_exist(name: str) -> None:
    """A page is there, and so is the heading named behind it; sections are not named by number."""
    missing = []
    for page, section, number in NAMED_SECTION.findall(text_of(name)):
        path = ROOT / "docs" / page
        if not path.exists():
            missing.append(f"docs/{page}")
        elif section and " ".join(section.split()) not in headings_of(path):
            missing.append(f'docs/{page}, "{section}"')
        elif number:
            missing.append(f"docs/{page}, {number}: name the section by its heading")
    assert missing == [], f"{name} names what is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_sections_that_exist(page: Path) -> None:
    """`PAGE.md#section` is the anchor of a heading."""
    missing = []
    for target, anchor in LINK_TO_SECTION.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        anchors = {anchor_of(heading) for heading in headings_of(path)}
        if re.sub(r"^\d+-", "", anchor) not in anchors:
            missing.append(f"{target}#{anchor}")
    assert missing == [], f"{page.name} links to sections that are not there"


def test_the_tutorial_shows_programs_as_they_run() -> None:
    """Each program in it is that of the file named above it, or a part of it; no recipe is left
    out. tests/kit/test_tutorial.py runs the files."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = PROGRAM.findall(page)
    assert len(blocks) == page.count("```python")
    other = [(name, text) for name, text in blocks if text not in (ROOT / name).read_text("utf-8")]
    assert other == []
    shown = "".join(text for _, text in blocks)
    for name in ("tutorial/shop.py", "tutorial/test_shop.py"):
        assert (ROOT / "examples" / name).read_text("utf-8") in shown
    recipes = (ROOT / "examples" / "recipes" / "test_recipes.py").read_text("utf-8")
    tests = re.findall(r"^def test_.*?(?=\n\n\n|\Z)", recipes, re.DOTALL | re.MULTILINE)
    assert len(tests) == 8
    assert [test for test in tests if test not in shown] == []


@pytest.mark.parametrize("name", [name for name in SOURCES if BARE_SECTION.search(text_of(name))])
def test_no_comment_names_a_bare_number_of_a_section(name: str) -> None:
    """A number in parentheses says nothing: name a rule (K2), or the page and its heading."""
    found = [
        f"{name}:{line}: {match.group()}"
        for line, text in prose_of(name)
        if (match := BARE_SECTION.search(text))
    ]
    assert not found, "\n" + "\n".join(found)
