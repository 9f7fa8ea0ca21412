"""One measurement with confluent-kafka, against whichever broker has the address.

    python -m tests.bench.kafka_clients produce ADDRESS TOPIC --acks all --batch 16384
    python -m tests.bench.kafka_clients consume ADDRESS TOPIC
    python -m tests.bench.kafka_clients latency ADDRESS TOPIC --rate 100
    python -m tests.bench.kafka_clients first ADDRESS TOPIC
    python -m tests.bench.kafka_clients first-produce ADDRESS TOPIC [--idempotent]
    python -m tests.bench.kafka_clients transactions ADDRESS TOPIC --records 100 --count 300

Each prints one JSON object.
"""

import argparse
import json
import statistics
import threading
import time
import uuid

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

VALUE = b"x" * 100
POLLED = 10_000
WARM_UP_S = 2.0
SECONDS_MAX = 60.0
WARM_UP_TRANSACTIONS = 10


def produce(address: str, topic: str, count: int, acks: str, batch: int, idempotent: bool) -> dict:
    """Records a second until all are acknowledged, of a producer that has its connections and its
    producer id: a record is acknowledged before the clock starts (`first_produce` times that)."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": acks,
            "batch.size": batch,
            "linger.ms": 5,
            "enable.idempotence": idempotent,
            "queue.buffering.max.messages": 200_000,
        }
    )
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    producer.produce(topic, VALUE, on_delivery=note)
    assert not producer.flush(SECONDS_MAX), "the first record was not acknowledged"
    began = time.perf_counter()
    sent = 0
    while sent < count:
        try:
            producer.produce(topic, VALUE, on_delivery=note if sent % 1000 == 0 else None)
            sent += 1
        except BufferError:
            producer.poll(0.01)
    left = producer.flush(SECONDS_MAX)
    took = time.perf_counter() - began
    assert not left, f"{left} records were not acknowledged"
    assert not failed, failed[:3]
    return {"records_per_s": count / took}


def consume(address: str, topic: str, count: int) -> dict:
    """Records a second, from the first record on, which the library gives alone."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"bench-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    began, seen = 0.0, 0
    while seen < count:
        messages = consumer.consume(min(POLLED, count - seen) if seen else 1, 10)
        assert messages, f"only {seen} of {count} came"
        began = began or time.perf_counter()
        seen += len(messages)
    took = time.perf_counter() - began
    consumer.close()
    return {"records_per_s": seen / took}


def latency(address: str, topic: str, rate: int, seconds: float) -> dict:
    """From the moment a record was due until poll returned it, in milliseconds."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench-latency"})
    start = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
    consumer.assign([TopicPartition(topic, 0, start)])
    count = int(rate * (seconds + WARM_UP_S))
    found: list[float] = []

    def read() -> None:
        while len(found) < count:
            message = consumer.poll(10)
            assert message is not None, f"only {len(found)} of {count} came"
            found.append((time.perf_counter() - float(message.value())) * 1000)

    reader = threading.Thread(target=read)
    reader.start()
    began = time.perf_counter() + 1.0
    for number in range(count):
        due = began + number / rate
        while (wait := due - time.perf_counter()) > 0:
            producer.poll(wait)
        producer.produce(topic, repr(due), partition=0)
    producer.flush(SECONDS_MAX)
    reader.join()
    consumer.close()
    times = sorted(found[int(rate * WARM_UP_S) :])
    return {
        "p50_ms": statistics.median(times),
        "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)],
    }


def first(address: str, topic: str) -> dict:
    """Seconds from a new consumer of a new group to its first record."""
    began = time.perf_counter()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"bench-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(SECONDS_MAX)
    took = time.perf_counter() - began
    assert message is not None, "nothing came"
    assert message.error() is None, message.error()
    consumer.close()
    return {"seconds": took}


def first_produce(address: str, topic: str, idempotent: bool) -> dict:
    """Seconds from a new producer to the acknowledgement of its first record.

    An idempotent one of librdkafka asks for its producer id as soon as it knows the brokers. The
    METADATA answer often arrives on the bootstrap connection before the broker's own connection is
    up; librdkafka then finds no broker to ask, and tries again 500 ms later.
    """
    began = time.perf_counter()
    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "enable.idempotence": idempotent}
    )
    acknowledged: list[float] = []

    def note(error: KafkaError | None, _message: object) -> None:
        assert error is None, error
        acknowledged.append(time.perf_counter())

    producer.produce(topic, VALUE, on_delivery=note)
    assert not producer.flush(SECONDS_MAX), "it was not acknowledged"
    return {"seconds": acknowledged[0] - began}


def transactions(address: str, topic: str, records: int, count: int) -> dict:
    """Transactions of so many records each: the records a second, and how long a transaction takes
    from its begin to the answer to its commit, in milliseconds. Some warm up before."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": f"bench-{uuid.uuid4()}",
            "linger.ms": 0 if records == 1 else 5,
            "queue.buffering.max.messages": 200_000,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    times: list[float] = []
    for _ in range(WARM_UP_TRANSACTIONS + count):
        began = time.perf_counter()
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, VALUE)
        producer.commit_transaction(SECONDS_MAX)
        times.append(time.perf_counter() - began)
    del times[:WARM_UP_TRANSACTIONS]
    return {
        "records_per_s": records * count / sum(times),
        "p50_ms": statistics.median(times) * 1000,
        "p99_ms": sorted(times)[len(times) * 99 // 100] * 1000,
    }


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["produce", "consume", "latency", "first", "first-produce", "transactions"]
    parser.add_argument("name", choices=names)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--count", type=int, default=300_000)
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    at = (given.address, given.topic)
    match given.name:
        case "produce":
            found = produce(*at, given.count, given.acks, given.batch, given.idempotent)
        case "consume":
            found = consume(*at, given.count)
        case "latency":
            found = latency(*at, given.rate, given.seconds)
        case "transactions":
            found = transactions(*at, given.records, given.count)
        case "first-produce":
            found = first_produce(*at, given.idempotent)
        case _:
            found = first(*at)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
