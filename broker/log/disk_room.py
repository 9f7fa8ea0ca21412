"""How much room the logs of a log directory still have, and which appends are refused for want of
it.

A disk that is full to the last byte stops more than producers. So there are two limits: the free
space of the disk at which producers' records are refused (`log.dirs.min.free.bytes`), and the bytes
that all logs may have (`log.dirs.max.bytes`). What is written below them:

| append | refused |
|---|---|
| a producer's records, by the leader | at either limit |
| the same records, by a follower | once half of the free space that is kept is used up, too |
| internal topics (committed offsets, transactions), and the markers of transactions | never |

With several log directories each has its own free space. The bytes are those of all logs of the
broker; between two looks a directory counts only its own appends.

A producer's batch that was appended before is a duplicate, as ever: a producer whose answer was
lost learns that its records are there. Roles, trims, deletions, retention, compaction and
checkpoints go on, because they make room, or need little. The bytes of the logs bind leaders
alone: a follower that stopped at them would only leave the in-sync set.

The refusal is KAFKA_STORAGE_ERROR, as on a full disk. Clients keep the batch and send it again, in
order, until their delivery timeout; POLICY_VIOLATION would fail it at once.

This object does no I/O. `observe` gets the sizes every few seconds, and in between every append is
counted.
"""

import math
from typing import Final, NamedTuple

from minibroker.broker.errors import Refused
from minibroker.protocol.constants import ErrorCode

NOT_KNOWN: Final = -1
NOT_LIMITED: Final = -1
BY_SIZE: Final = -1  # of the disk
FREE_BYTES_KEPT: Final = 512 << 20
FREE_SHARE_KEPT: Final = 20  # a twentieth of a smaller disk
AGAIN: Final = "there is room again: records are taken"


class RoomStatistics(NamedTuple):
    """The limits and what is used of them, in bytes; -1 for what is not known or not limited."""

    free_bytes: int = NOT_KNOWN
    free_bytes_min: int = NOT_KNOWN
    log_bytes: int = NOT_KNOWN
    log_bytes_max: int = NOT_LIMITED
    is_short: bool = False


class DiskRoom:
    """See the head of this file. `free_bytes_min` is -1 for a limit that suits the disk, and
    `log_bytes_max` for none. Until the first `observe` nothing is refused."""

    __slots__ = (
        "_free_bytes",
        "_free_bytes_min",
        "_free_kept",
        "_log_bytes",
        "_was_short",
        "_writable",
        "_written",
        "log_bytes_max",
    )

    def __init__(self, free_bytes_min: int = BY_SIZE, log_bytes_max: int = NOT_LIMITED) -> None:
        self.log_bytes_max = log_bytes_max
        self._free_bytes_min = free_bytes_min
        self._free_kept = 0  # the limit that is in force
        self._free_bytes = NOT_KNOWN  # as observed, like the bytes of the logs
        self._log_bytes = 0
        self._written = 0  # since then
        self._writable = math.inf  # how much of it is no shortage
        self._was_short = False

    def of_other_disk(self) -> "DiskRoom":
        """Return the room of another log directory of the same broker."""
        return DiskRoom(self._free_bytes_min, self.log_bytes_max)

    @property
    def needs_log_bytes(self) -> bool:
        """Whether `observe` needs the bytes of the logs."""
        return self.log_bytes_max != NOT_LIMITED

    def observe(self, free_bytes: int, total_bytes: int, log_bytes: int = 0) -> str:
        """Take the disk's sizes and the bytes of all logs, as they are now; -1 if not known.

        Return a line for the log if records are refused from now on, or taken again; else "".
        """
        self._free_kept = max(0, self._free_bytes_min)
        if self._free_bytes_min == BY_SIZE:
            self._free_kept = max(0, min(FREE_BYTES_KEPT, total_bytes // FREE_SHARE_KEPT))
        self._free_bytes, self._log_bytes, self._written = free_bytes, log_bytes, 0
        free, logs = math.inf, math.inf
        if free_bytes >= 0 and self._free_kept:
            free = free_bytes - self._free_kept + 1  # what is kept may be all that is free
        if self.needs_log_bytes:
            logs = self.log_bytes_max - log_bytes
        self._writable = min(free, logs)
        shortage = self._shortage()
        if bool(shortage) == self._was_short:
            return ""
        self._was_short = bool(shortage)
        return f"records are refused: {shortage}" if shortage else AGAIN

    def on_written(self, size: int) -> None:
        """Count the bytes of an append until the next `observe`."""
        self._written += size

    def check_records(self) -> None:
        """Raise Refused if a leader must not append a producer's records now."""
        if self._written >= self._writable:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, self._shortage())

    def check_copies(self) -> None:
        """Raise Refused if a follower must not append a producer's records now."""
        if self._free_bytes >= 0 and self._free < self._free_kept // 2:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, self._too_little_free())

    @property
    def _free(self) -> int:
        """The free bytes, if they are known."""
        return max(0, self._free_bytes - self._written)

    def _shortage(self) -> str:
        """Return why records are refused; "" if they are not."""
        if self._written < self._writable:
            return ""
        if self._free_bytes >= 0 and self._free < self._free_kept:
            return self._too_little_free()
        return (
            f"the logs have {self._log_bytes + self._written} bytes, and log.dirs.max.bytes is"
            f" {self.log_bytes_max}: delete records or topics, or raise it"
        )

    def _too_little_free(self) -> str:
        return (
            f"{self._free} bytes are free on the disk, and log.dirs.min.free.bytes keeps"
            f" {self._free_kept}: delete records or topics, or give it room"
        )

    def statistics(self) -> RoomStatistics:
        """Return the limits and what is used of them now."""
        return RoomStatistics(
            self._free if self._free_bytes >= 0 else NOT_KNOWN,
            self._free_kept if self._free_bytes >= 0 else NOT_KNOWN,
            self._log_bytes + self._written if self.needs_log_bytes else NOT_KNOWN,
            self.log_bytes_max,
            bool(self._shortage()),
        )
