"""Orders of a test to one of its brokers; `testing.node.orders` receives them."""

import json
import socket
from collections.abc import Mapping
from typing import Any, Final

from minibroker.testing.kit.settings import HOST

ANSWER_S_MAX: Final = 10.0


class OrderRefused(ValueError):
    """The broker refuses an order; the text is its reason."""


def give_order(port: int, token: str, order: str, **arguments: object) -> Mapping[str, Any]:
    """Send an order and return its answer. Raises `OrderRefused`, and `OSError` without one."""
    line = json.dumps({"token": token, "order": order, **arguments}).encode() + b"\n"
    with socket.create_connection((HOST, port), ANSWER_S_MAX) as connection:
        connection.sendall(line)
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the broker ended before it answered")
    answer: Mapping[str, Any] = json.loads(line)
    if not answer.get("ok"):
        raise OrderRefused(str(answer.get("error")))
    return answer
