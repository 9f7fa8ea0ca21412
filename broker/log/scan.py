"""Iterating over the batches of a log file: quickly over headers, or with a full check.

`batch_headers` does not check headers, and reads only what it must: windows of 16 KB while batches
are small, single headers when they are large. `chained_batches` does the same and compares each
header with the one before: offsets follow each other, since nothing was compacted away. Where the
chain breaks it raises `BadBytes`; `sound_batches` goes on after the bad bytes. No checksum is
computed while the chain holds. `checked_batches` trusts nothing, and recovery uses it: large reads,
one CRC per batch, no work per record; it is as fast as reading the file once. `find_batch` looks
for a batch after bytes that are none, by which recovery tells damage from a torn tail.
"""

from collections.abc import Iterator

from minibroker.broker.log.cached_reads import Readable
from minibroker.broker.log.index import RELATIVE_OFFSET_MAX
from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC, NO_EPOCH, ErrorCode
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    has_valid_crc,
    read_header,
)

HOP_WINDOW_BYTES = 16 * 1024
# Large reads, but small enough that the allocator reuses the memory instead of mapping it anew.
CHECK_WINDOW_BYTES = 1024 * 1024
MAGIC_POSITION = 16


def batch_headers(file: Readable, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each whole batch in `file[position:end]`, unchecked."""
    window: bytes | bytearray = b""
    start = position
    window_bytes = HOP_WINDOW_BYTES
    while position + BATCH_HEADER_BYTES <= end:
        at = position - start
        if at + BATCH_HEADER_BYTES > len(window):
            window, start, at = file.read(position, window_bytes), position, 0
            if len(window) < BATCH_HEADER_BYTES:
                return
        header = read_header(window, at)
        size = header.size
        if size < BATCH_HEADER_BYTES or position + size > end:
            return
        yield position, header
        position += size
        window_bytes = HOP_WINDOW_BYTES if size < HOP_WINDOW_BYTES // 4 else BATCH_HEADER_BYTES


class BadBytes(InvalidBatch):
    """Bytes of a segment are not the batch that was written there.

    The lost records begin at `offset`, and their bytes at `position` of the segment. The next batch
    that is known to be sound has `next_offset` and begins at `end`; None: there is none.
    """

    def __init__(
        self,
        offset: int,
        position: int,
        reason: str,
        next_offset: int | None = None,
        end: int = 0,
    ) -> None:
        behind = "" if next_offset is None else f" (sound again from offset {next_offset} on)"
        what = f"the records from offset {offset} on are damaged{behind}: {reason}"
        super().__init__(ErrorCode.CORRUPT_MESSAGE, what)
        self.offset = offset
        self.position = position
        self.reason = reason
        self.next_offset = next_offset
        self.end = end

    def until(self, next_offset: int, end: int) -> "BadBytes":
        """Return the same error with the next sound batch."""
        return BadBytes(self.offset, self.position, self.reason, next_offset, end)


def chained_batches(
    file: Readable, position: int, next_offset: int, end: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each batch in `file[position:end]`, the first of
    `next_offset`.

    Raises BadBytes where a header does not continue what is before it, or the last batch does not
    end at `end`. If the checksum of the batch before is wrong, the error is in that one.
    """
    before: tuple[int, BatchHeader] | None = None
    reason = "no whole batch is there"
    for at, header in batch_headers(file, position, end):
        if header.magic != MAGIC or header.last_offset_delta < 0:
            reason = "no batch of this format is there"
            break
        if header.base_offset != next_offset:
            reason = f"a batch of offset {header.base_offset} is there"
            break
        yield at, header
        before, position = (at, header), at + header.size
        next_offset = header.next_offset
    if position == end:
        return
    if before is not None and not is_intact(file, *before):
        raise BadBytes(before[1].base_offset, before[0], "the checksum is wrong")
    raise BadBytes(next_offset, position, reason)


def sound_batches(
    file: Readable, position: int, next_offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield as `chained_batches`, up to the end of a segment, and leave out what is damaged."""
    while True:
        try:
            yield from chained_batches(file, position, next_offset, file.size)
            return
        except BadBytes as bad:
            found = find_batch(file, bad.position + 1, bad.offset + 1)
        if found is None:
            return
        position = found
        next_offset = read_header(file.read(found, BATCH_HEADER_BYTES)).base_offset


def is_intact(file: Readable, position: int, header: BatchHeader) -> bool:
    """Whether a batch is complete and its checksum is right."""
    return (
        header.size >= BATCH_HEADER_BYTES
        and position + header.size <= file.size
        and has_valid_crc(_window(file, position, header.size), header)
    )


def is_sound(header: BatchHeader, next_offset: int, base_offset: int) -> bool:
    """Whether a header can be that of a batch of `next_offset` or later, in a segment of that base
    offset. The content of the batch is not checked."""
    return (
        header.magic == MAGIC
        and header.size >= BATCH_HEADER_BYTES
        and header.last_offset_delta >= 0
        and next_offset <= header.base_offset
        and header.last_offset - base_offset <= RELATIVE_OFFSET_MAX
    )


def checked_batches(file: Readable, base_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each valid batch of a segment, up to the first bad byte.

    Valid: whole, magic 2, right CRC, the offset that follows the one before and is within 32 bits
    of the segment's base, and no older leader epoch than the one before.
    """
    position, end = 0, file.size
    next_offset, epoch = base_offset, NO_EPOCH
    window, start = memoryview(b""), position
    while position + BATCH_HEADER_BYTES <= end:
        at = position - start
        if at + BATCH_HEADER_BYTES > len(window):
            window, start, at = _window(file, position, CHECK_WINDOW_BYTES), position, 0
            if len(window) < BATCH_HEADER_BYTES:
                return
        header = read_header(window, at)
        size = header.size
        is_next = header.base_offset == next_offset
        if not (is_next and is_sound(header, next_offset, base_offset)) or position + size > end:
            return
        if at + size > len(window):
            window, start, at = _window(file, position, max(size, CHECK_WINDOW_BYTES)), position, 0
        if header.leader_epoch < epoch or not has_valid_crc(window[at : at + size], header):
            return
        yield position, header
        position += size
        next_offset, epoch = header.next_offset, header.leader_epoch


def _window(file: Readable, position: int, size: int) -> memoryview:
    return memoryview(file.read(position, size))


def find_batch(file: Readable, position: int, base_offset: int) -> int | None:
    """Return where, from `position` on, a valid batch of a segment of this base begins; None if
    nowhere."""
    end = file.size
    while position + BATCH_HEADER_BYTES <= end:
        window = file.read(position, CHECK_WINDOW_BYTES)
        found = window.find(MAGIC, MAGIC_POSITION)
        while found >= 0:
            at = found - MAGIC_POSITION
            if at + BATCH_HEADER_BYTES > len(window):
                break
            if _is_batch(file, position + at, read_header(window, at), base_offset):
                return position + at
            found = window.find(MAGIC, found + 1)
        position += max(1, len(window) - BATCH_HEADER_BYTES + 1)
    return None


def last_offset(file: Readable, base_offset: int) -> int | None:
    """Return the highest offset of a valid batch in a file of which any part may be bad."""
    last: int | None = None
    position = find_batch(file, 0, base_offset)
    while position is not None:
        for at, header in batch_headers(file, position, file.size):
            if not _is_batch(file, at, header, base_offset):
                break
            last = header.last_offset if last is None else max(last, header.last_offset)
            position = at + header.size
        position = find_batch(file, position, base_offset)
    return last


def _is_batch(file: Readable, position: int, header: BatchHeader, base_offset: int) -> bool:
    if not is_sound(header, base_offset, base_offset) or position + header.size > file.size:
        return False
    return has_valid_crc(_window(file, position, header.size), header)
