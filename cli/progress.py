"""A progress bar for long input, on a terminal only.

It appears when reading takes longer than a moment, so that short commands stay quiet and do not
pay for loading the library that draws it.
"""

import os
import stat
import sys
import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

APPEARS_AFTER_S = 1.0


class Progress:
    """Shows how far a file was read, or how many lines came from a pipe."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._appears_at = time.monotonic() + APPEARS_AFTER_S
        self._bar: Bar | None = None
        information = os.fstat(source.fileno())
        self._bytes_total = information.st_size if stat.S_ISREG(information.st_mode) else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, line_count: int) -> None:
        """Called now and then."""
        is_watched = sys.stderr.isatty() and not self._source.isatty()
        if not is_watched or time.monotonic() < self._appears_at:
            return
        if self._bar is None:
            self._bar = self._make_bar()
        done = line_count if self._bytes_total is None else self._source.tell()
        self._bar.update(self._bar.task_ids[0], completed=done, lines=line_count)

    def _make_bar(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = ("%", BarColumn(), "{task.fields[lines]:,} lines", TimeElapsedColumn())
        made = [TextColumn(column) if isinstance(column, str) else column for column in columns]
        bar = Progress(*made, console=Console(stderr=True), transient=True)
        bar.add_task("", total=self._bytes_total, lines=0)
        bar.start()
        return bar
