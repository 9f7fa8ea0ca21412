"""Records as lines of JSON: what is printed can be sent again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.cli.data.json_lines import InputError, InputRecord, format_line, parse_line
from minibroker.client import ConsumerRecord

DATA = st.none() | st.binary(max_size=20) | st.text(max_size=9).map(str.encode)
RECORDS = st.builds(
    ConsumerRecord,
    st.just("t"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    DATA,
    DATA,
    st.lists(st.tuples(st.text(max_size=9), DATA), max_size=3),
)


@given(RECORDS)
def test_a_record_comes_back_as_it_was(record: ConsumerRecord) -> None:
    """Any bytes, headers of one name too, nulls and times; in one line of UTF-8."""
    line = format_line(record)
    assert line.count(b"\n") == 1
    assert parse_line(line) == InputRecord(
        record.value,
        record.key,
        record.headers,
        record.topic,
        record.partition,
        record.timestamp,
    )


def test_the_shape_is_that_of_the_page() -> None:
    """Texts are legible, and a record without a time has none."""
    headers = [("a", b"1"), ("b", None)]
    line = format_line(ConsumerRecord("t", 0, 7, -1, None, "é\n".encode() + b"\xff", headers))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 0,
        "offset": 7,
        "timestamp": None,
        "headers": [["a", "1"], ["b", None]],
        "key": None,
        "value": {"base64": "w6kK/w=="},
    }
    assert "é".encode() in format_line(ConsumerRecord("t", 0, 7, 1, "é".encode(), b"", []))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "this is no JSON"),
        (b"plain text", "this is no JSON"),
        (b"\xff", "this is no JSON"),
        (b"[" * 100_000, "this is no JSON"),
        (b"[]", "a record is a JSON object"),
        (b"{}", "the record has no value"),
        (b'{"value": "v", "payload": 1}', "no field 'payload'"),
        (b'{"value": 7}', "value is a text, null, or"),
        (b'{"value": {"base64": "%%"}}', "value: .* is no base64"),
        (b'{"value": {"base64": 1}}', "value is a text, null, or"),
        (b'{"value": "\\ud800"}', "value has half a character"),
        (b'{"value": "v", "key": [1]}', "key is a text, null, or"),
        (b'{"value": "v", "topic": "a b"}', "is no topic name"),
        (b'{"value": "v", "topic": 1}', "is no topic name"),
        (b'{"value": "v", "partition": -1}', "partition is a number from 0"),
        (b'{"value": "v", "partition": true}', "partition is a number from 0"),
        (b'{"value": "v", "timestamp": 1.5}', "timestamp is a number from 0"),
        (b'{"value": "v", "timestamp": 9223372036854775808}', "timestamp is a number from 0"),
        (b'{"value": "v", "timestamp": ' + b"9" * 5000 + b"}", "this is no JSON"),
        (b'{"value": "v", "headers": {"a": "1"}}', "headers are pairs"),
        (b'{"value": "v", "headers": [["a"]]}', "a header is a pair"),
        (b'{"value": "v", "headers": [["a", 1]]}', "header 'a' is a text, null, or"),
        (b'{"value": "v", "headers": [["\\ud800", "1"]]}', "name has half a character"),
    ],
)
def test_other_lines_are_refused(line: bytes, says: str) -> None:
    """One printable line says what is wrong; nothing is guessed."""
    with pytest.raises(InputError, match=says) as raised:
        parse_line(line)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250
