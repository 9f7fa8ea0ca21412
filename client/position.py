"""One assigned partition of a consumer: where it stands. Written by client/positions.py alone."""

from collections import deque
from typing import Final

from minibroker.client.chunks import Chunk
from minibroker.client.errors import PositionError
from minibroker.client.trail import Trail
from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET
from minibroker.protocol.types import TopicPartition

# After an error that passes, doubling; a new leader is often there within a few of these.
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 0.2


class Position:
    """One assigned partition.

    Either it has a position, or `reset_to` says what is to be asked for (the sentinel for the
    latest or the earliest offset), or there is a failure. `retry_at` is when to ask at the soonest,
    and `trail` tells the leader epochs of what was fetched.
    """

    __slots__ = (
        "chunks",
        "failed_epoch",
        "failure",
        "failures",
        "fetch_offset",
        "high_watermark",
        "is_out_of_range",
        "is_paused",
        "name",
        "position",
        "reset_to",
        "retry_at",
        "trail",
    )

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.is_paused = False
        self.high_watermark = NO_OFFSET
        self.seek(None, None)

    def seek(self, offset: int | None, reset_to: int | None) -> None:
        """Go on from `offset`, or from what `reset_to` will turn out to be."""
        self.position = offset
        self.fetch_offset = offset
        self.reset_to = reset_to
        self.chunks: deque[Chunk] = deque()
        self.failure: tuple[type[PositionError], str] | None = None
        self.is_out_of_range = False
        self.failures = 0
        self.failed_epoch = NO_EPOCH
        self.retry_at = float("-inf")
        self.trail = Trail()

    def cut(self, offset: int) -> None:
        """Go on from `offset`, which is not ahead, and keep the trail of what lies before it."""
        trail = self.trail
        trail.cut(offset)
        self.seek(offset, None)
        self.trail = trail

    def may_ask(self, leader_epoch: int, now: float) -> bool:
        """Whether nothing has failed lately. A new leader is a new try (CPR-13, for consumers)."""
        return self.retry_at <= now or leader_epoch > self.failed_epoch

    def defer(self, now: float, leader_epoch: int) -> None:
        """An error that passes, under this epoch of the leader: ask again a little later."""
        self.failed_epoch = leader_epoch
        self.retry_at = now + min(RETRY_S * 2 ** min(self.failures, 10), RETRY_S_MAX)
        self.failures += 1

    @property
    def is_fetchable(self) -> bool:
        """Whether more is wanted of it, were there room."""
        return (
            self.fetch_offset is not None
            and self.failure is None
            and not self.is_out_of_range
            and not self.is_paused
        )
