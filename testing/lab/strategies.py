"""The old rules, each as a handful of methods that replace the broker's own.

The broker knows nothing of them: they come in as subclasses through the seams that `Partition` and
`Replicas` leave for that (docs/architecture.md, 4.8). A rule's name is what `--rule` takes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from minibroker.broker.config import TopicConfig
from minibroker.broker.log.log import Log
from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import Leader, Progress
from minibroker.protocol.constants import NO_EPOCH

LAG_MESSAGES_MAX: Final = 4000  # what replica.lag.max.messages was by default


class HighWatermarkFollower(Follower):
    """Stands for all of A11 and A12, guards included: cut at the own high watermark before the
    first fetch, never ask where the logs parted, and believe a leader whose log is shorter."""

    def begin(self, log: Log, now_ms: int) -> None:
        """What lies above the high watermark may not be committed, so away with it."""
        log.truncate_to(self.high_watermark, now_ms)

    def last_fetched_epoch(self, log: Log) -> int:
        """Without it the leader does not compare epochs."""
        return NO_EPOCH

    def may_cut_below_high_watermark(self, settings: TopicConfig) -> bool:
        """Nothing holds it back."""
        return True


class HighWatermarkPartition(Partition):
    """A partition whose follower does so."""

    __slots__ = ()
    follower_type = HighWatermarkFollower


class HighWatermarkReplicas(Replicas):
    """A broker that brings logs together by high watermark."""

    partition_type = HighWatermarkPartition


class MessageLagLeader(Leader):
    """In sync is who lacks no more than so many messages, however long it has lacked them."""

    __slots__ = ()

    def is_caught_up(self, progress: Progress, own_end: int, now: float) -> bool:
        """The count alone decides."""
        return own_end - progress.log_end <= LAG_MESSAGES_MAX


class MessageLagPartition(Partition):
    """A partition whose leader counts so."""

    __slots__ = ()
    leader_type = MessageLagLeader


class MessageLagReplicas(Replicas):
    """A broker whose in-sync sets are a matter of messages."""

    partition_type = MessageLagPartition


# "epoch" and "time" are what this broker does.
RULES: Final[Mapping[str, type[Replicas]]] = MappingProxyType(
    {
        "epoch": Replicas,
        "time": Replicas,
        "hw": HighWatermarkReplicas,
        "lag-messages": MessageLagReplicas,
    }
)
