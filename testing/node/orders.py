"""Orders to a broker with faults: one JSON object a line, each answered by one, on loopback.

    > {"token": "...", "order": "set_faults", "faults": {"is_disk_full": true}}
    < {"ok": true}

docs/testing-orders.md has all of them.
"""

import hmac
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from minibroker.testing.node.faults import BadOrder

LINE_BYTES_MAX: Final = 1024 * 1024
RECEIVE_BYTES: Final = 64 * 1024

logger = logging.getLogger(__name__)

# What obeys an order: takes the order and returns what is to be said besides "ok".
Obey = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class OrderServer:
    """Takes orders of whoever knows the token. What obeys them raises `BadOrder`."""

    def __init__(self, token: str, orders: Mapping[str, Obey]) -> None:
        self._token = token
        self._orders = orders

    async def serve(
        self, port: int, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen on 127.0.0.1, for ever. Raises `OSError`."""
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
        """Obey one order."""
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "an order is one JSON object a line"}
        token = given.get("token") if isinstance(given, dict) else None
        if not isinstance(token, str) or not _are_equal(token, self._token):
            return {"ok": False, "error": "the token is another one"}
        obey = self._orders.get(str(given.get("order")))
        if obey is None:
            return {"ok": False, "error": f"the orders are {', '.join(self._orders)}"}
        try:
            return {"ok": True, **obey(given)}
        except BadOrder as error:
            return {"ok": False, "error": str(error)}


def _are_equal(token: str, other: str) -> bool:
    """Whether two texts are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(*(each.encode(errors="surrogatepass") for each in (token, other)))
