"""The programs of docs/tutorial.md: each bug is found, and each fix passes."""

import re
import shutil

import pytest

from tests.installed import ROOT
from tests.kit.inner import Inner

EXAMPLES = ROOT / "examples"
QUIET = ("--tb=short", "--show-capture=no")
# What the recipe of each bug says, at the least.
SAID = {
    "commit_before_processing": "'order 1' was acknowledged and never processed",
    "retry_without_idempotence": "b'order 0' is at .*, offset 0 and at .*, offset 1",
    "ignored_delivery_error": "'order 1' was acknowledged and never polled",
    "lost_on_rebalance": "'order 0' was acknowledged and never processed",
    "blocked_poll_loop": "'order 1' was processed 2 times",
    "swallowed_exception": "'order 1' was acknowledged and never processed",
    "commit_without_flush": "'order 1' was acknowledged and never processed",
    "latest_on_new_partition": "'order 1' was acknowledged and never processed",
}


def test_the_tutorial(inner: Inner) -> None:
    """The service fails its test, and passes it with the fix."""
    shutil.copytree(EXAMPLES / "tutorial", inner.directory, dirs_exist_ok=True)
    text = (inner.directory / "test_shop.py").read_text(encoding="utf-8")
    fixed = text.replace('"shop.py"', '"shop_fixed.py"')
    assert fixed != text
    (inner.directory / "test_shop_fixed.py").write_text(fixed, encoding="utf-8")
    session = inner.run(*QUIET, test=".")
    assert "PromiseBroken: 'order 2' was processed 2 times" in session.text, session.text
    assert "FAILED test_shop.py::" in session.text
    assert "1 failed, 1 passed" in session.text, session.text
    assert not inner.left_processes()


@pytest.mark.soak
@pytest.mark.parametrize("name", SAID)
def test_a_recipe(inner: Inner, name: str) -> None:
    """The program with the bug breaks the promise, and the other one keeps it."""
    shutil.copytree(EXAMPLES / "recipes", inner.directory, dirs_exist_ok=True)
    options = (*QUIET, "-k", f"test_{name}")
    session = inner.run(*options, test="test_recipes.py", RECIPE="")
    assert "1 failed" in session.text, session.text
    assert re.search(f"PromiseBroken: {SAID[name]}", session.text), session.text
    session = inner.run(*options, test="test_recipes.py", RECIPE="fixed")
    assert "1 passed" in session.text, session.text
    assert not inner.left_processes()
