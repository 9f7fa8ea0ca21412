"""`minibroker consume TOPIC`: records to stdout, each by a format string.

It starts at the end of the topic unless told otherwise, as Kafka's console consumer does, and runs
until it is stopped, has enough records, or has reached the end. SIGINT and SIGTERM are the normal
way out of an endless read: exit code 0.
"""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Interrupted,
    TopicArgument,
    TopicOption,
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
    str,
    typer.Option(
        "--offset", "-o", metavar="OFFSET", help="beginning, end, N, -N (last N) or s@TIME."
    ),
]
Partition = Annotated[int | None, typer.Option("--partition", "-p", help="Only this partition.")]
CountMax = Annotated[
    int | None, typer.Option("--max-messages", "-c", min=0, help="Stop after so many.")
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit-at-end", "-e", help="Stop at what was the end when it began.")
]
FormatString = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="%t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers,"
        " %K and %S sizes of key and value; \\n, \\t.",
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


def consume(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    from_beginning: FromBeginning = False,
    offset: Offset = "end",
    partition: Partition = None,
    count_max: CountMax = None,
    exit_at_end: ExitAtEnd = False,
    format_string: FormatString = DEFAULT_FORMAT,
    properties: Properties = None,
    options: Options = None,
) -> None:
    """Print records; by default those that arrive from now on."""
    from minibroker.cli.formats import FormatError, compile_format, format_of, parse_offset
    from minibroker.client.blocking import Consumer

    name = one_topic(topic, topic_option)
    try:
        start = parse_offset("beginning" if from_beginning else offset)
        given = pairs(properties or [], "--property")
        write = compile_format(format_of(given) if given else format_string)
    except FormatError as error:
        raise typer.BadParameter(str(error)) from None
    config = {
        "bootstrap.servers": bootstrap,
        "allow.auto.create.topics": "false",
        "max.poll.records": "10000",
        **pairs(options or [], "--consumer-property"),
    }
    count = 0
    began = time.monotonic()
    with contextlib.suppress(Interrupted), interruptible(), Consumer(config) as consumer:
        reader = Reader(consumer, name, partition, exit_at_end)
        reader.begin(start)
        while not reader.is_done and count != count_max:
            records = consumer.poll(POLL_S)
            if count_max is not None:
                records = records[: count_max - count]
            count += len(records)  # first, because a signal may come while they are printed
            _print(write, records)
    note(f"{count:,} records consumed from {name} in {time.monotonic() - began:.1f} s")


class Reader:
    """Which partitions are read, from where, and to where."""

    def __init__(
        self, consumer: "Consumer", topic: str, partition: int | None, exit_at_end: bool
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partition = partition
        self._exit_at_end = exit_at_end
        self._ends: dict[TopicPartition, int] = {}

    def begin(self, start: "Start") -> None:
        """Assign the partitions and go to where the reading starts."""
        from minibroker.protocol.types import TopicPartition

        consumer = self._consumer
        if self._partition is None:
            names = consumer.assign_topics(self._topic)
        else:
            names = [TopicPartition(self._topic, self._partition)]
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

    @property
    def is_done(self) -> bool:
        """Whether everything was read that was there at the beginning, and that is enough."""
        return self._exit_at_end and all(
            (self._consumer.position(name) or 0) >= end for name, end in self._ends.items()
        )


def _print(write: "Piece", records: "list[ConsumerRecord]") -> None:
    if records:
        sys.stdout.buffer.write(b"".join([write(record) for record in records]))
        sys.stdout.buffer.flush()
