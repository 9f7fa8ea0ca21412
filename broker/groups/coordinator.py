"""The group coordinator of a broker: keeper of groups whose offsets partition the broker leads.

    handlers -> serving(group) -> Shard, GroupRegistry -> Group    plain calls, which never wait
    run      -> follows the partitions here, starts serving, ticks groups, drops what expired

A request first replays a chunk of what is committed and not replayed yet. After a write it waits in
the purgatory, under the partition's name, until the record is replayed. So only the shard itself is
on the path of a commit. `run` does the rest. It wakes when roles change, when the high watermark of
a partition that it waits for moves, or when a group has something to do; and every second anyway,
so that followers keep their tables up to date.

`Services` has one coordinator. Handlers and `run` are in one loop, and no change of a shard is
interrupted by a wait.
"""

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import trio

from minibroker.broker.config import Config
from minibroker.broker.errors import Refused
from minibroker.broker.groups.group_members import GroupLimits
from minibroker.broker.groups.records import Key, Value, is_storable
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.groups.shard import Shard, partition_of
from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.purgatory import Parked, Purgatory
from minibroker.broker.replication.replicas import ROLES, Replicas
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

FOLLOW_INTERVAL_S: Final = 1.0
GROUPS_AT_ONCE: Final = 50  # made between two chances for others to run
TOMBSTONES_PER_BATCH: Final = 500
# What ends a membership, or a process's place in it, at whoever is answered so.
PUT_OUT: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
)


class Serving(NamedTuple):
    """A shard that is served here, and the registry of its live groups."""

    shard: Shard
    registry: GroupRegistry


class KeptGroup(NamedTuple):
    """A group now: how many members it has, and what it has committed."""

    group_id: str
    members: int
    offsets: Mapping[TopicPartition, int]


class Coordinator:
    """See the head of this module."""

    def __init__(
        self,
        config: Config,
        replicas: Replicas,
        purgatory: Purgatory,
        wall_ms: Callable[[], int],
        may_decide_alone: Callable[[float], bool],
        rng: Random,
    ) -> None:
        """`wall_ms` is the wall clock. `may_decide_alone` says whether this broker's session with
        the cluster is sure to last at a time of trio's clock. `rng` makes members' ids."""
        self._config = config
        self._replicas = replicas
        self._purgatory = purgatory
        self._wall_ms = wall_ms
        self._may_decide_alone = may_decide_alone
        self._rng = rng
        self._shards: dict[TopicPartition, Shard] = {}
        self._limits = GroupLimits(
            config.group_min_session_timeout_ms,
            config.group_max_session_timeout_ms,
            config.group_max_size,
            config.group_initial_rebalance_delay_ms,
        )
        self._retention_at = math.inf
        self._is_to_review = False

    # -- for handlers

    @property
    def has_topic(self) -> bool:
        """Whether the offsets topic is known here."""
        return OFFSETS_TOPIC in self._replicas.image.topics

    def keeper(self, group_id: str) -> BrokerImage | None:
        """The live broker that keeps a group, as far as is known here."""
        image = self._replicas.image
        name = self._name_of(group_id)
        partition = None if name is None else image.partition(name)
        return None if partition is None else image.brokers.get(partition.leader)

    def leads(self, group_id: str) -> bool:
        """Whether this broker has been told to lead the partition that keeps a group."""
        name = self._name_of(group_id)
        partition = None if name is None else self._replicas.get(name)
        return partition is not None and partition.is_leader

    def serving(self, group_id: str, now: float) -> Serving:
        """Where a group is kept, if that is here and ready (GRP-01).

        Raises `Refused`: INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE before there is an offsets
        topic, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        check_group_id(group_id)
        name = self._name_of(group_id)
        if name is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no offsets topic yet")
        partition = self._replicas.get(name)
        if partition is None or not partition.is_leader:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{name} is not led by this broker")
        shard = self._shards.get(name)
        if shard is not None and shard.partition is partition and shard.registry is not None:
            shard.catch_up(now)
            if shard.registry is not None:
                return Serving(shard, shard.registry)
        raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{name} is being read")

    def check_session(self, shard: Shard, now: float) -> None:
        """Raise `Refused` unless nobody else can keep the groups of a shard: the session lasts, and
        it is the one in which this broker was told that it leads.

        For who only reads: what is written is safe without, since no in-sync set confirms it but
        the newest leader's.
        """
        self._check_session(shard.partition.topic_partition, now)

    def _check_session(self, name: TopicPartition, now: float) -> None:
        is_present = self._replicas.is_role_present(name)
        if not (is_present and self._may_decide_alone(now)):
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its session may have ended")
        partition = self._replicas.get(name)
        if partition is not None and partition.is_handing_over(now):
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "another broker is about to keep it")

    def check_heartbeat(self, group_id: str, now: float) -> GroupRegistry | None:
        """Return the registry that keeps a member alive; None while the coordinator loads it.

        Raises `Refused` as `serving` does. While it loads, a member is kept only by a coordinator
        that nobody can have replaced, and only where what it loads can be read: a member that
        nobody else can put out loses nothing however long the load takes.
        """
        try:
            return self.serving(group_id, now).registry
        except Refused as refused:
            name = self._name_of(group_id)
            if refused.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or name is None:
                raise
            self._check_session(name, now)
            shard = self._shards.get(name)
            if shard is not None and shard.is_broken:
                raise
            return None

    def sure_error(self, group_id: str, error: int, now: float) -> ErrorCode:
        """Return what a member is answered where its group says `error`: it is put out only by a
        coordinator that nobody can have replaced, for it may have joined at the next one."""
        name = self._name_of(group_id)
        if error in PUT_OUT and name is not None:
            try:
                self._check_session(name, now)
            except Refused as refused:
                return refused.code
        return ErrorCode(error)

    def all_serving(self, now: float) -> tuple[list[Serving], bool]:
        """All that is served here, and whether there is more that is still being read."""
        self._find_shards(now)
        found = []
        is_loading = False
        for shard in self._shards.values():
            shard.catch_up(now)
            if shard.registry is not None:
                found.append(Serving(shard, shard.registry))
            is_loading |= shard.registry is None and shard.leader is not None
        return found, is_loading

    def append(self, shard: Shard, records: list[tuple[Key, Value | None]], now: float) -> int:
        """Write for groups of a shard; see `Shard.append`."""
        return shard.append(records, now, self._wall_ms())

    def drop(self, shard: Shard, keys: list[Key], now: float) -> int:
        """Write tombstones for these keys, at least one; as `append`."""
        end = shard.replayed_end
        for first in range(0, len(keys), TOMBSTONES_PER_BATCH):
            batch = keys[first : first + TOMBSTONES_PER_BATCH]
            end = self.append(shard, [(key, None) for key in batch], now)
        return end

    def fresh_id(self, prefix: str) -> str:
        """A member's id that nobody ever had, which begins with what the member says of itself."""
        return f"{prefix}-{UUID(int=self._rng.getrandbits(128), version=4)}"

    def review(self) -> None:
        """A group may wait for something else than before: `run` is to look for what."""
        self._is_to_review = True
        self._purgatory.notify(self)

    def statistics(self) -> tuple[int, int]:
        """How many groups and how many offsets are kept here."""
        counts = [shard.table.statistics() for shard in self._shards.values() if shard.registry]
        return sum(groups for groups, _ in counts), sum(offsets for _, offsets in counts)

    def groups_kept(self) -> Iterator[KeptGroup]:
        """Every group that is kept here, one after another; whoever asks may wait in between."""
        for shard in list(self._shards.values()):
            for group_id in list(shard.table.group_ids):
                if shard.registry is None:
                    break
                members = shard.registry.member_count(group_id)
                offsets = shard.table.offsets(group_id).items()
                yield KeptGroup(group_id, members, {name: one.offset for name, one in offsets})

    def _name_of(self, group_id: str) -> TopicPartition | None:
        topic = self._replicas.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, len(topic.partitions)))

    # -- the task

    async def run(self) -> None:
        """Follow the partitions that are here, and keep the groups of those that are led."""
        retention_s = self._config.offsets_retention_check_interval_ms / 1000
        self._retention_at = trio.current_time() + retention_s
        while True:
            self._find_shards(trio.current_time())
            for name, shard in list(self._shards.items()):
                await self._advance(name, shard)
            now = trio.current_time()
            if now >= self._retention_at:
                self._retention_at = now + retention_s
                await self._drop_expired()
            await self._wait()

    def _find_shards(self, now: float) -> None:
        """Know the replicas of the offsets topic that are here."""
        topic = self._replicas.image.topics.get(OFFSETS_TOPIC)
        names = [] if topic is None else range(len(topic.partitions))
        for name in (TopicPartition(OFFSETS_TOPIC, number) for number in names):
            partition, shard = self._replicas.get(name), self._shards.get(name)
            if shard is not None and shard.partition is not partition:
                shard.stop_serving(now)
                del self._shards[name]
            if partition is not None and name not in self._shards:
                self._shards[name] = Shard(partition, self._replicas.append)

    async def _advance(self, name: TopicPartition, shard: Shard) -> None:
        """Replay all that is committed, start serving if possible, and do what is due."""
        if shard.catch_up(trio.current_time()):
            is_behind = True
            while is_behind:
                await trio.lowlevel.checkpoint()
                is_behind = shard.catch_up(trio.current_time())
            self._purgatory.notify(name)  # who waits had no chance to see all of it
        if shard.registry is None and shard.may_serve:
            await self._start_serving(shard)
        if shard.registry is not None:
            shard.registry.tick(trio.current_time())

    async def _start_serving(self, shard: Shard) -> None:
        leader = shard.leader
        assert leader is not None
        registry = self._registry_of(shard, leader.leader_epoch)
        begun_at = trio.current_time()
        for count, group_id in enumerate(shard.table.with_members(), 1):
            registry.revive(group_id, trio.current_time())
            if count % GROUPS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        if shard.leader is not leader:
            return
        shard.registry = registry
        groups, offsets = shard.table.statistics()
        logger.info(
            "%s: coordinator in epoch %d of %d groups with %d offsets, after %.0f ms",
            shard.partition.topic_partition,
            registry.leader_epoch,
            groups,
            offsets,
            (trio.current_time() - begun_at) * 1000,
        )
        self._drop_gone(shard)

    def _registry_of(self, shard: Shard, leader_epoch: int) -> GroupRegistry:
        return GroupRegistry(
            leader_epoch,
            shard.table,
            self._limits,
            write_timeout_s=self._config.offsets_commit_timeout_ms / 1000,
            wall_ms=self._wall_ms,
            append=partial(self.append, shard),
            wake=self._purgatory.notify,
        )

    async def _wait(self) -> None:
        """Until there is something to do."""
        self._is_to_review = False
        shards = self._shards.items()
        names = [name for name, shard in shards if _is_watched(shard)]
        moments = [shard.registry.deadline for _, shard in shards if shard.registry]
        deadline = min([trio.current_time() + FOLLOW_INTERVAL_S, self._retention_at, *moments])

        def attempt(now: float) -> bool | None:
            self._find_shards(now)
            is_due = self._is_to_review or any(shard.is_due(now) for _, shard in shards)
            return True if is_due else None

        keys: tuple[Hashable, ...] = (self, ROLES, *names)
        await self._purgatory.wait_for_answer(Parked(keys, lambda: deadline, attempt, lambda: True))
        await trio.lowlevel.checkpoint()

    # -- what goes

    async def _drop_expired(self) -> None:
        """Write tombstones for what nobody asked for during the retention (GRP-15), and for the
        offsets of topics that are gone."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        oldest_ms = self._wall_ms() - retention_ms
        for shard in list(self._shards.values()):
            if shard.registry is None:
                continue
            idle = shard.registry.idle
            for first in range(0, len(idle), GROUPS_AT_ONCE):
                if shard.registry is not None:
                    some = idle[first : first + GROUPS_AT_ONCE]
                    keys = shard.table.expired(some, oldest_ms)
                    self._try_drop(shard, keys, trio.current_time())
                await trio.lowlevel.checkpoint()
            self._drop_gone(shard)

    def _drop_gone(self, shard: Shard) -> None:
        """Write tombstones for the offsets of topics that are no more."""
        if self._replicas.is_ready:
            gone = set(shard.table.topics) - self._replicas.image.topics.keys()
            self._try_drop(shard, shard.table.of_topics(gone), trio.current_time())

    def forget_topic(self, topic: str, now: float) -> None:
        """A topic is no more, or another one of its name: offsets say nothing about that one."""
        for shard in self._shards.values():
            self._try_drop(shard, shard.table.of_topics((topic,)), now)

    def _try_drop(self, shard: Shard, keys: Iterable[Key], now: float) -> None:
        """Write tombstones where it is served; what cannot be written now is looked at again."""
        dropped = list(keys)
        if not dropped or shard.registry is None:
            return
        try:
            self.drop(shard, dropped, now)
        except Refused as refused:
            logger.info("%s: not dropped yet: %s", shard.partition.topic_partition, refused)


def _is_watched(shard: Shard) -> bool:
    """Whether `run` must see at once how far a partition is committed."""
    return shard.registry.is_writing if shard.registry is not None else shard.leader is not None


def check_group_id(group_id: str) -> None:
    """Raise `Refused` (INVALID_GROUP_ID) for a name that no record can hold, or none."""
    if not group_id or not is_storable(group_id):
        raise Refused(ErrorCode.INVALID_GROUP_ID, "a group id has 1 to 32767 bytes")
