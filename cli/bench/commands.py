"""`minibroker bench`: measures a running broker with one client on this machine.

`make bench` is for comparisons: it starts its own processes and compares each figure with a
reference measured in the same run.
"""

import json
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    API_TIMEOUT_MS,
    Bootstrap,
    Failure,
    Format,
    Interrupted,
    OutputFormat,
    note,
    pairs,
)

app = typer.Typer(help="Measure a running broker.", no_args_is_help=True)

Topic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="Topic; created if it does not exist.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--property", "-X", metavar="NAME=VALUE", help="Option of the client."),
]
DEFAULT_TOPIC = "bench"
STALLED_S_MAX = 10.0
Figures = dict[str, float]


def _show(measure: Callable[[], Coroutine[Any, Any, Figures]], output: OutputFormat) -> None:
    import trio

    try:
        figures = trio.run(measure)
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and not error.subgroup(KeyboardInterrupt):
            raise
        raise Interrupted(signal.SIGINT) from None
    if output is OutputFormat.JSON:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:24} {figure:>16,.2f}" if figure < 1000 else f"{name:24} {figure:>16,.0f}")


@app.command()
def produce(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Number of records.")
    ] = 1_000_000,
    size: Annotated[int, typer.Option("--size", min=0, help="Size of a value in bytes.")] = 100,
    acks: Annotated[
        str, typer.Option("--acks", help="Acknowledgements to wait for: all, 1 or 0.")
    ] = "1",
    options: Options = None,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Measure the records per second of one producer, until all are acknowledged; null keys."""
    given = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "max.block.ms": API_TIMEOUT_MS,
        **pairs(options or [], "--property"),
    }

    async def measure() -> Figures:
        from minibroker.client import BufferFull, Producer

        value = bytes(size)
        async with Producer(given) as producer:
            try:
                await producer.send_and_wait(topic, value)
            except ValueError as error:
                raise Failure(str(error)) from None
            began = time.perf_counter()
            for _ in range(count):
                try:
                    producer.send_nowait(topic, value)
                except BufferFull:
                    await producer.room()
                    producer.send_nowait(topic, value)
            await producer.flush()
            seconds = time.perf_counter() - began
        return _rates(count, count * size, seconds)

    _show(measure, output)


@app.command()
def consume(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Number of records.")
    ] = 1_000_000,
    options: Options = None,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Measure the records per second of one consumer, decoded, from the beginning of the topic."""
    given = {
        "bootstrap.servers": bootstrap,
        "auto.offset.reset": "earliest",
        "max.poll.records": "10000",
        "default.api.timeout.ms": API_TIMEOUT_MS,
        **pairs(options or [], "--property"),
    }

    async def measure() -> Figures:
        from minibroker.client import Consumer

        read = byte_count = 0
        async with Consumer(given) as consumer:
            names = await consumer.assign_topics(topic)
            ends = await consumer.end_offsets(*names)
            beginnings = await consumer.beginning_offsets(*names)
            there = sum(ends.values()) - sum(beginnings.values())
            if there < count:
                note(f"{count:,} records were asked for, and {topic} holds {there:,}")
            wanted = min(count, there)
            began = time.perf_counter()
            while read < wanted:
                records = await consumer.poll(STALLED_S_MAX)
                if not records:
                    raise Failure(f"{topic} gives no more after {read:,} records of {wanted:,}")
                read += len(records)
                byte_count += sum([len(record.value or b"") for record in records])
            seconds = time.perf_counter() - began
        return _rates(read, byte_count, seconds)

    _show(measure, output)


@app.command()
def latency(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    topic: Topic = DEFAULT_TOPIC + "-latency",
    rate: Annotated[int, typer.Option("--rate", min=1, help="Records a second.")] = 1000,
    seconds: Annotated[float, typer.Option("--seconds", help="Duration in seconds.")] = 10.0,
    acks: Annotated[
        str, typer.Option("--acks", help="Acknowledgements to wait for: all, 1 or 0.")
    ] = "1",
    options: Options = None,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Measure the milliseconds from send to poll, at a steady rate, without linger."""
    given = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "linger.ms": "0",
        "max.block.ms": API_TIMEOUT_MS,
        **pairs(options or [], "--property"),
    }

    async def measure() -> Figures:
        from minibroker.cli.bench.latency import measure_latency

        return await measure_latency(given, topic, rate, seconds)

    _show(measure, output)


def _rates(record_count: int, byte_count: int, seconds: float) -> Figures:
    return {
        "records": record_count,
        "seconds": seconds,
        "records_per_s": record_count / seconds,
        "megabytes_per_s": byte_count / seconds / 1e6,
    }
