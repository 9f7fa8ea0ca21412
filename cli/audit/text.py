"""An audit's output in a terminal: its progress on stderr, and the result as lines of text."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minibroker.audit.model import Finding
from minibroker.audit.report import groups, transactions
from minibroker.audit.report.advice import Advice, advise
from minibroker.audit.report.faults import Fault, in_faults
from minibroker.audit.report.places import Places
from minibroker.audit.summary import Summary, Verdict, in_bytes, plural, visible
from minibroker.cli.terminal import note

if TYPE_CHECKING:
    from minibroker.audit.progress import Progress

FINDINGS_MAX: Final = 20
UNJUDGED_MAX: Final = 10
# Without a terminal: the least time between two lines, and between two lines of the same stage.
LINE_EVERY_S: Final = 1.0
AGAIN_EVERY_S: Final = 5.0

Kind = tuple[object, ...]
Listener = Callable[["Progress"], None]


def lines(summary: Summary, findings: Sequence[Finding], out: Path) -> Iterator[str]:
    """Yield the result's lines: the verdict first, the report's path last."""
    yield visible(summary.sentence)
    if summary.verdict is not Verdict.CLEAN or findings:
        yield from _answer(advise(summary, findings))
    yield from (f"Note: {visible(text)}" for text in summary.notes)
    if findings:
        faults = in_faults(findings)
        kinds = Counter(map(_kind, faults))
        firsts = {_kind(each): each for each in reversed(faults)}
        shown = [each for each in faults if firsts[_kind(each)] is each][:FINDINGS_MAX]
        yield ""
        yield from _faults(shown, kinds, Places(summary))
        if rest := sum(kinds.values()) - sum(kinds[_kind(each)] for each in shown):
            yield f"... and {plural(rest, 'more fault')}"
        yield ""
    yield from groups.lines(summary)
    yield from transactions.lines(summary)
    for each in summary.unjudged[:UNJUDGED_MAX]:
        records = "" if each.records is None else f" ({plural(each.records, 'record')})"
        yield visible(f"Not judged: {each}{records}")
    if len(summary.unjudged) > UNJUDGED_MAX:
        yield f"Not judged: {plural(len(summary.unjudged) - UNJUDGED_MAX, 'more place')}"
    if summary.readings:
        yield f"Read: {'; '.join(map(str, summary.readings))}"
    yield f"Report: {out / 'report.html'}"


def _answer(advice: Advice | None) -> Iterator[str]:
    """Yield what is lost, whose copy is bad, and what to do in order."""
    if advice is None:
        return
    yield f"Is anything lost? {visible(advice.lost)}"
    yield f"Which copies are bad? {visible(advice.copies)}"
    for number, step in enumerate(advice.steps, 1):
        yield f"  {number}. {visible(step.text)}"
        yield from (f"       {visible(command)}" for command in step.commands)


def _kind(fault: Fault) -> Kind:
    """Return what makes faults alike: a bad disk can cause hundreds, and hide all others."""
    finding = fault.worst
    return finding.severity, finding.check, finding.topic, finding.partition, finding.broker


def _faults(faults: Sequence[Fault], kinds: Counter[Kind], places: Places) -> Iterator[str]:
    """Yield a line of columns per fault, then its detail and place, indented."""
    findings = [fault.worst for fault in faults]
    rows = [
        (
            each.severity,
            each.check,
            "" if each.topic is None else visible(f"{each.topic}-{each.partition}"),
            "" if each.broker is None else f"broker {each.broker}",
            f"offset {fault.offsets}" if fault.offsets else "",
        )
        for each, fault in zip(findings, faults, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, finding, fault in zip(rows, findings, faults, strict=True):
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
        yield f"    {visible(finding.detail)}"
        if place := places.of(finding):
            yield visible(f"    {place}: {place.command}")
        if fault.others:
            yield f"    the same fault was found by: {fault.others}"
        if alike := kinds[_kind(fault)] - 1:
            yield f"    and {alike:,} more like it in this log"


@contextmanager
def shown_progress() -> Iterator[Listener]:
    """Yield a listener that shows the progress: a bar on a terminal, else a line now and then."""
    if sys.stderr is None or not sys.stderr.isatty():
        note("starting Spark ...")
        yield _Lines().show
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    texts = [TextColumn("{task.description:30}"), TextColumn("{task.fields[amounts]}")]
    columns = (SpinnerColumn(), texts[0], BarColumn(), texts[1], TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting Spark", total=None, amounts="")

        def show(progress: "Progress") -> None:
            stage, total = progress.stage, progress.total or None
            amounts = _amounts_of(progress)
            bar.update(
                task, description=stage, total=total, completed=progress.done, amounts=amounts
            )

        yield show


class _Lines:
    """Prints a line for each stage that lasts, and every AGAIN_EVERY_S of a long one."""

    def __init__(self) -> None:
        self._stage = ""
        self._written_at = -AGAIN_EVERY_S

    def show(self, progress: "Progress") -> None:
        """Print a line if one is due; called a few times a second."""
        now = time.monotonic()
        wait = AGAIN_EVERY_S if progress.stage == self._stage else LINE_EVERY_S
        if now < self._written_at + wait:
            return
        self._stage = progress.stage
        self._written_at = now
        amounts = _amounts_of(progress)
        note(f"{progress.stage}: {amounts}" if amounts else f"{progress.stage} ...")


def _amounts_of(progress: "Progress") -> str:
    amounts = []
    if progress.total:
        amounts.append(f"{progress.done:,} of {plural(progress.total, 'task')}")
    if progress.bytes_total:
        amounts.append(f"{in_bytes(progress.bytes_done)} of {in_bytes(progress.bytes_total)}")
    return ", ".join(amounts)
