"""Bugs that a simulation must find: each a `type[Replicas]` to run a broker with, by its name.

A checker that was never seen to fail proves nothing. So each rule that keeps a promise is broken
here once, by a subclass that replaces that one rule, and the broker's code knows nothing of it.
They are the mistakes that brokers like this one have made.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from minibroker.broker.replication.partition import Change, Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import Leader, PendingShrink, Progress
from minibroker.protocol.messages.control import PartitionState
from minibroker.testing.lab.strategies import HighWatermarkReplicas

FOR_EVER_MS: Final = 1 << 62


class HastyShrinkLeader(Leader):
    """Who is to leave counts no more, though the controller has not confirmed it (A4, K1)."""

    __slots__ = ()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The set that was asked for."""
        state = self.isr_state
        return state.wanted if isinstance(state, PendingShrink) else state.maximal_isr


class HastyGrowthLeader(Leader):
    """A follower may join at the high watermark, though the term began above it (A3.5)."""

    __slots__ = ()

    def has_reached(self, progress: Progress) -> bool:
        """The new leader's high watermark may be stale."""
        return progress.log_end >= self.high_watermark


class HastyAckLeader(Leader):
    """Acknowledges what only it has (A16)."""

    __slots__ = ()

    def is_committed(self, end: int) -> bool:
        """Written is committed."""
        return True


class HastyShrinkPartition(Partition):
    """See its leader."""

    __slots__ = ()
    leader_type = HastyShrinkLeader


class HastyGrowthPartition(Partition):
    """See its leader."""

    __slots__ = ()
    leader_type = HastyGrowthLeader


class HastyAckPartition(Partition):
    """See its leader."""

    __slots__ = ()
    leader_type = HastyAckLeader


class ForgetfulPartition(Partition):
    """A new leader does not know the producers whose batches it copied (A14)."""

    __slots__ = ()

    def become_leader(self, state: PartitionState, now: float) -> Change:
        """They expire when the term begins."""
        if state.leader_epoch > self.leader_epoch:
            self.log.producers.expire(FOR_EVER_MS)
        return super().become_leader(state, now)


class DeafPartition(Partition):
    """Looks at the leader epoch alone, as if nothing could change within a term (A18, RM-03)."""

    __slots__ = ()

    def is_news(self, state: PartitionState) -> bool:
        """A higher partition epoch alone is no news."""
        return state.leader_epoch > self.leader_epoch


class HastyShrinkReplicas(Replicas):
    """See its leader."""

    partition_type = HastyShrinkPartition


class HastyGrowthReplicas(Replicas):
    """See its leader."""

    partition_type = HastyGrowthPartition


class HastyAckReplicas(Replicas):
    """See its leader."""

    partition_type = HastyAckPartition


class ForgetfulReplicas(Replicas):
    """See its partition."""

    partition_type = ForgetfulPartition


class DeafReplicas(Replicas):
    """See its partition."""

    partition_type = DeafPartition


class ObedientReplicas(Replicas):
    """Obeys a controller that was replaced (RM-01)."""

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Whoever gives orders is the controller."""
        return False


PLANTED: Final[Mapping[str, type[Replicas]]] = MappingProxyType(
    {
        "cut-at-high-watermark": HighWatermarkReplicas,
        "count-unconfirmed-shrink": HastyShrinkReplicas,
        "grow-without-epoch-start": HastyGrowthReplicas,
        "ack-before-high-watermark": HastyAckReplicas,
        "forget-producers": ForgetfulReplicas,
        "obey-stale-controller": ObedientReplicas,
        "ignore-partition-epoch": DeafReplicas,
    }
)
