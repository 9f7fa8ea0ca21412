"""The rules under which a scenario is played: the broker's own, and others to compare with.

Each other rule replaces a few methods. The broker does not know of them: they come in as subclasses
through the seams that `Partition` and `Replicas` leave for that. A rule's name is what `--rule`
takes. `SETTINGS` are the properties that only an old rule has.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from minibroker.broker.config import TopicConfig
from minibroker.broker.errors import Refused
from minibroker.broker.log.log import Log
from minibroker.broker.log.producers import AppendedBatch, ProducerStates
from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.partition import Effects, Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import Leader, LocalBroker, Progress
from minibroker.protocol.constants import CACHED_BATCHES, NO_EPOCH, ErrorCode
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.types import OffsetAndEpoch, TopicPartition
from minibroker.testing.lab.transaction_coordinator import LabCoordinator, SameEpochCoordinator

LAG_MESSAGES: Final = "replica.lag.max.messages"
# Each with its old default.
SETTINGS: Final[Mapping[str, int]] = MappingProxyType({LAG_MESSAGES: 4000})
Settings = Mapping[str, str]


class HighWatermarkFollower(Follower):
    """Stands for all of A11 and A12, guards included: cut at the own high watermark before the
    first fetch, never ask where the logs parted, and believe a leader whose log is shorter."""

    def begin(self, log: Log, now_ms: int) -> None:
        """What lies above the high watermark may not be committed, so away with it."""
        log.truncate_to(self.high_watermark, now_ms)

    def last_fetched_epoch(self, log: Log) -> int:
        """Without it the leader does not compare epochs."""
        return NO_EPOCH

    def may_truncate_below_high_watermark(self, log: Log, settings: TopicConfig) -> bool:
        """Nothing holds it back."""
        return True


class HighWatermarkPartition(Partition):
    """A partition whose follower does so."""

    __slots__ = ()
    follower_type = HighWatermarkFollower


class HighWatermarkReplicas(Replicas):
    """A broker that brings logs together by high watermark."""

    partition_type = HighWatermarkPartition


def with_partition(type_of_partition: type[Partition]) -> type[Replicas]:
    """Return a broker whose partitions are of another type."""

    class OtherReplicas(Replicas):
        partition_type = type_of_partition

    return OtherReplicas


def with_leader(type_of_leader: type[Leader]) -> type[Replicas]:
    """Return a broker whose leaders are of another type."""

    class OtherPartition(Partition):
        __slots__ = ()
        leader_type = type_of_leader

    return with_partition(OtherPartition)


class MessageLagLeader(Leader):
    """The rule of Kafka before 0.9: a follower is out of sync if it lacks more messages than
    `lag_messages_max`, or if its last FETCH is longer ago than `replica.lag.time.max.ms`."""

    __slots__ = ()
    lag_messages_max: ClassVar[int] = SETTINGS[LAG_MESSAGES]

    def is_caught_up(self, progress: Progress, own_end: int, now: float) -> bool:
        """Return whether the follower is neither slow nor stuck. A term begins like a FETCH."""
        is_slow = own_end - max(0, progress.log_end) > self.lag_messages_max
        fetched_at = max(progress.fetched_at, progress.caught_up_at)
        return not is_slow and now - fetched_at <= self._local_broker.lag_s_max


def message_lag_replicas(settings: Settings) -> type[Replicas]:
    """Return a broker that counts messages, with the number that the settings name."""

    class CountingLeader(MessageLagLeader):
        __slots__ = ()
        lag_messages_max = int(settings.get(LAG_MESSAGES, SETTINGS[LAG_MESSAGES]))

    return with_leader(CountingLeader)


class NoSequenceProducers(ProducerStates):
    """Ignores the stamps of producers, as Kafka did before 0.11."""

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Return None: every batch is a new one."""
        return None


class LastBatchProducers(ProducerStates):
    """Remembers one batch of a producer, as Kafka 0.11 did."""

    batches_max = 1


class SixBatchProducers(ProducerStates):
    """Remembers one batch more than this broker does."""

    batches_max = CACHED_BATCHES + 1


class RefuseUnknownProducers(ProducerStates):
    """Has a producer that it does not know begin at sequence 0, as Kafka did before 2.5."""

    def check_unknown(self, header: BatchHeader) -> None:
        """Raise `Refused`: UNKNOWN_PRODUCER_ID."""
        if header.base_sequence != 0:
            raise Refused(ErrorCode.UNKNOWN_PRODUCER_ID, "it is not known here")


def producer_replicas(producers_type: type[ProducerStates]) -> type[Replicas]:
    """Return a broker that judges the stamps of producers by other states."""

    class JudgingPartition(Partition):
        __slots__ = ()

        def __init__(self, local_broker: LocalBroker, log: Log, settings: TopicConfig) -> None:
            super().__init__(local_broker, log, settings)
            producers = producers_type(log.producers.expiration_ms)
            producers.load(log.producers.dump())
            log.producers = producers

    return with_partition(JudgingPartition)


class TimedLeader(Leader):
    """Looks at its high watermark only when the timer says so."""

    is_time = False

    def advance(self, own_end: int, min_insync_replicas: int, now: float) -> bool:
        """Raise the high watermark, if it is time."""
        return self.is_time and super().advance(own_end, min_insync_replicas, now)


class TimedPartition(Partition):
    """See its leader."""

    __slots__ = ()
    leader_type = TimedLeader

    def review(self, now: float) -> Effects:
        """It is time."""
        role = self.role
        if isinstance(role, TimedLeader):
            role.is_time = True
        change = super().review(now)
        if isinstance(role, TimedLeader):
            role.is_time = False
        return change


class AppendedLeader(Leader):
    """What it has appended counts as committed, though no other replica has it."""

    __slots__ = ()

    def is_committed(self, end: int) -> bool:
        """Return True: acks=all is acknowledged at once."""
        return True


class AppendedPartition(Partition):
    """Acknowledges, and shows to consumers, what is appended."""

    __slots__ = ()
    leader_type = AppendedLeader

    def readable_end(
        self, replica_id: int, leader_epoch: int = NO_EPOCH, isolation_level: int = 0
    ) -> int:
        """Return the log end, for consumers too."""
        super().readable_end(replica_id, leader_epoch)
        return self.log.log_end


class NoMinIsrLeader(Leader):
    """Does not ask how many replicas are in sync."""

    __slots__ = ()

    def is_isr_large_enough(self, min_insync_replicas: int) -> bool:
        """Return True: append, and raise the high watermark, however few there are."""
        return True

    def is_acknowledgeable(self, min_insync_replicas: int) -> bool:
        """Return True: acknowledge, however few there are."""
        return True


class JoinAtOnceLeader(Leader):
    """Any follower that asks may join the in-sync set."""

    __slots__ = ()

    def has_reached(self, progress: Progress) -> bool:
        """Return True, whatever the follower has."""
        return True


class NearestOffsetPartition(Partition):
    """Answers an offset outside of its log with the nearest one inside, as if logs had parted."""

    __slots__ = ()

    def divergence(self, fetch_offset: int, last_fetched_epoch: int) -> OffsetAndEpoch | None:
        """Return the log start or end where the offset is not between them."""
        start, end = self.log.log_start, self.log.log_end
        if start <= fetch_offset <= end:
            return super().divergence(fetch_offset, last_fetched_epoch)
        return OffsetAndEpoch(max(start, min(fetch_offset, end)), self.leader_epoch)


class UnstablePartition(Partition):
    """Shows readers of committed records what is replicated, though it may still be aborted."""

    __slots__ = ()

    def readable_end(
        self, replica_id: int, leader_epoch: int = NO_EPOCH, isolation_level: int = 0
    ) -> int:
        """Return the high watermark, whatever transactions are open below it."""
        return super().readable_end(replica_id, leader_epoch)


class EarlyRetentionReplicas(Replicas):
    """A broker whose retention also deletes what is not committed."""

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the log ends instead."""
        return {name: partition.log.log_end for name, partition in self.partitions.items()}


class UnfencedReplicas(Replicas):
    """A broker that obeys every order, however old its epochs are."""

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Return False: whoever gives orders is the controller."""
        return False

    def obey_roles(self, request: LeaderAndIsrRequest, now: float) -> LeaderAndIsrResponse:
        """Forget newer orders first."""
        for state in request.partitions:
            epochs = (state.leader_epoch, state.partition_epoch)
            self._forget_above(TopicPartition(state.topic, state.partition), epochs)
        return super().obey_roles(request, now)

    def stop(self, request: StopReplicaRequest, now: float) -> StopReplicaResponse:
        """Forget newer orders first."""
        for stopped in request.partitions:
            name = TopicPartition(stopped.topic, stopped.partition)
            self._forget_above(name, (stopped.leader_epoch, NO_EPOCH))
        return super().stop(request, now)

    def _forget_above(self, name: TopicPartition, epochs: tuple[int, int]) -> None:
        partition = self.get(name)
        if partition is not None and epochs < partition.version:
            partition.version = (NO_EPOCH, NO_EPOCH)


class Rule(NamedTuple):
    """What a rule replaces: the broker's replicas, that its store compares before it writes, or the
    coordinator of transactions."""

    replicas_type: type[Replicas] = Replicas
    store_compares: bool = True
    coordinator_type: type[LabCoordinator] = LabCoordinator


def _always(rule: Rule) -> Callable[[Settings], Rule]:
    return lambda settings: rule


OURS: Final = _always(Rule())
# Each by the settings of a run. Every scenario has a name of its own for what this broker does.
RULES: Final[Mapping[str, Callable[[Settings], Rule]]] = MappingProxyType(
    {
        "epoch": OURS,
        "hw": _always(Rule(HighWatermarkReplicas)),
        "time": OURS,
        "lag-messages": lambda settings: Rule(message_lag_replicas(settings)),
        "sequences": OURS,
        "no-sequences": _always(Rule(producer_replicas(NoSequenceProducers))),
        "one-batch": _always(Rule(producer_replicas(LastBatchProducers))),
        "six-batches": _always(Rule(producer_replicas(SixBatchProducers))),
        "refuse-unknown": _always(Rule(producer_replicas(RefuseUnknownProducers))),
        "compare": OURS,
        "no-compare": _always(Rule(store_compares=False)),
        "causes": OURS,
        "by-timer": _always(Rule(with_partition(TimedPartition))),
        "fencing": OURS,
        "no-fencing": _always(Rule(UnfencedReplicas)),
        "committed": OURS,
        "appended": _always(Rule(with_partition(AppendedPartition))),
        "range": OURS,
        "nearest-offset": _always(Rule(with_partition(NearestOffsetPartition))),
        "early-retention": _always(Rule(EarlyRetentionReplicas)),
        "min-isr": OURS,
        "no-min-isr": _always(Rule(with_leader(NoMinIsrLeader))),
        "reached": OURS,
        "join-at-once": _always(Rule(with_leader(JoinAtOnceLeader))),
        "next-epoch": OURS,
        "same-epoch": _always(Rule(coordinator_type=SameEpochCoordinator)),
        "stable": OURS,
        "unstable": _always(Rule(with_partition(UnstablePartition))),
    }
)
