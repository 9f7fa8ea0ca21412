"""The verdict of an audit, in its sentence and its exit code, and `summary.json`."""

import json
from dataclasses import replace

import pytest

from minibroker.audit.catalogue import CHOSEN, DESCRIBED, in_words
from minibroker.audit.checks.registry import CHECKS
from minibroker.audit.model import Finding, Severity
from minibroker.audit.summary import (
    CheckRun,
    FindingCount,
    LedgerCounts,
    Sizes,
    Summary,
    Unjudged,
    Verdict,
    count_findings,
    in_bytes,
    in_order,
    visible,
    worst_of,
)
from tests.unit.audit.sample import NASTY, sample_findings, sample_partitions, sample_summary

ALL = tuple(map(CheckRun, CHOSEN))
NOTHING: list[Severity] = []
ERROR, WARNING, INFO = Severity
HELD_BACK = Unjudged("the log of broker 3 is not at hand", holds_back=True, records=7)
SAID = Unjudged("above the high watermark of a live log", holds_back=False, records=7)


@pytest.mark.parametrize(
    ("found", "fail_on", "unjudged", "exit_code"),
    [
        (NOTHING, ERROR, None, 0),
        ([WARNING, INFO], ERROR, None, 0),
        ([WARNING], WARNING, None, 1),
        ([INFO], WARNING, None, 0),
        ([ERROR], ERROR, None, 1),
        ([ERROR], WARNING, None, 1),
        (NOTHING, ERROR, SAID, 0),
        (NOTHING, ERROR, HELD_BACK, 2),
        ([WARNING], ERROR, HELD_BACK, 2),
        ([ERROR], ERROR, HELD_BACK, 1),
    ],
)
def test_the_exit_code_follows_from_what_was_found_and_what_was_not_judged(
    found: list[Severity], fail_on: Severity, unjudged: Unjudged | None, exit_code: int
) -> None:
    """Findings from `fail_on` on win; then what holds the verdict back; what is only said is 0."""
    findings = [Finding("crc", severity, "t", 0, 1) for severity in found]
    summary = Summary(
        started_at_ms=0,
        fail_on=fail_on,
        counts=count_findings(findings),
        worst=worst_of(findings),
        unjudged=(unjudged,) if unjudged else (),
    )
    assert summary.exit_code == exit_code
    assert summary.exit_code == summary.verdict.exit_code


def test_an_audit_that_broke_off_has_failed_whatever_it_found() -> None:
    """A failure is never a verdict about the logs."""
    summary = replace(sample_summary(sample_findings()), failure="no space left on the device")
    assert (summary.verdict, summary.exit_code) == (Verdict.FAILED, 3)
    assert summary.sentence == "The audit failed: no space left on the device."


def test_a_clean_verdict_says_what_was_compared() -> None:
    """With a ledger it counts acknowledged records, without one the offsets that were judged. That
    each is there once it says only if that was looked at, and is so."""
    sizes = Sizes(logs=12, files=12, bytes=96_100_000)
    ledger = LedgerCounts(acknowledged=401_172, judged=401_172, present=401_172)
    summary = Summary(started_at_ms=0, sizes=sizes, ledger=ledger, checks=ALL)
    assert summary.sentence == (
        "Clean: 401,172 acknowledged records are on every in-sync replica exactly once;"
        " 12 logs, 96.1 MB, compared below their high watermarks."
    )
    compacted = replace(ledger, judged=400_000, present=400_000, compacted=1_172)
    assert replace(summary, ledger=compacted).sentence == (
        "Clean: 400,000 acknowledged records are on every in-sync replica exactly once, 1,172 more"
        " are compacted, for newer ones of their keys; 12 logs, 96.1 MB, compared below their high"
        " watermarks."
    )
    aborted = replace(ledger, aborted=1_200)
    assert replace(summary, ledger=aborted).sentence == (
        "Clean: 401,172 acknowledged records are on every in-sync replica exactly once, 1,200 of"
        " them in aborted transactions; 12 logs, 96.1 MB, compared below their high watermarks."
    )
    twice = replace(summary, counts=(FindingCount("duplicate", WARNING, 1),))
    assert "are on every in-sync replica; 12 logs" in twice.sentence
    partitions = tuple(sample_partitions(0))
    without = replace(summary, ledger=None, partitions=partitions)
    assert without.sentence.startswith("Clean: 268,510 records below the high watermarks")
    assert "no ledger" in without.sentence
    assert "the same on every in-sync replica; 12 logs" in without.sentence
    warned = replace(summary, counts=(FindingCount("index", WARNING, 3),))
    assert warned.sentence.startswith("Clean, with 3 warnings: 401,172")


@pytest.mark.parametrize(
    ("ran", "ledger", "sentence"),
    [
        (
            ["crc", "gap"],
            None,
            "Clean: 0 records below the high watermarks; 12 logs, 96.1 MB;"
            " no ledger of acknowledged records was given; run was only crc, gap.",
        ),
        (
            ["divergence"],
            None,
            "Clean: 0 records below the high watermarks, the same on every in-sync replica;"
            " 12 logs, 96.1 MB; no ledger of acknowledged records was given;"
            " run was only divergence.",
        ),
        (
            ["lost-write", "unseen"],
            LedgerCounts(5, 5, 5),
            "Clean: 5 acknowledged records are on every in-sync replica; 12 logs, 96.1 MB;"
            " run was only lost-write, unseen.",
        ),
    ],
)
def test_a_clean_verdict_claims_no_more_than_was_checked(
    ran: list[str], ledger: LedgerCounts | None, sentence: str
) -> None:
    """What only a check that was not asked for can know is not said."""
    summary = Summary(
        started_at_ms=0,
        sizes=Sizes(logs=12, files=12, bytes=96_100_000),
        ledger=ledger,
        checks=tuple(map(CheckRun, ran)),
    )
    assert summary.sentence == sentence


UNSEEN = FindingCount("unseen", WARNING, 3)
LOST = FindingCount("lost-write", WARNING, 1)


@pytest.mark.parametrize(
    ("ran", "counts", "exit_code"),
    [
        (["crc"], (), 2),
        (["crc", "lost-write"], (LOST,), 2),
        (CHOSEN, (FindingCount("index", WARNING, 3),), 2),
        (CHOSEN, (UNSEEN,), 0),
        (CHOSEN, (LOST, UNSEEN), 0),
    ],
)
def test_records_that_are_counted_as_lost_are_never_clean_unless_they_are_named(
    ran: list[str], counts: tuple[FindingCount, ...], exit_code: int
) -> None:
    """The count of the ledgers knows of losses also when no check was run that finds them."""
    summary = Summary(
        started_at_ms=0,
        ledger=LedgerCounts(acknowledged=20, judged=20, present=17),
        checks=tuple(map(CheckRun, ran)),
        counts=counts,
    )
    assert summary.exit_code == exit_code
    if exit_code == 2:
        assert summary.sentence.startswith(
            "Could not check: 3 acknowledged records absent or different, and no check that was run"
            " names them all"
        )
        assert "is sound" not in summary.sentence


def test_findings_are_told_with_the_worst_one() -> None:
    """The sentence counts errors and warnings and names the first of the worst."""
    summary = sample_summary(sample_findings())
    assert summary.sentence == (
        "4 errors and 3 warnings: an acknowledged record of orders-0 is gone at offset 61,223"
        " on broker 2."
    )


def test_a_verdict_that_is_held_back_says_why() -> None:
    """It counts the acknowledged records, and leaves no doubt that this is not clean."""
    ledger = LedgerCounts(acknowledged=20, judged=6, present=6)
    summary = Summary(started_at_ms=0, ledger=ledger, unjudged=(SAID, HELD_BACK, HELD_BACK))
    assert summary.sentence == (
        "Could not check: 14 acknowledged records not judged; the log of broker 3 is not at hand"
        " (and 1 more reason); what could be judged is sound."
    )


def test_a_summary_is_read_back_as_it_was_written() -> None:
    """Also with texts that are no UTF-8; what only follows from the rest is in the file too."""
    findings = [*sample_findings(), Finding("crc", ERROR, NASTY, 0, 1, detail=NASTY)]
    summary = sample_summary(findings, list(sample_partitions()))
    text = summary.to_json()
    assert Summary.from_json(text) == summary
    held = json.loads(text)
    assert held["verdict"] == "findings"
    assert held["exit_code"] == 1
    assert held["sentence"] == summary.sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '"x"',
        '{"version": 1}',
        '{"version": 2}',
        sample_summary().to_json().replace('"logs": 12', '"logs": "12"'),
        sample_summary().to_json().replace('"logs": 12', '"blogs": 12'),
        sample_summary().to_json().replace('"fail_on": "error"', '"fail_on": "never"'),
        sample_summary().to_json().replace('"brokers": [', '"brokers": [3,'),
    ],
)
def test_what_is_no_summary_is_refused(text: str) -> None:
    """Another JSON, or a damaged one, is a ValueError and nothing else."""
    with pytest.raises(ValueError, match=r"not the summary|another version|Expecting|Severity"):
        Summary.from_json(text)


def test_findings_are_ordered_by_severity_then_place() -> None:
    """The order does not depend on the one they were found in."""
    ordered = in_order(sample_findings())
    assert in_order(reversed(ordered)) == ordered
    assert [each.severity for each in ordered] == [ERROR] * 4 + [WARNING] * 3 + [INFO]
    offsets = [each.offset for each in ordered if each.topic == "orders"][:4]
    assert offsets == [61_220, 61_223, 12_345, 71_000]
    first, second = (Finding("crc", ERROR, topic, 9 - at) for at, topic in enumerate("ab"))
    assert in_order([second, first]) == [first, second]
    assert worst_of([]) is None


def test_the_gravest_finding_is_named_first() -> None:
    """Of errors, a lost record before the damage that explains it, wherever they are."""
    crc = Finding("crc", ERROR, "a", 0, 1, offset=1)
    lost = Finding("lost-write", ERROR, "z", 5, 3, offset=9)
    warned = Finding("lost-write", WARNING, "a", 0, 1, offset=0)
    assert worst_of([warned, crc, lost]) == lost
    assert in_order([warned, lost, crc]) == [crc, lost, warned]


def test_every_check_is_described() -> None:
    """The words of the catalogue are those of the registry, and each finding can be told."""
    assert set(CHOSEN) == set(CHECKS)
    for name in DESCRIBED:
        told = in_words(Finding(name, ERROR, "topic", 3, 1, 2, 1234))
        assert "{" not in told
        assert "?" in in_words(Finding(name, ERROR))
        assert "topic-3" in told or "broker 1" in told


def test_what_has_no_offset_is_told_without_one() -> None:
    """A record that was lost somewhere is not lost "at offset ?"."""
    lost = Finding("lost-write", ERROR, "topic", 3, 1)
    assert in_words(lost) == "an acknowledged record of topic-3 is gone on broker 1"
    assert all("at offset ?" not in in_words(Finding(name, ERROR)) for name in DESCRIBED)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (96_100_000, "96.1 MB"), (10**16, "10000.0 TB")],
)
def test_sizes_are_told_in_units_of_a_thousand(size: int, text: str) -> None:
    """As disks are sold."""
    assert in_bytes(size) == text


def test_text_that_does_not_show_as_itself_is_made_visible() -> None:
    """No control character, direction mark or lone surrogate reaches a terminal or a page."""
    assert visible("a\x1b[31m\u202e\udcff\n") == "a\\x1b[31m\\u202e\\udcff\\n"
    assert visible("größer") == "größer"


def test_a_count_says_when_findings_were_left_out() -> None:
    """Because a replica, or a check, had more than are kept."""
    of_replica = [Finding("gap", ERROR, "t", 0, 1), Finding("gap", ERROR, "t", 0, 1, more=7)]
    of_check = [Finding("crc", WARNING, "t", 0, 1)]
    summary = Summary(started_at_ms=0, counts=count_findings([*of_replica, *of_check], {"crc"}))
    assert summary.sentence == "At least 2 errors and at least 1 warning: see below."
    assert Summary.from_json(summary.to_json()) == summary
    assert not Summary(started_at_ms=0, counts=count_findings(of_check)).is_capped(WARNING)
