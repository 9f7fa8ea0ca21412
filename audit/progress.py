"""The progress of a run: its stages with their times, and Spark's progress in the current one.

Spark works while the driver waits, so a separate thread reads Spark's status tracker a few times a
second and reports to the listener. The thread only reads, and ends with its stage. The session may
belong to the caller, so only jobs of the audit's own group are counted.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, NamedTuple, ParamSpec, Self, TypeVar

from pyspark import SparkContext

from minibroker.audit.summary import Stage

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LOOK_EVERY_S: Final = 0.25
# The local properties of a thread that make up a job group.
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


_numbers = count(1)  # of the audits in this process


class Progress(NamedTuple):
    """The state of a run. `total` is 0 if unknown; the bytes are segment bytes, 0 if none."""

    stage: str
    done: int = 0
    total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0


Listener = Callable[[Progress], None]


class Stages:
    """The stages of one run, in order; `finished` has their times."""

    def __init__(self, jobs: "Jobs", listener: Listener) -> None:
        self.finished: list[Stage] = []
        self.jobs = jobs
        self.bytes_done = 0  # of the current stage, as far as the driver reads them itself
        self._listener = listener

    @contextmanager
    def stage(self, name: str, bytes_total: int = 0) -> Iterator[None]:
        """Report the work inside the `with` block under this name."""
        began = time.monotonic()
        ended = threading.Event()
        self.bytes_done = 0
        looker = threading.Thread(target=self._look, args=(name, bytes_total, ended), daemon=True)
        self._listener(Progress(name, bytes_total=bytes_total))
        looker.start()
        try:
            self.jobs.describe(name)
            yield
        finally:
            ended.set()
            looker.join()
            self.finished.append(Stage(name, time.monotonic() - began))

    def _look(self, name: str, bytes_total: int, ended: threading.Event) -> None:
        while not ended.wait(LOOK_EVERY_S):
            done, total = self.jobs.count_tasks()
            bytes_done = bytes_total * done // total if total else self.bytes_done
            self._listener(Progress(name, done, total, bytes_done, bytes_total))


class Jobs:
    """The Spark jobs of one audit: a job group, which the threads that work for it join.

    Used with `with`, in the thread that runs the audit; that thread leaves the group at the end.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._group = f"minibroker-audit-{next(_numbers)}"
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self._before = {name: self._context.getLocalProperty(name) for name in _PROPERTIES}
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            self._context.setLocalProperty(name, value)  # type: ignore[arg-type]

    def describe(self, what: str) -> None:
        """Put the jobs of this thread into the audit's group from now on, under this name."""
        self._context.setJobGroup(self._group, f"minibroker audit: {what}")

    def described(
        self, what: str, call: Callable[Parameters, Result]
    ) -> Callable[Parameters, Result]:
        """Return the call so that another thread runs it in the audit's group."""

        def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            self.describe(what)
            return call(*args, **kwargs)

        return called

    def count_tasks(self) -> tuple[int, int]:
        """Return how many tasks of the active Spark stages are done, and how many there are."""
        tracker = self._context.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group))
        mine = {stage for job in jobs if job is not None for stage in job.stageIds}
        done = total = 0
        for stage_id in mine.intersection(tracker.getActiveStageIds()):
            info = tracker.getStageInfo(stage_id)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return done, total
