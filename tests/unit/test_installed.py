"""Whether the installed package is the tree's is told from the two lists of files."""

import shutil
from pathlib import Path

import pytest

from tests.installed import ROOT, declared_files, installed_files, is_current

PROJECT = """
[tool.setuptools]
packages = ["minibroker", "minibroker.log", "minibroker.log.deep"]
[tool.setuptools.package-dir]
"minibroker" = "package"
"minibroker.log" = "log"
[tool.setuptools.package-data]
"minibroker" = ["py.typed"]
"minibroker.log.deep" = ["pages/*.html"]
"""
FILES = {
    "package/__init__.py": "minibroker/__init__.py",
    "package/py.typed": "minibroker/py.typed",
    "log/__init__.py": "minibroker/log/__init__.py",
    "log/deep/__init__.py": "minibroker/log/deep/__init__.py",
    "log/deep/pages/one.html": "minibroker/log/deep/pages/one.html",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project, installed by links."""
    root = tmp_path / "root"
    links = root / "build" / "__editable__.minibroker-1.2-py3-none-any"
    for name, installed in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        (links / installed).parent.mkdir(parents=True, exist_ok=True)
        (links / installed).symlink_to(root / name)
    (root / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    version = '__version__: Final = "1.2"\n'
    (root / "package" / "__init__.py").write_text(version, encoding="utf-8")
    return root


def test_a_tree_whose_files_are_linked_is_current(tree: Path) -> None:
    """Both lists have the installed names; what Python compiled there does not count."""
    assert declared_files(tree) == installed_files(tree) == set(FILES.values())
    cache = tree / "build/__editable__.minibroker-1.2-py3-none-any/minibroker/__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-311.pyc").touch()
    (tree / "log" / "notes.txt").touch()  # pyproject.toml does not declare it
    assert is_current(tree)


@pytest.mark.parametrize("name", ["log/new.py", "log/deep/pages/two.html"])
def test_a_file_that_is_added_is_missed(tree: Path, name: str) -> None:
    """A module, and a file of data."""
    (tree / name).touch()
    assert not is_current(tree)


def test_a_file_that_is_deleted_or_moved_is_missed(tree: Path) -> None:
    """Its link leads nowhere."""
    (tree / "log" / "deep" / "__init__.py").rename(tree / "log" / "moved.txt")
    assert not is_current(tree)


def test_a_tree_without_links_is_not_current(tree: Path) -> None:
    """`build/` may be deleted at any time; a new version is installed under a new name."""
    (tree / "package" / "__init__.py").write_text('__version__ = "1.3"\n', encoding="utf-8")
    assert not is_current(tree)
    shutil.rmtree(tree / "build")
    assert installed_files(tree) == set()
    assert not is_current(tree)


def test_the_project_says_what_belongs_to_the_package() -> None:
    """The real pyproject.toml, with a file of each kind."""
    files = declared_files(ROOT)
    assert {"minibroker/py.typed", "minibroker/broker/log/log.py"} <= files
    assert {"minibroker/audit/report/page.html", "minibroker/__main__.py"} <= files
