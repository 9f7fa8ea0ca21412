"""Sealed segments are open only while they are used, within the budget of descriptors."""

import errno
import itertools
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from minibroker.broker.descriptors import SEALED_MIN, DescriptorBudget
from minibroker.broker.disk import RealFiles
from minibroker.broker.errors import Refused
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import LastKnownState, LogLocation
from minibroker.broker.log.sealed_files import SealedFiles
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import StaleSlice, TopicPartition
from minibroker.testing.disk import SimulatedFiles
from tests.unit.log.workbench import NAME, NOW, UNLIMITED, Bench, encode

SIZE = len(encode())
SEGMENTS = 30


class SmallBench(Bench):
    """A log of one batch a segment, with a small budget."""

    def __init__(self, limit: int = 64, **limits: object) -> None:
        super().__init__(segment_bytes=SIZE, **limits)
        self.log.abandon()
        self.budget = DescriptorBudget(limit)
        self.location = replace(self.location, sealed_files=SealedFiles(self.budget))
        self.open(LastKnownState(same_boot=True))

    def connect(self, count: int) -> None:
        """Let so many connections be open, which leave less to sealed segments."""
        self.budget.connections = count
        self.budget.on_pressure()

    def fill(self, count: int = SEGMENTS) -> None:
        for _ in range(count):
            self.append()


def test_the_least_used_are_closed():
    """No more are open than the budget permits, whatever is read, and every record is there."""
    bench = SmallBench()
    bench.fill()
    bench.flush()
    bench.connect(24)
    assert bench.budget.sealed_max == SEALED_MIN
    assert bench.offsets() == list(range(SEGMENTS))
    assert bench.files.descriptors == SEALED_MIN + 1
    bench.connect(0)
    rng = random.Random(7)
    for offset in rng.choices(range(SEGMENTS), k=200):
        bench.connect(rng.randrange(24))
        assert bench.offsets(offset)[0] == offset
        assert bench.files.descriptors <= bench.budget.sealed_max + 1
    bench.connect(23)
    bench.budget.hold_connection()
    assert bench.files.descriptors == SEALED_MIN + 1


def test_reading_in_order_opens_each_once():
    """A reader from the beginning does not open a segment twice, however many there are."""
    bench = SmallBench()
    bench.fill(200)
    bench.flush()
    opened = []
    open_file = bench.files.open
    bench.files.open = lambda path, **how: opened.append(path.name) or open_file(path, **how)
    offset = 0
    while offset < 200:
        (part, *_) = bench.log.read(offset, SIZE, 200)
        part.read()
        offset += 1
    logs = [name for name in opened if name.endswith(".log")]
    assert len(logs) == len({*logs}) <= 200


def test_a_slice_is_read_after_its_file_was_closed():
    """It waits behind a slow client without a descriptor, and is sent from a new one."""
    bench = SmallBench()
    bench.fill()
    bench.flush()
    (first, *_) = bench.log.read(0, SIZE, SEGMENTS)
    bench.offsets()
    assert first.is_valid()
    assert first.read() == bench.log.read(0, SIZE, SEGMENTS)[0].read()


def test_a_slice_of_an_active_segment_outlives_its_roll():
    """It belongs to the segment, not to the file that the segment had."""
    bench = SmallBench()
    bench.append()
    (part,) = bench.log.read(0, SIZE, 1)
    before = part.read()
    bench.fill()
    bench.flush()
    bench.offsets()
    assert part.is_valid()
    assert part.read() == before


def test_a_roll_without_a_descriptor_is_refused(caplog):
    """The log says so once, goes on when a descriptor is free, and opens again at any time."""
    caplog.set_level("INFO")
    bench = SmallBench()
    bench.fill(3)
    bench.files.descriptors_max = 0
    for _ in range(3):
        with pytest.raises(Refused) as caught:
            bench.append()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "ulimit -n" in caught.value.message
    assert bench.log.log_end == 3
    bench.files.descriptors_max = None
    bench.append()
    assert bench.offsets() == [0, 1, 2, 3]
    lines = [record.getMessage() for record in caplog.records if NAME.topic in record.getMessage()]
    assert sum("appends are refused" in line for line in lines) == 1
    assert sum("a file descriptor is free again" in line for line in lines) == 1
    bench.reopen_killed()
    assert bench.offsets() == [0, 1, 2, 3]


def test_a_read_without_a_descriptor_is_refused():
    """Also the look-up by time, a truncation, and a slice that is on its way; none of them changes
    anything."""
    bench = SmallBench()
    bench.fill()
    bench.flush()
    (part, *_) = bench.log.read(0, SIZE, SEGMENTS)
    bench.connect(24)
    bench.offsets(10)
    without_pause(bench.log.apply_retention(0, NOW))
    bench.files.descriptors_max = 0
    for use in (
        lambda: bench.log.read(0, SIZE, SEGMENTS),
        lambda: without_pause(bench.log.find_time(NOW, SEGMENTS)),
        lambda: bench.log.truncate_to(5, NOW),
        lambda: bench.log.restart_at(50, NOW),
    ):
        with pytest.raises(Refused) as caught:
            use()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not part.is_cached()
    for use in (part.read, part.fileno):
        with pytest.raises(StaleSlice, match="ulimit -n"):
            use()
    bench.files.descriptors_max = None
    assert bench.truncations == []
    assert bench.offsets() == list(range(SEGMENTS))


def test_others_give_way_for_a_file_that_is_needed():
    """Where the process has fewer descriptors than its budget says, sealed segments give theirs."""
    bench = SmallBench()
    bench.fill()
    bench.flush()
    bench.offsets()
    bench.files.descriptors_max = bench.files.descriptors
    assert bench.files.descriptors > SEALED_MIN
    bench.append()
    assert bench.offsets(0)[0] == 0


def test_what_is_not_synced_is_synced_before_it_is_closed():
    """The kernel may forget a failed write of a file that nobody has open."""
    bench = SmallBench()
    bench.connect(24)
    bench.fill(SEALED_MIN + 1)
    count = bench.files.sync_count
    bench.fill(3)
    assert bench.files.sync_count == count + 3
    bench.flush()
    count = bench.files.sync_count
    bench.offsets()
    assert bench.files.sync_count == count


def test_a_failed_sync_is_not_forgotten():
    """Neither the roll that met it nor a later flush goes on."""
    bench = SmallBench()
    bench.connect(24)
    bench.fill(SEALED_MIN + 1)
    bench.files.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        bench.append()
    with pytest.raises(OSError, match="Input/output"):
        bench.flush()


def test_a_truncation_makes_a_sealed_segment_active_again():
    """Appends go on in it, and it is sealed again at the next roll."""
    bench = SmallBench()
    bench.connect(24)
    bench.fill()
    bench.log.truncate_to(20, NOW)
    assert bench.budget.logs == 1
    bench.fill(5)
    assert bench.offsets() == list(range(25))
    assert bench.budget.logs == 1
    assert bench.files.descriptors == bench.budget.sealed + 1 <= SEALED_MIN + 1
    bench.log.restart_at(100, NOW)
    assert (bench.budget.logs, bench.budget.sealed, bench.files.descriptors) == (1, 0, 1)


def test_retention_closes_files_at_once():
    """A slice of a deleted segment is read from its renamed file until that is removed."""
    bench = SmallBench(retention_bytes=SIZE)
    bench.fill(10)
    (part, *_) = bench.log.read(0, SIZE, 10)
    data = part.read()
    assert without_pause(bench.log.apply_retention(10, NOW)) == 9
    assert bench.files.descriptors == 1
    assert part.read() == data
    assert part.fileno() == -1
    assert bench.files.descriptors == 2
    without_pause(bench.log.remove_deleted_files(NOW + 1_000))
    assert bench.files.descriptors == 1
    with pytest.raises(StaleSlice):
        part.read()


def manager_of(files, limit: int) -> LogManager:
    """A started manager with a limit of open files."""
    limits = replace(UNLIMITED, segment_bytes=SIZE)
    manager = LogManager(files, PurePath("/data"), limits, DescriptorBudget(limit))
    manager.start("boot", "cluster", 1, NOW)
    return manager


def test_a_deleted_log_is_closed_at_once():
    """Its slices are read from the renamed directory until it is removed."""
    files = SimulatedFiles(random.Random(1))
    manager = manager_of(files, 64)
    log = manager.create(NAME, bytes(16), manager_limits(), NOW)
    for _ in range(5):
        log.append_as_leader(memoryview(encode()), 0, NOW)
    (first, *_, last) = log.read(0, 1 << 20, 5)
    data = first.read(), last.read()
    before = files.descriptors
    manager.delete(NAME, NOW)
    assert files.descriptors == before - 5
    assert manager.descriptors.logs == 0
    assert (first.read(), last.read()) == data
    without_pause(manager.remove_deleted_files(NOW + 1_000))
    assert manager.statistics().deleting_count == 0
    assert files.descriptors == 1  # the lock
    with pytest.raises(StaleSlice):
        first.read()


def manager_limits():
    """A segment for each batch."""
    return replace(UNLIMITED, segment_bytes=SIZE)


def test_logs_beyond_the_budget_are_refused_but_opened():
    """No more are made than the budget permits; those that are there open under any limit."""
    files = SimulatedFiles(random.Random(1))
    manager = manager_of(files, 64)
    made = []
    while manager.descriptors.has_room_for_log():
        made.append(TopicPartition("u", len(made)))
        log = manager.create(made[-1], bytes(16), manager_limits(), NOW)
        log.append_as_leader(memoryview(encode()), 0, NOW)
    assert 32 < len(made) < 48
    with pytest.raises(Refused, match="ulimit -n") as caught:
        manager.create(NAME, bytes(16), manager_limits(), NOW)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not files.exists(PurePath("/data/t-0"))
    for limit, is_kill in itertools.product((64, 24), (True, False)):
        if is_kill:
            files.kill()
        else:
            assert manager.close({})
        files.descriptors_max = limit
        manager = manager_of(files, limit)
        for name in made:
            log = manager.get(name)
            end = log.append_as_leader(memoryview(encode()), 0, NOW).last_offset + 1
            assert sum(map(len, log.read(0, 1 << 20, end))) == end * SIZE
    assert manager.close({})


def test_a_directory_that_cannot_be_emptied_yet_is_removed_later():
    """The removal of a tree needs descriptors."""
    files = SimulatedFiles(random.Random(1))
    manager = manager_of(files, 64)
    manager.create(NAME, bytes(16), manager_limits(), NOW)
    manager.delete(NAME, NOW)
    files.descriptors_max = 0
    without_pause(manager.remove_deleted_files(NOW + 1_000))
    files.descriptors_max = None
    assert manager.statistics().deleting_count == 1
    without_pause(manager.remove_deleted_files(NOW + 1_000))
    assert manager.statistics().deleting_count == 0


def test_a_stop_without_a_descriptor_is_not_marked_clean():
    """The next start reads more, and nothing is lost."""
    files = SimulatedFiles(random.Random(1))
    manager = manager_of(files, 64)
    log = manager.create(NAME, bytes(16), manager_limits(), NOW)
    log.append_as_leader(memoryview(encode()), 0, NOW)
    files.descriptors_max = 0
    assert not manager.close({NAME: 1})
    files.descriptors_max = None
    assert manager_of(files, 64).get(NAME).log_end == 1


def test_workers_read_while_files_are_closed_and_sealed(tmp_path: Path):
    """On real files, where a descriptor's number is used again at once: no other bytes are read."""
    files = RealFiles()
    budget = DescriptorBudget(64)
    budget.connections = 24
    sealed_files = SealedFiles(budget, files.new_lock())
    location = LogLocation(files, tmp_path / "t-0", NAME, sealed_files=sealed_files)
    size = len(encode(value=b"%08d" % 0))
    log = Log.open(location, replace(UNLIMITED, segment_bytes=size), now_ms=NOW)
    is_over = threading.Event()
    parts = []

    def read() -> int:
        rng, count = random.Random(3), 0
        while not is_over.is_set() or count < 100:
            if parts:
                offset = rng.randrange(len(parts))
                assert b"%08d" % offset in parts[offset].read()
                count += 1
        return count

    with ThreadPoolExecutor() as pool:
        workers = [pool.submit(read) for _ in range(4)]
        try:
            for number in range(300):
                batch = encode(value=b"%08d" % number)
                log.append_as_leader(memoryview(batch), 0, NOW)
                (part,) = log.read(number, size, number + 1)
                assert os.pread(part.fileno(), size, part.position) == part.read()
                parts.append(part)
        finally:
            is_over.set()
        for worker in workers:
            worker.result()
    assert budget.sealed <= SEALED_MIN
    log.close()
    with pytest.raises(StaleSlice):
        parts[0].read()


@pytest.mark.parametrize("is_reused", [True, False], ids=["another file's", "closed"])
def test_a_read_beside_a_close_is_repeated(is_reused: bool):
    """Its descriptor is closed between the look and the read, and its number may be another file's
    by then: what was read, or the error, does not count."""
    files = SimulatedFiles(random.Random(1))
    path = PurePath("file")
    usual = files.open(path, create=True)
    usual.append([b"right"])
    pool = SealedFiles()
    sealed = pool.adopt(files, path, usual)
    pool.seal(sealed)

    class ClosedMeanwhile:
        """Another thread closes the file at the beginning of a read."""

        def read(self, position: int, size: int) -> bytes:
            pool.close(sealed)
            if is_reused:
                return b"other"
            raise OSError(errno.EBADF, "closed")

        def close(self) -> None:
            usual.close()

    sealed.open = ClosedMeanwhile()  # type: ignore[assignment]
    assert sealed.read(0, 5) == b"right"
    assert sealed.read(0, 5) == b"right"


class OthersReadMeanwhile:
    """A lock between threads: each time when it is free again, another one has its turn."""

    def __init__(self) -> None:
        self.read = lambda: None

    def __enter__(self) -> None:
        """Nothing waits."""

    def __exit__(self, *error: object) -> None:
        read, self.read = self.read, lambda: None
        read()
        self.read = read


def test_a_read_while_a_segment_changes_its_file():
    """A worker reads between any two steps of a roll and of a truncation: it finds the old file or
    the new one, and never one that is closed."""
    bench = SmallBench()
    lock = OthersReadMeanwhile()
    bench.log.abandon()
    bench.location = replace(bench.location, sealed_files=SealedFiles(bench.budget, lock))
    bench.open(LastKnownState(same_boot=True))
    bench.connect(24)
    bench.fill(SEALED_MIN + 2)
    bench.flush()
    parts = [bench.log.read(offset, SIZE, offset + 1)[0] for offset in range(bench.log.log_end)]
    counts = []

    def read() -> None:
        counts.append(len([part.read() for part in parts if part.is_valid()]))

    lock.read = read
    bench.fill(3)
    bench.log.truncate_to(SEALED_MIN, NOW)
    assert len(counts) > 10
    assert max(counts) == SEALED_MIN + 2
    assert [part.is_valid() for part in parts].count(True) == SEALED_MIN


def test_another_error_than_a_shortage_is_no_refusal():
    """A disk that fails ends the broker, as ever."""
    bench = SmallBench()
    bench.fill()
    bench.flush()
    bench.connect(24)
    bench.offsets(10)
    bench.files.fail("open", number=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        bench.log.read(0, SIZE, SEGMENTS)
