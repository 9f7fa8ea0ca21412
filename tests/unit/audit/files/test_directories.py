"""Which brokers and logs are found, how they were left, and that nothing odd stops the search."""

import os
import shutil

import pytest

from minibroker.audit.files.directories import UNKNOWN_BROKER, UsageError, find_brokers
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.manager import LogManager
from minibroker.protocol.types import TopicPartition
from tests.unit.log.workbench import NOW, UNLIMITED, encode

TOPIC_ID = bytes(range(16))
NAME = TopicPartition("orders-2", 0)


def start(root, node=1, cluster="cluster"):
    """A broker's logs, open; with one log that has a few batches when it is new."""
    manager = LogManager(RealFiles(), root, UNLIMITED)
    manager.start("boot", cluster, node, NOW)
    log = manager.get(NAME) or manager.create(NAME, TOPIC_ID, UNLIMITED, NOW)
    for _ in range(3):
        log.append_as_leader(memoryview(encode()), 1, NOW)
    return manager


def make(root, node=1, cluster="cluster"):
    """A data directory that was left cleanly."""
    start(root, node, cluster).close({})
    return root


def only(root):
    """The one broker found, and its one log."""
    [broker] = find_brokers([root])
    [log] = broker.logs
    return broker, log


def test_a_broker_is_live_then_stopped_then_killed(tmp_path):
    """The state is what the lock and the mark of a clean stop say; asking takes nothing away."""
    manager = start(tmp_path)
    for _ in range(2):
        broker, log = only(tmp_path)
        assert (broker.state, log.segments[-1].is_indexed) == ("live", False)
    manager.close({})
    broker, log = only(tmp_path)
    assert (broker.state, log.segments[-1].is_indexed) == ("stopped", True)
    start(tmp_path).abandon()
    broker, log = only(tmp_path)
    assert (broker.state, log.segments[-1].is_indexed) == ("killed", False)


def test_what_is_known_of_a_log(tmp_path):
    """Broker, cluster, name, topic id and segments are those that the broker wrote."""
    broker, log = only(make(tmp_path, node=7))
    path = tmp_path / "orders-2-0"
    assert (broker.broker, broker.cluster_id, broker.path) == (7, "cluster", tmp_path)
    assert (log.replica, log.path, log.topic_id) == ((7, "orders-2", 0), path, TOPIC_ID.hex())
    [segment] = log.segments
    assert segment.path == path / "00000000000000000000.log"
    assert (segment.base_offset, segment.size) == (0, segment.path.stat().st_size)
    assert (log.problems, broker.ignored, broker.problems) == ((), (), ())


def test_all_but_the_last_segment_are_indexed(tmp_path):
    """A killed broker's sealed segments have complete indexes, its last one may not."""
    start(tmp_path).abandon()
    log = tmp_path / "orders-2-0"
    for base_offset in (90, 7, 800):
        (log / f"{base_offset:020}.log").write_bytes(b"")
    _, found = only(tmp_path)
    assert [segment.base_offset for segment in found.segments] == [0, 7, 90, 800]
    assert [segment.is_indexed for segment in found.segments] == [True, True, True, False]


def test_a_root_of_a_cluster(tmp_path):
    """A directory of data directories stands for all of them; naming one twice changes nothing."""
    for node in (2, 1):
        make(tmp_path / f"broker-{node}", node)
    (tmp_path / "notes").mkdir()
    found = find_brokers(
        [tmp_path, tmp_path / "broker-2", tmp_path / "broker-1" / ".." / "broker-1"]
    )
    assert [broker.broker for broker in found] == [1, 2]


def test_names_that_are_no_logs(tmp_path):
    """What is on its way out, stray or somebody else's is named and not read."""
    make(tmp_path)
    names = ["t-0.aa-delete", "t-1-stray", "photos", "t-01", "t-9999999999", "empty-0"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "file-3").write_bytes(b"")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff-0")
    broker, _ = only(tmp_path)
    assert {*broker.ignored} == {*names, "file-3", "\\udcff-0"}
    assert broker.problems == ()


def test_odd_files_in_a_log(tmp_path):
    """Foreign files, damage that was put aside and an index without a segment are told."""
    make(tmp_path)
    log = tmp_path / "orders-2-0"
    for name in (b"12.log", b"\xff.log", b"9" * 20 + b".log", b"notes", b"%020d.index" % 5):
        with open(os.fsencode(log) + b"/" + name, "wb"):
            pass
    (log / f"{3:020}.damaged").write_bytes(b"")
    (log / f"{3:020}.log.deleted").write_bytes(b"")
    (log / "moved").write_bytes(b"")  # from another log directory
    (log / "partition.metadata").unlink()
    _, found = only(tmp_path)
    assert len(found.segments) == 1
    assert found.topic_id == ""
    assert {(finding.check, finding.severity) for finding in found.problems} == {
        ("crc", "info"),
        ("index", "info"),
        ("segment-name", "info"),
        ("checkpoint", "warning"),
    }
    [odd] = [finding for finding in found.problems if finding.check == "segment-name"]
    assert odd.detail.startswith("4 files are no part of a log: '12.log', '9999")
    odd.detail.encode()


def test_what_cannot_be_listed(tmp_path):
    """A log that is a link to itself is a problem, and the others are still found."""
    make(tmp_path)
    (tmp_path / "a-0").symlink_to("a-0")
    (tmp_path / "z-0").symlink_to("nowhere")
    broker, log = only(tmp_path)
    assert log.topic == "orders-2"
    assert [problem.path.name for problem in broker.problems] == ["a-0", "z-0"]


def test_a_segment_that_is_gone_is_listed(tmp_path):
    """A link to nothing is a segment of no bytes; reading it says why."""
    make(tmp_path)
    (tmp_path / "orders-2-0" / f"{9:020}.log").symlink_to("nowhere")
    _, log = only(tmp_path)
    assert [segment.size > 0 for segment in log.segments] == [True, False]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"node.id=1\n", b"cluster.id=c\n"])
def test_a_data_directory_that_names_no_owner(tmp_path, content):
    """It is a problem, not a crash, also where the file is gone; others are read."""
    make(tmp_path / "broker-1")
    make(tmp_path / "broker-2", 2)
    meta = tmp_path / "broker-1" / "meta.properties"
    meta.unlink()
    if content is not None:
        meta.write_bytes(content)
    unknown, known = find_brokers([tmp_path])
    assert (unknown.broker, unknown.logs, len(unknown.problems)) == (UNKNOWN_BROKER, (), 1)
    assert (known.broker, known.problems) == (2, ())


def test_what_no_audit_can_mean(tmp_path):
    """No directory, none of a broker, one broker twice and two clusters are refused in words."""
    make(tmp_path / "one" / "broker-1")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    make(tmp_path / "other" / "broker-2", 2, "another")
    (tmp_path / "notes").mkdir()
    for names, text in (
        (["nowhere"], "is not there"),
        (["notes"], "holds none"),
        (["one", "copy"], "are both of broker 1"),
        (["one", "other"], "one cluster at a time"),
    ):
        with pytest.raises(UsageError, match=text):
            find_brokers([tmp_path / name for name in names])


def test_a_copy_that_compaction_had_finished_takes_the_place_of_its_segments(tmp_path):
    """A whole copy is read instead of the segments whose offsets it has; one that is not whole is
    ignored, and so is what compaction had not finished."""
    directory = make(tmp_path) / "orders-2-0"
    first = directory / f"{0:020}.log"
    swap = directory / f"{0:020}.log.swap"
    whole = first.read_bytes()
    swap.write_bytes(whole)
    for base in (2, 3):
        (directory / f"{base:020}.log").write_bytes(b"")
    (directory / f"{3:020}.log.cleaned").write_bytes(b"half a copy")
    _, log = only(tmp_path)
    assert [segment.path.name for segment in log.segments] == [swap.name, f"{3:020}.log"]
    assert [segment.is_indexed for segment in log.segments] == [False, True]
    assert not log.problems
    swap.write_bytes(whole[:-1])
    _, log = only(tmp_path)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]
    first.unlink()  # then the broker has only the copy
    _, log = only(tmp_path)
    assert log.segments[0].path.name == swap.name
