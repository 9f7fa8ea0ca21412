"""What an operator is told: whether anything is lost, whose copy is bad, and what is safe to do."""

from dataclasses import replace

import pytest

from minibroker.audit.catalogue import DESCRIBED
from minibroker.audit.model import Finding, Severity
from minibroker.audit.report.advice import Advice, advise
from minibroker.audit.summary import (
    BrokerSeen,
    Lane,
    LedgerCounts,
    PartitionPicture,
    Summary,
    Unjudged,
    count_findings,
)

ERROR, WARNING = Severity.ERROR, Severity.WARNING
BROKERS = (1, 2, 3)


def picture(*in_isr: bool | None, isr: tuple[int, ...] | None = (1, 2, 3)) -> PartitionPicture:
    """t-0, on three brokers."""
    wanted = in_isr or (True, True, True)
    lanes = tuple(
        Lane(broker, f"/data/{broker}/t-0", broker == 1, is_in)
        for broker, is_in in zip(BROKERS, wanted, strict=True)
    )
    return PartitionPicture("t", 0, 0, 9, lanes, 1, isr)


def advised(
    *findings: Finding,
    partition: PartitionPicture | None = None,
    unjudged: tuple[Unjudged, ...] = (),
    ledger: LedgerCounts | None = None,
    state: str = "stopped",
) -> Advice:
    """Of an audit of one partition."""
    summary = Summary(
        started_at_ms=0,
        brokers=tuple(BrokerSeen(broker, f"/data/{broker}", state, 1) for broker in BROKERS),
        partitions=(partition or picture(),),
        counts=count_findings(findings),
        unjudged=unjudged,
        ledger=ledger,
    )
    found = advise(summary, findings)
    assert found is not None
    return found


def bad(broker: int, check: str = "crc", severity: Severity = ERROR) -> Finding:
    """A finding in t-0."""
    return Finding(check, severity, "t", 0, broker, offset=5)


def commands(advice: Advice) -> list[str]:
    """All of them, in order."""
    return [command for step in advice.steps for command in step.commands]


def test_one_bad_copy_is_copied_again_from_the_others() -> None:
    """First a backup, then the bad copy goes away, before any broker starts; it starts last."""
    told = advised(bad(2), bad(2, "lost-write"), ledger=LedgerCounts(9, 9, 8))
    assert told.lost == (
        "No: all 9 acknowledged records that were judged are on at least one replica."
        " 1 record not on every in-sync one."
    )
    assert told.copies == "Broker 2: t-0; whole on brokers 1, 3."
    assert commands(told) == [
        "cp -a /data/1 /data/2 /data/3 BACKUP",
        "mv /data/2/t-0 ELSEWHERE",
    ]
    assert "Start brokers 1, 3 first, then broker 2" in told.steps[2].text


def test_no_remedy_moves_the_last_whole_copy_away() -> None:
    """A copy counts as whole only if it is in sync, at hand, judged, and without any fault, a
    warning, too."""
    held = Unjudged("its segment cannot be read", True, "t", 0, 3)
    lacking = [
        advised(bad(1), bad(2), bad(3)),
        advised(bad(1), bad(2, severity=WARNING), bad(3, "unseen", WARNING)),
        advised(bad(1), bad(2), unjudged=(held,)),
        advised(bad(1), partition=picture(True, False, False)),
    ]
    gone = replace(picture().lanes[1], path=""), replace(picture().lanes[2], path="")
    lanes = (picture().lanes[0], *gone)
    lacking.append(advised(bad(1), partition=replace(picture(), lanes=lanes)))
    for told in lacking:
        assert told.lost.startswith("Perhaps. No in-sync copy of t-0 is whole.")
        assert not any(command.startswith("mv ") for command in commands(told))
        assert any("move no copy away" in step.text for step in told.steps)


def test_a_bad_copy_alone_in_the_isr_must_not_lead() -> None:
    """As after `cluster down`: another one is let lead."""
    told = advised(bad(3, "unseen"), partition=picture(isr=(3,)))
    assert commands(told)[1:] == [
        "mv /data/3/t-0 ELSEWHERE",
        "minibroker leader elect --unclean --topic TOPIC --partition N",
    ]
    assert len(commands(advised(bad(3, "unseen")))) == 2


def test_running_brokers_are_not_copied() -> None:
    """A copy of a running broker is of several moments."""
    told = advised(bad(2), state="live")
    assert "restart none" in told.steps[0].text
    assert told.steps[1].text.startswith("One broker at a time (broker 2): stop it")
    assert commands(told) == ["mv /data/2/t-0 ELSEWHERE"]


def test_what_was_not_judged_is_not_called_sound() -> None:
    """Records on no replica are lost; nothing judged is nothing known."""
    counts = LedgerCounts(20, 15, 10, nowhere=2)
    lost = advised(bad(1, "lost-write"), ledger=counts).lost
    assert lost == (
        "Yes: 2 acknowledged records, on no replica. 5 acknowledged records could not be judged."
    )
    assert advised(ledger=LedgerCounts(5, 0, 0)).lost.startswith("Not known: ")
    compacted = advised(ledger=LedgerCounts(5, 0, 0, compacted=5)).lost
    assert compacted == "No: 5 acknowledged records gave way to newer ones of their keys."
    assert "Only a ledger shows" in advised().lost
    held = Unjudged("a directory was not given", True)
    assert "audit again before you trust" in advised(unjudged=(held,)).steps[-1].text


def test_a_torn_tail_is_no_bad_copy() -> None:
    """A start removes it. No copy is moved away, and the report does not deny the error."""
    told = advised(bad(2, "torn-tail"))
    assert told.copies == "None: no error is about the records of the 3 copies."
    assert ["torn-tail: move nothing away" in step.text for step in told.steps] == [True]


def test_a_clean_audit_needs_nothing_done() -> None:
    """And one that failed says nothing."""
    told = advised(ledger=LedgerCounts(9, 9, 9))
    assert (told.copies, told.steps) == ("None: 3 copies without an error.", ())
    assert advise(Summary(started_at_ms=0, failure="no space"), []) is None


def test_faults_of_files_groups_and_clients_have_their_own_steps() -> None:
    """None of them moves a log."""
    checks = ("index", "committed-offset", "duplicate")
    told = advised(*(bad(1, check) for check in checks))
    assert [step.text.split(":")[0] for step in told.steps] == [
        "index",
        "Committed offsets",
        "duplicate",
    ]


@pytest.mark.parametrize("check", sorted(DESCRIBED.keys() - {"torn-tail", "checkpoint"}))
def test_each_fault_has_something_to_do(check: str) -> None:
    """But for two, of which brokers take care (docs/audit.md, "When it finds something")."""
    assert advised(bad(1, check)).steps
