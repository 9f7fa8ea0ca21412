"""What groups have committed and read, in words, as lines of text and as a part of the page.

Each group has a sentence about all its partitions, and a row for each of them. What ledgers of
consumers do not say is left out.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from minibroker.audit.report.lanes import printable
from minibroker.audit.summary import GroupOffset, Summary, plural, visible

GROUPS_MAX: Final = 10  # in text
ROWS_MAX: Final = 20
_HEADS: Final = ("group", "partition", "committed", "lag", "highest", "went back")
_READ_HEADS: Final = ("read", "twice", "skipped", "refused")


def sentences(summary: Summary) -> Iterator[str]:
    """Yield a sentence for each group."""
    for name, rows in groupby(summary.groups, attrgetter("group")):
        yield sentence(name, [*rows])


def sentence(name: str, rows: Sequence[GroupOffset]) -> str:
    """Return what a group has done, in all its partitions: `g1: lag 0 in 2 partitions; read 54
    records twice after member kills, skipped none`."""
    lags = [row.lag for row in rows if row.lag is not None]
    where = plural(len(rows), "partition")
    said = [f"lag {sum(lags):,} in {where}" if lags else f"no lag known in {where}"]
    if any(row.read is not None for row in rows):
        said.append(_read(rows))
    if back := sum(row.went_back for row in rows):
        said.append(f"went back {plural(back, 'time')}")
    if early := sum(row.early or 0 for row in rows):
        said.append(f"{plural(early, 'commit')} came before the record was read")
    if refused := sum(row.refused or 0 for row in rows):
        said.append(f"{plural(refused, 'commit was', 'commits were')} refused")
    if deleted := sum(row.deletions for row in rows):
        said.append(f"{plural(deleted, 'commit was', 'commits were')} deleted")
    return f"{name}: {'; '.join(said)}"


def _read(rows: Sequence[GroupOffset]) -> str:
    twice, skipped = (
        sum(getattr(row, field) or 0 for row in rows) for field in ("twice", "skipped")
    )
    read = f"read {plural(sum(row.read or 0 for row in rows), 'record')}"
    if twice:
        after = " after member kills" if any(row.open_ledgers for row in rows) else ""
        read += f", {twice:,} of them twice{after}"
    return f"{read}, skipped {f'{skipped:,}' if skipped else 'none'}"


def lines(summary: Summary) -> Iterator[str]:
    """Yield the groups as lines of text: the sentences, then the first partitions."""
    told = [*sentences(summary)]
    for text in told[:GROUPS_MAX]:
        yield visible(f"Group {text}")
    if len(told) > GROUPS_MAX:
        yield f"... and {plural(len(told) - GROUPS_MAX, 'more group')}"
    rows: list[tuple[str, ...]] = [_HEADS + _READ_HEADS * _has_reads(summary)]
    shown = summary.groups[:ROWS_MAX]
    rows += (_cells(row, with_reads=_has_reads(summary)) for row in shown)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if shown:
        for number, row in enumerate(rows):
            cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
            yield f"    {'  '.join(cells).rstrip()}"
            if number and (back := shown[number - 1].back):
                yield visible(f"        went back {back}")
    if summary.group_count > len(shown):
        yield f"    ... and {plural(summary.group_count - len(shown), 'more partition')}"


def section(summary: Summary) -> str:
    """Return the part of the page about groups; "" if none has committed anything."""
    if not summary.groups:
        return ""
    told = "".join(f"<li>{printable(text)}</li>" for text in sentences(summary))
    with_reads = _has_reads(summary)
    heads = (*_HEADS, *_READ_HEADS * with_reads, "last by", "kept in")
    head = "".join(f'<th scope="col">{each.capitalize()}</th>' for each in heads)
    body = "".join(_row(row, with_reads=with_reads) for row in summary.groups)
    more = ""
    if left := summary.group_count - len(summary.groups):
        more = f"<p>{plural(left, 'more partition')} of groups.</p>"
    return (
        '<section aria-labelledby="groups"><h2 id="groups">Groups</h2>'
        f"<ul>{told}</ul>"
        f'<table class="small"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'
        "</section>"
    )


def _row(row: GroupOffset, *, with_reads: bool) -> str:
    cells = [printable(cell) for cell in _cells(row, with_reads=with_reads)]
    if row.back:
        cells[5] += f", {printable(row.back)}"
    if row.refusals:
        cells[9] = printable(row.refusals)
    where = f"__consumer_offsets-{row.home}"
    if row.coordinator is not None:
        where += f", coordinator {row.coordinator}"
    cells += [printable(row.by), where]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _cells(row: GroupOffset, *, with_reads: bool) -> tuple[str, ...]:
    committed = "deleted" if row.committed is None else f"{row.committed:,}"
    cells = (
        visible(row.group),
        visible(f"{row.topic}-{row.partition}"),
        committed,
        _number(row.lag),
        f"{row.highest:,}",
        f"{row.went_back:,}",
    )
    if not with_reads:
        return cells
    return *cells, *map(_number, (row.read, row.twice, row.skipped, row.refused))


def _has_reads(summary: Summary) -> bool:
    return any(row.read is not None for row in summary.groups)


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
