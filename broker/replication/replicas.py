"""All replicas of this broker: the one entry for orders, appends, follower fetches and flushes.

The controller's orders are LEADER_AND_ISR, STOP_REPLICA and UPDATE_METADATA. All are
level-triggered: a repeated order is answered like a new one and changes nothing. An order is
refused, without effect, if its controller epoch is old or if it is meant for an earlier
registration of this broker. `replica_table.py` says what an order does to each partition.

UPDATE_METADATA carries the settings of topics. A controller always sends it before the roles of a
new topic. The purgatory's key `IMAGE` wakes requests that wait for it. A full image comes in many
parts; which topics were deleted is known only after the last part, with the last roles.

An append is one call, for producers, the group coordinator and fetchers alike: it writes, wakes the
waiting requests and schedules the flush.

After any change that may let a waiting request go on, or that a fetch session must report (an
append, a flush, another high watermark or log start, another role or in-sync set, another setting),
the partition's name is notified in the purgatory. There is no other coupling: a request's attempt
reads the partition again. Only such a notification makes a fetch session read a resting partition.

Rejected: a registry that also answers clients. `server/handlers` does that.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

import trio

from minibroker.broker.config import NOTHING, Config, ConfigError, TopicConfig
from minibroker.broker.errors import Refused
from minibroker.broker.log.outcomes import Appended, Damage
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.log.verifications import Verification
from minibroker.broker.metadata.cache import merged, without
from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.metadata.orders import are_sound
from minibroker.broker.replication.descriptions import confirmed_text
from minibroker.broker.replication.follower import FollowerOutcome, LeaderAnswer
from minibroker.broker.replication.follower_silence import FollowerSilence
from minibroker.broker.replication.log_starts import LOG_STARTS, LogStartCheckpoint
from minibroker.broker.replication.partition import NO_EFFECTS, Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.quotas import (
    ReplicationQuota,
    ReplicationQuotas,
)
from minibroker.broker.replication.replica_table import Collaborators, ReplicaTable
from minibroker.broker.replication.roles import (
    NEVER,
    FollowerFetch,
    IsrProposal,
    Leader,
    LocalBroker,
)
from minibroker.broker.replication.statistics import ReplicaStatistics, TrafficStatistics
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.constants import NO_EPOCH, ErrorCode
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionAltered,
    PartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    TopicState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.leaders import HandOverRequest, HandOverResponse
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)
from minibroker.protocol.messages.transactions import TransactionMarker
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.types import Endpoint, TopicPartition

WEAK_ACKS_INTERVAL_S: Final = 3_600.0  # between two warnings about one topic
# The purgatory's keys for requests that wait for a new image, or for any change of a role here.
IMAGE: Final = "image"
ROLES: Final = "roles"

logger = logging.getLogger(__name__)


class Statistics(NamedTuple):
    """Statistics of every replica now, and counts since the start.

    `uncreated` is how many replicas have no log because of a shortage. Shrinks and expansions of
    in-sync sets are those that the controller confirmed. `gone` is the traffic of replicas that
    were deleted.
    """

    replicas: list[ReplicaStatistics]
    uncreated: int
    isr_shrinks: int
    isr_expands: int
    gone: TrafficStatistics


class Replicas:
    """See the head of this module. `image` is the cluster as the controller last sent it.

    `ready` is set once a controller has sent all roles and the full image.
    """

    partition_type: ClassVar[type[Partition]] = Partition
    log_starts_type: ClassVar[type[LogStartCheckpoint]] = LogStartCheckpoint

    def __init__(self, config: Config, collaborators: Collaborators) -> None:
        self._config = config
        self._collaborators = collaborators
        self._silence = FollowerSilence(
            config.follower_silence_s, config.follower_silence_interval_s
        )
        here = LocalBroker(
            config.node_id,
            config.replica_lag_time_max_ms / 1000,
            lambda node_id: self.image.brokers.get(node_id),
            self._silence,
        )
        self._local_broker = here
        self._table = ReplicaTable(collaborators, here, self.partition_type, self._settings_of)
        self._partitions = self._table.partitions
        self._controller_epoch = NO_EPOCH
        self._newest_number = 0  # of that controller's orders
        self._warned_of_weak_acks: dict[str, float] = {}
        self._has_all_roles = False
        # The broker epoch of the registration in which the controller last sent each role.
        self._role_confirmed_in: dict[TopicPartition, int] = {}
        self._all_roles_confirmed_in = (
            NO_EPOCH  # and the one in which it confirmed that all roles hold
        )
        self._has_image_begun = False
        self._reported_offline = collaborators.manager.offline  # by the registration at the start
        # Topics that the parts of a full image have not named so far, with their ids.
        self._unnamed: dict[str, bytes] = {}
        self.log_starts = self.log_starts_type(collaborators.purgatory.notify)
        self._isr_shrinks = 0
        self._isr_expands = 0
        self.image = ClusterImage()
        self.quotas = ReplicationQuotas(
            config.node_id, ReplicationQuota(), collaborators.fetchers.quota, ReplicationQuota()
        )
        self._limit_replication()
        self.ready = trio.Event()

    # -- the registry

    @property
    def is_ready(self) -> bool:
        """Whether a controller has sent all roles and the full image."""
        return self.ready.is_set()

    @property
    def broker_id(self) -> int:
        """The id of this broker."""
        return self._local_broker.broker_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of the broker's current registration, -1 before the first."""
        return self._collaborators.broker.broker_epoch

    def get(self, name: TopicPartition) -> Partition | None:
        """Return the replica of this name, whatever its role."""
        return self._partitions.get(name)

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """All replicas that have a log and were given a role."""
        return self._partitions

    @property
    def uncreated(self) -> Mapping[TopicPartition, str]:
        """Replicas assigned to this broker whose logs could not be created yet, and why."""
        return {name: one.text for name, one in self._table.uncreated.items()}

    def why_uncreated(self, name: TopicPartition) -> str:
        """Return why the log of a replica assigned here could not be created yet; "" if none is
        missing."""
        uncreated = self._table.uncreated.get(name)
        return "" if uncreated is None else uncreated.text

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermark of each replica, for the checkpoint."""
        return {name: partition.high_watermark for name, partition in self._partitions.items()}

    def statistics(self) -> Turns[Statistics]:
        """Return the statistics of each replica, read in turns; about 4 us for one replica."""
        found = []
        for partitions in at_once(list(self._partitions.values())):
            found += [partition.statistics() for partition in partitions]
            yield
        return Statistics(
            found,
            len(self._table.uncreated),
            self._isr_shrinks,
            self._isr_expands,
            self._table.gone.statistics(),
        )

    def describe(
        self, request: DescribeReplicasRequest, now: float
    ) -> Turns[DescribeReplicasResponse]:
        """Describe every replica, also those without a role or a log. The broker epoch is that of
        the first turn."""
        epoch = self.broker_epoch
        found = yield from self._table.describe(request.topics, now)
        return DescribeReplicasResponse(self.broker_id, epoch, tuple(found))

    # -- what the controller orders

    def is_role_present(self, name: TopicPartition) -> bool:
        """Whether the controller has sent the role in the current registration. Until then another
        broker may have been elected in place of this one, even while its session is valid."""
        broker_epoch = self._collaborators.broker.broker_epoch
        confirmed_in = self._role_confirmed_in.get(name)
        return confirmed_in is not None and (
            confirmed_in >= broker_epoch or self._all_roles_confirmed_in >= broker_epoch
        )

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Whether a request comes from a controller that was replaced (RM-01)."""
        return controller_epoch < self._controller_epoch

    def _accept_order(self, controller_epoch: int, broker_epoch: int, number: int = 0) -> ErrorCode:
        """Check a request's epochs and number, and record them as the newest. Return why the whole
        request is refused, or NONE."""
        is_late = 0 < number <= self._newest_number and controller_epoch == self._controller_epoch
        if is_late or self.is_stale_controller(controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.broker_epoch == NO_EPOCH or broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch > self._controller_epoch:
            self._controller_epoch, self._newest_number = controller_epoch, 0
        self._newest_number = max(self._newest_number, number)
        return ErrorCode.NONE

    def update_metadata(self, request: UpdateMetadataRequest, now: float) -> UpdateMetadataResponse:
        """Update the image of the cluster, and the settings of its topics."""
        epochs = request.controller_epoch, request.broker_epoch
        error = self._accept_order(*epochs, request.number)
        if not error and not are_sound(request.partitions):
            error = ErrorCode.INVALID_REQUEST
        if not error:
            topics = tuple(map(self._without_foreign_settings, request.topics))
            if request.begins_image:
                self._unnamed = {name: topic.id for name, topic in self.image.topics.items()}
            self.image, removed, reconfigured = merged(self.image, replace(request, topics=topics))
            for state in topics:
                if self._unnamed.get(state.name) == state.id:
                    del self._unnamed[state.name]
            self._forget(removed, now)
            self._limit_replication()
            for topic in reconfigured:
                self._reconfigure(topic, now)
            self._collaborators.fetchers.set_endpoints(
                {node_id: broker.endpoint for node_id, broker in self.image.brokers.items()}
            )
            self._has_image_begun |= request.begins_image
            self._update_readiness()
            self._collaborators.purgatory.notify(IMAGE)
        return UpdateMetadataResponse(error)

    def obey_roles(self, request: LeaderAndIsrRequest, now: float) -> LeaderAndIsrResponse:
        """Take the roles of an order (A18)."""
        epochs = request.controller_epoch, request.broker_epoch
        error = self._accept_order(*epochs, request.number)
        if not error and not are_sound(request.partitions):
            error = ErrorCode.INVALID_REQUEST
        if error:
            return LeaderAndIsrResponse(error)
        self._collaborators.fetchers.set_endpoints(
            {broker.node_id: Endpoint(broker.host, broker.port) for broker in request.brokers}
        )
        obeyed = tuple(self._table.obey(state, now) for state in request.partitions)
        self._expect_followers(request.partitions, now)
        for each in obeyed:
            name = TopicPartition(each.topic, each.partition)
            if each.error:
                self._role_confirmed_in.pop(name, None)
            else:
                self._role_confirmed_in[name] = request.broker_epoch
        self._collaborators.purgatory.notify(ROLES)
        if request.completes_roles:
            self._all_roles_confirmed_in = request.broker_epoch
            self._table.set_strays_aside()
            self._collaborators.manager.settle()
            self._report_offline()
            self._has_all_roles = True
            self._remove_unnamed_topics(now)
        self._update_readiness()
        return LeaderAndIsrResponse(ErrorCode.NONE, obeyed)

    def _report_offline(self) -> None:
        """Have the controller told which logs are offline, if it does not know all of them."""
        offline = self._collaborators.manager.offline
        if not offline <= self._reported_offline:
            self._collaborators.broker.on_damage()
        self._reported_offline = offline

    def take_off_failed(self) -> None:
        """Take off the replicas in log directories that have failed; called periodically."""
        names = self._collaborators.manager.take_off_failed()
        self._table.take_off(names)
        for name in names:
            self._role_confirmed_in.pop(name, None)
        if names:
            self._report_offline()
            self._collaborators.purgatory.notify(ROLES)

    def _expect_followers(self, states: Iterable[PartitionState], now: float) -> None:
        """Start to watch for silence of followers that were not known before."""
        for state in states:
            if state.leader == self.broker_id:
                for replica in state.isr:
                    if replica != self.broker_id:
                        self._silence.expect(replica, now)

    def _remove_unnamed_topics(self, now: float) -> None:
        """Remove the topics that no part of a full image has named (MET-01). All parts have
        arrived, because the controller sends roles last."""
        unnamed, self._unnamed = self._unnamed, {}
        topics = self.image.topics
        removed = [
            name
            for name, topic_id in unnamed.items()
            if name in topics and topics[name].id == topic_id
        ]
        self.image = without(self.image, removed)
        self._forget(removed, now)

    def _forget(self, topics: Sequence[str], now: float) -> None:
        for topic in topics:
            logger.info("topic %s is deleted", topic)
            self._warned_of_weak_acks.pop(topic, None)
            self._collaborators.broker.on_topic_removed(topic, now)

    def stop(self, request: StopReplicaRequest, now: float) -> StopReplicaResponse:
        """Stop replicas. One that is not here counts as stopped before."""
        epochs = request.controller_epoch, request.broker_epoch
        error = self._accept_order(*epochs, request.number)
        if error:
            return StopReplicaResponse(error)
        obeyed = tuple(self._table.give_up(stopped) for stopped in request.partitions)
        for each in obeyed:
            name = TopicPartition(each.topic, each.partition)
            if name not in self._partitions:
                self._role_confirmed_in.pop(name, None)
        self._collaborators.purgatory.notify(ROLES)
        return StopReplicaResponse(ErrorCode.NONE, obeyed)

    def hand_over(self, request: HandOverRequest, now: float) -> HandOverResponse:
        """Prepare the election of other replicas (see `Leader.hand_over`)."""
        error = self._accept_order(request.controller_epoch, request.broker_epoch)
        return HandOverResponse(error, () if error else self._table.hand_over(request, now))

    def retry(self, clock: Callable[[], float]) -> Turns[None]:
        """Create the logs that could not be created before (disk full); called periodically."""
        return self._table.retry(clock)

    def _limit_replication(self) -> None:
        """Set the limits of the quotas by what the controller says of this broker."""
        here = self.image.brokers.get(self.broker_id)
        limits = self._config.replication_limits(NOTHING if here is None else here.configs)
        self.quotas.leader.limit, self.quotas.follower.limit, self.quotas.moves.limit = limits

    def _reconfigure(self, topic: str, now: float) -> None:
        """Apply a topic's new settings to its partitions."""
        settings = self._settings_of(topic)
        image = self.image.topics[topic]
        for number in range(len(image.partitions)):
            name = TopicPartition(topic, number)
            partition = self._partitions.get(name)
            if partition is not None and partition.topic_id == image.id:
                partition.settings = settings
                partition.log.limits = settings.limits()
                self._collaborators.flusher.reschedule(partition, now)
                partition.advance(now)
                self._collaborators.purgatory.notify(name)

    def _settings_of(self, topic: str) -> TopicConfig:
        image = self.image.topics.get(topic)
        configs = NOTHING if image is None else image.configs
        return self._config.for_topic({**self._config.own_settings(topic), **configs})

    def _without_foreign_settings(self, topic: TopicState) -> TopicState:
        """Return a topic without its settings if this broker does not know one of them: a
        controller of another version may."""
        try:
            self._config.for_topic({entry.name: entry.value for entry in topic.configs})
        except ConfigError as error:
            logger.error("topic %s has this broker's own settings: %s", topic.name, error)
            return replace(topic, configs=())
        return topic

    def _update_readiness(self) -> None:
        if self._has_all_roles and self._has_image_begun:
            self.ready.set()

    # -- what happens to a partition

    def append(
        self,
        partition: Partition,
        batch: memoryview,
        acks: int,
        now: float,
        now_ms: int,
        verification: Verification | None = None,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Append one batch as the leader; `now_ms` is the wall clock. The last arguments as in
        `Log.append_as_leader`. Raises `Refused`."""
        appended = partition.append_as_leader(batch, acks, now, now_ms, verification, header)
        self._on_append(partition, now)
        return appended

    def append_marker(
        self, partition: Partition, marker: TransactionMarker, now: float, now_ms: int
    ) -> Appended:
        """Append a coordinator's marker as the leader; as `append`. Raises `Refused`."""
        appended = partition.append_marker(marker, now, now_ms)
        self._on_append(partition, now)
        return appended

    def delete_records(self, partition: Partition, offset: int) -> int:
        """Delete the records below an offset as the leader (see `Partition.delete_records`). The
        new log start is durable after a checkpoint (`log_starts`). Raises `Refused`."""
        log_start = partition.log.log_start
        offset = partition.delete_records(offset)
        if partition.log.log_start != log_start:
            self.log_starts.record_raise()
            self._collaborators.purgatory.notify(partition.topic_partition)
        return offset

    async def checkpoint_log_starts(self) -> bool:
        """Wait until raised log starts are durable. Returns False in a shortage."""
        ticket = self.log_starts.ask()
        parked = Parked(
            (LOG_STARTS,),
            lambda: math.inf,
            lambda _: self.log_starts.outcome(ticket),
            lambda: False,
        )
        return await self._collaborators.purgatory.wait_for_answer(parked)

    def apply_answer(
        self, partition: Partition, answer: LeaderAnswer, now: float
    ) -> FollowerOutcome:
        """Apply a leader's answer to a follower. Raises `OSError` if this broker's disk fails."""
        log_end, log_start = partition.log.log_end, partition.log.log_start
        outcome = partition.follower().handle_answer(
            partition.log, answer, partition.settings, self._collaborators.wall_ms()
        )
        if partition.log.log_start != log_start:
            self.log_starts.record_raise()
        partition.traffic.bytes_from_leader += outcome.size
        self.quotas.record_copied(partition, outcome.size, now)
        if partition.log.log_end != log_end:
            self._on_append(partition, now)
        return outcome

    def fit_to_range(
        self, partition: Partition, leader_range: tuple[int, int], now: float
    ) -> FollowerOutcome:
        """Fit a follower's log to the start and end of its leader's. Raises as `apply_answer`."""
        log_end = partition.log.log_end
        outcome = partition.follower().handle_range(
            partition.log, leader_range, partition.settings, self._collaborators.wall_ms()
        )
        if partition.log.log_end != log_end:
            self._on_append(partition, now)
        return outcome

    def _on_append(self, partition: Partition, now: float) -> None:
        """Wake the requests that wait for new records, and schedule their flush."""
        self._collaborators.purgatory.notify(partition.topic_partition)
        self._collaborators.flusher.schedule(partition, now)

    def warn_of_weak_acks(self, partition: Partition, acks: int, now: float) -> None:
        """Warn the operator, at most once per `WEAK_ACKS_INTERVAL_S` and topic, that a producer
        does not wait for the followers (K4)."""
        role, topic = partition.role, partition.topic_partition.topic
        if not isinstance(role, Leader) or len(role.replicas) == 1:
            return
        if now - self._warned_of_weak_acks.get(topic, NEVER) >= WEAK_ACKS_INTERVAL_S:
            self._warned_of_weak_acks[topic] = now
            logger.warning(
                "topic %s has %d replicas, and a producer asks for acks=%d: what it sends may be"
                " lost when a leader fails",
                topic,
                len(role.replicas),
                acks,
            )

    def on_flushed(self, partition: Partition, now: float) -> None:
        """Handle a flush: a partition's log is durable further than before."""
        partition.advance(now)
        self._collaborators.purgatory.notify(partition.topic_partition)
        self._collaborators.fetchers.on_flushed(partition)

    def record_fetch(self, partition: Partition, fetch: FollowerFetch, now: float) -> None:
        """Record a follower's fetch that was accepted. A replica whose log turns out to be damaged
        stops leading."""
        role = partition.role
        if isinstance(role, Leader):
            if role.is_resting(fetch.replica_id):
                # It rests in another fetch session, which has to read the partition again.
                self._collaborators.purgatory.notify(partition.topic_partition)
            if role.is_asked_again(fetch):
                self._table.check(partition, fetch.offset)
                if not partition.is_leader:
                    return
            progress = role.progress_of(fetch.replica_id)
            if role.start_required > 0 and progress and progress.log_start != fetch.log_start:
                self._collaborators.purgatory.notify(partition.topic_partition)
        effects = partition.record_fetch(fetch, now)
        if effects is not NO_EFFECTS:
            self._table.perform(partition, effects, now)

    def refusal_of(self, partition: Partition, bad: BadBytes) -> Refused:
        """Return the refusal for a read that met corrupt records.

        If another replica can lead, this one gives the partition up, and the error makes the client
        look for the new leader; otherwise the error is CORRUPT_MESSAGE.
        """
        self._table.on_corruption(partition, Damage(bad.offset, bad.message))
        if partition.is_leader:
            return Refused(ErrorCode.CORRUPT_MESSAGE, bad.message)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, bad.message)

    def record_arrival(self, node_id: int, now: float) -> None:
        """Record that a FETCH of another broker arrived, whatever it asks for."""
        self._silence.record_arrival(node_id, now)

    def has_silent_followers(self, now: float) -> bool:
        """Whether a follower of a partition led here sends no FETCH; called every
        `follower_silence_interval_s`."""
        self._silence.tick(now)
        return self._silence.has_silent(now)

    def review_isrs(self, now: float) -> Turns[None]:
        """Propose the removal of followers that fell behind or are silent; called by a timer."""
        followers: set[int] = set()
        for some in at_once(list(self._partitions.values())):
            for partition in some:
                self._table.perform(partition, partition.review(now), now)
                if isinstance(partition.role, Leader):
                    followers.update(partition.role.maximal_isr)
            yield
        self._silence.keep(followers, now)

    def apply_retention(self, now_ms: int) -> Turns[None]:
        """Delete expired segments; called by a timer."""
        for some in at_once(list(self._partitions.values())):
            for partition in some:
                name, log = partition.topic_partition, partition.log
                if self._partitions.get(name) is not partition:
                    continue
                log_start = log.log_start
                for _ in self._collaborators.manager.apply_retention(
                    name, partition.high_watermark, now_ms
                ):
                    if log.log_start != log_start:
                        log_start = log.log_start
                        self._collaborators.purgatory.notify(name)
                    yield
            yield

    def flush_events(self, now: float) -> None:
        """Log the partition events that were held back; called periodically."""
        self._table.events.flush(now)

    def resolve(self, proposal: IsrProposal, answer: PartitionAltered, now: float) -> bool:
        """Apply the controller's answer to a proposal. Returns False if it must be sent again."""
        partition = self._partitions.get(TopicPartition(proposal.topic, proposal.partition))
        if partition is None:
            return True
        version = partition.version
        effects = partition.resolve(proposal, answer, now)
        if effects is None:
            return False
        self._table.perform(partition, effects, now)
        role = partition.role
        if partition.version != version and isinstance(role, Leader):
            # The next fetch of a follower that was removed is its request to join again.
            self._collaborators.purgatory.notify(partition.topic_partition)
            name, text = partition.topic_partition, confirmed_text(partition, role)
            self._table.events.record(name, text, now)
            self._count_isr_change(proposal.pending.isr, role.isr)
        return True

    def _count_isr_change(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Count a change of an in-sync set that the controller confirmed."""
        self._isr_shrinks += len(after) < len(before)
        self._isr_expands += len(after) > len(before)
