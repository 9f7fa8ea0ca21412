"""Methods of the trio clients as methods of the blocking ones, in one line each.

    list_topics = waiting(TrioAdmin.list_topics)

is a plain method with the same parameters, result and docstring: the thread waits while its body
runs in the loop. A class that has such methods has a `_portal` and the trio client as `_client`.
"""

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from minibroker.client.blocking.portal import Portal

P = ParamSpec("P")
T = TypeVar("T")


def waiting(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking method for an async one of the trio client."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        function: Callable[..., Awaitable[T]] = partial(method, self._client, **options)
        result: T = self._portal.call(function, *arguments)
        return result

    return call


def asking(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method for a plain one of the trio client, which is called in its loop."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return ask(self._portal, partial(method, self._client, *arguments, **options))

    return call


def ask(portal: Portal, function: Callable[[], T]) -> T:
    """Call a plain function in the loop, and wait for it."""

    async def call() -> T:
        return function()

    return portal.call(call)
