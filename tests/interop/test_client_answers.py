"""How the answers to real clients are compared (`client_answers.py`)."""

import base64
from typing import Any, Final

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import encode
from tests.interop.client_answers import PREFIX, Values, collect, differences, of_recording
from tests.interop.client_programs import compare_answers
from tests.interop.known_differences import Difference
from tests.unit.kafka.frames import header

CLIENT: Final = "Java"
NAME: Final = PREFIX + CLIENT


def values_of(*answers: Any) -> Values:
    """The values in some answers."""
    found: Values = {}
    for answer in answers:
        collect(answer, found)
    return found


def line(way: str, frame: bytes, connection: int = 1) -> str:
    """A line of a recording."""
    return f"{connection} {way} {base64.b64encode(frame).decode()}\n"


def asked(api: KafkaApi, version: int, number: int) -> str:
    """A line with a request."""
    return line(">", header(api.key, version, number))


def answered(api: KafkaApi, version: int, number: int, **fields: Any) -> str:
    """A line with an answer of a version that is not flexible."""
    parts = encode(api.response, version, api.response.make(**fields), is_flexible=False)
    return line("<", number.to_bytes(4, "big") + b"".join(parts))


def test_what_depends_on_time_does_not_count() -> None:
    """How often something was answered, how far numbers have risen, and in which order partitions
    came."""
    kafka = values_of(
        {"topics": {"t": {"partitions": {"0": {"high_watermark": 7, "records": "00ff"}}}}},
        {"topics": {"t": {"partitions": {"1": {"high_watermark": 0, "records": ""}}}}},
        {"members": {"an id": {"member_id": "an id", "generation_id": 3}}},
    )
    ours = values_of(
        {"topics": {"t": {"partitions": {"1": {"high_watermark": 9, "records": "00"}}}}},
        {"topics": {"t": {"partitions": {"1 (2)": {"high_watermark": 1, "records": "07"}}}}},
        {"topics": {"t": {"partitions": {"0": {"high_watermark": 1, "records": ""}}}}},
        {"members": {"another": {"member_id": "another", "generation_id": 4}}},
    )
    assert not [*differences(kafka, ours)]


def test_a_value_of_one_broker_alone_differs() -> None:
    """Null is not an empty text, and -1 is no offset. What only one broker has differs once, not
    also with all that is in it."""
    kafka = values_of(
        {"error_code": "none", "error_message": None, "offset": -1, "topics": {"t": {"id": 1}}},
        {"error_code": "not_controller", "error_message": None, "offset": 5, "topics": {}},
    )
    ours = values_of(
        {"error_code": "none", "error_message": "", "offset": 7, "topics": {}, "more": {"id": 1}}
    )
    assert [*differences(kafka, ours)] == [
        ("error_code", "not_controller", "none"),
        ("error_message", "null", "an empty text"),
        ("more", "-", "some"),
        ("offset", "-1", "a number"),
        ("topics", "some", "empty"),
        ("topics.t", "some", "-"),
    ]


def test_names_with_dots_are_fields_of_what_they_are_in() -> None:
    """A property that one broker has is found, whatever its name."""
    kafka = values_of({"configs": {"flush.ms": {"value": "1"}, "odd": {"value": "1"}}})
    ours = values_of({"configs": {"odd": {"value": "1"}}})
    assert [*differences(kafka, ours)] == [("configs.flush.ms", "some", "-")]


def test_a_recording_is_read() -> None:
    """By api and version. The program's name is `~`; what other programs have left is not there,
    nor an answer with an error that passes, nor one to a request of the program before."""
    topics = [{"name": f"{NAME}-t"}, {"name": f"{PREFIX}other-t"}]
    of = apis.METADATA.response.of("topics")
    passing = {"error_code": ErrorCode.NOT_COORDINATOR}
    found = of_recording(
        [
            answered(apis.HEARTBEAT, 0, 6),
            asked(apis.METADATA, 1, 7),
            asked(apis.HEARTBEAT, 0, 8),
            asked(apis.LEAVE_GROUP, 0, 9),
            answered(apis.HEARTBEAT, 0, 8, **passing),
            answered(apis.METADATA, 1, 7, topics=[of.make(**one) for one in topics]),
            answered(apis.LEAVE_GROUP, 0, 9),
        ],
        NAME,
    )
    assert found.keys() == {("Metadata", 1), ("Heartbeat", 0), ("LeaveGroup", 0)}
    assert found["Heartbeat", 0] == {}
    assert {path[1] for path in found["Metadata", 1] if path[:1] == ("topics",) and path[1:]} == {
        "~-t"
    }
    assert found["LeaveGroup", 0][("error_code",)] == {"none"}


def test_another_version_differs() -> None:
    """And so does an api that the client uses at one broker only."""
    kafka = {("Fetch", 12): values_of({}), ("Fetch", 13): values_of({})}
    ours = {("Fetch", 12): values_of({}), ("Produce", 3): values_of({})}
    case = f"the client {CLIENT}"
    assert [*compare_answers(CLIENT, kafka, ours)] == [
        Difference("Fetch", 12, case, "versions", "12, 13", "12"),
        Difference("Fetch", 13, case, "versions", "12, 13", "12"),
        Difference("Produce", 3, case, "versions", "-", "3"),
    ]


def test_when_records_come_is_no_difference() -> None:
    """A Fetch may have been answered before they were written; null is another thing."""
    found: Values = {}
    collect({"records": []}, found)
    others: Values = {}
    collect({"records": ["a batch"]}, others)
    assert [*differences(found, others)] == []
    none: Values = {}
    collect({"records": None}, none)
    assert [*differences(found, none)] == [("records", "some", "null")]
