"""DESCRIBE_BROKER, answered by any broker at any time; UNREGISTER_BROKER, by the controller."""

from itertools import islice

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import PLAINTEXT, ErrorCode
from minibroker.protocol.messages.brokers import (
    ConnectedClient,
    DefectCount,
    DescribeBrokerRequest,
    DescribeBrokerResponse,
    FarStampedTopic,
    MachineDescription,
    UncompactedLog,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from minibroker.protocol.types import NamedEndpoint

LOGS_MAX = 64  # that cannot be compacted, in one answer
UNREGISTERING_S_MAX = 10.0  # for the controller; the client asks again after that
LATE = "not done in time; it may still happen"


def describe(
    services: Services, request: DescribeBrokerRequest, now: float
) -> DescribeBrokerResponse:
    """Describe this broker as it is now."""
    image = services.image
    known = image.brokers.get(services.replicas.broker_id)
    listeners = {} if known is None else known.listeners or {PLAINTEXT: known.endpoint}
    session = services.controller.session_statistics()
    clock = services.clock_statistics(now)
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
        tuple(ConnectedClient(*kind, *counts) for kind, *counts in services.clients.statistics()),
        tuple(
            DefectCount(kind.request, kind.stage.value, kind.place, count)
            for kind, count in services.defects.statistics().items()
        ),
        clock.jump_ms,
        clock.settles_in_ms,
        services.controller.is_controller and services.controller.is_session_current(now),
        tuple(
            FarStampedTopic(
                topic, stamp.timestamp, services.wall_ms() - stamp.appended_ms, stamp.batch_count
            )
            for topic, stamp in services.far_stamps.statistics().items()
        ),
        tuple(
            UncompactedLog(*name, reason)
            for name, reason in islice(services.cleaner_statistics().failed.items(), LOGS_MAX)
        ),
    )


def _machine(services: Services) -> MachineDescription:
    facts, room = services.machine(), services.room_statistics()
    states = services.log_directories()
    return MachineDescription(
        facts.software_version,
        facts.python_version,
        facts.store,
        str(services.config.data_dir),
        facts.disk_free_bytes,
        facts.disk_total_bytes,
        facts.open_files,
        facts.open_files_max,
        room.free_bytes_min,
        room.log_bytes,
        room.log_bytes_max,
        tuple(f"{one.path}: {one.failure}" for one in states if one.failure),
    )


def unregister(
    services: Services, request: UnregisterBrokerRequest, now: float
) -> Parked[UnregisterBrokerResponse]:
    """Submit to the controller; other brokers answer NOT_CONTROLLER."""
    job = services.controller.submit(request)
    late = UnregisterBrokerResponse(ErrorCode.REQUEST_TIMED_OUT, LATE)
    return Parked((job,), lambda: now + UNREGISTERING_S_MAX, lambda now: job.result, lambda: late)
