"""Stop one simulated process and let it go on, as SIGSTOP and SIGCONT do.

All tasks of a simulation run in one loop, each with the name of its process in its context. While a
process is paused, a task of it that could run is taken out of trio's run queue and kept; what the
others do to it (bytes that arrive, deadlines that pass) waits as a kernel would keep it. `resume`
puts the tasks back, and they find a later time on the clock.

It rests on one private name of trio, the run queue; `tests/sim/test_determinism.py` guards it.
"""

from contextvars import ContextVar

import trio

# The process that a task belongs to; tasks inherit it from who started them.
PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")


class Pauses(trio.abc.Instrument):
    """Which processes are paused, and their tasks that would run. Made inside `trio.run`."""

    def __init__(self) -> None:
        self._held: dict[str, list[trio.lowlevel.Task]] = {}

    def is_paused(self, process: str) -> bool:
        """Whether its tasks are kept from running."""
        return process in self._held

    def pause(self, process: str) -> None:
        """From the next time that its tasks would be scheduled, they are not."""
        if not self._held:
            trio.lowlevel.add_instrument(self)
        self._held.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Let it go on; nothing if it is not paused."""
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
