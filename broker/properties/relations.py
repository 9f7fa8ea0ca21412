"""Pairs of properties of which one must not be above the other."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class Relation(NamedTuple):
    """`low` must be at most `high`, or below it if `is_strict`; else this happens."""

    low: str
    high: str
    otherwise: str
    is_strict: bool = False


RELATIONS: Final = (
    Relation(
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "the broker would count as dead between two signs of life",
        is_strict=True,
    ),
    Relation(
        "broker.session.timeout.ms",
        "broker.fence.timeout.ms",
        "leaders would refuse requests whenever a controller is replaced",
    ),
    Relation(
        "replica.fetch.wait.max.ms",
        "replica.lag.time.max.ms",
        "a follower that waits for records would leave the in-sync set",
    ),
    Relation(
        "replica.fetch.wait.max.ms",
        "replica.socket.timeout.ms",
        "a follower would give up the fetches that wait for records",
    ),
    Relation(
        "group.min.session.timeout.ms",
        "group.max.session.timeout.ms",
        "no member could join a group",
    ),
    Relation(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.session.timeout.ms",
        "members would be removed between their heartbeats",
    ),
    Relation(
        "log.roll.jitter.ms",
        "log.roll.ms",
        "logs would begin a new file with every batch",
    ),
)


def unmet(value_of: Callable[[str], int | None]) -> Iterator[str]:
    """Describe, for the user, the relations that do not hold; `value_of` returns None for a value
    that is not known."""
    for relation in RELATIONS:
        low, high = value_of(relation.low), value_of(relation.high)
        if low is None or high is None or low < high or (low == high and not relation.is_strict):
            continue
        wanted = "below" if relation.is_strict else "at most"
        yield (
            f"{relation.low} = {low} must be {wanted} {relation.high} = {high}; else"
            f" {relation.otherwise}"
        )
