"""The topics whose producers stamp records far from this broker's clock, for `doctor`.

Such records are taken: a producer may fill in old data. But times in seconds instead of
milliseconds are 50 years old, and retention deletes them at its next check. The broker remembers
the last such batch of each topic, of a bounded number of topics, until it stops.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

FAR_MS: Final = 24 * 3_600_000
TOPICS_MAX: Final = 64


class FarStamp(NamedTuple):
    """The largest timestamp of the last such batch, when that was appended (both ms), and how many
    such batches there were."""

    timestamp: int
    appended_ms: int
    batch_count: int


class FarStamps:
    """See the head of this module."""

    def __init__(self) -> None:
        self._by_topic: OrderedDict[str, FarStamp] = OrderedDict()

    def record(self, topic: str, timestamp: int, now_ms: int) -> None:
        """Record the largest timestamp of an appended batch, if it is far from the clock."""
        if abs(now_ms - timestamp) <= FAR_MS:
            return
        before = self._by_topic.pop(topic, None)
        count = 1 if before is None else before.batch_count + 1
        self._by_topic[topic] = FarStamp(timestamp, now_ms, count)
        if len(self._by_topic) > TOPICS_MAX:
            self._by_topic.popitem(last=False)

    def statistics(self) -> dict[str, FarStamp]:
        """Return the topics, the one of the latest batch last."""
        return dict(self._by_topic)
