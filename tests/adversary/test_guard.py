"""No process outlives the adversarial run, however that ends."""

import subprocess
import sys

RUN = """
import os, signal, subprocess, sys
from tests.adversary.guard import Guard

with Guard() as guard:
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    child = guard.popen(command, stdout=subprocess.PIPE)
    child.stdout.readline()
    child.send_signal(signal.SIGSTOP)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_paused_process_ends_with_a_run_that_is_killed() -> None:
    """`kill -9` of the run ends what it has started, even if that cannot end by itself."""
    # The child inherits this standard error, so it is open until the child has ended, too.
    run = subprocess.run([sys.executable, "-c", RUN], capture_output=True, check=False, timeout=30)
    assert run.returncode == -9
    pid = int(run.stdout)
    left = subprocess.run(["ps", "-p", str(pid), "-o", "stat="], capture_output=True, text=True)
    assert left.stdout.strip() in ("", "Z"), "it runs on"
