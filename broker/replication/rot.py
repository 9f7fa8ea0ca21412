"""Bytes of a leader's own log that are not what was written any more.

Nobody reads a whole log to see whether its disk still has it: that is done at recovery, and by who
is sent the bytes. A follower refuses a batch whose checksum is wrong, and asks for it again. So a
leader that is asked twice for the same records checks what it has sent; mostly the bytes were
harmed, or lost, on the way, and nothing comes of it.

If they are bad here, the sound copies are at the other members of the in-sync set, and the leader
has to give the partition up: one of them leads, and this replica is cut where the loss begins and
copies again, as after a recovery that found it (REC-03). A leader that is alone in its in-sync set
may have the only copy of all the rest. It goes on, and says which records nobody can read.
"""

from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import Damage
from minibroker.protocol.records.batch import InvalidBatch, iterate_headers

CHECKED_BYTES_MAX = 1024 * 1024  # more than that only for one batch that is larger


def find_rot(log: Log, offset: int) -> Damage | None:
    """Where the records from an offset on turn bad, if they do. Raises an `OSError` of the disk."""
    parts = log.read(offset, CHECKED_BYTES_MAX, log.log_end)
    records = memoryview(b"".join(bytes(part.read()) for part in parts))
    try:
        batches = check_batches(records)
    except InvalidBatch as invalid:
        return Damage(_sound_end(records, offset), str(invalid))
    if batches.headers:
        # What no checksum covers; of all other batches the next one tells.
        last = batches.headers[-1][1]
        if last.next_offset > log.log_end or last.leader_epoch > log.epochs.newest_epoch:
            reason = f"offset {last.base_offset} or epoch {last.leader_epoch} is above the log's"
            return Damage(_sound_end(records, offset), reason)
    return None


def _sound_end(records: memoryview, offset: int) -> int:
    """The offset behind the batches that are sound. Rather too low than too high: what is cut too
    much is copied again. So a gap counts as bad, and everything if only the order is wrong."""
    end = offset
    try:
        for position, header in iterate_headers(records):
            check_batches(records[position : position + header.size])
            if header.base_offset != end:
                return end
            end = header.next_offset
    except InvalidBatch:
        return end
    return offset
