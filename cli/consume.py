"""`minibroker consume TOPIC`: records to stdout, each by a format string.

It starts at the end of the topic unless told otherwise, as Kafka's console consumer does, and runs
until it is stopped, has enough records, or has reached the end. SIGINT and SIGTERM are the normal
way out of an endless read: exit code 0. A partition without a leader is named and left out, so that
the others can be read; with --exit-at-end the exit code is then 1.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.lookup import look_up, without_leader
from minibroker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    PATIENCE_MS,
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
    from minibroker.cli.formats import Piece, Start
    from minibroker.client import ConsumerRecord
    from minibroker.client.blocking import Consumer
    from minibroker.protocol.types import TopicPartition

POLL_S = 0.5
DEFAULT_FORMAT = r"%s\n"


FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", help="The same as --offset beginning.")
]
Offset = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        help="end (the default), beginning, N, -N (last N) or s@TIME.",
    ),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
]
CountMax = Annotated[
    int | None, typer.Option("--max-messages", "-c", min=0, help="Stop after so many.")
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit-at-end", "-e", help="Stop at what was the end when it began.")
]
FormatString = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="%t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers,"
        " %K and %S sizes of key and value; \\n, \\t. Default: '%s\\n'.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="NAME=VALUE", help="print.key=true and such, as Kafka's consumer."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--consumer-property", "-X", metavar="NAME=VALUE", help="Any other option."),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="Write what was read, as JSON lines; a file that is there is added to.",
    ),
]


def consume(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    from_beginning: FromBeginning = False,
    offset: Offset = None,
    partition: Partition = None,
    count_max: CountMax = None,
    exit_at_end: ExitAtEnd = False,
    format_string: FormatString = None,
    properties: Properties = None,
    options: Options = None,
    ledger: LedgerFile = None,
) -> None:
    """Print records; by default those that arrive from now on."""
    from minibroker.client.blocking import Consumer
    from minibroker.protocol.types import TopicPartition

    name = one_topic(topic, topic_option)
    start = _start(from_beginning, offset)
    write = _writer(format_string, pairs(properties or [], "--property"))
    config = {
        "bootstrap.servers": bootstrap,
        "allow.auto.create.topics": "false",
        "max.poll.records": "10000",
        "default.api.timeout.ms": PATIENCE_MS,
        **pairs(options or [], "--consumer-property"),
    }
    if sys.stdout is None:
        raise Failure("there is nowhere to print records to: stdout is closed")
    count = 0
    began = time.monotonic()
    left_out: set[int] = set()
    reading = Consumer(config, ledger=ledger)
    with contextlib.suppress(Interrupted), interruptible(), reading as consumer:
        consumer.assign_topics(name)  # says first if there is no such topic
        found = look_up(name, partition, config, "default.api.timeout.ms")
        left_out = without_leader(found, partition, "is not read")
        wanted = consumer.assignment if partition is None else [TopicPartition(name, partition)]
        reader = Reader(consumer, [each for each in wanted if each.partition not in left_out])
        reader.begin(start)
        if exit_at_end:
            reader.tell_what_is_beyond()
        while not (exit_at_end and reader.is_done) and count != count_max:
            records = consumer.poll(POLL_S)
            if count_max is not None:
                records = records[: count_max - count]
            count += len(records)  # first, because a signal may come while they are printed
            _print(write, records)
    note(f"{counted(count, 'record')} consumed from {name} in {time.monotonic() - began:.1f} s")
    if left_out and exit_at_end:
        raise Failure(f"{name} was not read whole: {counted(len(left_out), 'partition')} left out")


def _start(from_beginning: bool, offset: str | None) -> "Start":
    from minibroker.cli.formats import FormatError, Start, parse_offset

    if from_beginning and offset is not None:
        raise typer.BadParameter("--from-beginning and --offset both say where to begin: name one")
    try:
        if offset is None:
            return Start("beginning" if from_beginning else "end")
        return parse_offset(offset)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None


def _writer(format_string: str | None, properties: dict[str, str]) -> "Piece":
    from minibroker.cli.formats import FormatError, compile_format, format_of

    if properties and format_string is not None:
        raise typer.BadParameter("--property and --format both say what to print: name one")
    if format_string is None:
        format_string = DEFAULT_FORMAT
    try:
        return compile_format(format_of(properties) if properties else format_string)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None


class Reader:
    """Which partitions are read, from where, and to where."""

    def __init__(self, consumer: "Consumer", names: "list[TopicPartition]") -> None:
        self._consumer = consumer
        self._names = names
        self._ends: dict[TopicPartition, int] = {}

    def begin(self, start: "Start") -> None:
        """Assign the partitions and go to where the reading starts."""
        consumer, names = self._consumer, self._names
        if not names:
            raise Failure("nothing can be read; the broker's log says why")
        consumer.assign(names)
        self._ends = consumer.end_offsets(*names)
        if start.kind == "time":
            consumer.seek_to_time(start.number)
            return
        beginnings = consumer.beginning_offsets(*names)
        for name in names:
            first, end = beginnings[name], self._ends[name]
            offset = {
                "beginning": first,
                "end": end,
                "tail": max(first, end - start.number),
                "offset": start.number,
            }[start.kind]
            consumer.seek(name, offset)

    def tell_what_is_beyond(self) -> None:
        """Name the partitions that end before the place where the reading starts."""
        for name, end in self._ends.items():
            offset = self._consumer.position(name)
            if offset is not None and offset > end:
                note(f"{name}: offset {offset} is beyond the end, which is {end}")

    @property
    def is_done(self) -> bool:
        """Whether everything was read that was there at the beginning."""
        return all((self._consumer.position(name) or 0) >= end for name, end in self._ends.items())


def _print(write: "Piece", records: "list[ConsumerRecord]") -> None:
    if records:
        sys.stdout.buffer.write(b"".join([write(record) for record in records]))
        sys.stdout.buffer.flush()
