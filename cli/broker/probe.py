"""The health check of brokers, for `minibroker health`, at the least cost.

It runs every other second beside each broker, and then asks that one alone. typer and its imports
would take most of its time, and an event loop as much again; so neither is used here, and the calls
that containers make come here without the command line's parser (`plain_main`). All other calls,
and the help, are in `health.py`, and end here too. Measured: a fifth of the CPU time.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Any, Final

from minibroker.cli import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from minibroker.client.net.blocking_channel import BlockingChannel
from minibroker.client.net.servers import parse_servers
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages.brokers import DescribeBrokerRequest, DescribeBrokerResponse
from minibroker.protocol.types import Endpoint

TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1024 * 1024  # far above what a broker says of itself
FAILED: Final = 1
USAGE: Final = 2


class _LimitedSocket(socket.socket):
    """A connected socket that waits until `deadline` in all, however its bytes drip in."""

    deadline: float

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as a socket does. Raises `TimeoutError` after the deadline."""
        left_s = self.deadline - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(left_s)
        return super().recv_into(buffer, nbytes, flags)


class ProbeFailed(Exception):
    """A broker does not answer, or not as a broker does; the text is for the user."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def plain_main(address: str | None, *, must_be_ready: bool) -> None:
    """Run `minibroker health` as containers call it; exits the process if it fails.

    Without an `address`, that of the environment is used, or the default.
    """
    if address is None:
        address = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    try:
        for line in ask_health(address, TIMEOUT_S, must_be_ready=must_be_ready):
            print(line, flush=True)
    except ProbeFailed as failure:
        print(f"% ERROR: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)


def ask_health(
    addresses: str, timeout_s: float, *, must_be_ready: bool, as_json: bool = False
) -> Iterator[str]:
    """Yield the health of each broker at `HOST:PORT[,HOST:PORT...]`, a line for each.

    Raises `ProbeFailed`: at once if these are no addresses, and after the last broker if one of
    them does not answer, or is not ready and must be.
    """
    try:
        endpoints = parse_servers(addresses)
    except ValueError:
        text = f"name a broker as HOST:PORT (-b, or {BOOTSTRAP_VARIABLE}), not {addresses!r}"
        raise ProbeFailed(text, USAGE) from None
    failures = []
    for endpoint in endpoints:
        try:
            yield _health_of(endpoint, timeout_s, must_be_ready=must_be_ready, as_json=as_json)
        except ProbeFailed as failure:
            failures.append(str(failure))
    if failures:
        raise ProbeFailed("; ".join(failures))


def _health_of(endpoint: Endpoint, timeout_s: float, *, must_be_ready: bool, as_json: bool) -> str:
    """Return the health of one broker, as a line. Raises `ProbeFailed`."""
    answer = describe(endpoint, timeout_s)
    reasons = "; ".join(answer.reasons)
    if not reasons.isprintable():  # a terminal would interpret them
        reasons = repr(reasons)
    if must_be_ready and not answer.is_ready:
        raise ProbeFailed(f"broker {answer.node_id} is not ready: {reasons}")
    if as_json:
        found = {"broker": answer.node_id, "ready": answer.is_ready, "reasons": answer.reasons}
        return json.dumps(found)
    state = "is ready" if answer.is_ready else f"answers, and is not ready: {reasons}"
    return f"broker {answer.node_id} {state}"


def describe(
    endpoint: Endpoint, timeout_s: float, *, include_machine: bool = False
) -> DescribeBrokerResponse:
    """Return the broker's description of itself. Connecting takes up to `timeout_s` seconds, and
    asking as much again.

    Raises `ProbeFailed`.
    """
    request = DescribeBrokerRequest(include_machine)
    try:
        opened = socket.create_connection(endpoint, timeout_s)
        with _LimitedSocket(fileno=opened.detach()) as connection:
            connection.deadline = monotonic() + timeout_s
            connection.settimeout(timeout_s)
            channel = BlockingChannel(connection, "minibroker-health", ANSWER_BYTES_MAX)
            channel.negotiate()
            answer = channel.call(ApiKey.DESCRIBE_BROKER, request)
    except TimeoutError:
        raise ProbeFailed(f"{endpoint} gives no answer within {timeout_s:g} s") from None
    except ProtocolError as error:
        raise ProbeFailed(f"{endpoint} does not answer as a broker does: {error}") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: it is no host name
        reason = getattr(error, "strerror", None) or error
        raise ProbeFailed(f"{endpoint} cannot be asked: {reason}") from None
    return answer
