"""Counts of the connected client libraries, by wire, and of the requests that they sent.

A client sends its library and version in API_VERSIONS; a client that does not is counted without
them. The broker does not trust them: it takes only names that Kafka takes (KIP-511), and bounds the
number of kinds, so that no client fills the metrics with names. Clients of further kinds are
counted together.
"""

import logging
import re
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

KINDS_MAX: Final = 64
OTHERS: Final = "others"
_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,62}[a-zA-Z0-9])?")


class ClientKind(NamedTuple):
    """A wire, and the library and version as the client calls itself ("" if it does not)."""

    wire: str
    software: str = ""
    version: str = ""


class KindOfClient:
    """The counts of one kind of client: connections open now, requests since the start."""

    __slots__ = ("connections", "kind", "requests")

    def __init__(self, kind: ClientKind) -> None:
        self.kind = kind
        self.connections = 0
        self.requests = 0


class ClientStatistics(NamedTuple):
    """The counts of one kind of client at one moment."""

    kind: ClientKind
    connections: int
    requests: int


class ConnectedClients:
    """The kinds of clients seen since the start; one object for each broker."""

    def __init__(self) -> None:
        self._kinds: dict[ClientKind, KindOfClient] = {}

    def connect(self, wire: str) -> KindOfClient:
        """Count a connection of an unknown client. Its requests are counted in the result."""
        return self._count(ClientKind(wire))

    def identify(self, unknown: KindOfClient, software: str, version: str) -> KindOfClient:
        """Count a connection anew that was counted as `unknown` and has now named its library."""
        kind = ClientKind(unknown.kind.wire, _name(software), _name(version))
        if kind == unknown.kind:
            return unknown
        self.disconnect(unknown)
        return self._count(kind)

    def disconnect(self, counted: KindOfClient) -> None:
        """Record that a connection of this kind has ended."""
        counted.connections -= 1

    def _count(self, kind: ClientKind) -> KindOfClient:
        counted = self._kinds.get(kind)
        if counted is None:
            if len(self._kinds) >= KINDS_MAX and kind.software != OTHERS:
                return self._count(ClientKind(kind.wire, OTHERS))
            counted = self._kinds[kind] = KindOfClient(kind)
            if kind.software:
                logger.info(
                    "first connection of %s %s, by the %s wire",
                    kind.software,
                    kind.version or "of unknown version",
                    kind.wire,
                )
        counted.connections += 1
        return counted

    def statistics(self) -> list[ClientStatistics]:
        """Return the counts of each kind that sent a request."""
        return [
            ClientStatistics(one.kind, one.connections, one.requests)
            for one in self._kinds.values()
            if one.requests
        ]


def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else ""
