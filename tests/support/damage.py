"""Plants faults in copies of data directories, and says where: what an audit has to find.

Two kinds. The named faults (`FAULTS`) are what the audit exists for: each is planted in one replica
of a partition, so that a careful reader could still be fooled (lengths fit, checksums are right
where a fault does not need them wrong), and `Planted` says which checks must find it and where. The
random ones (`corrupt`) are what a disk does: a bit, zeros, a lost end, foreign bytes.

Batches are found by the header in `protocol.records` and by nothing of the audit or of the broker,
so that no mistake of theirs can hide a fault. Only ever give it copies: it writes in place.
"""

import random
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.protocol.constants import BATCH_HEADER_BYTES, BATCH_OVERHEAD_BYTES
from minibroker.protocol.records.batch import (
    CONTROL,
    BatchHeader,
    iterate_headers,
    stamp,
    write_header,
)
from minibroker.protocol.records.compression import NONE
from minibroker.protocol.records.record import Record, decode_records, encode_batch
from minibroker.protocol.records.varint import VARINT_BYTES_MAX, decode_varint
from minibroker.protocol.types import Buffer

EPOCHS: Final = "leader-epoch-checkpoint"
APPENDED_BYTES_MAX: Final = 200
ZEROED_BYTES_MAX: Final = 200
ATTRIBUTES_BYTES: Final = 1  # of a record
COMMITTED_AT: Final = 2  # in the value of a commit, behind its version


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: on which broker, in which file, at which batch.

    `offset` is the first that is wrong; `position` is the batch's in `path`, None where the file
    holds none. At least one of the checks `expects` must find it, there.
    """

    name: str
    broker: int
    topic: str
    partition: int
    path: Path
    offset: int
    position: int | None
    expects: frozenset[str]


class Batch(NamedTuple):
    """A batch in a segment."""

    path: Path
    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + self.header.size


@dataclass(frozen=True, slots=True)
class Replica:
    """One log in a data directory."""

    data_dir: Path
    topic: str
    partition: int

    @property
    def directory(self) -> Path:
        """Where the log lies."""
        return self.data_dir / f"{self.topic}-{self.partition}"

    @property
    def broker(self) -> int:
        """The node id of whose directory it is."""
        lines = (self.data_dir / "meta.properties").read_text().splitlines()
        return int(dict(line.split("=", 1) for line in lines if "=" in line)["node.id"])

    def batches(self) -> Iterator[Batch]:
        """All of them, by offset."""
        for path in sorted(self.directory.glob("*.log")):
            for position, header in iterate_headers(path.read_bytes()):
                yield Batch(path, position, header)

    def planted(self, name: str, batch: Batch, offset: int, *expects: str) -> Planted:
        """A fault at a batch of this log."""
        place = (batch.path, offset, batch.position)
        return Planted(name, self.broker, self.topic, self.partition, *place, frozenset(expects))


# -- the named faults; all raise ValueError where a log has no place for them


def flip_byte(replica: Replica, rng: random.Random) -> Planted:
    """One bit of a batch's records is another: a disk that lies."""
    batch = _choose(replica, rng)
    content = bytearray(batch.path.read_bytes())
    content[rng.randrange(batch.position + BATCH_HEADER_BYTES, batch.end)] ^= 1 << rng.randrange(8)
    batch.path.write_bytes(content)
    return replica.planted("flipped byte", batch, batch.header.base_offset, "crc")


def remove_batch(replica: Replica, rng: random.Random) -> Planted:
    """A batch is cut out, and those behind it moved up: all that is there is sound."""
    batch = _choose(replica, rng)
    content = batch.path.read_bytes()
    batch.path.write_bytes(content[: batch.position] + content[batch.end :])
    return replica.planted("batch missing", batch, batch.header.base_offset, "gap")


def swap_batches(replica: Replica, rng: random.Random) -> Planted:
    """Two batches that follow each other stand in the other order."""
    batch = _choose(replica, rng)
    content = batch.path.read_bytes()
    after = next(found for found in replica.batches() if found[:2] == (batch.path, batch.end))
    parts = (content[batch.end : after.end], content[batch.position : batch.end])
    batch.path.write_bytes(b"".join((content[: batch.position], *parts, content[after.end :])))
    return replica.planted("batches swapped", batch, batch.header.base_offset, "gap", "overlap")


def change_epochs(replica: Replica, rng: random.Random) -> Planted:
    """The checkpoint lets the last epoch begin one record late, or early if it has only one."""
    path = replica.directory / EPOCHS
    *head, last = path.read_text().splitlines()
    epoch, start = map(int, last.split())
    end = max(batch.header.next_offset for batch in replica.batches())
    changed = start + 1 if start + 1 < end else start - 1
    path.write_text("".join(f"{line}\n" for line in (*head, f"{epoch} {changed}")))
    place = (path, min(start, changed), None)
    expects = frozenset({"epoch-checkpoint"})
    named = (replica.broker, replica.topic, replica.partition)
    return Planted("epoch checkpoint changed", *named, *place, expects)


def remove_record(replica: Replica, rng: random.Random) -> Planted:
    """A record is gone from its batch, which is sound: its checksum is right, no offset moved.

    As compaction leaves it; in a topic that is not compacted only the other replicas, and a ledger
    of what was acknowledged, know better.
    """
    batch = _choose(
        replica, rng, lambda header: header.record_count > 2 and header.compression == NONE
    )
    header = batch.header
    content = batch.path.read_bytes()
    number = rng.randrange(1, header.record_count - 1)
    starts = _record_positions(content[batch.position : batch.end])
    whole = bytearray(content[batch.position : batch.end])
    del whole[starts[number] : starts[number + 1]]
    shorter = header.batch_length - (header.size - len(whole))
    write_header(whole, header._replace(batch_length=shorter, record_count=header.record_count - 1))
    batch.path.write_bytes(content[: batch.position] + whole + content[batch.end :])
    offset = header.base_offset + number
    return replica.planted("acked record removed", batch, offset, "lost-write", "divergence")


def change_commit(replica: Replica, at: int, offset: int) -> Planted:
    """A group has committed another offset, says the first record of the batch `at` of a log of the
    offsets topic: a coordinator that was wrong, or one that led beside another."""
    batch = next(found for found in replica.batches() if found.header.base_offset == at)
    content = batch.path.read_bytes()
    whole = bytearray(content[batch.position : batch.end])
    struct.pack_into(">q", whole, _value_position(whole) + COMMITTED_AT, offset)
    write_header(whole, batch.header)
    batch.path.write_bytes(content[: batch.position] + whole + content[batch.end :])
    return replica.planted("committed offset changed", batch, at, "committed-offset")


def change_value(replica: Replica, rng: random.Random) -> Planted:
    """One record of a batch has another value, and the checksum is right: as a leader that was
    wrong would have stored it."""
    batch = _choose(replica, rng)
    changed = rng.randrange(batch.header.record_count)

    def change(number: int, record: Record) -> Record:
        value = bytes(each ^ 1 for each in record.value or b"")
        return record._replace(value=value) if number == changed else record

    change_records(batch, change)
    offset = batch.header.base_offset
    return replica.planted("value changed", batch, offset, "divergence", "lost-write")


def spoil_body(replica: Replica, rng: random.Random) -> Planted:
    """The bytes of a batch are no records, and its checksum is right."""
    batch = _choose(replica, rng)
    spoil_batch(batch)
    return replica.planted("body spoilt", batch, batch.header.base_offset, "undecodable")


def spoil_batch(batch: Batch) -> None:
    """The same of a given batch."""
    whole = bytearray(batch.path.read_bytes()[batch.position : batch.end])
    whole[BATCH_HEADER_BYTES:] = b"\xff" * (len(whole) - BATCH_HEADER_BYTES)
    _write_back(batch, whole, batch.header)


def flag_control(replica: Replica, rng: random.Random) -> Planted:
    """A batch of records says that it holds none, but is for the broker's own use."""
    batch = _choose(replica, rng)
    header = batch.header._replace(attributes=batch.header.attributes | CONTROL)
    _write_back(batch, bytearray(batch.path.read_bytes()[batch.position : batch.end]), header)
    return replica.planted("control flag set", batch, batch.header.base_offset, "undecodable")


def cut_tail(replica: Replica, rng: random.Random) -> Planted:
    """The last batches are gone, and the broker's checkpoints know of none that is not there."""
    found = list(replica.batches())
    batch = rng.choice(found[len(found) // 2 :])
    _cut_from(replica, batch)
    return replica.planted("tail cut", batch, batch.header.base_offset, "missing-committed")


def delete_log(replica: Replica, rng: random.Random) -> Planted:
    """The log is gone, directory and all."""
    batch = next(replica.batches())
    shutil.rmtree(replica.directory)
    lower_checkpoints(replica, None)
    return replica.planted("log deleted", batch, 0, "missing-committed")


def change_records(batch: Batch, change: Callable[[int, Record], Record]) -> None:
    """Encode the records of a batch anew, each through `change`, which is told its number."""
    content = batch.path.read_bytes()
    whole = content[batch.position : batch.end]
    records = [change(*each) for each in enumerate(decode_records(whole, batch.header))]
    encoded = encode_batch([record[1:] for record in records])
    length = len(encoded) - BATCH_OVERHEAD_BYTES
    _write_back(batch, encoded, batch.header._replace(batch_length=length, attributes=NONE))


def put_batch(batch: Batch, whole: Buffer, of: BatchHeader | None = None) -> None:
    """Put other bytes in the place of a batch; with the offset and leader epoch of a header, if one
    is given."""
    put = bytearray(whole)
    if of is not None:
        stamp(put, of.base_offset, of.leader_epoch)
    content = batch.path.read_bytes()
    batch.path.write_bytes(content[: batch.position] + put + content[batch.end :])


def change_header(batch: Batch, **fields: int) -> None:
    """The header of a batch has other fields, and the checksum is right."""
    whole = bytearray(batch.path.read_bytes()[batch.position : batch.end])
    _write_back(batch, whole, batch.header._replace(**fields))


def append_forged(replica: Replica, value: bytes) -> Planted:
    """A batch at the end that no producer has sent."""
    *_, last = replica.batches()
    header = last.header
    forged = encode_batch([(header.max_timestamp, None, value, ())])
    stamp(forged, header.next_offset, header.leader_epoch)
    with last.path.open("ab") as file:
        file.write(forged)
    return replica.planted("batch forged", last, header.next_offset, "unexpected")


def append_again(replica: Replica) -> Planted:
    """The last batch a second time, behind the first: no leader stores a sequence twice."""
    *_, last = replica.batches()
    whole = bytearray(last.path.read_bytes()[last.position : last.end])
    stamp(whole, last.header.next_offset, last.header.leader_epoch)
    with last.path.open("ab") as file:
        file.write(whole)
    return replica.planted("batch again", last, last.header.next_offset, "sequence-duplicate")


def hide_last_segment(replica: Replica) -> None:
    """A directory in its place: as unreadable as a file can be, for root too."""
    path = max(replica.directory.glob("*.log"))
    path.unlink()
    path.mkdir()


def lower_checkpoints(replica: Replica, end: int | None) -> None:
    """Have the broker's own files say that the log ends there, or, with None, nothing of it."""
    start = f"{replica.topic} {replica.partition} "
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        path = replica.data_dir / name
        version, _, *rows = path.read_text().splitlines()
        if end is None:
            rows = [row for row in rows if not row.startswith(start)]
        else:
            rows = [f"{start}{end}" if row.startswith(start) else row for row in rows]
        path.write_text("\n".join((version, str(len(rows)), *rows)) + "\n")


def _cut_from(replica: Replica, batch: Batch) -> None:
    """Take the batch away and all behind it, as if they had never come."""
    end = batch.header.base_offset
    for path in sorted(replica.directory.iterdir()):
        stem = path.name.partition(".")[0]
        if stem.isdigit() and int(stem) > int(batch.path.stem):
            path.unlink()
    batch.path.write_bytes(batch.path.read_bytes()[: batch.position])
    for suffix in (".index", ".timeindex"):
        batch.path.with_suffix(suffix).unlink(missing_ok=True)
    path = replica.directory / EPOCHS
    version, _, *rows = path.read_text().splitlines()
    rows = [row for row in rows if int(row.split()[1]) < end]
    path.write_text("\n".join((version, str(len(rows)), *rows)) + "\n")
    lower_checkpoints(replica, end)


def _write_back(batch: Batch, whole: bytearray, header: BatchHeader) -> None:
    """Put other bytes in the place of a batch, with a right checksum."""
    content = batch.path.read_bytes()
    write_header(whole, header)
    batch.path.write_bytes(content[: batch.position] + whole + content[batch.end :])


Fault = Callable[[Replica, random.Random], Planted]
FAULTS: Final[tuple[Fault, ...]] = (
    flip_byte,
    remove_batch,
    swap_batches,
    change_epochs,
    remove_record,
)

# Those that leave every other file of a broker as an honest broker would have left it.
SUBTLE_FAULTS: Final[tuple[Fault, ...]] = (
    change_value,
    spoil_body,
    flag_control,
    cut_tail,
    delete_log,
)


def _choose(
    replica: Replica,
    rng: random.Random,
    is_fit: Callable[[BatchHeader], bool] = lambda header: True,
) -> Batch:
    """A batch with others before and behind it in its segment: not at a log's or file's end."""
    found = list(replica.batches())
    inner = [
        batch
        for before, batch, after in zip(found, found[1:], found[2:], strict=False)
        if before.path == batch.path == after.path and is_fit(batch.header)
    ]
    if not inner:
        raise ValueError(f"{replica.directory} has no batch for this fault")
    return rng.choice(inner)


def _record_positions(batch: bytes) -> list[int]:
    """Where each record begins, and where the last one ends."""
    positions = [BATCH_HEADER_BYTES]
    while positions[-1] < len(batch):
        length, start = decode_varint(batch, positions[-1], VARINT_BYTES_MAX)
        positions.append(start + length)
    return positions


def _value_position(batch: bytes) -> int:
    """Where the value of the first record begins."""
    position = BATCH_HEADER_BYTES

    def number() -> int:
        nonlocal position
        found, position = decode_varint(batch, position, VARINT_BYTES_MAX)
        return found

    number()  # the record's length
    position += ATTRIBUTES_BYTES
    number(), number()  # its time and its offset
    key_size = number()
    position += key_size
    number()  # the value's length
    return position


# -- random ones


class Corruption(NamedTuple):
    """What became of a file; `before` is all that was in it, `position` where it first differs."""

    kind: str
    path: Path
    before: bytes
    after: bytes

    @property
    def position(self) -> int:
        """The first byte that is another, or only in one of the two."""
        pairs = zip(self.before, self.after, strict=False)
        shorter = min(len(self.before), len(self.after))
        return next((at for at, (old, new) in enumerate(pairs) if old != new), shorter)


def _flip(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return b"".join((content[:at], bytes([content[at] ^ 1 << rng.randrange(8)]), content[at + 1 :]))


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _zero(content: bytes, rng: random.Random) -> bytes:
    places = [at for at, byte in enumerate(content) if byte]
    if not places:
        return _flip(content, rng)
    at = rng.choice(places)
    end = min(len(content), at + rng.randint(1, ZEROED_BYTES_MAX))
    return content[:at] + bytes(end - at) + content[end:]


def _append(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.randint(1, APPENDED_BYTES_MAX))


CORRUPTIONS: Final[Mapping[str, Callable[[bytes, random.Random], bytes]]] = {
    "flip": _flip,
    "cut": _cut,
    "zero": _zero,
    "append": _append,
}


def corrupt(path: Path, kind: str, rng: random.Random) -> Corruption:
    """Damage a file that is not empty; it differs from before in at least one byte."""
    before = path.read_bytes()
    after = CORRUPTIONS[kind](before, rng)
    path.write_bytes(after)
    return Corruption(kind, path, before, after)
