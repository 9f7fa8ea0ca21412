"""Which client libraries are connected, by which wire, and how many requests they sent.

A client says its library and version in API_VERSIONS; one that does not is counted without them.
What it says is not trusted: names are those that Kafka takes (KIP-511), and kinds are bounded in
number, so that nobody fills the metrics with names. What is above that is counted together.
"""

import logging
import re
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

KINDS_MAX: Final = 64
OTHERS: Final = "others"
_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,62}[a-zA-Z0-9])?")


class ClientKind(NamedTuple):
    """A wire, and the library and version as the client calls itself ("" where it does not)."""

    wire: str
    software: str = ""
    version: str = ""


class KindOfClient:
    """What one kind of client did: connections that are open now, requests since the start."""

    __slots__ = ("connections", "kind", "requests")

    def __init__(self, kind: ClientKind) -> None:
        self.kind = kind
        self.connections = 0
        self.requests = 0


class ClientStatistics(NamedTuple):
    """One kind of client as of now."""

    kind: ClientKind
    connections: int
    requests: int


class ConnectedClients:
    """All kinds that ever came; one object for each broker."""

    def __init__(self) -> None:
        self._kinds: dict[ClientKind, KindOfClient] = {}

    def connect(self, wire: str) -> KindOfClient:
        """A connection that has not said who it is. Count its requests at what is returned."""
        return self._count(ClientKind(wire))

    def identify(self, unknown: KindOfClient, software: str, version: str) -> KindOfClient:
        """The connection that was counted as `unknown` has said who it is."""
        kind = ClientKind(unknown.kind.wire, _name(software), _name(version))
        if kind == unknown.kind:
            return unknown
        self.disconnect(unknown)
        return self._count(kind)

    def disconnect(self, counted: KindOfClient) -> None:
        """Its connection has ended."""
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
                    kind.version or "of no version",
                    kind.wire,
                )
        counted.connections += 1
        return counted

    def statistics(self) -> list[ClientStatistics]:
        """Each kind that sent a request."""
        return [
            ClientStatistics(one.kind, one.connections, one.requests)
            for one in self._kinds.values()
            if one.requests
        ]


def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else ""
