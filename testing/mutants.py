"""Mutants: bugs that a simulation must find, by name; each a `type[Replicas]` to run a broker with.

A checker that was never seen to fail proves nothing. So each rule that keeps a promise is broken
here once, by a subclass that replaces that one rule, and the broker's code knows nothing of it.
They are the mistakes that brokers like this one have made. What groups rest on is not made through
the replicas, and is broken by `mutated` instead.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, ModuleType
from typing import Final, NamedTuple

from minibroker.broker.controller import elections
from minibroker.broker.controller.backoff import Backoff
from minibroker.broker.controller.controller_lease import ControllerLease
from minibroker.broker.controller.elections import heard_heirs
from minibroker.broker.controller.heartbeats import Confirmation
from minibroker.broker.controller.prober import Prober
from minibroker.broker.controller.state import PartitionRecord
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.groups.shard import Shard
from minibroker.broker.replication.follower_silence import FollowerSilence
from minibroker.broker.replication.partition import Effects, Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import Leader, PendingShrink, Progress
from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest
from minibroker.testing.lab.strategies import HighWatermarkReplicas

FOR_EVER_MS: Final = 1 << 62


class HastyShrinkLeader(Leader):
    """Who is to leave counts no more, though the controller has not confirmed it (A4, K1)."""

    __slots__ = ()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The set that was asked for."""
        state = self.isr_state
        return state.proposed if isinstance(state, PendingShrink) else state.maximal_isr


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


class HastyDeletionLeader(Leader):
    """Acknowledges that records are deleted once only it has deleted them (DELETE_RECORDS)."""

    __slots__ = ()

    def low_watermark(self, log_start: int) -> int:
        """Deleted here is deleted."""
        return log_start


class LenientGrowthLeader(Leader):
    """A follower may join with records that were deleted (A3.6)."""

    __slots__ = ()

    def has_deleted(self, progress: Progress) -> bool:
        """It will hear of the deletion soon."""
        return True


class HastyDeletionPartition(Partition):
    """See its leader."""

    __slots__ = ()
    leader_type = HastyDeletionLeader


class LenientGrowthPartition(Partition):
    """See its leader."""

    __slots__ = ()
    leader_type = LenientGrowthLeader


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

    def become_leader(self, state: PartitionState, now: float) -> Effects:
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


class OverlookingReplicas(Replicas):
    """Lets fetch sessions rest when records are appended (A17)."""

    def _on_append(self, partition: Partition, now: float) -> None:
        """Nobody is notified."""
        self._collaborators.flusher.schedule(partition, now)


class HastyDeletionReplicas(Replicas):
    """See its leader."""

    partition_type = HastyDeletionPartition


class LenientGrowthReplicas(Replicas):
    """See its leader."""

    partition_type = LenientGrowthPartition


class ForgottenStartReplicas(Replicas):
    """Says where its logs start before that is durable (DELETE_RECORDS)."""

    def checkpoint_log_starts(self) -> bool:
        """The next checkpoint will come."""
        return True


MUTANTS: Final[Mapping[str, type[Replicas]]] = MappingProxyType(
    {
        "cut-at-high-watermark": HighWatermarkReplicas,
        "count-unconfirmed-shrink": HastyShrinkReplicas,
        "grow-without-epoch-start": HastyGrowthReplicas,
        "ack-before-high-watermark": HastyAckReplicas,
        "forget-producers": ForgetfulReplicas,
        "obey-stale-controller": ObedientReplicas,
        "ignore-partition-epoch": DeafReplicas,
        "overlook-appends": OverlookingReplicas,
    }
)

# Of records that clients delete.
DELETION_MUTANTS: Final[Mapping[str, type[Replicas]]] = MappingProxyType(
    {
        "acknowledge-own-deletions": HastyDeletionReplicas,
        "join-with-deleted-records": LenientGrowthReplicas,
        "forget-log-starts": ForgottenStartReplicas,
    }
)


# -- of groups: one rule is taken out of its class, for the length of a block


class Rule(NamedTuple):
    """What stands in the place of a method or a property of a class, or a function of a module."""

    owner: type | ModuleType
    name: str
    broken: object


def _outcome_of_append(shard: Shard, _end: int, registry: GroupRegistry) -> ErrorCode:
    """Written is committed (GRP-02)."""
    return ErrorCode.NONE if shard.registry is registry else ErrorCode.NOT_COORDINATOR


def _knows_its_high_watermark(shard: Shard) -> bool:
    """A new leader's high watermark may be below what its predecessor has told (GRP-01)."""
    leader = shard.leader
    return leader is not None and shard.replayed_end >= leader.high_watermark


def _whoever_commits(_group: Group, _request: OffsetCommitRequest, _now: float) -> ErrorCode:
    """A member that was put out may commit on (GRP-05)."""
    return ErrorCode.NONE


RULE_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "answer-uncommitted-commits": Rule(Shard, "outcome", _outcome_of_append),
        "serve-below-epoch-start": Rule(Shard, "may_serve", property(_knows_its_high_watermark)),
        "accept-old-generations": Rule(Group, "check_commit", _whoever_commits),
        # What the application has in its hands (K6, CCO-06).
        "commit-what-is-in-hand": Rule(
            DeliveredPositions, "uncommitted", DeliveredPositions.committable_offsets
        ),
    }
)


# -- of who is heard: as those of groups, for clusters whose wires break


def _from_receipt(lease: ControllerLease, _stamp: int, now: float) -> float:
    """The standing counts from when the confirmation came."""
    return now + lease.timeout_s


def _whatever_the_session(_prober: Prober, confirmation: Confirmation, _now: float) -> Confirmation:
    """A controller confirms past its own session."""
    return confirmation


def _whatever_was_told(_lease: ControllerLease, _told_lapse: int) -> bool:
    """Standing returns before the broker knows who leads."""
    return True


def _without_fenced(
    record: PartitionRecord, members: tuple[int, ...], fenced: frozenset[int]
) -> tuple[int, ...]:
    """The controller takes followers out that it does not hear."""
    return tuple(node for node in members if node == record.leader or node not in fenced)


def _whoever_is_heard(
    record: PartitionRecord,
    safe: tuple[int, ...],
    staying: tuple[int, ...],
    fenced: frozenset[int],
) -> tuple[int, ...]:
    """Where no heir is heard, a replica that is out of sync leads instead of one that lives."""
    heirs = heard_heirs(record, safe, staying, fenced)
    if fenced.isdisjoint(heirs):
        return heirs
    return tuple(node for node in record.replicas if node not in fenced) or heirs


def _at_once(_backoff: Backoff) -> float:
    """Who has resigned stands again."""
    return 0.0


def _not_at_all(_silence: FollowerSilence, _node_id: int, _now: float) -> None:
    """The silence of a follower counts from its first role, whatever it asks for."""


def _whoever_stays(_leader: Leader, _staying: Collection[int], _min_insync_replicas: int) -> bool:
    """A leader has silent followers leave though acks=all is refused then."""
    return True


WIRE_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "count-from-receipt": Rule(ControllerLease, "good_until", _from_receipt),
        "confirm-without-a-lease": Rule(Prober, "allowed", _whatever_the_session),
        "stand-before-roles": Rule(ControllerLease, "may_stand", _whatever_was_told),
        "put-fenced-followers-out": Rule(elections, "isr_of_leader", _without_fenced),
        "elect-out-of-sync": Rule(elections, "heard_heirs", _whoever_is_heard),
        "stand-at-once": Rule(Backoff, "draw_pause_s", _at_once),
        "ignore-fetches": Rule(FollowerSilence, "record_arrival", _not_at_all),
        "leave-too-few": Rule(Leader, "may_leave_silent", _whoever_stays),
    }
)


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Break a rule for the length of a block."""
    with patched(*(RULE_MUTANTS.get(name) or WIRE_MUTANTS[name])):
        yield


@contextmanager
def patched(owner: type | ModuleType, name: str, other: object) -> Iterator[None]:
    """Have something else in the place of a method or function for the length of a block."""
    usual = owner.__dict__[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, usual)
