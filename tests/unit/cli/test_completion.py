"""Completion in a shell: it is installed by one command, and loads only what it needs."""

import sys
from pathlib import Path

import pytest
import shellingham

from tests.support.processes import run_here


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("minibroker top", ["topic", "top"]),
        ("minibroker topic d", ["describe", "delete"]),
        ("minibroker consume --from", ["--from-beginning"]),
        ("minibroker group list --format ", ["text", "json"]),
        ("minibroker nonsense x", []),
    ],
)
def test_words_are_completed(
    monkeypatch: pytest.MonkeyPatch, typed: str, expected: list[str]
) -> None:
    """Commands, verbs, options and their values."""
    monkeypatch.setenv("_MINIBROKER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    for name in [name for name in sys.modules if name.startswith("minibroker.cli.audit.")]:
        monkeypatch.delitem(sys.modules, name)
    done = run_here()
    assert sorted(done.stdout.split()) == sorted(expected)
    assert done.stderr == ""
    is_noun_known = typed.split()[1] in ("topic", "consume", "group")
    assert ("minibroker.cli.audit.commands" in sys.modules) == (not is_noun_known)


def test_it_is_installed_by_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the files of the user's shell; the output says where."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shellingham, "detect_shell", lambda *_: ("bash", "/bin/bash"))
    done = run_here("--install-completion")
    assert done.returncode == 0, done.stderr
    assert "bash completion installed in" in done.stdout
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_MINIBROKER_COMPLETE" in text for text in written)
