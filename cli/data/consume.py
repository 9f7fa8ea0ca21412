"""`minibroker consume TOPIC...`: records to stdout, each by a format string or as JSON.

Like Kafka's console consumer it starts at the end of the topics by default. It runs until it is
stopped, has enough records, has reached the end, or has waited long enough for a record. SIGINT and
SIGTERM are the normal way to end an endless read: exit code 0. A warning names a partition without
a leader, and the others are read; with --exit-at-end the exit code is then 1.

With --group it joins that group, reads the partitions assigned to it, and continues at the group's
committed offsets; --from-beginning and --offset beginning or end apply only to partitions without
one. It commits only what it has printed; the next member prints a batch again that a signal
interrupted.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.data.topic_metadata import (
    admin_of,
    append_time_topics,
    check_partition,
    matching_topics,
    offline_partitions,
)
from minibroker.cli.terminal import (
    API_TIMEOUT_MS,
    Bootstrap,
    Failure,
    Interrupted,
    TopicArguments,
    TopicNames,
    TopicOptions,
    counted,
    interruptible,
    note,
    one_name,
    pairs,
    some_topics,
)

if TYPE_CHECKING:
    from minibroker.cli.data.formats import Piece, Start
    from minibroker.cli.data.readers import GroupReader, PartitionReader
    from minibroker.client import ConsumerRecord
    from minibroker.client.blocking import Consumer
    from minibroker.protocol.messages.metadata import TopicMetadata
    from minibroker.protocol.types import TopicPartition

    WriterOf: TypeAlias = Callable[[Callable[[], Collection[str]]], Piece]

POLL_S = 0.5
DEFAULT_FORMAT = r"%s\n"
JSON = "json"


FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", help="The same as --offset beginning.")
]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        help="Start: end (the default), beginning, N, -N (last N) or s@TIME. With e@TIME, stop"
        " before the first record of that time.",
        show_default=False,
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
        help="json, or a format string: %t topic, %p partition, %o offset, %k key, %s value, %T"
        " timestamp, %h headers, %K and %S sizes of key and value; \\n, \\t. Default: '%s\\n'.",
    ),
]
IsJson = Annotated[bool, typer.Option("-J", help="The same as --format json.")]
ShowsNull = Annotated[bool, typer.Option("-Z", help="Print NULL for a null key or value.")]
TimeoutMs = Annotated[
    int | None,
    typer.Option(
        "--timeout-ms",
        metavar="MS",
        min=1,
        help="Stop if no record has come for so many milliseconds.",
        show_default=False,
    ),
]
Include = Annotated[
    str | None,
    typer.Option(
        "--include",
        "--whitelist",
        metavar="REGEX",
        help="Topics whose whole name matches; like TOPIC ^REGEX$.",
        show_default=False,
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "--formatter-property",
        metavar="NAME=VALUE",
        help="Kafka's print.key=true and such.",
        show_default=False,
    ),
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
        "-G",
        metavar="GROUP",
        help="Consumer group to join, whose committed offsets it goes on from.",
    ),
]


def consume(
    topics: TopicArguments = None,
    *,
    topic_options: TopicOptions = None,
    include: Include = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    from_beginning: FromBeginning = False,
    offsets: Offsets = None,
    partition: Partition = None,
    count_max: CountMax = None,
    exit_at_end: ExitAtEnd = False,
    timeout_ms: TimeoutMs = None,
    format_string: FormatString = None,
    is_json: IsJson = False,
    shows_null: ShowsNull = False,
    properties: Properties = None,
    options: Options = None,
    ledger: LedgerFile = None,
    group: GroupId = None,
) -> None:
    """Print records; by default those that arrive from now on.

    TOPIC is a name, or a pattern that begins with ^: of its topics, those that exist now are read;
    a --group reads later ones, too.
    """
    patterns = [] if include is None else [f"^(?:{include})$"]
    chosen = some_topics([*(topics or []), *patterns], topic_options)
    if partition is not None and (chosen.pattern or len(chosen.names) > 1):
        raise typer.BadParameter("--partition is one of a single topic: name no other topic")
    start, until_ms = _start_and_end(from_beginning, offsets or [])
    given = pairs(options or [], "--consumer-property")
    group = group if group is not None else given.get("group.id")
    printed = pairs(properties or [], "--property")
    if is_json and format_string not in (None, JSON):
        raise typer.BadParameter("-J and --format both say what to print: name one")
    write_of = _writer(JSON if is_json else format_string, printed, shows_null)
    config = {
        "bootstrap.servers": bootstrap,
        "max.poll.records": "10000",
        "default.api.timeout.ms": API_TIMEOUT_MS,
        **given,
        **_membership(group, partition, start, until_ms),
    }
    if sys.stdout is None:
        raise Failure("there is nowhere to print records to: stdout is closed")
    reading = Reading(chosen, partition, start, until_ms, exit_at_end, timeout_ms)
    _consume(reading, config, ledger, Printer(write_of, count_max))


def _consume(
    reading: "Reading", config: dict[str, str], ledger: Path | None, printer: "Printer"
) -> None:
    """Read and print. Raises `Failure` for what was left out, and what the consumer raises."""
    from minibroker.cli.data.readers import GroupReader, PartitionReader
    from minibroker.client.blocking import Consumer

    began = time.monotonic()
    left_out: set[TopicPartition] = set()
    member = Consumer(config, ledger=ledger)
    with contextlib.suppress(_Stopped), interruptible(), member as consumer, _stoppable():
        found = _look_up(reading, config, printer)
        left_out = offline_partitions(found, reading.partition, "is not read")
        led = [one for one in _partitions(found, reading.partition) if one not in left_out]
        reader: PartitionReader | GroupReader = (
            GroupReader(consumer, led, reading.topics.pattern)
            if "group.id" in config
            else PartitionReader(consumer, led, reading.until_ms)
        )
        reader.begin(reading.start)
        if reading.ends:
            reader.warn_of_offsets_beyond()
        printer.print_all(reader, consumer, reading)
    names = reading.topics.shown
    seconds = time.monotonic() - began
    note(f"{counted(printer.count, 'record')} consumed from {names} in {seconds:.1f} s")
    if left_out and reading.ends:
        raise Failure(f"{names} was not read whole: {counted(len(left_out), 'partition')} left out")


class Reading(NamedTuple):
    """What is read: from where on, and when it ends. `until_ms` counts from 1970."""

    topics: TopicNames
    partition: int | None
    start: "Start"
    until_ms: int | None
    exits_at_end: bool
    timeout_ms: int | None

    @property
    def ends(self) -> bool:
        """Whether it ends at what is the end when it begins."""
        return self.exits_at_end or self.until_ms is not None


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


def _start_and_end(from_beginning: bool, offsets: list[str]) -> "tuple[Start, int | None]":
    """Return where reading starts, and the time in ms at which it ends, None without one."""
    from minibroker.cli.data.formats import FormatError, Start, parse_end, parse_offset

    try:
        ends = [time_ms for text in offsets if (time_ms := parse_end(text)) is not None]
        starts = [parse_offset(text) for text in offsets if parse_end(text) is None]
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None
    if len(starts) > 1 or len(ends) > 1:
        raise typer.BadParameter("--offset: name one start, and one end (e@TIME) at most")
    if from_beginning and starts:
        raise typer.BadParameter("--from-beginning and --offset both say where to begin: name one")
    begin = Start("beginning" if from_beginning or (ends and not starts) else "end")
    return (starts[0] if starts else begin), (ends[0] if ends else None)


def _membership(
    group: str | None, partition: int | None, start: "Start", until_ms: int | None
) -> dict[str, str]:
    """Return the options of a member. Raises `typer.BadParameter` for options a group decides."""
    if group is None:
        return {}
    if partition is not None:
        raise typer.BadParameter("--partition and --group: a group decides who reads which")
    resets = {"beginning": "earliest", "end": "latest"}
    if start.kind not in resets or until_ms is not None:
        raise typer.BadParameter("--offset and --group: `minibroker group seek` moves a group")
    return {"group.id": one_name("group", group, None), "auto.offset.reset": resets[start.kind]}


def _look_up(reading: Reading, config: dict[str, str], printer: "Printer") -> "list[TopicMetadata]":
    """Return the topics' metadata. Raises `Failure`, and what `Admin` raises."""
    with admin_of(config, "default.api.timeout.ms") as admin:
        names: Sequence[str] = reading.topics.names
        if reading.topics.pattern is not None:
            names = matching_topics(admin, names, reading.topics.pattern)
        found = admin.describe_topics(*names)
        printer.begin(lambda: append_time_topics(admin, names))
    for topic in found:
        check_partition(topic, reading.partition)
    return found


def _partitions(found: "Iterable[TopicMetadata]", partition: int | None) -> "list[TopicPartition]":
    from minibroker.protocol.types import TopicPartition

    return [
        TopicPartition(topic.name, each.partition)
        for topic in found
        for each in topic.partitions
        if partition in (None, each.partition)
    ]


def _writer(format_string: str | None, properties: dict[str, str], shows_null: bool) -> "WriterOf":
    """Return a function that returns what prints a record. It is passed a function that looks up
    the topics whose records have the time at which they were appended."""
    from minibroker.cli.data.console_properties import compile_properties
    from minibroker.cli.data.formats import FormatError, compile_format
    from minibroker.cli.data.json_lines import format_line

    if properties and format_string is not None:
        raise typer.BadParameter("--property and --format both say what to print: name one")
    if shows_null and (properties or format_string == JSON):
        raise typer.BadParameter("-Z is for format strings; JSON and --property show nulls anyway")
    if format_string == JSON:
        return lambda _: format_line
    try:
        if properties:
            plain = compile_properties(properties)
            if properties.get("print.timestamp") != "true":
                return lambda _: plain
            return lambda look_up: compile_properties(properties, look_up())
        null = b"NULL" if shows_null else b""
        write = compile_format(DEFAULT_FORMAT if format_string is None else format_string, null)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None
    return lambda _: write


class Printer:
    """Prints records and counts them; `count_max` None: all."""

    def __init__(self, write_of: "WriterOf", count_max: int | None) -> None:
        self._write_of = write_of
        self._write: Piece | None = None
        self._count_max = count_max
        self.count = 0

    def begin(self, append_time_topics: "Callable[[], Collection[str]]") -> None:
        """Prepare for the records of topics; those that are looked up have append times."""
        self._write = self._write_of(append_time_topics)

    def print_all(
        self, reader: "PartitionReader | GroupReader", consumer: "Consumer", reading: Reading
    ) -> None:
        """Print until there are enough records, the end is reached, or none came for so long."""
        waits_s = math.inf if reading.timeout_ms is None else reading.timeout_ms / 1000
        heard = time.monotonic()
        while not (reading.ends and reader.is_done) and self.count != self._count_max:
            left_s = heard + waits_s - time.monotonic()
            if left_s <= 0:
                return
            records = consumer.poll(min(POLL_S, left_s))
            if records:
                heard = time.monotonic()
            reader.return_unprinted(self._print(reader.wanted(records)))

    def _print(self, records: "list[ConsumerRecord]") -> "list[ConsumerRecord]":
        """Write records out; return those beyond `count_max`."""
        assert self._write is not None
        write = self._write
        room = len(records) if self._count_max is None else self._count_max - self.count
        wanted = records[:room]
        self.count += len(wanted)  # first, because a signal may come while they are printed
        if wanted:
            sys.stdout.buffer.write(b"".join([write(record) for record in wanted]))
            sys.stdout.buffer.flush()
        return records[room:]
