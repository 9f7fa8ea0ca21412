"""What of the logs could not be read: what holds the verdict back, what a running broker may do."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.audit.checks.extent import judge
from minibroker.audit.checks.log_ends import LogFacts, ReplicaFacts
from minibroker.audit.files.directories import (
    KILLED,
    LIVE,
    STOPPED,
    BrokerDirectory,
    LogDirectory,
    Replica,
    SegmentFile,
    find_brokers,
)
from minibroker.audit.files.segments import scan_segment
from minibroker.audit.files.unreadable import (
    UnreadableSegment,
    drop_removed,
    find_unreadable,
    removed_since,
    unjudged_files,
)
from minibroker.audit.files.written import WrittenBatches
from minibroker.audit.model import BATCHES, Finding, Severity
from minibroker.audit.summary import Unjudged
from minibroker.protocol.constants import INT64_MAX
from tests.support.made_cluster import TOPIC, make_cluster

LAST = 64


def broker(root: Path, state: str) -> BrokerDirectory:
    """The first one of a cluster with one partition, as if it were left so."""
    return replace(find_brokers([root / "broker-1"])[0], state=state)


def unreadable_of(log: LogDirectory, root: Path) -> list[UnreadableSegment]:
    """What the scan of a log could not read, by the table that it writes."""
    (root / "out").mkdir()
    rows = [batch for segment in log.segments for batch in scan_segment(log.replica, segment)]
    pq.write_table(pa.Table.from_batches(rows, BATCHES), root / "out" / "part-0.parquet")
    (root / "out" / "_SUCCESS").touch()
    return find_unreadable(WrittenBatches((root / "out").as_uri()))


@pytest.mark.parametrize("state", [STOPPED, KILLED, LIVE])
@pytest.mark.parametrize("in_sync", [None, False])
def test_a_file_that_cannot_be_read_holds_the_verdict_back(
    tmp_path: Path, state: str, in_sync: bool | None
) -> None:
    """Nobody knows what is in it, be it the last one or not; unless its replica is out of sync."""
    make_cluster(tmp_path, 2)
    found = broker(tmp_path, state)
    log = found.logs[1]
    path = log.path / f"{LAST:020}.log"
    path.unlink()
    path.mkdir()  # as unreadable as a file can be, for root too
    unreadable = unreadable_of(log, tmp_path)
    problem = "unreadable: Is a directory"
    assert unreadable == [UnreadableSegment(Replica(1, TOPIC, 1), LAST, problem)]
    [row], _ = judge([ReplicaFacts(1, TOPIC, 1, state, LogFacts.empty())], None, {1: state})
    told = unjudged_files(unreadable, [found], [replace(row, in_isr=in_sync)])
    reason = f"{path} cannot be read: {problem}"
    assert list(told) == [Unjudged(reason, in_sync is None, TOPIC, 1, 1)]


def cut(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize("away", [Path.unlink, cut])
def test_what_a_running_broker_removes_is_told_and_no_more(
    tmp_path: Path, away: Callable[[Path], None]
) -> None:
    """Retention and a change of leaders take what was listed; of a broker that is down nobody may
    take anything."""
    make_cluster(tmp_path, 2)
    found = broker(tmp_path, LIVE)
    log = found.logs[1]
    path = log.segments[0].path
    away(path)
    unreadable = unreadable_of(log, tmp_path)
    assert [(each.replica, each.segment) for each in unreadable] == [(log.replica, 0)]
    for state, holds_back in ((LIVE, False), (KILLED, True)):
        [told] = unjudged_files(unreadable, [replace(found, state=state)], [])
        assert told.holds_back == holds_back
        assert told.reason.startswith(f"{path} ")
        assert (told.topic, told.partition, told.broker) == (TOPIC, 1, 1)


def with_segments(topic_id: str, *bases: int, state: str = LIVE) -> BrokerDirectory:
    """A broker with a log that has segments, or with none."""
    path = Path("t-0")
    segments = tuple(SegmentFile(path / f"{base:020}.log", base, 1, True) for base in bases)
    log = LogDirectory(1, "t", 0, path, topic_id, segments, ())
    return BrokerDirectory(Path(), 1, "c", state, (log,) if bases else (), (), ())


@pytest.mark.parametrize(
    ("now", "removed"),
    [
        (with_segments("aa", 10, 20, 30), 0),
        (with_segments("aa", 10), 0),
        (with_segments("aa", 20, 30), 20),
        (with_segments("aa", 50), 50),
        (with_segments("bb", 10), INT64_MAX),
        (with_segments("aa"), INT64_MAX),
    ],
)
def test_what_was_removed_is_what_is_below_the_first_segment(
    now: BrokerDirectory, removed: int
) -> None:
    """All of it, if the log is gone or of another topic. A broker that is down removes nothing."""
    before = with_segments("aa", 10, 20)
    expected = {Replica(1, "t", 0): removed} if removed else {}
    assert removed_since([before], [now]) == expected
    assert removed_since([replace(before, state=STOPPED)], [now]) == {}


def test_what_compaction_replaces_is_removed_up_to_the_end_of_its_segment() -> None:
    """A sealed segment that was written since it was listed is another file; the active one is
    written all the time."""
    before = with_segments("aa", 10, 20, 30)
    for written, removed in (((5, 0, 0), 20), ((0, 5, 5), 30), ((0, 0, 5), 0)):
        log = before.logs[0]
        segments = tuple(
            segment._replace(written_ms=written_ms)
            for segment, written_ms in zip(log.segments, written, strict=True)
        )
        now = replace(before, logs=(replace(log, segments=segments),))
        expected = {Replica(1, "t", 0): removed} if removed else {}
        assert removed_since([before], [now]) == expected
    merged = with_segments("aa", 10, 30)
    assert removed_since([before], [merged]) == {Replica(1, "t", 0): 30}


def test_findings_in_what_was_removed_do_not_count() -> None:
    """Nor do they make it clean; those of other offsets, logs and brokers stay."""
    removed = {Replica(1, "t", 0): 20}
    error = Severity.ERROR
    stays = [
        Finding("lost-write", error, "t", 0, 1, offset=20),
        Finding("lost-write", error, "t", 0, 2, offset=5),
        Finding("lost-write", error, "t", 1, 1, offset=5),
        Finding("lost-write", error, "t", 0, 1),
        Finding("index", Severity.WARNING, "t", 0, 1, segment=20),
        Finding("checkpoint", Severity.WARNING, broker=1),
    ]
    index = Finding("index", Severity.WARNING, "t", 0, 1, segment=10)
    lost = Finding("lost-write", error, "t", 0, 1, offset=19)
    parted = Finding("divergence", error, "t", 0, 2, 1, offset=19)
    assert drop_removed(stays, removed) == (stays, [])
    for dropped, holds_back in (([index], False), ([lost, index], True), ([parted], True)):
        kept, [told] = drop_removed([*stays, *dropped], removed)
        assert kept == stays
        assert told.holds_back == holds_back
        assert f"{len(dropped)} finding" in told.reason
