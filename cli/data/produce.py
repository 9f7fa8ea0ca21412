"""`minibroker produce TOPIC`: each line of a file or of stdin becomes a record.

A line is a value, perhaps with headers and a key before it, or a whole record as JSON, as
`consume --format json` prints it.

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
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, NamedTuple

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.data.topic_metadata import admin_of, find_topic, offline_partitions
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
    printable,
    readable,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from minibroker.cli.data.json_lines import InputRecord
    from minibroker.client import Delivery
    from minibroker.client.blocking import Producer
    from minibroker.protocol.messages.metadata import TopicMetadata

PROGRESS_EVERY_LINES = 5_000
PROGRESS_AFTER_S = 1.0
TAKES_NOTHING = "takes nothing: what goes there waits for a leader"


class LineFormat(StrEnum):
    """What a line of the input is."""

    TEXT = "text"
    JSON = "json"


File = Annotated[Path | None, typer.Option("--file", "-l", help="File to read; default: stdin.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="One key for all records.")]
KeyDelimiter = Annotated[
    str | None,
    typer.Option("--key-delimiter", "-K", help="Delimiter between key and value in each line."),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Partition for all records.")
]
Acks = Annotated[
    str,
    typer.Option(
        "--acks", "--request-required-acks", help="Acknowledgements to wait for: all, 1 or 0."
    ),
]
Compression = Annotated[
    str,
    typer.Option(
        "--compression",
        "--compression-codec",
        "-z",
        help="Codec: none, gzip, snappy, lz4 or zstd.",
    ),
]
Format = Annotated[
    LineFormat,
    typer.Option("--format", help="What a line is: a text, or a record as `consume -J` prints it."),
]
IsJson = Annotated[bool, typer.Option("-J", help="The same as --format json.")]
HeaderTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME=VALUE",
        help="Header of all records; NAME alone is a null. May be repeated.",
        show_default=False,
    ),
]
EmptyIsNull = Annotated[bool, typer.Option("-Z", help="Send an empty value or key as null.")]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "--reader-property",
        metavar="NAME=VALUE",
        help="Kafka's parse.key=true and such.",
        show_default=False,
    ),
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
            to = f" to {sender.topic}" if sender.topic is not None else ""
            note(f"{delivered} delivered{to} in {seconds:.1f} s{rate}")

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
    line_format: Format = LineFormat.TEXT,
    is_json: IsJson = False,
    headers: HeaderTexts = None,
    empty_is_null: EmptyIsNull = False,
    properties: Properties = None,
    options: Options = None,
    ledger: LedgerFile = None,
) -> None:
    """Send lines as records, and wait until all are acknowledged.

    With -J a line has topic, partition, timestamp, headers, key and value; TOPIC and --partition
    are used instead of the line's. A line without a partition goes where its key belongs.
    """
    from minibroker.cli.data.json_lines import parse_line
    from minibroker.client.options import ProducerOptions, read_options

    is_json = is_json or line_format is LineFormat.JSON
    given = Given(key, key_delimiter, headers or [], empty_is_null, properties or [])
    name = None if is_json and topic is topic_option is None else one_topic(topic, topic_option)
    if is_json and given != Given(None, None, [], False, []):
        raise typer.BadParameter("a line of JSON has its key and headers: leave out -k -K -H -Z")
    parse = parse_line if is_json else _parser(given)
    sender = Sender(name, partition, parse, has_keys=not is_json and key_delimiter is not None)
    config = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "compression.type": compression,
        **pairs(options or [], "--producer-property"),
    }
    read_options(ProducerOptions, None, config)
    _produce(sender, config, file, ledger)


def _produce(
    sender: "Sender", config: dict[str, str], file: Path | None, ledger: Path | None
) -> None:
    """Send the input, and raise `Failure` for records that were not delivered."""
    from minibroker.client.blocking import Producer
    from minibroker.client.ledger import Ledger
    from minibroker.client.options import ProducerOptions, read_options

    tally = Tally()
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        source = stack.enter_context(_input(file))
        listeners: list[Callable[[Delivery], None]] = [tally.count]
        # Before the ledger is opened: the producer refuses bad options.
        producer = Producer(config, on_delivery=lambda delivery: _tell(listeners, delivery))
        read = read_options(ProducerOptions, None, config)
        limited = {"max.block.ms": API_TIMEOUT_MS} | config
        if sender.topic is None:
            with admin_of(limited, "max.block.ms") as admin:
                admin.list_topics()  # fails soon if no broker answers
        else:
            found = find_topic(sender.topic, sender.partition, limited, "max.block.ms")
            known = [found] if found is not None else []
            offline_partitions(known, sender.partition, TAKES_NOTHING)
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


class Given(NamedTuple):
    """The options that say what of a line of text is its key, its headers and its value."""

    key: str | None
    key_delimiter: str | None
    headers: list[str]
    empty_is_null: bool
    properties: list[str]


def _parser(given: Given) -> "Callable[[bytes], InputRecord]":
    """Return what makes a record of a line of text. Raises `typer.BadParameter`."""
    from minibroker.cli.data.console_properties import line_parser
    from minibroker.cli.data.formats import FormatError

    if given.key_delimiter == "":
        raise typer.BadParameter("--key-delimiter is empty: no line can be split by it")
    if given.key is not None and given.key_delimiter is not None:
        raise typer.BadParameter("--key and --key-delimiter both say what the key is: name one")
    properties = pairs(given.properties, "--property")
    if "parse.key" in properties and (given.key is not None or given.key_delimiter is not None):
        raise typer.BadParameter("parse.key, --key and --key-delimiter are one too many: name one")
    if given.empty_is_null and "null.marker" in properties:
        raise typer.BadParameter("-Z and null.marker both say what is null: name one")
    try:
        parser = line_parser(properties)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None
    if given.key_delimiter is not None:
        split = _bytes(given.key_delimiter.replace("\\t", "\t"))
        parser = parser._replace(key_separator=split, is_strict=False)
    if given.empty_is_null:
        parser = parser._replace(null_marker=b"")
    if given.key is not None:
        parser = parser._replace(key=_bytes(given.key))
    return parser._replace(headers=[*map(_header, given.headers)]).parse


def _header(text: str) -> tuple[str, bytes | None]:
    """Return a header given as NAME=VALUE; NAME alone has a null."""
    name, found, value = text.partition("=")
    if not name:
        raise typer.BadParameter(f"--header takes NAME=VALUE or NAME, not {printable(text)!r}")
    return readable(name, "a header's name"), _bytes(value) if found else None


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
    """Sends each line as a record.

    `topic` None: that of each record. `partition` None: that of the record, if it has one.
    `has_keys`: lines without a key are counted.
    """

    def __init__(
        self,
        topic: str | None,
        partition: int | None,
        parse: "Callable[[bytes], InputRecord]",
        *,
        has_keys: bool,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.without_key = 0
        self._parse = parse
        self._has_keys = has_keys

    def send(self, producer: "Producer", line: bytes) -> None:
        """Send a line, without the line feed at its end; waits while the buffer is full."""
        record = self._parse(line[:-1] if line.endswith(b"\n") else line)
        self.without_key += self._has_keys and record.key is None
        topic = self.topic or record.topic
        if topic is None:
            raise ValueError("the record has no topic: name one as TOPIC")
        partition = self.partition if self.partition is not None else record.partition
        producer.send(
            topic, record.value, record.key, record.headers, partition, record.timestamp_ms
        )


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
