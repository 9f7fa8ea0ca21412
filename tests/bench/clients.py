"""Our clients, each run in a process of its own, doing one thing and printing how fast it was.

    python -m tests.bench.clients produce ADDRESS TOPIC --way send_nowait --count N
    python -m tests.bench.clients consume ADDRESS TOPIC --count N

`produce` sends records without keys, and its time ends with the last acknowledgement;
`consume` reads a topic from its beginning and decodes every record. A first record, outside of the
time, has made the connection and learnt the topic, as the yardsticks' first thousand did.
"""

import argparse
import json
import time
from collections.abc import Callable

import trio

from minibroker.client import BufferFull, Consumer, Producer

CHUNK = 1000  # values of one `send_many`
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
        send = producer.send
        for _ in range(given.count):
            send(given.topic, value)
        producer.flush()
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


def main() -> None:
    """Run one of the two and print its figure as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["produce", "consume"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--way", choices=[*WAYS, "blocking"], default="send_nowait")
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
        "blocking": lambda: produce_blocking(given, options),
    }
    name = "blocking" if given.way == "blocking" else given.name
    print(json.dumps({"records_per_s": measures[name]()}))


if __name__ == "__main__":
    main()
