"""How a broker with faults serves requests: `broker.server.dispatch.dispatch` with rules around it.

* "hold": the request is served once the rule has gone, and so are those that came behind it on its
  connection.
* "drop_response": the request is served, and then its connection breaks in the place of the answer.
* "fail": the request is not served; it is answered with an error.

What was asked is taken down, with the errors of the answers.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

import trio

from minibroker.broker.replication.purgatory import Parked, Purgatory, Watch
from minibroker.broker.server.dispatch import Outcome, dispatch
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.turns import Turns, without_pause
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_OPEN,
    FetchRequest,
    FetchResponse,
    PartitionFetched,
)
from minibroker.protocol.messages.group_offsets import OffsetCommitResponse, PartitionCommitted
from minibroker.protocol.messages.offsets import ListOffsetsResponse, PartitionOffset
from minibroker.protocol.messages.produce import PartitionProduced, ProduceResponse
from minibroker.protocol.types import TopicPartition
from minibroker.testing.node.faults import RequestRule

KEPT_MAX: Final = 20_000  # requests that are remembered
# What answers each partition, and the answer.
BY_PARTITION: Final[dict[int, tuple[type[Any], type[Any]]]] = {
    ApiKey.PRODUCE: (PartitionProduced, ProduceResponse),
    ApiKey.LIST_OFFSETS: (PartitionOffset, ListOffsetsResponse),
    ApiKey.OFFSET_COMMIT: (PartitionCommitted, OffsetCommitResponse),
}


@dataclass(slots=True)
class Seen:
    """A request that came. `rule` is the number of the rule that it met, or 0; `errors` are those
    of its answer, None while there is none. `at_s` is wall clock time."""

    at_s: float
    api: str
    version: int
    client_id: str | None
    is_of_client: bool
    partitions: tuple[TopicPartition, ...]
    rule: int = 0
    errors: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Match:
    """A rule, and how many requests it still concerns."""

    rule: RequestRule
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.rule.times or math.inf


class FaultyDispatch:
    """`Dispatch` with rules. `listener` is the name of that of other brokers."""

    def __init__(self, listener: str, wall_ms: Callable[[], int]) -> None:
        self._listener = listener
        self._wall_ms = wall_ms
        self._matches: dict[int, _Match] = {}
        self._held: dict[Watch, Purgatory] = {}
        self._held_of = Counter[str]()  # those of a peer that are not served yet
        self._fetched: dict[str, dict[TopicPartition, None]] = {}  # what a peer's session is about
        self._seen = deque[Seen](maxlen=KEPT_MAX)

    def set(self, rules: Iterable[RequestRule]) -> None:
        """Have these rules; one that was there before goes on where it was."""
        found = {rule.number: rule for rule in rules}
        kept = {number: each for number, each in self._matches.items() if number in found}
        self._matches = {number: _Match(rule) for number, rule in found.items()} | kept
        for watch, purgatory in list(self._held.items()):
            purgatory.notify(watch)

    def seen(self) -> Sequence[Seen]:
        """The latest requests, in order."""
        return self._seen

    def __call__(
        self, services: Services, envelope: RequestEnvelope, peer: str, now: float
    ) -> Outcome:
        """Serve one request, or do with it what a rule says."""
        is_of_client = services.listener != self._listener
        partitions = self._partitions_of(envelope, peer)
        seen = Seen(
            self._wall_ms() / 1000,
            ApiKey(envelope.api_key).name,
            envelope.version,
            envelope.client_id,
            is_of_client,
            tuple(partitions),
        )
        self._seen.append(seen)
        rule = self._match(seen)
        if rule is not None:
            seen.rule = rule.number
        if must_answer(envelope) and (
            self._held_of[peer] or (rule is not None and rule.action == "hold")
        ):
            return self._hold(services, _detached(envelope), peer, seen, rule)
        return self._serve(services, envelope, peer, now, seen, rule)

    def _match(self, seen: Seen) -> RequestRule | None:
        for match in self._matches.values():
            if match.left and _concerns(match.rule, seen):
                match.left -= 1
                return match.rule
        return None

    def _serve(
        self,
        services: Services,
        envelope: RequestEnvelope,
        peer: str,
        now: float,
        seen: Seen,
        rule: RequestRule | None,
    ) -> Outcome:
        if rule is not None and rule.action == "fail":
            if not must_answer(envelope):
                raise HangUp("a test lets this request fail, which has no answer")
            return _noted(_refusal(envelope, seen.partitions, rule.code), seen)
        outcome = dispatch(services, envelope, peer, now)
        if rule is not None and rule.action == "drop_response":
            return _dropped(outcome, seen)
        return _noted(outcome, seen)

    def _hold(
        self,
        services: Services,
        envelope: RequestEnvelope,
        peer: str,
        seen: Seen,
        rule: RequestRule | None,
    ) -> Parked[Any]:
        """A request that waits for the end of the rule, and then perhaps for what it asks for."""
        watch, purgatory = Watch(), services.purgatory
        served: list[Outcome] = []
        self._held[watch] = purgatory
        self._held_of[peer] += 1

        def is_held() -> bool:
            return rule is not None and rule.action == "hold" and rule.number in self._matches

        def attempt(now: float) -> Any:
            if not served:
                if is_held():
                    return None
                del self._held[watch]
                self._held_of[peer] -= 1
                other = None if rule is None or rule.action == "hold" else rule
                try:
                    outcome = self._serve(services, envelope, peer, now, seen, other)
                except HangUp as error:  # the task that answers does not expect it
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
            answer = outcome.attempt(now)
            if answer is not None:
                forget(outcome)
            return answer

        def forget(parked: Parked[Any]) -> None:
            for key in dict.fromkeys(parked.keys):
                purgatory.unwatch(watch, key)

        def deadline() -> float:
            return served[0].deadline() if served and isinstance(served[0], Parked) else math.inf

        def expire() -> Any:
            [parked] = served
            assert isinstance(parked, Parked)
            forget(parked)
            return parked.expire()

        return Parked((watch,), deadline, attempt, expire)

    def _partitions_of(self, envelope: RequestEnvelope, peer: str) -> Iterable[TopicPartition]:
        """What a request is about; one of a fetch session names only what has changed."""
        named = dict.fromkeys(_named(envelope.message))
        if not isinstance(envelope.message, FetchRequest):
            return named
        request = envelope.message
        known = {} if request.session_epoch <= SESSION_EPOCH_OPEN else self._fetched.get(peer, {})
        for gone in request.forgotten:
            known.pop(gone, None)
        self._fetched[peer] = known | named
        return self._fetched[peer]


def must_answer(envelope: RequestEnvelope) -> bool:
    """Whether a request has an answer; PRODUCE with acks=0 has none."""
    return getattr(envelope.message, "acks", 1) != 0


def _concerns(rule: RequestRule, seen: Seen) -> bool:
    if rule.api != seen.api:
        return False
    if rule.client_id is None:
        if not seen.is_of_client:
            return False
    elif rule.client_id != seen.client_id:
        return False
    if rule.topic is None:
        return True
    return any(
        rule.topic == topic and rule.partition in (None, partition)
        for topic, partition in seen.partitions
    )


def _named(message: Any) -> Iterable[TopicPartition]:
    """The partitions that a request names; -1 stands for a topic as a whole."""
    for item in getattr(message, "partitions", None) or ():
        yield TopicPartition(item.topic, item.partition)
    for item in getattr(message, "topics", None) or ():
        yield TopicPartition(item if isinstance(item, str) else getattr(item, "name", ""), -1)


def _refusal(envelope: RequestEnvelope, partitions: Sequence[TopicPartition], error: int) -> object:
    """The answer that says this error of all that was asked for."""
    if envelope.api_key == ApiKey.FETCH:
        answers = [PartitionFetched(topic, partition, error) for topic, partition in partitions]
        return FetchResponse(0, envelope.message.session_id, tuple(answers))
    if envelope.api_key in BY_PARTITION:
        one, whole = BY_PARTITION[envelope.api_key]
        return whole(tuple(one(topic, partition, error) for topic, partition in partitions))
    return APIS[ApiKey(envelope.api_key)].response(error=error)


def _errors(answer: Any) -> tuple[str, ...]:
    """The names of the errors in an answer, each once."""
    parts = [*(getattr(answer, "partitions", None) or ()), *(getattr(answer, "topics", None) or ())]
    codes = dict.fromkeys(getattr(each, "error", 0) for each in (answer, *parts))
    return tuple(_name(code) for code in codes if code)


def _name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)


def _changed(outcome: Outcome, change: Callable[[Any], Any]) -> Outcome:
    """An outcome whose answer is passed through a function, once there is one."""
    if outcome is None:
        return None
    if isinstance(outcome, Parked):
        parked = outcome

        def attempt(now: float) -> Any:
            answer = parked.attempt(now)
            return None if answer is None else change(answer)

        return replace(parked, attempt=attempt, expire=lambda: change(parked.expire()))
    if isinstance(outcome, Generator):
        return _changed_at_the_end(outcome, change)
    changed: object = change(outcome)
    return changed


def _changed_at_the_end(turns: Turns[Any], change: Callable[[Any], Any]) -> Turns[Any]:
    return change((yield from turns))


def _noted(outcome: Outcome, seen: Seen) -> Outcome:
    def note(answer: Any) -> Any:
        seen.errors = _errors(answer)
        return answer

    return _changed(outcome, note)


def _dropped(outcome: Outcome, seen: Seen) -> Outcome:
    """Where the session would send the answer, the connection breaks."""

    def drop(answer: Any) -> Any:
        seen.errors = _errors(answer)
        raise trio.BrokenResourceError("a test drops this answer")

    def drop_at_once(answer: Any) -> Turns[Any]:
        yield
        return drop(answer)

    if isinstance(outcome, Parked | Generator):
        return _changed(outcome, drop)
    return None if outcome is None else drop_at_once(outcome)


def _detached(value: Any) -> Any:
    """The same, without views of the receive buffer; a broker writes into the batches it gets."""
    if isinstance(value, memoryview):
        return bytearray(value)
    if isinstance(value, tuple):
        parts = [_detached(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _detached(getattr(value, each.name)) for each in fields(value)}
        )
    return value
