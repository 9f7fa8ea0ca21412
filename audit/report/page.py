"""`report.html`: the verdict, the pictures, the findings and how the audit judged, in one file.

The file needs nothing else: no network, no fonts, no scripts except the few lines at its end, and
its own policy forbids the browser to load or run anything else. Its contents come from damaged
files, so every text goes through `printable`. The whole page is written here: its script only
filters the table and opens the target of a link.

The first screen answers what an operator asks: is anything lost, whose copy is bad, what to do.
Then come the groups and the partitions, with the brokers' own topic last. A page stays usable with
hundreds of partitions and any number of findings: pictures with findings come first, the others are
folded, and the table holds ROWS_MAX faults, the worst first.
`findings.parquet` has them all; it is read and written here too.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.audit.catalogue import DESCRIBED
from minibroker.audit.model import FINDINGS, Finding, Severity
from minibroker.audit.report import groups, transactions
from minibroker.audit.report.advice import Advice, advise
from minibroker.audit.report.faults import Fault, in_faults
from minibroker.audit.report.lanes import Numbered, draw, printable
from minibroker.audit.report.places import Places
from minibroker.audit.summary import (
    SEVERITIES,
    PartitionPicture,
    Summary,
    Verdict,
    in_bytes,
    is_internal,
    plural,
)

ROWS_MAX: Final = 1000
OPEN_MAX: Final = 12  # pictures that are open when the page opens ...
SOUND_OPEN_MAX: Final = 2  # ... where no more than these have come before
GROUP_ROWS_MAX: Final = 100
SOUND_MAX: Final = 6  # partitions without a finding; further ones are folded together
_GLYPHS: Final = {
    Verdict.CLEAN: ("M8 16.5 L13.5 22 L24 10.5", "Clean"),
    Verdict.FINDINGS: ("M10 10 L22 22 M22 10 L10 22", "Findings"),
    Verdict.COULD_NOT_CHECK: (
        "M11.5 12.5 C11.5 7 20.5 7 20.5 12.5 C20.5 15.5 16 15.5 16 19 M16 23 L16 23.4",
        "Could not check",
    ),
    Verdict.FAILED: ("M16 8 L16 18 M16 23 L16 23.4", "The audit failed"),
}


def write_report(summary: Summary, findings: Sequence[Finding], out: Path) -> Path:
    """Write `report.html` into the directory `out`; returns its path."""
    path = out / "report.html"
    path.write_text(page(summary, findings), encoding="utf-8")
    return path


def write_findings(findings: Sequence[Finding], out: Path) -> Path:
    """Write `findings.parquet` into the directory `out`; returns its path."""
    path = out / "findings.parquet"
    columns = {
        name: pa.array([_stored(getattr(finding, name)) for finding in findings], kind)
        for name, kind in zip(FINDINGS.names, FINDINGS.types, strict=True)
    }
    pq.write_table(pa.table(columns, schema=FINDINGS), path)
    return path


def _stored(value: object) -> object:
    """Return a value for Parquet, which holds UTF-8 without lone surrogates."""
    return value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value


def read_findings(out: Path) -> list[Finding]:
    """Read what `write_findings` wrote. Raises `OSError`, `pa.ArrowInvalid` for anything else."""
    rows = pq.read_table(out / "findings.parquet", schema=FINDINGS).to_pylist()
    return [Finding(**row | {"severity": Severity(row["severity"])}) for row in rows]


def page(summary: Summary, findings: Sequence[Finding]) -> str:
    """Return the whole text of `report.html`."""
    faults = in_faults(findings)
    ordered = [
        Numbered(number if number < ROWS_MAX else None, finding)
        for number, fault in enumerate(faults)
        for finding in fault.findings
    ]
    pictures, marks = _pictures(summary, ordered)
    glyph, word = _GLYPHS[summary.verdict]
    template = (files("minibroker.audit.report") / "page.html").read_text(encoding="utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(template).substitute(
        script_hash=f"sha256-{digest}",
        kind=summary.verdict.replace(" ", "-"),
        glyph=glyph,
        verdict=word,
        sentence=printable(summary.sentence),
        about=_about(summary),
        answer=_answer(advise(summary, findings)),
        numbers=_numbers(summary),
        groups=groups.section(summary),
        transactions=transactions.section(summary),
        pictures=pictures,
        findings=_findings(faults, marks, Places(summary)),
        unjudged=_unjudged(summary),
        how=_how(summary),
    )


def _about(summary: Summary) -> str:
    began = datetime.fromtimestamp(summary.started_at_ms / 1000, UTC)
    said = [f"cluster {summary.cluster_id}"] if summary.cluster_id else []
    said += [plural(len(summary.brokers), "broker"), f"{began.day} {began:%B %Y, %H:%M:%S} UTC"]
    return " · ".join(map(printable, said))


def _numbers(summary: Summary) -> str:
    sizes, ledger = summary.sizes, summary.ledger
    shown = [
        (
            f"{summary.count(each):,}" + ("+" if summary.is_capped(each) else ""),
            f"{each}s",
            each.value,
        )
        for each in SEVERITIES[:2]
    ]
    shown.append((f"{summary.count(Severity.INFO):,}", "notices", "info"))
    if ledger is not None:
        shown.append((f"{ledger.acknowledged:,}", "records acknowledged", ""))
        shown.append((f"{ledger.judged:,}", "of them judged", ""))
        shown.append((f"{ledger.present:,}", "on every in-sync replica", ""))
        if ledger.compacted:
            shown.append((f"{ledger.compacted:,}", "compacted", ""))
        partly = ledger.judged - ledger.present - ledger.nowhere
        shown.append((f"{partly:,}", "on some replicas only", "warning"))
        shown.append((f"{ledger.nowhere:,}", "on no replica", "error"))
    judged = sum(partition.judged for partition in summary.partitions)
    shown += [
        (f"{judged:,}", "offsets judged", ""),
        (f"{len(summary.partitions):,}", "partitions", ""),
        (f"{sizes.logs:,}", "logs", ""),
        (in_bytes(sizes.bytes), f"in {plural(sizes.files, 'segment')}", ""),
        (f"{summary.seconds:.1f} s", "in all", ""),
    ]
    return "".join(
        f'<div class="number {kind if value != "0" else ""}">'
        + (f'<a href="#findings"><b>{value}</b> {what}</a>' if kind else f"<b>{value}</b> {what}")
        + "</div>"
        for value, what, kind in shown
    )


def _answer(advice: Advice | None) -> str:
    """Return what an operator asks first: what is lost, whose copy is bad, what to do."""
    if advice is None:
        return ""
    steps = "".join(
        f"<li>{printable(step.text)}"
        f"{''.join(f'<code>{printable(command)}</code>' for command in step.commands)}</li>"
        for step in advice.steps
    )
    todo = f"<ol>{steps}</ol>" if steps else "Nothing."
    return (
        '<dl class="answer">'
        f"<dt>Is anything lost?</dt><dd>{printable(advice.lost)}</dd>"
        f"<dt>Which copies are bad?</dt><dd>{printable(advice.copies)}</dd>"
        f"<dt>What to do, in this order</dt><dd>{todo}</dd></dl>"
    )


def _pictures(summary: Summary, findings: Sequence[Numbered]) -> tuple[str, Mapping[int, str]]:
    """Return the pictures, those with findings first, and the mark of each finding in them."""
    of_log: dict[tuple[str | None, int | None], list[Numbered]] = {}
    for each in findings:
        of_log.setdefault((each.finding.topic, each.finding.partition), []).append(each)
    ordered = sorted(
        enumerate(summary.partitions),
        key=lambda each: (
            _severity_rank(of_log.get((each[1].topic, each[1].partition), ())),
            is_internal(each[1].topic),
            each[1].topic,
            each[1].partition,
        ),
    )
    marks: dict[int, str] = {}
    shown: list[str] = []
    sound: list[str] = []
    for place, (index, partition) in enumerate(ordered):
        mine = of_log.get((partition.topic, partition.partition), [])
        picture = draw(f"p{index}", partition, mine)
        marks.update(picture.marks)
        is_open = place < (OPEN_MAX if mine else SOUND_OPEN_MAX)
        (shown if mine else sound).append(
            f'<details class="partition"{" open" if is_open else ""}>'
            f"<summary>{_headline(partition, mine)}</summary>{picture.html}</details>"
        )
    shown += sound[:SOUND_MAX]
    if others := sound[SOUND_MAX:]:
        about = f"{plural(len(others), 'more partition')} without a finding"
        shown.append(
            f'<details class="others"><summary>{about}</summary>{"".join(others)}</details>'
        )
    return "".join(shown) or "<p>No log was found.</p>", marks


def _severity_rank(findings: Sequence[Numbered]) -> int:
    ranks = (SEVERITIES.index(each.finding.severity) for each in findings)
    return min(ranks, default=len(SEVERITIES))


def _headline(partition: PartitionPicture, findings: Sequence[Numbered]) -> str:
    name = f"<b>{printable(partition.topic)}-{partition.partition}</b>"
    said = []
    if partition.leader is not None:
        said.append("no leader" if partition.leader < 0 else f"leader {partition.leader}")
    if partition.isr is not None:
        said.append(f"ISR {', '.join(map(str, partition.isr)) or 'empty'}")
        if left := [
            lane.broker
            for lane in partition.lanes
            if lane.in_isr and lane.broker not in partition.isr
        ]:
            said.append(f"complete when stopped: {', '.join(map(str, left))}")
    if partition.judged_end is not None:
        said.append(f"judged {partition.judged_start or 0:,} to {partition.judged_end:,}")
    else:
        said.append("not judged")
    counts = [
        _badge(severity, plural(count, severity if severity is not Severity.INFO else "notice"))
        for severity in SEVERITIES
        if (count := sum(each.finding.severity is severity for each in findings))
    ]
    return f'{name} <span class="role">{" · ".join(said)}</span> {" ".join(counts)}'


def _badge(severity: Severity, text: str) -> str:
    return f'<span class="badge {severity}">{text}</span>'


def _findings(faults: Sequence[Fault], marks: Mapping[int, str], places: Places) -> str:
    if not faults:
        return "<p>None.</p>"
    listed = faults[:ROWS_MAX]
    severities = {each.worst.severity for each in listed}
    topics = {each.worst.topic for each in listed if each.worst.topic is not None}
    total = sum(len(each.findings) for each in faults)
    filters = "".join(
        _filter(name, values)
        for name, values in (
            ("severity", [each for each in SEVERITIES if each in severities]),
            ("check", sorted({check for each in listed for check in each.checks})),
            ("topic", sorted(topics)),
        )
    )
    capped = "" if len(listed) == len(faults) else f" of {len(faults):,}, the worst first"
    headers = ("Severity", "Check", "Log", "Broker", "Offset", "What is wrong", "Where to look")
    columns = "".join(f'<th scope="col">{header}</th>' for header in headers)
    rows = "".join(_row(number, each, marks, places) for number, each in enumerate(listed))
    return (
        f'<form class="filters">{filters}<output>{len(listed):,} shown</output></form>'
        f"<p>{plural(len(listed), 'fault')}{capped}. Findings about the same bytes are one row;"
        f" <code>findings.parquet</code> beside this page has all {total:,}.</p>"
        f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _filter(name: str, values: Sequence[str]) -> str:
    options = "".join(f"<option>{printable(value)}</option>" for value in values)
    return (
        f'<label>{name.capitalize()} <select name="{name}"><option value="">all</option>'
        f"{options}</select></label>"
    )


def _row(number: int, fault: Fault, marks: Mapping[int, str], places: Places) -> str:
    finding = fault.worst
    topic = printable(finding.topic or "")
    log = "" if finding.topic is None else f"{topic}-{finding.partition}"
    others = "" if finding.other_broker is None else f" (and {finding.other_broker})"
    brokers = "" if finding.broker is None else f"{finding.broker}{others}"
    offset = fault.offsets
    if number in marks:
        offset = f'<a href="#{marks[number]}" title="Show it in the picture">{offset or "show"}</a>'
    described = DESCRIBED.get(finding.check)
    meaning = f"Finds where {described.looks_for}" if described else ""
    place = places.of(finding)
    look = (
        ""
        if place is None
        else (f"{printable(str(place))} <code>{printable(place.command)}</code>")
    )
    cells = (
        ("Severity", "", _badge(finding.severity, finding.severity)),
        ("Check", f' title="{meaning}"', printable(finding.check) + _beside(fault)),
        ("Log", ' class="log"', log),
        ("Broker", ' class="broker"', brokers),
        ("Offset", ' class="offset"', offset),
        ("What is wrong", ' class="detail"', printable(finding.detail)),
        ("Where to look", ' class="look"', look),
    )
    said = "".join(
        f'<td data-label="{label}"{more}>{text}</td>'
        for label, more, text in cells
        if text or label
    )
    return (
        f'<tr id="f{number}" data-severity="{finding.severity}"'
        f' data-check="{printable(" ".join(fault.checks))}" data-topic="{topic}">{said}</tr>'
    )


def _beside(fault: Fault) -> str:
    """Return the other checks that found the same fault."""
    return f'<div class="role">also {printable(fault.others)}</div>' if fault.others else ""


def _unjudged(summary: Summary) -> str:
    if not summary.unjudged:
        return "<p>Everything that was asked for was judged.</p>"
    items = []
    for each in summary.unjudged:
        records = "" if each.records is None else f" ({plural(each.records, 'record')})"
        why = _badge(Severity.ERROR, "verdict held back") if each.holds_back else ""
        items.append(f"<li>{printable(str(each))}{records} {why}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _how(summary: Summary) -> str:
    notes = "".join(f"<li>{printable(note)}</li>" for note in summary.notes)
    sizes = summary.sizes
    rate = sizes.bytes / summary.seconds if summary.seconds else 0
    return (
        (f"<ul>{notes}</ul>" if notes else "")
        + f"<p>{plural(sizes.records, 'record')} in {sizes.batches:,} batches,"
        f" {in_bytes(sizes.bytes)}, read and judged in {summary.seconds:.1f} s"
        f" ({in_bytes(int(rate))} a second) by Spark on {printable(summary.master)}.</p>"
        + '<div class="columns">'
        + _table("Brokers", ("Broker", "State", "Logs", "Directory"), _broker_rows(summary))
        + _table("Checks", ("Check", "Findings", "Seconds", "Finds where"), _check_rows(summary))
        + _table("Time", ("Stage", "Seconds", ""), _stage_rows(summary))
        + _table("Read", ("Table", "From files of", "By"), _reading_rows(summary))
        + "</div>"
    )


def _broker_rows(summary: Summary) -> Iterator[Sequence[str]]:
    for seen in summary.brokers:
        path = f"<code>{printable(seen.path)}</code>"
        yield f"{seen.broker}", printable(seen.state), f"{seen.logs:,}", path


def _check_rows(summary: Summary) -> Iterator[Sequence[str]]:
    for run in summary.checks:
        count = sum(each.count for each in summary.counts if each.check == run.name)
        described = DESCRIBED.get(run.name)
        text = printable(described.looks_for if described else "")
        if run.not_run:
            text += f" <i>Not run: {printable(run.not_run)}.</i>"
        figures = ("not run", "") if run.not_run else (f"{count:,}", f"{run.seconds:.1f}")
        yield printable(run.name), *figures, text


def _stage_rows(summary: Summary) -> Iterator[Sequence[str]]:
    longest = max((stage.seconds for stage in summary.stages), default=0) or 1
    for stage in summary.stages:
        bar = f'<meter aria-hidden="true" max="{longest:.3f}" value="{stage.seconds:.3f}"></meter>'
        yield printable(stage.name), f"{stage.seconds:.1f}", bar


def _reading_rows(summary: Summary) -> Iterator[Sequence[str]]:
    for reading in summary.readings:
        yield printable(reading.table), in_bytes(reading.bytes), reading.reader


def _table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a small table; the texts are HTML already."""
    columns = "".join(f'<th scope="col">{header}</th>' for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<table class="small"><caption>{caption}</caption><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
