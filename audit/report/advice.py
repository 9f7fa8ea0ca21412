"""What an audit's findings mean to an operator: is anything lost, whose copy is bad, what to do.

A copy is *bad* if a finding says that records in it are missing, damaged or others. A partition can
be repaired if at least one in-sync copy at hand is not bad: only then may a bad copy be moved away.
Nothing here advises to remove a copy of a partition without a whole one.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from minibroker.audit.checks.doubts import brokers_named
from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import Finding, Severity
from minibroker.audit.summary import (
    PartitionPicture,
    Summary,
    Verdict,
    is_internal,
    plural,
)

_OF_COPY: Final = frozenset(
    {
        "lost-write",
        "unseen",
        "missing-committed",
        "divergence",
        "marker",
        "compaction",
        "aborted-read",
        "crc",
        "undecodable",
        "gap",
        "overlap",
        "sequence-gap",
        "sequence-duplicate",
        "epoch-order",
        "hw-beyond-leo",
        "segment-name",
    }
)
_REBUILT: Final = ("epoch-checkpoint", "snapshot", "index")
_OF_GROUPS: Final = frozenset({"committed-offset", "lost-commit", "group-record", "skipped-read"})
_OF_CLIENTS: Final = ("duplicate", "inconsistent-offsets", "unexpected")
_OPEN: Final = "open-transaction"
_LISTED_MAX: Final = 5  # partitions or commands in one sentence


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do; `commands` are for a shell, with words in capitals to be replaced."""

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """Sentences for an operator: `lost` and `copies` are what is the case, `steps` what to do."""

    lost: str
    copies: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class _Judged:
    """A partition with bad copies, and the brokers that have a whole in-sync one."""

    picture: PartitionPicture
    bad: frozenset[int]
    whole: tuple[int, ...]

    @property
    def log(self) -> str:
        """The name of the logs: `orders-0`."""
        return f"{self.picture.topic}-{self.picture.partition}"

    @property
    def is_leaderless(self) -> bool:
        """Whether the metadata let only brokers with a bad copy lead."""
        return self.picture.isr is not None and self.bad.issuperset(self.picture.isr)


def advise(summary: Summary, findings: Iterable[Finding]) -> Advice | None:
    """Return what the findings mean; None of an audit that failed."""
    if summary.verdict is Verdict.FAILED:
        return None
    found = [each for each in findings if each.severity is not Severity.INFO]
    judged = [*_judge(summary, found)]
    steps = [*_steps(summary, found, judged)]
    return Advice(_lost(summary, judged), _copies(summary, judged), tuple(steps))


def _judge(summary: Summary, findings: Sequence[Finding]) -> Iterator[_Judged]:
    bad: dict[tuple[str | None, int | None], set[int]] = {}
    doubtful = {
        (each.topic, each.partition, each.broker) for each in summary.unjudged if each.holds_back
    }
    for each in findings:
        if each.check in _OF_COPY and each.broker is not None:
            doubtful.add((each.topic, each.partition, each.broker))
            if each.severity is Severity.ERROR:
                bad.setdefault((each.topic, each.partition), set()).add(each.broker)
    for picture in sorted(
        summary.partitions, key=lambda each: (is_internal(each.topic), each.topic, each.partition)
    ):
        topic, partition = picture.topic, picture.partition
        whole = tuple(
            lane.broker
            for lane in picture.lanes
            if lane.in_isr is not False
            and lane.path
            and (topic, partition, lane.broker) not in doubtful
        )
        if named := bad.get((topic, partition)):
            yield _Judged(picture, frozenset(named), whole)


def _lost(summary: Summary, judged: Sequence[_Judged]) -> str:
    hopeless = [each.log for each in judged if not each.whole]
    nowhere = f"No in-sync copy of {_listed(hopeless)} is whole." if hopeless else ""
    ledger = summary.ledger
    if ledger is None:
        said = nowhere and f"Perhaps. {nowhere}"
        said = said or "No sign of it: every partition has an in-sync copy without a fault."
        return f"{said} Only a ledger shows what is gone from all copies alike."
    if ledger.nowhere:
        said = f"Yes: {plural(ledger.nowhere, 'acknowledged record')}, on no replica."
    elif not ledger.judged and ledger.compacted:
        records = plural(ledger.compacted, "acknowledged record")
        said = f"No: {records} gave way to newer ones of their keys."
    elif not ledger.judged:
        said = "Not known: no acknowledged record could be judged."
    else:
        partly = ledger.judged - ledger.present
        some = f" {plural(partly, 'record')} not on every in-sync one." if partly else ""
        which = f"all {plural(ledger.judged, 'acknowledged record')} that were judged"
        said = f"No: {which} are on at least one replica.{some}"
    left = ledger.unjudged
    unknown = f"{plural(left, 'acknowledged record')} could not be judged." if left else ""
    return " ".join(filter(None, (said, nowhere, unknown)))


def _copies(summary: Summary, judged: Sequence[_Judged]) -> str:
    if not judged:
        count = sum(1 for picture in summary.partitions for lane in picture.lanes if lane.path)
        copies = plural(count, "copy", "copies")
        if summary.count(Severity.ERROR):
            return f"None: no error is about the records of the {copies}."
        return f"None: {copies} without an error."
    said = []
    for broker in sorted({broker for each in judged for broker in each.bad}):
        mine = [each for each in judged if broker in each.bad]
        whole = sorted({other for each in mine for other in each.whole})
        known = f"; whole on {brokers_named(whole)}" if all(each.whole for each in mine) else ""
        said.append(f"Broker {broker}: {_listed([each.log for each in mine])}{known}.")
    return " ".join(said)


def _steps(
    summary: Summary, findings: Sequence[Finding], judged: Sequence[_Judged]
) -> Iterator[Step]:
    checks = {each.check for each in findings}
    repaired = [each for each in judged if each.whole]
    hopeless = [each for each in judged if not each.whole]
    if judged:
        yield _keep(summary)
    yield from _repair(summary, repaired)
    if hopeless:
        names = _listed([each.log for each in hopeless])
        yield Step(
            f"{names}: move no copy away, since none is known to be whole. Which one has most of"
            " the acknowledged records? A ledger or what consumers read tells. Restore the files"
            " from a backup if there is one. Otherwise start all brokers, and only if the partition"
            " then stays offline accept the loss:",
            ("minibroker partition recover TOPIC PARTITION --data-dir DIR",),
        )
    if "torn-tail" in checks:
        yield Step(
            "torn-tail: move nothing away. A start removes the bytes behind the last batch. They"
            " were written after the broker had stopped in order: by what? Check its disk."
        )
    if rebuilt := [name for name in _REBUILT if name in checks]:
        yield Step(
            f"{', '.join(rebuilt)}: with its broker down, remove each named file. The broker makes"
            " it again from the batches."
        )
    yield from _of_transactions(findings)
    if checks & _OF_GROUPS:
        yield Step(
            "Committed offsets: compare what each named group has committed with what it has"
            " processed, and set it with the group's consumers stopped:",
            ("minibroker group describe GROUP", "minibroker group seek GROUP --help"),
        )
    if named := [name for name in _OF_CLIENTS if name in checks]:
        yield Step(
            f"{', '.join(named)}: nothing can be repaired. Keep the directories and the ledgers."
            " Were the ledgers of all producers given, and were they idempotent?"
        )
    if any(each.holds_back for each in summary.unjudged):
        yield Step(
            "Supply what could not be judged, see “What was not judged”, and audit again before"
            " you trust these copies."
        )
    if judged:
        yield Step("Audit again once the copies are in sync (minibroker replica status).")


def _of_transactions(findings: Sequence[Finding]) -> Iterator[Step]:
    checks = {each.check for each in findings}
    if "transaction-index" in checks:
        yield Step(
            "transaction-index: with its broker down, remove the .index and .txnindex files of each"
            " named segment. The broker makes them again from the batches."
        )
    if _OPEN in checks:
        yield from _end_transactions(found=[each for each in findings if each.check == _OPEN])
    if "transaction-outcome" in checks:
        yield Step(
            "transaction-outcome: no marker can be taken back. Compare the records of the named"
            " partitions with what the application holds, and keep the directories: no coordinator"
            " writes such a marker."
        )
    if "uncommitted-read" in checks:
        yield Step(
            "uncommitted-read: nothing can be repaired. A wrong marker or list of the partition"
            " explains it; without such a finding, keep the directories and the ledgers."
        )


def _end_transactions(found: Sequence[Finding]) -> Iterator[Step]:
    yield Step(
        "open-transaction: start the brokers, and see whether it ends: a coordinator aborts what"
        " is late, and finishes what is decided. End one that is open all the same:",
        ("minibroker transaction describe ID", "minibroker transaction abort ID"),
    )
    if any(each.severity is Severity.ERROR for each in found):
        yield Step(
            "No coordinator ends a transaction that hangs. A producer with its transactional id"
            " ends it by a transaction that writes to the partition and is aborted. Without an id,"
            " readers of committed records go on once the partition is trimmed behind its last"
            " record, which deletes all records below:",
            ("minibroker topic trim TOPIC PARTITION OFFSET",),
        )


def _is_live(summary: Summary) -> bool:
    return any(seen.state == LIVE for seen in summary.brokers)


def _keep(summary: Summary) -> Step:
    if _is_live(summary):
        return Step(
            "Brokers are running: restart none before each partition below has another in-sync"
            " replica (minibroker replica status). Stop them to copy the data directories."
        )
    paths = " ".join(shlex.quote(seen.path) for seen in summary.brokers)
    return Step(
        "Start no broker yet: a start truncates and repairs files. Copy all data directories:",
        (f"cp -a {paths} BACKUP",),
    )


def _repair(summary: Summary, judged: Sequence[_Judged]) -> Iterator[Step]:
    """Yield how to copy bad logs again. They go before any broker starts, so none of them leads."""
    if not judged:
        return
    moves = [
        f"mv {shlex.quote(lane.path)} ELSEWHERE"
        for each in judged
        for lane in each.picture.lanes
        if lane.broker in each.bad and lane.path
    ]
    bad = sorted({broker for each in judged for broker in each.bad})
    more = len(moves) - _LISTED_MAX
    rest = f" (and {plural(more, 'directory', 'directories')} more)" if more > 0 else ""
    if _is_live(summary):
        yield Step(
            f"One broker at a time ({brokers_named(bad)}): stop it, move its bad copies away{rest},"
            " start it, and wait until it is in sync. It copies the logs again. Check the disks.",
            tuple(moves[:_LISTED_MAX]),
        )
    else:
        yield Step(
            f"With {brokers_named(bad)} down, move the bad copies away{rest}:",
            tuple(moves[:_LISTED_MAX]),
        )
        others = [seen.broker for seen in summary.brokers if seen.broker not in bad]
        first = f"{brokers_named(others)} first, then {brokers_named(bad)}" if others else "them"
        yield Step(
            f"Start {first}: the logs are copied again from the whole replicas. Check the disks."
        )
    if stuck := [each.log for each in judged if each.is_leaderless]:
        yield Step(
            f"{_listed(stuck)}: the in-sync set has only bad copies, so no whole one leads by"
            " itself. If the partition has no leader then, let one lead:",
            ("minibroker leader elect --unclean --topic TOPIC --partition N",),
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_MAX
    rest = f" and {plural(more, 'partition')} more" if more > 0 else ""
    return f"{', '.join(names[:_LISTED_MAX])}{rest}"
