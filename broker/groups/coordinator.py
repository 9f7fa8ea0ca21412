"""The group coordinator of a broker, for the groups whose offsets partition this broker leads.

    handlers -> serving(group) -> Shard, GroupRegistry -> Group    plain calls, which never wait
    run      -> follows the partitions here, starts serving, ticks groups, removes what expired

What it shares with the other coordinator is in `coordination.coordinator`. `Services` has one
coordinator of groups.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import trio

from minibroker.broker.config import Config
from minibroker.broker.coordination.coordinator import PartitionedCoordinator
from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_heartbeats import ConsumerLimits, Migration
from minibroker.broker.groups.group_members import GroupLimits
from minibroker.broker.groups.records import Key, is_storable
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.groups.shard import Records, Shard
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.turns import at_once
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

GROUPS_AT_ONCE: Final = 50  # handled between two checkpoints, at which other tasks run
TOMBSTONES_PER_BATCH: Final = 500
WARNING_INTERVAL_MS: Final = 60_000
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


class Coordinator(PartitionedCoordinator[Shard]):
    """See the head of this module."""

    topic = OFFSETS_TOPIC

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
        fence_timeout_s = config.fence_timeout_ms / 1000
        super().__init__(replicas, purgatory, may_decide_alone, fence_timeout_s)
        self._config = config
        self._wall_ms = wall_ms
        self._expiry_ms = expiry_ms or wall_ms
        self._rng = rng
        self._limits = _classic_limits(config)
        self.consumer_limits = _consumer_limits(config)
        self._warned_at_ms = -WARNING_INTERVAL_MS

    # -- for handlers

    def serving(self, group_id: str, now: float) -> Serving:
        """Return the shard and the registry of a group, if this broker coordinates it (GRP-01).

        Raises `Refused`: INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE before there is an offsets
        topic, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        check_group_id(group_id)
        shard = self.served(group_id, now)
        assert shard.registry is not None
        return Serving(shard, shard.registry)

    def check_heartbeat(self, group_id: str, now: float) -> GroupRegistry | None:
        """Return the registry that keeps a member alive; None while the coordinator loads it.

        Raises `Refused` as `serving` does. While the coordinator loads, it keeps members alive only
        if it surely was not replaced and its log can be read. Then no other broker can remove the
        member, so the member loses nothing however long the load takes.
        """
        try:
            return self.serving(group_id, now).registry
        except Refused as refused:
            name = self.name_of(group_id)
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
        name = self.name_of(group_id)
        if error in PUT_OUT and name is not None:
            try:
                self._check_session(name, now)
            except Refused as refused:
                return refused.code
        return ErrorCode(error)

    def all_serving(self, now: float) -> tuple[list[Serving], bool]:
        """Return all that this broker serves, and whether it still loads more."""
        shards, is_loading = self.all_served(now)
        found = [Serving(shard, shard.registry) for shard in shards if shard.registry is not None]
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

    # -- the task

    def _make_shard(self, partition: Partition) -> Shard:
        return Shard(partition, self._replicas.append)

    async def _do_duties(self) -> None:
        is_first = self._duty_at == math.inf
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        self._duty_at = trio.current_time() + interval_s
        if not is_first:
            await self._drop_expired()

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
