"""The Spark data source `minibroker-log`: the contents of brokers' data directories as tables.

    register(spark)
    spark.read.format("minibroker-log").load("/var/lib/broker-1").where("partition = 0")

The driver lists the directories and packs segments into tasks, since each task has a fixed cost.
The tasks read with the functions of `files.segments` and `files.indexes` and pass Arrow batches to
Spark. Columns are those of model.py; docs/audit.md has the options.

* **Sizes are those of the listing.** A live broker appends meanwhile; those bytes are not read. A
  caller that must know what is read, or needs several tables of the same moment, lists once and
  calls `read_table`. That is no data source: Spark would start three Python processes to plan one.
* **Small directories** (`HERE_BYTES_MAX`) are read in the driver by `read_table`, unless `Scan`
  says otherwise: Spark's Python workers take longer to start than that. On a local master, which
  has no other machine to help, this holds for larger ones, too (`LOCAL_BYTES_MAX`).
* **Large segments** are cut for several tasks where the index file names a batch (`cut_large`).
* **Filters** on broker, topic and partition select logs; filters on records' offsets select
  segments, by their names, and the rows in them. All of that is exact, so Spark does not filter
  again. But an offset filter trusts names: it may miss a record in a segment whose name is wrong.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.functions import broadcast
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from minibroker.audit.checks.local_frames import from_rows, local_frame
from minibroker.audit.files.bodies import check_bodies
from minibroker.audit.files.digests import digest_records
from minibroker.audit.files.directories import (
    LogDirectory,
    Replica,
    SegmentFile,
    UsageError,
    find_brokers,
)
from minibroker.audit.files.indexes import check_indexes, find_cuts
from minibroker.audit.files.records import OFFSET_END, read_records
from minibroker.audit.files.segments import scan_segment
from minibroker.audit.model import (
    BATCHES,
    BODIES,
    INDEX_ENTRIES,
    RECORD_DIGESTS,
    RECORDS,
    REPLICA_FIELDS,
    Scan,
)
from minibroker.audit.session import local_cores
from minibroker.audit.summary import Reading

FORMAT: Final = "minibroker-log"
TABLES: Final = {"batches": BATCHES, "records": RECORDS, "index": INDEX_ENTRIES, "bodies": BODIES}

# Unless an option says otherwise: enough tasks to keep all cores of the executors busy to the end,
# none so small that starting it costs more than its work, none so large that a retry hurts.
_TASKS_PER_CORE: Final = 3
_BYTES_PER_TASK_MIN: Final = 16 << 20
_BYTES_PER_TASK_MAX: Final = 256 << 20
# The cost of opening a segment and building its columns, in bytes that could be read instead.
_SEGMENT_COST: Final = 256 << 10
# Up to how many bytes of segments, and how many segments, the driver reads a table itself. Decoding
# records takes far longer than reading the headers of batches.
HERE_BYTES_MAX: Final = {
    **dict.fromkeys(("batches", "index"), 64 << 20),
    **dict.fromkeys(("bodies", "records"), 16 << 20),
}
# The same if the executors are threads of the driver's own process.
LOCAL_BYTES_MAX: Final = {
    **dict.fromkeys(("batches", "index"), 256 << 20),
    "bodies": 128 << 20,
    "records": 16 << 20,
}
HERE_SEGMENTS_MAX: Final = 5_000
_COPIES: Final = pa.schema([pa.field("source", pa.int32()), *REPLICA_FIELDS])


class OptionError(ValueError):
    """Invalid options of the source; the text says what is valid."""


class Piece(NamedTuple):
    """A segment as it was listed, or a part of one.

    The part is the bytes from `begin` up to the segment's `size`; a batch begins at `begin`.
    """

    replica: Replica
    segment: SegmentFile
    begin: int = 0

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return self.segment.size - self.begin


def register(spark: SparkSession) -> None:
    """Register the format with a session."""
    # Without this setting Spark refuses a reader that takes filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", True)

    # Reads are planned in a process that does not know the session.
    class Source(LogSource):
        cores = spark.sparkContext.defaultParallelism

    spark.dataSource.register(Source)


def read_table(
    spark: SparkSession,
    logs: Iterable[LogDirectory],
    table: str = "batches",
    *,
    scan: Scan = Scan.AUTO,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    kept: pa.Schema | None = None,
    tell: Callable[[Reading], None] = lambda reading: None,
) -> DataFrame:
    """Return a table of the listed logs, up to their listed sizes.

    `keep` filters rows where they are read, or makes rows of the schema `kept` of them. The driver
    reads its part (`is_read_here`) at once; the executors read when Spark runs a query on the
    table, and must see the files under the same paths. `tell` is told who reads.
    """
    pieces = pieces_of(logs)
    size = sum(piece.size for piece in pieces)
    schema = TABLES[table] if kept is None else kept

    def rows(some: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        found = read_pieces(table, some)
        return found if keep is None else map(keep, found)

    master = spark.sparkContext.master or ""
    if is_read_here(master, pieces, table, scan):
        tell(Reading(table, size))
        here = pa.Table.from_batches(rows(pieces), schema)
        return local_frame(spark, here, from_arrow_schema(schema))
    groups = plan_tasks(pieces, table, spark.sparkContext.defaultParallelism)
    tell(Reading(table, size, len(groups)))
    listing = spark.sparkContext.broadcast(groups)  # otherwise each task would carry it

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from rows(listing.value[number])

    numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
    return numbers.mapInArrow(read, from_arrow_schema(schema))


def read_contents(
    spark: SparkSession,
    logs: Sequence[LogDirectory],
    equal: Mapping[Replica, Replica],
    *,
    as_digests: bool,
    scan: Scan = Scan.AUTO,
    tell: Callable[[Reading], None] = lambda reading: None,
) -> DataFrame:
    """Return RECORDS of these logs, or RECORD_DIGESTS. Of large logs with the same batches only one
    is decoded.

    `equal` names it. On running brokers it is empty: they remove segments at different times.
    """
    keep, schema = (digest_records, RECORD_DIGESTS) if as_digests else (None, RECORDS)
    read = partial(read_table, spark, table="records", scan=scan, keep=keep, kept=schema, tell=tell)
    if is_read_here(spark.sparkContext.master or "", pieces_of(logs), "records", scan):
        return read(logs)
    sources = {log.replica: equal.get(log.replica, log.replica) for log in logs}
    decoded = set(sources.values())
    found = read(log for log in logs if log.replica in decoded)
    if len(decoded) == len(logs):
        return found
    rows = [(source.broker, *replica) for replica, source in sources.items()]
    copies = from_rows(spark, _COPIES, rows)
    place = ["source", "topic", "partition"]
    found = found.withColumnRenamed("broker", "source").join(broadcast(copies), place)
    return found.select(*schema.names)


def pieces_of(logs: Iterable[LogDirectory]) -> list[Piece]:
    """Return all segments of a listing, each log's in the order of their names."""
    return [Piece(log.replica, segment) for log in logs for segment in log.segments]


def is_read_here(master: str, pieces: Sequence[Piece], table: str, scan: Scan) -> bool:
    """Whether the driver reads this table of these segments itself, with this Spark master.

    It never holds the records of large logs: they would not fit in its memory.
    """
    if scan is Scan.SPARK:
        return False
    if scan is Scan.DRIVER and table != "records":
        return True
    bytes_max = (HERE_BYTES_MAX if local_cores(master) is None else LOCAL_BYTES_MAX)[table]
    return sum(piece.size for piece in pieces) <= bytes_max and len(pieces) <= HERE_SEGMENTS_MAX


def plan_tasks(
    pieces: Sequence[Piece], table: str, cores: int, bytes_per_task: int | None = None
) -> list[tuple[Piece, ...]]:
    """Return the pieces that each task reads of a table."""
    size = bytes_per_task or task_size(pieces, cores)
    if table != "index":  # an index file is checked against its whole segment
        pieces = [*cut_large(pieces, size)]
    return pack(pieces, size)


def task_size(pieces: Iterable[Piece], cores: int) -> int:
    """Return about how many bytes a task reads on this many cores, if no option sets it."""
    total = sum(piece.size for piece in pieces)
    share = total // (cores * _TASKS_PER_CORE)
    return min(max(share, _BYTES_PER_TASK_MIN), _BYTES_PER_TASK_MAX)


def cut_large(pieces: Iterable[Piece], bytes_per_task: int) -> Iterator[Piece]:
    """Yield the same bytes in the same order, large segments in several pieces."""
    for piece in pieces:
        cuts = find_cuts(piece.segment, bytes_per_task)
        for begin, end in pairwise([piece.begin, *cuts, piece.segment.size]):
            yield Piece(piece.replica, piece.segment._replace(size=end), begin)


def pack(pieces: Iterable[Piece], bytes_per_task: int) -> list[tuple[Piece, ...]]:
    """Return the pieces in groups of about this many bytes, in order; a larger one is alone."""
    groups: list[tuple[Piece, ...]] = []
    group: list[Piece] = []
    left = bytes_per_task
    for piece in pieces:
        cost = piece.size + _SEGMENT_COST
        if group and cost > left:
            groups.append(tuple(group))
            group, left = [], bytes_per_task
        group.append(piece)
        left -= cost
    return [*groups, tuple(group)] if group else groups


def read_pieces(
    table: str, pieces: Iterable[Piece], start: int = 0, end: int = OFFSET_END
) -> Iterator[pa.RecordBatch]:
    """Yield a table's rows of these segments; of records only the offsets [start, end)."""
    for replica, segment, begin in pieces:
        match table:
            case "batches":
                yield from scan_segment(replica, segment, begin=begin)
            case "records":
                yield from read_records(replica, segment, start, end, begin)
            case "index":
                yield check_indexes(replica, segment)
            case "bodies":
                yield check_bodies(replica, segment, begin)


@dataclass(slots=True)
class Selection:
    """The rows that pushed filters keep: values of the replica's columns, offsets [start, end)."""

    has_offsets: bool
    values: dict[str, set[Any]] = field(default_factory=dict)
    start: int = 0
    end: int = OFFSET_END

    def apply(self, wanted: Filter) -> bool:
        """Apply a filter and return True; False if it cannot be applied here exactly."""
        match wanted:
            case IsNotNull(attribute=(column,)):
                return column in Replica._fields or (column == "offset" and self.has_offsets)
            case EqualTo(attribute=(column,), value=value) if column in Replica._fields:
                self._keep(column, {value})
            case In(attribute=(column,), value=values) if column in Replica._fields:
                self._keep(column, set(values))
            case _:
                return self.has_offsets and self._apply_to_offsets(wanted)
        return True

    def _keep(self, column: str, values: set[Any]) -> None:
        self.values[column] = self.values.get(column, values) & values

    def _apply_to_offsets(self, wanted: Filter) -> bool:
        start, end = 0, OFFSET_END
        match wanted:
            case EqualTo(attribute=("offset",), value=int(value)):
                start, end = value, value + 1
            case GreaterThan(attribute=("offset",), value=int(value)):
                start = value + 1
            case GreaterThanOrEqual(attribute=("offset",), value=int(value)):
                start = value
            case LessThan(attribute=("offset",), value=int(value)):
                end = value
            case LessThanOrEqual(attribute=("offset",), value=int(value)):
                end = value + 1
            case _:
                return False
        self.start, self.end = max(self.start, start), min(self.end, end)
        return True

    def choose(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """Yield the segments that can hold selected rows, by their names."""
        for piece, after in zip_longest(pieces, pieces[1:]):
            replica, segment, _ = piece
            if any(getattr(replica, name) not in kept for name, kept in self.values.items()):
                continue
            segment_end = OFFSET_END
            if after is not None and after.replica == replica:
                segment_end = after.segment.base_offset
            if segment.base_offset < self.end and self.start < segment_end:
                yield piece


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of one read."""

    table: str
    paths: tuple[str, ...]
    bytes_per_task: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Parse the options of a read. Raises OptionError."""
        known = ("path", "paths", "table", "bytesPerTask")
        names = {name.lower() for name in known}
        if unknown := [name for name in given if name.lower() not in names]:
            raise OptionError(f"{FORMAT} has no option {unknown[0]}: it has {', '.join(known)}")
        table = given.get("table", "batches")
        if table not in TABLES:
            raise OptionError(f"{FORMAT} has no table {table}: it has {', '.join(TABLES)}")
        size = given.get("bytesPerTask")
        if size is not None and not (size.isascii() and size.isdigit() and int(size) > 0):
            raise OptionError(f"bytesPerTask is a number of bytes above 0, not {size!r}")
        paths = tuple(json.loads(given.get("paths", "[]")))
        if path := given.get("path"):
            paths = (path, *paths)
        if not paths:
            raise OptionError(
                f"{FORMAT} reads brokers' data directories: name one, or a directory of them,"
                ' as .load("...")'
            )
        return cls(table, paths, int(size) if size else None)

    def list(self) -> list[Piece]:
        """Return the segments to read, as they are now. Raises OptionError."""
        try:
            brokers = find_brokers([Path(path) for path in self.paths])
        except UsageError as error:
            raise OptionError(str(error)) from None
        if unreadable := [problem for broker in brokers for problem in broker.problems]:
            raise OptionError(f"cannot read {unreadable[0].path}: {unreadable[0].reason}")
        if not (pieces := pieces_of(log for broker in brokers for log in broker.logs)):
            found = ", ".join(str(broker.path) for broker in brokers)
            raise OptionError(f"there are no logs in {found}: nothing was produced yet?")
        return pieces


class LogSource(DataSource):
    """The data source; see the module's docstring. `cores` is the total of all executors."""

    cores = os.cpu_count() or 1

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the requested table."""
        return from_arrow_schema(TABLES[Options.parse(self.options).table])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of that table; any other schema than the table's is refused."""
        if schema != self.schema():
            raise OptionError(f"the columns of {FORMAT} are fixed: leave out .schema(...)")
        return LogReader(Options.parse(self.options), self.cores)


class LogReader(DataSourceReader):
    """Plans on the driver, reads in tasks. It is sent with each task, so it holds no listing."""

    def __init__(self, options: Options, cores: int) -> None:
        self._options = options
        self._cores = cores
        self._selection = Selection(has_offsets=options.table == "records")

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that can be applied here; return the rest to Spark."""
        return [wanted for wanted in filters if not self._selection.apply(wanted)]

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task: a tuple of pieces."""
        pieces = list(self._selection.choose(self._options.list()))
        groups = plan_tasks(pieces, self._options.table, self._cores, self._options.bytes_per_task)
        return [InputPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's segments; the value is None if Spark had no partitions."""
        start, end = self._selection.start, self._selection.end
        return read_pieces(self._options.table, partition.value or (), start, end)
