"""`minibroker produce TOPIC`: each line of a file or of stdin becomes a record.

Exit code 0 means that all records are acknowledged. SIGINT or SIGTERM stops reading, delivers what
was read, and ends with 130 or 143, because not all of the input was sent. In every case it prints
how many records were delivered.
"""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.data.topic_metadata import find_topic, offline_partitions
from minibroker.cli.terminal import (
    API_TIMEOUT_MS,
    Bootstrap,
    Failure,
    Interrupted,
    TopicArgument,
    TopicOption,
    counted,
    interruptible,
    note,
    one_topic,
    pairs,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from minibroker.client import Delivery
    from minibroker.client.blocking import Producer
    from minibroker.protocol.messages.metadata import TopicMetadata

PROGRESS_EVERY_LINES = 5_000
PROGRESS_AFTER_S = 1.0

File = Annotated[Path | None, typer.Option("--file", "-l", help="File to read; default: stdin.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="One key for all records.")]
KeyDelimiter = Annotated[
    str | None,
    typer.Option("--key-delimiter", "-K", help="Delimiter between key and value in each line."),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Partition for all records.")
]
Acks = Annotated[str, typer.Option("--acks", help="Acknowledgements to wait for: all, 1 or 0.")]
Compression = Annotated[
    str, typer.Option("--compression", "-z", help="Codec: none, gzip, snappy, lz4 or zstd.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--producer-property", "-X", metavar="NAME=VALUE", help="Any other option of the producer."
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="File for what was acknowledged, as JSON lines; appended to.",
    ),
]


class Tally:
    """Counts delivered and failed records; `failure` is the first error."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.failure: Exception | None = None

    @contextmanager
    def reported(self, sender: "Sender") -> Iterator[None]:
        """Print the counts at the end of the block, however it ends."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            if sender.without_key:
                lines = counted(sender.without_key, "line")
                note(f"{lines} without the key delimiter, sent without a key")
            rate = f" ({self.delivered / seconds:,.0f} a second)" if seconds > 1 else ""
            delivered = counted(self.delivered, "record")
            note(f"{delivered} delivered to {sender.topic} in {seconds:.1f} s{rate}")

    def count(self, delivery: "Delivery") -> None:
        """Count the records of one batch."""
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
    file: File = None,
    key: Key = None,
    key_delimiter: KeyDelimiter = None,
    partition: Partition = None,
    acks: Acks = "all",
    compression: Compression = "none",
    options: Options = None,
    ledger: LedgerFile = None,
) -> None:
    """Send lines as records, and wait until all are acknowledged."""
    from minibroker.client.blocking import Producer
    from minibroker.client.ledger import Ledger
    from minibroker.client.options import ProducerOptions, read_options

    name = one_topic(topic, topic_option)
    config = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "compression.type": compression,
        **pairs(options or [], "--producer-property"),
    }
    tally = Tally()
    sender = Sender(name, partition, *_key_or_delimiter(key, key_delimiter))
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        source = stack.enter_context(_input(file))
        listeners: list[Callable[[Delivery], None]] = [tally.count]
        # Before the ledger is opened: the producer refuses bad options.
        producer = Producer(config, on_delivery=lambda delivery: _tell(listeners, delivery))
        read = read_options(ProducerOptions, None, config)
        defaults = {"max.block.ms": API_TIMEOUT_MS}
        found = find_topic(name, partition, defaults | config, "max.block.ms")
        offline_partitions(found, partition, "takes nothing: what goes there waits for a leader")
        _warn_of_few_copies(found, read.acks)
        stack.enter_context(tally.reported(sender))
        if ledger:
            kept = Ledger(ledger, read, _now_ms)
            listeners.append(stack.enter_context(kept).record)
        stack.enter_context(producer)
        interrupted = _send_all(producer, sender, source)
    if tally.failed:
        raise Failure(f"{counted(tally.failed, 'record')} not delivered: {tally.failure}")
    if interrupted:
        raise interrupted


def _warn_of_few_copies(found: "TopicMetadata | None", acks: int) -> None:
    from minibroker.protocol.constants import ACKS_ALL

    partitions = found.partitions if found is not None else ()
    replicas = max((len(each.replicas) for each in partitions), default=0)
    if acks != ACKS_ALL and replicas > 1:
        note(
            f"WARNING: with acks={acks} a record is lost if its leader fails before it is copied,"
            f" although the topic has {replicas} replicas, and nobody can read it while fewer than"
            " min.insync.replicas of them are in sync; --acks all waits for them"
        )


def _key_or_delimiter(key: str | None, delimiter: str | None) -> tuple[bytes | None, bytes]:
    if delimiter == "":
        raise typer.BadParameter("--key-delimiter is empty: no line can be split by it")
    if key is not None and delimiter is not None:
        raise typer.BadParameter("--key and --key-delimiter both say what the key is: name one")
    split = (delimiter or "").replace("\\t", "\t")
    return None if key is None else _bytes(key), _bytes(split)


def _bytes(text: str) -> bytes:
    """Return the bytes of an argument as typed, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def _input(file: Path | None) -> Iterator[IO[bytes]]:
    """Yield the source of the lines."""
    if file is not None:
        with file.open("rb") as opened:
            yield opened
    elif sys.stdin is None:
        raise Failure("there is nothing to read: stdin is closed, and no --file is named")
    else:
        yield sys.stdin.buffer


def _tell(listeners: Iterable[Callable[["Delivery"], None]], delivery: "Delivery") -> None:
    for listener in listeners:
        listener(delivery)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """Sends each line as a record."""

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
    """Send until the input ends or a signal arrives, then wait for the records in flight."""
    interrupted = None
    try:
        with Progress(source) as progress:
            for number, line in enumerate(source):
                try:
                    sender.send(producer, line)
                except ValueError as error:
                    raise Failure(f"line {number + 1}: {error}") from None
                if number % PROGRESS_EVERY_LINES == 0:
                    progress.show(number)
    except Interrupted as signalled:
        interrupted = signalled
        note("interrupted: delivering what was read; a second signal ends at once")
    producer.flush()
    return interrupted


class Progress:
    """A bar that shows how much of a file was read, or how many lines came from a pipe.

    It is drawn only on a terminal, and only if reading takes longer than a second: short commands
    stay quiet and do not import the library that draws it.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._appears_at = time.monotonic() + PROGRESS_AFTER_S
        self._bar: Bar | None = None
        information = os.fstat(source.fileno())
        self._bytes_total = information.st_size if stat.S_ISREG(information.st_mode) else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, line_count: int) -> None:
        """Draw or update the bar if it is due."""
        is_watched = sys.stderr.isatty() and not self._source.isatty()
        if not is_watched or time.monotonic() < self._appears_at:
            return
        if self._bar is None:
            self._bar = self._make_bar()
        done = line_count if self._bytes_total is None else self._source.tell()
        self._bar.update(self._bar.task_ids[0], completed=done, lines=line_count)

    def _make_bar(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = ("%", BarColumn(), "{task.fields[lines]:,} lines", TimeElapsedColumn())
        made = [TextColumn(column) if isinstance(column, str) else column for column in columns]
        bar = Bar(*made, console=Console(stderr=True), transient=True)
        bar.add_task("", total=self._bytes_total, lines=0)
        bar.start()
        return bar
