"""Corruption: bytes of a leader's own log that are no longer what was written.

A broker does not verify the checksums of a log that it serves; recovery and receiving followers do.
A follower refuses a batch whose checksum is wrong, and fetches it again. So a leader that is asked
twice for the same records checks what it has sent. Usually the bytes were corrupted or lost on the
way, and the check finds nothing. Impossible headers where a read begins or ends are found by the
leader itself (`broker/log/runs.py`), which handles them the same way.

If the leader's bytes are corrupt, the other in-sync replicas have sound copies, and the leader
gives the partition up: one of them leads, and this replica truncates its log where the loss begins
and replicates the rest, as after a recovery that found the loss (REC-03). A leader that is alone in
its in-sync set may have the only copy of all other records. It continues to lead, and logs which
records cannot be read.
"""

from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import Damage
from minibroker.broker.log.scan import BadBytes
from minibroker.protocol.records.batch import InvalidBatch, iterate_headers
from minibroker.protocol.types import StaleSlice

CHECKED_BYTES_MAX = 1024 * 1024  # exceeded only by a single larger batch


def find_corruption(log: Log, offset: int) -> Damage | None:
    """Return the first corruption at or after an offset, or None. Raises `OSError`.

    Where no file descriptor is free to look, none is found: the follower asks again.
    """
    room = CHECKED_BYTES_MAX
    while room > 0 and offset < log.log_end:
        try:
            parts = log.read(offset, room, log.log_end)
            records = memoryview(b"".join(bytes(part.read()) for part in parts))
        except BadBytes as bad:
            return Damage(bad.offset, bad.message)
        except (Refused, StaleSlice):
            return None
        offset, flaw = _sound_end(log, records, offset)
        if flaw:
            return Damage(offset, flaw)
        room -= max(1, len(records))
    return None


def _sound_end(log: Log, records: memoryview, offset: int) -> tuple[int, str]:
    """Return the offset after the sound batches, and what is wrong with the next ("": nothing).

    Unlike a read, this checks every batch completely.
    """
    end = offset
    try:
        for position, header in iterate_headers(records):
            check_batches(records[position : position + header.size])
            if header.base_offset > end or (position and header.base_offset < end):
                return end, f"base offset {header.base_offset} instead of {end}"
            epoch = log.epochs.epoch_at(header.base_offset, header.leader_epoch)
            if header.leader_epoch != epoch:
                return end, f"leader epoch {header.leader_epoch}, and {epoch} wrote them"
            end = header.next_offset
    except InvalidBatch as invalid:
        return end, str(invalid)
    return end, "" if end > offset else f"no whole batch in {len(records)} bytes"
