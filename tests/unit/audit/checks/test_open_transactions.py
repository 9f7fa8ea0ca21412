"""What an open transaction means, by what its coordinator has stored."""

import pytest

from minibroker.audit.checks.open_transactions import (
    MARKING_MS,
    TIMEOUT_MS,
    Coordinators,
    Known,
    OpenTransaction,
    in_time,
    judge_open,
)
from minibroker.audit.files.transaction_states import StateRecord
from minibroker.audit.model import Severity
from minibroker.protocol.types import TopicPartition

NAME, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_700_000_000_000
FOUND = OpenTransaction(NAME, 7, 3, 100, NOW - 50)
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def record(state: str, epoch: int = 3, ago_ms: int = 0, **more: object) -> StateRecord:
    fields = {"partitions": (NAME,), "updated_ms": NOW - ago_ms, "started_ms": NOW - ago_ms}
    known = {"producer_id": 7, "producer_epoch": epoch, "timeout_ms": 60_000}
    return StateRecord("id", state, **{**known, **fields, **more})


LATE = 60_001
CASES = {
    "ongoing": (record("Ongoing"), INFO, False),
    "ongoing, and late": (record("Ongoing", ago_ms=LATE), WARNING, False),
    "decided": (record("PrepareAbort", 4), INFO, False),
    "decided for long": (record("PrepareCommit", 4, MARKING_MS + 1), WARNING, False),
    "complete": (record("CompleteCommit", 4, partitions=()), ERROR, True),
    "empty": (record("Empty", 4, partitions=()), ERROR, True),
    "ongoing elsewhere": (record("Ongoing", partitions=(OTHER,)), ERROR, True),
    "decided elsewhere": (record("PrepareCommit", 4, partitions=(OTHER,)), ERROR, True),
    "ongoing in a later epoch": (record("Ongoing", 4), ERROR, True),
    "the id has another producer now": (
        record("Empty", 0, producer_id=8, previous_producer_id=7, partitions=()),
        ERROR,
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_depends_on_the_state(name: str):
    """While brokers run, it is never more than information."""
    stored, severity, is_hanging = CASES[name]
    coordinators = Coordinators([Known(0, stored)], is_whole=True)
    verdict = judge_open(FOUND, coordinators, NOW, is_live=False)
    assert (verdict.severity, verdict.is_hanging) == (severity, is_hanging)
    assert (verdict.transactional_id, verdict.state) == ("id", stored.state)
    live = judge_open(FOUND, coordinators, NOW, is_live=True)
    assert (live.severity, live.is_hanging) == (INFO, False)


def test_an_unknown_producer_hangs_only_if_all_is_known():
    """A log of the coordinators that is not at hand may have it."""
    for is_whole, severity in ((True, ERROR), (False, WARNING)):
        coordinators = Coordinators([], is_whole=is_whole)
        assert judge_open(FOUND, coordinators, NOW, is_live=False).severity is severity
        assert judge_open(FOUND, coordinators, NOW, is_live=True).severity is INFO


def test_without_the_coordinators_logs_only_its_age_is_known():
    """By the longest timeout that a producer may have."""
    for now_ms, severity in ((FOUND.first_ms + TIMEOUT_MS, INFO), (NOW + TIMEOUT_MS, WARNING)):
        assert judge_open(FOUND, None, now_ms, is_live=False).severity is severity
        assert judge_open(FOUND, None, now_ms, is_live=True).severity is INFO


def test_times_are_in_words():
    """In a unit of which there are two or more."""
    times = {-5: "0 ms", 1_999: "1,999 ms", 2_000: "2 s", 119_000: "119 s", 120_000: "2 min"}
    times |= {7_200_000: "2 h", 172_800_000: "2 d"}
    assert {ms: in_time(ms) for ms in times} == times
