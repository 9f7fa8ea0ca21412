"""Writing a DataFrame to topics over the network, as a batch or as a stream.

Each task has its own producer, idempotent and with acks=all, and reports to Spark that it is done
once every record is acknowledged; a record that is not fails the task. So nothing is lost. Sent
records cannot be taken back, so a task or a micro-batch that Spark runs again, after an error or a
crash, writes them again: delivery is at least once. A producer's retries make no duplicates.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from minibroker.audit.network.options import WriteOptions
from minibroker.client.blocking import Producer

# The columns that a DataFrame may have, and their types in Spark's names. `offset` is not written,
# since the broker assigns offsets; it is allowed, so that a table that was read can be written.
_COLUMNS: Final = {
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
}

log = logging.getLogger("minibroker.audit")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to Spark once all its records are acknowledged."""

    record_count: int


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise ValueError if a DataFrame of this schema cannot be written."""
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise ValueError(
                f"column {field.name!r} is none of a record's ({', '.join(_COLUMNS)}): drop it"
            )
        found, allowed = field.dataType.simpleString(), _COLUMNS[field.name]
        if found not in allowed:
            raise ValueError(
                f"column {field.name!r} is {found}, but must be {' or '.join(allowed)}"
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise ValueError("there is no column 'value'")
    if options.topic is None and "topic" not in names:
        raise ValueError("where to write to is not said: set the option or make a column 'topic'")


def write_batches(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Written:
    """Send all records and wait until they are acknowledged. Raises client errors, ValueError."""
    count = 0
    with Producer(options.client) as producer:
        for batch in batches:
            for record in zip(*_columns(batch, options), strict=True):
                producer.send(*record)
            count += batch.num_rows
        producer.flush()
    return Written(count)


def _columns(batch: pa.RecordBatch, options: WriteOptions) -> list[Sequence[Any]]:
    """Return the arguments of `send`, each for all records."""
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    nothing = [None] * batch.num_rows

    def column(name: str, kind: pa.DataType) -> Sequence[Any]:
        array = given.get(name)
        return nothing if array is None else array.cast(kind).to_pylist()

    topics: Sequence[Any] = [options.topic] * batch.num_rows
    if options.topic is None:
        topics = column("topic", pa.string())
        if None in topics:
            raise ValueError("a record's topic is null, and the option 'topic' is not set")
    headers: Sequence[Any] = [()] * batch.num_rows
    if "headers" in given:
        headers = [
            tuple((each["key"], each["value"]) for each in row or ())
            for row in given["headers"].to_pylist()
        ]
    times = nothing
    if "timestamp" in given:
        micros = given["timestamp"].cast(pa.int64()).to_pylist()
        times = [None if each is None else each // 1000 for each in micros]
    values, keys = column("value", pa.binary()), column("key", pa.binary())
    return [topics, values, keys, headers, column("partition", pa.int32()), times]


def _log_written(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    counts = [each.record_count for each in messages if isinstance(each, Written)]
    log.info("%s: %d records written by %d tasks", what, sum(counts), len(counts))


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the records of a task."""
        return write_batches(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the records written; every task is done."""
        _log_written(messages, "batch")


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the records of a task."""
        return write_batches(iterator, self._options)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Log the records written; every task of a micro-batch is done."""
        _log_written(messages, f"micro-batch {batchId}")
