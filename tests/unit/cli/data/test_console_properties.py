"""The properties of Kafka's console consumer and producer."""

import pytest

from minibroker.cli.data.console_properties import compile_properties, line_parser
from minibroker.cli.data.formats import FormatError
from minibroker.cli.data.json_lines import InputError, InputRecord
from minibroker.client import ConsumerRecord

RECORD = ConsumerRecord("t", 3, 17, 1700, b"k", b"value", [("a", b"1"), ("b", None)])
ALL = dict.fromkeys(
    ("print.timestamp", "print.partition", "print.offset", "print.headers", "print.key"), "true"
)


@pytest.mark.parametrize(
    ("properties", "record", "expected"),
    [
        ({"print.key": "true"}, RECORD, b"k\tvalue\n"),
        ({"print.key": "true", "print.value": "false", "key.separator": "%"}, RECORD, b"k\n"),
        (ALL, RECORD, b"CreateTime:1700\tPartition:3\tOffset:17\ta:1,b:null\tk\tvalue\n"),
        (
            ALL | {"key.separator": "|", "headers.separator": ";", "null.literal": "NIL"},
            RECORD._replace(key=None, value=None),
            b"CreateTime:1700|Partition:3|Offset:17|a:1;b:NIL|NIL|NIL\n",
        ),
        (
            ALL | {"line.separator": r"\n\n"},
            RECORD._replace(topic="appended", timestamp=7, headers=[]),
            b"LogAppendTime:7\tPartition:3\tOffset:17\tNO_HEADERS\tk\tvalue\n\n",
        ),
        (
            {"print.timestamp": "TRUE"},
            RECORD._replace(timestamp=-1),
            b"NO_TIMESTAMP\tvalue\n",
        ),
    ],
)
def test_records_are_printed_as_by_the_console_consumer(
    properties: dict[str, str], record: ConsumerRecord, expected: bytes
) -> None:
    """Kafka's columns, in Kafka's order, with its words for what is missing."""
    assert compile_properties(properties, ["appended"])(record) == expected


@pytest.mark.parametrize(
    ("properties", "line", "expected"),
    [
        ({}, b"a:b\tc", InputRecord(b"a:b\tc")),
        ({"parse.key": "true"}, b"k\tv\tw", InputRecord(b"v\tw", b"k")),
        ({"parse.key": "true", "key.separator": "::"}, b"k::v", InputRecord(b"v", b"k")),
        (
            {"parse.key": "true", "parse.headers": "true"},
            b"a:1,b:x:y\tk\tv",
            InputRecord(b"v", b"k", [("a", b"1"), ("b", b"x:y")]),
        ),
        (
            {"parse.key": "true", "parse.headers": "true", "null.marker": "NIL"},
            b"NIL\tNIL\tNIL",
            InputRecord(None),
        ),
        (
            {"parse.headers": "true", "null.marker": "NIL"},
            b"a:NIL\tv",
            InputRecord(b"v", None, [("a", None)]),
        ),
        (
            {"parse.key": "true", "parse.headers": "true", "ignore.error": "true"},
            b"neither",
            InputRecord(b"neither"),
        ),
    ],
)
def test_lines_are_read_as_by_the_console_producer(
    properties: dict[str, str], line: bytes, expected: InputRecord
) -> None:
    """`HEADERS KEY VALUE`, with Kafka's separators."""
    assert line_parser(properties).parse(line) == expected


@pytest.mark.parametrize(
    ("properties", "line", "says"),
    [
        ({"parse.key": "true"}, b"no key", r"no key\.separator '\\t' in it; ignore\.error=true"),
        ({"parse.headers": "true"}, b"a:1 v", r"no headers\.delimiter"),
        ({"parse.headers": "true"}, b"a\tv", r"no headers\.key\.separator ':'"),
        ({"parse.headers": "true"}, b"\xff:1\tv", "name is not UTF-8"),
    ],
)
def test_a_line_without_a_separator_is_refused(
    properties: dict[str, str], line: bytes, says: str
) -> None:
    """It is not sent as something else than it is."""
    with pytest.raises(InputError, match=says):
        line_parser(properties).parse(line)


def test_unknown_properties_are_named() -> None:
    """Before anything is read or sent."""
    for make, name in ((compile_properties, "print.kee"), (line_parser, "parse.kee")):
        with pytest.raises(FormatError, match=name.replace(".", r"\.")):
            make({name: "true"})
    with pytest.raises(FormatError, match="true or false, not 'maybe'"):
        compile_properties({"print.key": "maybe"})
    with pytest.raises(FormatError, match="true or false, not 'maybe'"):
        line_parser({"parse.key": "maybe"})
    with pytest.raises(FormatError, match=r"key\.separator is empty"):
        line_parser({"parse.key": "true", "key.separator": ""})
