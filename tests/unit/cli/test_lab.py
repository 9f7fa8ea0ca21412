"""`minibroker lab`: what it prints is what the scenarios hold."""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from minibroker.testing.lab.library import load, names

# All commands in one process: most of what one takes is the start of Python.
ENDINGS = """
import contextlib, io, json, sys
from minibroker.cli.main import main
endings = {}
for name, (arguments, typed) in json.loads(sys.argv[1]).items():
    sys.argv = ["minibroker", "lab", *arguments]
    sys.stdin, out, err, code = io.StringIO(typed), io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    endings[name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(endings))
"""
WRONG = "# T\nbrokers 1\nrules epoch\nunclean-return seen\nrun a\nexpire 1\n"


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, Ended]:
    """Every command of these tests, run to its end."""
    wrong = tmp_path_factory.mktemp("lab") / "mine.txt"
    wrong.write_text(WRONG)
    commands = {
        "list": (["list"], ""),
        "run": (["run", "hw-divergence", "--rule", "hw"], ""),
        "plain": (["run", "hw-two-rounds"], ""),
        "step": (["run", "hw-two-rounds", "--step"], "\n" * 100),
        "step without input": (["run", "hw-two-rounds", "--step"], ""),
        "wrong": (["run", str(wrong)], ""),
    }
    command = [sys.executable, "-c", ENDINGS, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: Ended(*ending) for name, ending in json.loads(done.stdout).items()}


def test_the_list_has_every_scenario_with_its_title_and_rules(ended: dict[str, Ended]):
    """One line for each, so that somebody can choose."""
    lines = ended["list"].out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert all(load(line.split()[0]).title in line for line in lines)
    assert "--rule time or lag-messages" in lines[names().index("isr-by-lag")]


def test_a_run_prints_story_and_transcript_and_nothing_else(ended: dict[str, Ended]):
    """The story, what the letters mean, and what the file expects; the brokers' logs are silent."""
    scenario = load("hw-divergence")
    code, out, err = ended["run"]
    assert (code, err) == (0, "")
    assert out.startswith(f"{scenario.title}\n\n{scenario.description}\n\n")
    assert out.endswith(f"\n\n{scenario.transcripts['hw']}")


def test_steps_wait_for_enter_and_print_the_same(ended: dict[str, Ended]):
    """`--step` changes when a line comes, not what it says; without input it plays to the end."""
    assert "verdict: " in ended["plain"].out
    assert ended["step"] == ended["step without input"] == ended["plain"]


def test_a_wrong_file_is_one_line_of_an_error(ended: dict[str, Ended]):
    """The file's name, the line, and what is wrong there; exit code 1."""
    code, out, err = ended["wrong"]
    assert (code, out) == (1, "")
    assert err.startswith("% ERROR: ")
    assert err.endswith("mine.txt, line 6: broker 1 runs and keeps its session\n")
