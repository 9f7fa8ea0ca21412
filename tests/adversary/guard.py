"""A process that kills the others of a run when the run itself is gone, however it ended.

    python -m tests.adversary.guard

It reads `+ PID` and `- PID` from its standard input. At the end of the input, which comes with the
end of the process that writes it, it sends SIGKILL to every process that was named and not taken
back. So not even `kill -9` of the run leaves a broker or a worker behind, paused ones included.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.support.processes import ThisMachine


class Guard(ThisMachine):
    """Starts processes that do not outlive the run; used with `with`."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> "Guard":
        command = [sys.executable, "-m", "tests.adversary.guard"]
        # Away from the terminal: an interrupt there ends the run, and with that this process.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a child of this process."""
        # A process group of its own: an interrupt at the terminal is not for it.
        process = super().popen(command, process_group=0, **options)
        self._started.append(process)
        self._tell("+", process.pid)
        for ended in [each for each in self._started if each.poll() is not None]:
            self._started.remove(ended)
            self._tell("-", ended.pid)
        return process

    def _tell(self, sign: str, pid: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{sign} {pid}\n")
        self._process.stdin.flush()


def main() -> None:
    """Guard until the input ends."""
    guarded = set()
    for line in sys.stdin:
        sign, pid = line.split()
        if sign == "+":
            guarded.add(int(pid))
        else:
            guarded.discard(int(pid))
    for pid in guarded:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
