"""The clients of a scenario, by their steps: producers, and one reader.

The stage plays these steps like its own. `process` returns the running broker of a number, `now`
the stage's time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from minibroker.broker.log.log import Log
from minibroker.broker.server.handlers.producer_id import handle as init_producer_id
from minibroker.protocol.constants import READ_COMMITTED, ErrorCode
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.testing.lab.consumer import LabConsumer
from minibroker.testing.lab.machine import ImpossibleStep, Process
from minibroker.testing.lab.producer import LabProducer, SentBatch
from minibroker.testing.lab.transaction_coordinator import LabCoordinator
from minibroker.testing.lab.transactions import LabTransactions
from minibroker.testing.lab.verdict import judge

READS: Final = frozenset({"read", "read_from", "read_waiting", "read_committed"})
Texts = Iterator[str]


class Clients:
    """See the head of this module. `transactions` plays the steps of transactional producers."""

    def __init__(
        self,
        process: Callable[[int], Process],
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        coordinator: LabCoordinator,
    ) -> None:
        self._process = process
        self._now = now
        self._producer = producer = LabProducer()
        self.transactions = LabTransactions(coordinator, producer, process, now, wall_ms)
        self._producer_ids: dict[str, int] = {}
        self._consumer = LabConsumer()

    @property
    def seen(self) -> str:
        """The reader's column in the transcript."""
        return str(self._consumer)

    def verdict(self, logs: Mapping[int, Log | None], leader: int) -> str:
        """Return what has become of all that was sent."""
        text = judge(self._producer.acknowledged, self._producer.unanswered, logs, leader)
        return text + self.transactions.verdict(self._consumer.seen)

    # -- producing

    def produce(self, broker: int, value: str) -> Texts:
        """Send one record, with acks=all."""
        yield from self._send(broker, SentBatch(value, (value.encode(),)))

    def produce_by_epoch_sequence(
        self, broker: int, value: str, producer: str, epoch: int, sequence: int
    ) -> Texts:
        """Send the same from an idempotent producer, with its producer id, epoch and sequence."""
        stamp = ProducerStamp(self._producer_id(producer), epoch, sequence)
        yield from self._send(broker, SentBatch(value, (value.encode(),), stamp))

    def produce_acks(self, broker: int, value: str, acks: int) -> Texts:
        """Send one record, with acks=0 or acks=1."""
        yield from self._send(broker, SentBatch(value, (value.encode(),), acks=acks))

    def burst(self, broker: int, count: int) -> Texts:
        """Send many records in one batch."""
        values = tuple(b"%d" % number for number in range(count))
        yield from self._send(broker, SentBatch(f"{count} records", values))

    def _send(self, broker: int, batch: SentBatch) -> Texts:
        return self._producer.send(broker, self._process(broker), batch, self._now())

    def _producer_id(self, name: str) -> int:
        if name not in self._producer_ids and not name.isdecimal():
            raise ImpossibleStep(f"producer {name} has no id: give it one with init BROKER {name}")
        return self._producer_ids[name] if name in self._producer_ids else int(name)

    # -- producer ids

    def claim(self, broker: int) -> Texts:
        """Do the next step of a broker's claim of a block of producer ids."""
        yield f"{broker} {self._process(broker).block_claim.step()}"

    def init(self, broker: int, producer: str) -> Texts:
        """Have a producer ask for its id."""
        services = self._process(broker).services
        answer = init_producer_id(services, InitProducerIdRequest(), self._now())
        assert isinstance(answer, InitProducerIdResponse)
        if answer.error:
            yield f"{broker} answers {producer} with {ErrorCode(answer.error).name}"
            return
        self._producer_ids[producer] = answer.producer_id
        yield f"{broker} gives {producer} the id {answer.producer_id}"

    # -- reading

    def read(self, broker: int) -> Texts:
        """Have the reader fetch the next records, without waiting."""
        yield from self._read(broker, waits=False)

    def read_from(self, broker: int, offset: int) -> Texts:
        """Fetch from another offset."""
        self._consumer.seek(offset)
        yield from self._read(broker, waits=False)

    def read_waiting(self, broker: int) -> Texts:
        """Have the reader fetch the next records; the FETCH may wait."""
        yield from self._read(broker, waits=True)

    def read_committed(self, broker: int) -> Texts:
        """Have the reader fetch records of committed transactions only, and plain ones."""
        process = self._process(broker)
        yield from self._consumer.ask(broker, process, self._now(), isolation_level=READ_COMMITTED)

    def _read(self, broker: int, *, waits: bool) -> Texts:
        return self._consumer.ask(broker, self._process(broker), self._now(), waits=waits)

    # -- what happens by itself

    @property
    def deadline(self) -> float:
        """When the next waiting request is answered without more."""
        return min(self._producer.due, self._consumer.deadline)

    def expire(self) -> Texts:
        """Answer the requests whose time is up, with what there is."""
        yield from self._producer.expire(self._now())
        yield from self._consumer.expire(self._now())

    def try_producers(self, busy: Collection[int]) -> Texts:
        """Answer each PRODUCE that can be answered now, except those at busy brokers."""
        yield from self._producer.try_waiting(self._now(), busy)

    def try_consumer(self, busy: Collection[int]) -> Texts:
        """Answer the reader's FETCH, if it can be answered now."""
        if self._consumer.leader not in busy:
            yield from self._consumer.try_waiting(self._now())
