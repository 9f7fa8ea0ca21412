"""What of the listed files could not be read, and what running brokers removed meanwhile.

The scan says both with rows of BATCHES: bytes that are listed and are not there. They say nothing
of the log. On a broker that is down, and wherever the file is still there, the disk is at fault,
and nobody knows what the file holds: that holds the verdict back, for what it would be without
these records is no verdict. A broker that runs removes segments (retention, a topic that is
deleted) and cuts its log's end (another leader), between the listing and the reading too.

What is removed is looked for once more after the last reading: what a check says of records that a
running broker has removed since is no finding. It is not clean either: the same check may have
passed over something else, since of many faults it names the first.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks.extent import ReplicaRow
from minibroker.audit.files.directories import LIVE, BrokerDirectory, Replica
from minibroker.audit.files.written import WrittenBatches
from minibroker.audit.model import Finding
from minibroker.audit.summary import Unjudged, plural
from minibroker.protocol.constants import INT64_MAX

GONE: Final = "gone: "
PROBLEM: Final = "^(unreadable|gone): "  # of a torn row that tells of a file, not of its bytes


class UnreadableSegment(NamedTuple):
    """A segment of which not all could be read, and why."""

    replica: Replica
    segment: int
    problem: str


def find_unreadable(batches: WrittenBatches) -> list[UnreadableSegment]:
    """All in the written table of batches."""
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
    """What that means for the verdict."""
    paths = {log.replica: log.path for broker in brokers for log in broker.logs}
    in_isr = {Replica(row.broker, row.topic, row.partition): row.in_isr for row in rows}
    live = {broker.broker for broker in brokers if broker.state == LIVE}
    for replica, segment, problem in unreadable:
        path = paths[replica] / f"{segment:020}.log"
        place = (replica.topic, replica.partition, replica.broker)
        is_removed = problem.startswith(GONE) or not os.path.lexists(path)
        if replica.broker in live and is_removed:
            reason = f"{path} was removed or cut by its broker, which runs, before it was read"
            yield Unjudged(reason, False, *place)
        else:
            reason = f"{path} cannot be read: {problem}"
            yield Unjudged(reason, in_isr.get(replica) is not False, *place)


def removed_since(
    before: Iterable[BrokerDirectory], now: Iterable[BrokerDirectory]
) -> dict[Replica, int]:
    """Below which offset running brokers have removed what their logs had."""
    there = {(log.replica, log.topic_id): log.segments for broker in now for log in broker.logs}
    removed = {}
    for broker in before:
        for log in broker.logs if broker.state == LIVE else ():
            segments = there.get((log.replica, log.topic_id), ())
            first = segments[0].base_offset if segments else INT64_MAX
            if log.segments and first > log.segments[0].base_offset:
                removed[log.replica] = first
    return removed


def drop_removed(
    findings: Iterable[Finding], removed: Mapping[Replica, int]
) -> tuple[list[Finding], list[Unjudged]]:
    """The findings without those of what was removed; these hold the verdict back."""
    found = list(findings)
    kept = [each for each in found if not _is_removed(each, removed)]
    if len(kept) == len(found):
        return kept, []
    # An index file is looked at by itself: there nothing else can have been passed over.
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
