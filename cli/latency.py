"""The latency of one record from `send` to `poll`, producer and consumer in one process.

One process, so that both read the same clock. Sends are due at fixed times, and a record's latency
counts from when it was due: a stall then shows in every record it delays, not only in the first.
"""

import time
from collections.abc import Mapping

import trio

from minibroker.client import Consumer, Producer

WARM_UP_S = 1.0
PAYLOAD_BYTES = 100


async def measure_latency(
    options: Mapping[str, str], topic: str, rate: int, seconds: float
) -> dict[str, float]:
    """Send `rate` records a second for `seconds` after a warm-up; percentiles in milliseconds."""
    latencies: list[float] = []
    count = int(rate * (seconds + WARM_UP_S))
    async with Producer(options) as producer:
        await producer.send_and_wait(topic, bytes(PAYLOAD_BYTES))
        async with Consumer(options["bootstrap.servers"], fetch_max_wait_ms=500) as consumer:
            partitions = await consumer.assign_topics(topic)
            for partition, end in (await consumer.end_offsets(*partitions)).items():
                consumer.seek(partition, end)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_receive, consumer, latencies, count)
                await _send(producer, topic, rate, count)
    measured = sorted(latencies[int(rate * WARM_UP_S) :])
    return {
        "records": len(measured),
        "p50_ms": _percentile(measured, 0.50),
        "p99_ms": _percentile(measured, 0.99),
        "p999_ms": _percentile(measured, 0.999),
        "max_ms": measured[-1],
    }


async def _send(producer: Producer, topic: str, rate: int, count: int) -> None:
    began = time.perf_counter()
    for number in range(count):
        due = began + number / rate
        await trio.sleep(max(0.0, due - time.perf_counter()))
        producer.send_nowait(topic, b"%.9f" % due + bytes(PAYLOAD_BYTES - 20))


async def _receive(consumer: Consumer, latencies: list[float], count: int) -> None:
    while len(latencies) < count:
        records = await consumer.poll(1.0)
        now = time.perf_counter()
        latencies += [
            (now - float((record.value or b"0").rstrip(b"\0"))) * 1e3 for record in records
        ]


def _percentile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
