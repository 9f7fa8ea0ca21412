"""Small text files of offsets, in Kafka's form: a version line, a count line, then the rows.

Two kinds of rows: `topic partition offset` (recovery points, high watermarks, log starts) and
`epoch start` (one log's leader epochs). The count line tells a cut file from a whole one. Reading
trusts nothing: whatever is not exactly this form is a `CheckpointError`, and the caller decides
what a lost checkpoint means (a lost recovery point means to scan everything, never to fail).
Rows are sorted, so equal contents are equal bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

from minibroker.broker.log.files import Files
from minibroker.broker.log.index import OFFSET_MAX
from minibroker.protocol.types import TopicPartition

_VERSION = "0"


class CheckpointError(Exception):
    """A checkpoint file that is cut, damaged or of another version."""


def dump_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The file of one offset per partition."""
    return _dump(f"{name.topic} {name.partition} {offsets[name]}" for name in sorted(offsets))


def load_offsets(data: bytes) -> dict[TopicPartition, int]:
    """What `dump_offsets` wrote, or CheckpointError."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in _load(data, fields=3):
        name = TopicPartition(topic, _number(partition))
        if name in offsets:
            raise CheckpointError(f"{name} is there twice")
        offsets[name] = _number(offset)
    return offsets


def dump_epochs(starts: Sequence[tuple[int, int]]) -> bytes:
    """The file of (epoch, start offset) pairs."""
    return _dump(f"{epoch} {start}" for epoch, start in starts)


def load_epochs(data: bytes) -> list[tuple[int, int]]:
    """What `dump_epochs` wrote, or CheckpointError; both columns ascend strictly."""
    starts = [(_number(epoch), _number(start)) for epoch, start in _load(data, fields=2)]
    for (epoch, start), (next_epoch, next_start) in pairwise(starts):
        if epoch >= next_epoch or start >= next_start:
            raise CheckpointError(f"epoch {next_epoch} at {next_start} after {epoch} at {start}")
    return starts


def read_offsets(files: Files, path: PurePath) -> dict[TopicPartition, int]:
    """The offsets in a file; none if it is not there. Raises CheckpointError, OSError."""
    return load_offsets(files.read_bytes(path)) if files.exists(path) else {}


def write_offsets(files: Files, path: PurePath, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file, so that a reader finds the old offsets or the new ones."""
    files.write_atomic(path, dump_offsets(offsets))


def _dump(rows: Iterable[str]) -> bytes:
    lines = list(rows)
    return "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode()


def _load(data: bytes, fields: int) -> list[list[str]]:
    """The rows, split into fields."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CheckpointError("not text") from None
    version, *lines = text.split("\n")
    if version != _VERSION or len(lines) < 2:
        raise CheckpointError(f"version {version[:20]!r}, known is {_VERSION!r}")
    count, *rows, rest = lines
    if rest or _number(count) != len(rows):
        raise CheckpointError(f"{len(rows)} rows where {count[:20]!r} were written")
    split = [row.split(" ") for row in rows]
    if any(len(row) != fields for row in split):
        raise CheckpointError(f"a row without {fields} fields")
    return split


def _number(text: str) -> int:
    """A decimal number that is not negative and fits 64 bits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX):
        raise CheckpointError(f"{text[:20]!r} is no offset")
    return int(text)
