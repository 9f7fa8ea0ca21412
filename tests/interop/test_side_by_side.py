"""What Apache Kafka and minibroker say to the same requests (`tests/interop/side_by_side.py`)."""

from typing import Final, TypeAlias

import pytest

from tests.interop.client_programs import PROGRAMS, case_of
from tests.interop.foreign_process import NEEDS_JAVA
from tests.interop.known_differences import Difference, Row, fits, judge, rows
from tests.interop.side_by_side import (
    all_cases,
    differences,
    run_clients,
    run_conversations,
    versions_of,
)

CONVERSATIONS_MIN: Final = 300
VERSIONS_MIN: Final = 90  # of apis, that clients use
Compared: TypeAlias = tuple[int, list[Difference]]


@pytest.fixture(scope="module")
def conversations() -> Compared:
    """The conversations with both brokers."""
    return run_conversations()


@pytest.fixture(scope="module")
def clients() -> Compared:
    """The clients at both brokers."""
    return run_clients()


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


def test_each_row_of_the_page_names_conversations_or_clients_that_there_are() -> None:
    """And has a reason."""
    cases = [(case.api.name, case.name) for case in all_cases()]
    clients = [case_of(client) for client in PROGRAMS]
    for row in rows():
        assert row.why
        is_of_clients = any(fits(client, row.case) for client in clients)
        is_of_cases = any(fits(api, row.api) and fits(name, row.case) for api, name in cases)
        assert is_of_clients or is_of_cases, row


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
def test_the_page_explains_what_conversations_show(conversations: Compared) -> None:
    """`python -m tests.interop.side_by_side --show` shows each difference."""
    count, found = conversations
    assert count >= CONVERSATIONS_MIN
    assert judge(found, rows(), is_whole=False) == []


@pytest.mark.soak
@NEEDS_JAVA
def test_the_page_explains_what_clients_show(clients: Compared) -> None:
    """Which versions they use, and what they are answered."""
    count, found = clients
    assert count >= VERSIONS_MIN
    assert judge(found, rows(), is_whole=False) == []


@pytest.mark.soak
@NEEDS_JAVA
def test_each_row_of_the_page_has_a_difference(conversations: Compared, clients: Compared) -> None:
    """In a conversation, or of a client."""
    assert judge(conversations[1] + clients[1], rows()) == []
