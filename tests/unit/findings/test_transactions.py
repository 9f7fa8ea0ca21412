"""Findings about transactions that should be over."""

from minibroker.broker.findings import NAMED_MAX, Level
from minibroker.broker.findings.transactions import GRACE_MS, OpenTransaction, of_transactions
from minibroker.protocol.types import TopicPartition

TIMEOUT_MS = 60_000
BEGAN_MS = 1_000
LATE_MS = BEGAN_MS + TIMEOUT_MS + GRACE_MS + 1


def one(state: str = "Ongoing", name: str = "it's x") -> OpenTransaction:
    """A transaction of t-0."""
    return OpenTransaction(name, state, TIMEOUT_MS, BEGAN_MS, (TopicPartition("t", 0),))


def test_all_is_well_within_the_timeout() -> None:
    """And a while after it, in which the coordinator aborts it."""
    for state in ("Ongoing", "PrepareAbort"):
        [finding] = of_transactions([one(state)], {}, LATE_MS - 1)
        assert finding.level is Level.OK


def test_a_transaction_that_is_open_for_too_long_is_named() -> None:
    """With the command that ends it."""
    [finding] = of_transactions([one()], {}, LATE_MS)
    assert finding.level is Level.PROBLEM
    assert '"it\'s x" is open for 90 s' in finding.what
    assert "60000 ms" in finding.what
    assert "minibroker transaction abort 'it'\"'\"'s x'" in finding.advice


def test_markers_that_cannot_be_written_are_named() -> None:
    """With the partitions that may lack them: nothing is left to decide."""
    [finding] = of_transactions([one("PrepareCommit")], {}, LATE_MS)
    assert finding.level is Level.PROBLEM
    assert "decided (PrepareCommit)" in finding.what
    assert finding.what.endswith("t-0")
    assert "abort" not in finding.advice


def test_not_all_of_many_are_named() -> None:
    """The rest is counted."""
    many = [one(name=str(number)) for number in range(NAMED_MAX + 3)]
    findings = list(of_transactions(many, {}, LATE_MS))
    assert len(findings) == NAMED_MAX + 1
    assert findings[-1].what.startswith("3 more transactions")


def test_a_silent_broker_is_named() -> None:
    """It may keep others."""
    first, second = of_transactions([], {2: "no answer"}, LATE_MS)
    assert first.level is Level.NOTE
    assert "broker 2" in first.what
    assert second.level is Level.OK
