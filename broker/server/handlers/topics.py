"""CREATE_TOPICS, DELETE_TOPICS and CREATE_PARTITIONS: for the controller, answered when it is done.

At any other broker the answer is NOT_CONTROLLER for each topic; METADATA says who is it.
"""

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

LATE = "not done in time; it may still happen"


def create(
    services: Services, request: CreateTopicsRequest, now: float
) -> Parked[CreateTopicsResponse]:
    """A result for each topic; REQUEST_TIMED_OUT says nothing about whether it will be made."""
    job = services.controller.submit(request)
    return Parked(
        (job,),
        lambda: now + max(0, request.timeout_ms) / 1000,
        lambda now: job.result,
        lambda: CreateTopicsResponse(tuple(late(services, topic.name) for topic in request.topics)),
    )


def delete(
    services: Services, request: DeleteTopicsRequest, now: float
) -> Parked[DeleteTopicsResponse]:
    """As `create`."""
    job = services.controller.submit(request)
    return Parked(
        (job,),
        lambda: now + max(0, request.timeout_ms) / 1000,
        lambda now: job.result,
        lambda: DeleteTopicsResponse(tuple(late(services, name) for name in request.topics)),
    )


def create_partitions(
    services: Services, request: CreatePartitionsRequest, now: float
) -> Parked[CreatePartitionsResponse]:
    """As `create`."""
    job = services.controller.submit(request)
    return Parked(
        (job,),
        lambda: now + max(0, request.timeout_ms) / 1000,
        lambda now: job.result,
        lambda: CreatePartitionsResponse(
            tuple(late(services, topic.name) for topic in request.topics)
        ),
    )


def late(services: Services, name: str) -> TopicResult:
    """What is said of a topic when time is up."""
    trouble = services.controller.store_trouble()
    text = f"{LATE} ({trouble})" if trouble else LATE
    return TopicResult(name, ErrorCode.REQUEST_TIMED_OUT, text)
