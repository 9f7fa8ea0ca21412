"""What the programs of the adversarial run have in common."""

import subprocess
import sys
from pathlib import Path

ENDS_BY_ITSELF = """
import signal, sys
from tests.adversary.producer import Sender
from tests.adversary.worker import parse


class Late:
    def __del__(self, send=signal.raise_signal, number=signal.SIGTERM):
        send(number)


class Program(Sender):
    async def live(self):
        sys.exit(3)


sys.late = Late()  # it goes with the interpreter
Program(parse()).run()
"""


def test_a_program_that_a_life_has_ended_keeps_its_code(tmp_path: Path) -> None:
    """The run may send SIGTERM while the interpreter ends, which takes handlers back."""
    command = [sys.executable, "-c", ENDS_BY_ITSELF, str(tmp_path / "journal"), "127.0.0.1:1"]
    ended = subprocess.run([*command, "topic", "producer0-0", "1"], check=False)
    assert ended.returncode == 3
