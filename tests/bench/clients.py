"""Our clients, each run in a process of its own, doing one thing and printing how fast it was.

    python -m tests.bench.clients produce ADDRESS TOPIC --way send_nowait --count N
    python -m tests.bench.clients consume ADDRESS TOPIC --count N

`produce` sends records without keys, and its time ends with the last acknowledgement;
`consume` reads a topic from its beginning and decodes every record. A first record, outside of the
time, has made the connection and learnt the topic, as the yardsticks' first thousand did.

Each way imports its own client only: every object that a module leaves behind is visited by each
full garbage collection, 20 times in two million records.
"""

import argparse
import json
import time
from collections.abc import Callable, Coroutine

import trio

from minibroker.client import BufferFull, Consumer, Delivery, Producer, RecordDelivered

CHUNK = 1000  # values of one `send_many`
FUTURES = 10_000  # that are kept before they are asked
POLL_RECORDS = 10_000
STALLED_S_MAX = 10.0


async def _send_nowait(producer: Producer, topic: str, value: bytes, count: int) -> None:
    for _ in range(count):
        try:
            producer.send_nowait(topic, value)
        except BufferFull:
            await producer.room()
            producer.send_nowait(topic, value)


async def _send(producer: Producer, topic: str, value: bytes, count: int) -> None:
    for _ in range(count):
        await producer.send(topic, value)


async def _send_many(producer: Producer, topic: str, value: bytes, count: int) -> None:
    sent = 0
    while sent < count:
        values = [value] * min(CHUNK, count - sent)
        while values:
            taken = producer.send_many(topic, values)
            sent += taken
            values = values[taken:]
            if values:
                await producer.room()


OTHER_WAYS = ("blocking", "blocking, many", "asyncio", "asyncio, many")
TOLD_WAYS = ("told of batches", "told of records", "told by futures")
WAYS = {"send_nowait": _send_nowait, "send_many": _send_many, "send": _send}


async def produce(given: argparse.Namespace, options: dict[str, object]) -> float:
    """Records per second of one trio producer."""
    value = bytes(given.size)
    async with Producer(options) as producer:
        await producer.send_and_wait(given.topic, value)
        began = time.perf_counter()
        await WAYS[given.way](producer, given.topic, value, given.count)
        await producer.flush()
        return given.count / (time.perf_counter() - began)


def produce_blocking(given: argparse.Namespace, options: dict[str, object]) -> float:
    """Records per second of one blocking producer."""
    from minibroker.client.blocking import Producer as BlockingProducer

    value = bytes(given.size)
    with BlockingProducer(options) as producer:
        producer.send_and_wait(given.topic, value)
        began = time.perf_counter()
        if given.way == "blocking":
            for _ in range(given.count):
                producer.send(given.topic, value)
        else:
            for _ in range(given.count // CHUNK):
                producer.send_many(given.topic, [value] * CHUNK)
        producer.flush()
        return given.count / (time.perf_counter() - began)


def produce_told(given: argparse.Namespace, options: dict[str, object]) -> float:
    """The same, told of each record by a callback or by its future, or else of each batch."""
    from minibroker.client.blocking import Producer as BlockingProducer

    told = 0

    def on_delivery(delivery: Delivery) -> None:
        nonlocal told
        told += delivery.record_count

    def on_record(error: Exception | None, record: RecordDelivered | None) -> None:
        nonlocal told
        told += error is None

    value = bytes(given.size)
    with BlockingProducer(
        options, on_delivery=on_delivery if given.way == "told of batches" else None
    ) as producer:
        producer.send_and_wait(given.topic, value)
        told = 0
        began = time.perf_counter()
        if given.way == "told by futures":
            for _ in range(given.count // FUTURES):
                futures = [producer.send(given.topic, value) for _ in range(FUTURES)]
                for future in futures:
                    on_record(None, future.result())
        else:
            callback = on_record if given.way == "told of records" else None
            for _ in range(given.count):
                producer.send(given.topic, value, on_delivery=callback)
            producer.flush()
        took = time.perf_counter() - began
        assert told == given.count
        return given.count / took


async def produce_asyncio(given: argparse.Namespace, options: dict[str, object]) -> float:
    """Records per second of one producer for asyncio, in one task."""
    from minibroker.client.asyncio import Producer as AsyncioProducer

    value = bytes(given.size)
    async with AsyncioProducer(options) as producer:
        await producer.send_and_wait(given.topic, value)
        began = time.perf_counter()
        if given.way == "asyncio":
            for _ in range(given.count):
                await producer.send(given.topic, value)
        else:
            for _ in range(given.count // CHUNK):
                await producer.send_many(given.topic, [value] * CHUNK)
        await producer.flush()
        return given.count / (time.perf_counter() - began)


def consume_blocking(given: argparse.Namespace) -> float:
    """Records per second of one blocking consumer, which iterates or polls."""
    from minibroker.client.blocking import Consumer as BlockingConsumer

    left = given.count
    with BlockingConsumer(
        given.address, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    ) as consumer:
        consumer.assign_topics(given.topic)
        began = time.perf_counter()
        if given.way == "blocking":
            for _ in consumer:
                left -= 1
                if not left:
                    break
        while left > 0:
            left -= len(consumer.poll())
        return given.count / (time.perf_counter() - began)


async def consume_asyncio(given: argparse.Namespace) -> float:
    """Records per second of one consumer for asyncio, which iterates or polls."""
    from minibroker.client.asyncio import Consumer as AsyncioConsumer

    left = given.count
    async with AsyncioConsumer(
        given.address, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    ) as consumer:
        await consumer.assign_topics(given.topic)
        began = time.perf_counter()
        if given.way == "asyncio":
            async for _ in consumer:
                left -= 1
                if not left:
                    break
        while left > 0:
            left -= len(await consumer.poll())
        return given.count / (time.perf_counter() - began)


async def consume(given: argparse.Namespace) -> float:
    """Records per second of one consumer that decodes."""
    read = 0
    async with Consumer(
        given.address, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    ) as consumer:
        await consumer.assign_topics(given.topic)
        began = time.perf_counter()
        while read < given.count:
            records = await consumer.poll(STALLED_S_MAX)
            assert records, f"the topic ends after {read} records"
            read += len(records)
        return read / (time.perf_counter() - began)


def run_asyncio(measure: Coroutine[None, None, float]) -> float:
    """Run it in asyncio's loop."""
    import asyncio

    return asyncio.run(measure)


def main() -> None:
    """Run one of the two and print its figure as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["produce", "consume"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--way", choices=[*WAYS, *OTHER_WAYS, *TOLD_WAYS], default="send_nowait")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--acks", default="1")
    given = parser.parse_args()
    options = {
        "bootstrap.servers": given.address,
        "acks": given.acks,
        "batch.size": given.batch_size,
    }
    measures: dict[str, Callable[[], float]] = {
        "consume": lambda: trio.run(consume, given),
        "produce": lambda: trio.run(produce, given, options),
        "produce blocking": lambda: produce_blocking(given, options),
        "produce told": lambda: produce_told(given, options),
        "produce asyncio": lambda: run_asyncio(produce_asyncio(given, options)),
        "consume blocking": lambda: consume_blocking(given),
        "consume asyncio": lambda: run_asyncio(consume_asyncio(given)),
    }
    kind = given.way.split()[0].rstrip(",")  # of the client
    name = given.name if given.way in WAYS else f"{given.name} {kind}"
    print(json.dumps({"records_per_s": measures[name]()}))


if __name__ == "__main__":
    main()
