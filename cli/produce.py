"""`minibroker produce TOPIC`: each line of a file or of stdin becomes a record.

Everything is acknowledged when it ends with exit code 0. SIGINT or SIGTERM stops reading, delivers
what was read, and ends with 130 or 143, because the input was not all sent.
"""

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from minibroker.cli.progress import Progress
from minibroker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Interrupted,
    TopicArgument,
    TopicOption,
    interruptible,
    note,
    one_topic,
    pairs,
)

if TYPE_CHECKING:
    from minibroker.client import Delivery
    from minibroker.client.blocking import Producer

PROGRESS_EVERY_LINES = 5_000


class Tally:
    """What became of the records; `failure` is the first thing that went wrong."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.failure: Exception | None = None

    def count(self, delivery: "Delivery") -> None:
        """Called for every batch."""
        if delivery.error is None:
            self.delivered += delivery.record_count
        else:
            self.failed += delivery.record_count
            self.failure = self.failure or delivery.error


def produce(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    file: Annotated[
        Path | None, typer.Option("--file", "-l", help="Read this file; default is stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="One key for all records.")] = None,
    key_delimiter: Annotated[
        str, typer.Option("--key-delimiter", "-K", help="Splits each line into key and value.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Send all to this partition.")
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help="all, 1 or 0.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    options: Annotated[
        list[str] | None,
        typer.Option("--producer-property", "-X", metavar="NAME=VALUE", help="Any other option."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger", metavar="FILE", help="Write what was acknowledged, as JSON lines."
        ),
    ] = None,
) -> None:
    """Send lines as records, and wait until all are acknowledged."""
    from minibroker.client.blocking import Producer
    from minibroker.client.ledger import Ledger
    from minibroker.client.options import ACKS

    name = one_topic(topic, topic_option)
    delimiter = key_delimiter.replace("\\t", "\t").encode()
    config = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "compression.type": compression,
        **pairs(options or [], "--producer-property"),
    }
    tally = Tally()
    sender = Sender(name, partition, key.encode() if key is not None else None, delimiter)
    started = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        source = stack.enter_context(file.open("rb")) if file else sys.stdin.buffer
        listeners: list[Callable[[Delivery], None]] = [tally.count]
        # Made before the file is: it refuses bad options.
        producer = Producer(config, on_delivery=lambda delivery: _tell(listeners, delivery))
        if ledger:
            kept = Ledger(ledger, ACKS[config["acks"]], _now_ms)
            listeners.append(stack.enter_context(kept).record)
        stack.enter_context(producer)
        interrupted = _send_all(producer, sender, source)
    _report(tally, sender, time.monotonic() - started)
    if interrupted:
        raise interrupted


def _tell(listeners: Iterable[Callable[["Delivery"], None]], delivery: "Delivery") -> None:
    for listener in listeners:
        listener(delivery)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """Makes a record of each line."""

    def __init__(
        self, topic: str, partition: int | None, key: bytes | None, delimiter: bytes
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.delimiter = delimiter
        self.without_key = 0

    def send(self, producer: "Producer", line: bytes) -> None:
        """Send a line, without the line feed at its end; waits while the buffer is full."""
        value = line[:-1] if line.endswith(b"\n") else line
        key = self.key
        if self.delimiter:
            before, found, after = value.partition(self.delimiter)
            if found:
                key, value = before, after
            else:
                self.without_key += 1
        producer.send(self.topic, value, key, partition=self.partition)


def _send_all(producer: "Producer", sender: Sender, source: IO[bytes]) -> Interrupted | None:
    """Send until the input ends or a signal comes, then wait for what is under way."""
    interrupted = None
    try:
        with Progress(source) as progress:
            for number, line in enumerate(source):
                sender.send(producer, line)
                if number % PROGRESS_EVERY_LINES == 0:
                    progress.show(number)
    except Interrupted as signalled:
        interrupted = signalled
        note("interrupted: delivering what was read; a second signal ends at once")
    producer.flush()
    return interrupted


def _report(tally: Tally, sender: Sender, seconds: float) -> None:
    """What happened; raises `Failure` if anything was not delivered."""
    if sender.without_key:
        note(f"{sender.without_key} lines had no key delimiter and were sent without a key")
    rate = f" ({tally.delivered / seconds:,.0f} a second)" if seconds > 1 else ""
    note(f"{tally.delivered:,} records delivered to {sender.topic} in {seconds:.1f} s{rate}")
    if tally.failed:
        raise Failure(f"{tally.failed:,} records were not delivered: {tally.failure}")
