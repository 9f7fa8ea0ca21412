"""Requests between brokers: orders of the controller, and requests to the controller.

The controller sends small orders (`controller/pushes.py`), because a broker obeys an order in one
turn. A larger one is not from it, and ends its connection.
"""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ProbeRequest,
    ProbeResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)

ORDER_ELEMENTS_MAX = 2_000  # the controller sends up to 500 partitions, with their topics
JOB_TIMEOUT_S = 10.0  # for a job of the controller; the broker asks again after that


def _check_size(elements: int) -> None:
    if elements > ORDER_ELEMENTS_MAX:
        raise HangUp(f"an order of {elements} elements; a controller sends {ORDER_ELEMENTS_MAX}")


def leader_and_isr(
    services: Services, request: LeaderAndIsrRequest, now: float
) -> LeaderAndIsrResponse:
    """Give replicas on this broker the roles that the controller sends."""
    _check_size(len(request.partitions) + len(request.brokers))
    return services.replicas.obey_roles(request, now)


def stop_replica(
    services: Services, request: StopReplicaRequest, now: float
) -> StopReplicaResponse:
    """Stop replicas on this broker."""
    _check_size(len(request.partitions))
    return services.replicas.stop(request, now)


def update_metadata(
    services: Services, request: UpdateMetadataRequest, now: float
) -> UpdateMetadataResponse:
    """Apply the controller's update of the cluster image."""
    _check_size(len(request.partitions) + len(request.topics) + len(request.brokers))
    return services.replicas.update_metadata(request, now)


def probe(services: Services, request: ProbeRequest, now: float) -> ProbeResponse:
    """Answer the controller's check that this broker is live."""
    return services.controller.probe(request, now)


def describe_replicas(
    services: Services, request: DescribeReplicasRequest, now: float
) -> Turns[DescribeReplicasResponse]:
    """Describe the replicas on this broker."""
    return services.replicas.describe(request, now)


def alter_partition(
    services: Services, request: AlterPartitionRequest, now: float
) -> Parked[AlterPartitionResponse]:
    """For the controller; NOT_CONTROLLER elsewhere."""
    job = services.controller.submit(request)
    late = AlterPartitionResponse(ErrorCode.REQUEST_TIMED_OUT)
    return Parked((job,), lambda: now + JOB_TIMEOUT_S, lambda now: job.result, lambda: late)


def controlled_shutdown(
    services: Services, request: ControlledShutdownRequest, now: float
) -> Parked[ControlledShutdownResponse]:
    """For the controller; NOT_CONTROLLER elsewhere."""
    job = services.controller.submit(request)
    late = ControlledShutdownResponse(ErrorCode.REQUEST_TIMED_OUT)
    return Parked((job,), lambda: now + JOB_TIMEOUT_S, lambda now: job.result, lambda: late)
