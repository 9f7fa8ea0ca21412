"""A record as an application passes it: its types, checks and size."""

from typing import Final, TypeAlias, TypedDict

from minibroker.protocol.constants import BATCH_HEADER_BYTES, INT64_MAX
from minibroker.protocol.records.columns import Headers

# timestamp (ms; None: that of its batch), key, value, headers
RawRecord: TypeAlias = tuple[int | None, bytes | None, bytes | None, Headers]


class RecordOptions(TypedDict, total=False):
    """The options of a record beside topic, value and key.

    Without `partition` (None), the key decides, or the open batch. `timestamp_ms` counts from 1970;
    without it (None), the record gets the time at which its batch was opened.
    """

    headers: Headers
    partition: int | None
    timestamp_ms: int | None


# The size of a record beside key, value and headers: lengths, deltas and counts, usually.
RECORD_OVERHEAD_BYTES: Final = 12
HEADER_OVERHEAD_BYTES: Final = 6
# Beyond what `record_bytes` counts, for a record of any size in a batch of its own.
BATCH_OVERHEAD_BYTES_MAX: Final = BATCH_HEADER_BYTES + 32


def record_bytes(record: RawRecord) -> int:
    """Return about how many bytes a record takes in a batch."""
    _timestamp, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"") + HEADER_OVERHEAD_BYTES
    return size


def check_record(topic: str, record: RawRecord) -> RawRecord:
    """Return the record with bytes in place of bytes-like values. Raises `TypeError` for other
    types, and `ValueError` for a record that no batch can hold: it would harm the others of its
    batch."""
    timestamp_ms, key, value, headers = record
    if not isinstance(topic, str) or not topic:
        raise TypeError(f"a topic is a str that is not empty, not {topic!r}")
    topic.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    if timestamp_ms is not None:
        if type(timestamp_ms) is not int:
            raise TypeError(f"timestamp_ms is an int, not {type(timestamp_ms).__name__}")
        if not 0 <= timestamp_ms <= INT64_MAX:
            raise ValueError(f"timestamp_ms is 0 to {INT64_MAX}, not {timestamp_ms}")
    checked = []
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise TypeError(f"a header is a tuple (str, bytes), not {header!r}")
        name, content = header
        name.encode()
        checked.append((name, check_bytes(content, "a header")))
    return timestamp_ms, check_bytes(key, "a key"), check_bytes(value, "a value"), tuple(checked)


def check_options(options: RecordOptions) -> None:
    """Raise `TypeError` for an option that records do not have."""
    known = RecordOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"a record has no option {name!r}: it has {', '.join(known)}")


def check_bytes(content: object, what: str) -> bytes | None:
    """Return `content` as bytes, or None. Raises `TypeError` for other types."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    hint = "; encode it first, for instance with .encode()" if isinstance(content, str) else ""
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}{hint}")
