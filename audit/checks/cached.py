"""The DataFrames that an audit has put into Spark's cache, which are removed when the audit ends.

The session may belong to the caller and have cached frames of its own, and other audits may run in
it. So each audit records what it has cached. Its checks run in threads, which share the context's
list.
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
    """Remove from the cache, at the end, what was put there inside the `with` block."""
    frames: list[DataFrame] = []
    token = _frames.set(frames)
    try:
        yield
    finally:
        _frames.reset(token)
        for frame in frames:
            frame.unpersist()


def cache(frame: DataFrame) -> DataFrame:
    """Return the same rows, kept in Spark's cache; outside an audit until the session ends."""
    if (frames := _frames.get()) is not None:
        frames.append(frame)
    return frame.persist()


def release(frame: DataFrame) -> None:
    """Remove from the cache what `cache` put there."""
    if (frames := _frames.get()) is not None:
        frames[:] = [each for each in frames if each is not frame]
    frame.unpersist()


def in_context(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the call for another thread, which then shares the cached frames of this one."""
    context = copy_context()

    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return context.run(call, *args, **kwargs)

    return called
