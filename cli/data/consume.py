"""`minibroker consume TOPIC`: records to stdout, each by a format string.

Like Kafka's console consumer it starts at the end of the topic by default. It runs until it is
stopped, has enough records, or has reached the end. SIGINT and SIGTERM are the normal way to end an
endless read: exit code 0. A warning names a partition without a leader, and the others are read;
with --exit-at-end the exit code is then 1.

With --group it joins that group, reads the partitions assigned to it, and continues at the group's
committed offsets; --from-beginning and --offset beginning or end apply only to partitions without
one. It commits only what it has printed; the next member prints a batch again that a signal
interrupted.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    one_name,
    one_topic,
    pairs,
)

if TYPE_CHECKING:
    from minibroker.cli.data.formats import Piece, Start
    from minibroker.client import ConsumerRecord
    from minibroker.protocol.messages.metadata import TopicMetadata
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
        help="Start: end (the default), beginning, N, -N (last N) or s@TIME.",
    ),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
]
CountMax = Annotated[
    int | None,
    typer.Option("--max-messages", "-c", min=0, help="Number of records after which it stops."),
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit-at-end", "-e", help="Stop at the end that the log had at the start.")
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
    typer.Option("--property", metavar="NAME=VALUE", help="Kafka's print.key=true and such."),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--consumer-property", "-X", metavar="NAME=VALUE", help="Any other option of the consumer."
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="File for what was read, as JSON lines; appended to.",
    ),
]
GroupId = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Consumer group to join, whose committed offsets it goes on from.",
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
    group: GroupId = None,
) -> None:
    """Print records; by default those that arrive from now on."""
    from minibroker.cli.data.readers import GroupReader, PartitionReader
    from minibroker.client.blocking import Consumer

    name = one_topic(topic, topic_option)
    start = _start(from_beginning, offset)
    write = _writer(format_string, pairs(properties or [], "--property"))
    given = pairs(options or [], "--consumer-property")
    group = group if group is not None else given.get("group.id")
    config = {
        "bootstrap.servers": bootstrap,
        "max.poll.records": "10000",
        "default.api.timeout.ms": API_TIMEOUT_MS,
        **given,
        **_membership(group, partition, start),
    }
    if sys.stdout is None:
        raise Failure("there is nowhere to print records to: stdout is closed")
    printer = Printer(write, count_max)
    began = time.monotonic()
    left_out: set[int] = set()
    reading = Consumer(config, ledger=ledger)
    with contextlib.suppress(_Stopped), interruptible(), reading as consumer, _stoppable():
        if group is None:
            consumer.assign_topics(name)  # raises first if the topic does not exist
        found = find_topic(name, partition, config, "default.api.timeout.ms")
        left_out = offline_partitions(found, partition, "is not read")
        names = consumer.assignment if group is None else _partitions(name, found)
        wanted = [each for each in names if partition in (None, each.partition)]
        led = [each for each in wanted if each.partition not in left_out]
        reader = (PartitionReader if group is None else GroupReader)(consumer, led)
        reader.begin(start)
        if exit_at_end:
            reader.warn_of_offsets_beyond()
        while not (exit_at_end and reader.is_done) and not printer.is_done:
            reader.return_unprinted(printer.print(consumer.poll(POLL_S)))
    seconds = time.monotonic() - began
    note(f"{counted(printer.count, 'record')} consumed from {name} in {seconds:.1f} s")
    if left_out and exit_at_end:
        raise Failure(f"{name} was not read whole: {counted(len(left_out), 'partition')} left out")


class _Stopped(Exception):
    """A signal has ended the reading."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turn a signal into an error for the consumer inside, which then commits what was printed.

    An interrupt would leave the consumer a second for that; a second signal still ends it at once.
    """
    try:
        yield
    except Interrupted:
        raise _Stopped from None


def _start(from_beginning: bool, offset: str | None) -> "Start":
    from minibroker.cli.data.formats import FormatError, Start, parse_offset

    if from_beginning and offset is not None:
        raise typer.BadParameter("--from-beginning and --offset both say where to begin: name one")
    try:
        if offset is None:
            return Start("beginning" if from_beginning else "end")
        return parse_offset(offset)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None


def _membership(group: str | None, partition: int | None, start: "Start") -> dict[str, str]:
    """Return the options of a member. Raises `typer.BadParameter` for options a group decides."""
    if group is None:
        return {}
    if partition is not None:
        raise typer.BadParameter("--partition and --group: a group decides who reads which")
    resets = {"beginning": "earliest", "end": "latest"}
    if start.kind not in resets:
        raise typer.BadParameter("--offset and --group: `minibroker group seek` moves a group")
    return {"group.id": one_name("group", group, None), "auto.offset.reset": resets[start.kind]}


def _partitions(topic: str, found: "TopicMetadata | None") -> "list[TopicPartition]":
    from minibroker.protocol.types import TopicPartition

    if found is None:
        raise Failure(f"there is no topic {topic!r}: create it first")
    return [TopicPartition(topic, each.partition) for each in found.partitions]


def _writer(format_string: str | None, properties: dict[str, str]) -> "Piece":
    from minibroker.cli.data.formats import FormatError, compile_format, format_of

    if properties and format_string is not None:
        raise typer.BadParameter("--property and --format both say what to print: name one")
    if format_string is None:
        format_string = DEFAULT_FORMAT
    try:
        return compile_format(format_of(properties) if properties else format_string)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None


class Printer:
    """Prints records and counts them; `count_max` None: all."""

    def __init__(self, write: "Piece", count_max: int | None) -> None:
        self._write = write
        self._count_max = count_max
        self.count = 0

    @property
    def is_done(self) -> bool:
        """Whether it has printed `count_max` records."""
        return self.count == self._count_max

    def print(self, records: "list[ConsumerRecord]") -> "list[ConsumerRecord]":
        """Write records out; return those beyond `count_max`."""
        room = len(records) if self._count_max is None else self._count_max - self.count
        wanted = records[:room]
        self.count += len(wanted)  # first, because a signal may come while they are printed
        if wanted:
            sys.stdout.buffer.write(b"".join([self._write(record) for record in wanted]))
            sys.stdout.buffer.flush()
        return records[room:]
