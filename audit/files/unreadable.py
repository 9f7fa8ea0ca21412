"""Listed files that could not be read, and records that running brokers removed meanwhile.

The scan reports both with rows of BATCHES: bytes that were listed and are not there. Such rows say
nothing about the log. On a broker that is down, and wherever the file is still there, the disk is
at fault and the contents are unknown: that holds the verdict back, since a verdict without these
records would be worthless. A running broker removes segments (retention, a deleted topic),
replaces them (compaction) and truncates its log (another leader), also between the listing and the
reading.

After the last reading the directories are listed once more: a finding about records that a running
broker has removed since does not count. The result is not clean either: the same check may have
missed another fault, since of many faults it names the first.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks.extent import ReplicaRow
from minibroker.audit.files.directories import LIVE, BrokerDirectory, Replica
from minibroker.audit.files.written import WrittenBatches
from minibroker.audit.model import Finding
from minibroker.audit.summary import Unjudged, plural
from minibroker.protocol.constants import INT64_MAX

GONE: Final = "gone: "
PROBLEM: Final = "^(unreadable|gone): "  # of a torn row that is about a file, not about its bytes


class UnreadableSegment(NamedTuple):
    """A segment that could not be read completely, and why."""

    replica: Replica
    segment: int
    problem: str


def find_unreadable(batches: WrittenBatches) -> list[UnreadableSegment]:
    """Return all unreadable segments in the written table of batches."""
    torn = batches.read([*Replica._fields, "segment", "problem"], torn=True)
    found = torn.filter(pc.match_substring_regex(torn["problem"], PROBLEM))
    return sorted(
        UnreadableSegment(Replica(broker, topic, partition), segment, problem)
        for broker, topic, partition, segment, problem in zip(
            *(column.to_pylist() for column in found.columns), strict=True
        )
    )


def unjudged_files(
    unreadable: Iterable[UnreadableSegment],
    brokers: Sequence[BrokerDirectory],
    rows: Iterable[ReplicaRow],
) -> Iterator[Unjudged]:
    """Yield the unreadable segments as not judged, with their effect on the verdict."""
    paths = {log.replica: log.path for broker in brokers for log in broker.logs}
    in_isr = {Replica(row.broker, row.topic, row.partition): row.in_isr for row in rows}
    hidden = unreadable_logs(unreadable := list(unreadable), brokers)
    for replica, segment, problem in unreadable:
        path = paths[replica] / f"{segment:020}.log"
        place = (replica.topic, replica.partition, replica.broker)
        if replica not in hidden:
            reason = f"{path} was removed or cut by its broker, which runs, before it was read"
            yield Unjudged(reason, False, *place)
        else:
            reason = f"{path} cannot be read: {problem}"
            yield Unjudged(reason, in_isr.get(replica) is not False, *place)


def unreadable_logs(
    unreadable: Iterable[UnreadableSegment], brokers: Sequence[BrokerDirectory]
) -> set[Replica]:
    """Return the logs with unreadable segments that no running broker has removed."""
    paths = {log.replica: log.path for broker in brokers for log in broker.logs}
    live = {broker.broker for broker in brokers if broker.state == LIVE}
    return {
        replica
        for replica, segment, problem in unreadable
        if replica.broker not in live
        or (not problem.startswith(GONE) and os.path.lexists(paths[replica] / f"{segment:020}.log"))
    }


def removed_since(
    before: Iterable[BrokerDirectory], now: Iterable[BrokerDirectory]
) -> dict[Replica, int]:
    """Return the offsets below which running brokers have removed records, by log: the first of
    them, or some whose segment they have replaced."""
    there = {(log.replica, log.topic_id): log.segments for broker in now for log in broker.logs}
    removed = {}
    for broker in before:
        for log in broker.logs if broker.state == LIVE else ():
            segments = there.get((log.replica, log.topic_id), ())
            first = segments[0].base_offset if segments else INT64_MAX
            if log.segments and first > log.segments[0].base_offset:
                removed[log.replica] = first
            same = {(each.base_offset, each.written_ms) for each in segments}
            for segment, following in pairwise(log.segments):
                if segments and (segment.base_offset, segment.written_ms) not in same:
                    end = max(removed.get(log.replica, 0), following.base_offset)
                    removed[log.replica] = end
    return removed


def drop_removed(
    findings: Iterable[Finding], removed: Mapping[Replica, int]
) -> tuple[list[Finding], list[Unjudged]]:
    """Return the findings not about removed records; dropped ones hold the verdict back."""
    found = list(findings)
    kept = [each for each in found if not _is_removed(each, removed)]
    if len(kept) == len(found):
        return kept, []
    # An index file is checked alone: its check cannot have missed another fault.
    dropped = [each for each in found if _is_removed(each, removed)]
    reason = (
        f"running brokers removed records of {plural(len(removed), 'log')} while they were judged;"
        f" {plural(len(dropped), 'finding')} in those do not count: run the audit again"
    )
    return kept, [Unjudged(reason, any(each.check != "index" for each in dropped))]


def _is_removed(finding: Finding, removed: Mapping[Replica, int]) -> bool:
    place = finding.segment if finding.offset is None else finding.offset
    if finding.topic is None or finding.partition is None or place is None:
        return False
    return any(
        broker is not None
        and place < removed.get(Replica(broker, finding.topic, finding.partition), 0)
        for broker in (finding.broker, finding.other_broker)
    )
