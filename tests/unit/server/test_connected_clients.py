"""Which clients are counted, under what names, and how many names there may be."""

import logging

import pytest

from minibroker.broker.server.connected_clients import KINDS_MAX, OTHERS, ConnectedClients


def counted(clients: ConnectedClients) -> dict[tuple[str, ...], tuple[int, int]]:
    """Connections and requests by kind."""
    return {tuple(kind): (number, asked) for kind, number, asked in clients.statistics()}


def connect(clients: ConnectedClients, wire: str, software: str = "", version: str = "") -> None:
    """A connection with two requests, the first of which says who it is."""
    one = clients.identify(clients.connect(wire), software, version)
    one.requests += 2


def test_kinds_are_told_apart_by_wire_library_and_version() -> None:
    """A client that says nothing is counted by its wire."""
    clients = ConnectedClients()
    for version in ("2.0", "2.0", "2.1"):
        connect(clients, "kafka", "librdkafka", version)
    connect(clients, "kafka")
    connect(clients, "msgpack", "librdkafka", "2.0")
    assert counted(clients) == {
        ("kafka", "librdkafka", "2.0"): (2, 4),
        ("kafka", "librdkafka", "2.1"): (1, 2),
        ("kafka", "", ""): (1, 2),
        ("msgpack", "librdkafka", "2.0"): (1, 2),
    }


def test_a_connection_that_ends_is_open_no_more() -> None:
    """Its requests still count."""
    clients = ConnectedClients()
    one = clients.identify(clients.connect("kafka"), "a", "1")
    one.requests += 1
    clients.disconnect(one)
    assert counted(clients) == {("kafka", "a", "1"): (0, 1)}


@pytest.mark.parametrize("name", ["a b", "-a", "a-", "x" * 65, 'a"} 1\n', "ä", "a_b"])
def test_a_name_that_kafka_does_not_take_is_none(name: str) -> None:
    """Nothing that a metric or a log line would have to quote."""
    clients = ConnectedClients()
    connect(clients, "kafka", name, name)
    assert counted(clients) == {("kafka", "", ""): (1, 2)}


def test_a_new_kind_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each, not for each connection."""
    clients = ConnectedClients()
    with caplog.at_level(logging.INFO):
        for version in ("1", "1", ""):
            connect(clients, "kafka", "kio", version)
        connect(clients, "kafka")
    assert caplog.messages == [
        "first connection of kio 1, by the kafka wire",
        "first connection of kio of unknown version, by the kafka wire",
    ]


def test_kinds_are_bounded() -> None:
    """Above the bound the rest is counted together, for each wire."""
    clients = ConnectedClients()
    for number in range(3 * KINDS_MAX):
        connect(clients, "kafka", f"client{number}")
        connect(clients, "msgpack", f"client{number}")
    kinds = counted(clients)
    assert len(kinds) <= KINDS_MAX + 2
    assert sum(connections for connections, _ in kinds.values()) == 6 * KINDS_MAX
    assert ("kafka", OTHERS, "") in kinds
    assert ("msgpack", OTHERS, "") in kinds
