"""Methods of the trio clients as methods of the asyncio ones, in one line each.

    list_topics = awaiting(TrioAdmin.list_topics)

is an async method with the same parameters, result and docstring; its body runs in the client's
loop. A class that has such methods has a `_portal` and the trio client as `_client`.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from minibroker.client.blocking.methods import ask

P = ParamSpec("P")
T = TypeVar("T")


def awaiting(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an async method for one of the trio client."""

    async def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        function: Callable[..., Awaitable[T]] = partial(method, self._client, **options)
        result: T = await self._portal.call(function, *arguments)
        return result

    return wraps(method)(call)


def asking(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a plain method for one of the trio client, which is called in its loop meanwhile."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return ask(self._portal.portal, partial(method, self._client, *arguments, **options))

    return call
