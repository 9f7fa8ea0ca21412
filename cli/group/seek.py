"""The new offsets of `group seek`: from flags to a target, from a target to offsets.

A requested offset may lie outside the log; then the nearest offset inside is used, and a note says
so. A shift counts from the committed offset, so a partition without one is left unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from minibroker.broker.findings.groups import OffsetRange
from minibroker.cli.data.formats import FormatError, parse_offset
from minibroker.cli.group.lag import offset_ranges
from minibroker.cli.terminal import Failure, counted, note, readable
from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.client import OffsetAndMetadata
    from minibroker.client.blocking import Admin

HEADS: Final = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "OLD-OFFSET")


class Move(NamedTuple):
    """The change in one partition; its fields are the names in JSON, `HEADS` those in text."""

    group: str
    topic: str
    partition: int
    new_offset: int
    old_offset: int | None


class Target(NamedTuple):
    """The target of a seek: `kind` is earliest, latest, offset, time (ms) or shift."""

    kind: str
    number: int = 0


def target_of(
    *, earliest: bool, latest: bool, offset: int | None, time: str | None, shift: int | None
) -> Target:
    """Return the one target that was given. Raises `typer.BadParameter`."""
    given = []
    if earliest:
        given.append(Target("earliest"))
    if latest:
        given.append(Target("latest"))
    if offset is not None:
        given.append(Target("offset", offset))
    if time is not None:
        try:
            given.append(Target("time", parse_offset(f"s@{time}").number))
        except FormatError as error:
            raise typer.BadParameter(str(error)) from None
    if shift is not None:
        given.append(Target("shift", shift))
    if len(given) != 1:
        flags = "--to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
        raise typer.BadParameter(f"say where to: one of {flags}")
    return given[0]


class Scope(NamedTuple):
    """A topic, and some of its partitions; None: all of them."""

    topic: str
    partitions: tuple[int, ...] | None


def parse_scope(text: str) -> Scope:
    """Parse `TOPIC` or `TOPIC:0,1`. Raises `typer.BadParameter`."""
    topic, separator, numbers = readable(text, "--topic").partition(":")
    parts = numbers.split(",")
    if not topic or (separator and not all(part.isdecimal() and len(part) < 10 for part in parts)):
        raise typer.BadParameter(f"--topic takes TOPIC or TOPIC:0,1 and so on, not {text!r}")
    return Scope(topic, tuple(sorted({int(part) for part in parts})) if separator else None)


def partitions_in(admin: "Admin", scopes: Sequence[Scope]) -> list[TopicPartition]:
    """Return the partitions in the scopes. Raises `Failure` for one that does not exist."""
    names = set()
    for topic, numbers in scopes:
        [found] = admin.describe_topics(topic)
        count = len(found.partitions)
        for number in range(count) if numbers is None else numbers:
            if number >= count:
                has = counted(count, "partition")
                raise Failure(f"topic {topic} has {has}, numbered from 0: there is no {number}")
            names.add(TopicPartition(topic, number))
    return sorted(names)


def scopes_of(admin: "Admin", committed: "Mapping[TopicPartition, object]") -> list[Scope]:
    """Return the topics that a group has committed offsets for; notes name those that are gone."""
    there = set(admin.list_topics())
    topics = sorted({name.topic for name in committed})
    for topic in topics:
        if topic not in there:
            note(f"there is no topic {topic} any more: what was committed of it stays as it is")
    return [Scope(topic, None) for topic in topics if topic in there]


def committed_in(
    scopes: Sequence[Scope], committed: "Mapping[TopicPartition, object]"
) -> list[TopicPartition]:
    """Return the partitions in the scopes with committed offsets. Raises `Failure` if none."""
    names = [
        name
        for name in committed
        for topic, numbers in scopes
        if name.topic == topic and (numbers is None or name.partition in numbers)
    ]
    if not names:
        raise Failure("the group has committed nothing there")
    return names


def plan(
    admin: "Admin",
    group: str,
    target: Target,
    names: Sequence[TopicPartition],
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
) -> list[Move]:
    """Return a move for each partition, even if its offset stays the same. Raises `Failure`."""
    if target.kind == "shift":
        for name in names:
            if name not in committed:
                note(f"{name} is left as it is: nothing was committed from which to count")
        names = [name for name in names if name in committed]
    if not names:
        raise Failure(f"group {group} has committed nothing there, so there is nothing to move")
    ranges = offset_ranges(admin, names)
    missing = [str(name) for name in names if name not in ranges]
    if missing:
        raise Failure(f"nobody leads {', '.join(missing)} now, so its offsets cannot be known")
    times = {}
    if target.kind == "time":
        found = admin.list_offsets(names, target.number)
        times = {name: answer.offset for name, answer in found.items()}
    moves = []
    for name in names:
        old = committed[name].offset if name in committed else None
        if times.get(name) == NO_OFFSET:
            note(f"{name} has no record of that time or later: the group goes to its end")
        new = _offset(target, old or 0, ranges[name], times.get(name, NO_OFFSET))
        moves.append(Move(group, *name, _clamped(name, new, ranges[name]), old))
    return moves


def _offset(target: Target, old: int, offset_range: OffsetRange, at_time: int) -> int:
    """Return the requested offset, which may lie outside the log."""
    return {
        "earliest": offset_range.log_start,
        "latest": offset_range.end,
        "offset": target.number,
        "time": offset_range.end if at_time == NO_OFFSET else at_time,
        "shift": old + target.number,
    }[target.kind]


def _clamped(name: TopicPartition, offset: int, offset_range: OffsetRange) -> int:
    """Return the nearest offset in the log."""
    inside = min(max(offset, offset_range.log_start), offset_range.end)
    if inside != offset:
        side = "before the log begins" if offset < inside else "behind its end"
        note(f"{name}: offset {offset} is {side}: the group goes to {inside}")
    return inside
