"""Kafka's messages as bytes: those of kio, of the public schemas, and of nobody (rows KAF)."""

import random
from collections.abc import Generator
from typing import Any

import pytest

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ELEMENTS_MAX, RESPONSE_BYTES_MAX
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import decode, decode_in_turns, encode, encode_in_turns
from minibroker.protocol.kafka.schema import Struct, parse
from tests.unit.kafka.values import VERSIONS, kio_bytes, kio_class, shape_of, value_of

# What kio lacks: the oldest versions of some.
NOT_IN_KIO = {
    ("Produce", 0),
    ("Produce", 1),
    ("Produce", 2),
    ("CreateTopics", 0),
    ("CreateTopics", 1),
    ("DeleteTopics", 0),
    ("DescribeAcls", 0),
    ("DescribeConfigs", 0),
}
ROUNDS = 25
ROUNDS_IN_TURNS = 5


def encoded(shape: Struct, version: int, value: Any, is_flexible: bool = False) -> bytes:
    """A value as bytes."""
    return b"".join(encode(shape, version, value, is_flexible=is_flexible))


def decoded(shape: Struct, version: int, data: bytes, is_flexible: bool = False) -> Any:
    """The value of bytes that hold nothing else."""
    value, end = decode(shape, version, memoryview(data), is_flexible=is_flexible)
    assert end == len(data)
    return value


def name_of(case: Any) -> str:
    """An api, a version or a direction in the name of a test."""
    return case.name if isinstance(case, KafkaApi) else str(case)


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS, ids=name_of)
def test_bytes_are_those_of_kio(api: KafkaApi, version: int, direction: str) -> None:
    """Random values: our bytes are kio's, and decode to what they were made from."""
    shape, kind = shape_of(api, direction), kio_class(api, version, direction)
    assert (kind is None) == ((api.name, version) in NOT_IN_KIO)
    is_flexible = api.is_flexible(version)
    for seed in range(ROUNDS):
        value = value_of(shape, version, random.Random(seed))
        data = encoded(shape, version, value, is_flexible)
        if kind is not None:
            assert data == kio_bytes(kind, shape, version, value), f"seed {seed}"
        assert decoded(shape, version, data, is_flexible) == value, f"seed {seed}"


def all_turns(generator: Generator[None, None, Any]) -> tuple[Any, int]:
    """The result of a generator, and how often it paused."""
    pauses = 0
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS, ids=name_of)
def test_in_turns_is_as_at_once(api: KafkaApi, version: int, direction: str) -> None:
    """The functions that pause make the same bytes and values of random values."""
    shape, is_flexible = shape_of(api, direction), api.is_flexible(version)
    for seed in range(ROUNDS_IN_TURNS):
        value = value_of(shape, version, random.Random(seed))
        data = encoded(shape, version, value, is_flexible)
        parts, _ = all_turns(encode_in_turns(shape, version, value, is_flexible=is_flexible))
        assert b"".join(parts) == data, f"seed {seed}"
        frame = memoryview(data)
        turns = decode_in_turns(shape, version, frame, 0, is_flexible=is_flexible)
        assert all_turns(turns)[0] == (value, len(data)), f"seed {seed}"


NESTED = parse("Nested", "topics[name:string partitions:[i32]]")


@pytest.mark.parametrize(
    ("topics", "partitions"), [(10_000, 1), (1, 15_000), (150, 100)], ids=["wide", "long", "both"]
)
def test_many_elements_take_turns(topics: int, partitions: int) -> None:
    """No more than twice `ELEMENTS_AT_ONCE` between two pauses, however they are nested."""
    value = NESTED.make([NESTED.of("topics").make("t", list(range(partitions)))] * topics)
    with pytest.raises(TooManyElements):
        encode(NESTED, 0, value, elements_max=ELEMENTS_AT_ONCE)
    parts, pauses = all_turns(encode_in_turns(NESTED, 0, value, is_flexible=False))
    elements = topics * (1 + partitions)
    assert pauses >= elements / (2 * ELEMENTS_AT_ONCE)
    frame = memoryview(b"".join(parts))
    with pytest.raises(TooManyElements):
        decode(NESTED, 0, frame, elements_max=ELEMENTS_AT_ONCE)
    (found, _), pauses = all_turns(decode_in_turns(NESTED, 0, frame, 0, is_flexible=False))
    assert found == value
    assert pauses >= elements / (2 * ELEMENTS_AT_ONCE)


def test_a_frame_has_a_limited_number_of_elements() -> None:
    """In turns, too; tagged fields count."""
    count = ELEMENTS_MAX + 1
    frame = memoryview(encoded(NESTED, 0, NESTED.make([("", [])] * count)))
    with pytest.raises(TooManyElements):
        all_turns(decode_in_turns(NESTED, 0, frame, 0, is_flexible=False))
    empty = parse("Empty", "")
    tags = b"\xff\xff\xff\xff\x0f" + bytes(2 * 10**6)
    with pytest.raises(TooManyElements):
        decode(empty, 0, memoryview(tags), is_flexible=True)


def test_a_response_has_a_limited_size() -> None:
    """It is given up before it is whole."""
    text = "x" * 30_000
    topics = [NESTED.of("topics").make(text, [])] * (RESPONSE_BYTES_MAX // len(text) + 1)
    with pytest.raises(ProtocolError, match="a response may have"):
        all_turns(encode_in_turns(NESTED, 0, NESTED.make(topics), is_flexible=False))


def test_a_text_has_a_limited_size_in_flexible_versions() -> None:
    """As in the others, where its length has 16 bits."""
    shape = parse("Text", "text:string")
    data = b"\x81\x80\x02" + b"x" * 32_768 + b"\0"
    with pytest.raises(ProtocolError, match="a text of 32768 bytes"):
        decode(shape, 0, memoryview(data), is_flexible=True)


# Written by hand from the public schemas, for the versions that kio lacks.
BY_HAND = [
    ("Produce", 0, "request", "0001 00000064 00000001 0001 74 00000001 00000002 00000003 616263"),
    ("Produce", 2, "request", "0001 00000064 00000001 0001 74 00000001 00000002 00000003 616263"),
    ("Produce", 0, "response", "00000001 0001 74 00000001 00000002 0003 0000000000000005"),
    (
        "Produce",
        2,
        "response",
        "00000001 0001 74 00000001 00000002 0003 0000000000000005 ffffffffffffffff 00000000",
    ),
    (
        "CreateTopics",
        0,
        "request",
        "00000001 0001 74 00000002 0003 00000001 00000000 00000001 00000007"
        "00000001 0001 6b 0001 76 000003e8",
    ),
    (
        "CreateTopics",
        1,
        "request",
        "00000001 0001 74 00000002 0003 00000001 00000000 00000001 00000007"
        "00000001 0001 6b 0001 76 000003e8 01",
    ),
    ("CreateTopics", 0, "response", "00000001 0001 74 0024"),
    ("CreateTopics", 1, "response", "00000001 0001 74 0024 ffff"),
    ("DeleteTopics", 0, "request", "00000001 0001 74 000003e8"),
    ("DeleteTopics", 0, "response", "00000001 0001 74 0003"),
    ("DescribeAcls", 0, "request", "02 0001 74 ffff ffff 01 01"),
    (
        "DescribeAcls",
        0,
        "response",
        "00000000 0000 ffff 00000001 02 0001 74 00000001 0001 75 0001 2a 03 03",
    ),
    ("DescribeConfigs", 0, "request", "00000001 02 0001 74 00000001 0001 6b"),
    (
        "DescribeConfigs",
        0,
        "response",
        "00000000 00000001 0000 ffff 02 0001 74 00000001 0001 6b 0001 76 00 01 00",
    ),
]


@pytest.mark.parametrize(("name", "version", "direction", "spelled"), BY_HAND)
def test_old_versions_are_as_the_schemas_say(
    name: str, version: int, direction: str, spelled: str
) -> None:
    """Bytes that were written down decode, and come back the same."""
    (api,) = {api.key: api for api, _, _ in VERSIONS if api.name == name}.values()
    data = bytes.fromhex(spelled.replace(" ", ""))
    shape = shape_of(api, direction)
    value = decoded(shape, version, data)
    assert encoded(shape, version, value) == data
    assert "'t'" in str(value)


REFUSED = {
    "an array longer than its frame": ("names:[string]", "7fffffff"),
    "an array of negative length": ("names:[string]", "fffffffe"),
    "null where none may be": ("names:[string]", "ffffffff"),
    "a text longer than its frame": ("name:string", "0010 61"),
    "a text of negative length": ("name:string", "fffe"),
    "null for a text": ("name:string", "ffff"),
    "a text that is none": ("name:string", "0001 ff"),
    "bytes longer than their frame": ("data:bytes", "7fffffff 00"),
    "records longer than their frame": ("data:records?", "00000002 00"),
    "null for bytes": ("data:bytes", "ffffffff"),
    "a number cut short": ("one:i32 two:i64", "00000000 000000"),
    "nothing": ("one:i8", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_message_is_refused(case: str) -> None:
    """Lengths that lie, and values that cannot be, are `ProtocolError` and nothing else."""
    text, spelled = REFUSED[case]
    data = memoryview(bytes.fromhex(spelled.replace(" ", "")))
    with pytest.raises(ProtocolError):
        decode(parse("Sample", text), 0, data)


def test_a_frame_has_so_many_elements_and_no_more() -> None:
    """Elements are counted over all arrays of a frame: each costs more memory than bytes."""
    shape = parse("Sample", "rows[cells:[i8]]")
    row = encoded(shape.of("rows"), 0, shape.of("rows").make([0] * 999))
    many = ELEMENTS_MAX // 1000
    decoded(shape, 0, many.to_bytes(4, "big") + row * many)
    with pytest.raises(ProtocolError, match="elements"):
        decoded(shape, 0, (many + 1).to_bytes(4, "big") + row * (many + 1))


def test_a_text_too_long_for_the_wire_is_not_sent() -> None:
    """A length of two bytes with a sign: 32767 bytes are sent, one more is an error."""
    shape = parse("Sample", "name:string")
    assert decoded(shape, 0, encoded(shape, 0, shape.make("x" * 32767))).name == "x" * 32767
    with pytest.raises(ProtocolError, match="can travel"):
        encoded(shape, 0, shape.make("x" * 32768))


def test_tagged_fields_are_passed_over() -> None:
    """In a flexible version: tags at the end of each struct, known to nobody here."""
    shape = parse("Sample", "rows[name:string]")
    plain = encoded(shape, 0, shape.make([("a",), ("b",)]), True)
    assert plain == bytes.fromhex("03 0261 00 0262 00 00".replace(" ", ""))
    tagged = bytes.fromhex("03 0261 02 00 0178 8001 00 0262 00 01 05 02abcd".replace(" ", ""))
    assert [row.name for row in decoded(shape, 0, tagged, True).rows] == ["a", "b"]


TAGGED = parse("Tagged", "id:i8 1+epoch#0{number:i32=-1} 1+names#2[name:string] 1+code#3:i16")


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (TAGGED.make(5), "05 00"),
        (TAGGED.make(5, None, [], 3), "05 01 03020003"),
        (TAGGED.make(5, (7,), [("a",)], 0), "05 02 0005 0000000700 0204 02026100"),
        (TAGGED.make(5, (7,), [], 3), "05 02 0005 0000000700 03020003"),
    ],
)
def test_tagged_fields_are_left_out_where_they_say_nothing(value: Any, spelled: str) -> None:
    """In the order of their tags, each behind its size; unknown ones among them are skipped."""
    data = bytes.fromhex(spelled.replace(" ", ""))
    assert encoded(TAGGED, 1, value, True) == data
    found = decoded(TAGGED, 1, data, True)
    assert (found.id, found.epoch, [*found.names], found.code) == (
        value.id,
        value.epoch,
        [*value.names],
        value.code,
    )
    more = data[:1] + bytes([data[1] + 1]) + data[2:] + bytes.fromhex("0702ffff")
    assert decoded(TAGGED, 1, more, True) == found
    with pytest.raises(ProtocolError):
        decoded(TAGGED, 1, more[:-1], True)
    assert encoded(TAGGED, 0, value, False) == b"\x05"


def test_a_struct_may_be_null() -> None:
    """A byte says whether it is there."""
    shape = parse("Sample", "cursor?{name:string} after:i8")
    for value, spelled in ((None, "ff07"), (("a",), "0100016107")):
        data = bytes.fromhex(spelled)
        assert encoded(shape, 0, shape.make(value, 7)) == data
        assert decoded(shape, 0, data) == shape.make(value, 7)


def test_records_stay_apart_and_are_not_copied() -> None:
    """What is decoded is a view of the frame; what is encoded is the object that was given."""
    shape = parse("Sample", "before:i8 data:records? after:i8")
    frame = memoryview(bytes.fromhex("01 00000003 616263 02".replace(" ", "")))
    value, _ = decode(shape, 0, frame)
    assert value.data.obj is frame.obj
    blob = b"xyz"
    parts = encode(shape, 0, shape.make(1, [blob, blob], 2))
    assert [bytes(part) for part in parts] == [b"\x01\0\0\0\x06", blob, blob, b"\x02"]
    assert parts[1] is blob
