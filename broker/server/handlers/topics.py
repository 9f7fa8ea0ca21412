"""CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS: done by the controller, answered when done.

At any other broker the answer is NOT_CONTROLLER for each topic; METADATA names the controller.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.config_descriptions import ConfigDescription
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
) -> Parked[CreateTopicsResponse | Turns[CreateTopicsResponse]]:
    """Create topics. After REQUEST_TIMED_OUT a topic may still be created."""

    names = [topic.name for topic in request.topics]
    parked = _by_controller(services, request, names, now, CreateTopicsResponse)

    def attempt(now: float) -> CreateTopicsResponse | Turns[CreateTopicsResponse] | None:
        answer = parked.attempt(now)
        if answer is None or not request.include_configs:
            return answer
        return _with_configs(services, request, answer)

    return Parked(parked.keys, parked.deadline, attempt, parked.expire)


def _with_configs(
    services: Services, request: CreateTopicsRequest, answer: CreateTopicsResponse
) -> Turns[CreateTopicsResponse]:
    """Add the properties of the topics. Equal descriptions are one object, however many topics
    there are."""
    config = services.config
    known: dict[ConfigDescription, ConfigDescription] = {}
    described: list[tuple[ConfigDescription, ...]] = []
    turn = Turn()
    for wanted, result in zip(request.topics, answer.topics, strict=True):
        if result.error:
            described.append(())
            continue
        own = {one.name: one.value for one in wanted.configs}
        configs = config.describe_topic({**config.own_settings(wanted.name), **own})
        described.append(tuple([known.setdefault(one, one) for one in configs]))
        if turn.is_over(len(configs)):
            yield
    return replace(answer, configs=tuple(described))


def delete(
    services: Services, request: DeleteTopicsRequest, now: float
) -> Parked[DeleteTopicsResponse]:
    """As `create`."""

    def expire() -> DeleteTopicsResponse:
        return request.refused(ErrorCode.REQUEST_TIMED_OUT, services.why_late())

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def create_partitions(
    services: Services, request: CreatePartitionsRequest, now: float
) -> Parked[CreatePartitionsResponse]:
    """As `create`."""

    names = [topic.name for topic in request.topics]
    return _by_controller(services, request, names, now, CreatePartitionsResponse)


def _by_controller(
    services: Services,
    request: CreateTopicsRequest | CreatePartitionsRequest,
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
