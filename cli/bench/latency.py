"""The latency of one record from `send` to `poll`, producer and consumer in one process.

One process, so that both read the same clock. Sends are due at fixed times, and a record's latency
counts from its due time: a stall then shows in every record that it delays, not only in the first.

A record names its run, and only records of this run are measured. Others may arrive: those of other
producers, and those that were not committed when the consumer queried the end of the topic. With
acks=1 or 0 the first record, which creates the topic, is one of them, since its acknowledgement
does not wait for the followers.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

import trio

from minibroker.cli.bench.commands import STALLED_S_MAX
from minibroker.cli.terminal import Failure
from minibroker.client import Consumer, Producer
from minibroker.client.options import Seams, default_seams

WARM_UP_S: Final = 1.0
PAYLOAD_BYTES: Final = 100
STAMP: Final = Struct(">8sd")  # the start of a value: the run, and when the record was due


async def measure_latency(
    options: Mapping[str, str],
    topic: str,
    rate: int,
    seconds: float,
    seams: Seams | None = None,
) -> dict[str, float]:
    """Send `rate` records a second for `seconds` after a warm-up; return percentiles in ms.

    Raises `Failure` if records do not arrive: with acks=1 and 0 they may be lost.
    """
    seams = seams or default_seams()
    run = seams.rng.randbytes(8)
    count = int(rate * (seconds + WARM_UP_S))
    async with Producer(options, seams=seams) as producer:
        await producer.send_and_wait(topic, bytes(PAYLOAD_BYTES))
        servers = options["bootstrap.servers"]
        async with Consumer(servers, fetch_max_wait_ms=500, seams=seams) as consumer:
            partitions = await consumer.assign_topics(topic)
            for partition, end in (await consumer.end_offsets(*partitions)).items():
                consumer.seek(partition, end)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send, producer, topic, run, rate, count)
                latencies = await _receive(consumer, run, count)
                nursery.cancel_scope.cancel()
    if len(latencies) < count:
        raise Failure(f"{topic} gives no more after {len(latencies)} records of {count}")
    measured = sorted(latencies[int(rate * WARM_UP_S) :])
    return {
        "records": len(measured),
        "p50_ms": _percentile(measured, 0.50),
        "p99_ms": _percentile(measured, 0.99),
        "p999_ms": _percentile(measured, 0.999),
        "max_ms": measured[-1],
    }


async def _send(producer: Producer, topic: str, run: bytes, rate: int, count: int) -> None:
    began = trio.current_time()
    for number in range(count):
        due = began + number / rate
        await trio.sleep(max(0.0, due - trio.current_time()))
        producer.send_nowait(topic, STAMP.pack(run, due) + bytes(PAYLOAD_BYTES - STAMP.size))


async def _receive(consumer: Consumer, run: bytes, count: int) -> list[float]:
    """Return the latency of each record, in ms; fewer than `count` if no more arrive."""
    latencies: list[float] = []
    received_at = trio.current_time()
    while len(latencies) < count and trio.current_time() - received_at < STALLED_S_MAX:
        records = await consumer.poll(1.0)
        now = trio.current_time()
        own = [value for record in records if (value := record.value or b"").startswith(run)]
        latencies += [(now - STAMP.unpack_from(value)[1]) * 1e3 for value in own]
        received_at = now if own else received_at
    return latencies


def _percentile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
