"""Crashes in the middle of compactions: of the process, and of the machine, with torn writes."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest

from minibroker.broker.log.outcomes import LastKnownState
from minibroker.testing.disk import Stopped
from tests.unit.log.test_cleaning import Bench, bench, clean, newest_of, pairs, put
from tests.unit.log.workbench import NOW

SEED = 20_261_120
POINTS = 200
SOAK_POINTS = 5_000
STORY_POINTS = 10  # in one story
KEYS = 5
PRODUCER = 7


@dataclass
class Story:
    """A log that is written and compacted in turns: all that was written, and how many of its
    records are durable."""

    bench: Bench
    rng: random.Random
    written: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    epoch: int = 0
    sequence: int = 0
    operations: list[int] = field(default_factory=list)  # of the disk, in compactions

    def run(self) -> None:
        """Some turns. What is written is flushed, so that no crash may take it; a segment that
        compaction has replaced may be removed at once."""
        for _ in range(3):
            self.epoch += 1
            for _ in range(self.rng.randint(10, 25)):
                self._write()
            self.bench.flush()
            self.compact(self.rng.choice((600, 1 << 20)))
            self.bench.log.remove_deleted_files(NOW + 100_000)

    def compact(self, map_bytes: int) -> None:
        """Compact the log, if there is anything to compact."""
        log = self.bench.log
        if log.compaction.find_cleanable(log.log_end, NOW).dirty_size:
            first = self.bench.files.operation_count
            clean(self.bench, map_bytes=map_bytes)
            self.operations += range(first, self.bench.files.operation_count)

    def _write(self) -> None:
        rows = [
            (f"k{self.rng.randrange(KEYS)}", self.rng.choice((None, "v", "w" * 30)))
            for _ in range(self.rng.randint(1, 2))
        ]
        producer = (PRODUCER, 0, self.sequence) if self.rng.random() < 0.3 else None
        first = put(self.bench, *rows, epoch=self.epoch, producer=producer)
        if producer is not None:
            self.sequence += len(rows)
        self.written += [
            (first + number, key.encode(), value and value.encode())
            for number, (key, value) in enumerate(rows)
        ]

    def judge(self, what: str) -> None:
        """The log has the newest record of each key, and none that was not written, in order."""
        log, durable = self.bench.log, self.bench.log.recovery_point
        assert log.damage is None, what
        kept = pairs(self.bench)
        assert {*kept} <= {*self.written}, what
        assert [row[0] for row in kept] == sorted({row[0] for row in kept}), what
        flushed = newest_of([row for row in self.written if row[0] < durable])
        last = {key: offset for offset, key, _ in kept}
        for offset, key, _ in flushed:
            assert last.get(key, -1) >= offset, what
        entries = log.epochs.entries
        assert [one.epoch for one in entries] == sorted({one.epoch for one in entries}), what
        known = log.producers.get(PRODUCER)
        if known is not None:
            assert known.last_sequence < self.sequence, what


def tell(seed: int) -> Story:
    """A story that has not begun; its tombstones stay."""
    return Story(bench(delete_retention_ms=1 << 40), random.Random(seed))


@cache
def operations_of(seed: int) -> Sequence[int]:
    """The disk's operations in the compactions of a story that no crash ends."""
    whole = tell(seed)
    whole.run()
    operations = (*whole.operations,)
    whole.judge(f"seed {seed} without a crash")
    return operations


def crash(seed: int, *, is_machine: bool) -> None:
    """Stop somewhere in a compaction, open the log, judge it, and compact it again."""
    first = seed - seed % STORY_POINTS  # its story serves several points
    point = random.Random(seed).choice(operations_of(first))
    story = tell(first)
    one = story.bench
    what = f"seed {seed}, stopped at {point}, {'machine' if is_machine else 'process'}"
    one.files.rng.seed(seed)
    one.files.stop_at(point - one.files.operation_count)
    with pytest.raises(Stopped):
        story.run()
    durable = one.log.recovery_point
    if is_machine:
        one.files.power_off()
        one.open(LastKnownState(recovery_point=durable))
    else:
        one.reopen_killed()
    assert one.log.log_end >= durable, what
    story.judge(what)
    assert not [name for name in one.names() if name.endswith(("cleaned", "swap"))], what
    one.log.compaction.first_dirty = 0
    story.compact(1 << 20)
    story.judge(f"{what}, compacted again")


@pytest.mark.parametrize("is_machine", [False, True], ids=["process", "machine"])
def test_a_crash_at_random_points_of_compactions_loses_no_newest_record(is_machine: bool) -> None:
    """Whatever the disk had to do then, and whatever of the last bytes and names it lost."""
    for seed in range(SEED, SEED + POINTS // 2):
        crash(seed, is_machine=is_machine)


@pytest.mark.soak
def test_more_random_points() -> None:
    """Other ones each time; the seed is in the failure's message."""
    first = time.time_ns() % (1 << 40)
    for seed in range(first, first + SOAK_POINTS):
        crash(seed, is_machine=seed % 2 == 0)
