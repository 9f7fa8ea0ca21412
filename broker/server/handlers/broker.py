"""DESCRIBE_BROKER: this broker on itself, at any time."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import PLAINTEXT
from minibroker.protocol.messages.brokers import (
    DescribeBrokerRequest,
    DescribeBrokerResponse,
    MachineDescription,
)
from minibroker.protocol.types import NamedEndpoint


def describe(
    services: Services, request: DescribeBrokerRequest, now: float
) -> DescribeBrokerResponse:
    """As it is now."""
    image = services.image
    known = image.brokers.get(services.replicas.broker_id)
    listeners = {} if known is None else known.listeners or {PLAINTEXT: known.endpoint}
    session = services.controller.session_statistics()
    return DescribeBrokerResponse(
        services.replicas.broker_id,
        services.replicas.broker_epoch,
        image.cluster_id,
        image.controller_id,
        *services.readiness(now),
        services.wall_ms(),
        tuple(NamedEndpoint(name, *endpoint) for name, endpoint in listeners.items()),
        round(session.ttl_s * 1000),
        max(-1, round((now - session.renewed_at) * 1000)),
        round(session.renewal_s * 1_000_000),
        _machine(services) if request.include_machine else None,
    )


def _machine(services: Services) -> MachineDescription:
    software, python, store, *sizes = services.machine()
    directory = str(services.config.log_dirs)
    return MachineDescription(software, python, store, directory, *sizes)
