"""The cluster's metadata: the replicas, leader and in-sync set of each partition.

They are read from the output of `minibroker cluster export`, JSON of version 1. A file that is not
an export, or lacks a field, is refused as a whole, and the error says where: with half an
assignment the audit would call replicas clean that it never looked for. Unused fields are ignored,
so a later export may have more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.protocol.constants import INT32_MAX, INT64_MAX
from minibroker.protocol.types import TopicPartition

VERSION: Final = 1
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
DELETE_RETENTION_MS: Final = "delete.retention.ms"

_T = TypeVar("_T")


class InvalidExport(Exception):
    """The input is not an export of a cluster's metadata; the text says why."""


class Left(NamedTuple):
    """The last epoch and end of a log when its broker stopped in order."""

    last_epoch: int
    log_end: int


class Admitted(NamedTuple):
    """A broker's data directory and how often it had been started when it was last admitted."""

    directory_id: str
    run: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition's entry in the metadata; `leader` is -1 if there is none.

    `unsafe` are the members of the ISR that may have lost the end of their logs. `topic_id` is hex.
    `left`: by broker, for brokers that stopped in order and have not come back; exports of older
    versions have none. `delete_retention_ms` is None unless it was set for the topic.
    """

    topic_id: str
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    unsafe: tuple[int, ...] = ()
    is_compacted: bool = False
    left: Mapping[int, Left] = field(default_factory=dict)
    delete_retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The metadata of a cluster, exported at a time (ms)."""

    cluster_id: str
    exported_at_ms: int
    topic_ids: Mapping[str, str]  # by name
    assignments: Mapping[TopicPartition, Assignment]
    deleted_ids: frozenset[str]  # of deleted topics whose logs may still exist
    admitted: Mapping[int, Admitted] = field(default_factory=dict)  # none in older exports


def read_cluster(text: str | bytes) -> Cluster:
    """Parse an exported cluster from its text. Raises InvalidExport."""
    try:
        exported = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidExport(f"it is no JSON: {error}") from None
    return cluster_of(exported)


def cluster_of(exported: object) -> Cluster:
    """Parse an exported cluster from the decoded JSON value. Raises InvalidExport."""
    whole = _Object(exported, "the export")
    version = whole.number("version")
    if version != VERSION:
        raise InvalidExport(f"it is of version {version}, known is {VERSION}")
    topics = [_Object(value, f"topic {at}") for at, value in enumerate(whole.array("topics"))]
    assignments: dict[TopicPartition, Assignment] = {}
    for topic in topics:
        for name, assignment in _assignments(topic):
            if name in assignments:
                raise InvalidExport(f"{name} is there twice")
            assignments[name] = assignment
    tombstones = enumerate(whole.array("tombstones"))
    return Cluster(
        whole.text("cluster_id"),
        whole.number("exported_at_ms", largest=INT64_MAX),
        {topic.text("name"): topic.text("id") for topic in topics},
        assignments,
        frozenset(_Object(value, f"tombstone {at}").text("id") for at, value in tombstones),
        _admitted(whole),
    )


def _assignments(topic: "_Object") -> list[tuple[TopicPartition, Assignment]]:
    name, topic_id = topic.text("name"), topic.text("id")
    configs = topic.mapping("configs")
    is_compacted = COMPACT in str(configs.get(CLEANUP_POLICY, ""))
    retention = str(configs.get(DELETE_RETENTION_MS, ""))
    delete_retention_ms = int(retention) if retention.isascii() and retention.isdigit() else None
    found = []
    for at, value in enumerate(topic.array("partitions")):
        partition = _Object(value, f"partition {at} of {name}")
        assignment = Assignment(
            topic_id,
            partition.number("leader"),
            partition.number("leader_epoch"),
            partition.numbers("isr"),
            partition.numbers("replicas"),
            partition.numbers("unsafe"),
            is_compacted,
            _left(partition),
            delete_retention_ms,
        )
        found.append((TopicPartition(name, partition.number("partition")), assignment))
    return found


def _admitted(whole: "_Object") -> dict[int, Admitted]:
    found = {}
    for at, value in enumerate(whole.array("directories", default=())):
        each = _Object(value, f"directory {at}")
        admitted = Admitted(each.text("directory_id"), each.number("run", largest=INT64_MAX))
        found[each.number("node_id")] = admitted
    return found


def _left(partition: "_Object") -> dict[int, Left]:
    found = {}
    for value in partition.array("left", default=()):
        left = _Object(value, "a broker that left")
        log_end = left.number("log_end", largest=INT64_MAX)
        found[left.number("node_id")] = Left(left.number("last_epoch"), log_end)
    return found


class _Object:
    """A JSON object whose fields are read with their types checked; `name` is for errors."""

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, dict):
            raise InvalidExport(f"{name} is no object")
        self._value: dict[str, Any] = value
        self._name = name

    def text(self, field: str) -> str:
        return self._get(field, str)

    def number(self, field: str, *, largest: int = INT32_MAX) -> int:
        return self._checked(self._get(field, int), field, largest)

    def mapping(self, field: str) -> dict[str, Any]:
        return self._get(field, dict)

    def array(self, field: str, default: Sequence[Any] | None = None) -> Sequence[Any]:
        if default is not None and field not in self._value:
            return default
        return self._get(field, list)

    def numbers(self, field: str) -> tuple[int, ...]:
        return tuple(self._checked(value, field, INT32_MAX) for value in self.array(field))

    def _checked(self, value: object, field: str, largest: int) -> int:
        if type(value) is not int or not -1 <= value <= largest:
            raise InvalidExport(f"{field!r} of {self._name} has {value!r}, no such number")
        return value

    def _get(self, field: str, kind: type[_T]) -> _T:
        if field not in self._value:
            raise InvalidExport(f"{self._name} has no {field!r}")
        value = self._value[field]
        if not isinstance(value, kind):
            raise InvalidExport(f"{field!r} of {self._name} is {value!r}")
        return value
