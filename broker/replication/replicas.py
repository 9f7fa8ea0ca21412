"""Every replica that this broker holds: the registry, and the only way in which roles change.

The controller's orders come in as `LeaderAndIsr` and `StopReplica`. Both are level-triggered: an
order that was obeyed before is answered like a new one and changes nothing. They are ordered by
controller epoch as a whole and by (leader epoch, partition epoch) for each partition, so what
arrives late or twice cannot undo what is newer. A topic id that differs from the local one means
another topic of the same name: nothing is done to the one that is here.

A log that cannot be made because the disk has no room (or the process no file left) leaves that one
partition without a replica: its requests get KAFKA_STORAGE_ERROR, the order is kept, and `retry`
obeys it when there is room. The other partitions go on.

After anything that may let a waiting request go on (an append, a flush, another role, another
setting) the partition's name is notified in the purgatory. That is the whole coupling: a request's
attempt looks at the partition again.

Rejected: a registry that also answers requests. Those are in `server/handlers`.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from minibroker.broker.config import NOTHING, Config
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.validate import Refused
from minibroker.broker.metadata.model import (
    EPOCH_DURING_DELETE,
    LeaderAndIsr,
    PartitionState,
    StoppedPartition,
    StopReplica,
)
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.protocol.constants import NO_EPOCH, ErrorCode
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)


class Obeyed(NamedTuple):
    """What became of one partition of an order; the epochs are those now in force here."""

    topic_partition: TopicPartition
    error: ErrorCode
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH


class Statistics(NamedTuple):
    """Counts of now."""

    partitions: int
    offline: int


class Replicas:
    """See the head of this module. `wall_ms` is the wall clock in milliseconds."""

    def __init__(
        self,
        config: Config,
        manager: LogManager,
        purgatory: Purgatory,
        flusher: Flusher,
        wall_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._manager = manager
        self._purgatory = purgatory
        self._flusher = flusher
        self._wall_ms = wall_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._controller_epoch = NO_EPOCH
        # Orders that could not be obeyed for want of room; never of a name in `_partitions`.
        self._unmade: dict[TopicPartition, PartitionState] = {}

    # -- the registry

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
        offline = sum(not partition.is_leader for partition in self._partitions.values())
        return Statistics(len(self._partitions), offline + len(self._unmade))

    # -- what the controller orders

    def reconfigure(self, topic: str, overrides: Mapping[str, str]) -> None:
        """From now on these are the topic's own settings, for logs that are yet to come too."""
        self._overrides[topic] = overrides
        settings = self._config.for_topic(overrides)
        for name, partition in self._partitions.items():
            if name.topic == topic:
                partition.settings = settings
                partition.log.limits = settings.limits()
                self._flusher.reschedule(partition)
                partition.advance()
                self._purgatory.notify(name)

    def apply(self, order: LeaderAndIsr) -> tuple[Obeyed, ...]:
        """Take the roles of an order. Raises `Refused` for an old controller, and does nothing."""
        self._check_controller(order.controller_epoch)
        if order.is_full:
            self._set_strays_aside(order)
        return tuple(self._apply(state) for state in order.partitions)

    def stop(self, order: StopReplica) -> tuple[Obeyed, ...]:
        """Give replicas up, as `apply`. What is not here was given up before."""
        self._check_controller(order.controller_epoch)
        return tuple(self._stop(stopped, order.delete) for stopped in order.partitions)

    def retry(self) -> None:
        """Make the logs for which there was no room before; called now and then."""
        for state in list(self._unmade.values()):
            obeyed = self._apply(state)
            if not obeyed.error:
                logger.info("%s is made", obeyed.topic_partition)

    def _check_controller(self, epoch: int) -> None:
        if epoch < self._controller_epoch:
            raise Refused(
                ErrorCode.STALE_CONTROLLER_EPOCH, f"epoch {epoch} after {self._controller_epoch}"
            )
        self._controller_epoch = epoch

    def _apply(self, state: PartitionState) -> Obeyed:
        name = TopicPartition(state.topic, state.partition)
        error = self._take_role(name, state)
        partition = self._partitions.get(name)
        return Obeyed(name, error) if partition is None else Obeyed(name, error, *partition.version)

    def _set_strays_aside(self, order: LeaderAndIsr) -> None:
        """A log that the metadata does not know is kept, but in nobody's way."""
        known = {
            TopicPartition(state.topic, state.partition): state.topic_id
            for state in order.partitions
        }
        for name, log in self._manager.logs.items():
            if name in self._partitions or known.get(name) == log.topic_id:
                continue
            if name in known and not log.topic_id and log.log_start == log.log_end:
                self._manager.claim(name, known[name])
            else:
                self._manager.set_aside(name)

    def _take_role(self, name: TopicPartition, state: PartitionState) -> ErrorCode:
        if self._config.node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self._partitions.get(name)
        if partition is None:
            try:
                partition = self._open(name, state.topic_id)
            except Refused as refused:
                if name not in self._unmade:
                    logger.error("%s is offline until its log can be made: %s", name, refused)
                self._unmade[name] = state
                return refused.code
            self._unmade.pop(name, None)
        if partition.topic_id != state.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        version = (state.leader_epoch, state.partition_epoch)
        if version < partition.version:
            return ErrorCode.FENCED_LEADER_EPOCH
        if version > partition.version:
            if state.leader == self._config.node_id and partition.log.damage is None:
                partition.become_leader(state)
                self._flusher.reschedule(partition)
            else:
                partition.lose_leader(state)
            self._purgatory.notify(name)
        return ErrorCode.NONE

    def _open(self, name: TopicPartition, topic_id: bytes) -> Partition:
        """The log that was found at start, or a new one."""
        settings = self._config.for_topic(self._overrides.get(name.topic, NOTHING))
        log = self._manager.get(name)
        if log is None:
            log = self._manager.create(name, topic_id, settings.limits(), self._wall_ms())
        else:
            log.limits = settings.limits()
        partition = Partition(self._config.node_id, log, settings)
        self._partitions[name] = partition
        return partition

    def _stop(self, stopped: StoppedPartition, delete: bool) -> Obeyed:
        name = TopicPartition(stopped.topic, stopped.partition)
        partition = self._partitions.get(name)
        if partition is None:
            self._unmade.pop(name, None)
            log = self._manager.get(name)
            if delete and log is not None and log.topic_id == stopped.topic_id:
                self._manager.delete(name, self._wall_ms())
            return Obeyed(name, ErrorCode.NONE)
        if partition.topic_id != stopped.topic_id:
            return Obeyed(name, ErrorCode.NONE, *partition.version)
        if EPOCH_DURING_DELETE != stopped.leader_epoch < partition.leader_epoch:
            return Obeyed(name, ErrorCode.FENCED_LEADER_EPOCH, *partition.version)
        partition.go_offline(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was stopped")
        if delete:
            self._flusher.forget(partition)
            del self._partitions[name]
            self._manager.delete(name, self._wall_ms())
        self._purgatory.notify(name)
        return Obeyed(name, ErrorCode.NONE, *partition.version)

    # -- what happens to a partition

    def note_append(self, partition: Partition, now: float) -> None:
        """Records were appended: wake who waits for them, and see to their flush."""
        self._purgatory.notify(partition.topic_partition)
        self._flusher.note_append(partition, now)
