"""Methods of the trio clients as those of the blocking ones: one line for each.

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
    """An async method of the trio client: the thread waits for its result."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        function: Callable[..., Awaitable[T]] = partial(method, self._client, **options)
        result: T = self._portal.call(function, *arguments)
        return result

    return call


def asking(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A plain method of the trio client, called in its loop; the thread waits for a moment."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return ask(self._portal, partial(method, self._client, *arguments, **options))

    return call


def ask(portal: Portal, function: Callable[[], T]) -> T:
    """Call a plain function in the loop."""

    async def call() -> T:
        return function()

    return portal.call(call)
