"""The export of a cluster's metadata: what it says is taken, what is none of it is refused."""

import copy
import json
from typing import Any

import pytest

from minibroker.audit.files.cluster import (
    Admitted,
    Assignment,
    InvalidExport,
    Left,
    cluster_of,
    read_cluster,
)
from minibroker.protocol.types import TopicPartition

PARTITION = {
    "partition": 0,
    "leader": 1,
    "leader_epoch": 4,
    "partition_epoch": 9,
    "isr": [1, 2],
    "replicas": [1, 2, 3],
    "unsafe": [],
}
LEFT = {"node_id": 3, "last_epoch": 4, "log_end": 70}
STOPPED = {**PARTITION, "partition": 2, "left": [LEFT]}
OFFLINE = {**PARTITION, "partition": 1, "leader": -1, "isr": [2], "unsafe": [2]}
EXPORT: dict[str, Any] = {
    "version": 1,
    "cluster_id": "abc",
    "exported_at_ms": 1234,
    "controller_id": -1,
    "controller_epoch": 3,
    "brokers": [],
    "topics": [
        {"name": "t", "id": "aa", "configs": {}, "partitions": [PARTITION, OFFLINE, STOPPED]},
        {
            "name": "kept",
            "id": "bb",
            "configs": {"cleanup.policy": "compact,delete", "delete.retention.ms": "100"},
            "partitions": [PARTITION],
        },
    ],
    "tombstones": [{"id": "cc", "name": "gone"}],
    "directories": [{"node_id": 2, "directory_id": "dd", "run": 7}],
}


def test_an_export_is_read() -> None:
    """All partitions are there, with who leads, who is in sync, and whose topic is compacted."""
    cluster = read_cluster(json.dumps(EXPORT))
    assert (cluster.cluster_id, cluster.exported_at_ms) == ("abc", 1234)
    assert cluster.topic_ids == {"t": "aa", "kept": "bb"}
    assert cluster.deleted_ids == {"cc"}
    assert cluster.admitted == {2: Admitted("dd", 7)}
    assert cluster.assignments == {
        TopicPartition("t", 0): Assignment("aa", 1, 4, (1, 2), (1, 2, 3)),
        TopicPartition("t", 1): Assignment("aa", -1, 4, (2,), (1, 2, 3), (2,)),
        TopicPartition("t", 2): Assignment("aa", 1, 4, (1, 2), (1, 2, 3), left={3: Left(4, 70)}),
        TopicPartition("kept", 0): Assignment(
            "bb", 1, 4, (1, 2), (1, 2, 3), (), True, delete_retention_ms=100
        ),
    }


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff\xfe\x00", "[]", "null", "1", '{"version": 1}', "[" * 99999]
)
def test_what_is_no_export_is_refused(text: str | bytes) -> None:
    """Whatever the text is, the answer is an export or an InvalidExport."""
    with pytest.raises(InvalidExport):
        read_cluster(text)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (["version"], 2, "it is of version 2, known is 1"),
        (["topics"], {}, "'topics' of the export is {}"),
        (["topics", 0], 7, "topic 0 is no object"),
        (
            ["topics", 0, "partitions", 2, "left", 0, "log_end"],
            "",
            "'log_end' of a broker that left is ''",
        ),
        (["tombstones", 0, "id"], 7, "'id' of tombstone 0 is 7"),
        (["topics", 0, "name"], None, "'name' of topic 0 is None"),
        (["topics", 0, "partitions", 1], [], "partition 1 of t is no object"),
        (["topics", 0, "partitions", 1, "leader"], True, "'leader' of partition 1 of t has True"),
        (["topics", 0, "partitions", 1, "leader"], 1 << 31, "has 2147483648, no such number"),
        (["topics", 0, "partitions", 1, "isr"], ["1"], "'isr' of partition 1 of t has '1'"),
        (["topics", 0, "partitions", 1, "partition"], 0, "t-0 is there twice"),
    ],
)
def test_an_error_says_where(path: list[str | int], value: object, reason: str) -> None:
    """One wrong field refuses the whole file, and is named."""
    exported: Any = copy.deepcopy(EXPORT)
    place = exported
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InvalidExport, match=reason):
        cluster_of(exported)


@pytest.mark.parametrize("field", [*PARTITION.keys() - {"partition_epoch"}])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    """An assignment that does not say all is not completed by a guess."""
    partition = {name: value for name, value in PARTITION.items() if name != field}
    topic = {"name": "t", "id": "aa", "configs": {}, "partitions": [partition]}
    with pytest.raises(InvalidExport, match=f"partition 0 of t has no '{field}'"):
        cluster_of({**EXPORT, "topics": [topic]})
