"""The compatibility table of docs/kafka.md has what the tests here are for, no more and no less.

The versions in it are those of the run that wrote it: `python -m tests.interop.compatibility`.
"""

import subprocess
import sys

from tests.interop.compatibility import BEGIN, END, PAGE


def test_the_table_is_that_of_the_tests() -> None:
    """Each feature, and the clients that show it."""
    command = [sys.executable, "-m", "tests.interop.compatibility", "--no-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].splitlines()
    assert table[2:] == rows
