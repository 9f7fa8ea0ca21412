"""A seed repeats, in any process: what a failure prints is enough to see it again."""

import inspect
import os
import subprocess
import sys

import trio

# One broker, then a cluster, whose faults are over soon: after a few all would differ.
PROGRAM = (
    "from tests.sim import chaos, cluster; ledger = chaos.run_seed(5);"
    "print(ledger.sent, ledger.faults, sorted(ledger.acked.items()));"
    "cluster.Scenario.chaos_s = 5.0; print(cluster.run_seed(1))"
)


def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    """Two processes with different hash seeds print the same for the same seeds."""
    outputs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_the_names_that_determinism_rests_on_are_there():
    """trio still has the two private names that `simulate` sets."""
    assert hasattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING")
    assert hasattr(trio._core._run, "_r")


async def test_the_names_that_pauses_rest_on_are_there():
    """trio still queues a task at the end before it tells an instrument, as `Pauses` needs it."""
    runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    source = inspect.getsource(type(runner).reschedule)
    assert source.index("self.runq.append(task)") < source.index("task_scheduled")
