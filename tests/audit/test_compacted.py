"""Compacted topics: what each replica compacts at its own time is sound, and what a faulty cleaner
would do is found.

Each case lies in a partition of its own (`made_compacted.py`), and in one more of which a ledger
tells, where that matters. Broker 1 has everything, broker 2 has compacted it all, and broker 3 a
part of it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.model import Finding, Scan
from minibroker.audit.report.advice import advise
from minibroker.audit.summary import Summary
from tests.audit.test_verdicts import CLEAN, FOUND, of_partition
from tests.support.audited import audit
from tests.support.damage import Replica
from tests.support.made_cluster import NODES
from tests.support.made_compacted import (
    DELETED_AT,
    END,
    HOUR_MS,
    KEPT,
    LONE_AT,
    NEVER,
    ONCE,
    WRITTEN_AT,
    Made,
    alter,
    drop,
    fill,
    interrupt_swap,
    make_compacted,
    restore,
    segments_of,
    skip_sequences,
    write_ledger,
)

Logs = dict[int, Replica]
Place = tuple[str, int | None, int | None]  # check, broker, offset


def nothing(_: Logs) -> None:
    """All is as it was."""


def on(*brokers: int, plant: Callable[[Replica], object]) -> Callable[[Logs], None]:
    """The same on the logs of several brokers."""

    def planted(logs: Logs) -> None:
        for broker in brokers:
            plant(logs[broker])

    return planted


def beside(logs: Logs) -> None:
    """A segment that broker 2 has merged into another is there again."""
    merged = next(base for base in segments_of(logs[1]) if base not in segments_of(logs[2]))
    restore(logs[1], merged)(logs[2])


def swapping(logs: Logs) -> None:
    """Broker 2 was killed before the copy had the place of its segments."""
    interrupt_swap(logs[1])(logs[2])


@dataclass(frozen=True)
class Case:
    """A state of a partition: the exit code and the errors of an audit, and of one with a ledger.
    `said` is in the detail of a finding, of any severity."""

    plant: Callable[[Logs], None]
    code: int
    places: Sequence[Place] = ()
    said: str = ""
    told_code: int | None = None
    told_places: Sequence[Place] | None = None
    topic: str = KEPT
    is_old: bool = False  # its tombstones have expired, and are gone on broker 2
    start: int = 0  # of broker 3

    @property
    def is_for_ledger(self) -> bool:
        """Whether a ledger tells more of it, or tells of records that are gone for good reasons."""
        return not self.places or self.told_places is not None


ABOVE = END - 10  # in the active segment
UNCHANGED = 65  # in a batch that no compaction of brokers 1 and 3 has changed
CASES: dict[str, Case] = {
    "compacted at different times, and one not at all": Case(nothing, CLEAN),
    "tombstones have expired on one": Case(nothing, CLEAN, is_old=True),
    "retention has taken the front of one": Case(nothing, CLEAN, start=30),
    "killed in the middle of a swap": Case(swapping, CLEAN),
    "the policy was changed": Case(
        nothing, CLEAN, said="has no cleanup.policy=compact", topic=ONCE
    ),
    "a live key dropped in one": Case(
        on(2, plant=drop(LONE_AT)),
        FOUND,
        [("compaction", 2, LONE_AT)],
        "the last record of the key 'lone' is gone; it is on brokers 1, 3",
        told_places=[("compaction", 2, LONE_AT), ("lost-write", 2, LONE_AT)],
    ),
    "a tombstone dropped early": Case(
        on(2, plant=drop(DELETED_AT)),
        FOUND,
        [("compaction", 2, DELETED_AT)],
        "the tombstone of the key 'deleted' is gone before its time",
        told_places=[("compaction", 2, DELETED_AT), ("lost-write", 2, DELETED_AT)],
    ),
    "a key resurrected": Case(
        on(1, plant=drop(DELETED_AT)),
        FOUND,
        [("compaction", 1, WRITTEN_AT)],
        "an old record of the key 'deleted' is back",
        told_places=[("compaction", 1, WRITTEN_AT), ("lost-write", 1, DELETED_AT)],
    ),
    "a key resurrected, whose tombstone has expired elsewhere": Case(
        on(1, 3, plant=drop(DELETED_AT)),
        FOUND,
        [("compaction", 1, WRITTEN_AT)],
        is_old=True,
        told_places=[("lost-write", 1, DELETED_AT)],
    ),
    "a cleaned segment beside its original": Case(beside, FOUND, [("overlap", 2, None)]),
    "a kept record with other bytes": Case(
        on(2, plant=alter(LONE_AT, b"other")),
        FOUND,
        [("divergence", 2, LONE_AT)],
        "compaction keeps records as they are",
        told_places=[("divergence", 2, LONE_AT), ("lost-write", 2, LONE_AT)],
    ),
    "a filler in the place of what others have": Case(
        on(3, plant=fill(LONE_AT)),
        FOUND,
        [("compaction", 3, LONE_AT)],
        told_places=[("compaction", 3, LONE_AT), ("lost-write", 3, LONE_AT)],
    ),
    "other bytes where no compaction shows": Case(
        on(3, plant=alter(UNCHANGED, b"other")),
        FOUND,
        [("divergence", 3, None)],
    ),
    "other bytes above the cleaning points": Case(
        on(1, plant=alter(ABOVE, b"other")), FOUND, [("divergence", 1, None)]
    ),
    "a sequence left out above the cleaning points": Case(
        on(*NODES, plant=skip_sequences(ABOVE)),
        FOUND,
        [("sequence-gap", broker, None) for broker in NODES],
    ),
    "a live key dropped on all: only a ledger knows it": Case(
        on(*NODES, plant=drop(LONE_AT)),
        CLEAN,
        told_code=FOUND,
        told_places=[("lost-write", broker, LONE_AT) for broker in NODES],
    ),
    "a compacted batch in a topic that never was": Case(
        on(2, plant=drop(LONE_AT)),
        FOUND,
        [("undecodable", 2, None)],
        "this log was never to be compacted",
        topic=NEVER,
    ),
}


Judged = tuple[str, bool]  # a case, and whether a ledger tells of its partition


def partitions(now_ms: int) -> dict[Judged, Made]:
    """The partition of each case, and one more where a ledger tells more of it."""
    found: dict[Judged, Made] = {}
    for name, case in CASES.items():
        time_ms = now_ms - (4 * HOUR_MS if case.is_old else HOUR_MS // 6)
        for is_told in (False, True) if case.is_for_ledger else (False,):
            made = Made(case.topic, len(found), time_ms, case.is_old, case.start)
            found[name, is_told] = made
    return found


def problems(
    summary: Summary, findings: Sequence[Finding], made: dict[Judged, Made]
) -> Iterable[str]:
    """Where the verdicts are not those of the table."""
    for (name, is_told), place in made.items():
        case = CASES[name]
        alone, mine = of_partition(summary, findings, place.partition, place.topic)
        code, places = case.code, case.places
        if is_told:
            code = code if case.told_code is None else case.told_code
            places = places if case.told_places is None else case.told_places
        errors = [each for each in mine if each.severity == "error"]
        shown = f"{name}, {is_told}: {alone.sentence}\n    " + "\n    ".join(map(str, mine))
        if alone.exit_code != code:
            yield f"exit code {alone.exit_code}, not {code}: {shown}"
        if case.said and not any(case.said in each.detail for each in mine):
            yield f"{case.said!r} is not said: {shown}"
        for check, broker, offset in places:
            if not any(
                each.check == check and each.broker == broker and offset in (None, each.offset)
                for each in errors
            ):
                yield f"no {check} on {broker} at {offset}: {shown}"
        guilty = {broker for _, broker, _ in places}
        if accused := {each.broker for each in errors} - guilty:
            yield f"accused is {accused}: {shown}"
        moved = brokers_to_repair(alone, mine)
        if moved != (guilty if len(guilty) < len(NODES) else set()):
            yield f"to be moved away is the log of {moved}: {shown}"


def brokers_to_repair(summary: Summary, findings: Sequence[Finding]) -> set[int]:
    """The brokers whose copies are to be moved away, by the remedy."""
    advice = advise(summary, findings)
    commands = [each for step in advice.steps for each in step.commands] if advice else []
    moves = [each for each in commands if each.startswith("mv ")]
    return {node for node in NODES for each in moves if f"/broker-{node}/" in each}


def judge(spark: SparkSession, root: Path, *, scan: Scan = Scan.AUTO) -> None:
    """Make the cluster with all cases, and hold what an audit says against the table."""
    now_ms = time.time_ns() // 1_000_000
    made = partitions(now_ms)
    make_compacted(root, [*made.values()], now_ms)
    for (name, _), each in made.items():
        place = (each.topic, each.partition)
        CASES[name].plant({node: Replica(root / f"broker-{node}", *place) for node in NODES})
    told = [each for (_, is_told), each in made.items() if is_told]
    ledger = write_ledger(root / "ledger", told)
    summary, findings = audit(spark, root, root / "audit", [ledger], scan=scan)
    wrong = [*problems(summary, findings, made)]
    assert not wrong, "\n".join(wrong)
    counts = summary.ledger
    assert counts is not None
    assert counts.acknowledged == END * len(told)
    assert counts.compacted > 20 * len(told)
    assert counts.unjudged == 30, "what retention has taken"
    lost = {each.partition for each in findings if each.check == "lost-write"}
    assert counts.judged - counts.present == len(lost), "a record of each of these"
    assert counts.nowhere == 1


def test_compacted_logs_are_judged_rightly(spark: SparkSession, tmp_path: Path) -> None:
    """Each fault is found on the broker that has it, with a remedy, and each sound state is clean;
    with a ledger, records that newer ones of their keys superseded count as compacted."""
    judge(spark, tmp_path)


@pytest.mark.soak
def test_executors_judge_compacted_logs_alike(spark: SparkSession, tmp_path: Path) -> None:
    """The same if the executors read."""
    judge(spark, tmp_path, scan=Scan.SPARK)
