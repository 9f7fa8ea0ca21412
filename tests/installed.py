"""Is the package installed as the files stand now? If not, `python -m tests.installed` does it.

The environment has an editable install of the strict kind: `build/__editable__...` is a tree of
links, one for each file, under the name `minibroker`. Type checkers and editors find the package
in it, inside the repository and outside. A changed file needs nothing. A file that is added, moved
or deleted needs another installation, which takes a few seconds and no network. Each target of the
Makefile begins with it. pytest and `make` must not run at once in one tree while it does.

    python -m tests.installed           # installs if the list of files has changed
"""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
REMEDY: Final = "run `make installed`"
VERSION: Final = re.compile(r'^__version__.*= "(.+)"$', re.MULTILINE)
INSTALL: Final = (
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--no-build-isolation",
    "--no-deps",
    "--config-settings",
    "editable_mode=strict",
    "--editable",
)


def declared_files(root: Path) -> set[str]:
    """The files that pyproject.toml says belong to the package, by their installed names."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]
    return {
        f"{package.replace('.', '/')}/{name}"
        for package in setuptools["packages"]
        for name in _files_of(root, package, setuptools)
    }


def _files_of(root: Path, package: str, setuptools: dict[str, Any]) -> Iterator[str]:
    """The names below the folder of one package."""
    places = setuptools["package-dir"]
    top = max((top for top in places if f"{package}.".startswith(f"{top}.")), key=len)
    folder = root / places[top] / package.removeprefix(top).removeprefix(".").replace(".", "/")
    for pattern in ("*.py", *setuptools["package-data"].get(package, ())):
        yield from (path.relative_to(folder).as_posix() for path in folder.glob(pattern))


def link_tree(root: Path) -> Path | None:
    """Where the links lie, if the present version of the package is installed."""
    init = (root / "package" / "__init__.py").read_text(encoding="utf-8")
    found = VERSION.search(init)
    assert found, "package/__init__.py has no __version__"
    trees = list((root / "build").glob(f"__editable__.minibroker-{found[1]}-*"))
    return trees[0] if trees else None


def installed_files(root: Path) -> set[str]:
    """The files that are installed; a link that leads nowhere is told apart."""
    tree = link_tree(root)
    if tree is None:
        return set()
    return {
        path.relative_to(tree).as_posix() + ("" if path.exists() else " leads nowhere")
        for path in tree.rglob("*")
        if not path.is_dir() and "__pycache__" not in path.parts
    }


def is_current(root: Path) -> bool:
    """Whether each file of the package is installed, and no other."""
    return declared_files(root) == installed_files(root)


def problem() -> str:
    """Why this Python would not import the package as it stands in this tree; "" if it would.

    A package that was installed in another way, from a wheel for example, is not judged.
    """
    spec = find_spec("minibroker")
    if spec is None or spec.origin is None:
        return f"minibroker is not installed in {sys.prefix}: {REMEDY}"
    is_ours = Path(spec.origin).is_relative_to(ROOT / "build")
    if is_ours and not is_current(ROOT):
        return f"files of minibroker were added, moved or deleted: {REMEDY}"
    return ""


def install(root: Path) -> None:
    """Install the tree into the environment of this Python, without network."""
    # setuptools warns of folders named like packages; here they are the packages.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "pip", *INSTALL, str(root)]
    subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL, check=True)
    importlib.invalidate_caches()
    lost = declared_files(root) ^ installed_files(root)
    if lost:
        sys.exit(f"installed and declared files differ: {sorted(lost)}; see pyproject.toml")


def main() -> None:
    """Install if need be."""
    if not is_current(ROOT):
        print("installing minibroker again: its list of files has changed", file=sys.stderr)
        install(ROOT)


if __name__ == "__main__":
    main()
