"""What commands say if no broker answers: one line, and each thing once."""

import pytest

from tests.support.processes import run_here

NOBODY = "127.0.0.1:1"
COMMANDS = [
    "topic list --timeout-s 0.05",
    "topic delete ^a --dry-run --timeout-s 0.05",
    "group describe g --timeout-s 0.05",
    "group seek g --all-topics --to-latest --timeout-s 0.05",
    "broker config 1 --timeout-s 0.05",
    "replica status t --timeout-s 0.05",
    "consume t -X default.api.timeout.ms=50",
    "consume ^t --group g -X default.api.timeout.ms=50",
    "produce t -X max.block.ms=50",
    "produce -J -X max.block.ms=50",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broker_that_does_not_answer_is_one_line(command: str) -> None:
    """With its address and the reason, in words, and how long it was tried."""
    done = run_here(*command.split(), "-b", NOBODY, stdin="x\n")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("% ERROR: ")
    assert "Errno" not in line
    assert line.count("no answer from") == 1
    assert line.count("within 50 ms") == 1
    assert line.endswith(f"last error: cannot connect to {NOBODY}: Connection refused")
