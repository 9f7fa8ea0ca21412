"""Request faults: `broker.server.dispatch.dispatch` with rules around it.

* "hold": the broker serves the request when the rule is removed. Requests that follow it on the
  same connection wait, too.
* "drop_response": the broker serves the request, and closes the connection instead of answering.
* "fail": the broker does not serve the request. It answers with an error.

The latest requests are recorded, each with the errors of its response.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import trio

from minibroker.broker.replication.purgatory import Parked, Purgatory, Watch
from minibroker.broker.server.dispatch import HandlerResult, dispatch
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.turns import Steps, finished, without_pause
from minibroker.protocol.constants import NO_OFFSET, ApiKey, ErrorCode
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    FetchRequest,
    FetchResponse,
    PartitionFetched,
)
from minibroker.protocol.messages.group_offsets import (
    GroupOffsets,
    GroupPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommitted,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinator,
)
from minibroker.protocol.messages.offsets import ListOffsetsResponse, PartitionOffset
from minibroker.protocol.messages.produce import PartitionProduced, ProduceResponse
from minibroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    PartitionProducers,
    TransactionDescription,
    TransactionMarkerResult,
    TransactionPartitionResult,
    TransactionPartitionsAdded,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import TopicPartition
from minibroker.testing.node.faults import RequestRule

RECORDED_MAX: Final = 20_000  # of clients, and as many of other brokers
# The message for one partition, and the response that has them all.
BY_PARTITION: Final[dict[int, tuple[type[Any], type[Any]]]] = {
    ApiKey.PRODUCE: (PartitionProduced, ProduceResponse),
    ApiKey.FETCH: (PartitionFetched, FetchResponse),
    ApiKey.LIST_OFFSETS: (PartitionOffset, ListOffsetsResponse),
    ApiKey.OFFSET_COMMIT: (PartitionCommitted, OffsetCommitResponse),
    ApiKey.TXN_OFFSET_COMMIT: (PartitionCommitted, TxnOffsetCommitResponse),
    ApiKey.DESCRIBE_PRODUCERS: (PartitionProducers, DescribeProducersResponse),
}
# The fields of requests and responses that hold one thing for each of several.
PARTS_OF_REQUESTS: Final = ("groups", "transactions", "markers")
PARTS_OF_RESPONSES: Final = (
    "partitions",
    "topics",
    "groups",
    "coordinators",
    "transactions",
    "markers",
)
# These stand in the head of a FETCH response, not beside a partition.
FETCH_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)
# The partitions that a request names, each with the topic's id if the request has that in place of
# the name. The answer then has it, too.
Named: TypeAlias = dict[TopicPartition, bytes]


@dataclass(slots=True)
class ReceivedRequest:
    """A request that the broker received.

    `at_s` is wall clock time in seconds. `rule` is the number of the rule that matched, or 0.
    `errors` are the names of the errors in the response, or None while there is no response.
    `offsets` are those of the partitions, in their order: what a commit commits, or where a PRODUCE
    has appended (-1: it has not); empty for other requests.
    """

    at_s: float
    api: str
    version: int
    client_id: str | None
    is_of_client: bool
    partitions: tuple[TopicPartition, ...]
    rule: int = 0
    errors: tuple[str, ...] | None = None
    group_id: str = ""
    member_id: str = ""
    offsets: tuple[int, ...] = ()

    def complete(self, response: Any) -> None:
        """Record the errors of the response, and the offsets of what it has appended."""
        self.errors = _error_names(response)
        if isinstance(response, ProduceResponse):
            found = {(each.topic, each.partition): each for each in response.partitions}
            of_ids = [each for each in response.partitions if not each.topic]
            if len(of_ids) == len(self.partitions):  # they have ids in place of names
                found = dict(zip(self.partitions, of_ids, strict=True))
            self.offsets = tuple(
                found[name].base_offset if name in found and not found[name].error else NO_OFFSET
                for name in self.partitions
            )


@dataclass(slots=True)
class _ActiveRule:
    """A rule, and how many more requests it applies to."""

    rule: RequestRule
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.rule.times or math.inf


class FaultyDispatch:
    """A `Dispatch` that applies rules. `listener` is the name of the listener for brokers."""

    def __init__(self, listener: str, wall_ms: Callable[[], int]) -> None:
        self._listener = listener
        self._wall_ms = wall_ms
        self._rules: dict[int, _ActiveRule] = {}
        self._held: dict[Watch, Purgatory] = {}
        self._held_count = Counter[str]()  # by peer
        self._session_partitions: dict[str, Named] = {}  # by peer
        self._from_clients = deque[ReceivedRequest](maxlen=RECORDED_MAX)
        self._from_brokers = deque[ReceivedRequest](maxlen=RECORDED_MAX)

    def set(self, rules: Iterable[RequestRule]) -> None:
        """Replace the rules. A rule whose number was there before keeps its count."""
        active = {rule.number: _ActiveRule(rule) for rule in rules}
        kept = {number: each for number, each in self._rules.items() if number in active}
        self._rules = active | kept
        for watch, purgatory in list(self._held.items()):
            purgatory.notify(watch)
        if not any(each.rule.action == "hold" for each in self._rules.values()):
            self._held.clear()

    def received(self, client_id: str | None) -> Iterable[ReceivedRequest]:
        """Return the latest requests with this client id, or of all clients, in order."""
        if client_id is None:
            return self._from_clients
        both = chain(self._from_brokers, self._from_clients)
        return (each for each in both if each.client_id == client_id)

    def __call__(
        self, services: Services, envelope: RequestEnvelope, peer: str, now: float
    ) -> HandlerResult:
        """Serve one request, or apply the first rule that matches it."""
        is_of_client = services.listener != self._listener
        named = self._named(services, envelope, peer)
        received = ReceivedRequest(
            self._wall_ms() / 1000,
            ApiKey(envelope.api_key).name,
            envelope.version,
            envelope.client_id,
            is_of_client,
            tuple(named),
            group_id=_text(getattr(envelope.message, "group_id", "")),
            member_id=_text(getattr(envelope.message, "member_id", "")),
            offsets=_committed_offsets(envelope.message),
        )
        (self._from_clients if is_of_client else self._from_brokers).append(received)
        rule = self._match(received)
        if rule is not None:
            received.rule = rule.number
        if expects_response(envelope) and (
            self._held_count[peer] or (rule is not None and rule.action == "hold")
        ):
            held = self._hold(services, _copied(envelope), peer, received, named, rule)
            return _after_earlier_responses(held)
        outcome = self._serve(services, envelope, peer, now, received, named, rule)
        if isinstance(outcome, Parked) and rule is not None and rule.action == "drop_response":
            return _after_earlier_responses(outcome)
        return outcome

    def _match(self, received: ReceivedRequest) -> RequestRule | None:
        for active in self._rules.values():
            if active.left and _matches(active.rule, received):
                active.left -= 1
                return active.rule
        return None

    def _serve(
        self,
        services: Services,
        envelope: RequestEnvelope,
        peer: str,
        now: float,
        received: ReceivedRequest,
        named: Named,
        rule: RequestRule | None,
    ) -> HandlerResult:
        if rule is not None and rule.action == "fail":
            if not expects_response(envelope):
                raise HangUp("a test makes this request fail, which has no response")
            return _recorded(_error_response(envelope, named, rule.code), received)
        outcome = dispatch(services, envelope, peer, now)
        if rule is not None and rule.action == "drop_response":
            return _dropped(outcome, received)
        return _recorded(outcome, received)

    def _hold(
        self,
        services: Services,
        envelope: RequestEnvelope,
        peer: str,
        received: ReceivedRequest,
        named: Named,
        rule: RequestRule | None,
    ) -> Parked[Any]:
        """Return a parked request. It is served when its rule, or that of a request before it on
        the connection, is removed; the handler may then park it for reasons of its own."""
        watch, purgatory = Watch(), services.purgatory
        served: list[HandlerResult] = []
        self._held[watch] = purgatory
        self._held_count[peer] += 1

        def is_held() -> bool:
            return rule is not None and rule.action == "hold" and rule.number in self._rules

        def attempt(now: float) -> Any:
            if not served:
                if is_held():
                    return None
                self._held.pop(watch, None)
                self._held_count[peer] -= 1
                other = None if rule is None or rule.action == "hold" else rule
                try:
                    outcome = self._serve(services, envelope, peer, now, received, named, other)
                except HangUp as error:  # the session's writer expects another error
                    raise trio.BrokenResourceError(str(error)) from error
                if isinstance(outcome, Generator):
                    outcome = without_pause(outcome)
                if isinstance(outcome, Parked):
                    for key in dict.fromkeys(outcome.keys):
                        purgatory.watch(watch, key)
                served.append(outcome)
            [outcome] = served
            if not isinstance(outcome, Parked):
                return outcome
            response = outcome.attempt(now)
            if response is not None:
                unwatch(outcome)
            return response

        def unwatch(parked: Parked[Any]) -> None:
            for key in dict.fromkeys(parked.keys):
                purgatory.unwatch(watch, key)

        def deadline() -> float:
            return served[0].deadline() if served and isinstance(served[0], Parked) else math.inf

        def expire() -> Any:
            [parked] = served
            assert isinstance(parked, Parked)
            unwatch(parked)
            return parked.expire()

        return Parked((watch,), deadline, attempt, expire)

    def _named(self, services: Services, envelope: RequestEnvelope, peer: str) -> Named:
        """Return the partitions that a request is about. A FETCH in a session names only the
        partitions that have changed, so those that it named before are remembered."""
        names = services.image.topic_names
        named = dict(_named(envelope.message, names))
        request = envelope.message
        if not isinstance(request, FetchRequest) or request.session_epoch == SESSION_EPOCH_NONE:
            return named
        is_open = request.session_epoch != SESSION_EPOCH_OPEN
        known = self._session_partitions.get(peer, {}) if is_open else {}
        for name in request.forgotten:
            known.pop(name, None)
        for each in request.forgotten_by_id:
            known.pop(TopicPartition(names.get(each.topic_id, ""), each.partition), None)
        self._session_partitions[peer] = known | named
        return self._session_partitions[peer]


def expects_response(envelope: RequestEnvelope) -> bool:
    """Return whether a request has a response. PRODUCE with acks=0 has none."""
    return getattr(envelope.message, "acks", 1) != 0


def _matches(rule: RequestRule, received: ReceivedRequest) -> bool:
    if rule.api != received.api:
        return False
    if rule.client_id is None:
        if not received.is_of_client:
            return False
    elif rule.client_id != received.client_id:
        return False
    if rule.topic is None:
        return True
    return any(
        rule.topic == topic and rule.partition in (None, partition)
        for topic, partition in received.partitions
    )


def _named(message: Any, names: Mapping[bytes, str]) -> Iterator[tuple[TopicPartition, bytes]]:
    """Yield the partitions that a request names, each with its topic's id if that is in place of
    the name; partition -1 stands for a whole topic. `names` are those of the ids."""
    for part in (message, *_parts_in(message, PARTS_OF_REQUESTS)):
        for item in getattr(part, "partitions", None) or ():
            topic_id = b"" if item.topic else getattr(item, "topic_id", b"")
            name = names.get(topic_id, item.topic)
            yield TopicPartition(name, item.partition), topic_id
    for item in getattr(message, "topics", None) or ():
        yield TopicPartition(item if isinstance(item, str) else getattr(item, "name", ""), -1), b""
    for topic_id in getattr(message, "topic_ids", ()):
        yield TopicPartition(names.get(topic_id, ""), -1), topic_id


def _error_response(envelope: RequestEnvelope, named: Named, code: int) -> object:
    """Return the response that has this error for all that the request asks for."""
    request = envelope.message
    if envelope.api_key == ApiKey.FETCH and code in FETCH_SESSION_ERRORS:
        return FetchResponse(code)
    if envelope.api_key in BY_PARTITION:
        # A FETCH has no session then, so that the client names all partitions again.
        partition_type, response_type = BY_PARTITION[envelope.api_key]
        return response_type(
            partitions=tuple(
                partition_type(*name, code, **({"topic_id": topic_id} if topic_id else {}))
                for name, topic_id in named.items()
            )
        )
    if isinstance(request, OffsetFetchRequest):
        return _offsets_error(request, code)
    if isinstance(request, FindCoordinatorRequest) and request.group_ids is not None:
        coordinators = [GroupCoordinator(group, error=code) for group in request.group_ids]
        return FindCoordinatorResponse(coordinators=tuple(coordinators))
    answer = _transactions_error(request, code)
    return answer or APIS[ApiKey(envelope.api_key)].response(error=code)


def _transactions_error(request: Any, code: int) -> object | None:
    """Return the response with an error for each transaction that a request names; None for another
    request."""

    def results(names: Iterable[TopicPartition]) -> tuple[TransactionPartitionResult, ...]:
        return tuple(TransactionPartitionResult(*name, code) for name in names)

    if isinstance(request, AddPartitionsToTxnRequest):
        return AddPartitionsToTxnResponse(
            transactions=tuple(
                TransactionPartitionsAdded(each.transactional_id, results(each.partitions))
                for each in request.transactions
            )
        )
    if isinstance(request, WriteTxnMarkersRequest):
        return WriteTxnMarkersResponse(
            tuple(
                TransactionMarkerResult(each.producer_id, results(each.partitions))
                for each in request.markers
            )
        )
    if isinstance(request, DescribeTransactionsRequest):
        described = (TransactionDescription(each, code) for each in request.transactional_ids)
        return DescribeTransactionsResponse(tuple(described))
    return None


def _offsets_error(request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    def offsets(partitions: Iterable[GroupPartition] | None) -> tuple[PartitionGroupOffset, ...]:
        return tuple(
            PartitionGroupOffset(
                each.topic, each.partition, code, metadata="", topic_id=each.topic_id
            )
            for each in partitions or ()
        )

    if request.groups is None:
        return OffsetFetchResponse(code, offsets(request.partitions))
    groups = [
        GroupOffsets(each.group_id, code, offsets(each.partitions)) for each in request.groups
    ]
    return OffsetFetchResponse(groups=tuple(groups))


def _error_names(response: Any) -> tuple[str, ...]:
    """Return the names of the errors in a response, each once."""
    codes = dict.fromkeys(getattr(each, "error", 0) for each in _parts(response))
    return tuple(_error_name(code) for code in codes if code)


def _parts(response: Any) -> Iterator[Any]:
    """Yield a response and all in it that may have an error."""
    yield response
    for part in _parts_in(response, PARTS_OF_RESPONSES):
        yield from _parts(part)


def _parts_in(message: Any, names: Iterable[str]) -> Iterator[Any]:
    """Yield all that stands in these fields of a message, if it has them."""
    for name in names:
        yield from getattr(message, name, None) or ()


def _committed_offsets(request: Any) -> tuple[int, ...]:
    """Return what a commit of a group commits, in the order of its partitions."""
    if not isinstance(request, OffsetCommitRequest | TxnOffsetCommitRequest):
        return ()
    return tuple(each.offset for each in request.partitions)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _error_name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)


def _recorded(outcome: HandlerResult, received: ReceivedRequest) -> HandlerResult:
    """Return the outcome, which records the errors of its response once there is one."""

    def record(response: Any) -> Any:
        if isinstance(response, Generator):
            return _recorded_steps(response, received)
        received.complete(response)
        return response

    if outcome is None:
        return None
    if isinstance(outcome, Parked):
        parked = outcome

        def attempt(now: float) -> Any:
            response = parked.attempt(now)
            return None if response is None else record(response)

        return replace(parked, attempt=attempt, expire=lambda: record(parked.expire()))
    response: object = record(outcome)
    return response


def _recorded_steps(steps: Steps[Any], received: ReceivedRequest) -> Steps[Any]:
    return _recorded((yield from steps), received)


def _dropped(outcome: HandlerResult, received: ReceivedRequest) -> HandlerResult:
    """Return a parked request that closes the connection when its response is ready."""
    if outcome is None:
        return None
    if isinstance(outcome, Generator):
        outcome = without_pause(outcome)
    if not isinstance(outcome, Parked):
        outcome = _ready(outcome)
    parked: Parked[Any] = outcome

    def drop(response: Any) -> Any:
        received.complete(finished(response))
        raise trio.BrokenResourceError("a test drops this response")

    def attempt(now: float) -> Any:
        response = parked.attempt(now)
        return None if response is None else drop(response)

    return replace(parked, attempt=attempt, expire=lambda: drop(parked.expire()))


def _ready(response: object) -> Parked[object]:
    """Return a parked request that has its response already."""
    return Parked((), lambda: -math.inf, lambda now: response, lambda: response)


def _after_earlier_responses(parked: Parked[Any]) -> Parked[Any]:
    """Return the parked request with a first attempt in vain. The session sends the responses that
    it has collected only before it waits for a parked request; an attempt that breaks the
    connection would lose them."""
    has_been_tried = False

    def attempt(now: float) -> Any:
        nonlocal has_been_tried
        if has_been_tried:
            return parked.attempt(now)
        has_been_tried = True
        return None

    return replace(parked, attempt=attempt)


def _copied(value: Any) -> Any:
    """Return a deep copy without views of the receive buffer. Views become bytearrays, because the
    broker writes into the batches that it receives."""
    if isinstance(value, memoryview):
        return bytearray(value)
    if isinstance(value, tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _copied(getattr(value, each.name)) for each in fields(value)}
        )
    return value
