"""The producers of a scenario: what they send, their waiting requests, and the acknowledgements.

A producer is no more than its requests: the scenario says which ids, epochs and sequences they
carry, and when one is sent again. The leader handles a request at the step that sends it.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import produce
from minibroker.broker.server.services import HangUp
from minibroker.protocol.constants import ACKS_ALL, ErrorCode
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest, ProduceResponse
from minibroker.protocol.messages.transactions import TransactionPartitions
from minibroker.protocol.records.batch import NO_PRODUCER, ProducerStamp, stamp_transaction
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.lab.machine import PARTITION, Process
from minibroker.testing.lab.verdict import Produced

TIMEOUT_MS: Final = 30_000


# A coordinator's errors for the partitions of a transaction, in answer to a partition's leader.
Verify: TypeAlias = Callable[[TransactionPartitions], Mapping[TopicPartition, int]]


class SentBatch(NamedTuple):
    """One batch that a producer sends: its name in the scenario, its records, and its producer id,
    epoch and sequence."""

    label: str
    values: tuple[bytes, ...]
    stamp: ProducerStamp = NO_PRODUCER
    acks: int = ACKS_ALL
    transaction: str | None = None  # its transactional id

    def __str__(self) -> str:
        text = self.label
        if self.stamp != NO_PRODUCER:
            number, epoch, sequence = self.stamp
            text += f" (id {number}, epoch {epoch}, sequence {sequence})"
        return text


@dataclass(frozen=True, slots=True)
class ParkedProduce:
    """A PRODUCE that waits at a broker, in one process of it."""

    broker: int
    process: Process
    produced: Produced
    request: Parked[ProduceResponse]
    is_known: bool


class LabProducer:
    """See the head of this module. `acknowledged` has each batch once, `unanswered` those sent with
    acks=0."""

    def __init__(self) -> None:
        self.acknowledged: list[Produced] = []
        self.unanswered: list[Produced] = []
        self._parked: list[ParkedProduce] = []

    @property
    def due(self) -> float:
        """When the next waiting request is answered without more."""
        return min((each.request.deadline() for each in self._parked), default=math.inf)

    def send(
        self,
        broker: int,
        process: Process,
        sent: SentBatch,
        now: float,
        verify: Verify = lambda asked: {},
    ) -> Iterator[str]:
        """Send a batch to a broker, which appends it or refuses it. `verify` is the coordinator's
        answer to the leader of a partition in which a transaction begins."""
        end = process.log_end
        produced = Produced(sent.label, sent.values, end)
        try:
            answer = produce.handle(process.services, _request_of(sent, process), now)
        except HangUp:
            yield f"{broker} refuses {sent} and hangs up"
            return
        appends = process.services.verified_appends
        for asked, version in appends.take_questions():
            errors = verify(asked)
            said = ", ".join(ErrorCode(error).name for error in errors.values() if error)
            yield f"{broker} asks the coordinator about {asked.transactional_id}: {said or 'open'}"
            appends.answer(asked, version, errors, now)
        if isinstance(answer, Parked) and process.log_end == end:
            answer = answer.attempt(now) or answer
        is_stored = process.log_end > end
        if is_stored:
            yield f"{broker} takes {sent} at offset {end}"
        elif not (isinstance(answer, ProduceResponse) and answer.partitions[0].error):
            yield f"{broker} has {sent} already"
        if isinstance(answer, Parked):
            self._parked.append(ParkedProduce(broker, process, produced, answer, not is_stored))
        elif isinstance(answer, ProduceResponse):
            yield self._answered(broker, produced, answer, is_known=not is_stored)
        else:
            assert answer is None, "these batches are small"
            self.unanswered.append(produced)

    def try_waiting(self, now: float, busy: Collection[int]) -> Iterator[str]:
        """Answer the requests that can be answered now, except those at a busy broker."""
        for each in list(self._parked):
            if each.broker in busy:
                continue
            if not each.process.is_running:
                self._parked.remove(each)  # its connection broke with the process
                continue
            answer = each.request.attempt(now)
            if answer is not None:
                yield self._on_answer(each, answer)

    def expire(self, now: float) -> Iterator[str]:
        """Answer the requests whose time is up."""
        for each in list(self._parked):
            if each.request.deadline() <= now:
                yield self._on_answer(each, each.request.expire())

    def _on_answer(self, each: ParkedProduce, answer: ProduceResponse) -> str:
        self._parked.remove(each)
        return self._answered(each.broker, each.produced, answer, is_known=each.is_known)

    def _answered(
        self, broker: int, produced: Produced, answer: ProduceResponse, *, is_known: bool
    ) -> str:
        (entry,) = answer.partitions
        if entry.error:
            return f"{broker} answers {produced.label} with {ErrorCode(entry.error).name}"
        produced = produced._replace(offset=entry.base_offset)
        if produced not in self.acknowledged:
            self.acknowledged.append(produced)
        where = f" at offset {entry.base_offset}" if is_known else ""
        return f"{broker} acknowledges {produced.label}{where}"


def _request_of(sent: SentBatch, process: Process) -> ProduceRequest:
    wall_ms = process.services.wall_ms()
    records = [(wall_ms, None, value, ()) for value in sent.values]
    batch = bytearray(encode_batch(records, producer=sent.stamp))
    if sent.transaction is not None:
        stamp_transaction(batch, sent.stamp)
    partition = PartitionProduce(*PARTITION, memoryview(batch))
    return ProduceRequest(sent.acks, TIMEOUT_MS, (partition,), sent.transaction)
