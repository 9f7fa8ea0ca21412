"""Calls to a store that may be away for a moment; short, for processes that start quickly."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from minibroker.broker.metadata.store import StoreUnavailable

Result = TypeVar("Result")


async def patiently(call: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
    """What a store answers once it can, asked again as a broker asks."""
    while True:
        try:
            return await call(*arguments)
        except StoreUnavailable:
            await trio.sleep(0.05)
