"""Findings about consumer groups: committed offsets outside the log.

`group describe` warns of them in the same words. A group beyond the log's end stands where no
record is, or behind records that it has not read: that is a problem. Below the log's start
retention may have overtaken it, and a topic may be deleted on purpose: these are notes.
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
    name: TopicPartition, offset: int, offsets: OffsetRange | None
) -> tuple[Level, str] | None:
    """Return how bad a committed offset is, and why; None if it lies in the log. `offsets` is None
    for a partition that is missing or has no leader."""
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
    return None


def of_groups(
    committed: Mapping[str, Mapping[TopicPartition, int]],
    ranges: Mapping[TopicPartition, OffsetRange],
    silent: Mapping[int, str],
) -> Iterator[Finding]:
    """Report the groups whose committed offsets lie outside the log, and brokers that do not say
    which groups they keep, with the reason."""
    for node_id, reason in sorted(silent.items()):
        yield Finding(
            Level.NOTE,  # what keeps it from answering is a problem of its own
            f"broker {node_id} does not say which groups it keeps: {reason}",
            "see why it is not ready",
        )
    is_well = True
    for group, offsets in sorted(committed.items()):
        for name, offset in sorted(offsets.items()):
            if found := warning_of(name, offset, ranges.get(name)):
                is_well = False
                level, text = found
                quoted = shlex.quote(group)
                advice = f"see `minibroker group describe {quoted}`"
                if level is Level.PROBLEM:
                    place = f"--topic {name.topic}:{name.partition}"
                    advice += f"; `minibroker group seek {quoted} {place} --to-latest` goes on"
                    advice += " with what comes, --to-earliest reads all again"
                yield Finding(level, f"group {group}: {text}", advice)
    if is_well and not silent:
        yield Finding(
            Level.OK, f"{counted(len(committed), 'group')}: all committed offsets lie in their logs"
        )
