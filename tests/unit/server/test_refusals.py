"""Which refusals of strangers are logged."""

import pytest

from minibroker.broker.server.refusals import HOSTS_MAX, LINES_MAX, Refusals
from minibroker.broker.server.wires import wire_of
from minibroker.protocol.errors import ProtocolError


def test_a_host_gets_a_few_lines_a_minute() -> None:
    """The others are counted, and the next line says how many they were."""
    refusals = Refusals()
    lines = [refusals.record(f"10.0.0.1:{port}", "TLS", 1.0) for port in range(100)]
    assert lines[0] == "closing the connection from 10.0.0.1:0: TLS"
    assert sum(line is not None for line in lines) == LINES_MAX
    assert "counted only, for a minute" in str(lines[LINES_MAX - 1])
    assert refusals.record("10.0.0.2:1", "TLS", 2.0) is not None
    again = refusals.record("10.0.0.1:7", "TLS", 61.0)
    assert f"TLS ({100 - LINES_MAX} more connections from there" in str(again)


def test_hosts_that_come_once_take_no_memory() -> None:
    """The one that was refused longest ago is forgotten."""
    refusals = Refusals()
    for number in range(3 * HOSTS_MAX):
        assert refusals.record(f"[::{number:x}]:1", "no", float(number))
    assert len(refusals._hosts) == HOSTS_MAX


@pytest.mark.parametrize(
    ("start", "says"), [(b"\x16\x03\x01\x02", "a TLS hello"), (b"GET ", "a request of HTTP")]
)
def test_what_often_comes_to_the_wrong_port_is_named(start: bytes, says: str) -> None:
    """A client with TLS, a browser, a health check."""
    with pytest.raises(ProtocolError, match=says):
        wire_of(start)
