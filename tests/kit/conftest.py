"""The fixtures of these tests; those of the kit come from the installed plugin."""

from pathlib import Path

import pytest

from tests.kit.inner import Inner


@pytest.fixture
def inner(tmp_path: Path) -> Inner:
    """A place for a pytest session of its own."""
    return Inner(tmp_path)
