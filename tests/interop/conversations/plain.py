"""Answers as plain values, without what differs in each run.

That are ids that brokers make, addresses, times of the broker's clock, and the words of texts for
people.
"""

import dataclasses
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records.batch import read_header

# What differs in each run, by the names of fields: only whether there is a value counts.
MASKED: Final = frozenset(
    {
        "cluster_id",
        "documentation",
        "error_message",
        "batch_index_error_message",
        "host",
        "log_append_time",
        "log_dir",
        "port",
        "producer_id",
        "session_id",
        "last_timestamp",
        "total_bytes",
        "transaction_start_time_ms",
        "usable_bytes",
    }
)
# What tells the elements of an array apart. Their order means nothing.
NAMES: Final = (
    "name",
    "topic",
    "topic_name",
    "partition_index",
    "partition",
    "partition_id",
    "index",
    "topic_id",
    "group_id",
    "member_id",
    "key",
    "api_key",
    "resource_name",
    "transactional_id",
    "node_id",
    "broker_id",
)
MADE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Plainer:
    """Turns answers into dicts, lists and plain values, without what differs in each run.

    Arrays of structs become dicts by what tells their elements apart. The name of the conversation
    is written as `~`, and the ids of its topics as their names.
    """

    def __init__(self, name: str, topics: Mapping[uuid.UUID, str]) -> None:
        self._name = name
        self._topics = topics

    def plain(self, value: Any, name: str = "") -> Any:
        """Return the value of a field with this name."""
        if dataclasses.is_dataclass(value):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            return {key: self.plain(each, key) for key, each in fields.items()}
        if fields := getattr(value, "_fields", None):
            return {key: self.plain(getattr(value, key), key) for key in fields}
        if isinstance(value, tuple | list):
            elements = [self.plain(each, name) for each in value]
            if elements and isinstance(elements[0], dict):
                return _by_names(elements)
            return sorted(elements, key=str)
        if isinstance(value, uuid.UUID):
            return self._text(self._topics.get(value, "an id"))
        if name == "records" and value is not None:
            return [*batches(bytes(value))]
        if name == "error_code":
            return ErrorCode(value).name
        return masked(value) if name in MASKED else self._scalar(value)

    def _scalar(self, value: Any) -> Any:
        match value:
            case IntEnum():
                return value.name
            case timedelta():
                return round(value.total_seconds() * 1000)
            case datetime():
                return round(value.timestamp() * 1000)
            case bytes() | bytearray() | memoryview():
                return bytes(value).hex()
            case str():
                return self._text(value)
        return value

    def _text(self, value: str) -> str:
        return MADE_ID.sub("an id", value.replace(self._name, "~") if self._name else value)


def batches(data: bytes) -> Iterator[Any]:
    """Yield the batches in the records of an answer: their bytes. Of those with a producer the id
    does not count, which the broker has made, and of markers neither does the broker's time."""
    while len(data) >= BATCH_HEADER_BYTES:
        header = read_header(data)
        batch, data = data[: header.size], data[header.size :]
        if not header.has_producer:
            yield batch.hex()
            continue
        fields = header._asdict()
        of_run = {"crc", "producer_id"}
        if header.is_control:
            of_run |= {"base_timestamp", "max_timestamp"}
        plain = {name: value for name, value in fields.items() if name not in of_run}
        yield plain | {"payload": batch[BATCH_HEADER_BYTES:].hex()}
    if data:
        yield data.hex()


def masked(value: Any) -> str | None:
    """Whether there is a value."""
    return None if value in (None, "", -1, 0) or not value else "some"


def _by_names(elements: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for element in elements:
        names = [str(element[one]) for one in NAMES if one in element and element[one] is not None]
        label = "/".join(names[:2])
        number = 1
        while f"{label}{f' ({number})' if number > 1 else ''}" in found:
            number += 1
        found[f"{label}{f' ({number})' if number > 1 else ''}"] = element
    return found
