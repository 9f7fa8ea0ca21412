"""The transactions in the text and on the page."""

from dataclasses import replace

from minibroker.audit.model import Severity
from minibroker.audit.report.transactions import OPEN_MAX, lines, section
from minibroker.audit.summary import OpenTransactionSeen, Summary, TransactionsSeen

OPEN = OpenTransactionSeen(
    topic="t",
    partition=4,
    offset=1_000,
    producer_id=7,
    producer_epoch=3,
    open_ms=5_000,
    severity=Severity.INFO,
    why="of transactional id '<b>', which is in state Ongoing (epoch 3)",
    transactional_id="<b>",
    state="Ongoing",
)
NOTHING = Summary(started_at_ms=0)
SEEN = TransactionsSeen(committed=1_200, aborted=1, records=40, open=1, oldest=(OPEN,))
SUMMARY = replace(NOTHING, transactions=SEEN)


def test_without_transactions_nothing_is_said():
    """Neither in the text nor on the page."""
    assert ([*lines(NOTHING)], section(NOTHING)) == ([], "")


def test_the_text_counts_them_and_names_the_open_ones():
    """With the id, for how long, and what it means."""
    first, second = lines(SUMMARY)
    assert first == (
        "Transactions, counted in each partition: 1,200 ended with COMMIT, 1 with ABORT"
        " (40 records), 1 is open"
    )
    assert second == (
        "    t-4 from offset 1,000: producer 7 epoch 3 of <b>, open for 5 s; of transactional id"
        " '<b>', which is in state Ongoing (epoch 3)"
    )


def test_only_the_first_open_ones_are_named():
    """It says how many more there are."""
    many = replace(SEEN, open=OPEN_MAX + 7, oldest=(OPEN,) * (OPEN_MAX + 2))
    *_, last = lines(replace(SUMMARY, transactions=many))
    assert last == "    ... and 7 more"
    assert "<p>5 more are open.</p>" in section(replace(SUMMARY, transactions=many))


def test_the_page_has_a_table_of_open_ones():
    """A client's names are escaped."""
    page = section(SUMMARY)
    assert "1,200 ended with COMMIT" in page
    assert "<td>&lt;b&gt;</td>" in page
    assert "<b>" not in page


def test_the_file_keeps_them():
    """What is written is read again."""
    assert Summary.from_json(SUMMARY.to_json()) == SUMMARY
