"""Digests of ranges: equal for the same places in any order, and different for all others."""

import random
from itertools import permutations
from typing import Any, Final

import pyarrow as pa
import pytest

from minibroker.audit.files.digests import RANGE, digest_ledger, digest_records
from minibroker.audit.model import LEDGER, RECORDS

NUMBERS: Final = ("count", "places_xor", "places_sum", "offsets_xor", "first_offset", "last_offset")
LINE: Final[dict[str, Any]] = {"ledger": "l", "event": "acked", "topic": "t", "partition": 0}


def record(offset: int, value: bytes | None = b"v", key: bytes | None = None) -> dict[str, Any]:
    """A record of broker 1."""
    return {
        "broker": 1,
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "key": key,
        "value": value,
    }


def of_records(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Their digests."""
    return digest_records(pa.RecordBatch.from_pylist(list(rows), schema=RECORDS)).to_pylist()


def of_lines(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The digests of lines of a ledger."""
    lines = [LINE | {"line": number} | row for number, row in enumerate(rows, 1)]
    return digest_ledger(pa.RecordBatch.from_pylist(lines, schema=LEDGER)).to_pylist()


def numbers(digests: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What is compared of the only digest."""
    [digest] = digests
    return tuple(digest[name] for name in NUMBERS)


def test_the_order_does_not_matter() -> None:
    """Several producers' lines stand in another order than their records."""
    rows = [record(offset, str(offset).encode()) for offset in range(4)]
    assert len({numbers(of_records(*each)) for each in permutations(rows)}) == 1


@pytest.mark.parametrize(
    "other",
    [
        record(1, b"w"),
        record(1, b""),
        record(1, None),
        record(1, b"v", b""),
        record(1, b"v", b"v"),
        record(1, None, b"v"),
        record(2),
    ],
)
def test_another_record_has_another_digest(other: dict[str, Any]) -> None:
    """Null is not empty, and a key is no value."""
    digests = (numbers(of_records(record(0), each)) for each in (record(1), other))
    [(count, *mine), (_, *theirs)] = digests
    assert count == 2
    assert (mine[0] != theirs[0], mine[1] != theirs[1]) == (True, True)
    assert (mine[2] != theirs[2]) is (other["offset"] != 1)


def test_exchanged_values_are_seen() -> None:
    """Two records that changed their places."""
    mine = of_records(record(0, b"a"), record(1, b"b"))
    theirs = of_records(record(0, b"b"), record(1, b"a"))
    assert numbers(mine) != numbers(theirs)


def test_equal_places_do_not_cancel_each_other() -> None:
    """One that is told of twice is not the same as another one that is."""
    mine = of_records(record(0), record(1), record(1))
    theirs = of_records(record(0), record(2), record(2))
    [one], [other] = mine, theirs
    assert (one["count"], one["places_xor"]) == (other["count"], other["places_xor"])
    assert one["places_sum"] != other["places_sum"]


def test_a_digest_for_each_range_and_replica() -> None:
    """Also where the rows of several are mixed."""
    rows = [record(offset) | {"broker": broker} for offset in (0, RANGE) for broker in (1, 2)]
    random.Random(3).shuffle(rows)
    found = of_records(*rows, record(RANGE - 1))
    assert sorted((each["broker"], each["range"], each["count"]) for each in found) == [
        (1, 0, 2),
        (1, 1, 1),
        (2, 0, 1),
        (2, 1, 1),
    ]
    [first] = [each for each in found if (each["broker"], each["range"]) == (1, 0)]
    assert (first["first_offset"], first["last_offset"]) == (0, RANGE - 1)


def test_a_ledger_and_a_log_have_the_same_digest() -> None:
    """Of the same records."""
    rows = [record(offset, str(offset).encode()) for offset in range(9)]
    told = of_lines(*({name: row[name] for name in ("offset", "key", "value")} for row in rows))
    assert numbers(told) == numbers(of_records(*rows))


def test_lines_of_other_kinds_are_apart() -> None:
    """And what has no offset, which is of no range."""
    found = of_lines(
        {"offset": 1, "timestamp": 7},
        {"offset": 2, "timestamp": 5},
        {"offset": 2, "event": "shown", "group": "g"},
        {"offset": 2, "event": "shown", "group": "h"},
        {"offset": None, "event": "acked"},
        {"offset": None, "event": "failed", "partition": None},
        {"offset": 3, "topic_id": "i"},
    )
    counted = [(each["event"], each["group"], each["range"], each["count"]) for each in found]
    assert sorted(counted, key=str) == [
        ("acked", None, 0, 1),
        ("acked", None, 0, 2),
        ("acked", None, None, 1),
        ("failed", None, None, 1),
        ("shown", "g", 0, 1),
        ("shown", "h", 0, 1),
    ]
    [two] = [each for each in found if each["count"] == 2]
    assert (two["line"], two["began"], two["ended"]) == (1, 5, 7)
    [unplaced] = [each for each in found if each["event"] == "failed"]
    assert (unplaced["places_xor"], unplaced["first_offset"], unplaced["ended"]) == (0, None, None)


def test_no_rows_have_no_digests() -> None:
    """An empty chunk."""
    assert (of_records(), of_lines()) == ([], [])
