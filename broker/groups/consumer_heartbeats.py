"""Heartbeats of the consumer protocol: which ones no group accepts, and what they say of a member.

The limits bound the time that a heartbeat takes: a client may send any.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_records import (
    RECORD_BYTES,
    TEXT_BYTES,
    MemberMetadata,
    TopicIdPartition,
    by_topic,
)
from minibroker.broker.groups.member import CLIENT_CHARS_MAX, Client
from minibroker.protocol.constants import INT32_MAX, ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    TopicIdPartitions,
)

NAME_CHARS_MAX: Final = 255  # of the ids of a member, an instance and a rack
TOPICS_MAX: Final = 5000  # that a member subscribes to by name
TOPIC_CHARS_MAX: Final = 249
OWNED_MAX: Final = 10_000  # partitions that a member says it owns

Heartbeat: TypeAlias = ConsumerGroupHeartbeatRequest


class Migration(StrEnum):
    """Which conversions of a group with members are allowed."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"  # from the classic to the consumer protocol
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        """Whether a group of the classic protocol may become one of the consumer protocol."""
        return self in (Migration.UPGRADE, Migration.BIDIRECTIONAL)

    @property
    def may_downgrade(self) -> bool:
        """Whether a group of the consumer protocol may become a classic one."""
        return self in (Migration.DOWNGRADE, Migration.BIDIRECTIONAL)


class ConsumerLimits(NamedTuple):
    """The settings of a group, from the configuration of the broker."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    size_max: int = 2**31 - 1
    migration: Migration = Migration.BIDIRECTIONAL
    assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    held_bytes_max: int = 8 * 1024 * 1024


def check(request: Heartbeat, limits: ConsumerLimits) -> None:
    """Raise `Refused` for a heartbeat that no group accepts."""
    if what := _invalid(request):
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    if request.assignor is not None and request.assignor not in limits.assignors:
        what = f"the assignors are {', '.join(limits.assignors)}"
        raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, what)


def _invalid(request: Heartbeat) -> str:
    epoch = request.member_epoch
    names = (request.member_id, request.instance_id, request.rack_id)
    if "" in (request.instance_id, request.rack_id):
        return "an instance id and a rack id must not be empty"
    if any(len(name) > NAME_CHARS_MAX for name in names if name):
        return f"the ids of members, instances and racks have at most {NAME_CHARS_MAX} characters"
    if not request.member_id and not (epoch == JOIN_EPOCH and request.is_member_id_made):
        return "the member id must not be empty"
    if epoch < LEAVE_STATIC_EPOCH:
        return f"{epoch} is no member epoch"
    if epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        return "a static member must name its instance id"
    if len(request.topics or ()) > TOPICS_MAX:
        return f"a member subscribes to at most {TOPICS_MAX} topics by name"
    if any(not 0 < len(topic) <= TOPIC_CHARS_MAX for topic in request.topics or ()):
        return f"a topic's name has 1 to {TOPIC_CHARS_MAX} characters"
    if sum(len(each.partitions) for each in request.owned or ()) > OWNED_MAX:
        return f"a member owns at most {OWNED_MAX} partitions"
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms <= 0:
            return "a member that joins must name its rebalance time-out"
        if request.owned is None or request.owned:
            return "a member that joins must not own partitions"
        if request.topics is None and not request.pattern:
            return "a member that joins must subscribe to topics, by name or by a pattern"
    return ""


def updated(member: MemberMetadata, request: Heartbeat, client: Client) -> MemberMetadata:
    """Return a member with what a heartbeat says of it."""
    pattern = member.pattern if request.pattern is None else request.pattern or None
    topics = member.topics if request.topics is None else tuple(sorted(set(request.topics)))
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        request.instance_id or member.instance_id,
        request.rack_id or member.rack_id,
        client.client_id[:CLIENT_CHARS_MAX],
        client.host[:CLIENT_CHARS_MAX],
        topics,
        pattern,
        member.rebalance_timeout_ms if timeout_ms < 0 else min(timeout_ms, INT32_MAX),
        request.assignor or member.assignor,
    )


def growth(request: Heartbeat) -> int:
    """Return how much more memory a group may take after a heartbeat, about."""
    if request.member_epoch != JOIN_EPOCH and request.topics is None:
        return 0
    return RECORD_BYTES + sum(TEXT_BYTES + len(topic) for topic in request.topics or ())


def is_full(request: Heartbeat) -> bool:
    """Whether the request says all of the member, because it may have missed an answer."""
    is_subscribed = request.topics is not None or request.pattern is not None
    has_all = request.rebalance_timeout_ms >= 0 and is_subscribed and request.owned is not None
    return request.member_epoch == JOIN_EPOCH or has_all


def partitions_of(
    owned: tuple[TopicIdPartitions, ...] | None,
) -> frozenset[TopicIdPartition] | None:
    if owned is None:
        return None
    return frozenset(
        TopicIdPartition(each.topic_id, number) for each in owned for number in each.partitions
    )


def by_topic_id(partitions: Collection[TopicIdPartition]) -> tuple[TopicIdPartitions, ...]:
    topics = by_topic(partitions)
    return tuple(TopicIdPartitions(topic_id, tuple(each)) for topic_id, each in topics.items())
