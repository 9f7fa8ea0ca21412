"""Reading topics over the network: the work of a Spark task, and the batch source.

A task reads one range of offsets of one partition, [start, end), with its own consumer, and yields
each poll's records as one Arrow batch. It ends when the consumer's position reaches the end, which
may lie behind the last record: compaction leaves offsets without one. Whatever ends the iterator,
such as a query that needs no more rows, closes the consumer: it lives in the `with` of the
generator.

A range that the log no longer holds is never skipped silently. By default the task fails and says
what is missing; with `failOnDataLoss=false` it reads what is left of the range. A task waits for a
broker that does not answer as long as the client's `default.api.timeout.ms`, counted from the last
progress.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from minibroker.audit.model import RECORDS
from minibroker.audit.network.options import (
    EARLIEST,
    LATEST,
    Offsets,
    ReadOptions,
    pieces,
    spread,
)
from minibroker.client.blocking import Consumer
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition

# The columns of RECORDS without the broker; times are timestamps, for watermarks and windows.
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("timestamp", TIMESTAMP) if field.name == "timestamp" else field
        for field in RECORDS
        if field.name != "broker"
    ]
)
SCHEMA: Final[StructType] = from_arrow_schema(ARROW_SCHEMA)
WITHOUT_HEADERS: Final = StructType([field for field in SCHEMA if field.name != "headers"])
MILLISECONDS_MAX: Final = (2**63 - 1) // 1000  # of a timestamp in Spark

# default.api.timeout.ms if the user has set none, and how long one poll takes.
TIMEOUT_MS: Final = 60_000
LOOK_MS: Final = 500

GONE: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

log = logging.getLogger("minibroker.audit")


class DataLoss(Exception):
    """Records that were to be read are gone; the text says which, and what can be done."""


class ReadTimeout(Exception):
    """No progress within default.api.timeout.ms."""


@dataclass(frozen=True)
class Range(InputPartition):
    """The range of offsets that one task reads; `start` may be EARLIEST."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def name(self) -> TopicPartition:
        """The partition of the topic."""
        return TopicPartition(self.topic, self.partition)


def plan_ranges(start: Offsets, end: Offsets, split: int) -> list[Range]:
    """Return a task for each partition with records to read, or `split` tasks or more."""
    sizes = {name: max(0, end[name] - max(0, start[name])) for name in end}
    total = sum(sizes.values())
    ranges = []
    for name, size in sizes.items():
        count = pieces(size, total, split)
        first = max(0, start[name])
        cuts = [first + size * at // count for at in range(count)]
        if cuts and start[name] == EARLIEST:
            cuts[0] = EARLIEST
        ranges += [
            Range(*name, low, high) for low, high in zip(cuts, [*cuts[1:], end[name]], strict=False)
        ]
    return ranges


def read_range(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield a range's records, as ARROW_SCHEMA. Raises DataLoss, ReadTimeout, client errors."""
    name = wanted.name
    with Consumer(options.client) as consumer:
        if name not in existing(consumer, options, [wanted.topic]):
            report_loss(options, f"{name} does not exist (any more)")
            return
        consumer.assign([name])
        position, end = _bounds(consumer, options, wanted)
        consumer.seek(name, position)
        looks_left = looks = _timeout_ms(options) // LOOK_MS + 1
        while position < end:
            records = consumer.poll(LOOK_MS / 1000)
            if records and records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            if records:
                batch = _to_arrow(list(zip(*records, strict=True)))
                yield batch if options.has_headers else batch.drop_columns(["headers"])
            before, position = position, consumer.position(name) or position
            looks_left = looks if position != before else looks_left - 1
            if not looks_left:
                raise ReadTimeout(
                    f"nothing of {name} at offset {position}, to be read to {end}, came within"
                    f" default.api.timeout.ms ({_timeout_ms(options)})"
                )


def _timeout_ms(options: ReadOptions) -> int:
    return int(options.client.get("default.api.timeout.ms", TIMEOUT_MS))


def _bounds(consumer: Consumer, options: ReadOptions, wanted: Range) -> tuple[int, int]:
    """Return start and end of the part of a range that can be read."""
    name = wanted.name
    log_start = consumer.beginning_offsets(name)[name]
    log_end = consumer.end_offsets(name)[name]
    start = log_start if wanted.start == EARLIEST else wanted.start
    if start < log_start:
        report_loss(
            options, f"{name} was to be read from offset {start} on, but begins at {log_start}"
        )
    if wanted.end > log_end:
        report_loss(
            options, f"{name} was to be read up to offset {wanted.end}, but ends at {log_end}"
        )
    return max(start, log_start), min(wanted.end, log_end)


def existing(
    consumer: Consumer, options: ReadOptions, topics: Iterable[str]
) -> list[TopicPartition]:
    """Return the partitions of the topics; a topic that no longer exists is a data loss."""
    names: list[TopicPartition] = []
    for topic in topics:
        try:
            names += consumer.assign_topics(topic)
        except BrokerError as error:
            if error.code != GONE:
                raise
            report_loss(options, f"topic {topic!r} does not exist (any more)")
    return names


def chosen_partitions(consumer: Consumer, options: ReadOptions) -> list[TopicPartition]:
    """Return the partitions to read, as of now.

    Raises BrokerError for a missing topic, ValueError for an assigned partition that is missing.
    """
    there = consumer.assign_topics(*options.topics)
    if options.assigned is None:
        return there
    if missing := options.assigned.difference(there):
        names = ", ".join(map(str, sorted(missing)))
        raise ValueError(f"assign names partitions that do not exist: {names}")
    return sorted(options.assigned)


def starting_offsets(
    consumer: Consumer, options: ReadOptions, names: Sequence[TopicPartition]
) -> Offsets:
    """Return where reading begins; by `startingOffsets` this may be EARLIEST or LATEST."""
    if options.starting_times is None:
        return spread("startingOffsets", options.starting, names)
    times = spread("startingOffsetsByTimestamp", options.starting_times, names)
    found = offsets_of_times(consumer, times)
    if not options.at_end_without_record:
        ends = consumer.end_offsets(*names)
        late = [str(name) for name in names if found[name] >= ends[name]]
        if late:
            raise ValueError(
                f"no record of {', '.join(late)} is as late as asked; to begin at the end there,"
                " set startingOffsetsByTimestampStrategy to latest"
            )
    return found


def offsets_of_times(consumer: Consumer, times: Mapping[TopicPartition, int]) -> Offsets:
    """Return the offset of each partition's first record at its time or later, or its end."""
    found: Offsets = {}
    consumer.assign(times)
    for name, time_ms in times.items():
        consumer.seek_to_time(time_ms, name)
        position = consumer.position(name)
        assert position is not None, "a partition that was sought has a position"
        found[name] = position
    return found


def report_loss(options: ReadOptions, what: str) -> None:
    """Raise DataLoss, or only warn if `failOnDataLoss` is false."""
    if options.fails_on_data_loss:
        raise DataLoss(f"{what}; to go on without what is gone, set failOnDataLoss to false")
    log.warning("%s; going on, as failOnDataLoss is false", what)


def _to_arrow(columns: Sequence[Sequence[object]]) -> pa.RecordBatch:
    """Return one batch; a time that a timestamp cannot hold, or that is not set (-1), is null."""
    arrays = [
        _to_timestamps(column) if field.name == "timestamp" else pa.array(column, field.type)
        for field, column in zip(ARROW_SCHEMA, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _to_timestamps(times_ms: Sequence[object]) -> pa.Array:
    times = numpy.array(times_ms, numpy.int64)
    is_null = (times < 0) | (times > MILLISECONDS_MAX)
    microseconds = numpy.where(is_null, 0, times) * 1000
    return pa.array(microseconds, pa.int64(), mask=is_null).cast(TIMESTAMP)


class BatchReader(DataSourceReader):
    """The reader of `spark.read`: the offsets are fixed when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        options = self._options
        with Consumer(options.client) as consumer:
            names = chosen_partitions(consumer, options)
            start = starting_offsets(consumer, options, names)
            end = spread("endingOffsets", options.ending, names)
            if options.ending_times is not None:
                times = spread("endingOffsetsByTimestamp", options.ending_times, names)
                end = offsets_of_times(consumer, times)
            if EARLIEST in start.values():
                begins = consumer.beginning_offsets(*names)
                start = {name: begins[name] if start[name] < 0 else start[name] for name in names}
            if LATEST in end.values():
                ends = consumer.end_offsets(*names)
                end = {name: ends[name] if end[name] < 0 else end[name] for name in names}
        for name in names:
            if start[name] > end[name]:
                raise ValueError(
                    f"{name} is to be read from offset {start[name]} to {end[name]}, which is"
                    " before it"
                )
        return plan_ranges(start, end, options.split)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        if isinstance(partition, Range):  # without partitions, Spark makes up a task
            yield from read_range(self._options, partition)
