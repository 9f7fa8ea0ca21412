"""The owners whose `statistics()` are shown over HTTP. Nothing here is changed by looking at it."""

from dataclasses import dataclass

from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.isr_proposals import IsrProposals
from minibroker.broker.replication.replica_fetcher import ReplicaFetchers
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
    fetchers: ReplicaFetchers
    flusher: Flusher
    isr_proposals: IsrProposals
