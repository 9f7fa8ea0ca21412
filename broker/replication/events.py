"""Rate-limited log lines about single partitions.

A failover affects every partition of a broker. The first `LINES_MAX` lines of a second are logged;
after the second, one line says how many more there were.
"""

import logging
from typing import Final

from minibroker.protocol.types import TopicPartition

LINES_MAX: Final = 20  # a second
WINDOW_S: Final = 1.0

logger = logging.getLogger(__name__)


class PartitionEvents:
    """See the head of this module. `flush` is called periodically."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._begun_at = 0.0
        self._count = 0

    def record(self, name: TopicPartition, text: str, now: float) -> None:
        """Log that something happened to a partition."""
        self.flush(now)
        if not self._count:
            self._begun_at = now
        self._count += 1
        if self._count <= LINES_MAX:
            logger.info("[Partition %s broker=%d] %s", name, self._broker_id, text)

    def flush(self, now: float) -> None:
        """Log how many lines were left out, if the second is over."""
        if self._count and now - self._begun_at >= WINDOW_S:
            if self._count > LINES_MAX:
                more = self._count - LINES_MAX
                logger.info("[Broker id=%d] (and %d more like these)", self._broker_id, more)
            self._count = 0
