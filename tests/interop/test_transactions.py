"""Transactions of confluent-kafka's producer and of ours, on one broker and on three that are
killed."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest

from minibroker.client import NewTopic, TopicPartition
from minibroker.client.blocking import Admin, Consumer, Producer
from minibroker.client.errors import ProducerFenced
from tests.interop.features import Feature, shows
from tests.support.processes import ClusterProcesses, running_cluster

pytestmark = pytest.mark.usefixtures("collected_garbage")

TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.2
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "1",  # one coordinator
    "replica.lag.time.max.ms": "3000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers for all tests here; each test leaves all of them running."""
    root = tmp_path_factory.mktemp("transactions") / "cluster"
    with running_cluster(root, settings=SETTINGS) as running:
        yield running


def producer_of(bootstrap: str, transactional_id: str) -> Any:
    """A transactional producer whose session has begun."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 30_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def send(producer: Any, topic: str, *values: bytes, partition: int = 0) -> None:
    """Send records, and wait until they are in the log."""
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def read(
    bootstrap: str, topic: str, count: int, partition: int = 0, level: str = "read_committed"
) -> list[bytes]:
    """Read so many records of a partition, from its beginning."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-{level}",
            "isolation.level": level,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < count:
        assert time.monotonic() < deadline, values
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def commit_and_abort(bootstrap: str, topic: str) -> None:
    """Commit, abort, commit, to two partitions each; judge what readers of either level see."""
    producer = producer_of(bootstrap, topic)
    for number, is_commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in range(2):
            values = [b"%d-%d" % (number, each) for each in range(3)]
            send(producer, topic, *values, partition=partition)
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    everything = [b"%d-%d" % (number, each) for number in range(3) for each in range(3)]
    committed = [value for value in everything if not value.startswith(b"1")]
    for partition in range(2):
        assert read(bootstrap, topic, 6, partition) == committed
        assert read(bootstrap, topic, 9, partition, "read_uncommitted") == everything


@shows(Feature.TRANSACTIONS, "confluent-kafka")
def test_confluent_commits_and_aborts(bootstrap: str, topic: str) -> None:
    """Readers of committed records see nothing of the aborted transaction."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 2))
    commit_and_abort(bootstrap, topic)


@shows(Feature.TRANSACTIONS, "aiokafka")
def test_aiokafka_commits_and_aborts(bootstrap: str, topic: str) -> None:
    """As above; its reader filters by the aborted transactions by itself."""

    async def run() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        async with producer:
            for value, is_commit in ((b"0", True), (b"1", False), (b"2", True)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value, partition=0)
                if is_commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        async with consumer:
            return [(await consumer.getone()).value for _ in range(2)]

    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1))
    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) == [b"0", b"2"]
    assert read(bootstrap, topic, 2) == [b"0", b"2"]


@shows(Feature.TRANSACTIONS, "kafka-python")
def test_kafka_python_commits_and_aborts(bootstrap: str, topic: str) -> None:
    """As above."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1))
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    producer.init_transactions()
    for value, is_commit in ((b"0", True), (b"1", False), (b"2", True)):
        producer.begin_transaction()
        producer.send(topic, value, partition=0).get(TIMEOUT_S)
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close(timeout=1)
    assert read(bootstrap, topic, 2) == [b"0", b"2"]


def test_confluent_commits_and_aborts_on_three_brokers(
    cluster: ClusterProcesses, topic: str
) -> None:
    """The partitions and the coordinator have leaders and followers."""
    with Admin(cluster.addresses) as admin:
        admin.create_topics(NewTopic(topic, 2, 3))
    commit_and_abort(cluster.addresses, topic)


def test_what_ours_commits_others_read(bootstrap: str, topic: str) -> None:
    """And the other way round: one log, in which each filters by the same list and markers."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 2))
    commit_and_abort(bootstrap, topic)
    with Producer(bootstrap, transactional_id=f"{topic}-ours") as producer:
        for value, is_commit in ((b"0", True), (b"1", False), (b"2", True)):
            producer.begin_transaction()
            for partition in range(2):
                producer.send_and_wait(topic, value, partition=partition)
            if is_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    expected = [*(b"%d-%d" % (number, each) for number in (0, 2) for each in range(3)), b"0", b"2"]
    assert read(bootstrap, topic, 8, 1) == expected
    options: Any = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(bootstrap, **options) as consumer:
        consumer.assign([(topic, 0)])
        values: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while consumer.lag() != {TopicPartition(topic, 0): 0}:
            assert time.monotonic() < deadline, values
            values += [record.value for record in consumer.poll(POLL_S)]
    assert values == expected


def test_ours_and_another_fence_each_other(bootstrap: str, topic: str) -> None:
    """The id counts, not the kind of client."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1))
    with Producer(bootstrap, transactional_id=topic) as ours:
        ours.begin_transaction()
        ours.send_and_wait(topic, b"of a zombie")
        theirs = producer_of(bootstrap, topic)
        theirs.begin_transaction()
        send(theirs, topic, b"of the next")
        with pytest.raises(ProducerFenced):
            ours.commit_transaction()
        theirs.commit_transaction(TIMEOUT_S)
    theirs.begin_transaction()
    send(theirs, topic, b"of a zombie")
    with Producer(bootstrap, transactional_id=topic) as ours, ours.transaction():
        ours.send(topic, b"of ours")
    with pytest.raises(confluent_kafka.KafkaException):
        theirs.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic, 2) == [b"of the next", b"of ours"]


def test_ours_goes_on_when_brokers_are_killed(cluster: ClusterProcesses, topic: str) -> None:
    """Each of three brokers in turn, while transactions are sent: each of them is committed once,
    in order, and one that failed was aborted and is sent again."""
    with Admin(cluster.addresses) as admin:
        admin.create_topics(NewTopic(topic, 2, 3))
    with Producer(cluster.addresses, transactional_id=topic, linger_ms=0) as producer:
        for number in range(12):
            if number in (3, 6, 9):
                cluster.kill(number // 3)
            with producer.transaction():
                for partition in range(2):
                    producer.send(topic, b"%d" % number, partition=partition)
            if number in (4, 7, 10):
                cluster.start(number // 3)
    for partition in range(2):
        values = read(cluster.addresses, topic, 12, partition)
        assert values == [b"%d" % number for number in range(12)]


def test_a_zombie_is_fenced(bootstrap: str, topic: str) -> None:
    """A second producer of the id aborts the transaction of the first one, which cannot commit."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1))
        zombie = producer_of(bootstrap, topic)
        zombie.begin_transaction()
        send(zombie, topic, b"of the zombie")
        producer = producer_of(bootstrap, topic)
        producer.begin_transaction()
        send(producer, topic, b"of the next")
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            zombie.commit_transaction(TIMEOUT_S)
        error = caught.value.args[0]
        assert error.fatal()
        assert error.code() == confluent_kafka.KafkaError._FENCED
        [open_one] = admin.describe_transactions(topic)
        assert open_one.state == "Ongoing"
        producer.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic, 1) == [b"of the next"]


def test_an_operator_ends_a_transaction(bootstrap: str, topic: str) -> None:
    """Readers then get past it; its producer is fenced."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1))
        producer = producer_of(bootstrap, topic)
        producer.begin_transaction()
        send(producer, topic, b"never")
        report = admin.list_transactions("Ongoing")
        assert topic in [one.transactional_id for one in report.transactions]
        admin.abort_transaction(topic)
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(TIMEOUT_S)
    later = producer_of(bootstrap, topic)
    later.begin_transaction()
    send(later, topic, b"later")
    later.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic, 1) == [b"later"]


def test_offsets_are_committed_with_the_transaction(bootstrap: str, topic: str) -> None:
    """Consume, transform, produce: the group's offset is there once the transaction has ended, and
    not after an abort."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1), NewTopic(f"{topic}-out", 1))
        producer = producer_of(bootstrap, topic)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
        )
        for is_commit, offset in ((False, 3), (True, 5)):
            producer.begin_transaction()
            send(producer, f"{topic}-out", b"%d" % offset)
            producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(topic, 0, offset)],
                consumer.consumer_group_metadata(),
                TIMEOUT_S,
            )
            if is_commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        name = TopicPartition(topic, 0)
        while not (committed := admin.committed_offsets(topic)):
            assert time.monotonic() < deadline
        assert committed[name].offset == 5
        consumer.close()
    assert read(bootstrap, f"{topic}-out", 1) == [b"5"]


def test_a_decided_transaction_survives_its_coordinator(
    cluster: ClusterProcesses, topic: str
) -> None:
    """The coordinator has answered the commit and is killed before it could write a marker: the
    partition's only replica is down then. The next coordinator writes it."""
    with Admin(cluster.addresses) as admin:
        producer = producer_of(cluster.addresses, topic)
        [described] = admin.describe_transactions(topic)
        coordinator = described.coordinator_id
        admin.create_topics(NewTopic(topic, 3, 1))
        [made] = admin.describe_topics(topic)
        place = next(each for each in made.partitions if each.leader_id != coordinator)
        leader, partition = place.leader_id, place.partition
        producer.begin_transaction()
        send(producer, topic, b"decided", partition=partition)
        cluster.kill(leader)
        producer.commit_transaction(TIMEOUT_S)
        [described] = admin.describe_transactions(topic)
        assert described.state == "PrepareCommit"
        assert described.partitions == (TopicPartition(topic, partition),)
        cluster.kill(described.coordinator_id)
        cluster.start(leader)
        assert read(cluster.addresses, topic, 1, partition) == [b"decided"]
        cluster.start(described.coordinator_id)
