"""Walking over the batches of a log file: fast hops over headers, and the full check.

`batch_headers` trusts the file (it was checked when it was written, or by recovery) and reads only
what it must: windows of 16 KB while batches are small, single headers when they are large.
`checked_batches` trusts nothing and is what recovery uses: large reads, one CRC per batch, no work
per record; its speed is that of reading the file once. `find_batch` looks for a batch behind bytes
that are none, which is how recovery tells damage from a torn tail.
"""

from collections.abc import Iterator

from minibroker.broker.log.files import File
from minibroker.broker.log.index import RELATIVE_OFFSET_MAX
from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC, NO_EPOCH
from minibroker.protocol.records.batch import BatchHeader, has_valid_crc, read_header

HOP_WINDOW_BYTES = 16 * 1024
# Large reads, but small enough that the allocator reuses the memory instead of mapping it anew.
CHECK_WINDOW_BYTES = 1024 * 1024
MAGIC_POSITION = 16


def batch_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in `file[position:end]`, unchecked."""
    window, start = b"", position
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


def is_sound(header: BatchHeader, next_offset: int, base_offset: int) -> bool:
    """Whether a header can follow in a segment of that base; what the batch holds is unchecked."""
    return (
        header.magic == MAGIC
        and header.size >= BATCH_HEADER_BYTES
        and header.last_offset_delta >= 0
        and next_offset <= header.base_offset
        and header.last_offset - base_offset <= RELATIVE_OFFSET_MAX
    )


def checked_batches(file: File, base_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each valid batch of a segment; ends at the first bad byte.

    Valid: whole, magic 2, right CRC, an offset not below the end of the one before and within 32
    bits of the segment's base, and no older leader epoch than the one before.
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
        if not is_sound(header, next_offset, base_offset) or position + size > end:
            return
        if at + size > len(window):
            window, start, at = _window(file, position, max(size, CHECK_WINDOW_BYTES)), position, 0
        if header.leader_epoch < epoch or not has_valid_crc(window[at : at + size], header):
            return
        yield position, header
        position += size
        next_offset, epoch = header.next_offset, header.leader_epoch


def _window(file: File, position: int, size: int) -> memoryview:
    return memoryview(file.read(position, size))


def find_batch(file: File, position: int, base_offset: int) -> int | None:
    """Where, from `position` on, a valid batch of a segment of this base begins, if anywhere."""
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


def last_offset(file: File, base_offset: int) -> int | None:
    """The highest offset of a valid batch anywhere in a file, of which any part may be bad."""
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


def _is_batch(file: File, position: int, header: BatchHeader, base_offset: int) -> bool:
    if not is_sound(header, base_offset, base_offset) or position + header.size > file.size:
        return False
    return has_valid_crc(_window(file, position, header.size), header)
