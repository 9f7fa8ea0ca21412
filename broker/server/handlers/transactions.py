"""The requests to a transaction's coordinator: add partitions, add a group's offsets, end, describe
and list.

INIT_PRODUCER_ID is in `producer_id`; the markers that an end leads to are sent by
`transactions.marker_sender`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

import trio

from minibroker.broker.coordination.name_pattern import InvalidPatternError, NamePattern
from minibroker.broker.errors import Refused
from minibroker.broker.groups.coordinator import check_group_id
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.bounds import ANSWER_BYTES_MAX, ITEM_BYTES
from minibroker.broker.server.handlers.producer_id import fresh_producer_id
from minibroker.broker.server.handlers.transaction_writes import WriteResult, decide
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.coordinator import check_transactional_id
from minibroker.broker.transactions.records import CHARS_OF_AN_ITEM
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.transaction import (
    Decision,
    Producer,
    Transaction,
    needs_fresh_id,
    verify_error,
)
from minibroker.broker.transactions.transaction import (
    add_partitions as add_to,
)
from minibroker.broker.transactions.transaction import (
    end as end_transaction,
)
from minibroker.broker.turns import AT_ONCE, Turn, Turns, at_once, in_turns_if
from minibroker.protocol.constants import (
    NO_PRODUCER_ID,
    OFFSETS_TOPIC,
    ErrorCode,
)
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.messages.transactions import (
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionDescription,
    TransactionPartitionResult,
    TransactionPartitions,
    TransactionPartitionsAdded,
)
from minibroker.protocol.types import TopicPartition

Added: TypeAlias = TransactionPartitionsAdded
AllAdded: TypeAlias = AddPartitionsToTxnResponse | Turns[AddPartitionsToTxnResponse]

ITEMS_OF_AN_APPEND: Final = 25  # that take as long


def _version(number: int) -> int:
    """Return the protocol that a request of this transaction.version speaks."""
    return SECOND_PROTOCOL if number >= SECOND_PROTOCOL else FIRST_PROTOCOL


# -- ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN


def add_partitions(
    services: Services, request: AddPartitionsToTxnRequest, now: float
) -> Turns[Parked[AllAdded]]:
    """Add partitions to transactions, or check that they have them."""
    adding: list[_Adding] = []
    turn = Turn()
    version = _version(request.transaction_version)
    for one in request.transactions:
        adding.append(item := _Adding(services, one))
        yield from item.begin(version, turn, now)
        work = 1 + len(one.partitions) + len(one.transactional_id) // CHARS_OF_AN_ITEM
        work += item.stored + (0 if one.is_verify_only else ITEMS_OF_AN_APPEND)
        if turn.is_over(work):
            yield
            now = trio.current_time()
    waiting = [item for item in adding if item.parked is not None]
    keys = dict.fromkeys(key for item in waiting if item.parked for key in item.parked.keys)
    deadline = min((item.parked.deadline() for item in waiting if item.parked), default=now)

    def attempt(
        now: float,
    ) -> AllAdded | None:
        while waiting and waiting[-1].attempt(now):
            waiting.pop()
        return None if waiting else finish()

    def finish() -> AllAdded:
        for item in waiting:
            item.expire()
        partitions = sum(len(item.request.partitions) for item in adding)
        return in_turns_if(len(adding) + partitions > AT_ONCE, _added(adding))

    return Parked(tuple(keys), lambda: deadline, attempt, finish)


def _added(adding: Sequence["_Adding"]) -> Turns[AddPartitionsToTxnResponse]:
    answers: list[Added] = []
    turn = Turn()
    for item in adding:
        results: list[TransactionPartitionResult] = []
        for some in at_once(item.results()):
            results += some
            if turn.is_over(len(some)):
                yield
        answers.append(Added(item.request.transactional_id, tuple(results)))
        if turn.is_over():
            yield
    return AddPartitionsToTxnResponse(transactions=tuple(answers))


class _Adding:
    """One transaction of a request that adds partitions, and its result.

    If one of its partitions does not exist, none is added, as in Kafka: the producer would send to
    the others, and could not commit.
    """

    def __init__(self, services: Services, request: TransactionPartitions) -> None:
        self._services = services
        self.request = request
        self.parked: Parked[WriteResult] | None = None
        self.stored = 0  # how many partitions the record has that is written
        self._error = ErrorCode.NONE
        self._unknown: frozenset[TopicPartition] = frozenset()
        self._present: frozenset[TopicPartition] = frozenset()

    def begin(self, version: int, turn: Turn, now: float) -> Turns[None]:
        """Add the partitions, or verify them."""
        request = self.request
        producer = Producer(request.producer_id, request.producer_epoch)
        if request.is_verify_only:
            self._verify(producer, now)
            return
        unknown: list[TopicPartition] = []
        for some in at_once(request.partitions):
            unknown += [name for name in some if self._services.image.partition(name) is None]
            if turn.is_over(len(some)):
                yield
        now = trio.current_time() if turn.pauses else now
        self._unknown = frozenset(unknown)
        if unknown:
            return

        def add(present: Transaction | None, now_ms: int) -> Decision:
            decision = add_to(present, producer, request.partitions, version, now_ms)
            self.stored = len(decision.write.partitions) if decision.write is not None else 0
            return decision

        outcome = decide(self._services, request.transactional_id, add, _as_it_is, now)
        if isinstance(outcome, Parked):
            self.parked = outcome
        else:
            self._error = outcome.error

    def _verify(self, producer: Producer, now: float) -> None:
        coordinator, transactional_id = self._services.transactions, self.request.transactional_id
        try:
            shard = coordinator.serving(transactional_id, now)
            present = shard.table.get(transactional_id)
            self._error = verify_error(present, producer)
            coordinator.check_session(shard, now)
        except Refused as refused:
            self._error = refused.code
            return
        if present is not None:
            self._present = present.partitions

    def attempt(self, now: float) -> bool:
        """Whether the result is known."""
        assert self.parked is not None
        result = self.parked.attempt(now)
        if result is not None:
            self._error = result.error
        return result is not None

    def expire(self) -> None:
        """Handle that the result does not come in time."""
        assert self.parked is not None
        self._error = self.parked.expire().error

    def results(self) -> Iterator[TransactionPartitionResult]:
        """Yield the result of each partition, in order."""
        for name in self.request.partitions:
            yield TransactionPartitionResult(name.topic, name.partition, self._error_of(name))

    def _error_of(self, name: TopicPartition) -> ErrorCode:
        if self._unknown:
            is_unknown = name in self._unknown
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return missing if is_unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
        if self.request.is_verify_only and not self._error and name not in self._present:
            return ErrorCode.TRANSACTION_ABORTABLE
        return self._error


def _as_it_is(result: WriteResult) -> WriteResult:
    return result


def add_offsets(
    services: Services, request: AddOffsetsToTxnRequest, now: float
) -> AddOffsetsToTxnResponse | Parked[AddOffsetsToTxnResponse]:
    """Add the partition that stores a group's offsets.

    If there is no topic of offsets yet, the first request has it made, and gets an error after
    which the producer asks again.
    """
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        check_group_id(request.group_id)
    except Refused as refused:
        return AddOffsetsToTxnResponse(refused.code, refused.message)
    home = services.groups.name_of(request.group_id)
    if home is None:
        services.controller.forward(CreateTopicsRequest((NewTopic(OFFSETS_TOPIC),)))
        return AddOffsetsToTxnResponse(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no {OFFSETS_TOPIC} yet"
        )
    partitions = (home,)

    def add(present: Transaction | None, now_ms: int) -> Decision:
        return add_to(present, producer, partitions, FIRST_PROTOCOL, now_ms)

    def answer(result: WriteResult) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(result.error, result.message)

    return decide(services, request.transactional_id, add, answer, now)


# -- END_TXN


def end(
    services: Services, request: EndTxnRequest, now: float
) -> EndTxnResponse | Parked[EndTxnResponse]:
    """Decide a transaction; the answer is sent once the decision is stored."""
    producer = Producer(request.producer_id, request.producer_epoch)
    version = _version(request.transaction_version)

    def decide_end(present: Transaction | None, now_ms: int) -> Decision:
        fresh_id = NO_PRODUCER_ID
        if present is not None and version == SECOND_PROTOCOL and needs_fresh_id(present):
            fresh_id = fresh_producer_id(services)
        return end_transaction(
            present, producer, version, fresh_id, now_ms, is_commit=request.is_commit
        )

    def answer(result: WriteResult) -> EndTxnResponse:
        if result.error:
            return EndTxnResponse(result.error, error_message=result.message)
        if version == FIRST_PROTOCOL:
            return EndTxnResponse()
        return EndTxnResponse(0, *result.producer)

    is_second = version == SECOND_PROTOCOL
    return decide(
        services, request.transactional_id, decide_end, answer, now, is_pending_first=is_second
    )


# -- DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS


def describe(
    services: Services, request: DescribeTransactionsRequest, now: float
) -> Turns[DescribeTransactionsResponse]:
    """Describe transactional ids. One for which the answer has no room gets
    COORDINATOR_LOAD_IN_PROGRESS: clients ask for such ids again."""
    described: list[TransactionDescription] = []
    turn, answer_size = Turn(), 0
    for transactional_id in dict.fromkeys(request.transactional_ids):
        one = _description(services, transactional_id, now)
        size = ITEM_BYTES + len(transactional_id)
        size += sum(ITEM_BYTES + len(name.topic) for name in one.partitions)
        if answer_size + size > ANSWER_BYTES_MAX:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            one, size = TransactionDescription(transactional_id, code), ITEM_BYTES
        answer_size += size
        described.append(one)
        if turn.is_over(1 + len(one.partitions) + len(transactional_id) // CHARS_OF_AN_ITEM):
            yield
            now = trio.current_time()
    return DescribeTransactionsResponse(tuple(described))


def _description(services: Services, transactional_id: str, now: float) -> TransactionDescription:
    try:
        check_transactional_id(transactional_id)
        shard = services.transactions.serving(transactional_id, now)
    except Refused as refused:
        return TransactionDescription(transactional_id, refused.code)
    present = shard.table.get(transactional_id)
    if present is None:
        return TransactionDescription(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionDescription(
        transactional_id,
        0,
        present.state,
        present.timeout_ms,
        present.started_ms,
        present.producer_id,
        present.producer_epoch,
        tuple(sorted(present.partitions)),
    )


def list_transactions(
    services: Services, request: ListTransactionsRequest, now: float
) -> Turns[ListTransactionsResponse]:
    """List the transactional ids of this coordinator that the filters let through;
    COORDINATOR_LOAD_IN_PROGRESS if there may be more, MESSAGE_TOO_LARGE if the answer has no room
    for all."""
    names = {state.value for state in State}
    unknown = tuple(dict.fromkeys(each for each in request.states if each not in names))
    states, producer_ids = {*request.states}, {*request.producer_ids}
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = NamePattern(request.transactional_id_pattern)
        except InvalidPatternError:
            return ListTransactionsResponse(ErrorCode.INVALID_REGULAR_EXPRESSION)
    shards, is_loading = services.transactions.all_served(now)
    begun_by = services.transactions.wall_ms() - request.duration_ms
    listed: list[ListedTransaction] = []
    turn, answer_size = Turn(), 0
    found = chain.from_iterable(list(shard.table.transactions.items()) for shard in shards)
    for transactional_id, present in found:
        if turn.is_over():
            yield
        is_old = present.is_open and present.started_ms < begun_by
        if (
            (states and present.state not in states)
            or (producer_ids and present.producer_id not in producer_ids)
            or (request.duration_ms >= 0 and not is_old)
            or (pattern is not None and not (yield from pattern.matches(transactional_id, turn)))
        ):
            continue
        answer_size += ITEM_BYTES + len(transactional_id)
        if answer_size > ANSWER_BYTES_MAX:
            code = ErrorCode.MESSAGE_TOO_LARGE
            return ListTransactionsResponse(code, unknown, tuple(listed))
        listed.append(ListedTransaction(transactional_id, present.producer_id, present.state))
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
    return ListTransactionsResponse(code, unknown, tuple(listed))
