"""What the largest legal requests cost the others: how long a client beside them waits.

The largest request of each api and each array in it, on both wires, goes to a real broker while
another client asks for the versions again and again. Its longest wait is what the broker's loop
stood still for, and the yardstick is its longest wait beside a client that does nothing.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Final

from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.messages.groups import FindCoordinatorRequest
from tests.bench.rounds import Row, create_topic, fresh_broker
from tests.support.largest import Largest, largest_requests
from tests.support.processes import BrokerProcess
from tests.support.wire import Wire

WATCHED_S: Final = 0.25
BETWEEN_S: Final = 0.001
ROUNDS: Final = 2  # the shorter wait counts: something else may have used the processor
WAIT_MS_MAX: Final = 20
SHOWN: Final = 8


def longest_wait_ms(ping: Wire, seconds: float = WATCHED_S) -> float:
    """The longest wait for an answer of a client that asks all the time."""
    longest, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        asked_at = time.perf_counter()
        ping.call(ApiKey.API_VERSIONS, ApiVersionsRequest())
        longest = max(longest, time.perf_counter() - asked_at)
        time.sleep(BETWEEN_S)
    return longest * 1000


def wait_beside(broker: BrokerProcess, ping: Wire, largest: Largest) -> float:
    """The longest wait while a broker serves a request."""
    host, _, port = broker.address.rpartition(":")
    preface = PREFACE if largest.wire == "msgpack" else b""
    with socket.create_connection((host, int(port))) as connection:
        with contextlib.suppress(ConnectionError):  # it is refused before it has come whole
            connection.sendall(preface + largest.frame)
        return longest_wait_ms(ping)


def abuse() -> Iterator[Row]:
    """The requests that the others wait longest for."""
    waits: dict[str, float] = {}
    with fresh_broker() as broker, Wire(broker.address) as ping:
        create_topic(broker.address, "t", 1)
        ping.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("group_id-0"))
        for wire in ("kafka", "msgpack"):
            for is_repeated in (False, True):
                for largest in largest_requests(wire, is_repeated=is_repeated):
                    rounds = [wait_beside(broker, ping, largest) for _ in range(ROUNDS)]
                    waits[str(largest)] = min(rounds)
        alone = longest_wait_ms(ping, 5.0)
    for name, wait_ms in sorted(waits.items(), key=lambda item: -item[1])[:SHOWN]:
        yield Row(
            f"longest wait beside {name}",
            f"{wait_ms:.1f} ms",
            "alone, for 5 s",
            f"{alone:.1f} ms",
            wanted=f"under {WAIT_MS_MAX} ms",
            is_met=wait_ms < WAIT_MS_MAX,
        )


MEASURES = (abuse,)
