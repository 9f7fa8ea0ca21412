"""Descriptors that children of this process must not have.

What is closed on exec is still open in a child that was forked without one, as `multiprocessing`
makes them. Such a child would keep a lock held and a pipe open after this process has ended.
"""

import os
from contextlib import suppress
from typing import Final

_descriptors: Final[set[int]] = set()


def hold(descriptor: int) -> int:
    """Close this descriptor in every child that is forked from now on; returns it."""
    _descriptors.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close a descriptor that `hold` was told of."""
    _descriptors.discard(descriptor)
    os.close(descriptor)


def _close_in_child() -> None:
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
