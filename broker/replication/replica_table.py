"""The table of the replicas on this broker: it creates them, gives them roles, deletes them.

This module turns the controller's order about one partition into a role. Orders are numbered by
(leader epoch, partition epoch), so a late or repeated order cannot undo a newer one. An order whose
topic id differs from the local one means another topic of the same name; it changes nothing.

Before a replica enters a new term, its fetcher stops copying it, at once: no copied record can be
appended after the offset where a new leader's term begins (RM-05).

If the disk is full (or the process has no file descriptor left), a partition's log cannot be
created. Then that partition has no replica: its requests get KAFKA_STORAGE_ERROR, the order is
kept, and `retry` obeys it later. The other partitions are not affected. The same holds for a log in
a log directory that has failed or is missing (`take_off`), until a start finds it. A log that lost
records (`damage`) never leads. It follows, truncated where the loss begins, once the controller has
removed it from the in-sync set and another replica leads; otherwise it is offline until an operator
accepts the loss. A leader whose bytes turn out to be corrupt gives up the partition
(`corruption.py`).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from minibroker.broker.config import TopicConfig
from minibroker.broker.errors import Refused
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import Damage
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.replication.corruption import find_corruption
from minibroker.broker.replication.descriptions import (
    Uncreated,
    damage_text,
    describe_all,
    old_metadata_text,
    proposal_text,
    role_text,
)
from minibroker.broker.replication.events import PartitionEvents
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.isr_proposals import IsrProposals
from minibroker.broker.replication.partition import NO_EFFECTS, Effects, Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.broker.replication.roles import Leader, LocalBroker
from minibroker.broker.replication.statistics import Traffic
from minibroker.broker.turns import Turns
from minibroker.protocol.constants import EPOCH_DURING_DELETE, NO_EPOCH, NO_NODE, ErrorCode
from minibroker.protocol.messages.control import (
    PartitionObeyed,
    PartitionState,
    StoppedPartition,
)
from minibroker.protocol.messages.leaders import (
    HandOverRequest,
    PartitionHandedOver,
    PartitionToHandOver,
)
from minibroker.protocol.messages.replicas import ReplicaDescription
from minibroker.protocol.types import Endpoint, TopicPartition

logger = logging.getLogger(__name__)


class Fetchers(Protocol):
    """The fetchers, which copy from other brokers. No method waits."""

    quota: ReplicationQuota

    def assign(self, partition: Partition) -> None:
        """Copy from the leader that its `Follower` role names, once its endpoint is known."""

    def unassign(self, name: TopicPartition) -> None:
        """Stop copying it. After this call no copied record reaches its log."""

    def set_endpoints(self, endpoints: Mapping[int, Endpoint]) -> None:
        """Set the endpoints of these brokers. Endpoints of other brokers stay as they are."""

    def on_flushed(self, partition: Partition) -> None:
        """Handle a flush: a partition's log is durable further than before."""


class Broker(Protocol):
    """The broker that replicas belong to, as they see it. No method waits."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of its current registration, -1 before the first."""

    def on_damage(self) -> None:
        """Handle a log that turned out to be damaged: the controller must learn of it."""

    def on_topic_removed(self, topic: str, now: float) -> None:
        """Handle the deletion of a topic, or its replacement by another topic of the same name."""


@dataclass(frozen=True, slots=True)
class Collaborators:
    """The parts of a broker that its replicas work with; `wall_ms` is the wall clock in ms."""

    manager: LogManager
    purgatory: Purgatory
    flusher: Flusher
    fetchers: Fetchers
    isr_proposals: IsrProposals
    wall_ms: Callable[[], int]
    broker: Broker


class ReplicaTable:
    """See the head of this module. `settings_of` returns the settings of a topic.

    `partitions` holds the replicas here, whatever their role. `uncreated` holds the orders whose
    log could not be created (disk full). No name is in both. Other modules only read them.
    """

    def __init__(
        self,
        collaborators: Collaborators,
        local_broker: LocalBroker,
        partition_type: type[Partition],
        settings_of: Callable[[str], TopicConfig],
    ) -> None:
        self._collaborators = collaborators
        self._local_broker = local_broker
        self._partition_type = partition_type
        self._settings_of = settings_of
        self.partitions: dict[TopicPartition, Partition] = {}
        self.uncreated: dict[TopicPartition, Uncreated] = {}
        self.events = PartitionEvents(local_broker.broker_id)
        self.gone = Traffic()  # of replicas that were deleted
        self._reported_corruption: dict[
            TopicPartition, Damage
        ] = {}  # the damage that was last logged

    def obey(self, state: PartitionState, now: float) -> PartitionObeyed:
        """Give a partition the role that the controller wants (A18)."""
        name = TopicPartition(state.topic, state.partition)
        try:
            error = self._apply_role(name, state, now)
        except Refused as refused:  # the disk is full, or no descriptor is free
            error = refused.code
        partition = self.partitions.get(name)
        if partition is None:
            return PartitionObeyed(*name, error)
        return PartitionObeyed(*name, error, *partition.version)

    def _apply_role(self, name: TopicPartition, state: PartitionState, now: float) -> ErrorCode:
        if self._local_broker.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self.partitions.get(name) or self._open(name, state, now)
        if partition.topic_id != state.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if (state.leader_epoch, state.partition_epoch) < partition.version:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.is_news(state):
            effects = self._change_role(partition, state, now)
            self._collaborators.flusher.reschedule(partition, now)
            self.perform(partition, effects, now)
            self._collaborators.purgatory.notify(name)
            if len(state.replicas) > 1:
                self.events.record(name, role_text(partition), now)
        return ErrorCode.NONE

    def _open(self, name: TopicPartition, state: PartitionState, now: float) -> Partition:
        """Open the log that was found at start, or create one. Raises `Refused` in a shortage."""
        settings = self._settings_of(name.topic)
        manager = self._collaborators.manager
        self._make_way(name, state.topic_id)
        log = manager.get(name)
        is_new = log is None
        if log is None:
            try:
                log = manager.create(
                    name, state.topic_id, settings.limits(), self._collaborators.wall_ms()
                )
            except Refused as refused:
                if name not in self.uncreated:
                    logger.error("%s is offline until its log can be made: %s", name, refused)
                self.uncreated[name] = Uncreated(state, refused.message)
                raise
        else:
            log.limits = settings.limits()
        self.uncreated.pop(name, None)
        partition = self.partitions[name] = self._partition_type(self._local_broker, log, settings)
        if is_new:
            self._collaborators.flusher.schedule_created(partition, now)
        return partition

    def _make_way(self, name: TopicPartition, topic_id: bytes) -> None:
        """Make sure that a log of this name without a role, if there is one, is of this topic.

        This topic claims a log without a topic id. If it has records it is damaged: it does not
        lead with them before an operator accepts that. A log of another topic is set aside.
        """
        manager = self._collaborators.manager
        log = manager.get(name)
        if log is None or log.topic_id == topic_id:
            return
        if not log.topic_id:
            manager.claim(name, topic_id)
        else:
            manager.set_aside(name)

    def _change_role(self, partition: Partition, state: PartitionState, now: float) -> Effects:
        if partition.follows(state):
            partition.become_follower(state)
            partition.follower().isr = state.isr
            return NO_EFFECTS
        self._collaborators.fetchers.unassign(partition.topic_partition)
        if state.leader == NO_NODE and partition.log.damage is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            partition.become_offline(state, error, "nobody leads it")
        elif not self._is_sound(partition, state):
            error = ErrorCode.KAFKA_STORAGE_ERROR
            partition.become_offline(state, error, damage_text(partition.log))
        elif state.leader != self._local_broker.broker_id:
            partition.become_follower(state)
            self._collaborators.fetchers.assign(partition)
        elif state.leader_epoch < partition.log.epochs.newest_epoch:
            # Batches appended under an epoch that was used before could not be told apart from
            # those already in the logs.
            reason = old_metadata_text(partition.log, state)
            logger.error("%s is not led: %s", partition.topic_partition, reason)
            partition.become_offline(state, ErrorCode.KAFKA_STORAGE_ERROR, reason)
        else:
            return partition.become_leader(state, now)
        return NO_EFFECTS

    def _is_sound(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the log can take the role: it is not damaged, or was truncated at the damage.

        Truncation loses nothing if the other replicas hold all records: it happens only once the
        controller has removed this replica from the in-sync set and another one leads. The follower
        then replicates the rest. Raises `Refused` if the disk is full.
        """
        log = partition.log
        if log.damage is None:
            return True
        if state.leader == NO_NODE or self._local_broker.broker_id in state.isr:
            return False
        logger.warning(
            "%s: cut at offset %d, where records were lost (%s), to be copied from broker %d",
            log.topic_partition,
            log.damage.offset,
            log.damage.reason,
            state.leader,
        )
        # Truncate first: until that is done the log must stay marked as damaged.
        try:
            log.truncate_to(log.damage.offset, self._collaborators.wall_ms())
        except BadBytes as bad:  # there is more damage, below
            log.truncate_to(bad.offset, self._collaborators.wall_ms())
        log.accept_damage()
        return True

    def give_up(self, stopped: StoppedPartition) -> PartitionObeyed:
        """Stop serving a partition. One that is not here counts as stopped before."""
        name = TopicPartition(stopped.topic, stopped.partition)
        partition = self.partitions.get(name)
        version = (NO_EPOCH, NO_EPOCH) if partition is None else partition.version
        if partition is not None and partition.topic_id != stopped.topic_id:
            return PartitionObeyed(*name, ErrorCode.NONE, *version)
        if self._is_assigned_since(name, stopped):
            return PartitionObeyed(*name, ErrorCode.FENCED_LEADER_EPOCH, *version)
        if partition is None:
            self._delete_unopened(name, stopped)
            return PartitionObeyed(*name)
        self._collaborators.fetchers.unassign(partition.topic_partition)
        partition.go_offline(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was stopped")
        if stopped.delete:
            self._collaborators.flusher.forget(partition)
            del self.partitions[name]
            self._reported_corruption.pop(name, None)
            self.gone.add(partition.traffic)
            self._collaborators.manager.delete(name, self._collaborators.wall_ms())
        self._collaborators.purgatory.notify(name)
        return PartitionObeyed(*name, ErrorCode.NONE, *version)

    def _is_assigned_since(self, name: TopicPartition, stopped: StoppedPartition) -> bool:
        """Whether a state newer than the one that stops a replica has assigned it."""
        if stopped.leader_epoch == EPOCH_DURING_DELETE:
            return False
        partition, uncreated = self.partitions.get(name), self.uncreated.get(name)
        known = (NO_EPOCH, NO_EPOCH)
        if partition is not None:
            known = partition.version
        elif uncreated is not None and uncreated.state.topic_id == stopped.topic_id:
            known = uncreated.state.leader_epoch, uncreated.state.partition_epoch
        if stopped.partition_epoch == NO_EPOCH:
            return stopped.leader_epoch < known[0]
        log = self._collaborators.manager.get(name)
        if log is not None and log.topic_id == stopped.topic_id:
            # A log that is newer than the order means that the store is an old copy.
            known = max(known, (log.epochs.newest_epoch, NO_EPOCH))
        return (stopped.leader_epoch, stopped.partition_epoch) < known

    def _delete_unopened(self, name: TopicPartition, stopped: StoppedPartition) -> None:
        """Delete a replica without a role: its log that was found at start, or its wish for one."""
        manager = self._collaborators.manager
        uncreated = self.uncreated.get(name)
        if uncreated is not None and uncreated.state.topic_id == stopped.topic_id:
            del self.uncreated[name]
        log = manager.get(name)
        is_ours = log is not None and log.topic_id == stopped.topic_id
        if stopped.delete and (is_ours or name in manager.offline):
            manager.delete(name, self._collaborators.wall_ms())

    def hand_over(self, request: HandOverRequest, now: float) -> tuple[PartitionHandedOver, ...]:
        """Prepare the election of other replicas (see `Leader.hand_over`)."""
        until = now + request.hold_ms / 1000
        return tuple(self._hand_over(wanted, now, until) for wanted in request.partitions)

    def _hand_over(
        self, wanted: PartitionToHandOver, now: float, until: float
    ) -> PartitionHandedOver:
        name = TopicPartition(wanted.topic, wanted.partition)
        partition = self.partitions.get(name)
        if partition is None or partition.topic_id != wanted.topic_id:
            return PartitionHandedOver(*name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            is_ready = partition.hand_over(wanted.leader_epoch, wanted.target, now, until)
        except Refused as refused:
            return PartitionHandedOver(*name, refused.code)
        return PartitionHandedOver(*name, is_ready=is_ready)

    def describe(
        self, topics: Collection[str] | None, now: float
    ) -> Turns[list[ReplicaDescription]]:
        """Describe the replicas of these topics (None: of all), also those without a role or a
        log."""
        logs = self._collaborators.manager.logs
        found = yield from describe_all(
            logs, self.partitions, self.uncreated, self._local_broker.broker_id, now
        )
        return [replica for replica in found if topics is None or replica.topic in topics]

    def check(self, partition: Partition, offset: int) -> None:
        """Check the records at an offset, because a follower asks for them again."""
        damage = find_corruption(partition.log, offset)
        if damage is not None:
            self.on_corruption(partition, damage)

    def on_corruption(self, partition: Partition, damage: Damage) -> None:
        """Handle corrupt bytes here: let another replica lead, if one is in sync.

        Otherwise this replica may have the only copy of all other records: it continues to lead,
        and logs what is corrupt.
        """
        role, log = partition.role, partition.log
        if not isinstance(role, Leader):
            return
        if self._reported_corruption.get(log.topic_partition) != damage:
            self._reported_corruption[log.topic_partition] = damage
            logger.error("%s has bad bytes at offset %d: %s", log.topic_partition, *damage)
        if role.minimal_isr == (self._local_broker.broker_id,):
            return
        log.record_damage(damage)
        partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR, damage_text(log))
        self._collaborators.purgatory.notify(log.topic_partition)
        self._collaborators.broker.on_damage()

    def retry(self, clock: Callable[[], float]) -> Turns[None]:
        """Create the logs that could not be created before (disk full); called periodically."""
        offline = self._collaborators.manager.offline
        for name, uncreated in list(self.uncreated.items()):
            is_wanted = self.uncreated.get(name) is uncreated and name not in offline
            if is_wanted and not self.obey(uncreated.state, clock()).error:
                logger.info("%s is made", name)
            yield

    def take_off(self, names: Iterable[TopicPartition]) -> None:
        """Take off the replicas whose logs are offline: each has no log until a start finds it."""
        for name in names:
            partition = self.partitions.pop(name, None)
            if partition is None:
                continue
            reason = self._collaborators.manager.why_offline(name)
            self._collaborators.fetchers.unassign(name)
            partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR, reason)
            self._collaborators.flusher.forget(partition)
            self._reported_corruption.pop(name, None)
            self.gone.add(partition.traffic)
            here = self._local_broker.broker_id
            last = PartitionState(
                name.topic,
                partition.topic_id,
                name.partition,
                NO_NODE,
                *partition.version,
                (),
                (here,),
            )
            self.uncreated[name] = Uncreated(last, reason)
            self._collaborators.purgatory.notify(name)

    def set_strays_aside(self) -> None:
        """Set aside each log without a role, once every role was sent. Its files are kept."""
        for name in self._collaborators.manager.logs:
            if name not in self.partitions:
                self._collaborators.manager.set_aside(name)

    def perform(self, partition: Partition, effects: Effects, now: float) -> None:
        """Carry out the effects of a change: notify waiting requests, log and queue a proposal."""
        if effects.high_watermark_rose:
            self._collaborators.purgatory.notify(partition.topic_partition)
        role = partition.role
        if effects.proposal is not None and isinstance(role, Leader):
            pending = effects.proposal.pending
            now_ms = self._collaborators.wall_ms()
            text = proposal_text(partition, role, pending, now, now_ms)
            self.events.record(partition.topic_partition, text, now)
            self._collaborators.isr_proposals.put(effects.proposal)
