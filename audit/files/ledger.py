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
* A line that is no complete object, as a crashed program leaves it, is "torn" if it is the last
  line or precedes a `startup_complete`. Any other invalid line is "unreadable". Both are rows, so
  that counts include them.
* `topicId` distinguishes topics of the same name; ledgers of older clients, and Kafka's, have none.

Text stands for bytes: UTF-8, with surrogate escapes for other bytes. Spark's own JSON reader
corrupts these, so Python parses the lines. They are read in chunks that end at the end of a line.
To know the line numbers, a large file is first read as a whole, at a hundredth of the cost of
parsing. The paths must mean the same on all machines of the Spark cluster.
"""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from minibroker.audit.model import LEDGER

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
    ENDED = "ended"
    TORN = "torn"
    UNREADABLE = "unreadable"


# Their offsets are those of commits and positions, not of records.
OF_GROUPS: Final = (Event.COMMITTED, Event.REFUSED, Event.JUMPED)


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
            with open(path, "rb") as file:
                chunks += _chunks_of(path, file, chunk_bytes)
        except OSError as error:
            problems.append(f"the ledger {path} cannot be read: {error.strerror or error}")
    return chunks, problems


def ledger_table(
    spark: "SparkSession", chunks: Sequence[Chunk], *, may_read_here: bool = True
) -> "DataFrame":
    """Return all rows of the ledgers, as LEDGER."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from minibroker.audit.checks.local_frames import local_frame

    if may_read_here and sum(chunk.end - chunk.begin for chunk in chunks) <= HERE_BYTES_MAX:
        batches = [rows for chunk in chunks for rows in read_chunk(chunk)]
        return local_frame(spark, pa.Table.from_batches(batches, LEDGER), from_arrow_schema(LEDGER))
    listing = spark.sparkContext.broadcast(tuple(chunks))  # otherwise each task would carry it

    def rows(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_chunk(listing.value[number])

    tasks = 1 + sum(chunk.end - chunk.begin for chunk in chunks) // CHUNK_BYTES
    numbers = spark.range(0, len(chunks), 1, min(tasks, max(1, len(chunks))))
    return numbers.mapInArrow(rows, from_arrow_schema(LEDGER))


def read_chunk(chunk: Chunk) -> list[pa.RecordBatch]:
    """Return the rows of LEDGER for a chunk's lines."""
    with Path(chunk.path).open("rb") as file:
        file.seek(chunk.begin)
        data = file.read(chunk.end - chunk.begin)
        behind = next((line for line in file if line.strip()), b"")
    return ledger_rows(chunk.path, data.split(b"\n"), chunk.first_line, behind)


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
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is no file")
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
    return [_bare(Event.BEGAN, entry.get("group")), *repeating]


_READERS: Final[dict[object, Callable[[dict[str, Any]], list[Row]]]] = {
    "producer_send_success": _acked,
    "producer_send_error": _failed,
    "record_data": _shown,
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
