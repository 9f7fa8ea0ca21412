"""The transactions of the logs, in words, as lines of text and as a part of the page."""

from collections.abc import Iterator
from typing import Final

from minibroker.audit.checks.open_transactions import in_time
from minibroker.audit.report.lanes import printable
from minibroker.audit.summary import (
    OpenTransactionSeen,
    Summary,
    TransactionsSeen,
    plural,
    visible,
)

OPEN_MAX: Final = 10  # in text
_HEADS: Final = (
    "partition",
    "from offset",
    "producer",
    "transactional id",
    "state",
    "open for",
    "what it means",
)


def sentence(seen: TransactionsSeen) -> str:
    """Return how the transactions ended: `12 ended with COMMIT, 2 with ABORT (40 records), 1 is
    open`."""
    ended = f"{seen.committed:,} ended with COMMIT, {seen.aborted:,} with ABORT"
    if seen.aborted:
        ended += f" ({plural(seen.records, 'record')})"
    return f"{ended}, {seen.open:,} {'is' if seen.open == 1 else 'are'} open"


def lines(summary: Summary) -> Iterator[str]:
    """Yield the transactions as lines of text: how they ended, then the oldest open ones."""
    seen = summary.transactions
    if seen is None:
        return
    yield f"Transactions, counted in each partition: {sentence(seen)}"
    for each in seen.oldest[:OPEN_MAX]:
        cells = _cells(each)
        name = "an unknown transactional id" if each.transactional_id is None else cells[3]
        yield visible(
            f"    {cells[0]} from offset {cells[1]}: producer {cells[2]} of {name}, open for"
            f" {cells[5]}; {each.why}"
        )
    if (left := seen.open - len(seen.oldest[:OPEN_MAX])) > 0:
        yield f"    ... and {left:,} more"


def section(summary: Summary) -> str:
    """Return the part of the page about transactions; "" if there are none."""
    seen = summary.transactions
    if seen is None:
        return ""
    table = more = ""
    if seen.oldest:
        head = "".join(f'<th scope="col">{each.capitalize()}</th>' for each in _HEADS)
        body = "".join(map(_row, seen.oldest))
        table = f'<table class="small"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    if (left := seen.open - len(seen.oldest)) > 0:
        more = f"<p>{left:,} more are open.</p>"
    return (
        '<section aria-labelledby="transactions"><h2 id="transactions">Transactions</h2>'
        f"<p>Counted in each partition: {printable(sentence(seen))}.</p>{table}{more}</section>"
    )


def _row(each: OpenTransactionSeen) -> str:
    return f"<tr>{''.join(f'<td>{printable(cell)}</td>' for cell in _cells(each))}</tr>"


def _cells(each: OpenTransactionSeen) -> tuple[str, ...]:
    return (
        f"{each.topic}-{each.partition}",
        f"{each.offset:,}",
        f"{each.producer_id} epoch {each.producer_epoch}",
        each.transactional_id or "?",
        each.state or "?",
        in_time(each.open_ms),
        each.why,
    )
