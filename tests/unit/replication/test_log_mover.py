"""Moves between log directories: the copy follows its log, takes its place, and a crash at any
point leaves one of them, whole."""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.errors import Refused
from minibroker.broker.log import log_move
from minibroker.broker.log.log import Log
from minibroker.broker.replication.log_mover import LogMover
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.batch import iterate_headers, stamp
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles, Stopped, Tail
from tests.unit.log.test_log_directories import FIRST, SECOND, THIRD, start
from tests.unit.log.test_manager import ID
from tests.unit.log.workbench import NOW, UNLIMITED, encode

NAME = TopicPartition("t", 0)
ROOTS = FIRST, SECOND
START = 5  # of the log that is moved while brokers crash
LIMITS = replace(UNLIMITED, segment_bytes=2_000)


class Replica:
    """A partition, as the mover sees it, all of whose records are committed."""

    def __init__(self, log: Log) -> None:
        self.topic_partition = log.topic_partition
        self.log = log

    @property
    def high_watermark(self) -> int:
        return self.log.log_end


class Machine:
    """A broker's logs, its mover, and what happens while a worker is at work.

    `acked` is the end of what was flushed, as a producer with `flush=always` knows it.
    """

    def __init__(self, files: SimulatedFiles, roots: tuple[PurePath, ...] = ROOTS) -> None:
        self.files = files
        self.quota = ReplicationQuota()
        self.held: set[Any] = set()
        self.acked = 0
        self.written = 0
        self.steps = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.manager = start(files, roots)

    def open(self) -> None:
        """Make the replicas of the logs, and a mover."""
        self.replicas = {name: Replica(log) for name, log in self.manager.logs.items()}
        self.mover = LogMover(
            self.manager.moves,
            self.replicas,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.quota,
            self._in_worker,  # type: ignore[arg-type]
            lambda: NOW,
            lambda name: None,
        )

    async def _in_worker(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await trio.sleep(0.001)
        self.steps += 1
        self.meanwhile()
        try:
            return function(*arguments)
        finally:
            self.meanwhile()

    # what a flusher does

    def hold(self, partition: Any) -> None:
        self.held.add(partition)

    def release(self, partition: Any, now: float) -> None:
        self.held.discard(partition)

    def on_moved(self, partition: Any) -> None:
        assert partition in self.held

    # what a producer does

    def log(self, name: TopicPartition = NAME) -> Log:
        """The log that serves a partition."""
        return self.replicas[name].log

    def append(self, count: int = 1, size: int = 50) -> None:
        """Append batches of one record, with their number as the value."""
        for _ in range(count):
            value = b"%0*d" % (size, self.log().log_end)
            epoch = max(0, self.log().epochs.newest_epoch)
            self.log().append_as_leader(memoryview(encode(value=value)), epoch, NOW)
            self.written = self.log().log_end

    def flush(self) -> None:
        """Flush the log, and acknowledge what is in it."""
        replica = self.replicas[NAME]
        if replica in self.held:
            return
        flush = replica.log.start_flush()
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self.manager.sync_dir(directory)
        replica.log.finish_flush(flush)
        self.acked = replica.log.durable_end

    def want(self, root: PurePath, name: TopicPartition = NAME) -> None:
        """Ask for a move."""
        self.manager.moves.want(name, str(root), NOW)

    async def run(self, seconds: float = 20.0) -> None:
        """Let the mover run."""
        with trio.move_on_after(seconds):
            await self.mover.run()

    @property
    def place(self) -> PurePath:
        """The log directory that has the log."""
        return self.log().directory.parent


def disk(seed: int = 1) -> SimulatedFiles:
    """An empty disk."""
    return SimulatedFiles(random.Random(seed))


def machine(records: int = 100, seed: int = 1) -> Machine:
    """Two directories, and a log in the first."""
    made = Machine(disk(seed))
    made.manager.create(NAME, ID, LIMITS, NOW)
    made.open()
    made.append(records)
    return made


def contents(log: Log) -> bytes:
    """All bytes that a reader of a log gets."""
    found, offset = b"", log.log_start
    while slices := log.read(offset, 1 << 30, log.log_end):
        found += b"".join(part.read() for part in slices)
        offset = _end(found)
    return found


def _end(records: bytes) -> int:
    return [header.next_offset for _, header in iterate_headers(memoryview(records))][-1]


def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the copy go on in slices of a few batches, and end with a few batches missing."""
    monkeypatch.setattr(log_move, "SLICE_BYTES", 1_000)
    monkeypatch.setattr(log_move, "LAST_BYTES", 500)


def names_of(files: SimulatedFiles, root: PurePath) -> list[str]:
    """The directories of logs, whatever kind, in a log directory."""
    return [name for name in files.list(root) if name.startswith(("t-", "u-"))]


async def test_a_log_is_moved_whole(autojump_clock: object) -> None:
    """With its epochs and its producers, to the end of what was appended meanwhile; the former one
    is removed. A start finds it."""
    one = machine()
    one.log().assign_epoch(3, 100)
    before, epochs = contents(one.log()), one.log().epochs.entries
    one.want(SECOND)
    assert names_of(one.files, SECOND) == [f"t-0.{ID.hex()}-future"]
    await one.run()
    assert one.place == SECOND
    assert (contents(one.log()), one.log().epochs.entries) == (before, epochs)
    assert one.manager.get(NAME) is one.log()
    assert names_of(one.files, FIRST) == [f"t-0.{ID.hex()}-delete"]
    assert names_of(one.files, SECOND) == ["t-0"]
    one.append(5)
    end = one.log().log_end
    one.manager.close({NAME: 7})
    again = start(one.files, ROOTS, boot="boot-2")
    found = again.get(NAME)
    assert found is not None
    assert (found.log_end, found.epochs.entries, found.damage) == (end, epochs, None)
    assert found.checkpointed_high_watermark == 7
    assert names_of(one.files, FIRST) == []


async def test_a_log_is_moved_under_load(autojump_clock: object) -> None:
    """Appends of each moment are in the copy, and it was never less durable than the log."""
    one = machine()

    def meanwhile() -> None:
        one.append(3)
        one.flush()
        assert one.log().durable_end >= one.acked

    one.meanwhile = meanwhile
    one.want(SECOND)
    await one.run(3)
    assert one.place == SECOND
    assert one.log().log_end == one.written
    assert one.log().durable_end >= one.acked
    assert not one.held


async def test_the_copy_follows_what_happens_to_the_log(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is truncated with it, also below its start; deleted records do not come back."""
    one = machine()
    done: list[str] = []

    def meanwhile() -> None:
        log = one.log()
        if done[-1:] == [str(one.steps)]:
            return
        done.append(str(one.steps))
        if one.steps == 4:
            log.truncate_to(60, NOW)
            one.append(100)
        elif one.steps == 8:
            log.raise_start(33)
        elif one.steps == 12:
            log.restart_at(20, NOW)
            one.append(30)
        elif one.steps == 16:
            log.restart_at(500, NOW)
            one.append(30)

    one.meanwhile = meanwhile
    in_small_steps(monkeypatch)
    one.want(SECOND)
    await one.run()
    assert one.steps > 16
    assert one.place == SECOND
    assert (one.log().log_start, one.log().log_end) == (500, 530)


def crash(count: int, tail: Tail | None, seed: int = 1) -> Machine | None:
    """Let a move under load end after so many changes of the disk, start again, and check what is
    there. Return None if the move was done before."""
    one = machine(12, seed)
    one.log().raise_start(START)
    assert one.manager.checkpoint_log_starts()
    one.flush()
    one.meanwhile = lambda: (one.append(2), one.flush())  # type: ignore[func-returns-value]
    one.want(SECOND)
    one.files.stop_at(count)
    try:
        trio.run(one.run, 2.0, clock=trio.testing.MockClock(autojump_threshold=0))
    except* Stopped:
        is_done = False
    else:
        is_done = True
    written = contents_written(one)
    if tail is None:
        one.files.kill()
    else:
        one.files.power_off(tail)
    again = start(one.files, ROOTS, boot="boot-1" if tail is None else "boot-2")
    found = again.get(NAME)
    assert found is not None, "no log is left"
    assert found.damage is None
    assert found.log_start == START
    kept = contents(found)
    assert kept == written[: len(kept)]
    assert found.log_end >= one.acked
    if tail is None:
        assert found.log_end >= one.written, "a crash of the process loses nothing"
    others = [root for root in ROOTS if "t-0" in one.files.list(root)]
    assert others == [found.directory.parent]
    one.manager = again
    return None if is_done else one


def contents_written(one: Machine) -> bytes:
    """What was written so far."""
    records = b""
    for number in range(START, one.written + 1):
        batch = encode(value=b"%050d" % number)
        stamp(batch, number, 0)
        records += batch
    return records


async def test_producers_without_batches_are_moved(autojump_clock: object) -> None:
    """Retention deleted their batches; their next sequence number is known still. So it is after
    an unclean start."""
    one = machine(0)
    one.log().append_as_leader(memoryview(encode(producer=(7, 0, 0))), 0, NOW)
    one.append(60)
    one.log().limits = replace(one.log().limits, retention_bytes=2_000)
    assert without_pause(one.log().apply_retention(61, NOW)) > 0
    one.want(SECOND)
    await one.run()
    assert one.place == SECOND
    one.files.kill()
    found = start(one.files, ROOTS).get(NAME)
    assert found is not None
    for log in (one.log(), found):
        assert log.log_start > 0
        assert [state.last_sequence for state in log.producers._entries.values()] == [0]


async def test_a_move_is_as_fast_as_it_may_be(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes per second of all moves; the limit may change meanwhile."""
    in_small_steps(monkeypatch)
    one = machine(200)
    one.quota.limit = 1_000.0
    one.want(SECOND)
    await one.run(10)
    [state] = one.manager.moves.futures()
    assert (state.path, state.topic_partition) == (str(SECOND), NAME)
    assert 8_000 <= state.size <= 14_000
    one.quota.limit = math.inf
    await one.run(3)
    assert one.place == SECOND


async def test_a_move_is_ended_or_replaced(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another directory, and by the one that has the log. Nothing of the copy stays, not even
    where a worker is at it."""
    in_small_steps(monkeypatch)
    one = Machine(disk(), (*ROOTS, THIRD))
    one.manager.create(NAME, ID, LIMITS, NOW)
    one.open()
    one.append(100)
    one.want(SECOND)

    def meanwhile() -> None:
        if one.steps == 5:
            one.want(THIRD)
            assert [state.path for state in one.manager.moves.futures()] == [str(THIRD)]

    one.meanwhile = meanwhile
    await one.run(3)
    assert one.place == THIRD
    one.want(FIRST)
    one.want(THIRD)
    assert one.manager.moves.futures() == []
    await one.run(3)
    assert one.place == THIRD
    without_pause(one.manager.remove_deleted_files(NOW * 2))
    assert [names_of(one.files, root) for root in (FIRST, SECOND, THIRD)] == [[], [], ["t-0"]]


@pytest.mark.parametrize("root", ROOTS)
async def test_a_directory_fails_in_the_midst(
    root: PurePath, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target: the log stays where it is, and the broker goes on. The source: the log is
    offline, and is moved after a start that finds it."""
    in_small_steps(monkeypatch)
    one = Machine(disk(), (THIRD, *ROOTS))
    with pytest.raises(Refused):
        one.want(FIRST)
    one.manager.create(NAME, ID, LIMITS, NOW)
    one.open()
    one.append(100)
    one.flush()
    one.want(SECOND)

    def meanwhile() -> None:
        if one.steps == 5:
            for operation in ("read", "append", "open"):
                one.files.fail(operation, name=str(root), times=1_000_000)
            one.files.evict(str(root))
        for name in one.manager.take_off_failed():
            del one.replicas[name]

    one.meanwhile = meanwhile
    await one.run(30)
    assert [state.path for state in one.manager.states() if state.failure] == [str(root)]
    if root == SECOND:
        assert one.place == FIRST
        one.append(5)
        with pytest.raises(Refused) as refused:
            one.want(THIRD)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    one.files.kill()
    again = Machine(one.files, (THIRD, *ROOTS))
    again.open()
    assert again.place == FIRST
    await again.run(3)
    assert again.place == SECOND
    assert again.log().log_end == one.written


async def test_a_full_disk_puts_a_move_off(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """It is done once there is room."""
    one = machine(200)
    one.want(SECOND)
    one.files.space_bytes = one.files.used_bytes + 3_000
    await one.run(12)
    assert one.place == FIRST
    assert "t-0 is moved to /2/logs later: the disk is full" in caplog.text
    one.files.space_bytes = None
    await one.run(12)
    assert one.place == SECOND
    assert one.log().log_end == 200


async def test_records_that_cannot_be_read_end_a_move(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The log stays where it is, with what can be read of it; nothing of the copy stays."""
    one = machine(100)
    one.files.flip(FIRST / "t-0" / f"{0:020}.log", 70)
    one.want(SECOND)
    await one.run()
    assert one.place == FIRST
    assert "t-0 is not moved to /2/logs: its records cannot be copied" in caplog.text
    assert one.manager.moves.futures() == []


@pytest.mark.parametrize(
    ("name", "path", "code", "text"),
    [
        (NAME, "/elsewhere", ErrorCode.LOG_DIR_NOT_FOUND, "name one of its log.dirs"),
        (NAME, "2/logs", ErrorCode.LOG_DIR_NOT_FOUND, "no log directory of this broker"),
        (NAME, "", ErrorCode.LOG_DIR_NOT_FOUND, "no log directory of this broker"),
        (TopicPartition("t" * 249, 0), "/2/logs", ErrorCode.INVALID_TOPIC_EXCEPTION, "too long"),
        (TopicPartition("u", 0), "/2/logs", ErrorCode.REPLICA_NOT_AVAILABLE, "not here yet"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    name: TopicPartition, path: str, code: ErrorCode, text: str
) -> None:
    """With what to do; nothing is begun."""
    one = machine()
    with pytest.raises(Refused, match=text) as refused:
        one.manager.moves.want(name, path, NOW)
    assert refused.value.code == code
    assert one.manager.moves.futures() == []


def test_a_log_is_created_where_it_was_wanted() -> None:
    """By the last request for it; else where the fewest are."""
    one = Machine(disk())
    for root in (SECOND, FIRST, SECOND):
        with pytest.raises(Refused):
            one.want(root)
    assert one.manager.create(NAME, ID, LIMITS, NOW).directory.parent == SECOND
    other = one.manager.create(TopicPartition("u", 1), ID, LIMITS, NOW)
    assert other.directory.parent == FIRST


def test_a_deleted_log_is_not_moved() -> None:
    """Nothing of its copy stays."""
    one = machine()
    one.want(SECOND)
    one.manager.delete(NAME, NOW)
    assert one.manager.moves.futures() == []
    assert names_of(one.files, SECOND) == []


TAILS = [None, *Tail]  # None: the process alone dies


def crash_at(counts: Iterable[int], tail: Tail | None) -> int:
    """Crash after each of these numbers of changes; return the first after which none was left."""
    return next(count for count in counts if crash(count, tail, count) is None)


@pytest.mark.parametrize("tail", TAILS)
def test_a_crash_leaves_one_whole_log(tail: Tail | None) -> None:
    """Of the process or of the machine, after some of the changes of the disk. What was
    acknowledged is there."""
    assert crash_at(range(TAILS.index(tail), 1_000, 13), tail) > 60


@pytest.mark.soak
@pytest.mark.parametrize("tail", TAILS)
def test_a_crash_anywhere_leaves_one_whole_log(tail: Tail | None) -> None:
    """The same, after each."""
    assert crash_at(range(1_000), tail) > 60
