"""What Kafka's wire costs: the same batches, acks and pipelining by both wires, to one broker.

A driver that does next to nothing sends the same frame again and again, and does not decode the
answers, so that what is measured is the broker: its CPU time for a request, and how many requests
it answers in a second.

Also what a FETCH costs in a session of many partitions that rest.

And how soon a test sees its first record: confluent-kafka in a new group, against a broker and
against the mock cluster that librdkafka has for tests.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from confluent_kafka import Producer

from minibroker.protocol.constants import ACKS_LEADER, PREFACE, ApiKey
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import encode
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.rpc.codec import encode_request
from tests.bench.rounds import (
    Row,
    by_turns,
    cpu_seconds,
    create_topic,
    fresh_broker,
    run_module,
    seconds,
)
from tests.support.processes import BrokerProcess

IN_FLIGHT = 4
ROUNDS = 5
COST_MAX = 1.15  # times what the msgpack wire takes
RESTING, FEW_RESTING = 5_000, 5  # partitions of a session
RESTING_MAX = 1.5  # times what a session of few takes
FETCHES = 5_000
FIRST_MAX = 0.2  # of what the mock takes
TOPIC = "wires"


class Load(NamedTuple):
    """One kind of request: what it is, its frames on both wires, and how many are sent."""

    name: str
    kafka: bytes
    msgpack: bytes
    count: int


def kafka_frame(api: KafkaApi, version: int, *values: object, **named: object) -> bytes:
    """A request on Kafka's wire."""
    body = b"".join(map(bytes, encode(api.request, version, api.request.make(*values, **named))))
    header = struct.pack(">hhih", api.key, version, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


def msgpack_frame(key: ApiKey, message: object) -> bytes:
    """A request on the msgpack wire."""
    return b"".join(encode_request(RequestEnvelope(key, 0, 1, None, message)))


def produce_load(value_bytes: int, count: int) -> Load:
    """PRODUCE of one batch with one record."""
    batch = bytes(encode_batch([(1, None, bytes(value_bytes), ())]))
    topics = apis.PRODUCE.request.of("topic_data")
    data = [topics.of("partition_data").make(0, batch)]
    topic = topics.make(name=TOPIC, partition_data=data)
    return Load(
        f"PRODUCE of {value_bytes:,} bytes, acks=1",
        kafka_frame(apis.PRODUCE, 7, None, ACKS_LEADER, 30_000, [topic]),
        msgpack_frame(
            ApiKey.PRODUCE,
            ProduceRequest(ACKS_LEADER, 30_000, (PartitionProduce(TOPIC, 0, batch),)),
        ),
        count,
    )


def fetch_load(size: int, count: int) -> Load:
    """FETCH of so many bytes from the start of the log."""
    topics = apis.FETCH.request.of("topics")
    partition = topics.of("partitions").make(0, fetch_offset=0, partition_max_bytes=size)
    topic = topics.make(topic=TOPIC, partitions=[partition])
    limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": size}
    return Load(
        f"FETCH of up to {size:,} bytes",
        kafka_frame(apis.FETCH, 11, topics=[topic], **limits),
        msgpack_frame(
            ApiKey.FETCH,
            FetchRequest(bytes_max=size, partitions=(PartitionFetch(TOPIC, 0, 0, size),)),
        ),
        count,
    )


def drive(broker: BrokerProcess, start: bytes, frame: bytes, count: int) -> tuple[float, float]:
    """CPU seconds of the broker for one request, and seconds for one."""
    host, port = broker.address.rsplit(":", 1)
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(start)
        began, cpu_began = time.perf_counter(), cpu_seconds(broker.pid)
        for number in range(count + IN_FLIGHT):
            if number < count:
                connection.sendall(frame)
            if number >= IN_FLIGHT:
                _receive_answer(connection, buffer)
        cpu_s = cpu_seconds(broker.pid) - cpu_began
        return cpu_s / count, (time.perf_counter() - began) / count


def _receive_answer(connection: socket.socket, buffer: memoryview) -> None:
    missing = 4
    while missing:
        missing -= connection.recv_into(buffer[4 - missing : 4])
    missing = int.from_bytes(buffer[:4], "big")
    assert missing > 20, "no answer is so short"
    while missing:
        received = connection.recv_into(buffer[: min(missing, len(buffer))])
        assert received, "the broker closed the connection"
        missing -= received


def wires() -> Iterator[Row]:
    """Kafka's wire beside msgpack's, in CPU time of the broker and in requests a second."""
    loads = [
        produce_load(100, 15_000),
        produce_load(16_000, 8_000),
        fetch_load(100, 15_000),
        fetch_load(64_000, 8_000),
    ]
    with fresh_broker() as broker:
        create_topic(broker.address, TOPIC, 1)
        for load in loads:
            for place, name, unit in ((0, "broker CPU", "us"), (1, "time", "us")):
                yield _row(broker, load, place, name, unit)


def _row(broker: BrokerProcess, load: Load, place: int, name: str, unit: str) -> Row:
    def measure(start: bytes, frame: bytes) -> float:
        return drive(broker, start, frame, load.count)[place] * 1e6

    kafka: Callable[[], float] = partial(measure, b"", load.kafka)
    msgpack: Callable[[], float] = partial(measure, PREFACE, load.msgpack)
    pair = by_turns(kafka, msgpack, ROUNDS)
    return Row(
        f"{load.name}: {name} a request, Kafka's wire",
        f"{pair.ours:.1f} {unit}",
        "the msgpack wire",
        f"{pair.theirs:.1f} {unit}",
        f"{pair.ratio:.2f}",
        f"<= {COST_MAX}",
        pair.ratio <= COST_MAX,
    )


def resting() -> Iterator[Row]:
    """A consumer's FETCH in a session whose partitions rest, by how many there are."""
    with fresh_broker() as broker:
        for count in (RESTING, FEW_RESTING):
            create_topic(broker.address, f"resting-{count}", count)
        many, few = (partial(fetch_in_session, broker, n) for n in (RESTING, FEW_RESTING))
        pair = by_turns(many, few, ROUNDS)
    yield Row(
        f"a consumer's FETCH on Kafka's wire, {RESTING:,} partitions without news: broker CPU",
        f"{pair.ours * 1e6:.0f} us",
        f"{FEW_RESTING} partitions",
        f"{pair.theirs * 1e6:.0f} us",
        f"{pair.ratio:.2f}",
        f"<= {RESTING_MAX}",
        pair.ratio <= RESTING_MAX,
    )


def fetch_in_session(broker: BrokerProcess, partition_count: int) -> float:
    """CPU seconds of the broker for one FETCH that asks for nothing new in its session."""
    topics = apis.FETCH.request.of("topics")
    make = topics.of("partitions").make
    wanted = [make(number, partition_max_bytes=1_000_000) for number in range(partition_count)]
    topic = topics.make(topic=f"resting-{partition_count}", partitions=wanted)
    host, port = broker.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def fetch(session_id: int, session_epoch: int, *asked: object) -> tuple[int, int]:
            session = {"session_id": session_id, "session_epoch": session_epoch}
            asks = {"min_bytes": 1, "max_bytes": 1_000_000, "topics": asked}
            connection.sendall(kafka_frame(apis.FETCH, 11, **session, **asks))
            size = int.from_bytes(_receive_exactly(connection, 4), "big")
            answer = _receive_exactly(connection, size)
            _, _, error, session_id = struct.unpack_from(">iihi", answer)
            assert not error, error
            return session_id, size

        session_id, size = fetch(0, 0, topic)
        assert session_id
        assert size > 30 * partition_count, "each partition is answered once"
        began = cpu_seconds(broker.pid)
        for number in range(FETCHES):
            _, size = fetch(session_id, number + 1)
            assert size < 50, "nothing is new"
        return (cpu_seconds(broker.pid) - began) / FETCHES


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        more = connection.recv(size - len(received))
        assert more, "the broker closed the connection"
        received += more
    return bytes(received)


def first_record() -> Iterator[Row]:
    """A new consumer of a new group, until its first record."""

    def measure(address: str) -> float:
        return run_module("kafka_clients", "first", address, TOPIC)["seconds"]

    with fresh_broker("--set", "group.initial.rebalance.delay.ms=0") as broker, _mock() as mock:
        create_topic(broker.address, TOPIC, 1)
        for address in (broker.address, mock):
            run_module("kafka_clients", "produce", address, TOPIC, "--count", 10)
        pair = by_turns(partial(measure, broker.address), partial(measure, mock), ROUNDS)
    yield Row(
        "a new group's first record, confluent-kafka",
        seconds(pair.ours),
        "librdkafka's mock",
        seconds(pair.theirs),
        f"{pair.ratio:.2f}",
        f"<= {FIRST_MAX}",
        pair.ratio <= FIRST_MAX,
    )


@contextmanager
def _mock() -> Iterator[str]:
    """The address of a mock cluster of one broker, which lives in this process."""
    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(0)


MEASURES = (wires, resting, first_record)
