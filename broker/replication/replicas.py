"""Every replica that this broker holds: the registry, and the only way in which roles change.

The controller's orders come in as LEADER_AND_ISR, STOP_REPLICA and UPDATE_METADATA. All are
level-triggered: an order that was obeyed before is answered like a new one and changes nothing.
They are ordered by controller epoch, and meant for one registration of this broker, as a whole, and
by (leader epoch, partition epoch) for each partition, so what arrives late or twice cannot undo
what is newer. A topic id that differs from the local one means another topic of the same name:
nothing is done to the one that is here.

Before a replica changes its term its fetcher lets go of it, at once: no copied record can land
behind the point where a new leader's term begins (RM-05).

A log that cannot be made because the disk has no room (or the process no file left) leaves that one
partition without a replica: its requests get KAFKA_STORAGE_ERROR, the order is kept, and `retry`
obeys it when there is room. The other partitions go on. A log that lost records (`damage`) never
leads. It follows, from where the loss begins, once the controller has taken it out of the in-sync
set and somebody else leads; else it is offline until an operator accepts the loss.

After anything that may let a waiting request go on (an append, a flush, another role, another
setting) the partition's name is notified in the purgatory. That is the whole coupling: a request's
attempt looks at the partition again.

Rejected: a registry that also answers clients. That is in `server/handlers`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import trio

from minibroker.broker.config import NOTHING, Config, TopicConfig
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.validate import Refused
from minibroker.broker.metadata.cache import merged
from minibroker.broker.metadata.model import BrokerImage, ClusterImage
from minibroker.broker.replication.descriptions import (
    confirmed_text,
    damage_text,
    describe,
    describe_log,
    proposal_text,
    role_text,
)
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.isr import IsrChanges
from minibroker.broker.replication.partition import NO_CHANGE, Change, Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.roles import (
    FollowerFetch,
    Host,
    IsrProposal,
    Leader,
    Offline,
)
from minibroker.protocol.constants import EPOCH_DURING_DELETE, NO_EPOCH, NO_NODE, ErrorCode
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionAltered,
    PartitionObeyed,
    PartitionState,
    StoppedPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)
from minibroker.protocol.types import Endpoint, TopicPartition

logger = logging.getLogger(__name__)


class Copier(Protocol):
    """Who copies from other brokers. Nothing here waits."""

    def assign(self, partition: Partition) -> None:
        """Copy from the leader that its `Follower` role names, as soon as its endpoint is known."""

    def unassign(self, name: TopicPartition) -> None:
        """Copy it no more. When this returns nothing copied can reach its log any more."""

    def set_endpoints(self, endpoints: Mapping[int, Endpoint]) -> None:
        """Where these brokers are; of others what was known still holds."""

    def note_flushed(self, partition: Partition) -> None:
        """A partition's log is durable further than before."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What replicas work with.

    `wall_ms` is the wall clock in milliseconds; `broker_epoch` that of the present registration,
    -1 before the first.
    """

    manager: LogManager
    purgatory: Purgatory
    flusher: Flusher
    copier: Copier
    isr_changes: IsrChanges
    wall_ms: Callable[[], int]
    broker_epoch: Callable[[], int]


class Statistics(NamedTuple):
    """Counts of now. `offline` have no role that serves or copies."""

    partitions: int
    leaders: int
    offline: int


class Replicas:
    """See the head of this module. `image` is the cluster as last told.

    `ready` is set once a controller has told all roles and the whole cluster.
    """

    partition_type: ClassVar[type[Partition]] = Partition

    def __init__(self, config: Config, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        self._host = Host(config.node_id, config.replica_lag_time_max_ms / 1000, self._live_broker)
        self._partitions: dict[TopicPartition, Partition] = {}
        # Orders that could not be obeyed for want of room; never of a name in `_partitions`.
        self._unmade: dict[TopicPartition, PartitionState] = {}
        self._controller_epoch = NO_EPOCH
        self._has_all_roles = False
        self._is_image_whole = False
        self.image = ClusterImage()
        self.ready = trio.Event()
        parts.flusher.on_flushed = self.note_flushed

    # -- the registry

    @property
    def is_ready(self) -> bool:
        """Whether a controller has told all roles and the whole cluster."""
        return self.ready.is_set()

    @property
    def broker_id(self) -> int:
        """Of this broker."""
        return self._host.broker_id

    @property
    def broker_epoch(self) -> int:
        """Of its present registration, -1 before the first."""
        return self._parts.broker_epoch()

    def get(self, name: TopicPartition) -> Partition | None:
        """The replica of this name, whatever its role."""
        return self._partitions.get(name)

    def is_unmade(self, name: TopicPartition) -> bool:
        """Whether it belongs here, but there was no room for its log yet."""
        return name in self._unmade

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """For the checkpoint."""
        return {name: partition.high_watermark for name, partition in self._partitions.items()}

    def statistics(self) -> Statistics:
        """Counts of now."""
        partitions = self._partitions.values()
        offline = sum(isinstance(partition.role, Offline) for partition in partitions)
        leaders = sum(partition.is_leader for partition in partitions)
        return Statistics(len(partitions), leaders, offline + len(self._unmade))

    def describe(self, request: DescribeReplicasRequest, now: float) -> DescribeReplicasResponse:
        """How far every replica is, those that have no role yet too."""
        found = []
        for name, log in self._parts.manager.logs.items():
            if request.topics is None or name.topic in request.topics:
                partition = self._partitions.get(name)
                found.append(
                    describe_log(log) if partition is None else describe(partition, self.broker_id)
                )
        return DescribeReplicasResponse(self.broker_id, self.broker_epoch, tuple(found))

    def _live_broker(self, node_id: int) -> BrokerImage | None:
        return self.image.brokers.get(node_id)

    # -- what the controller orders

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Whether a request comes from a controller that was replaced (RM-01)."""
        return controller_epoch < self._controller_epoch

    def _refusal(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        """Why a whole request is refused, or NONE: then its controller is the one to obey."""
        if self.is_stale_controller(controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.broker_epoch == NO_EPOCH or broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        self._controller_epoch = max(self._controller_epoch, controller_epoch)
        return ErrorCode.NONE

    def update_metadata(self, request: UpdateMetadataRequest, now: float) -> UpdateMetadataResponse:
        """Take over how the cluster stands, and the settings of its topics."""
        error = self._refusal(request.controller_epoch, request.broker_epoch)
        if not error:
            self.image, removed, reconfigured = merged(self.image, request)
            for topic in removed:
                logger.info("topic %s is deleted", topic)
            for topic in reconfigured:
                self._reconfigure(topic, now)
            self._parts.copier.set_endpoints(
                {node_id: broker.endpoint for node_id, broker in self.image.brokers.items()}
            )
            self._is_image_whole |= request.is_full
            self._note_readiness()
        return UpdateMetadataResponse(error)

    def take_roles(self, request: LeaderAndIsrRequest, now: float) -> LeaderAndIsrResponse:
        """Take the roles of an order (A18)."""
        error = self._refusal(request.controller_epoch, request.broker_epoch)
        if error:
            return LeaderAndIsrResponse(error)
        if request.is_full:
            self._set_strays_aside(request.partitions)
        self._parts.copier.set_endpoints(
            {broker.node_id: Endpoint(broker.host, broker.port) for broker in request.brokers}
        )
        obeyed = tuple(self._obey(state, now) for state in request.partitions)
        self._has_all_roles |= request.is_full
        self._note_readiness()
        return LeaderAndIsrResponse(ErrorCode.NONE, obeyed)

    def stop(self, request: StopReplicaRequest, now: float) -> StopReplicaResponse:
        """Give replicas up. What is not here was given up before."""
        error = self._refusal(request.controller_epoch, request.broker_epoch)
        if error:
            return StopReplicaResponse(error)
        obeyed = tuple(self._stop(stopped) for stopped in request.partitions)
        return StopReplicaResponse(ErrorCode.NONE, obeyed)

    def retry(self, now: float) -> None:
        """Make the logs for which there was no room before; called now and then."""
        for name, state in list(self._unmade.items()):
            if not self._obey(state, now).error:
                logger.info("%s is made", name)

    def _reconfigure(self, topic: str, now: float) -> None:
        """A topic has these settings from now on."""
        settings = self._settings(topic)
        topic_id = self.image.topics[topic].id
        for name, partition in self._partitions.items():
            if name.topic == topic and partition.topic_id == topic_id:
                partition.settings = settings
                partition.log.limits = settings.limits()
                self._parts.flusher.reschedule(partition, now)
                partition.advance(now)
                self._parts.purgatory.notify(name)

    def _settings(self, topic: str) -> TopicConfig:
        image = self.image.topics.get(topic)
        return self._config.for_topic(NOTHING if image is None else image.configs)

    def _note_readiness(self) -> None:
        if self._has_all_roles and self._is_image_whole:
            self.ready.set()

    def _set_strays_aside(self, states: Iterable[PartitionState]) -> None:
        """A log that the metadata does not know is kept, but in nobody's way."""
        manager = self._parts.manager
        known = {TopicPartition(s.topic, s.partition): s.topic_id for s in states}
        for name, log in manager.logs.items():
            if name in self._partitions or known.get(name) == log.topic_id:
                continue
            if name in known and not log.topic_id and log.log_start == log.log_end:
                manager.claim(name, known[name])
            else:
                manager.set_aside(name)

    # -- one partition of an order

    def _obey(self, state: PartitionState, now: float) -> PartitionObeyed:
        name = TopicPartition(state.topic, state.partition)
        try:
            error = self._take_role(name, state, now)
        except Refused as refused:  # for want of room
            error = refused.code
        partition = self._partitions.get(name)
        if partition is None:
            return PartitionObeyed(*name, error)
        return PartitionObeyed(*name, error, *partition.version)

    def _take_role(self, name: TopicPartition, state: PartitionState, now: float) -> ErrorCode:
        if self.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        log = self._parts.manager.get(name)
        if log is not None and log.topic_id != state.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        partition = self._partitions.get(name) or self._open(name, state)
        if (state.leader_epoch, state.partition_epoch) < partition.version:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.is_news(state):
            change = self._change_role(partition, state, now)
            self._parts.flusher.reschedule(partition, now)
            self._see_to(partition, change, now)
            self._parts.purgatory.notify(name)
            if len(state.replicas) > 1:
                self._log(partition, role_text(partition))
        return ErrorCode.NONE

    def _open(self, name: TopicPartition, state: PartitionState) -> Partition:
        """The log that was found at start, or a new one. Raises `Refused` if there is no room."""
        settings = self._settings(name.topic)
        manager = self._parts.manager
        log = manager.get(name)
        if log is None:
            try:
                log = manager.create(name, state.topic_id, settings.limits(), self._parts.wall_ms())
            except Refused as refused:
                if name not in self._unmade:
                    logger.error("%s is offline until its log can be made: %s", name, refused)
                self._unmade[name] = state
                raise
        else:
            log.limits = settings.limits()
        self._unmade.pop(name, None)
        partition = self._partitions[name] = self.partition_type(self._host, log, settings)
        return partition

    def _change_role(self, partition: Partition, state: PartitionState, now: float) -> Change:
        if partition.follows(state):
            partition.become_follower(state)
            return NO_CHANGE
        self._parts.copier.unassign(partition.topic_partition)
        if state.leader == NO_NODE and partition.log.damage is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            partition.become_offline(state, error, "nobody leads it")
        elif not self._is_sound(partition, state):
            error = ErrorCode.KAFKA_STORAGE_ERROR
            partition.become_offline(state, error, damage_text(partition.log))
        elif state.leader == self.broker_id:
            return partition.become_leader(state, now)
        else:
            partition.become_follower(state)
            self._parts.copier.assign(partition)
        return NO_CHANGE

    def _is_sound(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the log can take the role: not damaged, or cut where it is and copied anew.

        That loses nothing if the others hold it all: the controller has taken this replica out of
        the in-sync set, and another one leads. Raises `Refused` if the disk is full.
        """
        log = partition.log
        if log.damage is None:
            return True
        if state.leader in (self.broker_id, NO_NODE) or self.broker_id in state.isr:
            return False
        logger.warning(
            "%s: cut at offset %d, where records were lost (%s), to be copied from broker %d",
            *(log.topic_partition, log.damage.offset, log.damage.reason, state.leader),
        )
        # The cut first: until it is done the log must go on saying that it is damaged.
        log.truncate_to(log.damage.offset, self._parts.wall_ms())
        log.accept_damage()
        return True

    def _stop(self, stopped: StoppedPartition) -> PartitionObeyed:
        name = TopicPartition(stopped.topic, stopped.partition)
        manager = self._parts.manager
        partition = self._partitions.get(name)
        if partition is None:
            unmade = self._unmade.get(name)
            if unmade is not None and unmade.topic_id == stopped.topic_id:
                del self._unmade[name]
            log = manager.get(name)
            if stopped.delete and log is not None and log.topic_id == stopped.topic_id:
                manager.delete(name, self._parts.wall_ms())
            return PartitionObeyed(*name)
        if partition.topic_id != stopped.topic_id:
            return PartitionObeyed(*name, ErrorCode.NONE, *partition.version)
        if EPOCH_DURING_DELETE != stopped.leader_epoch < partition.leader_epoch:
            return PartitionObeyed(*name, ErrorCode.FENCED_LEADER_EPOCH, *partition.version)
        self._parts.copier.unassign(partition.topic_partition)
        partition.go_offline(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was stopped")
        if stopped.delete:
            self._parts.flusher.forget(partition)
            del self._partitions[name]
            manager.delete(name, self._parts.wall_ms())
        self._parts.purgatory.notify(name)
        return PartitionObeyed(*name, ErrorCode.NONE, *partition.version)

    # -- what happens to a partition

    def note_append(self, partition: Partition, now: float) -> None:
        """Records were appended: wake who waits for them, and see to their flush."""
        self._parts.purgatory.notify(partition.topic_partition)
        self._parts.flusher.note_append(partition, now)

    def note_flushed(self, partition: Partition, now: float) -> None:
        """Its log is durable further than before."""
        partition.advance(now)
        self._parts.purgatory.notify(partition.topic_partition)
        self._parts.copier.note_flushed(partition)

    def note_fetch(self, partition: Partition, fetch: FollowerFetch, now: float) -> None:
        """A follower's read was granted."""
        change = partition.note_fetch(fetch, now)
        if change is not NO_CHANGE:
            self._see_to(partition, change, now)

    def review_isrs(self, now: float) -> None:
        """Ask for the removal of followers that fell behind; called by timer."""
        for partition in self._partitions.values():
            self._see_to(partition, partition.review(now), now)

    def resolve(self, proposal: IsrProposal, answer: PartitionAltered, now: float) -> bool:
        """The controller's answer to a proposal; False if it shall be asked again."""
        partition = self._partitions.get(TopicPartition(proposal.topic, proposal.partition))
        if partition is None or partition.topic_id != proposal.topic_id:
            return True
        version = partition.version
        change = partition.resolve(proposal, answer, now)
        if change is None:
            return False
        self._see_to(partition, change, now)
        role = partition.role
        if partition.version != version and isinstance(role, Leader):
            self._log(partition, confirmed_text(partition, role))
            # A waiting acks=all may have too few replicas now, or enough.
            self._parts.purgatory.notify(partition.topic_partition)
        return True

    def _see_to(self, partition: Partition, change: Change, now: float) -> None:
        if change.high_watermark_rose:
            self._parts.purgatory.notify(partition.topic_partition)
        role = partition.role
        if change.proposal is not None and isinstance(role, Leader):
            pending = change.proposal.pending
            now_ms = self._parts.wall_ms()
            self._log(partition, proposal_text(partition, role, pending, now, now_ms))
            self._parts.isr_changes.put(change.proposal)

    def _log(self, partition: Partition, text: str) -> None:
        logger.info("[Partition %s broker=%d] %s", partition.topic_partition, self.broker_id, text)
