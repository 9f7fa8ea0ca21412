"""Waiting for something to become true of a cluster, with a deadline."""

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
POLL_S: Final = 0.02


class WaitTimeout(AssertionError):
    """What was waited for did not come; the text says what was there instead."""


class NotKnown(Exception):
    """The state cannot be told now; the text says why."""


class Look(NamedTuple, Generic[T]):
    """What is seen now: the result, None if it is not as wanted, and the state in words."""

    result: T | None
    state: str


def wait_for(what: str, look: Callable[[], Look[T]], timeout_s: float) -> T:
    """Look again and again until there is a result. Raises `WaitTimeout` after `timeout_s`.

    An `OSError`, and what the clients raise while brokers are away, is a state like others.
    """
    from minibroker.client.errors import ClientError
    from minibroker.protocol.errors import BrokerError

    began = time.monotonic()
    while True:
        try:
            seen = look()
        except NotKnown as error:
            seen = Look(None, str(error))
        except (ClientError, BrokerError, OSError) as error:
            seen = Look(None, f"{type(error).__name__}: {error}")
        if seen.result is not None:
            return seen.result
        if time.monotonic() - began > timeout_s:
            raise WaitTimeout(f"waited {timeout_s:g} s for {what}; now: {seen.state}")
        time.sleep(POLL_S)
