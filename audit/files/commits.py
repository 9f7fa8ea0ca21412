"""Records of the offsets topic: the offsets that groups have committed.

The bytes are Kafka's (its public message schemas OffsetCommitKey, OffsetCommitValue and
GroupMetadataKey); a key begins with a number that selects the schema. Brokers write them with code
of their own; this reader shares none of it.
"""

import struct
from typing import Final, NamedTuple

OFFSET_KEYS: Final = (0, 1)
GROUP_KEY: Final = 2
OFFSET_VALUES: Final = (0, 1, 2, 3)


class Commit(NamedTuple):
    """The commit in one record; `offset` is None if the record deletes the group's commit."""

    group: str
    topic: str
    partition: int
    offset: int | None


def read_commit(key: bytes | None, value: bytes | None) -> Commit | None:
    """Return the commit in a record; None if the record is about a group's members.

    Raises ValueError for bytes that are neither.
    """
    if key is None:
        raise ValueError("a record without a key")
    kind = _number(">h", key, 0)
    if kind == GROUP_KEY:
        return None
    if kind not in OFFSET_KEYS:
        raise ValueError(f"a key of kind {kind}")
    group, end = _text(key, 2)
    topic, end = _text(key, end)
    partition = _number(">i", key, end)
    if end + 4 != len(key):
        raise ValueError("a key with bytes behind its end")
    if value is None:
        return Commit(group, topic, partition, None)
    version = _number(">h", value, 0)
    if version not in OFFSET_VALUES:
        raise ValueError(f"an offset of version {version}")
    return Commit(group, topic, partition, _number(">q", value, 2))


def _number(form: str, data: bytes, position: int) -> int:
    try:
        number: int = struct.unpack_from(form, data, position)[0]
    except struct.error:
        raise ValueError(f"it ends within a number at byte {position}") from None
    return number


def _text(data: bytes, position: int) -> tuple[str, int]:
    begin = position + 2
    end = begin + _number(">h", data, position)
    if not begin <= end <= len(data):
        raise ValueError(f"a text of {end - begin} bytes at byte {position}")
    return data[begin:end].decode(), end
