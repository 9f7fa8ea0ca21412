"""The new offsets of `group seek`: from flags to a target, from a target to offsets.

A requested offset may lie outside the log; then the nearest offset inside is used, and a note says
so. A shift counts from the committed offset, so a partition without one is left unchanged.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
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

DURATION: Final = re.compile(
    r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,8})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,3})?)S)?)?"
)
NUMBER: Final = re.compile(r"[0-9]{1,18}")
HEADS: Final = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "OLD-OFFSET")


class Move(NamedTuple):
    """The change in one partition; its fields are the names in JSON, `HEADS` those in text."""

    group: str
    topic: str
    partition: int
    new_offset: int
    old_offset: int | None


class Target(NamedTuple):
    """The target of a seek: `kind` is earliest, latest, offset, time (ms), shift or file.

    `offsets` are those of a file.
    """

    kind: str
    number: int = 0
    offsets: Mapping[TopicPartition, int] = {}


class GivenTarget(NamedTuple):
    """The options that say where to; all but one are missing."""

    earliest: bool
    latest: bool
    offset: int | None
    time: str | None
    shift: int | None
    duration: str | None = None
    file: Path | None = None


def target_of(given: GivenTarget, group: str, now_ms: int) -> Target:
    """Return the one target that was given; a duration counts back from `now_ms` (since 1970).

    Raises `typer.BadParameter`, and `Failure` for a file that cannot be read.
    """
    named = [name for name, value in given._asdict().items() if value not in (None, False)]
    if len(named) != 1:
        flags = "--to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration, --shift-by"
        raise typer.BadParameter(f"say where to: one of {flags}, --from-file")
    if given.time is not None:
        try:
            return Target("time", parse_offset(f"s@{given.time}").number)
        except FormatError as error:
            raise typer.BadParameter(str(error)) from None
    if given.duration is not None:
        return Target("time", max(0, now_ms - _duration_ms(given.duration)))
    if given.file is not None:
        return Target("file", offsets=_offsets_in(given.file, group))
    return Target(named[0], given.offset or given.shift or 0)


def _duration_ms(text: str) -> int:
    """Return a duration of ISO 8601, such as PT90M or P1DT2H, in ms."""
    found = DURATION.fullmatch(text)
    if found is None or not any(found.groups()) or text.endswith("T"):
        raise typer.BadParameter(f"{text!r} is no duration: PnDTnHnMnS, for example PT90M or P1D")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return round(span.total_seconds() * 1000)


def _offsets_in(file: Path, group: str) -> dict[TopicPartition, int]:
    """Return the offsets in a file of Kafka's form: lines TOPIC,PARTITION,OFFSET, or those with the
    group before them, of which only lines of this group count."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise Failure(f"{file} is not UTF-8") from None
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = [field.strip().removeprefix('"').removesuffix('"') for field in line.split(",")]
        of_group, topic, partition, offset = [group, *fields][-4:] if len(fields) > 2 else [""] * 4
        is_number = NUMBER.fullmatch(partition) and NUMBER.fullmatch(offset)
        if not (topic and is_number and len(fields) <= 4):
            shown = line if len(line) <= 60 else f"{line[:60]}..."
            raise Failure(f"{file}, line {number}: {shown!r} is not TOPIC,PARTITION,OFFSET")
        name = TopicPartition(topic, int(partition))
        if of_group == group:
            if name in offsets:
                raise Failure(f"{file}, line {number}: {name} is there twice")
            offsets[name] = int(offset)
    if not offsets:
        raise Failure(f"{file} has no offsets of group {group}")
    return offsets


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


def scopes_in(offsets: Mapping[TopicPartition, int]) -> list[Scope]:
    """Return the partitions that have an offset, by topic."""
    return [
        Scope(topic, tuple(name.partition for name in offsets if name.topic == topic))
        for topic in sorted({name.topic for name in offsets})
    ]


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
        new = target.offsets.get(name)
        if new is None:
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
