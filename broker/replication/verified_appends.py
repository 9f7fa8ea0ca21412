"""Batches that begin a transaction in a partition, and wait until its coordinator has verified it.

The first batch of a transaction waits here, and so does each later one of the same producer and
epoch that arrives meanwhile: they are appended in the order in which they came. The coordinator is
asked once for each transaction and partition. As long as the transaction is open in the log,
nothing is asked again (`log/verifications.py`).

In the first protocol the producer has added the partition to its transaction, and the coordinator
is asked whether it has it. In the second one (KIP-890) the leader adds it. There a producer is told
that its transaction has ended before all markers are written, and its next batch has the next
epoch. A marker that comes before the answer may be one of the transaction before, so the
coordinator is asked again. In the first protocol such a batch is refused: it may be one of the
transaction before, and the epoch does not tell.

`TransactionVerifier` sends the questions. Answers are applied here, without a suspension point.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import check_timestamps
from minibroker.broker.log.outcomes import Appended
from minibroker.broker.log.verifications import Verification
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import SECOND_PROTOCOL, TransactionPartitions
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.types import TopicPartition

# The coordinator could not be asked, or cannot say yet: the producer is to send again.
TEMPORARY: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)

# What a batch that waits takes in memory beside its bytes, about.
WAITING_BYTES: Final = 2_000


class ProducerTransaction(NamedTuple):
    """The transaction that a request names, and the protocol that its sender speaks."""

    transactional_id: str
    transaction_version: int


class _Question(NamedTuple):
    """What one answer of a coordinator is about, but for the partition."""

    transaction: ProducerTransaction
    producer_id: int
    producer_epoch: int


class WaitingAppend:
    """A batch that waits for a verification. `outcome` is what became of it, once that is known. It
    is a key in the purgatory."""

    __slots__ = ("acks", "batch", "outcome")

    def __init__(self, batch: bytes, acks: int) -> None:
        self.batch = batch
        self.acks = acks
        self.outcome: Appended | Refused | None = None

    @property
    def held_size(self) -> int:
        """The memory that it takes, about."""
        return WAITING_BYTES + len(self.batch)


class _Queue:
    """The batches of one transaction that wait for a partition, in order."""

    __slots__ = ("partition", "question", "verification", "waiting")

    def __init__(self, partition: Partition, question: _Question) -> None:
        self.partition = partition
        self.question = question
        self.verification = self._begin()
        self.waiting: list[WaitingAppend] = []

    def _begin(self) -> Verification:
        verifications = self.partition.log.verifications
        return verifications.begin(self.question.producer_id, self.question.producer_epoch)

    def begin_again(self) -> None:
        """Begin another verification."""
        self.verification = self._begin()

    @property
    def is_overtaken(self) -> bool:
        """Whether a marker has come before the answer, and another answer may allow the append."""
        verifications, epoch = self.partition.log.verifications, self.question.producer_epoch
        is_second = self.question.transaction.transaction_version >= SECOND_PROTOCOL
        return is_second and not verifications.is_valid(self.verification, epoch)


class VerifiedAppends:
    """See the head of this module. `on_question` is called when there is something to ask."""

    def __init__(
        self, replicas: Replicas, purgatory: Purgatory, wall_ms: Callable[[], int]
    ) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        self._wall_ms = wall_ms
        self._queues: dict[tuple[TopicPartition, _Question], _Queue] = {}
        self._to_ask: dict[_Question, list[TopicPartition]] = {}
        self.on_question: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._queues)

    def submit(
        self,
        partition: Partition,
        batch: memoryview,
        header: BatchHeader,
        transaction: ProducerTransaction,
        acks: int,
    ) -> WaitingAppend | None:
        """Let a valid transactional batch wait if it needs a verification, or comes behind one that
        does; None if it can be appended now. Raises `Refused` for one that would be refused
        anyway."""
        log = partition.log
        check_timestamps(header, log.limits, self._wall_ms())
        question = _Question(transaction, header.producer_id, header.producer_epoch)
        key = (partition.topic_partition, question)
        queue = self._queues.get(key)
        if queue is not None and queue.partition is not partition:
            self._refuse(queue, _gone())
            queue = None
        if queue is None:
            if log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
                return None
            if log.producers.check(header) is not None:
                return None  # it was appended before
            partition.leader()
            queue = self._queues[key] = _Queue(partition, question)
            self._ask(queue)
        waiting = WaitingAppend(bytes(batch), acks)
        queue.waiting.append(waiting)
        return waiting

    def _ask(self, queue: _Queue) -> None:
        name = queue.partition.topic_partition
        self._to_ask.setdefault(queue.question, []).append(name)
        self.on_question()

    def take_questions(self) -> list[tuple[TransactionPartitions, int]]:
        """Return some of what is to be asked now, each with its transaction version. Each of them
        gets one `answer`."""
        taken = {each: self._to_ask.pop(each) for each in [*islice(self._to_ask, AT_ONCE)]}
        return [
            (
                TransactionPartitions(
                    question.transaction.transactional_id,
                    question.producer_id,
                    question.producer_epoch,
                    tuple(names),
                    is_verify_only=question.transaction.transaction_version < SECOND_PROTOCOL,
                ),
                question.transaction.transaction_version,
            )
            for question, names in taken.items()
        ]

    def answer(
        self,
        asked: TransactionPartitions,
        version: int,
        errors: Mapping[TopicPartition, int],
        now: float,
    ) -> None:
        """Append the batches that waited for a coordinator's answer, refuse them, or ask again."""
        transaction = ProducerTransaction(asked.transactional_id, version)
        question = _Question(transaction, asked.producer_id, asked.producer_epoch)
        for each in asked.partitions:
            name = TopicPartition(*each)
            queue = self._queues.get((name, question))
            if queue is None:
                continue
            error = errors.get(name, ErrorCode.NETWORK_EXCEPTION)
            if error:
                self._refuse(queue, _refusal(error, version))
            elif queue.is_overtaken:
                queue.begin_again()
                self._ask(queue)
            else:
                self._append(queue, now)

    def _append(self, queue: _Queue, now: float) -> None:
        del self._queues[queue.partition.topic_partition, queue.question]
        for waiting in queue.waiting:
            batch = memoryview(bytearray(waiting.batch))
            try:
                partition = queue.partition
                if self._replicas.get(partition.topic_partition) is not partition:
                    raise _gone()
                waiting.outcome = self._replicas.append(
                    partition, batch, waiting.acks, now, self._wall_ms(), queue.verification
                )
            except Refused as refused:
                waiting.outcome = refused
            self._purgatory.notify(waiting)
        queue.partition.log.verifications.end(queue.verification)

    def _refuse(self, queue: _Queue, refused: Refused) -> None:
        del self._queues[queue.partition.topic_partition, queue.question]
        queue.partition.log.verifications.end(queue.verification)
        for waiting in queue.waiting:
            waiting.outcome = refused
            self._purgatory.notify(waiting)


def _gone() -> Refused:
    return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its replica is gone")


def _refusal(error: int, version: int) -> Refused:
    """Return the refusal of a batch whose transaction was not verified, in the codes that Kafka's
    producers expect in the answer to a PRODUCE."""
    name = ErrorCode(error).name if error in ErrorCode.__members__.values() else str(error)
    what = f"the transaction's coordinator did not verify the partition: {name}"
    if error in TEMPORARY:
        return Refused(ErrorCode.NOT_ENOUGH_REPLICAS, what)
    if error == ErrorCode.PRODUCER_FENCED:
        return Refused(ErrorCode.INVALID_PRODUCER_EPOCH, what)
    known = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if error in known:
        return Refused(ErrorCode(error), what)
    is_abortable = version >= SECOND_PROTOCOL
    code = ErrorCode.TRANSACTION_ABORTABLE if is_abortable else ErrorCode.INVALID_TXN_STATE
    return Refused(code, what)
