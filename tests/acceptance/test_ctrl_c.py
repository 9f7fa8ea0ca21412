"""Ctrl-C ends the programs that the documents show, and prints a few lines."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.installed import ROOT
from tests.support.processes import BrokerProcess

# Without the lines that only point at a place in the line above.
LINES_MAX = 35


def program_with(word: str, address: str) -> str:
    """The program in README or docs/without-trio.md that has this word, for another broker."""
    pages = (ROOT / "README.md", ROOT / "docs" / "without-trio.md")
    text = "".join([page.read_text("utf-8") for page in pages])
    shown = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    [found] = [each for each in shown if word in each]
    return str(found).replace("127.0.0.1:9092", address)


@contextmanager
def running(program: str) -> Iterator["subprocess.Popen[str]"]:
    """The program in a process of its own, which takes SIGINT as from a terminal."""
    set_handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", set_handler + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_asleep(process: "subprocess.Popen[str]") -> None:
    """Wait until the main thread is in a system call that waits, where /proc shows it.

    Python looks for signals between two lines, and in a system call that a signal ends. A signal
    in between, in the microseconds before epoll_wait, is seen when that ends: a program of asyncio
    alone, without any client, then waits on, because `asyncio.run` has no wake-up descriptor.
    """
    status = Path(f"/proc/{process.pid}/stat")
    deadline = time.monotonic() + 60
    while status.exists() and status.read_text().rpartition(") ")[2][0] != "S":
        assert time.monotonic() < deadline, "the main thread does not wait"
        time.sleep(0.01)


def interrupted(process: "subprocess.Popen[str]") -> str:
    """What it prints to stderr once it was interrupted. It ends as Python ends by Ctrl-C."""
    wait_until_asleep(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    lines = [line for line in errors.splitlines() if line.strip(" ^~|")]
    assert lines[-1] == "KeyboardInterrupt"
    assert len(lines) <= LINES_MAX, errors
    assert "Exception Group" not in errors
    return errors


def test_a_program_that_reads_is_interrupted(broker: BrokerProcess) -> None:
    """README's trio program, which reads for ever."""
    with running(program_with("trio.run(main)", broker.address)) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(1000)]
        assert seen[-1].endswith("b'value 999'\n")
        interrupted(process)


@pytest.mark.parametrize("word", ["trio.run(main)", "asyncio.run(main())", "client.blocking"])
def test_a_program_that_waits_for_a_broker_is_interrupted(word: str) -> None:
    """It says what was not delivered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        shown = program_with(word, address)
        program, sends = re.subn(r"(?m)^( *)(.*\.send\(.*)$", r"\1\2\n\1print('taken')", shown)
        assert sends
        with running(program) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "taken\n"
            assert "dropped" in interrupted(process)
