"""Transactions: sound ones are clean, and what readers of committed records would notice is found.

Each case lies in a partition of its own (`made_transactions.py`); one audit judges them all.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.checks import transaction_lists, transactions
from minibroker.audit.model import Finding, Scan, Severity
from minibroker.audit.report.advice import advise
from minibroker.audit.summary import Summary
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.manager import LogManager
from minibroker.broker.transactions.states import State
from minibroker.protocol.constants import OFFSETS_TOPIC
from tests.audit.test_compacted import brokers_to_repair
from tests.audit.test_verdicts import CLEAN, FOUND, of_partition
from tests.support.audited import audit
from tests.support.damage import Replica
from tests.support.made_cluster import LIMITS, NODES, TOPIC, TOPIC_ID
from tests.support.made_transactions import (
    ABORT_AT,
    ABORTED_AT,
    COMMIT_AT,
    COMMITTED_AT,
    FIRST,
    HOUR_MS,
    OFFSETS,
    OPEN_AT,
    Maker,
    change_list,
    change_marker,
    list_path,
    make_transactions,
    unmark,
)

OPEN = "open-transaction"
CHECKS = {**transactions.CHECKS, **transaction_lists.CHECKS}
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
Place = tuple[str, Severity, int | None, int | None]  # check, severity, broker, offset


def nothing(_: Maker | Replica) -> None:
    """All is as it was."""


def opened(
    state: State,
    epoch: int,
    *,
    ago_ms: int = 0,
    has_partition: bool = True,
    producer_id: int | None = None,
) -> Callable[[Maker], None]:
    """A transaction has no marker, and its id is in this state."""

    def build(maker: Maker) -> None:
        maker.records(3, ago_ms=ago_ms, producer_id=producer_id)
        maker.state(state, epoch, *[maker.name] * has_partition, ago_ms=ago_ms)

    return build


def decided_otherwise(maker: Maker) -> None:
    """All replicas have a COMMIT where an ABORT was decided."""
    maker.state(State.ONGOING, 3, maker.name)
    maker.records(3)
    maker.state(State.PREPARE_ABORT, 4, maker.name)
    maker.marker(4, commit=True)
    maker.state(State.COMPLETE_ABORT, 4)


def first_protocol(*ends: tuple[bool, bool]) -> Callable[[Maker], None]:
    """Transactions of one epoch: of each what was decided, and what the marker says."""

    def build(maker: Maker) -> None:
        maker.state(State.EMPTY, 4, version=FIRST)
        for is_decided, is_marked in ends:
            maker.state(State.ONGOING, 4, maker.name, version=FIRST)
            maker.records(4)
            state = State.PREPARE_COMMIT if is_decided else State.PREPARE_ABORT
            maker.state(state, 4, maker.name, version=FIRST)
            maker.marker(4, commit=is_marked)
            state = State.COMPLETE_COMMIT if is_decided else State.COMPLETE_ABORT
            maker.state(state, 4, version=FIRST)

    return build


def consumed(*, is_committed: bool, is_told: bool) -> Callable[[Maker], None]:
    """A transaction has records and offsets, and the records are committed; whether the offsets
    are, and whether the coordinator's log has the decision."""

    def build(maker: Maker) -> None:
        maker.state(State.ONGOING, 3, maker.name, OFFSETS)
        maker.records(3)
        maker.offset(3, f"group-{maker.name.partition}", 1)
        if is_told:
            maker.state(State.PREPARE_COMMIT, 4, maker.name, OFFSETS)
        maker.marker(4, commit=True)
        maker.marker(4, commit=is_committed, name=OFFSETS)
        maker.state(State.COMPLETE_COMMIT, 4)

    return build


def spoil_list(replica: Replica) -> None:
    """A list ends in half an entry."""
    path = list_path(replica)
    path.write_bytes(path.read_bytes() + b"half")


@dataclass(frozen=True)
class Case:
    """A state of a partition: the exit code, and all findings of the checks of transactions.

    `build` is called while the logs are written, `plant` for the log of `broker` afterwards. `said`
    is in the detail of the first finding, `advised` in what is to be done. Broker None is the
    leader.
    """

    code: int
    places: Sequence[Place] = ()
    said: str = ""
    advised: str = ""
    build: Callable[[Maker], object] = nothing
    plant: Callable[[Replica], object] = nothing
    broker: int = 1

    @property
    def guilty(self) -> set[int]:
        """The brokers whose copies are to be moved away."""
        return {broker for check, _, broker, _ in self.places if check == "marker" and broker}


CASES: dict[str, Case] = {
    "sound": Case(CLEAN),
    "an ABORT for a COMMIT on one": Case(
        FOUND,
        [("marker", ERROR, 2, COMMIT_AT), ("transaction-index", ERROR, 2, COMMITTED_AT)],
        "the marker is an ABORT of producer 2000 (epoch 1) here, and the marker is a COMMIT of"
        " producer 2000 (epoch 1) on brokers 1, 3",
        "move the bad copies away",
        plant=change_marker(COMMIT_AT, commit=False),
        broker=2,
    ),
    "a COMMIT for an ABORT on one": Case(
        FOUND,
        [("marker", ERROR, 3, ABORT_AT), ("transaction-index", ERROR, 3, ABORTED_AT)],
        "is a COMMIT",
        "move the bad copies away",
        plant=change_marker(ABORT_AT, commit=True),
        broker=3,
    ),
    "a record for a marker on one": Case(
        FOUND,
        [("marker", ERROR, 3, COMMIT_AT), ("transaction-index", ERROR, 3, COMMITTED_AT)],
        "there is no marker here",
        "move the bad copies away",
        plant=unmark(COMMIT_AT),
        broker=3,
    ),
    "a list lacks what was aborted": Case(
        FOUND,
        [("transaction-index", ERROR, 2, ABORTED_AT)],
        f"lacks the transaction of producer 5000 from offset {ABORTED_AT} to its ABORT at",
        "remove the .index and .txnindex files",
        plant=lambda replica: list_path(replica).unlink(),
        broker=2,
    ),
    "a list names what was committed": Case(
        FOUND,
        [("transaction-index", ERROR, 2, COMMITTED_AT)],
        "which was committed",
        "remove the .index and .txnindex files",
        plant=change_list(lambda found: [(6000, COMMITTED_AT, COMMIT_AT, COMMIT_AT + 1), *found]),
        broker=2,
    ),
    "a list names what never was": Case(
        FOUND,
        [("transaction-index", ERROR, 1, 1)],
        "and none was aborted there",
        plant=change_list(lambda found: [(1, 1, 2, 3), *found]),
    ),
    "a list lets it begin too early": Case(
        FOUND,
        [("transaction-index", ERROR, 3, ABORTED_AT)],
        f"begin at offset {COMMITTED_AT}, which ends with the ABORT at {ABORT_AT}",
        plant=change_list(lambda found: [(each[0], COMMITTED_AT, *each[2:]) for each in found]),
        broker=3,
    ),
    "a list with a wrong last stable offset": Case(
        FOUND,
        [("transaction-index", ERROR, 3, ABORTED_AT)],
        "all was decided below 99",
        plant=change_list(lambda found: [(*each[:3], 99) for each in found]),
        broker=3,
    ),
    "a list that ends in half an entry": Case(
        CLEAN,
        [("transaction-index", WARNING, 3, None)],
        "4 bytes behind the last of 1 entries",
        plant=spoil_list,
        broker=3,
    ),
    "open": Case(
        CLEAN,
        [(OPEN, INFO, None, OPEN_AT)],
        "the transaction of producer 11000 (epoch 3) is open since",
        build=opened(State.ONGOING, 3),
    ),
    "open for too long": Case(
        CLEAN,
        [(OPEN, WARNING, None, OPEN_AT)],
        "is open since 5 h; of transactional id 'of-11', which is in state Ongoing (epoch 3); its"
        " timeout is 60 s and over since 4 h",
        "minibroker transaction abort ID",
        build=opened(State.ONGOING, 3, ago_ms=5 * HOUR_MS),
    ),
    "decided a moment ago": Case(
        CLEAN,
        [(OPEN, INFO, None, OPEN_AT)],
        "in state PrepareCommit",
        build=opened(State.PREPARE_COMMIT, 4),
    ),
    "decided long ago": Case(
        CLEAN,
        [(OPEN, WARNING, None, OPEN_AT)],
        "in state PrepareAbort (epoch 4) since 5 h: the marker is not written here yet",
        "finishes what is decided",
        build=opened(State.PREPARE_ABORT, 4, ago_ms=5 * HOUR_MS),
    ),
    "complete without a marker": Case(
        FOUND,
        [(OPEN, ERROR, None, OPEN_AT)],
        "hangs since",
        "minibroker topic trim TOPIC PARTITION OFFSET",
        build=opened(State.COMPLETE_COMMIT, 4, has_partition=False),
    ),
    "ongoing in other partitions only": Case(
        FOUND,
        [(OPEN, ERROR, None, OPEN_AT)],
        "and does not have it: no coordinator will end it",
        build=opened(State.ONGOING, 3, has_partition=False),
    ),
    "of a producer that no coordinator knows": Case(
        FOUND,
        [(OPEN, ERROR, None, OPEN_AT)],
        "no coordinator knows its producer",
        build=opened(State.EMPTY, 4, has_partition=False, producer_id=7),
    ),
    "another marker than was decided, on all": Case(
        FOUND,
        [("transaction-outcome", ERROR, None, OPEN_AT + 3)],
        "have the marker COMMIT, and transactional id 'of-17' decided ABORT",
        "no marker can be taken back",
        build=decided_otherwise,
    ),
    "one epoch, of several transactions": Case(
        CLEAN, build=first_protocol((True, True), (False, False), (True, True))
    ),
    "one epoch, and another last marker than was decided": Case(
        FOUND,
        [("transaction-outcome", ERROR, None, OPEN_AT + 7)],
        "decided ABORT",
        build=first_protocol((True, True), (False, True)),
    ),
    "offsets with their records": Case(CLEAN, build=consumed(is_committed=True, is_told=True)),
    "offsets with their records, of which no decision is left": Case(
        CLEAN, build=consumed(is_committed=True, is_told=False)
    ),
}
# Both are found where the offsets are.
OF_OFFSETS: dict[str, tuple[Callable[[Maker], object], str]] = {
    "offsets aborted, and COMMIT decided": (
        consumed(is_committed=False, is_told=True),
        "the offsets of producer 23000 (epoch 4) have the marker ABORT, and transactional id"
        " 'of-22' decided COMMIT",
    ),
    "offsets aborted, and the records committed": (
        consumed(is_committed=False, is_told=False),
        "the offsets of producer 24000 (epoch 4) have the marker ABORT, and its records in"
        f" {TOPIC}-23 have COMMIT",
    ),
}


def problems(summary: Summary, findings: Sequence[Finding]) -> Iterator[str]:
    """Where the verdicts are not those of the table."""
    for partition, (name, case) in enumerate(CASES.items()):
        alone, mine = of_partition(summary, findings, partition)
        shown = f"{name}: {alone.sentence}\n    " + "\n    ".join(map(str, mine))
        if alone.exit_code != case.code:
            yield f"exit code {alone.exit_code}, not {case.code}: {shown}"
        if not case.places and mine:
            yield f"something is found: {shown}"
        ours = [each for each in mine if each.check in CHECKS]
        found = [(each.check, each.severity, each.broker, each.offset) for each in ours]
        wanted = [
            (check, severity, leader(partition) if broker is None else broker, offset)
            if check != "transaction-index"
            else (check, severity, broker, offset)
            for check, severity, broker, offset in case.places
        ]
        if sorted(found, key=str) != sorted(wanted, key=str):
            yield f"found {found}, wanted {wanted}: {shown}"
        first = [each for each in ours if each.check == (case.places or [("",)])[0][0]]
        if case.said and not (first and case.said in first[0].detail):
            yield f"{case.said!r} is not said: {shown}"
        advice = advise(alone, mine)
        steps = [
            text
            for step in (advice.steps if advice else ())
            for text in (step.text, *step.commands)
        ]
        if case.advised and not any(case.advised in each for each in steps):
            yield f"{case.advised!r} is not advised, but {steps}: {shown}"
        if (moved := brokers_to_repair(alone, mine)) != case.guilty:
            yield f"to be moved away is the log of {moved}: {shown}"


def leader(partition: int) -> int:
    """The broker whose log the others are compared with, where all are equal."""
    return NODES[partition % len(NODES)]


def make(root: Path) -> None:
    """The cluster of all cases."""
    builds = [case.build for case in CASES.values()]
    make_transactions(root, [*builds, *(build for build, _ in OF_OFFSETS.values())])
    for partition, case in enumerate(CASES.values()):
        case.plant(Replica(root / f"broker-{case.broker}", TOPIC, partition))


def judge(spark: SparkSession, root: Path, *, scan: Scan) -> None:
    """Hold what an audit says against the table."""
    make(root)
    summary, findings = audit(spark, root, root / "audit", scan=scan)
    wrong = [*problems(summary, findings)]
    assert not wrong, "\n".join(wrong)
    outcomes = [each for each in findings if each.topic == OFFSETS_TOPIC]
    assert [(each.check, each.severity) for each in outcomes] == [
        ("transaction-outcome", ERROR)
    ] * len(OF_OFFSETS)
    for said in (said for _, said in OF_OFFSETS.values()):
        assert any(each.detail.startswith(said) for each in outcomes), (said, outcomes)
    seen = summary.transactions
    assert seen is not None
    open_ones = [each for case in CASES.values() for each in case.places if each[0] == OPEN]
    assert seen.open == len(seen.oldest) == len(open_ones)
    groups = {each.group for each in summary.groups}
    assert groups == {"group-20", "group-21"}, "offsets of aborted transactions do not count"


def test_transactions_are_judged_rightly(spark: SparkSession, tmp_path: Path) -> None:
    """Each fault is found at its place, with a remedy, and each sound state is clean."""
    judge(spark, tmp_path, scan=Scan.DRIVER)


@pytest.mark.soak
def test_executors_judge_transactions_alike(spark: SparkSession, tmp_path: Path) -> None:
    """The same if the executors read."""
    judge(spark, tmp_path, scan=Scan.SPARK)


def test_what_readers_of_committed_records_were_shown(spark: SparkSession, tmp_path: Path) -> None:
    """A record of a transaction that was aborted, or is open, is not for them; for other readers it
    is. The records of producers count, and it is said how many are of aborted transactions."""
    make_transactions(tmp_path, [nothing, opened(State.ONGOING, 3)])
    isolated = [shown(0, COMMITTED_AT), shown(0, ABORTED_AT), shown(1, OPEN_AT)]
    acked = [told(0, at, "producer_send_success") for at in (COMMITTED_AT, ABORTED_AT)]
    ledgers = [
        write_ledger(tmp_path / "isolated", isolated, isolation="read_committed"),
        write_ledger(tmp_path / "other", [shown(0, ABORTED_AT), shown(1, OPEN_AT)]),
        write_ledger(tmp_path / "acked", acked),
    ]
    summary, findings = audit(spark, tmp_path, tmp_path / "audit", ledgers, scan=Scan.DRIVER)
    errors = [each for each in findings if each.severity is ERROR]
    assert [(each.check, each.partition, each.offset) for each in errors] == [
        ("uncommitted-read", 0, ABORTED_AT),
        ("uncommitted-read", 1, OPEN_AT),
    ]
    assert errors[0].detail.startswith("it was aborted; first shown in ")
    assert errors[1].detail.startswith("it has no marker; first shown in ")
    assert all(each.detail.endswith("lines in all: 1") for each in errors), "of the other readers"
    assert summary.exit_code == FOUND
    assert summary.ledger is not None
    assert (summary.ledger.present, summary.ledger.aborted) == (2, 1)


def shown(partition: int, offset: int) -> dict[str, object]:
    """A line of a consumer: the first record of a batch."""
    return told(partition, offset, "record_data")


def told(partition: int, offset: int, name: str) -> dict[str, object]:
    place = {"topic": TOPIC, "topicId": TOPIC_ID.hex(), "partition": partition, "offset": offset}
    return {"name": name, "key": "key-0", "value": f"at {offset}", "timestamp": 1, **place}


def write_ledger(path: Path, lines: Sequence[dict[str, object]], **about: str) -> Path:
    """The ledger of a client that has stopped in order."""
    whole = [{"name": "startup_complete", **about}, *lines, {"name": "shutdown_complete"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    return path


def test_what_compaction_takes_of_aborted_transactions_is_no_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Their records are gone on one replica, and are the last ones of their keys on the others."""
    make_transactions(tmp_path, [abort_last], is_compacted=True)
    acked = [told(0, OPEN_AT, "producer_send_success")]
    ledger = write_ledger(tmp_path / "acked", acked)
    summary, findings = audit(spark, tmp_path, tmp_path / "audit", [ledger], scan=Scan.DRIVER)
    assert not findings, summary.sentence
    assert summary.exit_code == CLEAN
    assert any("Compaction shows" in note for note in summary.notes)


def abort_last(maker: Maker) -> None:
    """The last record of each key is of an aborted transaction, in a segment that is sealed."""
    maker.transaction(3, commit=False)
    for _ in range(10):  # of transactions without records here
        maker.marker(0, commit=True, producer_id=maker.producer_id + 2)


def test_a_broker_makes_a_wrong_list_again(tmp_path: Path) -> None:
    """The remedy for `transaction-index`: without both files the next start rebuilds the list."""
    make_transactions(tmp_path, [nothing])
    replica = Replica(tmp_path / "broker-1", TOPIC, 0)
    right = list_path(replica).read_bytes()
    list_path(replica).unlink()
    list_path(replica).with_suffix(".index").unlink()
    manager = LogManager(RealFiles(), replica.data_dir, LIMITS)
    manager.start("boot", "made-cluster", 1, 0)
    manager.close({})
    assert list_path(replica).read_bytes() == right
    assert len(right) > 0
