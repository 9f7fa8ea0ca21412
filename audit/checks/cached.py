"""The DataFrames that an audit has put into Spark's cache; they leave it when the audit ends.

The session may be somebody's own, with a cache of its own, and other audits may run in it. So each
audit knows what it has put there. Its checks run in threads, which share the context's list.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Final, ParamSpec, TypeVar

from pyspark.sql import DataFrame

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_frames: Final[ContextVar[list[DataFrame] | None]] = ContextVar("frames", default=None)


@contextmanager
def caching() -> Iterator[None]:
    """At the end, remove from the cache what was put there inside."""
    frames: list[DataFrame] = []
    token = _frames.set(frames)
    try:
        yield
    finally:
        _frames.reset(token)
        for frame in frames:
            frame.unpersist()


def cache(frame: DataFrame) -> DataFrame:
    """The same rows, kept in Spark's cache; outside of an audit until the session ends."""
    if (frames := _frames.get()) is not None:
        frames.append(frame)
    return frame.persist()


def release(frame: DataFrame) -> None:
    """Remove from the cache what `cache` put there."""
    if (frames := _frames.get()) is not None:
        frames[:] = [each for each in frames if each is not frame]
    frame.unpersist()


def in_context(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The call for another thread, which then shares the cached frames of this one."""
    context = copy_context()

    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return context.run(call, *args, **kwargs)

    return called
