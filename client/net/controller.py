"""Requests that only the controller serves: sent to it, and again after it changes.

`ask_controller` asks about topics, each of which has its own answer; `ask_controller_once` asks for
one thing. `ask_controller_for_metadata` asks for what any broker answers, as far as it knows.

A broker that is not the controller (any more) refuses a topic with NOT_CONTROLLER, and has done
nothing for it; after a lost connection it is open what was done. In both cases the metadata are
refreshed, with the cluster's pauses, and the topics without an answer go to the controller of the
moment, until the client's time-out. The caller learns for which topics an answer was lost, because
what a refusal means then depends on the kind of request.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from minibroker.client.errors import ClientTimeout
from minibroker.client.net.cluster import Cluster
from minibroker.protocol.constants import NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.brokers import DescribeBrokerRequest
from minibroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

# How long one broker may take that is said to be the controller: it may be paused.
ONE_ANSWER_S_MAX: Final = 1.0

T = TypeVar("T")


class Result(Protocol):
    """The fields that all answers about a topic have."""

    @property
    def name(self) -> str: ...
    @property
    def error(self) -> int: ...
    @property
    def error_message(self) -> str | None: ...


class TopicResults(Protocol):
    """An answer with a result for each topic."""

    @property
    def topics(self) -> Sequence[Result]: ...


class OneResult(Protocol):
    """An answer with one error."""

    @property
    def error(self) -> int: ...


OneResponse = TypeVar("OneResponse", bound=OneResult)


class RequestOutcome(NamedTuple):
    """The answer for one topic. `is_repeated`: an earlier answer was lost, and may have been a
    success."""

    result: Result
    is_repeated: bool


async def ask_controller(
    cluster: Cluster,
    api_key: ApiKey,
    topics: tuple[T, ...],
    make_request: Callable[[tuple[T, ...]], Request[TopicResults]],
) -> list[RequestOutcome]:
    """Ask about these topics; return an outcome for each, in order.

    Raises `ClientTimeout`: then the requests without an answer may have been executed. Raises
    `BrokerError` if the controller does not serve such requests.
    """
    outcomes: dict[int, RequestOutcome] = {}
    lost: frozenset[int] = frozenset()  # sent, without an answer
    last: Exception | None = None
    with trio.move_on_after(cluster.options.call_timeout_ms / 1000):
        while len(outcomes) < len(topics):
            if cluster.controller_id == NO_NODE:
                await cluster.refreshed()
                continue
            left = [index for index in range(len(topics)) if index not in outcomes]
            try:
                channel = await cluster.channel(cluster.controller_id)
                reply = channel.start(api_key, make_request(tuple(topics[i] for i in left)))
                last = ClientTimeout(f"{channel.endpoint} is silent")
                before, lost = lost, lost | set(left)
                response = await reply.wait()
                lost = before
            except OSError as error:
                last = error
            else:
                for index, result in zip(left, response.topics, strict=False):
                    if result.error != ErrorCode.NOT_CONTROLLER:
                        outcomes[index] = RequestOutcome(result, index in lost)
            if len(outcomes) < len(topics):
                await cluster.refreshed()
        return [outcomes[index] for index in range(len(topics))]
    doubt = ", and whether it was done is not known" if lost else ""
    raise ClientTimeout(f"{api_key.name}{doubt}: {cluster.timeout(last)}")


class Answer(NamedTuple, Generic[OneResponse]):
    """The answer to a request for one thing; `is_repeated` as in `RequestOutcome`."""

    response: OneResponse
    is_repeated: bool


async def ask_controller_once(
    cluster: Cluster, api_key: ApiKey, request: Request[OneResponse]
) -> Answer[OneResponse]:
    """Send one request, whose answer has one `error`. Raises as `ask_controller`."""
    is_lost = False
    last: Exception | None = None
    with trio.move_on_after(cluster.options.call_timeout_ms / 1000):
        while True:
            if cluster.controller_id == NO_NODE:
                await cluster.refreshed()
                continue
            try:
                channel = await cluster.channel(cluster.controller_id)
                reply = channel.start(api_key, request)
                last = ClientTimeout(f"{channel.endpoint} is silent")
                was_lost, is_lost = is_lost, True
                response = await reply.wait()
                is_lost = was_lost
            except OSError as error:
                last = error
            else:
                if response.error != ErrorCode.NOT_CONTROLLER:
                    return Answer(response, is_lost)
            await cluster.refreshed()
    doubt = ", and whether it was done is not known" if is_lost else ""
    raise ClientTimeout(f"{api_key.name}{doubt}: {cluster.timeout(last)}")


async def ask_controller_for_metadata(cluster: Cluster, within_s: float) -> MetadataResponse | None:
    """Return the controller's id and the live brokers, as the controller knows them; None if no
    controller answers in time.

    Other brokers know what the controller has told them: one that was paused or cut off may know
    an older state, in which it may itself be the controller. So the broker is asked whether it is,
    together with the metadata. Raises `ClientClosed`.
    """
    with trio.move_on_after(within_s):
        while True:
            await cluster.refreshed()
            with trio.move_on_after(ONE_ANSWER_S_MAX):
                answer = await _metadata_of_controller(cluster, cluster.controller_id)
                if answer is not None:
                    return answer
    return None


async def _metadata_of_controller(cluster: Cluster, node_id: int) -> MetadataResponse | None:
    """Return the metadata of a broker if it is the controller, and has told itself so."""
    try:
        channel = await cluster.channel(node_id)
        described = channel.start(ApiKey.DESCRIBE_BROKER, DescribeBrokerRequest())
        metadata = channel.start(ApiKey.METADATA, MetadataRequest((), False))
        is_controller = (await described.wait()).is_controller
        answer = await metadata.wait()
    except (OSError, BrokerError):
        return None
    return answer if is_controller and answer.controller_id == node_id else None
