"""Which refused batches are logged: one line for each client and error in a while.

A producer shows its application an error at best. Some send a refused batch again without end, and
some drop it without a word; then only the broker's log says why nothing arrives.
"""

from typing import Final

from minibroker.protocol.constants import ErrorCode

INTERVAL_S: Final = 60.0
KINDS_MAX: Final = 1_000
REASON_CHARS_MAX: Final = 300
CLIENT_ID_CHARS_MAX: Final = 100
# What a producer does wrong. The other errors are about leaders, replicas and disks.
LOGGED: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
    }
)


class _Kind:
    """Batches of one client that were refused with one error, since a line was written."""

    def __init__(self, logged_at: float) -> None:
        self.logged_at = logged_at
        self.count = 0


class RefusedBatches:
    """See the head of this file. Times are trio's, in seconds."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, ErrorCode], _Kind] = {}  # logged last is last

    def record(
        self, client_id: str, peer: str, code: ErrorCode, reason: str, now: float
    ) -> str | None:
        """Return the line about a refused batch of a client (host:port); None for no line."""
        if code not in LOGGED:
            return None
        host = peer.rpartition(":")[0] or peer
        client_id = client_id[:CLIENT_ID_CHARS_MAX]
        key = client_id, host, code
        kind = self._kinds.get(key)
        if kind is not None and now - kind.logged_at < INTERVAL_S:
            kind.count += 1
            return None
        more = f" ({kind.count} more since the last such line)" if kind and kind.count else ""
        self._kinds.pop(key, None)
        self._kinds[key] = _Kind(now)
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        text = reason[:REASON_CHARS_MAX]
        return f"refused a batch of client {client_id!r} at {host}: {code.name}: {text}{more}"
