"""Properties of a broker's listeners, and checks of them together.

A broker may listen on several addresses, each with a name: for example one inside a network of
containers, and one for clients outside of it. A client is told every broker's address of the
listener that it connected to. Brokers connect to each other by one of the listeners.

The checks are Kafka's: names and ports must differ, except that an IPv4 and an IPv6 address may
share a port.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from minibroker.broker.config_property import Kind, setting
from minibroker.protocol.constants import PLAINTEXT
from minibroker.protocol.types import Endpoint, NamedEndpoint

UNSERVED: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")  # security protocols of Kafka's
EVERYWHERE: Final = "0.0.0.0"


@dataclass(frozen=True)
class Listeners:
    """Listeners: where the broker is reached, and by whom."""

    listeners: tuple[NamedEndpoint, ...] = setting(
        "listeners",
        Kind.LISTENERS,
        (NamedEndpoint(PLAINTEXT, "127.0.0.1", 9092),),
        "Where the broker listens, each address under a name of its own (PLAINTEXT, if it has "
        "none). A port alone: 127.0.0.1. No host before the colon: every interface of IPv4, [::]: "
        "of IPv4 and IPv6, whose addresses stand in brackets. Port 0 takes a free one. If only "
        "advertised.listeners is set: its names and ports, at every interface.",
    )
    advertised_listeners: tuple[NamedEndpoint, ...] | None = setting(
        "advertised.listeners",
        Kind.LISTENERS,
        None,
        "Where clients are told to connect that come in by the listener of that name (no host: "
        "the machine's name; port 0: the port that it listens on). A listener that is not named "
        "here: where it listens, or the machine's name if it listens everywhere.",
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        "listener.security.protocol.map",
        Kind.NAMES,
        (),
        "What listeners speak, as NAME:PROTOCOL. Only PLAINTEXT is served; a listener that is not "
        "named here speaks it, unless its name is that of another protocol.",
    )
    inter_broker_listener_name: str | None = setting(
        "inter.broker.listener.name",
        Kind.NAME,
        None,
        "The listener by which other brokers reach this one; without it, that named PLAINTEXT, "
        "or else the first.",
    )
    controller_listener_names: tuple[str, ...] = setting(
        "controller.listener.names",
        Kind.NAMES,
        (),
        "Listeners that are not opened: of Kafka's controllers, which do not exist here.",
    )

    @property
    def served_listeners(self) -> tuple[NamedEndpoint, ...]:
        """Those that are opened, the one for other brokers first; each has a host."""
        served = [
            NamedEndpoint(one.name, one.host or EVERYWHERE, one.port)
            for one in self.listeners
            if one.name not in self.controller_listener_names
        ]
        return tuple(sorted(served, key=lambda one: one.name != self.inter_broker_listener))

    @property
    def inter_broker_listener(self) -> str:
        """The name of the one by which other brokers come."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name
        names = [one.name for one in self.listeners]
        names = [name for name in names if name not in self.controller_listener_names]
        return PLAINTEXT if PLAINTEXT in names or not names else names[0]

    def advertised(
        self, bound: Iterable[NamedEndpoint], machine: str = ""
    ) -> tuple[NamedEndpoint, ...]:
        """Where clients are told to connect, of a broker that listens at `bound`.

        `machine` is the name of who listens at every interface.
        """
        configured = {one.name: one for one in self.advertised_listeners or ()}
        return tuple(_advertised(one, configured.get(one.name), machine) for one in bound)


def _advertised(
    bound: NamedEndpoint, configured: NamedEndpoint | None, machine: str
) -> NamedEndpoint:
    if configured is not None:
        host = configured.host or machine or bound.host
        return NamedEndpoint(bound.name, host, configured.port or bound.port)
    host = machine if is_unspecified(bound.host) else bound.host
    return NamedEndpoint(bound.name, host or bound.host, bound.port)


def derived(advertised: Iterable[NamedEndpoint]) -> tuple[NamedEndpoint, ...]:
    """Return `listeners` for a configuration with `advertised.listeners` only, as Kafka's container
    image does."""
    return tuple(NamedEndpoint(one.name, "", one.port) for one in advertised)


def problems_of(given: Listeners) -> Iterator[str]:
    """Describe, for the user, the values that contradict each other."""
    names = [one.name for one in given.listeners]
    yield from _repeated("listeners", names)
    yield from _shared_ports(given.listeners)
    yield from _unserved(given)
    inter_broker = given.inter_broker_listener_name
    if inter_broker in given.controller_listener_names:
        yield (
            f"inter.broker.listener.name = {inter_broker!r} is one of controller.listener.names,"
            " which are not opened; name another"
        )
    elif inter_broker is not None and inter_broker not in names:
        yield (
            f"inter.broker.listener.name = {inter_broker!r} is no name in listeners; it has:"
            f" {', '.join(names)}"
        )
    if not given.served_listeners:
        yield (
            "all listeners are of controllers (controller.listener.names), and a broker needs one"
            " for clients; a service that is a controller alone is not needed here"
        )
    yield from _advertised_problems(given, names)


def taken_by_http(given: Listeners, http: Endpoint) -> Iterator[str]:
    """Describe the listeners that have the address of `http.listener`."""
    for one in given.served_listeners:
        hosts = {http.host or EVERYWHERE, one.host}
        is_same = len(hosts) == 1 or any(map(is_unspecified, hosts))
        if http.port and http.port == one.port and is_same:
            yield (
                f"http.listener = {http} has the port of the listener {one}; it needs one of its"
                " own"
            )


def _advertised_problems(given: Listeners, names: list[str]) -> Iterator[str]:
    advertised = given.advertised_listeners or ()
    yield from _repeated("advertised.listeners", [one.name for one in advertised])
    for one in advertised:
        if one.name not in names:
            yield (
                f"advertised.listeners names {one.name}, which is no name in listeners; it has:"
                f" {', '.join(names)}"
            )
        if is_unspecified(one.host):
            yield (
                f"advertised.listeners: {one} is no place to go to; name the host by which"
                " clients reach this broker (or none, for the machine's name)"
            )


def _repeated(what: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what} has the name {name} {count} times; each listener needs one of its own"


def _shared_ports(listeners: Iterable[NamedEndpoint]) -> Iterator[str]:
    ports: dict[int, list[NamedEndpoint]] = {}
    for one in listeners:
        ports.setdefault(one.port, []).append(one)
    for port, sharing in ports.items():
        families = [_family(one.endpoint) for one in sharing]
        if port and len(sharing) > 1 and sorted(families) != [4, 6]:
            shared = " and ".join(map(str, sharing))
            yield f"listeners: {shared} have the same port; each listener needs one of its own"


def _family(endpoint: Endpoint) -> int:
    try:
        return ip_address(endpoint.host).version
    except ValueError:
        return 0  # a name


def _unserved(given: Listeners) -> Iterator[str]:
    protocols: dict[str, str] = {}
    for entry in given.listener_security_protocol_map:
        name, separator, protocol = entry.partition(":")
        if not (separator and name and protocol in (PLAINTEXT, *UNSERVED)):
            yield (
                f"listener.security.protocol.map has the entry {entry!r}; it takes"
                f" NAME:PROTOCOL, with {', '.join((PLAINTEXT, *UNSERVED))}"
            )
        protocols[name] = protocol
    for one in given.served_listeners:
        protocol = _protocol(one.name, protocols)
        if protocol in UNSERVED:
            yield (
                f"listener {one.name} is to speak {protocol}, and only PLAINTEXT is served; map"
                f" it in listener.security.protocol.map ({one.name}:PLAINTEXT), or leave it out"
            )


def _protocol(name: str, protocols: Mapping[str, str]) -> str:
    return protocols.get(name, name if name in UNSERVED else PLAINTEXT)


def is_unspecified(host: str) -> bool:
    """Whether a host stands for all interfaces."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
