"""The report as a file: what is in it, in which order, and that nothing else is needed to read it.

How it behaves in a browser is in tests/acceptance/test_report_browser.py.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from minibroker.audit.model import FINDINGS, Finding, Severity
from minibroker.audit.report.page import ROWS_MAX, page, read_findings, write_findings, write_report
from minibroker.audit.report.places import Places
from minibroker.audit.summary import (
    Committed,
    Lane,
    LedgerCounts,
    PartitionPicture,
    Summary,
    Unjudged,
    in_order,
)
from tests.unit.audit.report.test_groups import PLAIN
from tests.unit.audit.sample import NASTY, sample_findings, sample_partitions, sample_summary

VOID = {"meta", "input", "br", "rect", "path", "circle", "line"}


class Page(HTMLParser):
    """The ids, links and tags of a page; fails if tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def whole(findings: Sequence[Finding], partitions: Sequence[PartitionPicture] = ()) -> Page:
    """The page of an audit with these findings."""
    return Page(page(sample_summary(findings, partitions or [*sample_partitions()]), findings))


def test_the_page_is_sound_and_needs_nothing_else() -> None:
    """Tags are closed, ids are unique, and every link leads to a place in the page itself."""
    held = whole(sample_findings())
    assert len(held.ids) == len(set(held.ids))
    assert held.links
    assert all(link.startswith("#") for link in held.links)
    assert {link.removeprefix("#") for link in held.links} <= set(held.ids)
    assert held.tags.count("script") == 1
    assert not {"img", "link", "iframe", "object"} & set(held.tags)


def test_every_finding_is_in_the_table_and_those_of_a_log_in_the_picture() -> None:
    """Each row that can leads to a mark, and each mark to a row."""
    held = whole(sample_findings())
    rows = {f"f{number}" for number in range(len(sample_findings()))}
    assert rows <= set(held.ids)
    marks = {name for name in held.ids if re.match(r"p\d+-", name)}
    assert marks <= {link.removeprefix("#") for link in held.links}
    for finding in sample_findings():
        assert (finding.detail.split(";")[0] in held.text) or finding.detail == NASTY


def test_hostile_text_is_only_text() -> None:
    """A topic's name or a detail that came out of a damaged file changes nothing in the page."""
    harmless = whole([])
    held = whole([Finding("crc", Severity.ERROR, NASTY, 0, 1, offset=5, detail=NASTY)])
    assert held.tags.count("script") == harmless.tags.count("script")
    assert "<script>alert(1)</script>&\"'\\x00\\u202e\\udcff$verdict" in held.text
    assert "\x00" not in held.text
    assert "\u202e" not in held.text


def test_partitions_with_findings_come_first_and_sound_ones_are_folded() -> None:
    """The worst at the top; of hundreds without a finding only a few are listed singly."""
    text = page(sample_summary(sample_findings(), [*sample_partitions(300)]), sample_findings())
    names = re.findall(r"<summary><b>([a-z]+-\d+)</b>", text)
    assert names[:3] == ["orders-0", "orders-2", "payments-1"]
    assert len(names) == 304
    assert "more partitions without a finding</summary>" in text
    assert text.count('class="partition" open') == 4


def test_the_table_holds_the_worst_and_says_how_many_there_are() -> None:
    """Thousands of findings do not make a page that no browser likes."""
    few = [Finding("crc", Severity.ERROR, "orders", 0, 1, offset=n) for n in range(10)]
    many = [Finding("index", Severity.INFO, "orders", 0, 1, offset=n) for n in range(5000)]
    held = whole([*many, *few])
    assert len([name for name in held.ids if re.fullmatch(r"f\d+", name)]) == ROWS_MAX
    # The ten are of offsets that follow each other: one fault.
    assert "1,000 faults of 5,001, the worst first" in held.text
    assert "has all 5,010." in held.text
    assert all(f"{n}" in held.text for n in range(10))
    links = {link.removeprefix("#") for link in held.links}
    assert links <= set(held.ids)


def test_the_first_screen_answers_an_operator_and_then_come_groups_and_partitions() -> None:
    """Lost or one bad copy, of whom, what to do; the brokers' own topic comes after users'."""
    internal, users = (
        PartitionPicture(topic, 0, 0, 9, (Lane(1, "a"), Lane(2, "b")), 1, (1, 2), committed)
        for topic, committed in (("__consumer_offsets", ()), ("words", (Committed("g", 7),)))
    )
    found = [
        Finding("crc", Severity.ERROR, topic, 0, 2, offset=5) for topic in ("words", internal.topic)
    ]
    offset = replace(PLAIN, topic="words", committed=7, lag=2)
    summary = replace(sample_summary(found, [internal, users]), groups=(offset,), group_count=1)
    text = page(summary, found)
    places = [
        text.index(part)
        for part in (
            "Is anything lost?",
            "Which copies are bad?",
            "Broker 2: words-0, __consumer_offsets-0; whole on broker 1.",
            "<ol><li>",
            "mv b ELSEWHERE",
            'class="figures"',
            "<td>g1</td><td>words-0</td><td>7</td><td>2</td>",
            "<b>words-0</b>",
            "<b>__consumer_offsets-0</b>",
            '<tr id="f0"',
        )
    ]
    assert places == sorted(places)
    assert [each.topic for each in in_order(found)] == ["words", "__consumer_offsets"]


def test_one_bad_batch_is_one_row() -> None:
    """Whatever checks found it, each record of it, too; the marks lead there."""
    found = [
        Finding("crc", Severity.ERROR, "orders", 0, 2, None, 100, 0, 4096, detail="bad"),
        *(
            Finding("lost-write", Severity.ERROR, "orders", 0, 2, None, offset, 0, 4096)
            for offset in range(100, 145)
        ),
        Finding("crc", Severity.ERROR, "orders", 0, 3, None, 100, 0, 4096, detail="bad"),
    ]
    held = whole(found)
    assert [name for name in held.ids if re.fullmatch(r"f\d+", name)] == ["f0", "f1"]
    assert "100 to 144" in held.text
    assert "lost-writealso crc" not in held.text
    assert "also lost-write (44), crc" in held.text
    assert {link for link in held.links if re.match("#f\\d", link)} == {"#f0", "#f1"}


def test_records_on_one_copy_are_not_absent() -> None:
    """The figures tell those that some replicas have from those that none has."""
    summary = replace(sample_summary(), ledger=LedgerCounts(100, 90, 80, nowhere=3))
    text = Page(page(summary, [])).text
    for words in ("80 on every in-sync", "7 on some replicas only", "3 on no replica"):
        assert words in text
    assert "Yes: 3 acknowledged records, on no replica." in text


def test_who_left_the_isr_in_order_is_not_called_in_sync_beside_it() -> None:
    """The headline has the ISR of the metadata; the lanes say why the others count."""
    lanes = tuple(Lane(broker, "d", broker == 3, True, 0, 9) for broker in (1, 2, 3))
    picture = PartitionPicture("t", 0, 0, 9, lanes, 3, (3,))
    text = Page(page(sample_summary([], [picture]), [])).text
    assert "ISR 3 · complete when stopped: 1, 2" in text
    assert text.count("follower, complete when it stopped") == 2
    assert "follower, in sync" not in text
    assert "leader, in sync" in text


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (sample_summary(), "Clean: 401,172"),
        (Summary(started_at_ms=0), "No log was found."),
        (Summary(started_at_ms=0, failure="no space"), "The audit failed: no space."),
    ],
)
def test_any_summary_makes_a_page(summary: Summary, words: str) -> None:
    """Also one without logs, findings, ledger or times."""
    held = Page(page(summary, []))
    assert words in held.text
    assert "None." in held.text or summary.failure


def test_the_page_says_where_to_look(tmp_path: Path) -> None:
    """File, position and a command that can be pasted, by the check that found it."""
    summary = sample_summary([], [*sample_partitions()])
    places = Places(summary)
    told = [
        (finding.check, str(place), place.command)
        for finding in in_order(sample_findings())
        if (place := places.of(finding))
    ]
    dump = "minibroker log dump "
    orders = f"{dump}cluster/broker-"
    assert told[0] == (
        "divergence",
        "00000000000000040000.log at 1,048,576",
        f"{orders}2/orders-0/00000000000000040000.log",
    )
    assert told[1] == ("lost-write", "orders-0", f"{orders}2/orders-0")
    assert told[3] == ("checkpoint", "broker-3", f"{dump}cluster/broker-3")
    assert told[4][2].startswith(f"{dump}'cluster/broker-1/<script>")
    assert told[5][1] == "00000000000000040000.index"
    checkpoint = Finding("epoch-checkpoint", Severity.ERROR, "orders", 0, 1, None, 7, 0)
    assert str(places.of(checkpoint)) == "leader-epoch-checkpoint"
    listed = Finding("transaction-index", Severity.ERROR, "orders", 0, 1, None, 7, 0)
    assert str(places.of(listed)) == "00000000000000000000.txnindex"
    high_watermark = Finding("hw-beyond-leo", Severity.ERROR, "orders", 0, 1, None, 7)
    assert str(places.of(high_watermark)) == "replication-offset-checkpoint"
    assert places.of(Finding("duplicate", Severity.ERROR, "orders", 0)) is None
    assert places.of(Finding("crc", Severity.ERROR, "gone", 0, 1)) is None
    assert places.of(Finding("checkpoint", Severity.ERROR, broker=9)) is None


def test_where_no_check_saw_the_segment_the_names_say_it(tmp_path: Path) -> None:
    """That with the largest base offset up to the finding's; the directory where none can be."""
    for name in ("00000000000000000010.log", "00000000000000000020.log", "7.log"):
        (tmp_path / name).touch()
    picture = PartitionPicture("t", 0, 0, 30, (Lane(1, str(tmp_path)), Lane(2, "gone")))
    places = Places(Summary(started_at_ms=0, partitions=(picture,)))

    def file_of(check: str, offset: int | None, broker: int = 1, segment: int | None = None) -> str:
        place = places.of(Finding(check, Severity.ERROR, "t", 0, broker, None, offset, segment))
        assert place is not None
        assert place.position is None
        return place.path.name

    segments = [file_of("lost-write", offset) for offset in (10, 19, 20, 99)]
    assert segments == [f"{base:020d}.log" for base in (10, 10, 20, 20)]
    assert {file_of("unseen", offset) for offset in (9, None)} == {tmp_path.name}
    assert file_of("lost-write", 10, broker=2) == "gone"
    assert file_of("epoch-checkpoint", 10) == "leader-epoch-checkpoint"
    assert file_of("snapshot", 15, segment=15) == "00000000000000000015.snapshot"


def test_a_broker_that_nobody_knows_is_not_numbered() -> None:
    """What was not judged may be of no broker, -1, and has its place in words like everywhere."""
    unjudged = (
        Unjudged("the records are gone", True, "t", 0, -1, 7),
        Unjudged("it is not at hand", False, broker=3),
    )
    held = Page(page(replace(sample_summary(), unjudged=unjudged), []))
    assert "t-0: the records are gone (7 records) verdict held back" in held.text
    assert "broker 3: it is not at hand" in held.text
    assert "broker -1" not in held.text


def test_findings_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    """In the columns of the model; a lone surrogate, which Parquet cannot hold, is spelled out."""
    findings = sample_findings()
    path = write_findings(findings, tmp_path)
    assert pq.read_schema(path).equals(FINDINGS)
    back = read_findings(tmp_path)
    assert back[:-1] == findings[:-1]
    assert back[-1].detail == NASTY.replace("\udcff", "\\udcff")
    write_findings([], tmp_path)
    assert read_findings(tmp_path) == []


def test_the_report_is_one_file(tmp_path: Path) -> None:
    """Written whole, in UTF-8, and again over an older one."""
    findings = sample_findings()
    summary = sample_summary(findings, [*sample_partitions()])
    path = write_report(summary, findings, tmp_path)
    assert path == tmp_path / "report.html"
    write_report(summary, findings, tmp_path)
    assert path.read_text(encoding="utf-8") == page(summary, findings)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
