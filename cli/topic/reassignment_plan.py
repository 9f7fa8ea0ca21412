"""Plans of reassignments: made from the present assignment, or read from Kafka's JSON.

A plan moves as little as possible: a replica stays where it is if its broker is among the wanted
ones and has no more replicas than its share. The others go to racks where the partition has none,
if there are several, and there to the brokers with the fewest replicas; of these, to the one with
the fewest bytes. Then, if a broker still has more bytes than `BYTES_TOLERANCE` allows, it exchanges
replicas with others, so that each keeps its number of replicas, and no partition is in fewer racks.
The first replica of a partition is its preferred leader; the plan spreads them by number.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from minibroker.protocol.constants import INT32_MAX

Name: TypeAlias = tuple[str, int]
Assignments: TypeAlias = dict[Name, tuple[int, ...]]
# The path of a log directory, by topic, partition and broker.
LogDirs: TypeAlias = Mapping[tuple[str, int, int], str]
Racks: TypeAlias = Mapping[int, str | None]

ANY: Final = "any"  # the broker chooses the log directory
NO_RACKS: Final[Racks] = MappingProxyType({})
NO_LOG_DIRS: Final[LogDirs] = MappingProxyType({})
NO_SIZES: Final[Mapping[Name, int]] = MappingProxyType({})
# How far above the mean the bytes of a broker may be before replicas move for them alone.
BYTES_TOLERANCE: Final = 0.1


class PlanError(ValueError):
    """A plan that cannot be read or made; the text says why."""


def read_plan(text: str) -> Assignments:
    """Read the JSON of Kafka's kafka-reassign-partitions. Raises `PlanError`."""
    try:
        found: Any = json.loads(text)
        plan = {
            (_topic(one["topic"]), number_of(one["partition"])): _replicas(one["replicas"])
            for one in found["partitions"]
        }
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        form = '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'
        raise PlanError(f"the plan is not of the form {form}: {error!r}") from error
    if len(plan) < len(found["partitions"]):
        raise PlanError("the plan names a partition twice")
    if not plan:
        raise PlanError("the plan names no partition")
    return plan


def read_log_dirs(text: str) -> dict[tuple[str, int, int], str]:
    """Read where replicas are to be from a plan that `read_plan` has read: the entries of
    `log_dirs`, one for each replica, but for `any`. Raises `PlanError`."""
    found: dict[tuple[str, int, int], str] = {}
    for one in json.loads(text)["partitions"]:
        paths, replicas = one.get("log_dirs"), _replicas(one["replicas"])
        if paths is None:
            continue
        name = one["topic"], number_of(one["partition"])
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise PlanError(f"log_dirs of {name[0]}-{name[1]} is no list of paths")
        if len(paths) != len(replicas):
            what = f"{len(paths)} log_dirs for {len(replicas)} replicas"
            raise PlanError(f"{name[0]}-{name[1]} has {what}: give each one, or {ANY!r}")
        placed = zip(replicas, paths, strict=True)
        found |= {(*name, node): path for node, path in placed if path != ANY}
    return found


def _topic(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name of a topic")
    value.encode()  # JSON can have half a character, which no name can
    return value


def _replicas(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list of brokers")
    return tuple(map(number_of, value))


def number_of(value: Any) -> int:
    """Return the number of a partition or of a broker. Raises `ValueError` for what is none."""
    number = int(value)
    if isinstance(value, float) or not 0 <= number <= INT32_MAX:
        raise ValueError(f"{value} is no number of a partition or of a broker")
    return number


def plan_json(assignments: Mapping[Name, Sequence[int]], log_dirs: LogDirs = NO_LOG_DIRS) -> str:
    """Return a plan as Kafka's JSON, in one line."""
    partitions = [
        {
            "topic": topic,
            "partition": number,
            "replicas": [*replicas],
            "log_dirs": [log_dirs.get((topic, number, node), ANY) for node in replicas],
        }
        for (topic, number), replicas in sorted(assignments.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions})


class _Load:
    """How many replicas each broker has, and how many bytes these are."""

    def __init__(
        self, assignments: Mapping[Name, Sequence[int]], sizes: Mapping[Name, int] = NO_SIZES
    ) -> None:
        self._sizes = sizes
        self.held = Counter[int]()
        self.bytes = Counter[int]()
        for name, replicas in assignments.items():
            for node in replicas:
                self.add(name, node)

    def add(self, name: Name, node: int) -> None:
        self.held[node] += 1
        self.bytes[node] += self._sizes.get(name, 0)

    def remove(self, name: Name, node: int) -> None:
        self.held[node] -= 1
        self.bytes[node] -= self._sizes.get(name, 0)

    def of(self, node: int) -> tuple[int, int]:
        """Return what to compare a broker by: the replicas, then the bytes."""
        return self.held[node], self.bytes[node]


def balanced_plan(
    present: Mapping[Name, Sequence[int]],
    brokers: Iterable[int],
    racks: Racks = NO_RACKS,
    sizes: Mapping[Name, int] = NO_SIZES,
) -> Assignments:
    """Return a plan that spreads the partitions over these brokers and their racks, each with as
    many replicas as it has. `sizes` are the bytes of a replica of each partition, as far as known.
    Raises `PlanError` if there are too few brokers."""
    wanted = {*brokers}
    kept = {
        name: [node for node in replicas if node in wanted]
        for name, replicas in sorted(present.items())
    }
    load = _Load(kept, sizes)
    rack_count = len({racks.get(node) for node in wanted})
    for name, staying in kept.items():
        count = len(present[name])
        while _racks_reached(staying, racks, count) < min(count, rack_count):
            _release(name, staying, _in_used_racks(staying, racks), load)
    share = -(-sum(map(len, present.values())) // max(1, len(wanted)))
    while max(load.held.values(), default=0) > share:
        # One replica of each partition at most, so that the new brokers can take all of them.
        for name, staying in kept.items():
            if over := [node for node in staying if load.held[node] > share]:
                _release(name, staying, over, load)
    filled = {
        name: [*_filled(name, staying, wanted, len(present[name]), load, racks)]
        for name, staying in kept.items()
    }
    _exchange(filled, sorted(wanted), load, racks, sizes)
    led = Counter[int]()
    plan: Assignments = {}
    for name in kept:
        first = min(filled[name], key=lambda node: led[node])
        led[first] += 1
        plan[name] = (first, *(node for node in filled[name] if node != first))
    return plan


def _release(name: Name, staying: list[int], candidates: Iterable[int], load: _Load) -> None:
    """Have the most loaded of the candidates not stay."""
    largest = max(candidates, key=load.of)
    staying.remove(largest)
    load.remove(name, largest)


def _exchange(
    plan: dict[Name, list[int]],
    brokers: Sequence[int],
    load: _Load,
    racks: Racks,
    sizes: Mapping[Name, int],
) -> None:
    """Exchange replicas of brokers that have too many bytes for smaller ones of others. Each
    exchange lowers the larger one of two sums, so this ends."""
    limit = (1 + BYTES_TOLERANCE) * sum(load.bytes.values()) / max(1, len(brokers))
    is_better = True
    while is_better:
        is_better = False
        full = (node for node in brokers if load.bytes[node] > limit)
        for source in sorted(full, key=lambda node: -load.bytes[node]):
            found = [
                (*best, target)
                for target in brokers
                if (best := _best_exchange(plan, source, target, load, racks, sizes)) is not None
            ]
            if found:
                _, large, small, target = max(found)
                for name, old, new in ((large, source, target), (small, target, source)):
                    plan[name][plan[name].index(old)] = new
                    load.remove(name, old)
                    load.add(name, new)
                is_better = True
                break


def _best_exchange(
    plan: Mapping[Name, Sequence[int]],
    fullest: int,
    other: int,
    load: _Load,
    racks: Racks,
    sizes: Mapping[Name, int],
) -> tuple[int, Name, Name] | None:
    """Return by how much the larger sum of bytes of two brokers can fall with one exchange, the
    partition that leaves the fullest broker, and the one that comes. For each that may leave, only
    the two are looked at that come nearest to evening out."""
    gap = load.bytes[fullest] - load.bytes[other]
    larger = _movable(plan, fullest, other, racks)
    smaller = sorted((sizes.get(name, 0), name) for name in _movable(plan, other, fullest, racks))
    best = None
    for name in larger:
        size = sizes.get(name, 0)
        place = bisect_left(smaller, (size - gap // 2, name))
        for small_size, small in smaller[max(0, place - 1) : place + 1]:
            moved = size - small_size
            gain = min(moved, gap - moved)
            if gain > 0 and (best is None or (gain, name, small) > best):
                best = gain, name, small
    return best


def _movable(
    plan: Mapping[Name, Sequence[int]], source: int, target: int, racks: Racks
) -> list[Name]:
    """Return the partitions whose replica on `source` can be on `target` instead, without that
    they are in fewer racks."""
    return [
        name
        for name, replicas in plan.items()
        if source in replicas and target not in replicas
        if racks.get(source) == racks.get(target)
        or racks.get(target) not in {racks.get(node) for node in replicas}
        or sum(racks.get(node) == racks.get(source) for node in replicas) > 1
    ]


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
    load = _Load(kept)
    return {
        name: _filled(name, staying, wanted, factor, load, racks) for name, staying in kept.items()
    }


def drained_plan(
    present: Mapping[Name, Sequence[int]],
    broker: int,
    others: Collection[int],
    racks: Racks = NO_RACKS,
) -> Assignments:
    """Return a plan that moves each replica of a broker to one of the others; the rest stays where
    it is. Raises `PlanError` if a partition has replicas on all others already."""
    assert broker not in others
    load = _Load(present)
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
        heir = _filled(name, staying, others, len(replicas), load, racks)[-1]
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
    name: Name,
    staying: Sequence[int],
    brokers: Collection[int],
    count: int,
    load: _Load,
    racks: Racks,
) -> tuple[int, ...]:
    """Return `count` replicas: those that stay, and on the brokers that hold the least, in racks
    that have the fewest."""
    chosen = [*staying]
    used = Counter(racks.get(node) for node in chosen)
    while len(chosen) < count:
        others = [node for node in brokers if node not in chosen]
        if not others:
            what = f"{count} replicas need as many brokers; there are {len({*brokers, *staying})}"
            raise PlanError(what)
        chosen.append(min(others, key=lambda node: (used[racks.get(node)], load.of(node), node)))
        load.add(name, chosen[-1])
        used[racks.get(chosen[-1])] += 1
    return tuple(chosen)
