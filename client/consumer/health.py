"""A consumer's health: its membership, and whether its positions move."""

from typing import Any, NamedTuple

from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.client.consumer.positions import Positions
from minibroker.client.groups.membership import Membership
from minibroker.protocol.messages.groups import NO_GENERATION
from minibroker.protocol.types import TopicPartition


class PartitionHealth(NamedTuple):
    """The next offset, None while it is not known, and for how long no record was taken.

    `idle_s` is None if none was taken since the partition was assigned, or paused.
    """

    position: int | None
    idle_s: float | None


class ConsumerHealth(NamedTuple):
    """`state` is out, joining, syncing, assigned (the next poll takes it over), stable, fenced or
    in doubt (the coordinator has not answered for a session); alone where partitions are assigned
    by hand.

    `heartbeat_age_s` is how long ago a heartbeat was sent that was answered well; None for no
    member.
    """

    state: str
    member_id: str
    generation: int
    heartbeat_age_s: float | None
    partitions: dict[TopicPartition, PartitionHealth]


def describe(
    member: Membership | None,
    positions: Positions,
    delivered: DeliveredPositions[Any, Any],
    now: float,
) -> ConsumerHealth:
    """Return the health at `now`. A consumer without a group has no `member`."""
    partitions = {}
    for name in positions.assignment:
        last_taken_at = positions.of(name).last_taken_at
        idle_s = None if last_taken_at is None else now - last_taken_at
        partitions[name] = PartitionHealth(delivered.position(name), idle_s)
    if member is None or not member.is_subscribed:
        return ConsumerHealth("alone", "", NO_GENERATION, None, partitions)
    state = member.state.name.lower()
    if member.is_fenced:
        state = "fenced"
    elif member.is_in_doubt(now):
        state = "in doubt"
    age_s = member.contact_age_s(now)
    return ConsumerHealth(state, member.member_id, member.generation, age_s, partitions)
