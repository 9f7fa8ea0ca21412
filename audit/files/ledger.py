"""Ledgers, the files in which clients record what was acknowledged and shown, as rows of LEDGER.

A ledger is JSON, one object per line: those of our producer and consumer (client/ledger.py), and
those of Kafka's verifiable producer and consumer, so that the same checks can judge a run against
real Kafka. Lines with a name that is not listed below are ignored.

* `producer_send_success` is "acked", `producer_send_error` is "failed": a failed record may or may
  not be stored. Kafka's tool writes no partition of a failed record, and no `acks`; they are read
  as -1, all, which is that tool's own default and the strictest reading.
* `record_data` is "shown" to a consumer. `records_consumed` has only offsets: the first and the
  last of a poll are "shown-offset", which say that a record was there, but not which.
* `offsets_committed` is "committed", one row per partition, if it names the group (Kafka's does
  not) and the commit succeeded; "refused" if it did not. `position_set` is "jumped": a member goes
  on at the offset, and leaves out on purpose what lies before it.
* `startup_complete` and `shutdown_complete` are "began" and "ended": a ledger without an end is
  that of a program that crashed, and may have sent more than it wrote down. If it begins without
  idempotence, it is "repeating", too: a record may be stored more often than the program sent it.
  If it begins with the `isolation` "read_committed", it is "isolated": its consumer was to get no
  record of a transaction that was aborted or is open.
* A line that is no complete object, as a crashed program leaves it, is "torn" if it is the last
  line or precedes a `startup_complete`. Any other invalid line is "unreadable". Both are rows, so
  that counts include them.
* `topicId` distinguishes topics of the same name; ledgers of older clients, and Kafka's, have none.

Text stands for bytes: UTF-8, with surrogate escapes for other bytes. Spark's own JSON reader
corrupts these. The lines are read in chunks that end at the end of a line. Arrow parses a chunk in
which all lines are what they should be, without surrogate escapes, into columns; Python parses any
other chunk, line by line if it must, at ten times the cost. To know the line numbers, a large file
is first read as a whole, at a tenth of the cost of parsing by Arrow. The paths must mean the same
on all machines of the Spark cluster.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from minibroker.audit.arrow import compute as pc
from minibroker.audit.files.digests import digest_ledger
from minibroker.audit.files.regular import open_file
from minibroker.audit.model import LEDGER, LEDGER_DIGESTS, Scan
from minibroker.audit.summary import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_BYTES: Final = 8 << 20
# The driver itself parses up to this many bytes: Spark's Python workers take longer to start.
HERE_BYTES_MAX: Final = 16 << 20
BEGINNING: Final = "startup_complete"
_BLOCK_BYTES: Final = 1 << 20
ACKS_ALL: Final = -1
# The exceptions raised by lines that are not JSON, or lack the fields of a ledger.
_NOT_A_LEDGER: Final = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    OverflowError,
    pa.ArrowException,
)

# A row of LEDGER; the readers of a line leave out `ledger` and `line`.
Row: TypeAlias = tuple[Any, ...]


class Event(StrEnum):
    """The kind of a ledger's row; see the module's docstring."""

    ACKED = "acked"
    FAILED = "failed"
    SHOWN = "shown"
    SHOWN_OFFSET = "shown-offset"
    COMMITTED = "committed"
    REFUSED = "refused"
    JUMPED = "jumped"
    BEGAN = "began"
    REPEATING = "repeating"
    ISOLATED = "isolated"
    ENDED = "ended"
    TORN = "torn"
    UNREADABLE = "unreadable"


# Their offsets are those of commits and positions, not of records.
OF_GROUPS: Final = (Event.COMMITTED, Event.REFUSED, Event.JUMPED)
_SHOWN: Final = "record_data"
_FAILED: Final = "producer_send_error"
# The lines that are about one record, and the fields of theirs that a row has.
_EVENTS: Final = {
    "producer_send_success": Event.ACKED.value,
    _FAILED: Event.FAILED.value,
    _SHOWN: Event.SHOWN.value,
}
_LINE: Final = pa.schema(
    [
        ("name", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("acks", pa.int16()),
        ("timestamp", pa.int64()),
        ("topicId", pa.string()),
        ("group", pa.string()),
        ("member", pa.string()),
        ("generation", pa.int32()),
        ("error", pa.string()),
    ]
)
_NULLABLE: Final = (b'"key":', b'"value":')


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a ledger: the bytes from `begin` up to `end`, and the first line's number."""

    path: str
    begin: int
    end: int
    first_line: int


def ledger_chunks(
    paths: Sequence[Path], chunk_bytes: int = CHUNK_BYTES
) -> tuple[list[Chunk], list[str]]:
    """Return the chunks of these files, and a sentence for each file that cannot be read."""
    chunks: list[Chunk] = []
    problems = []
    for path in dict.fromkeys(map(os.path.realpath, paths)):  # each file counts once
        try:
            with open_file(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
                chunks += _chunks_of(path, file, chunk_bytes)
                if not chunks or chunks[-1].path != path:
                    problems.append(f"the ledger {path} is empty")
        except OSError as error:
            problems.append(f"the ledger {path} cannot be read: {error.strerror or error}")
    return chunks, problems


def without_copies(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the ledgers, each once, and a sentence for each that has only lines of another one.

    A ledger under two names would count each record twice, and hide that a log holds it twice. A
    copy is the same file, or one with the same contents, or with the beginning of them.
    """
    kept: list[Path] = []
    notes = []
    for path in sorted(dict.fromkeys(paths), key=_size_of, reverse=True):
        if original := next((other for other in kept if _is_beginning_of(path, other)), None):
            notes.append(f"{path} has only lines that {original} has, too; they count once.")
        else:
            kept.append(path)
    return [path for path in dict.fromkeys(paths) if path in kept], notes


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_beginning_of(path: Path, other: Path) -> bool:
    """Whether a ledger has the bytes with which another one, of at least its size, begins."""
    try:
        if path.samefile(other):
            return True
        with open_file(path) as mine, open_file(other) as theirs:
            at = 0
            while block := os.pread(mine, _BLOCK_BYTES, at):
                if block != os.pread(theirs, len(block), at):
                    return False
                at += len(block)
            return at > 0
    except OSError:
        return False  # reading it says what is wrong


def ledger_table(
    spark: "SparkSession",
    chunks: Sequence[Chunk],
    *,
    scan: Scan = Scan.AUTO,
    tell: Callable[[Reading], None] = lambda reading: None,
) -> "DataFrame":
    """Return all rows of the ledgers, as LEDGER; `tell` is told who reads them.

    The driver parses only small ones: the rows of large ones would not fit in its memory.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from minibroker.audit.checks.local_frames import local_frame

    if is_ledger_read_here(chunks, scan):
        tell(Reading("ledgers", _size(chunks)))
        batches = [rows for chunk in chunks for rows in read_chunk(chunk)]
        return local_frame(spark, pa.Table.from_batches(batches, LEDGER), from_arrow_schema(LEDGER))
    tell(Reading("ledgers", _size(chunks), len(chunks)))
    return _read_by_tasks(spark, chunks, LEDGER)


def ledger_digests(spark: "SparkSession", chunks: Sequence[Chunk]) -> "DataFrame":
    """Return the digests of all rows of the ledgers, as LEDGER_DIGESTS, by Spark's tasks."""
    return _read_by_tasks(spark, chunks, LEDGER_DIGESTS, digest_ledger)


def is_ledger_read_here(chunks: Sequence[Chunk], scan: Scan) -> bool:
    """Whether the driver parses these ledgers itself."""
    return scan is not Scan.SPARK and _size(chunks) <= HERE_BYTES_MAX


def _size(chunks: Iterable[Chunk]) -> int:
    return sum(chunk.end - chunk.begin for chunk in chunks)


def _read_by_tasks(
    spark: "SparkSession",
    chunks: Sequence[Chunk],
    schema: pa.Schema,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> "DataFrame":
    from pyspark.sql.pandas.types import from_arrow_schema

    listing = spark.sparkContext.broadcast(tuple(chunks))  # otherwise each task would carry it

    def rows(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found = read_chunk(listing.value[number])
                yield from found if keep is None else map(keep, found)

    numbers = spark.range(0, len(chunks), 1, max(1, len(chunks)))
    return numbers.mapInArrow(rows, from_arrow_schema(schema))


def read_chunk(chunk: Chunk) -> list[pa.RecordBatch]:
    """Return the rows of LEDGER for a chunk's lines."""
    with Path(chunk.path).open("rb") as file:
        file.seek(chunk.begin)
        data = file.read(chunk.end - chunk.begin)
        behind = next((line for line in file if line.strip()), b"")
    rows = read_columns(chunk.path, data, chunk.first_line)
    if rows is not None:
        return [rows]
    return ledger_rows(chunk.path, data.split(b"\n"), chunk.first_line, behind)


def read_columns(ledger: str, data: bytes, first_line: int = 1) -> pa.RecordBatch | None:
    """Return what `ledger_rows` returns for these lines, as one batch; None if Arrow might read a
    line otherwise than Python does."""
    count = data.count(b"}\n{") + 1
    # Each line is from "{" to "}", so valid JSON has no object across lines.
    if not data.startswith(b"{") or not data.endswith((b"}", b"}\n")):
        return None
    if data.count(b"\n") - data.endswith(b"\n") != count - 1:
        return None
    options = {
        "read_options": pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        "parse_options": pa_json.ParseOptions(
            explicit_schema=_LINE, unexpected_field_behavior="ignore"
        ),
    }
    try:
        data.decode()
        lines = pa_json.read_json(pa.py_buffer(data), **options).combine_chunks()
        if lines.num_rows != count:
            return None
        numbers = pa.array(np.arange(first_line, first_line + count))
        is_record = pc.is_in(lines["name"], pa.array(_EVENTS))
        others = _other_lines(data, is_record, first_line)
        lines = lines.append_column("line", numbers).filter(is_record)
        if not _is_complete(lines, data, others):
            return None
        rows = [(ledger, number, *row) for number, line in others for row in _rows_of(line)]
        return _in_lines([_batch_of_columns(ledger, lines), _batch(rows)])
    except _NOT_A_LEDGER:
        return None


def _other_lines(
    data: bytes, is_record: pa.ChunkedArray, first_line: int
) -> list[tuple[int, bytes]]:
    """Return the lines that are not about one record, with their numbers."""
    if pc.all(is_record).as_py():
        return []
    lines = data.split(b"\n")
    at = np.flatnonzero(~is_record.to_numpy())
    return [(first_line + int(number), lines[number]) for number in at]


def _rows_of(line: bytes) -> list[Row]:
    entry = json.loads(line)
    read = _READERS.get(entry.get("name"))
    return read(entry) if read else []


def _is_complete(lines: pa.Table, data: bytes, others: Sequence[tuple[int, bytes]]) -> bool:
    """Whether these lines have all the fields that they need. Arrow has null for absent ones, too,
    so the names are counted."""
    for name in _NULLABLE:
        inside = b"\\" + name  # the end of another name or of a value
        found = data.count(name) - data.count(inside)
        found -= sum(line.count(name) - line.count(inside) for _, line in others)
        if found != lines.num_rows:
            return False
    is_placed = pc.or_(pc.is_valid(lines["partition"]), pc.equal(lines["name"], _FAILED))
    is_shown = pc.equal(lines["name"], _SHOWN)
    has_offset = pc.or_(pc.is_valid(lines["offset"]), pc.invert(is_shown))
    wanted = (pc.is_valid(lines["topic"]), is_placed, has_offset)
    return all(pc.all(each, min_count=0).as_py() for each in wanted)


def _batch_of_columns(ledger: str, lines: pa.Table) -> pa.RecordBatch:
    """Return the rows of lines that are each about one record, as `_acked`, `_failed`, `_shown`."""
    is_failed = pc.equal(lines["name"], _FAILED)
    was_sent = pc.invert(pc.and_(is_failed, pc.fill_null(pc.equal(lines["partition"], -1), False)))
    lines = lines.filter(was_sent)
    is_failed, is_shown = (pc.equal(lines["name"], name) for name in (_FAILED, _SHOWN))
    is_unknown = pc.or_(is_failed, pc.and_(pc.less(lines["offset"], 0), pc.invert(is_shown)))
    names = pa.array(_EVENTS)
    events = pa.array(_EVENTS.values(), pa.string())
    columns = {
        "ledger": pa.repeat(pa.scalar(ledger, pa.string()), lines.num_rows),
        "line": lines["line"],
        "event": events.take(pc.index_in(lines["name"], names)),
        "acks": pc.fill_null(lines["acks"], ACKS_ALL),
        "topic": lines["topic"],
        "partition": lines["partition"],
        "offset": pc.if_else(pc.fill_null(is_unknown, True), None, lines["offset"]),
        "key": lines["key"].cast(pa.binary()),
        "value": lines["value"].cast(pa.binary()),
        "timestamp": lines["timestamp"],
        "topic_id": lines["topicId"],
        **{name: lines[name] for name in ("group", "member", "generation", "error")},
    }
    return _one_batch(pa.table(columns, schema=LEDGER))


def _in_lines(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches in the order of their lines."""
    filled = [each for each in batches if each.num_rows]
    rows = pa.Table.from_batches(filled, LEDGER)
    if len(filled) > 1:
        rows = rows.take(np.argsort(rows["line"].to_numpy(), kind="stable"))
    return _one_batch(rows)


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in rows.columns], schema=LEDGER
    )


def ledger_rows(
    ledger: str, lines: Iterable[bytes], first_line: int = 1, behind: bytes = b""
) -> list[pa.RecordBatch]:
    """Return the rows of LEDGER for some lines; most make one, some none or two.

    `behind` is the line that follows them, empty if there is none. All lines are parsed as one,
    which is fast. If that fails, each half is tried separately, down to the faulty line.
    """
    numbered = [(number, line) for number, line in enumerate(lines, first_line) if line.strip()]
    return _batches_of(ledger, numbered, behind)


def _batches_of(
    ledger: str, lines: Sequence[tuple[int, bytes]], behind: bytes
) -> list[pa.RecordBatch]:
    try:
        return [_batch_of(ledger, lines)]
    except _NOT_A_LEDGER:
        if len(lines) > 1:
            half = len(lines) // 2
            first = _batches_of(ledger, lines[:half], lines[half][1])
            return first + _batches_of(ledger, lines[half:], behind)
        number, line = lines[0]
        is_cut = line.startswith(b"{") and not line.rstrip().endswith(b"}")
        is_cut &= not behind or _is_beginning(behind)
        return [_batch([(ledger, number, *_bare(Event.TORN if is_cut else Event.UNREADABLE))])]


def _is_beginning(line: bytes) -> bool:
    """Whether this line is the one with which a program begins."""
    try:
        return bool(json.loads(line)["name"] == BEGINNING)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _batch_of(ledger: str, lines: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    entries = json.loads(b"[%s]" % b",".join([line for _, line in lines]))
    rows = []
    for (number, _), each in zip(lines, entries, strict=True):  # a line holds one object
        if read := _READERS.get(each.get("name")):
            rows += [(ledger, number, *row) for row in read(each)]
    return _batch(rows)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(LEDGER)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LEDGER, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LEDGER)


def _chunks_of(path: str, file: IO[bytes], chunk_bytes: int) -> list[Chunk]:
    status = os.fstat(file.fileno())
    chunks = []
    begin, first_line = 0, 1
    while begin < status.st_size:
        end, next_line = status.st_size, first_line
        if end - begin > chunk_bytes:
            next_line += _count_lines(file, chunk_bytes)
            end = min(file.tell(), status.st_size)
        chunks.append(Chunk(path, begin, end, first_line))
        begin, first_line = end, next_line
    return chunks


def _count_lines(file: IO[bytes], size: int) -> int:
    """Read this many bytes and up to the end of the line there; return how many lines that were."""
    count = 0
    while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
        count += block.count(b"\n")
        size -= len(block)
    return count + file.readline().endswith(b"\n")


# -- an object: its rows without the first two columns. Arrow checks the types that these let pass.


def _bare(event: Event, group: str | None = None) -> Row:
    return (event, *[None] * 8, group, None, None, None)


def _acked(entry: dict[str, Any]) -> list[Row]:
    offset = entry.get("offset")
    if offset is not None and index(offset) < 0:
        offset = None  # unknown: acks=0, or a repetition that the broker no longer remembers
    return [_row(Event.ACKED, entry, index(entry["partition"]), offset)]


def _failed(entry: dict[str, Any]) -> list[Row]:
    partition = entry.get("partition")
    if partition == -1:
        return []  # no partition was chosen yet, so it was never sent
    return [_row(Event.FAILED, entry, partition, None)]


def _shown(entry: dict[str, Any]) -> list[Row]:
    return [_row(Event.SHOWN, entry, index(entry["partition"]), index(entry["offset"]))]


def _shown_offsets(entry: dict[str, Any]) -> list[Row]:
    rows = []
    for each in entry["partitions"]:
        bare: dict[str, Any] = {"topic": each["topic"], "key": None, "value": None}
        bare |= {"timestamp": entry.get("timestamp"), "topicId": each.get("topicId")}
        partition = index(each["partition"])
        offsets = {index(each["minOffset"]), index(each["maxOffset"])}
        rows += [_row(Event.SHOWN_OFFSET, bare, partition, offset) for offset in sorted(offsets)]
    return rows


def _committed(entry: dict[str, Any]) -> list[Row]:
    group = entry.get("group")
    if group is None:
        return []
    event = Event.COMMITTED if entry.get("success", True) else Event.REFUSED
    generation = entry.get("generation")
    by = {name: entry.get(name) for name in ("timestamp", "group", "member")}
    by |= {"generation": None if generation is None else index(generation)}
    by |= {"key": None, "value": None, "error": entry.get("error")}
    if event is Event.REFUSED:  # what was refused need not be known
        return [_row(event, by | each, index(each["partition"]), None) for each in entry["offsets"]]
    return [
        _row(event, by | each, index(each["partition"]), index(each["offset"]))
        for each in entry["offsets"]
    ]


def _jumped(entry: dict[str, Any]) -> list[Row]:
    if entry.get("group") is None:
        return []
    bare = {"key": None, "value": None} | entry
    return [_row(Event.JUMPED, bare, index(entry["partition"]), index(entry["offset"]))]


def _began(entry: dict[str, Any]) -> list[Row]:
    repeating = [_bare(Event.REPEATING)] if entry.get("idempotence") is False else []
    isolated = [_bare(Event.ISOLATED)] if entry.get("isolation") == "read_committed" else []
    return [_bare(Event.BEGAN, entry.get("group")), *repeating, *isolated]


_READERS: Final[dict[object, Callable[[dict[str, Any]], list[Row]]]] = {
    "producer_send_success": _acked,
    _FAILED: _failed,
    _SHOWN: _shown,
    "records_consumed": _shown_offsets,
    "offsets_committed": _committed,
    "position_set": _jumped,
    BEGINNING: _began,
    "shutdown_complete": lambda _: [_bare(Event.ENDED)],
}


def _row(event: Event, entry: dict[str, Any], partition: int | None, offset: int | None) -> Row:
    key, value, acks = entry["key"], entry["value"], entry.get("acks")
    return (
        event,
        ACKS_ALL if acks is None else index(acks),
        sys.intern(entry["topic"]),
        partition,
        offset,
        None if key is None else key.encode("utf-8", "surrogateescape"),
        None if value is None else value.encode("utf-8", "surrogateescape"),
        entry.get("timestamp"),
        entry.get("topicId"),
        entry.get("group"),
        entry.get("member"),
        entry.get("generation"),
        entry.get("error"),
    )
