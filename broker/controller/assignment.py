"""The replicas of new partitions, which the controller chooses or a request assigns.

The first active replica leads a new partition, and all active replicas are in sync (CTL-01). The
controller creates a partition only if at least `min.insync.replicas` of its replicas are active;
otherwise every produce request with acks=all would be refused.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minibroker.broker.controller.placement import alternating, place
from minibroker.broker.controller.state import PartitionRecord, State
from minibroker.broker.errors import Refused
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.topics import DEFAULT_COUNT, NewTopic


class Brokers(NamedTuple):
    """The known brokers of a cluster, in order: those that may lead, and the others. `racks` has
    the rack of each of them; neighbours in `active` are in different racks as far as possible."""

    active: tuple[int, ...]
    down: tuple[int, ...]
    racks: Mapping[int, str | None] = {}


def brokers_of(state: State) -> Brokers:
    """Return the brokers that may hold a replica."""
    known = sorted(state.admissions)
    racks = {node: state.admissions[node].rack for node in known}
    return Brokers(
        alternating([node for node in known if state.is_active(node)], racks),
        tuple(node for node in known if not state.is_active(node)),
        racks,
    )


def check_factor(brokers: Brokers, factor: int, min_insync_replicas: int) -> None:
    """Check that there are enough brokers, and enough active ones. Raises `Refused`."""
    active, down = len(brokers.active), len(brokers.down)
    if not 1 <= factor <= active + down:
        named = f"{active} live broker{'' if active == 1 else 's'}"
        if down:
            named += f" and {down} that {'is' if down == 1 else 'are'} down"
        what = f"replication factor {factor}, with {named}"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)
    needed = _needed(factor, min_insync_replicas)
    if active < needed:
        what = (
            f"replication factor {factor} and min.insync.replicas {min_insync_replicas} need"
            f" {needed} live broker{'' if needed == 1 else 's'}; {active} of {active + down} live"
        )
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)


def place_partitions(
    brokers: Brokers, count: int, factor: int, min_insync_replicas: int, start: int, first: int = 0
) -> tuple[PartitionRecord, ...]:
    """Return `count` partitions from number `first` on, the first one's replicas from broker
    `start` on. `check_factor` has found no fault with them."""
    active = frozenset(brokers.active)
    live_min = _needed(factor, min_insync_replicas)
    placed = place(count, factor, brokers.active, start, brokers.down, brokers.racks, live_min)
    return tuple(
        _new_partition(number, replicas, active) for number, replicas in enumerate(placed, first)
    )


def assign_partitions(
    brokers: Brokers,
    assignments: Sequence[Sequence[int]],
    min_insync_replicas: int,
    factor: int | None = None,
    first: int = 0,
) -> tuple[PartitionRecord, ...]:
    """Return partitions from number `first` on, with replicas on the assigned brokers.

    All have `factor` replicas, or as many as the first one. Raises `Refused`
    (INVALID_REPLICA_ASSIGNMENT).
    """
    active = frozenset(brokers.active)
    known = active.union(brokers.down)
    for number, replicas in enumerate(assignments, first):
        if factor is None:
            factor = len(replicas)
        _check_replicas(number, replicas, known, factor)
        needed = _needed(factor, min_insync_replicas)
        count = len(active.intersection(replicas))
        if count < needed:
            what = (
                f"partition {number}: min.insync.replicas {min_insync_replicas} needs {needed}"
                f" of its brokers live; {count} of {factor} live"
            )
            raise _bad(what)
    return tuple(
        _new_partition(number, tuple(replicas), active)
        for number, replicas in enumerate(assignments, first)
    )


def in_order(wanted: NewTopic) -> list[Sequence[int]]:
    """Return the brokers that a request assigns to each partition of a topic, by number. Raises
    `Refused`: INVALID_REQUEST if counts are given too, else INVALID_REPLICA_ASSIGNMENT."""
    if (wanted.partition_count, wanted.replication_factor) != (DEFAULT_COUNT, DEFAULT_COUNT):
        what = "with assignments, the partition count and the replication factor are -1"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    by_number: Mapping[int, Sequence[int]] = {
        one.partition: one.broker_ids for one in wanted.assignments
    }
    if len(by_number) != len(wanted.assignments):
        raise _bad("a partition is assigned twice")
    if by_number.keys() != {*range(len(by_number))}:
        raise _bad("partitions are numbered from 0 on, without a gap")
    return [by_number[number] for number in range(len(by_number))]


def _check_replicas(
    number: int, replicas: Sequence[int], known: frozenset[int], factor: int
) -> None:
    if not replicas:
        raise _bad(f"partition {number} has no broker")
    if len(replicas) != factor:
        raise _bad(f"partition {number} has {len(replicas)} brokers, the others have {factor}")
    if len({*replicas}) != len(replicas):
        raise _bad(f"partition {number} has a broker twice")
    for node in replicas:
        if node not in known:
            raise _bad(f"partition {number}: there is no broker {node}")


def _needed(factor: int, min_insync_replicas: int) -> int:
    return max(1, min(min_insync_replicas, factor))


def _new_partition(
    number: int, replicas: tuple[int, ...], active: frozenset[int]
) -> PartitionRecord:
    isr = tuple(node for node in replicas if node in active)
    return PartitionRecord(number, isr[0], 0, 0, isr, replicas)


def _bad(what: str) -> Refused:
    return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, what)
