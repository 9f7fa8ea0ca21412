"""The small files beside the segments, read without trust.

Each reader returns the contents of a file, or an `Unreadable` that says why they cannot be
believed. Whole files are judged, never parts of them, because a file in which one line is wrong may
be wrong in the others too. No content of a disk raises here: the caller decides what an unreadable
file means (a broker rebuilds most of them).

The formats are Kafka's text formats (a version line, a count line, the rows), except for the
producer snapshot, which is ours: a version, a CRC-32C of all that follows it, the offset up to
which it covers the log, the number of producers, then each with its last batches and, from version
2 on, its transaction; then the transactions that may not be committed. The parsers are
this module's own: the audit does not rely on the code that wrote the files.
"""

import base64
import binascii
import re
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from minibroker.audit.files.regular import read_file
from minibroker.protocol.types import TopicPartition

META: Final = "meta.properties"
RUN: Final = "run"
PARTITION_METADATA: Final = "partition.metadata"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED_ENDS: Final = "cleaner-offset-checkpoint"
EPOCH_STARTS: Final = "leader-epoch-checkpoint"
SNAPSHOT_SUFFIX: Final = ".snapshot"

_NUMBER_MAX = (1 << 63) - 1
_TOPIC_ID_BYTES = 16
_SNAPSHOT_VERSIONS = (1, 2)
_SNAPSHOT = struct.Struct(">HIqI")  # version, CRC of the rest, end offset, number of producers
_CRC_END = 6
_PRODUCER = struct.Struct(">qhqB")  # id, epoch, time of the last append, number of batches
_BATCH = struct.Struct(">iiqqq")  # first and last sequence, first and last offset, timestamp
_TRANSACTION = struct.Struct(">iqqq")  # coordinator epoch, first offset, last marker, timestamp
_ENDED_COUNT = struct.Struct(">I")
_ENDED = struct.Struct(">qq")  # first offset, marker's
_OFFSET_NAME = re.compile(r"[0-9]{20}")


class Unreadable(NamedTuple):
    """A file or directory that cannot be read or believed. `is_missing`: it does not exist."""

    path: Path
    reason: str
    is_missing: bool = False


class Meta(NamedTuple):
    """The cluster and broker of a data directory, and its own id, "" if it has none."""

    cluster_id: str
    broker: int
    directory_id: str = ""


class Producer(NamedTuple):
    """One producer of a snapshot; the last two are of its last batch, None if there is none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_offset: int | None


class Snapshot(NamedTuple):
    """A producer snapshot. `offset` is its name; it covers the log up to `end_offset`.

    They differ only if a log has a gap: the segment after the gap begins at `offset`.
    """

    path: Path
    offset: int
    end_offset: int
    producers: Sequence[Producer]


class _Wrong(Exception):
    """The contents of a file are wrong; the text says how."""


def explain(error: OSError) -> str:
    """Return the reason of an `Unreadable` for an error of the operating system."""
    return f"unreadable: {error.strerror or error}"


def parse_offset_name(stem: str) -> int | None:
    """Return the offset in the name of a log's file (20 digits, below 2^63); None for others."""
    if _OFFSET_NAME.fullmatch(stem) and int(stem) <= _NUMBER_MAX:
        return int(stem)
    return None


def read_meta(root: Path) -> Meta | Unreadable:
    """Read the `meta.properties` of a data directory."""
    path = root / META
    try:
        pairs = [line.partition("=") for line in _read_text(path).splitlines()]
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        cluster_id, broker = fields.get("cluster.id", ""), fields.get("node.id", "")
        if not cluster_id:
            raise _Wrong("it names no cluster.id")
        directory_id = fields.get("directory.id", "")
        return Meta(cluster_id, _parse_number(broker, (1 << 31) - 1), directory_id)
    except OSError as error:
        return _unreadable(path, error)
    except _Wrong as wrong:
        return Unreadable(path, str(wrong))


def read_run(root: Path) -> int | Unreadable:
    """Return how often a broker was started with a data directory, from its first word in `run`."""
    path = root / RUN
    try:
        words = _read_text(path).split()
        return _parse_number(words[0] if words else "")
    except OSError as error:
        return _unreadable(path, error)
    except _Wrong as wrong:
        return Unreadable(path, str(wrong))


def read_topic_id(directory: Path) -> str | Unreadable:
    """Return the topic id of a log, in hex, from its `partition.metadata`."""
    path = directory / PARTITION_METADATA
    try:
        lines = _read_text(path).splitlines()
        if len(lines) != 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
            raise _Wrong("it is not a version line and a topic id")
        text = lines[1].removeprefix("topic_id: ")
        topic_id = base64.b64decode(text + "==", altchars=b"-_", validate=True)
        if len(topic_id) != _TOPIC_ID_BYTES:
            raise _Wrong(f"a topic id of {len(topic_id)} bytes")
    except OSError as error:
        return _unreadable(path, error)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return Unreadable(path, "the topic id is not base64")
    except _Wrong as wrong:
        return Unreadable(path, str(wrong))
    return topic_id.hex()


def read_offsets(path: Path) -> Mapping[TopicPartition, int] | Unreadable:
    """Read a file of one offset per partition: high watermarks, log starts, recovery points, or
    up to where logs were compacted."""
    try:
        offsets: dict[TopicPartition, int] = {}
        for topic, partition, offset in _rows(_read_text(path), fields=3):
            name = TopicPartition(topic, _parse_number(partition, (1 << 31) - 1))
            if name in offsets:
                raise _Wrong(f"{name} is there twice")
            offsets[name] = _parse_number(offset)
    except OSError as error:
        return _unreadable(path, error)
    except _Wrong as wrong:
        return Unreadable(path, str(wrong))
    return offsets


def read_epoch_starts(directory: Path) -> Sequence[tuple[int, int]] | Unreadable:
    """Return the (epoch, start offset) pairs of a `leader-epoch-checkpoint`; both ascend."""
    path = directory / EPOCH_STARTS
    try:
        starts = [
            (_parse_number(epoch, (1 << 31) - 1), _parse_number(start))
            for epoch, start in _rows(_read_text(path), fields=2)
        ]
        for (epoch, start), (next_epoch, next_start) in pairwise(starts):
            if epoch >= next_epoch or start >= next_start:
                raise _Wrong(f"epoch {next_epoch} at {next_start} after {epoch} at {start}")
    except OSError as error:
        return _unreadable(path, error)
    except _Wrong as wrong:
        return Unreadable(path, str(wrong))
    return starts


def read_snapshots(directory: Path) -> Sequence[Snapshot | Unreadable]:
    """Read all producer snapshots of a log, by offset."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        return [_unreadable(directory, error)]
    return [
        read_snapshot(directory / name)
        for name in names
        if name.endswith(SNAPSHOT_SUFFIX)
        and parse_offset_name(name.removesuffix(SNAPSHOT_SUFFIX)) is not None
    ]


def read_snapshot(path: Path) -> Snapshot | Unreadable:
    """Read one producer snapshot, whose name is an offset."""
    try:
        data = read_file(path)
        version, crc, end_offset, count = _SNAPSHOT.unpack_from(data)
        if version not in _SNAPSHOT_VERSIONS:
            raise _Wrong(f"version {version}, known are 1 and 2")
        if crc != crc32c(memoryview(data)[_CRC_END:]):
            raise _Wrong("the checksum does not match")
        offset = int(path.stem)
        if not 0 <= end_offset <= offset:
            raise _Wrong(f"it reaches to offset {end_offset}")
        return Snapshot(path, offset, end_offset, _read_producers(data, count, version))
    except OSError as error:
        return _unreadable(path, error)
    except struct.error:
        return Unreadable(path, f"cut short at {len(data)} bytes")
    except _Wrong as wrong:
        return Unreadable(path, str(wrong))


def _read_producers(data: bytes, count: int, version: int) -> Sequence[Producer]:
    producers = []
    position = _SNAPSHOT.size
    for _ in range(count):
        producer_id, epoch, _, batch_count = _PRODUCER.unpack_from(data, position)
        position += _PRODUCER.size + batch_count * _BATCH.size
        last_sequence = last_offset = None
        if batch_count:
            last = _BATCH.unpack_from(data, position - _BATCH.size)
            _, last_sequence, _, last_offset, _ = last
        producers.append(Producer(producer_id, epoch, last_sequence, last_offset))
        if version > 1:
            position += _TRANSACTION.size
    if version > 1:
        (ended_count,) = _ENDED_COUNT.unpack_from(data, position)
        position += _ENDED_COUNT.size + ended_count * _ENDED.size
    if position != len(data):
        raise _Wrong(f"{len(data) - position} bytes behind the last producer")
    if len({producer.producer_id for producer in producers}) != count:
        raise _Wrong("a producer is there twice")
    return producers


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(path, explain(error), isinstance(error, FileNotFoundError))


def _read_text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError:
        raise _Wrong("it is not text") from None


def _rows(text: str, fields: int) -> list[list[str]]:
    """Return the rows after the version line and the count line, split into fields."""
    version, *lines = text.split("\n")
    if version != "0" or len(lines) < 2:
        raise _Wrong(f"version {version[:20]!r}, known is '0'")
    count, *rows, rest = lines
    if rest or _parse_number(count) != len(rows):
        raise _Wrong(f"{len(rows)} rows where {count[:20]!r} were written")
    split = [row.split(" ") for row in rows]
    for row in split:
        if len(row) != fields or not all(row):
            raise _Wrong(f"a row of {len(row)} fields, not {fields}")
    return split


def _parse_number(text: str, largest: int = _NUMBER_MAX) -> int:
    """Parse a decimal number without a sign. Raises _Wrong."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= largest):
        raise _Wrong(f"{text[:20]!r} is no number that can stand here")
    return int(text)
