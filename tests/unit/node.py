"""A broker without connections and tasks, for tests that call its parts directly.

Everything is real but the disk, who copies, and the controller: roles are given by the same orders
that a controller gives.
"""

import itertools
import random
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

from minibroker.broker.config import Config, load
from minibroker.broker.groups.coordinator import Coordinator
from minibroker.broker.log.files import Files
from minibroker.broker.log.manager import LogManager
from minibroker.broker.metadata.model import BrokerImage, ClusterImage
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.isr_proposals import IsrProposals
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.broker.replication.replica_table import Collaborators
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import FollowerFetch, Leader
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.broker.server.request_times import RequestTimes
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.coordinator import TransactionCoordinator
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_EPOCH, TRANSACTIONS_TOPIC
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LiveBroker,
    PartitionObeyed,
    PartitionState,
    StoppedPartition,
    StopReplicaRequest,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.messages.fetch import PartitionFetched
from minibroker.protocol.messages.replicas import DescribeReplicasRequest, ReplicaDescription
from minibroker.protocol.messages.topics import ConfigEntry
from minibroker.protocol.records.batch import NO_PRODUCER, ProducerStamp
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.disk import SimulatedFiles

ROOT = PurePath("/data")
T0 = TopicPartition("t", 0)


def batch_of(
    count: int = 1, *, producer: ProducerStamp = NO_PRODUCER, size: int = 1, time_ms: int = 1_000
) -> memoryview:
    """One batch of `count` records with values of `size` bytes, as it lies in a receive buffer."""
    records = [(time_ms, None, b"x" * size, ())] * count
    return memoryview(encode_batch(records, producer=producer))


def state_of(
    name: TopicPartition = T0,
    *,
    epochs: tuple[int, int] = (0, 0),
    leader: int = 1,
    isr: tuple[int, ...] = (1,),
    replicas: tuple[int, ...] = (1,),
    topic_id: bytes = b"i" * 16,
    original: tuple[int, ...] = (),
) -> PartitionState:
    """What one partition shall be; `epochs` are leader epoch and partition epoch."""
    members = isr, replicas, original
    return PartitionState(name.topic, topic_id, name.partition, leader, *epochs, *members)


def state_of_transactions(leader_epoch: int = 4) -> PartitionState:
    """What the one partition of `__transaction_state` is, on another broker."""
    home = TopicPartition(TRANSACTIONS_TOPIC, 0)
    epochs = (leader_epoch, 0)
    return state_of(home, epochs=epochs, leader=2, isr=(2,), replicas=(2,), topic_id=b"x" * 16)


class RecordingFetchers:
    """Copies nothing, and remembers what it was told."""

    def __init__(self) -> None:
        self.quota = ReplicationQuota()
        self.assigned: dict[TopicPartition, Partition] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.calls: list[tuple[str, TopicPartition]] = []

    def assign(self, partition: Partition) -> None:
        self.calls.append(("assign", partition.topic_partition))
        self.assigned[partition.topic_partition] = partition

    def unassign(self, name: TopicPartition) -> None:
        self.calls.append(("unassign", name))
        self.assigned.pop(name, None)

    def set_endpoints(self, endpoints: Mapping[int, Endpoint]) -> None:
        self.endpoints.update(endpoints)

    def on_flushed(self, partition: Partition) -> None:
        self.calls.append(("on_flushed", partition.topic_partition))


class NoController:
    """Somebody else is controller; the session lasts until a test ends it."""

    is_session_over = False

    def __init__(self) -> None:
        self._producer_ids = itertools.count(1_000)
        self.has_producer_ids = True

    def next_producer_id(self) -> int | None:
        return next(self._producer_ids) if self.has_producer_ids else None

    def store_trouble(self) -> str:
        return ""

    def may_decide_alone(self, now: float) -> bool:
        return not self.is_session_over

    def is_session_current(self, now: float) -> bool:
        return not self.is_session_over

    def is_controller_lease_current(self, now: float) -> bool:
        return True


class Node:
    """Broker 1 on a disk of its own, in its first registration, epoch 1.

    It counts as having been told all its roles, unless a test wants to see it wait for them.
    """

    def __init__(
        self,
        files: Files | None = None,
        *,
        root: PurePath = ROOT,
        replicas_type: type[Replicas] = Replicas,
        is_ready: bool = True,
        **settings: str,
    ) -> None:
        flags = {name.replace("_", "."): value for name, value in settings.items()}
        self.config: Config = load(flags=flags).config
        self.files = files or SimulatedFiles(random.Random(1))
        self.wall_time_ms = 1_000
        self.files.clock_ms = lambda: self.wall_time_ms
        self.broker_epoch = 1
        self.removed_topics: list[str] = []
        self.damage_count = 0  # how often the controller was to hear of one
        self.manager = LogManager(self.files, root, self.config.for_topic().limits())
        self.manager.start("boot", "cluster", 1, self.wall_time_ms)
        self.purgatory = Purgatory()
        self.flusher = Flusher(self._sync_dir)
        self.fetchers = RecordingFetchers()
        self.isr_proposals = IsrProposals()
        collaborators = Collaborators(
            manager=self.manager,
            purgatory=self.purgatory,
            flusher=self.flusher,
            fetchers=self.fetchers,
            isr_proposals=self.isr_proposals,
            wall_ms=lambda: self.wall_time_ms,
            broker=self,
        )
        self.replicas = replicas_type(self.config, collaborators)
        brokers = {1: BrokerImage(1, Endpoint("broker-1", 9092), 1)}
        self.replicas.image = ClusterImage("cluster", 1, 0, brokers)
        if is_ready:
            self.replicas.ready.set()
        self.controller = NoController()
        self.groups, self.transactions = self._coordinators()
        self.verified_appends = VerifiedAppends(
            self.replicas, self.purgatory, lambda: self.wall_time_ms
        )
        memory = RequestMemory(self.config.queued_max_request_bytes)
        self.services = Services(
            config=self.config,
            replicas=self.replicas,
            purgatory=self.purgatory,
            controller=cast(Any, self.controller),
            memory=memory,
            fetch_sessions=FetchSessions(random.Random(2), 10, self.purgatory, memory),
            groups=self.groups,
            transactions=self.transactions,
            verified_appends=self.verified_appends,
            times=RequestTimes(),
            wall_ms=lambda: self.wall_time_ms,
        )

    def _coordinators(self) -> tuple[Coordinator, TransactionCoordinator]:
        groups = Coordinator(
            self.config,
            self.replicas,
            self.purgatory,
            lambda: self.wall_time_ms,
            self.controller.may_decide_alone,
            random.Random(3),
        )
        transactions = TransactionCoordinator(
            self.config,
            self.replicas,
            self.purgatory,
            lambda: self.wall_time_ms,
            self.controller.may_decide_alone,
        )
        return groups, transactions

    def on_damage(self) -> None:
        """Count how often the controller is to be told."""
        self.damage_count += 1

    def on_topic_removed(self, topic: str, now: float) -> None:
        """Pass it on, as a broker does."""
        self.removed_topics.append(topic)
        self.groups.forget_topic(topic, now)

    async def _sync_dir(self, directory: PurePath) -> None:
        self.files.sync_dir(directory)

    # -- orders

    def lead(self, *states: PartitionState, overrides: Mapping[str, str] | None = None) -> None:
        """Take these roles, and know the partitions from the metadata too."""
        states = states or (state_of(),)
        for _, partitions in itertools.groupby(states, key=lambda state: state.topic):
            self.know(*partitions, overrides=overrides)
        results = self.apply(*states)
        assert not any(result.error for result in results), results

    def described(self, *topics: str, now: float = 0.0) -> tuple[ReplicaDescription, ...]:
        """How far the replicas of these topics are; of all without any."""
        request = DescribeReplicasRequest(topics or None)
        return without_pause(self.replicas.describe(request, now)).replicas

    def know(self, *states: PartitionState, overrides: Mapping[str, str] | None = None) -> None:
        """Have the partitions of one topic in the metadata, and its settings."""
        entries = tuple(ConfigEntry(*entry) for entry in (overrides or {}).items())
        topic = TopicState(states[0].topic, states[0].topic_id, entries, len(states))
        self.update(topics=(topic,), partitions=states)

    def forget(self, state: PartitionState) -> None:
        """Have a topic in the metadata no more."""
        deleted = PartitionState(
            state.topic,
            state.topic_id,
            state.partition,
            -2,
            state.leader_epoch,
            state.partition_epoch,
            (),
            (),
        )
        self.update(partitions=(deleted,))

    def configure(self, topic: str = "t", **overrides: str) -> None:
        """Give a topic that is known other settings of its own."""
        image = self.services.image.topics[topic]
        entries = tuple(
            ConfigEntry(name.replace("_", "."), value) for name, value in overrides.items()
        )
        self.update(topics=(TopicState(topic, image.id, entries, 0),))

    def live(
        self,
        *brokers: int,
        epoch: int = 1,
        leaving: tuple[int, ...] = (),
        fenced: tuple[int, ...] = (),
    ) -> None:
        """These brokers are registered, in this epoch; `leaving` are about to stop, and the
        controller does not hear the `fenced`."""
        self.update(
            brokers=tuple(
                LiveBroker(
                    node_id,
                    f"broker-{node_id}",
                    9092,
                    epoch,
                    node_id in leaving,
                    is_fenced=node_id in fenced,
                )
                for node_id in brokers
            )
        )

    def update(self, *, controller_epoch: int = 0, now: float = 0.0, **told: Any) -> int:
        """An UPDATE_METADATA of the controller; its error."""
        brokers = tuple(
            LiveBroker(
                b.node_id,
                *b.endpoint,
                b.epoch,
                b.is_shutting_down,
                configs=tuple(ConfigEntry(*entry) for entry in b.configs.items()),
            )
            for b in self.services.image.brokers.values()
        )
        request = UpdateMetadataRequest(
            1, controller_epoch, self.broker_epoch, **{"brokers": brokers, **told}
        )
        return self.replicas.update_metadata(request, now).error

    def apply(
        self,
        *states: PartitionState,
        controller_epoch: int = 0,
        completes_roles: bool = False,
        number: int = 0,
        now: float = 0.0,
    ) -> tuple[PartitionObeyed, ...]:
        """A LEADER_AND_ISR of the controller, which is not refused."""
        request = LeaderAndIsrRequest(
            1,
            controller_epoch,
            self.broker_epoch,
            states,
            completes_roles=completes_roles,
            number=number,
        )
        response = self.replicas.obey_roles(request, now)
        assert not response.error, response
        return response.partitions

    def stop(
        self,
        state: PartitionState,
        *,
        delete: bool,
        leader_epoch: int,
        controller_epoch: int = 0,
        partition_epoch: int = NO_EPOCH,
        number: int = 0,
    ) -> tuple[PartitionObeyed, ...]:
        """A STOP_REPLICA for one replica, which is not refused."""
        epochs = leader_epoch, delete, partition_epoch
        stopped = StoppedPartition(state.topic, state.topic_id, state.partition, *epochs)
        request = StopReplicaRequest(
            1, controller_epoch, self.broker_epoch, (stopped,), number=number
        )
        response = self.replicas.stop(request, 0.0)
        assert not response.error, response
        return response.partitions

    # -- what happens

    def partition(self, name: TopicPartition = T0) -> Partition:
        """A replica that is here."""
        partition = self.replicas.get(name)
        assert partition is not None
        return partition

    def leader(self, name: TopicPartition = T0) -> Leader:
        """The role of a partition that is led here."""
        return self.partition(name).leader()

    def append(
        self, count: int = 1, *, name: TopicPartition = T0, acks: int = 1, now: float = 0.0
    ) -> None:
        """Append a batch of so many records, as a producer's."""
        self.replicas.append(self.partition(name), batch_of(count), acks, now, self.wall_time_ms)

    def followed(
        self,
        replica_id: int,
        offset: int,
        *,
        name: TopicPartition = T0,
        now: float = 0.0,
        epoch: int = 1,
    ) -> None:
        """A follower, in this registration, fetched from an offset and was not refused."""
        fetch = FollowerFetch(replica_id, offset, 0, epoch)
        self.replicas.record_arrival(replica_id, now)
        self.replicas.record_fetch(self.partition(name), fetch, now)


def records_of(fetched: PartitionFetched) -> bytes:
    """The bytes of an answer's slices."""
    return b"".join(part.read() for part in cast(Any, fetched.records))
