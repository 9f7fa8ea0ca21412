"""Pause and resume one simulated process, as SIGSTOP and SIGCONT do.

All tasks of a simulation run in one loop, each with the name of its process in its context. While a
process is paused, its runnable tasks are taken out of trio's run queue and kept; the effects of
other processes on it (bytes that arrive, deadlines that pass) wait as a kernel would keep them.
`resume` puts the tasks back, and they find a later time on the clock.

It relies on one private name of trio, the run queue; `tests/sim/test_determinism.py` guards it.
"""

from contextvars import ContextVar

import trio

# The process that a task belongs to; tasks inherit it from the task that started them.
PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")


class Pauses(trio.abc.Instrument):
    """The paused processes, and their runnable tasks. Created inside `trio.run`."""

    def __init__(self) -> None:
        self._held: dict[str, list[trio.lowlevel.Task]] = {}

    def is_paused(self, process: str) -> bool:
        """Whether a process is paused."""
        return process in self._held

    def pause(self, process: str) -> None:
        """Pause a process from the next time that its tasks would be scheduled."""
        if not self._held:
            trio.lowlevel.add_instrument(self)
        self._held.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Resume a process; nothing if it is not paused."""
        tasks = self._held.pop(process, None)
        if tasks is None:
            return
        trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.extend(tasks)
        if not self._held:
            trio.lowlevel.remove_instrument(self)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Take a task of a paused process back out of the run queue."""
        held = self._held.get(task.context.get(PROCESS, ""))
        if held is not None:
            taken = trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.pop()
            assert taken is task, "trio tells of a task right after it has queued it"
            held.append(task)
