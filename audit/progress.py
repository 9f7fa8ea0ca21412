"""How far a run is: stages with their times, and what Spark has done of the present one.

Spark works while the driver waits, so a thread of its own looks at Spark's status tracker a few
times a second and tells whoever wants to know. It only reads, and ends with its stage. The session
may be somebody else's, so only jobs of the audit's own group are counted.
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
# What a job group is made of, for each thread.
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


_numbers = count(1)  # of the audits in this process


class Progress(NamedTuple):
    """Where a run is. `total` is 0 where it is not known; bytes are of segments, 0 if of none."""

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
        self._listener = listener

    @contextmanager
    def stage(self, name: str, bytes_total: int = 0) -> Iterator[None]:
        """Tell of what is done inside under this name."""
        began = time.monotonic()
        ended = threading.Event()
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
            bytes_done = bytes_total * done // total if total else 0
            self._listener(Progress(name, done, total, bytes_done, bytes_total))


class Jobs:
    """The Spark jobs of one audit: a group, which the threads that work for it join.

    Used with `with`, in the thread that runs the audit, which leaves the group at the end.
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
        """What this thread does from now on is this audit's, and is called so."""
        self._context.setJobGroup(self._group, f"minibroker audit: {what}")

    def described(
        self, what: str, call: Callable[Parameters, Result]
    ) -> Callable[Parameters, Result]:
        """The call, for a thread of its own."""

        def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            self.describe(what)
            return call(*args, **kwargs)

        return called

    def count_tasks(self) -> tuple[int, int]:
        """Of the Spark stages that are under way: how many tasks are done, and how many are."""
        tracker = self._context.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group))
        mine = {stage for job in jobs if job is not None for stage in job.stageIds}
        done = total = 0
        for stage_id in mine.intersection(tracker.getActiveStageIds()):
            info = tracker.getStageInfo(stage_id)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return done, total
