"""Records as lines of JSON, for `consume --format json` and `produce --format json`.

A line is an object with `topic`, `partition`, `offset`, `timestamp` (ms since 1970), `headers`,
`key` and `value`. Bytes that are UTF-8 are a text, other bytes `{"base64": ...}`, and null is
null. Headers are a list of pairs, because a name may occur twice. So `produce` stores what
`consume` has printed without any change, but for offsets.
"""

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from minibroker.protocol.constants import INT32_MAX, INT64_MAX
from minibroker.protocol.topic_names import is_topic_name

if TYPE_CHECKING:
    from minibroker.client import ConsumerRecord

Headers: TypeAlias = list[tuple[str, bytes | None]]

BASE64: Final = "base64"
FIELDS: Final = ("topic", "partition", "offset", "timestamp", "headers", "key", "value")
BYTES: Final = 'is a text, null, or {"base64": "..."} for bytes that are not UTF-8'


class InputRecord(NamedTuple):
    """A record to send; `topic` None: the line names none. `timestamp_ms` counts from 1970."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = []  # noqa: RUF012 - never changed
    topic: str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class InputError(ValueError):
    """A line that is no record; the text is for the user."""


def format_line(record: "ConsumerRecord") -> bytes:
    """Return a record as a line of JSON."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        "headers": [[name, _shown(content)] for name, content in record.headers],
        "key": _shown(record.key),
        "value": _shown(record.value),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _shown(data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: b64encode(data).decode()}


def parse_line(line: bytes) -> InputRecord:
    """Return the record of a line. Every field but `value` may be missing, and `offset` means
    nothing. Raises `InputError`."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        raise InputError(f"this is no JSON: {reason}") from None
    if not isinstance(fields, dict):
        raise InputError("a record is a JSON object: {...}")
    if unknown := sorted(fields.keys() - {*FIELDS}):
        raise InputError(f"a record has no field {unknown[0]!r}: it has {', '.join(FIELDS)}")
    if "value" not in fields:
        raise InputError("the record has no value; null is one")
    topic = fields.get("topic")
    if topic is not None and not (isinstance(topic, str) and is_topic_name(topic)):
        raise InputError(f"topic {_json(topic)} is no topic name")
    return InputRecord(
        _bytes(fields["value"], "value"),
        _bytes(fields.get("key"), "key"),
        _headers(fields.get("headers")),
        topic,
        _number(fields, "partition", INT32_MAX),
        _number(fields, "timestamp", INT64_MAX),
    )


def _bytes(given: object, what: str) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:  # one half of a pair, like "\ud800"
            raise InputError(f"{what} has half a character: {BYTES}") from None
    if isinstance(given, dict) and given.keys() == {BASE64} and isinstance(given[BASE64], str):
        try:
            return b64decode(given[BASE64], validate=True)
        except ValueError:
            raise InputError(f"{what}: {_json(given[BASE64])} is no base64") from None
    raise InputError(f"{what} {BYTES}, not {_json(given)}")


def _headers(given: object) -> Headers:
    if given is None:
        return []
    if not isinstance(given, list):
        raise InputError(f'headers are pairs, [["name", "value"], ...], not {_json(given)}')
    headers: Headers = []
    for pair in given:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InputError(f'a header is a pair, ["name", "value"], not {_json(pair)}')
        _bytes(pair[0], "a header's name")
        headers.append((pair[0], _bytes(pair[1], f"header {pair[0]!r}")))
    return headers


def _number(fields: dict[str, object], name: str, largest: int) -> int | None:
    number = fields.get(name)
    if number is None:
        return None
    if type(number) is not int or not 0 <= number <= largest:
        raise InputError(f"{name} is a number from 0 to {largest}, not {_json(number)}")
    return number


def _json(given: object) -> str:
    """Return the beginning of a value as JSON, in printable characters."""
    text = json.dumps(given)
    return text if len(text) <= 60 else f"{text[:60]}..."
