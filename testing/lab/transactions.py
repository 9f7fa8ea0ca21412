"""The transactional producers of a scenario, and the markers of its coordinator, by their steps.

A producer has a session of a transactional id, and one transaction at a time. The steps send its
requests: `session` INIT_PRODUCER_ID, `produce ... in` ADD_PARTITIONS_TO_TXN and PRODUCE, `commit`
and `abort` END_TXN. The leader asks the coordinator about a transaction that begins in its log, as
a broker does. Markers are sent by `mark`, a step of its own, so that a scenario can say what
happens before.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.broker.errors import Refused
from minibroker.broker.replication.roles import Leader
from minibroker.broker.transactions.transaction import Producer
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import TransactionMarker, TransactionPartitions
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.types import TopicPartition
from minibroker.testing.lab.machine import PARTITION, ImpossibleStep, Process
from minibroker.testing.lab.producer import LabProducer, SentBatch
from minibroker.testing.lab.transaction_coordinator import LabCoordinator

Texts = Iterator[str]


@dataclass(slots=True)
class SentTransaction:
    """What a producer has sent in a transaction, and what it was told of its end."""

    values: list[str] = field(default_factory=list)
    end: str = "not ended"


@dataclass(slots=True)
class Session:
    """A producer's session. `sequence` is that of its next record."""

    transactional_id: str
    producer: Producer
    sequence: int = 0
    has_added: bool = False  # the partition, to the open transaction
    transactions: list[SentTransaction] = field(default_factory=lambda: [SentTransaction()])


class WaitingMarker(NamedTuple):
    """A marker in a leader's log, which is answered once everything below `end` is committed."""

    broker: int
    process: Process
    transactional_id: str
    leader_epoch: int
    end: int


class LabTransactions:
    """See the head of this module."""

    def __init__(
        self,
        coordinator: LabCoordinator,
        producer: LabProducer,
        process: Callable[[int], Process],
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """`process` returns the running broker of a number."""
        self._coordinator = coordinator
        self._producer = producer
        self._process = process
        self._now = now
        self._wall_ms = wall_ms
        self._sessions: dict[str, Session] = {}
        self._markers: list[WaitingMarker] = []

    def verdict(self, seen: Collection[str]) -> str:
        """Return what has become of the transactions, for a reader that has seen these values; ""
        without any."""
        fates = [
            f"{name}: {_fate(each, seen)}"
            for name, session in self._sessions.items()
            for each in session.transactions
            if each.values
        ]
        return f" Transactions: {'; '.join(fates)}." if fates else ""

    # -- steps

    def session_of(self, producer: str, transactional_id: str) -> Texts:
        """Have a producer begin a session, which fences the earlier ones of the id."""
        decision = self._coordinator.begin_session(transactional_id, self._wall_ms())
        if decision.write is not None and decision.error:
            epoch = decision.write.producer_epoch
            yield f"the coordinator aborts what is open of {transactional_id}, epoch {epoch}"
        if decision.error:
            yield f"the coordinator answers {producer} with {decision.error.name}"
            return
        self._sessions[producer] = Session(transactional_id, decision.producer)
        given = "the id {}, epoch {}".format(*decision.producer)
        yield f"the coordinator gives {producer} {given}"

    def produce_in(self, broker: int, value: str, producer: str) -> Texts:
        """Send one record in a producer's transaction."""
        process, session = self._process(broker), self._session(producer)
        if not session.has_added:
            error = self._coordinator.add(
                session.transactional_id, session.producer, PARTITION, self._wall_ms()
            )
            if error:
                yield f"the coordinator answers {producer} with {error.name}"
                return
            session.has_added = True
            yield f"the coordinator adds the partition to the transaction of {producer}"
        session.transactions[-1].values.append(value)
        stamp = ProducerStamp(*session.producer, session.sequence)
        session.sequence += 1
        batch = SentBatch(value, (value.encode(),), stamp, transaction=session.transactional_id)
        yield from self._producer.send(broker, process, batch, self._now(), self._verify)

    def _verify(self, asked: TransactionPartitions) -> Mapping[TopicPartition, int]:
        producer = Producer(asked.producer_id, asked.producer_epoch)
        return {
            name: self._coordinator.verify(asked.transactional_id, producer, name)
            for name in asked.partitions
        }

    def commit(self, producer: str) -> Texts:
        """Have a producer commit its transaction."""
        yield from self._end(producer, is_commit=True)

    def abort(self, producer: str) -> Texts:
        """Have a producer abort its transaction."""
        yield from self._end(producer, is_commit=False)

    def _end(self, producer: str, *, is_commit: bool) -> Texts:
        session = self._session(producer)
        decision = self._coordinator.end(
            session.transactional_id, session.producer, self._wall_ms(), is_commit=is_commit
        )
        if decision.error:
            if decision.error is ErrorCode.PRODUCER_FENCED:
                session.transactions[-1].end = "fenced"
            yield f"the coordinator answers {producer} with {decision.error.name}"
            return
        session.transactions[-1].end = "committed" if is_commit else "aborted"
        session.transactions.append(SentTransaction())
        session.has_added = False
        what = "COMMIT" if is_commit else "ABORT"
        yield f"the coordinator decides {what}, and answers {producer}"

    def mark(self, broker: int) -> Texts:
        """Have the coordinator send a broker the markers of what it has decided."""
        process = self._process(broker)
        markers = list(self._coordinator.markers())
        if not markers:
            yield "the coordinator has no marker to send"
        for transactional_id, marker in markers:
            yield self._append(broker, process, transactional_id, marker)

    def _append(
        self, broker: int, process: Process, transactional_id: str, marker: TransactionMarker
    ) -> str:
        try:
            partition = process.partition
            appended = process.replicas.append_marker(
                partition, marker, self._now(), self._wall_ms()
            )
        except Refused as refused:
            return f"{broker} answers the coordinator with {refused.code.name}"
        end, epoch = appended.last_offset + 1, partition.leader_epoch
        waiting = WaitingMarker(broker, process, transactional_id, epoch, end)
        self._markers.append(waiting)
        what = "COMMIT" if marker.is_commit else "ABORT"
        producer = f"id {marker.producer_id}, epoch {marker.producer_epoch}"
        return f"{broker} takes the {what} marker ({producer}) at offset {appended.base_offset}"

    def _session(self, producer: str) -> Session:
        if producer not in self._sessions:
            raise ImpossibleStep(
                f"producer {producer} has no session: give it one with session {producer} of ID"
            )
        return self._sessions[producer]

    # -- what happens by itself

    def try_markers(self, busy: Collection[int]) -> Texts:
        """Answer the markers that are committed now, except those at busy brokers. What another
        broker leads by now is not answered: the coordinator has to send the marker again."""
        for each in list(self._markers):
            role = each.process.partition.role if each.process.is_running else None
            if not isinstance(role, Leader) or role.leader_epoch != each.leader_epoch:
                self._markers.remove(each)
            elif each.broker not in busy and role.is_committed(each.end):
                self._markers.remove(each)
                self._coordinator.complete(each.transactional_id, self._wall_ms())
                yield f"{each.broker} answers the coordinator: the marker is committed"


def _fate(sent: SentTransaction, seen: Collection[str]) -> str:
    """Return what a producer was told of a transaction, and where that is not what a reader of
    committed records has seen."""
    fates = []
    for value in sent.values:
        is_seen, is_to_be_seen = value in seen, sent.end == "committed"
        wrong = "" if is_seen == is_to_be_seen else " SEEN" if is_seen else " NOT SEEN"
        fates.append(f"{value}{wrong}")
    return f"{', '.join(fates)} {sent.end}"
