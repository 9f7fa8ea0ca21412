"""The group coordinator of a broker, for the groups whose offsets partition this broker leads.

    handlers -> serving(group) -> Shard, GroupRegistry -> Group    plain calls, which never wait
    run      -> follows the partitions here, starts serving, ticks groups, removes what expired

A request first replays a chunk of the committed records that are not replayed yet. After a write it
is parked in the purgatory, under the partition's name, until the record is replayed. So a commit
needs only its shard. `run` does the rest. It wakes when roles change, when the high watermark of a
partition that it waits for moves, or when a group is due; and every second, so that followers keep
their tables up to date.

`Services` has one coordinator. Handlers and `run` share one loop, and no change of a shard waits in
its middle.
"""

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import trio

from minibroker.broker.config import Config
from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_heartbeats import ConsumerLimits, Migration
from minibroker.broker.groups.group_members import GroupLimits
from minibroker.broker.groups.records import Key, is_storable
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.groups.shard import Records, Shard, partition_of
from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.purgatory import Parked, Purgatory
from minibroker.broker.replication.replicas import ROLES, Replicas
from minibroker.broker.turns import at_once
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

FOLLOW_INTERVAL_S: Final = 1.0
GROUPS_AT_ONCE: Final = 50  # handled between two checkpoints, at which other tasks run
TOMBSTONES_PER_BATCH: Final = 500
WARNING_INTERVAL_MS: Final = 60_000
UNSURE_FENCES_MAX: Final = 2  # of a broker, and of a controller before it
# The errors on which a client gives up its membership, or stops because another took its place.
PUT_OUT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


class Serving(NamedTuple):
    """A shard that this broker serves, and the registry of its live groups."""

    shard: Shard
    registry: GroupRegistry


class KeptGroup(NamedTuple):
    """A group as metrics show it: the number of its members, and its committed offsets."""

    group_id: str
    members: int
    offsets: Mapping[TopicPartition, int]


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
        *,
        expiry_ms: Callable[[], int] | None = None,
    ) -> None:
        """`wall_ms` is the wall clock. `may_decide_alone` says whether, at a time of trio's clock,
        no other broker can have replaced this one. `rng` makes members' ids. `expiry_ms` is the
        wall clock by which offsets expire, if not `wall_ms`."""
        self._config = config
        self._replicas = replicas
        self._purgatory = purgatory
        self._wall_ms = wall_ms
        self._expiry_ms = expiry_ms or wall_ms
        self._may_decide_alone = may_decide_alone
        self._rng = rng
        self._shards: dict[TopicPartition, Shard] = {}
        self._limits = _classic_limits(config)
        self.consumer_limits = _consumer_limits(config)
        self._retention_at = math.inf
        self._is_to_review = False
        self._warned_at_ms = -WARNING_INTERVAL_MS
        self._doubts = _Doubts()

    # -- for handlers

    @property
    def has_topic(self) -> bool:
        """Whether the image has the offsets topic."""
        return OFFSETS_TOPIC in self._replicas.image.topics

    def keeper(self, group_id: str) -> BrokerImage | None:
        """Return the live broker that coordinates a group, by this broker's image."""
        image = self._replicas.image
        name = self._name_of(group_id)
        partition = None if name is None else image.partition(name)
        return None if partition is None else image.brokers.get(partition.leader)

    def leads(self, group_id: str) -> bool:
        """Whether the controller has told this broker to lead the partition of a group."""
        name = self._name_of(group_id)
        partition = None if name is None else self._replicas.get(name)
        return partition is not None and partition.is_leader

    def serving(self, group_id: str, now: float) -> Serving:
        """Return the shard and the registry of a group, if this broker coordinates it (GRP-01).

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
            if now - unsure_since < UNSURE_FENCES_MAX * self._config.fence_timeout_ms / 1000:
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

    def check_heartbeat(self, group_id: str, now: float) -> GroupRegistry | None:
        """Return the registry that keeps a member alive; None while the coordinator loads it.

        Raises `Refused` as `serving` does. While the coordinator loads, it keeps members alive only
        if it surely was not replaced and its log can be read. Then no other broker can remove the
        member, so the member loses nothing however long the load takes.
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
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from None
            return None

    def sure_error(self, group_id: str, error: int, now: float) -> ErrorCode:
        """Return the answer for a member whose group answers `error`. Only a coordinator that
        surely was not replaced may tell a member that it is removed: the member may have joined at
        the next one."""
        name = self._name_of(group_id)
        if error in PUT_OUT and name is not None:
            try:
                self._check_session(name, now)
            except Refused as refused:
                return refused.code
        return ErrorCode(error)

    def all_serving(self, now: float) -> tuple[list[Serving], bool]:
        """Return all that this broker serves, and whether it still loads more."""
        self._find_shards(now)
        found = []
        is_loading = False
        for shard in self._shards.values():
            shard.catch_up(now)
            if shard.registry is not None:
                found.append(Serving(shard, shard.registry))
            is_loading |= shard.registry is None and shard.leader is not None
        return found, is_loading

    def append(self, shard: Shard, records: Records, now: float) -> int:
        """Append records for groups of a shard; see `Shard.append`."""
        return shard.append(records, now, self._wall_ms())

    def append_encoded(self, shard: Shard, batch: memoryview, records: Records, now: float) -> int:
        """Append the batch that `Shard.encode` made of these records."""
        return shard.append_encoded(batch, records, now, self._wall_ms())

    def drop(self, shard: Shard, keys: Sequence[Key], now: float) -> int:
        """Append tombstones for these keys, at least one; as `append`."""
        end = shard.replayed_end
        for some in at_once(keys, TOMBSTONES_PER_BATCH):
            end = self.append(shard, [(key, None) for key in some], now)
        return end

    def catch_up(self, shard: Shard, now: float) -> None:
        """Replay a chunk of what is committed, for a request that waits; `run` does the rest."""
        if shard.catch_up(now):
            self.review()

    @property
    def held_bytes(self) -> int:
        """The memory that all groups on this broker take, about."""
        return sum(shard.held_bytes for shard in self._shards.values())

    def check_room(self, growth: int) -> None:
        """Raise `Refused` if groups would take more than `group.coordinator.max.bytes`.

        COORDINATOR_NOT_AVAILABLE is what clients try again: a member of another group, whose join
        is refused because of this one, must not end by it.
        """
        held_bytes_max = self._config.group_coordinator_max_bytes
        if growth > 0 and self.held_bytes + growth > held_bytes_max:
            self._warn_of_memory(held_bytes_max)
            what = f"groups take {held_bytes_max} bytes (group.coordinator.max.bytes)"
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, what)

    def _warn_of_memory(self, held_bytes_max: int) -> None:
        """Tell the operator, at most once a minute."""
        now_ms = self._wall_ms()
        if abs(now_ms - self._warned_at_ms) >= WARNING_INTERVAL_MS:
            self._warned_at_ms = now_ms
            logger.warning(
                "Groups take group.coordinator.max.bytes=%d: joins and commits that need more are"
                " refused. Delete groups that are not used, or raise it",
                held_bytes_max,
            )

    def fresh_id(self, prefix: str) -> str:
        """Return a new id for a member, which begins with `prefix`: its client or instance id."""
        return f"{prefix}-{UUID(int=self._rng.getrandbits(128), version=4)}"

    def review(self) -> None:
        """Have `run` look at a group again, because the group may wait for something else."""
        self._is_to_review = True
        self._purgatory.notify(self)

    def statistics(self) -> tuple[int, int]:
        """Return how many groups and how many offsets this broker coordinates."""
        counts = [shard.table.statistics() for shard in self._shards.values() if shard.registry]
        return sum(groups for groups, _ in counts), sum(offsets for _, offsets in counts)

    def groups_kept(self) -> Iterator[KeptGroup]:
        """Yield every group that this broker coordinates. The caller may wait between two."""
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
        """Follow the partitions on this broker, and serve the groups of those that it leads."""
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
        """Update the shards from the replicas of the offsets topic on this broker."""
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
        """Replay committed records, start serving if possible, and do what is due."""
        if shard.catch_up(trio.current_time()):
            is_behind = True
            while is_behind:
                await trio.lowlevel.checkpoint()
                is_behind = shard.catch_up(trio.current_time())
            self._purgatory.notify(name)  # a waiting request cannot have seen all of it
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
            self._limits._replace(record_bytes_max=shard.partition.settings.max_message_bytes),
            write_timeout_s=self._config.offsets_commit_timeout_ms / 1000,
            wall_ms=self._wall_ms,
            append=partial(self.append, shard),
            wake=self._purgatory.notify,
            topic_names=lambda: self._replicas.image.topic_names,
            consumer_limits=partial(_limits_of, self._config, self.consumer_limits, self._replicas),
        )

    async def _wait(self) -> None:
        """Wait until there is something to do."""
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

    # -- expiry

    async def _drop_expired(self) -> None:
        """Append tombstones for offsets and groups that were not used during the retention
        (GRP-15), and for the offsets of deleted topics."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        oldest_ms = self._expiry_ms() - retention_ms
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
        """Append tombstones for the offsets of deleted topics."""
        if self._replicas.is_ready:
            gone = set(shard.table.topics) - self._replicas.image.topics.keys()
            self._try_drop(shard, shard.table.of_topics(gone), trio.current_time())

    def forget_topic(self, topic: str, now: float) -> None:
        """Expire the offsets of a topic that was deleted, or created again."""
        for shard in self._shards.values():
            self._try_drop(shard, shard.table.of_topics((topic,)), now)

    def _try_drop(self, shard: Shard, keys: Iterable[Key], now: float) -> None:
        """Append tombstones to a shard that is served. If that fails, the next expiry tries
        again."""
        dropped = list(keys)
        if not dropped or shard.registry is None:
            return
        try:
            self.drop(shard, dropped, now)
        except Refused as refused:
            logger.info("%s: not dropped yet: %s", shard.partition.topic_partition, refused)


def _is_watched(shard: Shard) -> bool:
    """Whether `run` must notice each advance of a partition's high watermark."""
    return shard.registry.is_writing if shard.registry is not None else shard.leader is not None


def _classic_limits(config: Config) -> GroupLimits:
    return GroupLimits(
        config.group_min_session_timeout_ms,
        config.group_max_session_timeout_ms,
        config.group_max_size,
        config.group_initial_rebalance_delay_ms,
    )


def _limits_of(
    config: Config, limits: ConsumerLimits, replicas: Replicas, group_id: str
) -> ConsumerLimits:
    """Return the limits of a group, by its own settings and those of the broker."""
    own = replicas.image.groups.get(group_id)
    return limits if own is None else limits._replace(**config.for_group(own)._asdict())


def _consumer_limits(config: Config) -> ConsumerLimits:
    return ConsumerLimits(
        config.group_consumer_session_timeout_ms,
        config.group_consumer_heartbeat_interval_ms,
        config.group_consumer_max_size,
        Migration(config.group_consumer_migration_policy),
        tuple(config.group_consumer_assignors.split(",")),
    )


def check_group_id(group_id: str) -> None:
    """Raise `Refused` (INVALID_GROUP_ID) if a group id is empty or too long for a record."""
    if not group_id or not is_storable(group_id):
        raise Refused(ErrorCode.INVALID_GROUP_ID, "a group id has 1 to 32767 bytes")
