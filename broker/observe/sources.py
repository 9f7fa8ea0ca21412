"""The owners whose `statistics()` are shown over HTTP. Nothing here is changed by looking at it."""

from dataclasses import dataclass

from minibroker.broker.replication.fetcher import Fetchers
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.isr import IsrChanges
from minibroker.broker.server.listener import Acceptor
from minibroker.broker.server.services import Services
from minibroker.protocol.types import Endpoint


class CannotServeHttp(OSError):
    """The address of `http.listener` could not be bound."""

    def __init__(self, error: OSError, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.reason = error.strerror or str(error)
        super().__init__(error.errno, f"http.listener: {self.reason}")


@dataclass(frozen=True, slots=True)
class Sources:
    """One broker's parts."""

    services: Services
    acceptor: Acceptor
    fetchers: Fetchers
    flusher: Flusher
    isr_changes: IsrChanges
