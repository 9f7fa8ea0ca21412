"""How far a run is: stages with their times, and what Spark has done of the present one.

Spark works while the driver waits, so a thread of its own looks at Spark's status tracker a few
times a second and tells whoever wants to know. It only reads, and ends with its stage.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyspark import SparkContext

from minibroker.audit.summary import Stage

LOOK_EVERY_S: Final = 0.25


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

    def __init__(self, context: SparkContext, listener: Listener) -> None:
        self.finished: list[Stage] = []
        self._context = context
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
            yield
        finally:
            ended.set()
            looker.join()
            self.finished.append(Stage(name, time.monotonic() - began))

    def _look(self, name: str, bytes_total: int, ended: threading.Event) -> None:
        while not ended.wait(LOOK_EVERY_S):
            done, total = self._count_tasks()
            bytes_done = bytes_total * done // total if total else 0
            self._listener(Progress(name, done, total, bytes_done, bytes_total))

    def _count_tasks(self) -> tuple[int, int]:
        """Of the Spark stages that are under way: how many tasks are done, and how many are."""
        tracker = self._context.statusTracker()
        done = total = 0
        for stage_id in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage_id)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return done, total
