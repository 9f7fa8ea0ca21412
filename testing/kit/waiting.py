"""Waiting for a state of a cluster, with a deadline."""

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
POLL_S: Final = 0.02


class WaitTimeout(AssertionError):
    """The state did not come in time; the text says what the state was instead."""


class NotKnown(Exception):
    """The state is not known now; the text says why."""


class Look(NamedTuple, Generic[T]):
    """The present state: the result, None if it is not as wanted, and the state as text."""

    result: T | None
    state: str


def wait_for(what: str, look: Callable[[], Look[T]], timeout_s: float) -> T:
    """Check again and again until there is a result. Raises `WaitTimeout` after `timeout_s`.

    An `OSError`, and the errors that clients raise while brokers are away, count as states.
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
