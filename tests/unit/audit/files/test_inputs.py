"""What the driver reads by itself: whose logs are judged, and what of them is known."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibroker.audit.files.cluster import Cluster, cluster_of
from minibroker.audit.files.directories import Replica, UsageError
from minibroker.audit.files.inputs import Inputs, read_inputs
from minibroker.audit.summary import Unjudged
from minibroker.protocol.types import TopicPartition
from tests.support.made_cluster import CLUSTER_ID, NODES, TOPIC, TOPIC_ID, make_cluster

OTHER_ID = bytes(range(1, 17)).hex()
NAME = TopicPartition(TOPIC, 0)


@pytest.fixture
def exported(tmp_path: Path) -> dict[str, Any]:
    """What the metadata say of a cluster of one partition in `tmp_path`."""
    said: dict[str, Any] = json.loads(make_cluster(tmp_path, 1).read_text())
    return said


def read(root: Path, exported: dict[str, Any] | None) -> Inputs:
    def cluster() -> Cluster | None:
        return None if exported is None else cluster_of(exported)

    return read_inputs([root], cluster)


def test_metadata_of_another_cluster_are_refused(tmp_path: Path, exported: dict[str, Any]) -> None:
    """They may name the same topics and brokers, and would say who is in sync of other logs."""
    exported["cluster_id"] = "other"
    with pytest.raises(UsageError, match=f"of cluster other.*broker-1 is of {CLUSTER_ID}"):
        read(tmp_path, exported)


def no_topic(exported: dict[str, Any]) -> None:
    exported["topics"] = []


def other_id(exported: dict[str, Any]) -> None:
    exported["topics"][0]["id"] = OTHER_ID


@pytest.mark.parametrize("change", [no_topic, other_id])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_logs_of_topics_that_the_metadata_do_not_know(
    tmp_path: Path,
    exported: dict[str, Any],
    change: Callable[[dict[str, Any]], None],
    is_deleted: bool,
) -> None:
    """They are not judged; unless the topic is known to be deleted, the metadata may be older than
    it, and nobody knows who should have it. What checkpoints say of them is of no other log."""
    change(exported)
    if is_deleted:
        exported["tombstones"] = [{"id": TOPIC_ID.hex(), "name": TOPIC}]
    inputs = read(tmp_path, exported)
    assert list(inputs.logs) == []
    assert inputs.findings == inputs.epoch_starts == []
    assert all(not each.high_watermarks for each in inputs.checkpoints.values())
    assert all(not each.recovery_points for each in inputs.checkpoints.values())
    if is_deleted:
        deleted = f"{tmp_path}/broker-1/{TOPIC}-0 is of a topic that was deleted"
        assert (inputs.notes[0], len(inputs.notes)) == (deleted, len(NODES))
        assert inputs.unjudged == []
    else:
        reason = f"the metadata do not know its topic ({TOPIC_ID.hex()}), and may be older than it"
        assert inputs.unjudged == [Unjudged(reason, True, *NAME, node) for node in NODES]


DIRECTORIES = {
    "the one that the metadata know": ({}, "stopped", ""),
    "another one": ({"directory_id": "77"}, "stopped", "its id is 02"),
    "an older copy": ({"run": 3}, "stopped", "it is an older copy: its broker had been started 1"),
    "an older copy, killed": ({"run": 3}, "killed", "it is an older copy"),
    "metadata that are older": ({"run": 0}, "stopped", "the metadata are older than it"),
    "a start that failed": ({"run": 0}, "killed", ""),
}


@pytest.mark.parametrize(("said", "state", "reason"), DIRECTORIES.values(), ids=DIRECTORIES)
def test_directories_of_another_time_than_the_metadata(
    tmp_path: Path, exported: dict[str, Any], said: dict[str, Any], state: str, reason: str
) -> None:
    """Nothing in their logs need show what happened between."""
    root = tmp_path / "broker-2"
    fields = (line.split("=", 1) for line in (root / "meta.properties").read_text().splitlines())
    known = {"node_id": 2, "directory_id": dict(fields)["directory.id"], "run": 1}
    exported["directories"] = [known | said]
    if state == "killed":
        (root / "clean-shutdown").unlink()
    unjudged = read(tmp_path, exported).unjudged
    assert [(each.broker, each.holds_back) for each in unjudged] == ([(2, True)] if reason else [])
    assert all(each.reason.startswith(f"{root}: {reason}") for each in unjudged)


@pytest.mark.parametrize("whole", [True, False], ids=["a directory", "one segment"])
def test_logs_that_share_a_file_are_one_copy(
    tmp_path: Path, exported: dict[str, Any], whole: bool
) -> None:
    """A link to another broker's log is no second copy of it."""
    mine, other = (tmp_path / f"broker-{node}" / f"{TOPIC}-0" for node in (2, 3))
    name = max(path.name for path in mine.glob("*.log"))
    if whole:
        shutil.rmtree(other)
        other.symlink_to(mine)
    else:
        (other / name).unlink()
        (other / name).hardlink_to(mine / name)
    [found] = read(tmp_path, exported).unjudged
    assert (found.topic, found.partition, found.broker, found.holds_back) == (*NAME, 3, True)
    assert f".log is a link to the file in {mine}: they are one copy" in found.reason


def test_a_topic_id_that_the_other_replicas_do_not_have(
    tmp_path: Path, exported: dict[str, Any]
) -> None:
    """It is said as that, an error of its broker; nothing is said to be lost."""
    path = tmp_path / "broker-2" / f"{TOPIC}-0"
    (path / "partition.metadata").write_text("version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA\n")
    inputs = read(tmp_path, exported)
    assert [log.broker for log in inputs.logs] == [1, 3]
    [found] = inputs.findings
    assert (found.check, found.severity, found.broker) == ("checkpoint", "error", 2)
    said = f"has the topic id {OTHER_ID}, and the metadata have {TOPIC_ID.hex()}"
    assert said in found.detail
    assert inputs.hidden == {Replica(2, *NAME)}
    assert inputs.unjudged == []


def test_a_log_whose_directory_cannot_be_listed_is_hidden(
    tmp_path: Path, exported: dict[str, Any]
) -> None:
    """Its path is a link to itself, which nobody can follow; it is not gone."""
    path = tmp_path / "broker-2" / f"{TOPIC}-0"
    shutil.rmtree(path)
    path.symlink_to(path.name)
    inputs = read(tmp_path, exported)
    assert inputs.hidden == {Replica(2, *NAME)}
    assert [(each.broker, each.holds_back) for each in inputs.unjudged] == [(2, True)]
    assert not [each for each in inputs.findings if "it is not there" in each.detail]


@pytest.mark.parametrize("node", NODES)
def test_a_directory_that_appears_meanwhile_is_not_judged(
    tmp_path: Path, exported: dict[str, Any], node: int
) -> None:
    """Its high watermarks were not read before its logs; that is said, and the others are read."""
    root = tmp_path / f"broker-{node}"
    waiting = root.rename(tmp_path.parent / f"{tmp_path.name}-{node}")

    def appear() -> Cluster:
        waiting.rename(root)
        return cluster_of(exported)

    inputs = read_inputs([tmp_path], appear)
    others = [other for other in NODES if other != node]
    assert [broker.broker for broker in inputs.brokers] == others
    assert [log.broker for log in inputs.logs] == others
    reason = f"{root} appeared while the directories were looked at: run the audit again"
    assert inputs.unjudged == [Unjudged(reason, True, broker=node)]


def test_without_metadata_most_logs_of_a_name_say_which_topic_it_is(
    tmp_path: Path, exported: dict[str, Any]
) -> None:
    """The others are named and left out."""
    path = tmp_path / "broker-2" / f"{TOPIC}-0"
    (path / "partition.metadata").write_text("version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA\n")
    inputs = read(tmp_path, None)
    assert [log.broker for log in inputs.logs] == [1, 3]
    assert inputs.notes == [f"{path} is of another topic than most logs of that name"]
    assert inputs.findings == inputs.unjudged == []
    assert [len(inputs.checkpoints[node].high_watermarks) for node in NODES] == [1, 0, 1]


@pytest.mark.parametrize(
    ("file", "end"),
    [
        ("recovery-point-offset-checkpoint", 72),
        ("leader-epoch-checkpoint", 48),
        (f"{TOPIC}-1/00000000000000000096.snapshot", 96),
    ],
)
def test_files_beside_an_emptied_log_tell_how_far_it_went(
    tmp_path: Path, file: str, end: int
) -> None:
    """Of the broker's recovery point, the epochs and the names of files the one that tells most."""
    make_cluster(tmp_path, 2)
    broker = tmp_path / "broker-1"
    log = broker / f"{TOPIC}-1"
    for path in log.iterdir():
        if path.name not in ("partition.metadata", file):
            path.unlink()
    if file != "recovery-point-offset-checkpoint":
        (broker / "recovery-point-offset-checkpoint").unlink()
    if file.endswith("snapshot"):
        (broker / file).touch()
    found = read(tmp_path, None).traces
    assert found[Replica(1, TOPIC, 1)] == (file, end)
