"""What happens to partitions, for the operator: few lines, however many partitions.

A broker that fails over has something to say of each of its partitions. The first lines of a second
are logged as they are, and how many more there were is said when it is over.
"""

import logging
from typing import Final

from minibroker.protocol.types import TopicPartition

LINES_MAX: Final = 20  # a second
WINDOW_S: Final = 1.0

logger = logging.getLogger(__name__)


class Events:
    """See the head of this module. `flush` is called now and then."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._begun_at = 0.0
        self._count = 0

    def note(self, name: TopicPartition, text: str, now: float) -> None:
        """Something happened to a partition."""
        self.flush(now)
        if not self._count:
            self._begun_at = now
        self._count += 1
        if self._count <= LINES_MAX:
            logger.info("[Partition %s broker=%d] %s", name, self._broker_id, text)

    def flush(self, now: float) -> None:
        """Say how many lines were left out, if the second is over."""
        if self._count and now - self._begun_at >= WINDOW_S:
            if self._count > LINES_MAX:
                more = self._count - LINES_MAX
                logger.info("[Broker id=%d] (and %d more like these)", self._broker_id, more)
            self._count = 0
