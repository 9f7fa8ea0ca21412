"""What Apache Kafka and minibroker say to the same requests (`tests/interop/side_by_side.py`)."""

import pytest

from tests.interop.foreign_process import NEEDS_JAVA
from tests.interop.side_by_side import (
    Difference,
    Row,
    all_cases,
    differences,
    fits,
    judge,
    rows,
    run,
    versions_of,
)

CONVERSATIONS_MIN = 300


def test_fields_that_differ_are_found() -> None:
    """At any depth, also those that only one of both has; order and equal fields do not count."""
    kafka = [{"error": 3, "topics": {"t": {"id": 1, "name": "t"}, "u": {}}, "ids": [1, 2]}]
    ours = [{"topics": {"t": {"id": None, "name": "t"}}, "error": 3, "ids": [1, 3], "more": ""}]
    assert [*differences(kafka, ours)] == [
        ("0.topics.t.id", "1", "null"),
        ("0.topics.u", "empty", "-"),
        ("0.ids.1", "2", "3"),
        ("0.more", "-", "an empty text"),
    ]
    assert next(iter(differences(kafka, [*ours, "closed"])))[0] == "all"
    assert not [*differences(kafka, kafka)]


def test_the_page_and_what_differs_are_compared_both_ways() -> None:
    """A difference needs a row with its values, and a row a difference."""
    one = Difference("Fetch", 4, "an offset", "0.error", "none", "fenced")
    other = one._replace(ours="unknown")
    row = Row("Fetch; Produce", "an *", "*error", "none", "fenced", "because")
    assert judge([one], [row]) == []
    assert judge([one, other], [row]) == [str(other)]
    other_row = row._replace(api="Metadata")
    assert judge([one], [row, other_row]) == [f"no difference any more: {other_row}"]
    assert judge([one], [row, other_row], is_whole=False) == []


def test_each_row_of_the_page_names_conversations_that_there_are() -> None:
    """And has a reason."""
    cases = [(case.api.name, case.name) for case in all_cases()]
    for row in rows():
        assert row.why
        assert any(fits(api, row.api) and fits(name, row.case) for api, name in cases), row


def test_a_case_is_held_in_three_versions() -> None:
    """The lowest, one in the middle and the highest that both serve; from the case's first one."""
    case = next(all_cases())
    key = case.api.key
    assert versions_of(case._replace(since=0), {key: (2, 8)}) == [2, 5, 8]
    assert versions_of(case._replace(since=7), {key: (2, 8)}) == [7, 8]
    assert versions_of(case._replace(since=9), {key: (2, 8)}) == []
    assert versions_of(case, {}) == []


@pytest.mark.soak
@NEEDS_JAVA
def test_what_differs_from_apache_kafka_is_what_the_page_says() -> None:
    """`python -m tests.interop.side_by_side --show` shows each difference."""
    count, found = run()
    assert count >= CONVERSATIONS_MIN
    assert judge(found, rows()) == []
