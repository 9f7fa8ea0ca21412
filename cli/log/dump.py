"""Reads the files of a data directory entry by entry, as far as they can be read.

Every reader yields plain mappings, each with its `type`; damage is an entry of type `damage` that
says where and why, and reading continues after it. After a bad batch the reader searches for the
next good one (a header that fits and a CRC that is right), so one flipped byte does not hide the
rest of a segment. Nothing is written, and no segment is loaded whole, so it may run beside a
broker; an incomplete batch at the end of the active segment may then be one that is just being
written.
"""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias, cast

from minibroker.broker.log.checkpoints import CheckpointError, load_epochs, load_offsets
from minibroker.broker.log.files import File
from minibroker.broker.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY
from minibroker.broker.log.producers import ProducerStates, SnapshotError
from minibroker.broker.log.scan import find_batch
from minibroker.broker.log.transaction_index import ABORTED_ENTRY
from minibroker.cli.terminal import Failure
from minibroker.protocol.constants import BATCH_HEADER_BYTES, FRAME_BYTES_MAX, MAGIC
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    has_valid_crc,
    read_header,
)
from minibroker.protocol.records.record import Record, decode_records

Entry: TypeAlias = dict[str, object]
DAMAGE: Final = "damage"
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
EXPIRES_NEVER_MS: Final = 1 << 62
OFFSET_ENTRY: Final = struct.Struct(">ii")
SEQUENCES: Final = 1 << 31  # after the last one 0 comes again


def entries_of(path: Path, with_records: bool) -> Iterator[Entry]:
    """Yield the entries of a file, by its name. Raises `Failure` if it is not a broker's file."""
    reader = _reader_of(path)
    if not path.exists():
        raise Failure(f"{path}: no such file")
    if reader is None:
        raise Failure(f"{path}: not a log, index, snapshot or checkpoint file")
    if reader is _segment:
        return _segment(path, with_records)
    return reader(path)


def is_known(path: Path) -> bool:
    """Whether `entries_of` can read a file of this name."""
    return path.is_file() and _reader_of(path) is not None


class _Segment:
    """An open segment; positions and sizes are bytes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes."""
        return os.pread(self.descriptor, size, position)

    def batch_at(self, position: int) -> tuple[BatchHeader, memoryview] | str:
        """Return the whole batch that begins there, or why there is none, without a CRC check."""
        head = self.read(position, BATCH_HEADER_BYTES)
        if len(head) < BATCH_HEADER_BYTES:
            return f"{len(head)} bytes, too few for a batch"
        header = read_header(head)
        if header.magic != MAGIC:
            return f"magic {header.magic}, not {MAGIC}"
        if not BATCH_HEADER_BYTES <= header.size <= FRAME_BYTES_MAX:
            return f"a batch length of {header.batch_length}"
        if position + header.size > self.size:
            return f"half a batch: {header.size} bytes announced, {self.size - position} are there"
        return header, memoryview(self.read(position, header.size))

    def next_good(self, position: int, offset: int) -> int:
        """Return where the next sound batch of `offset` or later begins, or the end of the file."""
        found = find_batch(cast(File, self), position, offset)  # it only reads
        return self.size if found is None else found


def _segment(path: Path, with_records: bool) -> Iterator[Entry]:
    with path.open("rb", buffering=0) as file:
        segment = _Segment(file.fileno())
        position = 0
        expected = _base_offset(path)
        while position < segment.size:
            batch = segment.batch_at(position)
            reason = batch if isinstance(batch, str) else ""
            if not isinstance(batch, str):
                header, view = batch
                is_valid = has_valid_crc(view, header)
                yield _batch_entry(header, position, is_valid)
                if is_valid and header.base_offset < expected:
                    reason = f"offset {header.base_offset}, where {expected} is the next"
                    yield _damage(position, header.size, reason)
                if is_valid:
                    if with_records:
                        yield from _records(view, header, position)
                    expected = header.next_offset
                    position += header.size
                    continue
                reason = "the CRC is wrong"
            end = segment.next_good(position + 1, expected)
            yield _damage(position, end - position, reason)
            position = end


def _batch_entry(header: BatchHeader, position: int, is_valid: bool) -> Entry:
    time_name = "LogAppendTime" if header.is_log_append_time else "CreateTime"
    return {
        "type": "batch",
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence if header.has_producer else -1,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        **_compaction_entry(header),
        "position": position,
        time_name: header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": dict(enumerate(COMPRESSIONS)).get(header.compression, "unknown"),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def _compaction_entry(header: BatchHeader) -> Entry:
    """Return what compaction has made of a batch; nothing if it does not show."""
    horizon_ms = header.delete_horizon_ms
    entry: Entry = {} if horizon_ms is None else {"deleteHorizonMs": horizon_ms}
    if not header.record_count:
        kept = "empty" if header.has_producer else "filler"
    elif header.record_count <= header.last_offset - header.base_offset:
        kept = "thinned"
    elif horizon_ms is not None:
        kept = "whole"
    else:
        return entry
    return {"compacted": kept, **entry}


def _records(view: memoryview, header: BatchHeader, position: int) -> Iterator[Entry]:
    try:
        records = decode_records(view, header)
    except InvalidBatch as error:
        yield _damage(position, header.size, str(error))
        return
    for record in records:
        sequence = -1
        if header.has_producer:
            sequence = (header.base_sequence + record.offset - header.base_offset) % SEQUENCES
        yield _record_entry(record, sequence)


def _record_entry(record: Record, sequence: int) -> Entry:
    entry: Entry = {
        "type": "record",
        "offset": record.offset,
        "CreateTime": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "headerKeys": [name for name, _ in record.headers],
    }
    if record.key is not None:
        entry["key"] = _text(record.key)
    if record.value is not None:
        entry["payload"] = _text(record.value)
    return entry


def _offset_index(path: Path) -> Iterator[Entry]:
    """Yield the entries, each checked against the segment of the same name."""
    base = _base_offset(path)
    beside = path.with_suffix(".log")
    with beside.open("rb", buffering=0) if beside.exists() else open(os.devnull, "rb") as file:
        segment = _Segment(file.fileno())
        for position, relative, target in _fixed(path, OFFSET_ENTRY):
            offset = base + relative
            yield {"type": "offset-index", "offset": offset, "position": target}
            batch = segment.batch_at(target) if segment.size else ""
            if not isinstance(batch, str) and batch[0].last_offset != offset:
                batch = f"ends at offset {batch[0].last_offset}"
            if isinstance(batch, str) and batch:
                yield _damage(position, OFFSET_ENTRY_BYTES, f"{beside.name} at {target}: {batch}")


def _time_index(path: Path) -> Iterator[Entry]:
    base = _base_offset(path)
    newest = -1
    for position, timestamp, relative in _fixed(path, TIME_ENTRY):
        yield {"type": "time-index", "timestamp": timestamp, "offset": base + relative}
        if timestamp < newest:
            yield _damage(position, TIME_ENTRY.size, f"timestamp {timestamp} after {newest}")
        newest = timestamp


def _transaction_index(path: Path) -> Iterator[Entry]:
    data = path.read_bytes()
    whole = len(data) - len(data) % ABORTED_ENTRY.size
    for _, producer_id, first, last, last_stable in ABORTED_ENTRY.iter_unpack(data[:whole]):
        yield {
            "type": "aborted-transaction",
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": last_stable,
        }
    if whole < len(data):
        yield _damage(whole, len(data) - whole, "no whole entry")


def _snapshot(path: Path) -> Iterator[Entry]:
    states = ProducerStates(EXPIRES_NEVER_MS)
    try:
        states.load(path.read_bytes())
    except SnapshotError as error:
        yield _damage(0, path.stat().st_size, str(error))
        return
    for producer_id, entry in states.entries():
        yield {
            "type": "producer",
            "producerId": producer_id,
            "producerEpoch": entry.epoch,
            "lastTimestamp": entry.last_append_ms,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.transaction_start,
            "batches": [batch._asdict() for batch in entry.batches],
        }


def _offset_checkpoint(path: Path) -> Iterator[Entry]:
    try:
        offsets = load_offsets(path.read_bytes())
    except CheckpointError as error:
        yield _damage(0, path.stat().st_size, str(error))
        return
    for (topic, partition), offset in offsets.items():
        yield {"type": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def _epoch_checkpoint(path: Path) -> Iterator[Entry]:
    try:
        epochs = load_epochs(path.read_bytes())
    except CheckpointError as error:
        yield _damage(0, path.stat().st_size, str(error))
        return
    for epoch, start in epochs:
        yield {"type": "epoch", "leaderEpoch": epoch, "startOffset": start}


def _fixed(path: Path, entry: struct.Struct) -> Iterator[tuple[int, int, int]]:
    """Yield the position and the two numbers of each entry."""
    data = path.read_bytes()
    if len(data) % entry.size:
        raise Failure(f"{path}: {len(data)} bytes are no whole number of {entry.size}-byte entries")
    for position in range(0, len(data), entry.size):
        first, second = entry.unpack_from(data, position)
        yield position, first, second


def _base_offset(path: Path) -> int:
    digits = path.name.split(".")[0]
    if not digits.isdecimal():
        raise Failure(f"{path}: a segment's files are named by their first offset, in digits")
    return int(digits)


def _damage(position: int, size: int, reason: str) -> Entry:
    return {"type": DAMAGE, "position": position, "bytes": size, "reason": reason}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


READERS: Final[dict[str, Callable[..., Iterator[Entry]]]] = {
    ".log": _segment,
    ".log.swap": _segment,
    ".damaged": _segment,
    ".damaged-accepted": _segment,
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _transaction_index,
    ".snapshot": _snapshot,
    "leader-epoch-checkpoint": _epoch_checkpoint,
    "-offset-checkpoint": _offset_checkpoint,
}


def _reader_of(path: Path) -> Callable[..., Iterator[Entry]] | None:
    name = path.name.removesuffix(".deleted")
    if name.startswith("partition.metadata"):  # kept of a damaged log, not bytes of a segment
        return None
    return next((reader for end, reader in READERS.items() if name.endswith(end)), None)
