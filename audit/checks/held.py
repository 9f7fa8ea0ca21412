"""What one audit keeps in Spark's cache: it is given up when the audit ends.

The session may be somebody's own, with a cache of its own, and other audits may run in it. So each
audit knows what it has put there. Its checks run in threads, which share what the context holds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Final, ParamSpec, TypeVar

from pyspark.sql import DataFrame

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_held: Final[ContextVar[list[DataFrame] | None]] = ContextVar("held", default=None)


@contextmanager
def holding() -> Iterator[None]:
    """Give up at the end what is held inside."""
    frames: list[DataFrame] = []
    token = _held.set(frames)
    try:
        yield
    finally:
        _held.reset(token)
        for frame in frames:
            frame.unpersist()


def hold(frame: DataFrame) -> DataFrame:
    """The same rows, kept in Spark's cache; outside of an audit until the session ends."""
    if (frames := _held.get()) is not None:
        frames.append(frame)
    return frame.persist()


def in_context(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The call for another thread, which then shares what this one holds."""
    context = copy_context()

    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return context.run(call, *args, **kwargs)

    return called
