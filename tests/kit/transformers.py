"""Programs that read orders, transform each into a bill and send that, in transactions with the
offsets: by our clients, confluent-kafka and aiokafka. Each tells a history what it does, tries what
can be tried again, and reads again after an abort."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import aiokafka
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from minibroker.client.errors import TransactionAbortable, TransactionInDoubt
from minibroker.testing import History, KafkaCluster
from minibroker.testing.kit.recorded import RecordedConsumer, RecordedProducer

WITHIN_S: Final = 30
COUNT: Final = 9
AT_ONCE: Final = 3  # orders in one transaction


def fill(cluster: KafkaCluster, topic: str, history: History) -> None:
    """Send the orders."""
    with cluster.producer(history=history) as producer:
        for number in range(COUNT):
            producer.send(topic, b"order %d" % number, partition=0)


def bill_of(order: bytes | None) -> bytes:
    """Return an order, transformed."""
    return b"bill of " + (order or b"")


def judge(cluster: KafkaCluster, source: str, target: str, history: History) -> None:
    """Tell the history what consumers can read, and where the group goes on; check it."""
    for record in cluster.read_all(target, isolation_level="read_committed"):
        history.polled(record.value, record.topic, record.partition, record.offset)
    cluster.wait_for_commit(source, source, COUNT)
    for (topic, partition), at in cluster.committed(source).items():
        history.committed(source, topic, partition, at.offset)
    history.check_exactly_once()


def transform_ours(cluster: KafkaCluster, source: str, target: str, history: History) -> None:
    """By our blocking clients, which record by themselves. The group, the transactional id and the
    client id are the name of the source."""
    with (
        cluster.producer(
            history=history, transactional_id=source, client_id=source, linger_ms=0
        ) as producer,
        cluster.consumer(
            history=history,
            group_id=source,
            isolation_level="read_committed",
            max_poll_records=AT_ONCE,
        ) as consumer,
    ):
        assert isinstance(consumer, RecordedConsumer)
        consumer.subscribe(source)
        done = 0
        while done < COUNT:
            done += _transform_some(producer, consumer, target, history)


def _transform_some(
    producer: RecordedProducer, consumer: RecordedConsumer, target: str, history: History
) -> int:
    records = consumer.poll(WITHIN_S)
    assert records, "nothing came"
    try:
        with producer.transaction():
            for record in records:
                producer.send(target, bill_of(record.value), partition=0)
                history.processed(record.value, transaction=producer.transaction_name)
            offsets = consumer.committable_offsets()
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    except TransactionInDoubt:
        producer.commit_transaction()
    except TransactionAbortable:
        for name, at in consumer.committed().items():
            consumer.seek(name, at.offset if at else 0)
        return 0
    return len(records)


class _Confluent:
    """A producer and a consumer of confluent-kafka."""

    def __init__(self, cluster: KafkaCluster, source: str, target: str, history: History) -> None:
        self._target = target
        self._history = history
        self._group = source
        place = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        group = {"group.id": source, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._consumer = Consumer({**place, **group, "isolation.level": "read_committed"})
        self._consumer.subscribe([source])
        self._producer = Producer({**place, "transactional.id": source, "client.id": source})

    def run(self) -> None:
        """Transform all orders."""
        self._insist(self._producer.init_transactions)
        done = 0
        while done < COUNT:
            name = self._history.name_transaction("confluent")
            try:
                done += self._transform_some(name)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._insist(self._producer.abort_transaction)
                self._history.transaction_aborted(name)
                self._read_again()
        self._consumer.close()

    def _transform_some(self, name: str) -> int:
        messages = self._consumer.consume(AT_ONCE, WITHIN_S)
        assert messages, "nothing came"
        history = self._history
        self._producer.begin_transaction()
        for message in messages:
            assert message.error() is None
            order = message.value()
            history.polled(order, message.topic(), message.partition(), message.offset())
            history.sent(bill_of(order), transaction=name)
            self._producer.produce(self._target, bill_of(order), partition=0)
            history.processed(order, transaction=name)
        positions = self._consumer.position(self._consumer.assignment())
        group = self._consumer.consumer_group_metadata()
        self._insist(self._producer.send_offsets_to_transaction, positions, group)
        for each in positions:
            place = each.topic, each.partition, each.offset
            history.committed(self._group, *place, transaction=name)
        self._insist(self._producer.commit_transaction)
        history.transaction_committed(name)
        return len(messages)

    def _read_again(self) -> None:
        for each in self._consumer.committed(self._consumer.assignment(), WITHIN_S):
            offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
            self._consumer.seek(TopicPartition(each.topic, each.partition, offset))

    @staticmethod
    def _insist(call: Callable[..., Any], *arguments: Any) -> None:
        """Call it until it succeeds or cannot."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                call(*arguments, WITHIN_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


def transform_confluent(cluster: KafkaCluster, source: str, target: str, history: History) -> None:
    """By librdkafka."""
    _Confluent(cluster, source, target, history).run()


def transform_aiokafka(cluster: KafkaCluster, source: str, target: str, history: History) -> None:
    """By aiokafka."""
    asyncio.run(asyncio.wait_for(_aiokafka(cluster, source, target, history), 2 * WITHIN_S))


async def _aiokafka(cluster: KafkaCluster, source: str, target: str, history: History) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, transactional_id=source, client_id=source
    )
    consumer = aiokafka.AIOKafkaConsumer(
        source,
        bootstrap_servers=cluster.bootstrap,
        group_id=source,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    async with producer, consumer:
        done = 0
        while done < COUNT:
            found = await consumer.getmany(timeout_ms=1000, max_records=AT_ONCE)
            records = [record for some in found.values() for record in some]
            if not records:
                continue
            name = history.name_transaction("aiokafka")
            try:
                async with producer.transaction():
                    for record in records:
                        place = record.topic, record.partition, record.offset
                        history.polled(record.value, *place)
                        history.sent(bill_of(record.value), transaction=name)
                        await producer.send(target, bill_of(record.value), partition=0)
                        history.processed(record.value, transaction=name)
                    last = records[-1]
                    next_offset = last.offset + 1
                    offsets = {aiokafka.TopicPartition(last.topic, last.partition): next_offset}
                    await producer.send_offsets_to_transaction(offsets, source)
                    place = last.topic, last.partition, next_offset
                    history.committed(source, *place, transaction=name)
            except AioKafkaError:
                history.transaction_aborted(name)
                await consumer.seek_to_committed()
            else:
                history.transaction_committed(name)
                done += len(records)


class Transformer(NamedTuple):
    """A program, and the requests to coordinators that it sends for its transactions."""

    name: str
    run: Callable[[KafkaCluster, str, str, History], None]
    apis: frozenset[str]

    def __repr__(self) -> str:
        return self.name


_ALWAYS: Final = frozenset(
    {"FIND_COORDINATOR", "INIT_PRODUCER_ID", "PRODUCE", "TXN_OFFSET_COMMIT", "END_TXN"}
)
_FIRST_PROTOCOL: Final = frozenset({"ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN"})
OURS: Final = Transformer("ours", transform_ours, _ALWAYS)
CONFLUENT: Final = Transformer("confluent", transform_confluent, _ALWAYS | _FIRST_PROTOCOL)
AIOKAFKA: Final = Transformer("aiokafka", transform_aiokafka, _ALWAYS | _FIRST_PROTOCOL)
