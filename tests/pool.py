"""A pytest plugin: test files that several sessions share, so that all end at the same time.

Each session collects all files of `FOLDER`, runs them after its own tests, and skips those that
another one has begun: the first that puts a file's name into the directory CLAIMS runs it. What is
skipped is no result of that session, so that the counts of all together are those of one alone.

    TESTS_CLAIMS=DIRECTORY python -m pytest -p tests.pool
"""

import os
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = Path("tests/sim")
CLAIMS: Final = "TESTS_CLAIMS"
# Those that take long, the longest first: what is begun last ends last.
LONG: Final = (
    "test_transactions.py",
    "test_cluster.py",
    "test_reassignments.py",
    "test_leaders_return.py",
    "test_log_model.py",
    "test_chaos.py",
    "test_largest_requests.py",
    "test_compaction.py",
    "test_wires.py",
)


class Pool:
    """The files of `folder`, shared by means of the directory `claims`."""

    def __init__(self, folder: Path, claims: Path) -> None:
        self._folder = folder
        self._claims = claims
        self._is_ours: dict[Path, bool] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What is shared comes last, and what takes long first of it."""
        items.sort(key=self._turn)

    def _turn(self, item: pytest.Item) -> int:
        if self._folder not in item.path.parents:
            return 0
        name = item.path.name
        return 1 + (LONG.index(name) if name in LONG else len(LONG))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass over a test whose file is another session's."""
        return None if self._runs(item.path) else True

    def _runs(self, path: Path) -> bool:
        if self._folder not in path.parents:
            return True
        if path not in self._is_ours:
            claim = self._claims / path.relative_to(self._folder).as_posix().replace("/", "-")
            try:
                claim.touch(exist_ok=False)
            except FileExistsError:
                self._is_ours[path] = False
            else:
                self._is_ours[path] = True
        return self._is_ours[path]


def pytest_configure(config: pytest.Config) -> None:
    """Share where there is somebody to share with."""
    if claims := os.environ.get(CLAIMS):
        config.pluginmanager.register(Pool(ROOT / FOLDER, Path(claims)))
