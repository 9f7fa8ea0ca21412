"""CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS: done by the controller, answered when done.

At any other broker the answer is NOT_CONTROLLER for each topic; METADATA names the controller.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

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

Response = TypeVar("Response")


def create(
    services: Services, request: CreateTopicsRequest, now: float
) -> Parked[CreateTopicsResponse]:
    """Create topics. After REQUEST_TIMED_OUT a topic may still be created."""

    names = [topic.name for topic in request.topics]
    return _by_controller(services, request, names, now, CreateTopicsResponse)


def delete(
    services: Services, request: DeleteTopicsRequest, now: float
) -> Parked[DeleteTopicsResponse]:
    """As `create`."""

    return _by_controller(services, request, request.topics, now, DeleteTopicsResponse)


def create_partitions(
    services: Services, request: CreatePartitionsRequest, now: float
) -> Parked[CreatePartitionsResponse]:
    """As `create`."""

    names = [topic.name for topic in request.topics]
    return _by_controller(services, request, names, now, CreatePartitionsResponse)


def _by_controller(
    services: Services,
    request: CreateTopicsRequest | DeleteTopicsRequest | CreatePartitionsRequest,
    names: Iterable[str],
    now: float,
    response: Callable[[tuple[TopicResult, ...]], Response],
) -> Parked[Response]:
    def expire() -> Response:
        return response(late(services, names))

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def late(services: Services, names: Iterable[str]) -> tuple[TopicResult, ...]:
    """Return the results of topics when the time is up."""
    text = services.why_late()
    return tuple(TopicResult(name, ErrorCode.REQUEST_TIMED_OUT, text) for name in names)
