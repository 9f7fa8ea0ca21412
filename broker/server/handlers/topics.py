"""CREATE_TOPICS, DELETE_TOPICS and CREATE_PARTITIONS: for the controller, answered when it is done.

At any other broker the answer is NOT_CONTROLLER for each topic; METADATA says who is it.
"""

from collections.abc import Iterable

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicResult,
)


def create(
    services: Services, request: CreateTopicsRequest, now: float
) -> Parked[CreateTopicsResponse]:
    """A result for each topic; REQUEST_TIMED_OUT says nothing about whether it will be made."""

    def expire() -> CreateTopicsResponse:
        return CreateTopicsResponse(late(services, [topic.name for topic in request.topics]))

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def delete(
    services: Services, request: DeleteTopicsRequest, now: float
) -> Parked[DeleteTopicsResponse]:
    """As `create`."""

    def expire() -> DeleteTopicsResponse:
        return DeleteTopicsResponse(late(services, request.topics))

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def create_partitions(
    services: Services, request: CreatePartitionsRequest, now: float
) -> Parked[CreatePartitionsResponse]:
    """As `create`."""

    def expire() -> CreatePartitionsResponse:
        return CreatePartitionsResponse(late(services, [topic.name for topic in request.topics]))

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def late(services: Services, names: Iterable[str]) -> tuple[TopicResult, ...]:
    """What is said of topics when time is up."""
    text = services.why_late()
    return tuple(TopicResult(name, ErrorCode.REQUEST_TIMED_OUT, text) for name in names)
