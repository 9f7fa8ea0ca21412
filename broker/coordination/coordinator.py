"""A coordinator of ids that are spread over the partitions of an internal topic: this broker
coordinates the ids of those partitions that it leads.

    handlers -> served(id) -> shard, registry    plain calls, which never wait
    run      -> follows the partitions here, starts serving, does what is due

A request first replays a chunk of the committed records that are not replayed yet. After a write it
is parked in the purgatory, under the partition's name, until the record is replayed. So a request
needs only its shard. `run` does the rest. It wakes when roles change, when the high watermark of a
partition that it waits for moves, or when something is due; and every second, so that followers
keep their tables up to date.

Handlers and `run` share one loop, and no change of a shard waits in its middle.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

import trio

from minibroker.broker.coordination.shard import CoordinatorShard, partition_of
from minibroker.broker.errors import Refused
from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked, Purgatory
from minibroker.broker.replication.replicas import ROLES, Replicas
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition

FOLLOW_INTERVAL_S: Final = 1.0
UNSURE_FENCES_MAX: Final = 2  # of a broker, and of a controller before it

InWorker: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
AnyShard = TypeVar("AnyShard", bound=CoordinatorShard[Any, Any, Any, Any])


class _Doubts:
    """Since when requests that read find this broker unsure that it still coordinates a shard."""

    def __init__(self) -> None:
        self._began: dict[TopicPartition, tuple[int, float]] = {}  # with the leader epoch

    def since(self, name: TopicPartition, leader_epoch: int, now: float) -> float:
        """Return when the doubt in this leader epoch began, which is now if there was none."""
        epoch, began_at = self._began.get(name, (leader_epoch, now))
        if epoch != leader_epoch:
            began_at = now
        self._began[name] = leader_epoch, began_at
        return began_at

    def end(self, name: TopicPartition) -> None:
        """End the doubt: the broker is sure."""
        self._began.pop(name, None)


class PartitionedCoordinator(ABC, Generic[AnyShard]):
    """See the head of this module. `topic` is the internal topic."""

    topic: str

    def __init__(
        self,
        replicas: Replicas,
        purgatory: Purgatory,
        may_decide_alone: Callable[[float], bool],
        fence_timeout_s: float,
    ) -> None:
        """`may_decide_alone` says whether, at a time of trio's clock, no other broker can have
        replaced this one. `fence_timeout_s` is how long a controller may take to notice that."""
        self._replicas = replicas
        self._purgatory = purgatory
        self._may_decide_alone = may_decide_alone
        self._unsure_s_max = UNSURE_FENCES_MAX * fence_timeout_s
        self._shards: dict[TopicPartition, AnyShard] = {}
        self._duty_at = math.inf
        self._is_to_review = False
        self._doubts = _Doubts()

    # -- for handlers

    @property
    def has_topic(self) -> bool:
        """Whether the image has the internal topic."""
        return self.topic in self._replicas.image.topics

    def keeper(self, key: str) -> BrokerImage | None:
        """Return the live broker that coordinates an id, by this broker's image."""
        image = self._replicas.image
        name = self.name_of(key)
        partition = None if name is None else image.partition(name)
        return None if partition is None else image.brokers.get(partition.leader)

    def leads(self, key: str) -> bool:
        """Whether the controller has told this broker to lead the partition of an id."""
        name = self.name_of(key)
        partition = None if name is None else self._replicas.get(name)
        return partition is not None and partition.is_leader

    def served(self, key: str, now: float) -> AnyShard:
        """Return the shard of an id, if this broker coordinates it (GRP-01): it has a registry.

        Raises `Refused`: COORDINATOR_NOT_AVAILABLE before there is the internal topic,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        name = self.name_of(key)
        if name is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no {self.topic} yet")
        partition = self._replicas.get(name)
        if partition is None or not partition.is_leader:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{name} is not led by this broker")
        shard = self._shards.get(name)
        if shard is not None and shard.partition is partition and shard.registry is not None:
            shard.catch_up(now)
            if shard.registry is not None:
                return shard
        raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{name} is being read")

    def check_session(self, shard: AnyShard, now: float) -> None:
        """Raise `Refused` unless this broker is surely the only coordinator of a shard: its session
        lasts, and it was told in this session that it leads.

        Only requests that read need this. A write is safe without it, since the in-sync replicas
        confirm records of the newest leader only. COORDINATOR_LOAD_IN_PROGRESS for as long as a
        controller may take to confirm or replace this broker, then NOT_COORDINATOR.
        """
        name = shard.partition.topic_partition
        try:
            self._check_session(name, now)
        except Refused as refused:
            unsure_since = self._doubts.since(name, shard.partition.leader_epoch, now)
            code = ErrorCode.NOT_COORDINATOR
            if now - unsure_since < self._unsure_s_max:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            raise Refused(code, refused.message) from None
        self._doubts.end(name)

    def _check_session(self, name: TopicPartition, now: float) -> None:
        is_present = self._replicas.is_role_present(name)
        if not (is_present and self._may_decide_alone(now)):
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its session may have ended")
        partition = self._replicas.get(name)
        if partition is not None and partition.is_handing_over(now):
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "another broker is about to keep it")

    def all_served(self, now: float) -> tuple[list[AnyShard], bool]:
        """Return all shards that this broker serves, and whether it still loads more."""
        self._find_shards(now)
        found = []
        is_loading = False
        for shard in self._shards.values():
            shard.catch_up(now)
            if shard.registry is not None:
                found.append(shard)
            is_loading |= shard.registry is None and shard.leader is not None
        return found, is_loading

    def catch_up(self, shard: AnyShard, now: float) -> None:
        """Replay a chunk of what is committed, for a request that waits; `run` does the rest."""
        if shard.catch_up(now):
            self.review()

    @property
    def held_bytes(self) -> int:
        """The memory that all of it on this broker takes, about."""
        return sum(shard.held_bytes for shard in self._shards.values())

    def review(self) -> None:
        """Have `run` look again, because something may wait for something else."""
        self._is_to_review = True
        self._purgatory.notify(self)

    def name_of(self, key: str) -> TopicPartition | None:
        """Return the partition of an id; None before there is the internal topic."""
        topic = self._replicas.image.topics.get(self.topic)
        if topic is None:
            return None
        return TopicPartition(self.topic, partition_of(key, len(topic.partitions)))

    # -- the task

    @abstractmethod
    def _make_shard(self, partition: Partition) -> AnyShard:
        """Return the shard of a partition on this broker, not served yet."""

    @abstractmethod
    async def _start_serving(self, shard: AnyShard) -> None:
        """Give a shard its registry."""

    @abstractmethod
    async def _do_duties(self) -> None:
        """Do what recurs, and set `_duty_at` to the next time. The first call is at the start."""

    async def run(self, in_worker: InWorker) -> None:
        """Follow the partitions on this broker, and serve those that it leads."""
        await self._do_duties()
        while True:
            self._find_shards(trio.current_time())
            for name, shard in list(self._shards.items()):
                await self._advance(name, shard, in_worker)
            if trio.current_time() >= self._duty_at:
                await self._do_duties()
            await self._wait()

    def _find_shards(self, now: float) -> None:
        """Update the shards from the replicas of the internal topic on this broker."""
        topic = self._replicas.image.topics.get(self.topic)
        names = [] if topic is None else range(len(topic.partitions))
        for name in (TopicPartition(self.topic, number) for number in names):
            partition, shard = self._replicas.get(name), self._shards.get(name)
            if shard is not None and shard.partition is not partition:
                shard.stop_serving(now)
                del self._shards[name]
            if partition is not None and name not in self._shards:
                self._shards[name] = self._make_shard(partition)

    async def _advance(self, name: TopicPartition, shard: AnyShard, in_worker: InWorker) -> None:
        """Replay committed records, start serving if possible, and do what is due."""
        if shard.catch_up(trio.current_time()):
            is_behind = True
            while is_behind:
                if shard.read_ahead is None:
                    await trio.lowlevel.checkpoint()
                else:
                    shard.end_read_ahead(was_read=await in_worker(shard.read_ahead))
                is_behind = shard.catch_up(trio.current_time())
            self._purgatory.notify(name)  # a waiting request cannot have seen all of it
        if shard.registry is None and shard.may_serve:
            await self._start_serving(shard)
        if shard.registry is not None:
            shard.registry.tick(trio.current_time())

    async def _wait(self) -> None:
        """Wait until there is something to do."""
        self._is_to_review = False
        shards = self._shards.items()
        names = [name for name, shard in shards if _is_watched(shard)]
        moments = [shard.registry.deadline for _, shard in shards if shard.registry]
        deadline = min([trio.current_time() + FOLLOW_INTERVAL_S, self._duty_at, *moments])

        def attempt(now: float) -> bool | None:
            self._find_shards(now)
            is_due = self._is_to_review or any(shard.is_due(now) for _, shard in shards)
            return True if is_due else None

        keys: tuple[Hashable, ...] = (self, ROLES, *names)
        await self._purgatory.wait_for_answer(Parked(keys, lambda: deadline, attempt, lambda: True))
        await trio.lowlevel.checkpoint()


def _is_watched(shard: CoordinatorShard[Any, Any, Any, Any]) -> bool:
    """Whether `run` must notice each advance of a partition's high watermark."""
    return shard.registry.is_writing if shard.registry is not None else shard.leader is not None
