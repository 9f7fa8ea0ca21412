"""Corruption: bytes of a leader's own log that are no longer what was written.

A broker does not verify the checksums of a log that it serves; recovery and receiving followers do.
A follower refuses a batch whose checksum is wrong, and fetches it again. So a leader that is asked
twice for the same records checks what it has sent. Mostly the bytes were corrupted or lost on the
way, and the check finds nothing. Impossible headers the leader finds itself, where a read begins or
ends (`broker/log/runs.py`), and treats them alike.

If the leader's bytes are bad, the other members of the in-sync set have sound copies, and the
leader gives the partition up: one of them leads, and this replica truncates its log where the loss
begins and copies again, as after a recovery that found the loss (REC-03). A leader that is alone in
its in-sync set may have the only copy of all other records. It goes on, and says which records
cannot be read.
"""

from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import Damage
from minibroker.broker.log.scan import BadBytes
from minibroker.protocol.records.batch import InvalidBatch, iterate_headers

CHECKED_BYTES_MAX = 1024 * 1024  # more than that only for one batch that is larger


def find_corruption(log: Log, offset: int) -> Damage | None:
    """Return where the records from an offset on become bad, if they do. Raises `OSError`."""
    room = CHECKED_BYTES_MAX
    while room > 0 and offset < log.log_end:
        try:
            parts = log.read(offset, room, log.log_end)
        except BadBytes as bad:
            return Damage(bad.offset, bad.message)
        records = memoryview(b"".join(bytes(part.read()) for part in parts))
        offset, flaw = _sound_end(log, records, offset)
        if flaw:
            return Damage(offset, flaw)
        room -= max(1, len(records))
    return None


def _sound_end(log: Log, records: memoryview, offset: int) -> tuple[int, str]:
    """The offset behind the batches that are sound, and what is wrong with the next ("": nothing).

    Here, unlike in a read, every batch is looked at, and all of it.
    """
    end = offset
    try:
        for position, header in iterate_headers(records):
            check_batches(records[position : position + header.size])
            if header.base_offset > end or (position and header.base_offset < end):
                return end, f"offset {header.base_offset} where {end} must follow"
            epoch = log.epochs.epoch_at(header.base_offset, header.leader_epoch)
            if header.leader_epoch != epoch:
                return end, f"leader epoch {header.leader_epoch}, and {epoch} wrote them"
            end = header.next_offset
    except InvalidBatch as invalid:
        return end, str(invalid)
    return end, "" if end > offset else f"no whole batch in {len(records)} bytes"
