"""What minibroker is measured against, each run in a process of its own.

    python -m tests.bench.yardsticks produce --count N --partitions P
    python -m tests.bench.yardsticks sendfile --file FILE

prints one JSON object. The clients are librdkafka's (confluent-kafka), talking to the mock broker
that librdkafka carries inside the same process: it keeps what it gets as it is, in memory, so as a
place to write to it costs next to nothing. What it is no good at: it keeps only 5 MB a partition,
and a fetch that finds nothing waits its whole time, whatever arrives meanwhile. The loops are the
least that a program can do.
"""

import argparse
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import crc32c

TOPIC = "bench"
ANY_PARTITION = -1  # the mock's topics have 4
SENDFILE_BYTES = 1 << 20
POLL_RECORDS = 10_000
RATE = 1000  # records a second, to see how late they are
WARM_UP = 500


def make_mock_producer(**options):
    """A confluent-kafka producer with a mock broker inside; keys and values are bytes."""
    from confluent_kafka import Producer

    return Producer(
        {"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0, **options}
    )


def mock_address(producer) -> str:
    """Where the mock broker of a producer listens."""
    [broker] = producer.list_topics(timeout=10).brokers.values()
    return f"{broker.host}:{broker.port}"


def produce_until_done(producer, count: int, value: bytes, partition: int) -> float:
    """Send `count` records without a key; seconds until all are acknowledged."""
    start = time.perf_counter()
    sent = 0
    while sent < count:
        try:
            producer.produce(TOPIC, value, partition=partition)
            sent += 1
        except BufferError:
            producer.poll(0.01)
    while producer.flush(60):
        pass
    return time.perf_counter() - start


def produce(count: int, size: int, partition_count: int) -> dict:
    """Records per second of confluent-kafka into its mock: acks=1, null keys, else defaults."""
    producer = make_mock_producer(**{"acks": 1, "queue.buffering.max.messages": 1_000_000})
    partition = 0 if partition_count == 1 else ANY_PARTITION
    produce_until_done(producer, 1000, bytes(size), partition)
    seconds = produce_until_done(producer, count, bytes(size), partition)
    return {"records_per_s": count / seconds}


def consume(count: int, size: int) -> dict:
    """Records per second of confluent-kafka reading what is in a mock, 10,000 a call.

    The mock keeps 5 MB a partition, so `count` records are read in rounds over what fits, each
    timed from its first call's return to its last record: connecting costs the yardstick nothing.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    producer = make_mock_producer(**{"acks": 1, "queue.buffering.max.messages": 1_000_000})
    here = 16_000_000 // (size + 10)
    for number in range(here):
        producer.produce(TOPIC, bytes(size), partition=number % 4)
    producer.flush(60)
    options = {"bootstrap.servers": mock_address(producer), "group.id": "g", "log_level": 0}
    read, seconds = 0, 0.0
    while read < count:
        consumer = Consumer({**options, "enable.auto.commit": False})
        consumer.assign([TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in range(4)])
        left = here - len(consumer.consume(POLL_RECORDS, 10.0))
        start = time.perf_counter()
        while left:
            messages = consumer.consume(min(POLL_RECORDS, left), 10.0)
            assert messages, "a poll brought nothing"
            assert not any(message.error() for message in messages)
            left -= len(messages)
            read += len(messages)
        seconds += time.perf_counter() - start
        consumer.close()
    return {"records_per_s": read / seconds}


def latency(seconds: float) -> dict:
    """Milliseconds from produce to consume through the mock, one record each 1/1000 s.

    The consumer asks again after 1 ms, since the mock lets a waiting fetch wait (see the head).
    """
    from confluent_kafka import Consumer, TopicPartition

    producer = make_mock_producer(**{"acks": 1, "linger.ms": 0})
    producer.produce(TOPIC, b"", partition=0)
    producer.flush(10)
    options = {"bootstrap.servers": mock_address(producer), "group.id": "g", "log_level": 0}
    consumer = Consumer({**options, "enable.auto.commit": False, "fetch.wait.max.ms": 1})
    consumer.assign([TopicPartition(TOPIC, 0, 1)])
    latencies: list[float] = []
    count = int(RATE * seconds) + WARM_UP
    began = time.perf_counter()
    sent = 0
    while len(latencies) < count:
        while sent < count and (due := began + sent / RATE) <= time.perf_counter():
            producer.produce(TOPIC, b"%.9f" % due, partition=0)
            sent += 1
        messages = consumer.consume(1000, 0.0005)
        now = time.perf_counter()
        latencies += [now - float(message.value()) for message in messages]
    consumer.close()
    ordered = sorted(latencies[WARM_UP:])
    p50, p99 = (1e3 * ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    return {"p50_ms": p50, "p99_ms": p99}


def _pump(connection: socket.socket, path: Path, total: int) -> None:
    size = path.stat().st_size
    with path.open("rb") as file, connection:
        sent = 0
        while sent < total:
            step = min(SENDFILE_BYTES, total - sent)
            sent += os.sendfile(connection.fileno(), file.fileno(), sent % size, step)


def sendfile(path: Path, total: int) -> dict:
    """Bytes per second of a bare sendfile loop over loopback into another process, 1 MiB a call."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    buffer = memoryview(bytearray(SENDFILE_BYTES))
    pump = multiprocessing.get_context("fork").Process(target=_pump, args=(accepted, path, total))
    pump.start()
    accepted.close()
    start = time.perf_counter()
    received = 0
    while count := client.recv_into(buffer):
        received += count
    seconds = time.perf_counter() - start
    pump.join()
    client.close()
    assert received == total, "the file was pumped out"
    return {"bytes_per_s": received / seconds}


def read_with_crc(path: Path) -> dict:
    """Seconds to read a file once in 1 MiB pieces with a CRC-32C over all of it."""
    buffer = memoryview(bytearray(1 << 20))
    start = time.perf_counter()
    crc = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = crc32c.crc32c(buffer[:count], crc)
    return {"seconds": time.perf_counter() - start}


def main() -> None:
    """Run one yardstick and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["produce", "consume", "latency", "sendfile", "read"])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--total", type=int, default=2 << 30)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    measures: dict[str, Callable[[], dict]] = {
        "produce": lambda: produce(given.count, given.size, given.partitions),
        "consume": lambda: consume(given.count, given.size),
        "latency": lambda: latency(given.seconds),
        "sendfile": lambda: sendfile(given.file, given.total),
        "read": lambda: read_with_crc(given.file),
    }
    print(json.dumps(measures[given.name]()))


if __name__ == "__main__":
    main()
