"""Listeners: how they are read, what follows from them, and what they must not be together."""

import pytest

from minibroker.broker.config import ConfigError, load
from minibroker.protocol.types import Endpoint, NamedEndpoint

# Inside and outside of a network of containers.
TWO = {
    "listeners": "INSIDE://:19092,OUTSIDE://:9092",
    "advertised.listeners": "INSIDE://kafka-1:19092,OUTSIDE://localhost:29092",
}


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("PLAINTEXT://127.0.0.1:9092", [("PLAINTEXT", "127.0.0.1", 9092)]),
        ("PLAINTEXT://:19092", [("PLAINTEXT", "0.0.0.0", 19092)]),
        ("localhost:0", [("PLAINTEXT", "localhost", 0)]),
        (":9092", [("PLAINTEXT", "0.0.0.0", 9092)]),
        ("21440", [("PLAINTEXT", "127.0.0.1", 21440)]),
        ("INSIDE://21440", [("INSIDE", "127.0.0.1", 21440)]),
        ("PLAINTEXT://[::1]:9092", [("PLAINTEXT", "::1", 9092)]),
        ("[::]:9092", [("PLAINTEXT", "::", 9092)]),
        ("inside://a:1 , Out_2://b:2", [("INSIDE", "a", 1), ("OUT_2", "b", 2)]),
        ("A://a:0,B://a:0", [("A", "a", 0), ("B", "a", 0)]),
        ("A://0.0.0.0:1,B://[::]:1", [("A", "0.0.0.0", 1), ("B", "::", 1)]),
    ],
)
def test_listeners_are_read(text: str, listeners: list[tuple[str, str, int]]) -> None:
    """NAME://HOST:PORT, names in capitals as in Kafka; without a name it is PLAINTEXT, without a
    host it is every interface, and a port alone is this machine's loopback. Free ports are many,
    and IPv4 and IPv6 may share one."""
    config = load(flags={"listeners": text}).config
    assert list(config.served_listeners) == [NamedEndpoint(*one) for one in listeners]


def test_listeners_follow_from_what_is_advertised() -> None:
    """As in Kafka's container image: the same names and ports, at every interface."""
    loaded = load(environ={"KAFKA_ADVERTISED_LISTENERS": TWO["advertised.listeners"]})
    assert list(map(str, loaded.config.listeners)) == ["INSIDE://:19092", "OUTSIDE://:29092"]
    assert loaded.sources["listeners"] == "from advertised.listeners"
    given = load(
        {"listeners": "OUTSIDE://a:1,INSIDE://b:2"}, {}, {"advertised.listeners": "OUTSIDE://c:3"}
    )
    assert list(map(str, given.config.listeners)) == ["OUTSIDE://a:1", "INSIDE://b:2"]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, "OUTSIDE"),
        ({"inter.broker.listener.name": "inside"}, "INSIDE"),
        ({"listeners": "A://:1,PLAINTEXT://:2"}, "PLAINTEXT"),
        ({"controller.listener.names": "OUTSIDE"}, "INSIDE"),
    ],
)
def test_brokers_come_by_one_of_them(given: dict[str, str], first: str) -> None:
    """The one that is named, else PLAINTEXT, else the first that is opened; it stands first."""
    config = load({"listeners": "OUTSIDE://:9092,INSIDE://:19092"}, {}, given).config
    assert config.inter_broker_listener == config.served_listeners[0].name == first


def test_each_listener_is_advertised() -> None:
    """As told, or where it listens, or by the machine's name where that is everywhere; a port of 0
    is the one that was found."""
    given = {
        "listeners": "A://:0,B://127.0.0.1:2,C://[::]:3,D://h:4",
        "advertised.listeners": "A://a:0,D://:44",
    }
    config = load(given).config
    bound = [
        NamedEndpoint("A", "0.0.0.0", 61),
        NamedEndpoint("B", "127.0.0.1", 2),
        NamedEndpoint("C", "::", 3),
        NamedEndpoint("D", "10.0.0.4", 4),
    ]
    advertised = config.advertised(bound, "machine")
    assert [str(one) for one in advertised] == [
        "A://a:61",
        "B://127.0.0.1:2",
        "C://machine:3",
        "D://machine:44",
    ]
    assert advertised[1].endpoint == Endpoint("127.0.0.1", 2)


def test_listeners_of_controllers_are_left_out() -> None:
    """There is no quorum of controllers: their listeners are not opened, and that is said once."""
    loaded = load(
        {
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
        }
    )
    assert list(map(str, loaded.config.served_listeners)) == ["PLAINTEXT://0.0.0.0:9092"]
    assert loaded.warnings == (
        "without meaning here, and left out: the listener CONTROLLER (there is no quorum of"
        " controllers to listen for)",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"listeners": "A://:1,a://:2"}, "the name A 2 times; each listener needs one of its own"),
        ({"listeners": "A://:1,B://:1"}, "A://:1 and B://:1 have the same port"),
        ({"listeners": "A://a:1,B://b:1"}, "A://a:1 and B://b:1 have the same port"),
        ({"listeners": "SSL://x:1"}, "SSL is to speak SSL, and only PLAINTEXT is served"),
        (
            {"listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL"},
            r"OUTSIDE is to speak SASL_SSL, and only PLAINTEXT is served; map it .*OUTSIDE:PLAIN",
        ),
        ({"listener.security.protocol.map": "INSIDE:PLAIN"}, "'INSIDE:PLAIN'; it takes NAME:PROTO"),
        ({"listener.security.protocol.map": "INSIDE"}, "'INSIDE'; it takes NAME:PROTOCOL, with"),
        ({"inter.broker.listener.name": "INNER"}, "'INNER' is no name in listeners; it has: INSID"),
        (
            {"controller.listener.names": "INSIDE", "inter.broker.listener.name": "INSIDE"},
            "'INSIDE' is one of controller.listener.names",
        ),
        ({"controller.listener.names": "INSIDE,OUTSIDE"}, "all listeners are of controllers"),
        ({"advertised.listeners": "INNER://a:1"}, "names INNER, which is no name in listeners"),
        ({"advertised.listeners": "INSIDE://a:1,INSIDE://b:1"}, "has the name INSIDE 2 times"),
        ({"advertised.listeners": "INSIDE://0.0.0.0:1"}, "INSIDE://0.0.0.0:1 is no place to go"),
        (
            {"http.listener": ":9092"},
            " = :9092 has the port of the listener OUTSIDE://0.0.0.0:9092",
        ),
        (
            {"http.listener": "10.0.0.1:19092"},
            "has the port of the listener INSIDE://0.0.0.0:19092",
        ),
        ({"advertised.listeners": "INSIDE://[::]:1"}, "name the host by which clients reach"),
    ],
)
def test_what_cannot_be_is_told(given: dict[str, str], says: str) -> None:
    """Each error names the listener, and what to do about it."""
    with pytest.raises(ConfigError, match=says):
        load(flags=TWO | given)
    assert load(flags=TWO | {"http.listener": ":9644"}).warnings == ()


def test_free_ports_and_other_addresses_are_no_clash() -> None:
    """A port of 0 is a free one each time, and one port may be of two addresses."""
    load({"listeners": "A://h:0", "http.listener": "h:0"})
    load({"listeners": "A://10.0.0.1:1", "http.listener": "127.0.0.1:1"})


def test_other_protocols_may_be_named_by_what_is_not_opened() -> None:
    """A map with entries for listeners that are not there is in order, as in Kafka; a listener
    that is named as a protocol speaks it, unless the map says otherwise."""
    protocols = "SSL:SSL,SASL_PLAINTEXT:PLAINTEXT"
    flags = {"listeners": "SASL_PLAINTEXT://:1", "listener.security.protocol.map": protocols}
    assert load(flags=flags).config.inter_broker_listener == "SASL_PLAINTEXT"
