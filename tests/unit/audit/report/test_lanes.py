"""The picture of a partition: what is drawn where."""

import re
from xml.etree import ElementTree

import pytest

from minibroker.audit.model import Finding, Severity
from minibroker.audit.report.lanes import BINS, NARROW, Numbered, Scale, draw, printable
from minibroker.audit.summary import Committed, EpochSpan, Lane, PartitionPicture
from tests.unit.audit.sample import NASTY, sample_findings, sample_partitions

ERROR, WARNING, INFO = Severity


def drawn(partition: PartitionPicture, *findings: Finding) -> ElementTree.Element:
    """The picture as a tree, which it must be to be read."""
    numbered = [Numbered(number, finding) for number, finding in enumerate(findings)]
    return ElementTree.fromstring(draw("p0", partition, numbered).html)


def found(tree: ElementTree.Element, tag: str, css_class: str) -> list[ElementTree.Element]:
    """All elements of a tag and class."""
    return [each for each in tree.iter(tag) if css_class in each.get("class", "").split()]


def titles(tree: ElementTree.Element) -> list[str]:
    """What hovering tells."""
    return [each.text or "" for each in tree.iter("title")]


def one_lane(**more: object) -> PartitionPicture:
    """A log of offsets 100 to 199, in two epochs."""
    spans = (EpochSpan(4, 100, 150), EpochSpan(6, 150, 200))
    lane = Lane(1, "d", True, True, 100, 200, 180, spans)
    return PartitionPicture("t", 0, 100, 180, (lane,), 1, (1,), **more)  # type: ignore[arg-type]


def test_a_lane_shows_its_epochs_and_ends_where_they_are() -> None:
    """x is the share of the offsets that lie before."""
    tree = drawn(one_lane(committed=(Committed("g", 125),)))
    spans = [each for each in tree.iter("svg") if re.fullmatch(r"e\d", each.get("class", ""))]
    assert [(each.get("x"), each.get("width")) for each in spans] == [
        ("0.0%", "50.000%"),
        ("50.0%", "50.000%"),
    ]
    assert [each.get("x") for each in found(tree, "svg", "cap")] == ["0.0%", "100.0%"]
    assert [each.get("x") for each in found(tree, "svg", "flag")] == ["80.0%"]
    assert [each.get("x") for each in found(tree, "svg", "committed")] == ["25.0%"]
    assert found(tree, "rect", "judged")[0].get("width") == "80.000%"
    assert titles(tree) == [
        "Epoch 4: offsets 100 to 149",
        "Epoch 6: offsets 150 to 199",
        "log start 100",
        "log end (LEO) 200",
        "high watermark (HW) 180",
        "Judged: offsets 100 up to 180",
        "Committed by group g: 125",
    ]


def test_all_lanes_have_the_same_scale() -> None:
    """The same offset is at the same place on every replica, however long its log is."""
    lanes = tuple(Lane(broker, "d", None, None, 0, 100 * broker, 50) for broker in (1, 2, 4))
    tree = drawn(PartitionPicture("t", 0, 0, 50, lanes))
    assert [each.get("x") for each in found(tree, "svg", "flag")] == ["12.5%"] * 3
    assert [each.get("width") for each in found(tree, "rect", "bar")] == [
        "25.000%",
        "50.000%",
        "100.000%",
    ]


def test_the_first_error_of_a_lane_is_a_cut_and_others_are_marks() -> None:
    """The first by offset, not by order; each leads to its row in the table."""
    tree = drawn(
        one_lane(),
        Finding("crc", ERROR, "t", 0, 1, offset=190),
        Finding("divergence", ERROR, "t", 0, 1, offset=120),
        Finding("index", WARNING, "t", 0, 1, offset=110),
    )
    [cut] = [each for each in found(tree, "a", "error") if found(each, "path", "cut")]
    assert cut.get("href") == "#f1"
    assert [each.text for each in cut.iter("text")] == ["divergence at 120"]
    assert [each.get("href") for each in found(tree, "a", "mark")] == ["#f2", "#f1", "#f0"]


def test_findings_are_marked_in_the_lane_of_their_broker_and_else_below_all() -> None:
    """What is no single replica's, such as a duplicate, is on the axis; nothing is left out."""
    partition = next(sample_partitions())
    findings = [each for each in sample_findings() if (each.topic, each.partition) == ("orders", 0)]
    findings.append(Finding("duplicate", ERROR, "orders", 0, None, None, 7))
    findings.append(Finding("crc", ERROR, "orders", 0, 9, None, 70_000))
    numbered = [Numbered(number, finding) for number, finding in enumerate(findings)]
    marks = draw("p", partition, numbered).marks
    assert len(marks) == len(findings)
    assert {name.split("-")[1] for name in marks.values()} == {"2", "3", "all"}
    tree = drawn(partition, *findings)
    ids = [each.get("id") for each in found(tree, "a", "mark")]
    assert set(ids) == {mark.replace("p-", "p0-", 1) for mark in marks.values()}
    assert len(ids) == len(set(ids))


def test_many_findings_and_epochs_make_no_large_picture() -> None:
    """What falls on one spot is drawn once, and says how many it stands for."""
    spans = tuple(EpochSpan(number, 10 * number, 10 * number + 10) for number in range(10_000))
    lane = Lane(1, "d", True, True, 0, 100_000, 100_000, spans)
    partition = PartitionPicture("t", 0, 0, 100_000, (lane,))
    findings = [Finding("crc", ERROR, "t", 0, 1, offset=10 * n, detail="x") for n in range(10_000)]
    tree = drawn(partition, *findings)
    marks = found(tree, "a", "mark")
    assert len(marks) <= BINS + 1
    assert "and 99 more findings here" in titles(marks[3])[0]
    assert len(found(tree, "svg", "many")) <= 100 / NARROW
    assert titles(tree)[0] == "Epochs 0 to 39: offsets 0 to 399"


@pytest.mark.parametrize(
    "partition",
    [
        PartitionPicture("t", 0, None, None, ()),
        PartitionPicture("t", 0, None, None, (Lane(1, ""),)),
        PartitionPicture("t", 0, 0, 0, (Lane(1, "d", None, None, 0, 0, 0),)),
        PartitionPicture("t", 0, 9, 5, (Lane(1, "d", None, None, 7, 5, 1 << 62),)),
        PartitionPicture("t", 0, -5, -1, (Lane(1, "d", None, None, -9, -1, -1),)),
        PartitionPicture("t", 0, 0, 5, (Lane(1, "d", epochs=(EpochSpan(-1, 5, 2),)),)),
    ],
)
def test_any_numbers_make_a_picture(partition: PartitionPicture) -> None:
    """Empty logs, and what only a damaged file can say."""
    tree = drawn(
        partition,
        Finding("crc", ERROR, "t", 0, 1),
        Finding("crc", INFO, "t", 0, 1, offset=(1 << 63) - 1, detail=NASTY),
        Finding("crc", WARNING, "t", 0, offset=-1),
    )
    assert not [each for each in tree.iter() if each.get("width", "0").startswith("-")]
    assert not [each for each in tree.iter("svg") if each.get("x", "0").startswith("-")]
    assert len(found(tree, "a", "mark")) >= 2


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (0, 0, [0, 1]),
        (0, 4, [0, 1, 2, 3, 4]),
        (0, 80_000, [0, 20_000, 40_000, 60_000, 80_000]),
        (61_000, 61_300, [61_000, 61_100, 61_200, 61_300]),
    ],
)
def test_the_axis_has_few_round_numbers(lowest: int, highest: int, ticks: list[int]) -> None:
    """So that they do not run into each other in a small window."""
    assert [*Scale(lowest, highest).ticks()] == ticks


def test_no_text_can_become_markup() -> None:
    """Whatever a file held is shown, and does nothing."""
    assert "<script>" not in printable(NASTY)
    assert printable("<&\"'") == "&lt;&amp;&quot;&#x27;"
    assert printable("\x00\udcff") == "\\x00\\udcff"
