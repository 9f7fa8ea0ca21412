"""Transactions in a log against a model that counts: after any history they agree."""

import random

import pytest

from minibroker.broker.log.outcomes import LastKnownState
from minibroker.broker.turns import without_pause
from minibroker.protocol.records.record import encode_batch
from tests.unit.log.transacting import aborted, append, consume, end
from tests.unit.log.workbench import NOW, Bench, finish


class Written:
    """A batch of the model. `kind` is "plain", "data", "commit" or "abort"."""

    def __init__(self, base, size, producer, kind, keys=()):
        self.base, self.size, self.producer, self.kind, self.keys = base, size, producer, kind, keys

    @property
    def next(self):
        return self.base + self.size


class Model:
    """A log of batches, and what follows from it by counting."""

    def __init__(self):
        self.batches: list[Written] = []
        self.start = 0

    def transactions(self):
        """First offset, marker (None: open), producer, and whether it was aborted."""
        started: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.kind == "data":
                started.setdefault(batch.producer, batch.base)
            elif batch.kind in ("commit", "abort") and batch.producer in started:
                first = started.pop(batch.producer)
                found.append((first, batch.base, batch.producer, batch.kind == "abort"))
        return found + [(first, None, producer, False) for producer, first in started.items()]

    def stable(self, high_watermark, committed):
        firsts = [
            first
            for first, marker, *_ in self.transactions()
            if marker is None or marker >= max(high_watermark, committed)
        ]
        return max(self.start, min([high_watermark, *firsts]))

    def aborted(self, start, stop):
        return {
            (producer, first, marker)
            for first, marker, producer, is_aborted in self.transactions()
            if is_aborted and first < stop and marker >= start
        }

    def visible(self, start, stable):
        spans = [(p, f, m) for f, m, p, is_aborted in self.transactions() if is_aborted]
        return [
            (batch.base + index, key.encode())
            for batch in self.batches
            if batch.kind in ("plain", "data") and batch.next <= stable
            for index, key in enumerate(batch.keys)
            if batch.base + index >= start
            and not any(
                batch.kind == "data" and p == batch.producer and f <= batch.base < m
                for p, f, m in spans
            )
        ]


class Run:
    """A log and the model of it, changed alike."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = seed % 3
        self.is_compacted = self.kind == 0
        self.bench = Bench(
            segment_bytes=self.rng.choice((250, 400, 900)),
            index_interval_bytes=100,
            is_compacted=self.is_compacted,
            delete_retention_ms=self.rng.choice((0, 10)),
            retention_bytes=1500 if self.kind == 1 else -1,
            file_delete_delay_ms=0,
        )
        self.model = Model()
        self.sequences: dict[int, int] = {}
        self.keys = 0
        self.committed = 0  # the highest high watermark that the log was told
        self.leader_epoch = 0
        self.now = NOW
        self.cleaned = 0

    @property
    def log(self):
        return self.bench.log

    def key(self) -> str:
        self.keys += 1
        return f"k{self.keys}"

    def run(self, steps: int) -> None:
        actions = [self.data] * 8 + [self.marker] * 5 + [self.plain] * 2
        actions += [self.commit] * 2 + [self.truncate, self.clean_stop, self.kill]
        # Once a power cut has taken all snapshots, the log does not know what retention deleted.
        actions += ([self.compact, self.power_cut], [self.retain, self.delete], [self.power_cut])[
            self.kind
        ]
        for _ in range(steps):
            self.rng.choice(actions)()
            self.compare()

    def data(self) -> None:
        producer = self.rng.randrange(5)
        keys = [self.key() for _ in range(self.rng.randint(1, 3))]
        sequence = self.sequences.get(producer, 0)
        done = append(self.bench, producer, sequence, *keys, leader_epoch=self.leader_epoch)
        self.sequences[producer] = sequence + len(keys)
        self.model.batches.append(Written(done.base_offset, len(keys), producer, "data", keys))

    def marker(self) -> None:
        producer, commit = self.rng.randrange(5), self.rng.random() < 0.4
        base = end(self.bench, producer, commit=commit, leader_epoch=self.leader_epoch)
        kind = "commit" if commit else "abort"
        self.model.batches.append(Written(base, 1, producer, kind))

    def plain(self) -> None:
        keys = [self.key()]
        records = [(NOW, key.encode(), b"v", ()) for key in keys]
        batch = memoryview(encode_batch(records))
        done = self.log.append_as_leader(batch, self.leader_epoch, NOW)
        self.model.batches.append(Written(done.base_offset, 1, -1, "plain", keys))

    def commit(self) -> None:
        self.committed = self.mark()
        self.log.last_stable_offset(self.committed)

    def mark(self) -> int:
        """A high watermark from now on: the end of a batch."""
        ends = [batch.next for batch in self.model.batches if batch.next > self.committed]
        return self.rng.choice([self.committed, *ends])

    def truncate(self) -> None:
        offset = self.rng.randint(max(self.committed, self.cleaned), self.log.log_end)
        self.log.truncate_to(offset, NOW)
        self.cut()

    def cut(self) -> None:
        """Fit the model to where the log ends."""
        log_end = self.log.log_end
        assert log_end >= self.committed
        self.model.batches = [each for each in self.model.batches if each.next <= log_end]
        assert not self.model.batches or self.model.batches[-1].next == log_end
        self.sequences = {
            producer: entry.last_sequence + 1 for producer, entry in self.log.producers.entries()
        }
        self.leader_epoch += 1

    def clean_stop(self) -> None:
        log_start = self.log.log_start
        self.log.close()
        end_offset = self.log.log_end
        self.bench.open(LastKnownState(True, end_offset, log_start, self.committed))

    def kill(self) -> None:
        log_start, point = self.log.log_start, self.log.recovery_point
        self.bench.files.kill()
        self.bench.open(LastKnownState(False, point, log_start, self.committed, same_boot=True))

    def power_cut(self) -> None:
        self.bench.flush()
        for _ in range(self.rng.randrange(4)):
            self.data()
            self.marker()
        self.committed = min(self.committed, self.log.recovery_point)
        log_start, point = self.log.log_start, self.log.recovery_point
        self.bench.files.power_off()
        self.bench.open(LastKnownState(False, point, log_start, self.committed))
        self.cut()

    def retain(self) -> None:
        without_pause(self.log.apply_retention(self.committed, NOW))
        finish(self.log.remove_deleted_files(NOW + 10))
        self.model.start = self.log.log_start

    def delete(self) -> None:
        self.log.raise_start(self.rng.randint(self.log.log_start, self.committed or 0))
        self.model.start = self.log.log_start

    def has_records(self, entry, stable) -> bool:
        """Whether compaction cannot have removed all records of a transaction below an offset."""
        producer, first, marker = entry
        batches = [b for b in self.model.batches if b.producer == producer and b.kind == "data"]
        return any(max(first, self.cleaned) <= b.base < min(marker, stable) for b in batches)

    def compact(self) -> None:
        self.now += 7
        stable = self.log.last_stable_offset(self.committed)
        found = self.log.compaction.find_cleanable(stable, self.now)
        if found.dirty_size:
            finish(self.log.compaction.clean(found, 1 << 20, self.now))
            finish(self.log.remove_deleted_files(self.now + 10))
            self.cleaned = max(self.cleaned, found.end)

    def compare(self) -> None:
        rng, log, model = self.rng, self.log, self.model
        for mark in (self.committed, self.mark()):
            self.committed = mark
            stable = model.stable(mark, mark)
            assert log.last_stable_offset(mark) == stable
            start = rng.randint(log.log_start, stable)
            assert consume(self.bench, start, mark, rng.choice((1, 200, 1 << 40)))[0] == (
                model.visible(start, stable)
            )
            found = {entry[:3] for entry in aborted(self.bench, start, stable)}
            expected = model.aborted(start, stable) if stable > start else set()
            if self.is_compacted:  # then recovery finds the first batch that is left
                ends = {entry[::2] for entry in found}
                assert ends <= {entry[::2] for entry in model.aborted(0, log.log_end)}
                assert ends >= {entry[::2] for entry in expected if self.has_records(entry, stable)}
            elif stable > start:
                assert found == expected


@pytest.mark.parametrize("seed", range(60))
def test_any_history_gives_what_the_model_counts(seed):
    """Appends, markers, truncations, restarts, power cuts, retention, deleted records, compaction:
    the last stable offset, the visible records and the aborted transactions are the model's."""
    Run(seed).run(60)
