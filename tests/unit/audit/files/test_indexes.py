"""Index entries: those that a broker writes are right, whatever its log went through."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from minibroker.audit.files.directories import LogDirectory, Replica, SegmentFile, find_brokers
from minibroker.audit.files.indexes import check_indexes
from minibroker.audit.model import INDEX_ENTRIES
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import LastKnownState, LogLocation
from minibroker.protocol.types import TopicPartition
from tests.unit.log.workbench import NAME, NOW, UNLIMITED, encode

LIMITS = replace(UNLIMITED, segment_bytes=4000, index_interval_bytes=200)
REPLICA = Replica(3, "t", 0)


def list_segments(directory: Path, is_stopped: bool) -> list[SegmentFile]:
    """The segments of a log; the last is indexed if it was closed."""
    paths = sorted(directory.glob("*.log"))
    return [
        SegmentFile(path, int(path.stem), path.stat().st_size, is_stopped or path != paths[-1])
        for path in paths
    ]


def check(directory: Path, is_stopped: bool = True):
    """The rows of all segments of a log."""
    tables = [check_indexes(REPLICA, file) for file in list_segments(directory, is_stopped)]
    table = pa.Table.from_batches(tables, INDEX_ENTRIES)
    table.validate(full=True)
    return table.to_pylist()


def problems(rows):
    """The rows that say what is wrong."""
    return [row for row in rows if row["problem"] is not None]


def open_log(directory: Path, **opening) -> Log:
    """The log in a directory, new or again."""
    return Log.open(
        LogLocation(RealFiles(), directory, NAME), LIMITS, LastKnownState(**opening), now_ms=NOW
    )


def feed(log: Log, chance: random.Random, count: int) -> None:
    """Append batches of many sizes and times, also old ones and some without a time."""
    for _ in range(count):
        time_ms = chance.choice([NOW, NOW + chance.randrange(1000), chance.randrange(NOW), -1])
        value = bytes(chance.choice([1, 30, 500]))
        batch = encode(chance.randrange(1, 5), time_ms=time_ms, value=value)
        log.append_as_leader(memoryview(batch), log.epochs.newest_epoch + 1, NOW)


@pytest.fixture
def closed(tmp_path):
    """A log of a few segments that was closed."""
    log = open_log(tmp_path / "t-0", is_clean=True)
    feed(log, random.Random(1), 120)
    log.close()
    assert len(list_segments(log.directory, True)) > 3
    return Path(log.directory)


def test_the_entries_of_a_log(closed):
    """Both indexes of every segment are read in order, and nothing is wrong with them."""
    rows = check(closed)
    assert problems(rows) == []
    for segment in list_segments(closed, True):
        for kind, size in (("index", 8), ("timeindex", 12)):
            entries = [r for r in rows if (r["segment"], r["kind"]) == (segment.base_offset, kind)]
            file_size = segment.path.with_suffix(f".{kind}").stat().st_size
            assert [row["entry"] for row in entries] == list(range(file_size // size))
            assert all((r["broker"], r["topic"], r["partition"]) == REPLICA for r in entries)
            assert all((r["position"] is None) == (kind == "timeindex") for r in entries)
            assert all((r["timestamp"] is None) == (kind == "index") for r in entries)
    assert {row["kind"] for row in rows} == {"index", "timeindex"}


@pytest.mark.parametrize("seed", range(12))
def test_clean_logs_are_silent(tmp_path, seed):
    """Rolled, cut, closed, killed, recovered in any order: indexes that count are right."""
    chance = random.Random(seed)
    directory = tmp_path / "t-0"
    log = open_log(directory, is_clean=True)
    for _ in range(25):
        step = chance.choice(["feed", "feed", "feed", "cut", "close", "kill", "restart"])
        if step == "feed":
            feed(log, chance, chance.randrange(40))
        elif step == "cut":
            log.truncate_to(max(0, log.log_end - chance.randrange(60)), NOW)
        elif step == "restart":
            log.restart_at(log.log_end + chance.randrange(3), NOW)
        else:
            opening = {"log_start": log.log_start, "same_boot": True}
            if step == "close":
                log.close()
                assert problems(check(directory)) == []
                opening |= {"is_clean": True, "recovery_point": log.log_end}
            else:
                opening["recovery_point"] = log.recovery_point
                log.abandon()
            log = open_log(directory, **opening)
        assert problems(check(directory, is_stopped=False)) == []
    log.close()
    assert problems(check(directory)) == []


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_every_byte_of_an_index(closed, kind):
    """An index in which any byte rotted has a problem, in the entry of that byte."""
    size = 8 if kind == "index" else 12
    [segment, *_] = list_segments(closed, True)
    path = segment.path.with_suffix(f".{kind}")
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        found = problems(check_indexes(REPLICA, segment).to_pylist())
        assert (kind, at // size) in {(row["kind"], row["entry"]) for row in found}


def only_problem(directory: Path) -> tuple[str, str, int | None]:
    """Kind, problem and entry of the one row that says that something is wrong."""
    [row] = problems(check(directory))
    return row["kind"], row["problem"], row["entry"]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_files_that_are_odd(closed, kind):
    """Missing, unreadable, longer than it can be, or of half an entry: one row says so."""
    path = min(closed.glob(f"*.{kind}"))
    content = path.read_bytes()
    size = 8 if kind == "index" else 12
    path.write_bytes(content + b"x")
    count = len(content) // size
    assert only_problem(closed) == (kind, f"bytes behind the last of {count} entries", None)
    path.write_bytes(content + bytes(1 << 20))
    assert any("bytes behind the last of" in row["problem"] for row in problems(check(closed)))
    path.unlink()
    assert only_problem(closed) == (kind, "missing", None)
    path.mkdir()
    assert only_problem(closed) == (kind, "unreadable: Is a directory", None)


def test_an_index_that_lost_its_end(closed):
    """An offset index may be sparse; a time index must reach to the newest batch."""
    index, time_index = min(closed.glob("*.index")), min(closed.glob("*.timeindex"))
    index.write_bytes(index.read_bytes()[:-8])
    assert problems(check(closed)) == []
    index.write_bytes(b"")
    assert problems(check(closed)) == []
    time_index.write_bytes(time_index.read_bytes()[:-12])
    kind, problem, entry = only_problem(closed)
    assert (kind, entry) == ("timeindex", None)
    assert problem.startswith("it ends before the newest batch")
    time_index.write_bytes(b"")
    assert only_problem(closed)[0] == "timeindex"


def test_entries_that_are_right_but_not_in_order(closed):
    """An entry that is there twice, or behind a later one, is wrong."""
    for path, size in ((min(closed.glob("*.index")), 8), (min(closed.glob("*.timeindex")), 12)):
        content = path.read_bytes()
        first, second, rest = content[:size], content[size : 2 * size], content[2 * size :]
        path.write_bytes(first + first + second + rest)
        assert only_problem(closed)[1:] == ("not above the entry before it", 1)
        path.write_bytes(second + first + rest)
        assert only_problem(closed)[1:] == ("not above the entry before it", 1)
        path.write_bytes(content)


def test_a_record_that_is_newer_than_its_time_index_says(closed):
    """An entry of a batch that is not the newest up to there breaks what a time index promises."""
    log = open_log(closed.parent / "other", is_clean=True)
    for time_ms in (NOW + 9, NOW, NOW + 20):
        log.append_as_leader(memoryview(encode(time_ms=time_ms)), 0, NOW)
    log.close()
    [path] = log.directory.glob("*.timeindex")
    path.write_bytes(NOW.to_bytes(8) + (1).to_bytes(4) + path.read_bytes()[-12:])
    assert only_problem(log.directory)[1:] == (f"a record before that is newer, of {NOW + 9}", 0)


def test_a_damaged_segment(closed):
    """Entries of batches that are gone are wrong, those of the others are right still."""
    [segment, *_] = list_segments(closed, True)
    entries = [row for row in check(closed) if row["segment"] == 0 and row["kind"] == "index"]
    path, content = segment.path, bytearray(segment.path.read_bytes())
    content[entries[1]["position"] + 16] = 0
    path.write_bytes(content)
    [wrong] = [row for row in problems(check(closed)) if row["kind"] == "index"]
    assert wrong == entries[1] | {"problem": f"no batch begins at {wrong['position']}"}
    path.unlink()
    path.mkdir()
    assert {row["segment"] for row in check(closed)}.isdisjoint({0})


def test_the_last_segment_of_a_killed_broker(tmp_path):
    """Its index files may be missing or stale; nobody relies on them, and they are not judged."""
    manager = LogManager(RealFiles(), tmp_path, LIMITS)
    manager.start("boot", "cluster", 1, NOW)
    feed(manager.create(TopicPartition("t", 0), bytes(16), LIMITS, NOW), random.Random(1), 100)
    manager.abandon()
    log = find_log(tmp_path)
    shutil.copy(min(log.path.glob("*.index")), log.segments[-1].path.with_suffix(".index"))
    rows = [check_indexes(log.replica, file) for file in log.segments]
    assert [table.num_rows > 0 for table in rows] == [True] * (len(rows) - 1) + [False]
    assert problems(pa.Table.from_batches(rows).to_pylist()) == []


def find_log(root: Path) -> LogDirectory:
    """The one log of a broker."""
    [broker] = find_brokers([root])
    [log] = broker.logs
    return log


def test_a_segment_at_the_end_of_numbers(tmp_path):
    """An index whose offsets 64 bits do not hold is wrong, not a crash."""
    path = tmp_path / f"{(1 << 63) - 1}.log"
    log = open_log(tmp_path / "t-0", is_clean=True)
    feed(log, random.Random(1), 20)
    log.close()
    for source in Path(log.directory).glob("0*"):
        shutil.copy(source, path.with_suffix(source.suffix))
    segment = SegmentFile(path, (1 << 63) - 1, path.stat().st_size, True)
    rows = check_indexes(REPLICA, segment).to_pylist()
    assert rows
    assert all(row["problem"] for row in rows)
