"""Plans of reassignments: made from the present assignment, or read from Kafka's JSON.

A plan moves as little as possible: a replica stays where it is if its broker is among the wanted
ones and has no more replicas than its share. The others go to racks where the partition has none,
if there are several, and there to the brokers with the fewest replicas.
The first replica of a partition is its preferred leader; the plan spreads them in the same way.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from minibroker.protocol.constants import INT32_MAX

Name: TypeAlias = tuple[str, int]
Assignments: TypeAlias = dict[Name, tuple[int, ...]]
Racks: TypeAlias = Mapping[int, str | None]

NO_RACKS: Final[Racks] = MappingProxyType({})


class PlanError(ValueError):
    """A plan that cannot be read or made; the text says why."""


def read_plan(text: str) -> Assignments:
    """Read the JSON of Kafka's kafka-reassign-partitions. Raises `PlanError`."""
    try:
        found: Any = json.loads(text)
        plan = {
            (str(one["topic"]), number_of(one["partition"])): tuple(map(number_of, one["replicas"]))
            for one in found["partitions"]
        }
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        form = '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'
        raise PlanError(f"the plan is not of the form {form}: {error!r}") from error
    if len(plan) < len(found["partitions"]):
        raise PlanError("the plan names a partition twice")
    return plan


def number_of(value: Any) -> int:
    """Return the number of a partition or of a broker. Raises `ValueError` for what is none."""
    number = int(value)
    if isinstance(value, float) or not 0 <= number <= INT32_MAX:
        raise ValueError(f"{value} is no number of a partition or of a broker")
    return number


def plan_json(assignments: Mapping[Name, Sequence[int]]) -> str:
    """Return a plan as Kafka's JSON, in one line."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": [*replicas]}
        for (topic, number), replicas in sorted(assignments.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def balanced_plan(
    present: Mapping[Name, Sequence[int]], brokers: Iterable[int], racks: Racks = NO_RACKS
) -> Assignments:
    """Return a plan that spreads the partitions over these brokers and their racks, each with as
    many replicas as it has. Raises `PlanError` if there are too few brokers."""
    wanted = {*brokers}
    share = -(-sum(map(len, present.values())) // max(1, len(wanted)))
    kept = {
        name: [node for node in replicas if node in wanted]
        for name, replicas in sorted(present.items())
    }
    held = Counter[int](node for replicas in kept.values() for node in replicas)
    led = Counter[int]()
    rack_count = len({racks.get(node) for node in wanted})
    for name, staying in kept.items():
        count = len(present[name])
        while _racks_reached(staying, racks, count) < min(count, rack_count):
            doubled = _in_used_racks(staying, racks)
            largest = max(doubled, key=lambda node: held[node])
            staying.remove(largest)
            held[largest] -= 1
    while max(held.values(), default=0) > share:
        # One replica of each partition at most, so that the new brokers can take all of them.
        for staying in kept.values():
            if over := [node for node in staying if held[node] > share]:
                largest = max(over, key=lambda node: held[node])
                staying.remove(largest)
                held[largest] -= 1
    plan: Assignments = {}
    for name, staying in kept.items():
        replicas = _filled(staying, wanted, len(present[name]), held, racks)
        first = min(replicas, key=lambda node: led[node])
        led[first] += 1
        plan[name] = (first, *(node for node in replicas if node != first))
    return plan


def resized_plan(
    present: Mapping[Name, Sequence[int]],
    brokers: Iterable[int],
    factor: int,
    racks: Racks = NO_RACKS,
) -> Assignments:
    """Return a plan in which each partition has `factor` replicas: the first ones stay, and brokers
    with few replicas get the others. Raises `PlanError` if there are too few brokers."""
    wanted = {*brokers}
    kept = {name: tuple(replicas)[:factor] for name, replicas in sorted(present.items())}
    held = Counter[int](node for replicas in kept.values() for node in replicas)
    return {name: _filled(staying, wanted, factor, held, racks) for name, staying in kept.items()}


def drained_plan(
    present: Mapping[Name, Sequence[int]],
    broker: int,
    others: Collection[int],
    racks: Racks = NO_RACKS,
) -> Assignments:
    """Return a plan that moves each replica of a broker to one of the others; the rest stays where
    it is. Raises `PlanError` if a partition has replicas on all others already."""
    assert broker not in others
    held = Counter[int](node for replicas in present.values() for node in replicas)
    plan: Assignments = {}
    for name, replicas in sorted(present.items()):
        if broker not in replicas:
            continue
        staying = [node for node in replicas if node != broker]
        if {*others} <= {*staying}:
            what = (
                f"{name[0]}-{name[1]} has {len(replicas)} replicas, and no other live broker can"
                f" take that of broker {broker}: start another one, or lower the replication factor"
            )
            raise PlanError(what)
        heir = _filled(staying, others, len(replicas), held, racks)[-1]
        plan[name] = tuple(heir if node == broker else node for node in replicas)
    return plan


def replaced_plan(present: Mapping[Name, Sequence[int]], old: int, new: int) -> Assignments:
    """Return a plan that moves each replica of the broker `old` to the broker `new`. Raises
    `PlanError` if `new` has a replica of one of these partitions already."""
    plan: Assignments = {}
    for name, replicas in sorted(present.items()):
        if old not in replicas:
            continue
        if new in replicas:
            what = (
                f"{name[0]}-{name[1]} has a replica on broker {old} and on broker {new}; use"
                f" `minibroker broker drain {old}`, which spreads them over all brokers"
            )
            raise PlanError(what)
        plan[name] = tuple(new if node == old else node for node in replicas)
    return plan


def _racks_reached(staying: Sequence[int], racks: Racks, count: int) -> int:
    """Return in how many racks the partition can be without another of the replicas moving."""
    return len({racks.get(node) for node in staying}) + count - len(staying)


def _in_used_racks(replicas: Sequence[int], racks: Racks) -> list[int]:
    """Return the replicas that are in a rack together with another one."""
    used = Counter(racks.get(node) for node in replicas)
    return [node for node in replicas if used[racks.get(node)] > 1]


def _filled(
    staying: Sequence[int],
    brokers: Collection[int],
    count: int,
    held: Counter[int],
    racks: Racks,
) -> tuple[int, ...]:
    """Return `count` replicas: those that stay, and on the brokers that hold the fewest, in racks
    that have the fewest."""
    chosen = [*staying]
    used = Counter(racks.get(node) for node in chosen)
    while len(chosen) < count:
        others = [node for node in brokers if node not in chosen]
        if not others:
            what = f"{count} replicas need as many brokers; there are {len({*brokers, *staying})}"
            raise PlanError(what)
        chosen.append(min(others, key=lambda node: (used[racks.get(node)], held[node], node)))
        held[chosen[-1]] += 1
        used[racks.get(chosen[-1])] += 1
    return tuple(chosen)
