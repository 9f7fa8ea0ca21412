"""A broker without connections and tasks, for tests that call its parts directly.

Everything is real but the disk; roles are given by the same orders that a controller gives.
"""

import itertools
import random
from collections.abc import Mapping
from pathlib import PurePath

from minibroker.broker.config import Config, load
from minibroker.broker.controller.controller import Controller, Ports
from minibroker.broker.log.manager import LogManager
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.model import (
    BrokerImage,
    ClusterImage,
    LeaderAndIsr,
    PartitionImage,
    PartitionState,
    StoppedPartition,
    StopReplica,
    TopicImage,
)
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.replicas import Obeyed, Replicas
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.services import Services
from minibroker.protocol.messages.fetch import PartitionFetched
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
) -> PartitionState:
    """What one partition shall be; `epochs` are leader epoch and partition epoch."""
    return PartitionState(name.topic, topic_id, name.partition, leader, *epochs, isr, replicas)


class Node:
    """Broker 1 on a disk of its own."""

    def __init__(self, files: SimulatedFiles | None = None, **settings: str) -> None:
        flags = {name.replace("_", "."): value for name, value in settings.items()}
        self.config: Config = load(flags=flags).config
        self.files = files or SimulatedFiles(random.Random(1))
        self.wall_time_ms = 1_000
        self.manager = LogManager(self.files, ROOT, self.config.for_topic().limits())
        self.manager.start("boot", "cluster", 1, self.wall_time_ms)
        self.purgatory = Purgatory()
        self.flusher = Flusher(self.purgatory, self._sync_dir)
        self.replicas = Replicas(
            self.config, self.manager, self.purgatory, self.flusher, lambda: self.wall_time_ms
        )
        rng = random.Random(2)
        ports = Ports(
            self.replicas.reconfigure,
            self.replicas.apply,
            self.replicas.stop,
            self._publish,
            self.purgatory.notify,
        )
        self.services = Services(
            config=self.config,
            replicas=self.replicas,
            purgatory=self.purgatory,
            controller=Controller(self.config, MemoryStore(), ports, rng),
            fetch_sessions=FetchSessions(rng, 10),
            wall_ms=lambda: self.wall_time_ms,
            image=ClusterImage("cluster", 1, 0, {1: BrokerImage(1, Endpoint("broker-1", 9092), 1)}),
        )

    async def _sync_dir(self, directory: PurePath) -> None:
        self.files.sync_dir(directory)

    def _publish(self, image: ClusterImage) -> None:
        self.services.image = image

    def lead(self, *states: PartitionState, overrides: Mapping[str, str] | None = None) -> None:
        """Take these roles, and know the partitions from the metadata too."""
        states = states or (state_of(),)
        for topic, partitions in itertools.groupby(states, key=lambda state: state.topic):
            if overrides:
                self.replicas.reconfigure(topic, overrides)
            self.know(*partitions, overrides=overrides)
        results = self.apply(*states)
        assert not any(result.error for result in results), results

    def know(self, *states: PartitionState, overrides: Mapping[str, str] | None = None) -> None:
        """Have the partitions of one topic in the metadata."""
        partitions = tuple(
            PartitionImage(
                state.partition,
                state.leader,
                state.leader_epoch,
                state.isr,
                state.replicas,
                state.partition_epoch,
            )
            for state in states
        )
        topic = TopicImage(states[0].topic_id, states[0].topic, overrides or {}, partitions)
        self.services.image = self.services.image.with_topic(topic)

    def apply(
        self, *states: PartitionState, controller_epoch: int = 0, is_full: bool = False
    ) -> tuple[Obeyed, ...]:
        """An order of the controller."""
        return self.replicas.apply(LeaderAndIsr(1, controller_epoch, 1, states, is_full))

    def stop(
        self, state: PartitionState, *, delete: bool, leader_epoch: int, controller_epoch: int = 0
    ) -> tuple[Obeyed, ...]:
        """An order to give one replica up."""
        stopped = StoppedPartition(state.topic, state.topic_id, state.partition, leader_epoch)
        return self.replicas.stop(StopReplica(1, controller_epoch, 1, (stopped,), delete))

    def partition(self, name: TopicPartition = T0) -> Partition:
        """A replica that is here."""
        partition = self.replicas.get(name)
        assert partition is not None
        return partition


def records_of(fetched: PartitionFetched) -> bytes:
    """The bytes of an answer's slices."""
    return b"".join(part.read() for part in fetched.records)
