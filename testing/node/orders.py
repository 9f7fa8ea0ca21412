"""Orders to a broker with faults: JSON lines over TCP on loopback.

A test sends one JSON object in a line, and the broker answers with another:

    > {"token": "...", "order": "set_faults", "faults": {"is_disk_full": true}}
    < {"ok": true}

docs/testing-orders.md lists the orders.
"""

import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from minibroker.testing.node.faults import BadOrder

LINE_BYTES_MAX: Final = 1024 * 1024

# Takes an order, and returns the members of its answer besides "ok". Raises `BadOrder`.
OrderHandler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class OrderServer:
    """Hands the orders that carry the token to their handlers, which it has by name."""

    def __init__(self, token: str, handlers: Mapping[str, OrderHandler]) -> None:
        self._token = token
        self._handlers = handlers

    async def serve(
        self, port: int, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Take orders on 127.0.0.1 until cancelled. Raises `OSError` if the port is in use."""
        await trio.serve_tcp(self._serve_one, port, host="127.0.0.1", task_status=task_status)

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        unread = b""
        try:
            async for received in stream:
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    answer = json.dumps(self.answer(line))
                    await stream.send_all(answer.encode() + b"\n")
                if len(unread) > LINE_BYTES_MAX:
                    return
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    def answer(self, line: bytes) -> Mapping[str, Any]:
        """Handle the order in one line, and return the answer."""
        try:
            order = json.loads(line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "an order is one JSON object a line"}
        token = order.get("token") if isinstance(order, dict) else None
        if not isinstance(token, str) or not _are_equal(token, self._token):
            return {"ok": False, "error": "the token is wrong"}
        name = order.get("order")
        handle = self._handlers.get(str(name))
        if handle is None:
            known = ", ".join(self._handlers)
            return {"ok": False, "error": f"there is no order {name!r}; there are {known}"}
        try:
            return {"ok": True, **handle(order)}
        except BadOrder as error:
            return {"ok": False, "error": str(error)}


def _are_equal(token: str, other: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(*(each.encode(errors="surrogatepass") for each in (token, other)))
