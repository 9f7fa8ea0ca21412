"""What a client's program was answered at two brokers, compared.

A client does not send the same requests in the same order twice: it asks again until a leader is
there, and fetches as often as there is time. So not answers are compared, but the values that a
field has in all answers of an api and version to one program. How often a value was seen, and
when, does not count.

A value that was seen at one broker only is a difference, except for what depends on time alone:

* An answer with an error that passes, such as that of a coordinator that loads, is left out as a
  whole.
* Offsets, epochs and generations count as a number, or as the one below 0 that says there is none.
* Of bytes, ids, and what `Talk` masks, only whether there are some counts.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from kio.index import load_response_schema
from kio.serial import entity_reader

from minibroker.protocol.kafka.schema import Version
from tests.interop.conversations.plain import Plainer
from tests.interop.known_differences import NOTHING, shown

# The names of a field and of what it is in, from the outside to the inside.
FieldPath: TypeAlias = tuple[str, ...]
Values: TypeAlias = dict[FieldPath, set[str]]
# By the name of an api and the version.
Answers: TypeAlias = dict[tuple[str, Version], Values]

# The names of each program's topics and groups begin with this and the client's name.
PREFIX: Final = "client-"
# A client that gets one of these asks again.
PASSING_ERRORS: Final = frozenset(
    {
        "coordinator_load_in_progress",
        "coordinator_not_available",
        "leader_not_available",
        "not_coordinator",
        "rebalance_in_progress",
    }
)
NUMBERS: Final = frozenset(
    {
        "assignment_epoch",
        "base_offset",
        "committed_offset",
        "finalized_features_epoch",
        "generation_id",
        "group_epoch",
        "high_watermark",
        "index",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "low_watermark",
        "member_epoch",
        "offset",
        "partition_index",
        "partition_size",
        "timestamp",
    }
)
BYTES_AND_IDS: Final = frozenset(
    {"assignment", "client_id", "leader", "member_assignment", "member_id", "metadata"}
)


def of_recording(lines: Iterable[str], name: str) -> Answers:
    """Return what was answered in a recording (`record.py`) of a program with this name."""
    asked: dict[tuple[str, bytes], tuple[int, Version]] = {}
    found: Answers = {}
    for line in lines:
        connection, way, data = line.split()
        frame = base64.b64decode(data)
        if way == ">":
            key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
            asked[connection, frame[4:8]] = key, version
            continue
        if (connection, frame[:4]) not in asked:
            continue  # the request was one of the program before
        key, version = asked.pop((connection, frame[:4]))
        api, answer = decoded(key, version, frame, name)
        values = found.setdefault((api, version), {})
        if not has_passing_error(answer):
            collect(answer, values)
    return found


def decoded(key: int, version: Version, frame: bytes, name: str) -> tuple[str, Any]:
    """Return the name of an answer's api, and its plain values, with `~` for the name of the
    program."""
    kind = load_response_schema(key, version)
    _, start = entity_reader(kind.__header_schema__)(frame, 0)
    answer, _ = entity_reader(kind)(frame, start)
    return kind.__name__.removesuffix("Response"), Plainer(name, {}).plain(answer)


def has_passing_error(value: Any) -> bool:
    """Return whether there is such an error anywhere in an answer."""
    if not isinstance(value, dict):
        return False
    return value.get("error_code") in PASSING_ERRORS or any(map(has_passing_error, value.values()))


def collect(value: Any, values: Values, path: FieldPath = ()) -> None:
    """Add the values of a field, which may be a struct or an array of structs."""
    values.setdefault(path, set()).add(counting(path[-1] if path else "", value))
    if not isinstance(value, dict):
        return
    for label, each in value.items():
        part = label.partition(" (")[0].partition("/")[0]
        if part.startswith(PREFIX):
            continue  # another program has left it
        collect(each, values, path if is_one_of_many(part, each) else (*path, part))


def is_one_of_many(label: str, element: Any) -> bool:
    """Return whether an element of an array counts like the others, whatever it is called: the
    partitions of a topic are alike, and so are the members of a group."""
    return not label or label.isdecimal() or (isinstance(element, dict) and "member_id" in element)


def counting(name: str, value: Any) -> str:
    """Return what of a field's value counts, as a text. Records may be there at a client's first
    Fetch or not: that is chance."""
    if name == "records" and value is not None:
        return "some"
    if name in BYTES_AND_IDS and value:
        return "some"
    if name in NUMBERS and value is not None and int(value) >= 0:
        return "a number"
    return shown(value)


def differences(kafka: Values, ours: Values) -> Iterator[tuple[str, str, str]]:
    """Yield the fields with values that only one broker has answered with, and those values. For a
    broker that has none of its own, all its values stand."""
    for path in sorted(kafka | ours):
        if path[:-1] in kafka and path[:-1] in ours:  # else what the field is in differs
            theirs, mine = kafka.get(path, {NOTHING}), ours.get(path, {NOTHING})
            if theirs != mine:
                values = text_of(theirs - mine or theirs), text_of(mine - theirs or mine)
                yield ".".join(path), *values


def text_of(values: Iterable[str]) -> str:
    """Return values in one text."""
    return shown(", ".join(sorted(values)))


def versions(answers: Mapping[tuple[str, Version], object], api: str) -> str:
    """Return the versions of an api, as a text."""
    found = sorted(version for name, version in answers if name == api)
    return ", ".join(map(str, found)) or NOTHING
