"""Mutants: bugs that a simulation must find, by name; each a `type[Replicas]` to run a broker with.

A checker proves something only if it was seen to fail. So each rule that keeps a promise is broken
here once, by a subclass that replaces that one rule; the broker's code has nothing for it. The bugs
are ones that brokers like this one have had. Rules of groups are not in the replicas; `mutated`
breaks them instead. Those of transactions are in `transaction_mutants.py`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any, Final

from minibroker.broker.config import Config
from minibroker.broker.controller import elections, reassignments
from minibroker.broker.controller.backoff import Backoff
from minibroker.broker.controller.controller_lease import ControllerLease
from minibroker.broker.controller.elections import heard_heirs
from minibroker.broker.controller.heartbeats import Confirmation
from minibroker.broker.controller.prober import Prober
from minibroker.broker.controller.reassignments import ended
from minibroker.broker.controller.state import PartitionRecord, TopicRecord
from minibroker.broker.coordination.shard import CoordinatorShard
from minibroker.broker.groups import registry
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_records import (
    NO_PARTITIONS,
    ConsumerKey,
    ConsumerRecord,
    ConsumerValue,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    TopicIdPartition,
)
from minibroker.broker.groups.consumer_state import NEW_MEMBER, ConsumerState, next_assignment
from minibroker.broker.groups.convertible_group import upgraded
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.groups.subscriptions import Topics
from minibroker.broker.log import cleaning, compaction
from minibroker.broker.log.cleaning import Cleanable, Copier, find_cleanable
from minibroker.broker.log.log_segments import LogSegments
from minibroker.broker.log.newest_offsets import NewestOffsets
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.log.producers import ProducerStates
from minibroker.broker.replication.follower_silence import FollowerSilence
from minibroker.broker.replication.log_starts import CheckpointTicket, LogStartCheckpoint
from minibroker.broker.replication.partition import Effects, Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import Leader, PendingShrink, Progress
from minibroker.broker.turns import Turns
from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.protocol.constants import INT64_MAX, ErrorCode
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.records.columns import Columns
from minibroker.protocol.records.retained import filler, retain
from minibroker.protocol.types import Buffer
from minibroker.testing.lab.strategies import HighWatermarkReplicas
from minibroker.testing.rule import Rule
from minibroker.testing.transaction_mutants import TRANSACTION_MUTANTS

FOR_EVER_MS: Final = 1 << 62


class HastyShrinkLeader(Leader):
    """A member that is to leave the ISR no longer counts, before the controller has confirmed it
    (A4, K1)."""

    __slots__ = ()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The proposed set."""
        state = self.isr_state
        return state.proposed if isinstance(state, PendingShrink) else state.maximal_isr


class HastyGrowthLeader(Leader):
    """A follower may join the ISR at the high watermark, below the start of the leader epoch
    (A3.5)."""

    __slots__ = ()

    def has_reached(self, progress: Progress) -> bool:
        """Compare with the new leader's high watermark, which may be stale."""
        return progress.log_end >= self.high_watermark


class HastyAckLeader(Leader):
    """Acknowledges what only the leader has (A16)."""

    __slots__ = ()

    def is_committed(self, end: int) -> bool:
        """Count written records as committed."""
        return True


class HastyDeletionLeader(Leader):
    """Acknowledges a deletion of records that only the leader has done (DELETE_RECORDS)."""

    __slots__ = ()

    def low_watermark(self, log_start: int) -> int:
        """Count what is deleted here as deleted everywhere."""
        return log_start


class LenientGrowthLeader(Leader):
    """A follower may join the ISR with records that were deleted (A3.6)."""

    __slots__ = ()

    def has_deleted(self, progress: Progress) -> bool:
        """Do not wait until the follower has deleted them."""
        return True


class HastyDeletionPartition(Partition):
    """Has the leader of this mutant."""

    __slots__ = ()
    leader_type = HastyDeletionLeader


class LenientGrowthPartition(Partition):
    """Has the leader of this mutant."""

    __slots__ = ()
    leader_type = LenientGrowthLeader


class HastyShrinkPartition(Partition):
    """Has the leader of this mutant."""

    __slots__ = ()
    leader_type = HastyShrinkLeader


class HastyGrowthPartition(Partition):
    """Has the leader of this mutant."""

    __slots__ = ()
    leader_type = HastyGrowthLeader


class HastyAckPartition(Partition):
    """Has the leader of this mutant."""

    __slots__ = ()
    leader_type = HastyAckLeader


class ForgetfulPartition(Partition):
    """A new leader forgets the producers whose batches it replicated (A14)."""

    __slots__ = ()

    def become_leader(self, state: PartitionState, now: float) -> Effects:
        """Expire them when the leader epoch begins."""
        if state.leader_epoch > self.leader_epoch:
            self.log.producers.expire(FOR_EVER_MS)
        return super().become_leader(state, now)


class DeafPartition(Partition):
    """Compares the leader epoch alone, as if nothing could change within one (A18, RM-03)."""

    __slots__ = ()

    def is_news(self, state: PartitionState) -> bool:
        """Ignore a higher partition epoch."""
        return state.leader_epoch > self.leader_epoch


class HastyShrinkReplicas(Replicas):
    """Has the leader of this mutant."""

    partition_type = HastyShrinkPartition


class HastyGrowthReplicas(Replicas):
    """Has the leader of this mutant."""

    partition_type = HastyGrowthPartition


class HastyAckReplicas(Replicas):
    """Has the leader of this mutant."""

    partition_type = HastyAckPartition


class ForgetfulReplicas(Replicas):
    """Has the partition of this mutant."""

    partition_type = ForgetfulPartition


class DeafReplicas(Replicas):
    """Has the partition of this mutant."""

    partition_type = DeafPartition


class ObedientReplicas(Replicas):
    """Obeys a controller that was replaced (RM-01)."""

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Accept orders of any controller."""
        return False


class OverlookingReplicas(Replicas):
    """Lets fetch sessions rest when records are appended (A17)."""

    def _on_append(self, partition: Partition, now: float) -> None:
        """Notify nothing."""
        self._collaborators.flusher.schedule(partition, now)


class HastyDeletionReplicas(Replicas):
    """Has the leader of this mutant."""

    partition_type = HastyDeletionPartition


class LenientGrowthReplicas(Replicas):
    """Has the leader of this mutant."""

    partition_type = LenientGrowthPartition


class ForgottenStarts(LogStartCheckpoint):
    """Reports log starts before they are durable (DELETE_RECORDS)."""

    def ask(self) -> CheckpointTicket:
        """Leave it to the next checkpoint."""
        return CheckpointTicket(0, 0)


class ForgottenStartReplicas(Replicas):
    """Has the checkpoint of this mutant."""

    log_starts_type = ForgottenStarts


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


def _outcome_of_append(
    shard: CoordinatorShard[Any, Any, Any, Any], _end: int, registry: GroupRegistry
) -> ErrorCode:
    """Count written records as committed (GRP-02)."""
    return ErrorCode.NONE if shard.registry is registry else ErrorCode.NOT_COORDINATOR


def _knows_its_high_watermark(shard: CoordinatorShard[Any, Any, Any, Any]) -> bool:
    """Use a new leader's high watermark, which may be below its predecessor's (GRP-01)."""
    leader = shard.leader
    return leader is not None and shard.replayed_end >= leader.high_watermark


def _whoever_commits(_group: Group, _request: OffsetCommitRequest, _now: float) -> ErrorCode:
    """Let a removed member commit (GRP-05)."""
    return ErrorCode.NONE


def _whatever_is_owned(
    state: ConsumerState, member_id: str, owned: Collection[TopicIdPartition] | None
) -> CurrentAssignment:
    """Assign a partition before the member that has it has revoked it (KIP-848)."""
    return next_assignment(
        state.currents.get(member_id, NEW_MEMBER),
        state.target_epoch,
        state.targets.get(member_id, NO_PARTITIONS),
        owned,
        (),
    )


def _from_members(group: ConsumerGroup) -> None:
    """Count a group's epochs from those of its members (KIP-848)."""
    group._version += 1
    state = group._state
    epoch = 1 + max((each.epoch for each in state.currents.values()), default=0)
    if not group._journal.has(ConsumerRecord.GROUP):
        group._set(ConsumerRecord.GROUP, "", GroupEpoch(epoch, state.metadata_hash))


def _whoever_was_a_member(_group: ConsumerGroup, _member_id: str, _epoch: int) -> ErrorCode:
    """Let a removed member of the consumer protocol commit (KIP-848)."""
    return ErrorCode.NONE


def _without_targets(
    state: ConsumerState, group_id: str, records: Mapping[ConsumerKey, ConsumerValue]
) -> None:
    """Let a new coordinator begin without the target assignment (KIP-848)."""
    kept = {
        key: value for key, value in records.items() if key.kind is not ConsumerRecord.MEMBER_TARGET
    }
    STATE_OF_RECORDS(state, group_id, kept)


def _without_instance_ids(
    group: Group, group_id: str, topics: Topics
) -> Turns[dict[ConsumerKey, ConsumerValue]]:
    """Let a conversion forget which members are static (KIP-848)."""
    records = yield from UPGRADED(group, group_id, topics)
    for key, value in records.items():
        if isinstance(value, MemberMetadata):
            records[key] = value._replace(instance_id=None)
    return records


UPGRADED: Final = upgraded
STATE_OF_RECORDS: Final = ConsumerState.__init__

RULE_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "answer-uncommitted-commits": Rule(CoordinatorShard, "outcome", _outcome_of_append),
        "serve-below-epoch-start": Rule(
            CoordinatorShard, "may_serve", property(_knows_its_high_watermark)
        ),
        "accept-old-generations": Rule(Group, "check_commit", _whoever_commits),
        # The records that the application still works on (K6, CCO-06).
        "commit-delivered-records": Rule(
            DeliveredPositions, "uncommitted", DeliveredPositions.committable_offsets
        ),
        "assign-before-revoked": Rule(ConsumerState, "next_current", _whatever_is_owned),
        "count-epochs-from-members": Rule(ConsumerGroup, "_bump", _from_members),
        "commit-of-the-fenced": Rule(ConsumerGroup, "check_commit", _whoever_was_a_member),
        "convert-without-instance-ids": Rule(registry, "upgraded", _without_instance_ids),
        "forget-target-in-failover": Rule(ConsumerState, "__init__", _without_targets),
    }
)


# -- of who is heard: as those of groups, for clusters whose wires break


def _from_receipt(lease: ControllerLease, _stamp: int, now: float) -> float:
    """Count the lease from the arrival of the confirmation."""
    return now + lease.timeout_s


def _whatever_the_session(_prober: Prober, confirmation: Confirmation, _now: float) -> Confirmation:
    """Let a controller confirm past its own session."""
    return confirmation


def _whatever_is_confirmed(_lease: ControllerLease, _confirmed_lapse: int) -> bool:
    """Let the lease return before the broker knows the leaders."""
    return True


def _without_fenced(
    record: PartitionRecord, members: tuple[int, ...], fenced: frozenset[int]
) -> tuple[int, ...]:
    """Let the controller remove followers that it does not hear."""
    return tuple(node for node in members if node == record.leader or node not in fenced)


def _whoever_is_heard(
    record: PartitionRecord,
    safe: tuple[int, ...],
    staying: tuple[int, ...],
    fenced: frozenset[int],
) -> tuple[int, ...]:
    """If no heir is heard, elect a replica that is out of sync instead of a live one."""
    heirs = heard_heirs(record, safe, staying, fenced)
    if fenced.isdisjoint(heirs):
        return heirs
    return tuple(node for node in record.replicas if node not in fenced) or heirs


def _at_once(_backoff: Backoff) -> float:
    """Let a controller that has resigned stand for election at once."""
    return 0.0


def _not_at_all(_silence: FollowerSilence, _node_id: int, _now: float) -> None:
    """Count a follower's silence from its first role, whatever it asks for."""


def _whoever_stays(_leader: Leader, _staying: Collection[int], _min_insync_replicas: int) -> bool:
    """Let a leader remove silent followers although acks=all is refused then."""
    return True


WIRE_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "count-from-receipt": Rule(ControllerLease, "good_until", _from_receipt),
        "confirm-without-a-lease": Rule(Prober, "allowed", _whatever_the_session),
        "return-before-roles": Rule(ControllerLease, "may_return", _whatever_is_confirmed),
        "remove-fenced-followers": Rule(elections, "isr_of_leader", _without_fenced),
        "elect-out-of-sync": Rule(elections, "heard_heirs", _whoever_is_heard),
        "campaign-at-once": Rule(Backoff, "draw_pause_s", _at_once),
        "ignore-fetches": Rule(FollowerSilence, "record_arrival", _not_at_all),
        "shrink-below-min-isr": Rule(Leader, "may_leave_silent", _whoever_stays),
    }
)


# -- of reassignments


def _whoever_is_in_sync(_topic: TopicRecord, record: PartitionRecord, _config: Config) -> bool:
    """A reassignment ends as soon as one replica of its target is in sync."""
    return record.has_added and bool({*record.target} & {*record.isr})


def _without_former(record: PartitionRecord) -> PartitionRecord:
    """Nobody remembers the replicas that have left, so their brokers never delete them."""
    return replace(ended(record), former=())


def _whoever_fetches(_leader: Leader, progress: Progress) -> bool:
    """A follower joins with its first FETCH."""
    return progress.log_end >= 0


def _whoever_copies(_leader: Leader, _replica_id: int) -> bool:
    """A quota holds an in-sync follower back, too."""
    return False


def _at_the_high_watermark(leader: Leader, progress: Progress) -> bool:
    """A follower joins at the high watermark, which a new leader does not know yet."""
    return progress.log_end >= leader.high_watermark


def _of_no_producer(_producers: ProducerStates, *_batch: object) -> None:
    """A replica that copies forgets the producers of what it copies."""


def _without_cancelled(record: PartitionRecord) -> PartitionRecord:
    """The replicas of a move that is cancelled are not told: one that leads goes on."""
    moving, after = record.reassignment, ended(record)
    is_cancelled = moving is not None and moving.target == moving.original
    return replace(after, former=record.former) if is_cancelled else after


REASSIGNMENT_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "remove-before-successors": Rule(reassignments, "may_end", _whoever_is_in_sync),
        "join-at-once": Rule(Leader, "has_reached", _whoever_fetches),
        "join-at-the-high-watermark": Rule(Leader, "has_reached", _at_the_high_watermark),
        "leave-stray-replicas": Rule(reassignments, "ended", _without_former),
        "starve-in-sync-followers": Rule(Leader, "must_keep_up", _whoever_copies),
        "copy-without-producers": Rule(ProducerStates, "update_from_replica", _of_no_producer),
        "leave-cancelled-replicas": Rule(reassignments, "ended", _without_cancelled),
    }
)


# -- of compaction


def _everything_sealed(
    segments: LogSegments, limits: LogLimits, first_dirty: int, _last_stable: int, now_ms: int
) -> Cleanable:
    """Compact records that are not committed."""
    return find_cleanable(segments, limits, first_dirty, INT64_MAX, now_ms)


def _first_of_all(
    newest: NewestOffsets, keys: Sequence[bytes], offsets: Sequence[int]
) -> list[bool]:
    """Keep all but the newest record of a key."""
    return [not is_newest for is_newest in NEWEST(newest, keys, offsets)]


def _no_tombstone(
    header: BatchHeader,
    columns: Columns,
    is_kept: Sequence[bool],
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Let tombstones go at the next compaction."""
    return retain(header, columns, is_kept, delete_horizon_ms and 0)


def _of_the_first_epoch(base_offset: int, last_offset: int, _leader_epoch: int) -> bytearray:
    """Let fillers say that the first leader wrote what they cover."""
    return filler(base_offset, last_offset, 0)


def _no_filler(copier: Copier) -> list[Buffer]:
    """Put nothing in the place of what is gone."""
    copier._gone = None
    return []


NEWEST: Final = NewestOffsets.are_newest

COMPACTION_MUTANTS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "compact-uncommitted-records": Rule(compaction, "find_cleanable", _everything_sealed),
        "keep-superseded-records": Rule(NewestOffsets, "are_newest", _first_of_all),
        "forget-tombstones": Rule(cleaning, "retain", _no_tombstone),
        "fill-without-epochs": Rule(cleaning, "filler", _of_the_first_epoch),
        "leave-gaps": Rule(Copier, "finish", _no_filler),
    }
)


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Break a rule for the length of a block."""
    tables = (
        RULE_MUTANTS,
        WIRE_MUTANTS,
        REASSIGNMENT_MUTANTS,
        COMPACTION_MUTANTS,
        TRANSACTION_MUTANTS,
    )
    with patched(*next(table[name] for table in tables if name in table)):
        yield


@contextmanager
def patched(owner: type | ModuleType, name: str, other: object) -> Iterator[None]:
    """Replace a method or function for the length of a block."""
    usual = owner.__dict__[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, usual)
