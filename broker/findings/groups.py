"""Findings about consumer groups: committed offsets outside the log, or before what nobody reads.

`group describe` warns of them in the same words. A group beyond the log's end stands where no
record is, or behind records that it has not read: that is a problem. So is a batch that no client
can decode: each member stops in front of it. Below the log's start retention may have overtaken the
group, and a topic may be deleted on purpose: these are notes.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from minibroker.broker.findings import Finding, Level, counted
from minibroker.protocol.types import TopicPartition


class OffsetRange(NamedTuple):
    """The offsets of a partition that consumers can read."""

    log_start: int
    end: int


def warning_of(
    name: TopicPartition, offset: int, offsets: OffsetRange | None, unreadable: str = ""
) -> tuple[Level, str] | None:
    """Return how bad a committed offset is, and why; None if it lies in the log, and a record can
    be read there. `offsets` is None for a partition that is missing or has no leader; `unreadable`
    is a consumer's error at that offset."""
    if offsets is None:
        return Level.NOTE, f"{name} is gone, or nobody leads it"
    if offset < offsets.log_start:
        return Level.NOTE, (
            f"{name}: the group is at {offset}, and the log begins at {offsets.log_start}: what was"
            " between is gone (retention), and a consumer goes on by auto.offset.reset"
        )
    if offset > offsets.end:
        return Level.PROBLEM, (
            f"{name}: the group is at {offset}, and the log ends at {offsets.end}:"
            " records were lost, or the topic was made anew (see `group seek`)"
        )
    if unreadable:
        return Level.PROBLEM, (
            f"the group cannot get past {name} at offset {offset}, whoever reads: {unreadable}"
        )
    return None


def of_groups(
    committed: Mapping[str, Mapping[TopicPartition, int]],
    ranges: Mapping[TopicPartition, OffsetRange],
    silent: Mapping[int, str],
    unreadable: Mapping[tuple[TopicPartition, int], str],
) -> Iterator[Finding]:
    """Report the groups whose committed offsets lie outside the log, or where nothing can be read,
    and brokers that do not say which groups they keep, with the reason."""
    for node_id, reason in sorted(silent.items()):
        yield Finding(
            Level.NOTE,  # what keeps it from answering is a problem of its own
            f"broker {node_id} does not say which groups it keeps: {reason}",
            "see why it is not ready",
        )
    is_well = True
    for group, offsets in sorted(committed.items()):
        for name, offset in sorted(offsets.items()):
            reason = unreadable.get((name, offset), "")
            if found := warning_of(name, offset, ranges.get(name), reason):
                is_well = False
                level, text = found
                quoted = shlex.quote(group)
                place = f"--topic {name.topic}:{name.partition}"
                advice = f"see `minibroker group describe {quoted}`"
                if level is Level.PROBLEM and reason:
                    advice = (
                        "stop the group's members, then `minibroker group seek"
                        f" {quoted} {place} --to-offset N` goes on behind it, at the offset named"
                    )
                elif level is Level.PROBLEM:
                    advice += f"; `minibroker group seek {quoted} {place} --to-latest` goes on"
                    advice += " with what comes, --to-earliest reads all again"
                yield Finding(level, f"group {group}: {text}", advice)
    if is_well and not silent:
        yield Finding(
            Level.OK, f"{counted(len(committed), 'group')}: all committed offsets lie in their logs"
        )
