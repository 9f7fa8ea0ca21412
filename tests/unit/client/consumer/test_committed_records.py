"""A reader of committed records: what it returns, and what it passes over."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.consumer.positions import Positions
from minibroker.client.errors import CorruptRecords
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.constants import READ_COMMITTED, READ_UNCOMMITTED
from minibroker.protocol.messages.fetch import AbortedTransaction, PartitionFetched
from minibroker.protocol.records.batch import (
    ProducerStamp,
    read_header,
    stamp,
    stamp_producer,
    stamp_transaction,
)
from minibroker.protocol.records.control import EndMarker, encode_end_marker
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition

A = TopicPartition("t", 0)
PLAIN = 9  # the id of a producer without transactions


class Written(NamedTuple):
    """A batch of a partition's log: of records, or a marker."""

    offset: int
    producer_id: int
    data: bytes


class PartitionLog:
    """What transactions write to a partition, and what is to be read of it."""

    def __init__(self) -> None:
        self.batches: list[Written] = []
        self.end = 0
        self.open: dict[int, list[int]] = {}  # the offsets of each open transaction's records
        self.committed: list[int] = []
        self.aborted: list[tuple[AbortedTransaction, int]] = []  # with the marker's offset

    def write(self, producer_id: int, count: int = 1) -> None:
        """Append a batch: of a transaction, or of the plain producer."""
        offsets = list(range(self.end, self.end + count))
        data = encode_batch([(0, None, b"%d" % offset, ()) for offset in offsets])
        producer = ProducerStamp(producer_id, 0, 0)
        if producer_id == PLAIN:
            stamp_producer(data, producer)
            self.committed += offsets
        else:
            stamp_transaction(data, producer)
            self.open.setdefault(producer_id, []).extend(offsets)
        self._append(producer_id, data, count)

    def finish(self, producer_id: int, *, is_commit: bool) -> None:
        """Append a marker."""
        offsets = self.open.pop(producer_id, [])
        if is_commit:
            self.committed += offsets
        elif offsets:
            self.aborted.append((AbortedTransaction(producer_id, offsets[0]), self.end))
        data = encode_end_marker(EndMarker(is_commit, 0), producer_id, 0, 0)
        self._append(producer_id, data, 1)

    def _append(self, producer_id: int, data: bytearray, count: int) -> None:
        stamp(data, self.end, 0)
        self.batches.append(Written(self.end, producer_id, bytes(data)))
        self.end += count

    @property
    def last_stable(self) -> int:
        """The first offset of an open transaction, or the end."""
        return min([offsets[0] for offsets in self.open.values()], default=self.end)

    def answer(self, offset: int, batch_count: int, level: int) -> PartitionFetched:
        """What a broker answers: so many batches, from the one with `offset` on, below the end for
        the level, with the aborted transactions that overlap them."""
        end = self.last_stable if level == READ_COMMITTED else self.end
        found = [
            each
            for each in self.batches
            if read_header(each.data).next_offset > offset and each.offset < end
        ][:batch_count]
        upper = read_header(found[-1].data).next_offset if found else offset
        aborted: Sequence[AbortedTransaction] | None = None
        if level == READ_COMMITTED:
            aborted = [one for one, marker in self.aborted if one[1] < upper and marker >= offset]
        return PartitionFetched(
            *A,
            high_watermark=self.end,
            records=b"".join(each.data for each in found),
            last_stable_offset=self.last_stable,
            aborted_transactions=None if aborted is None else tuple(aborted),
        )


def read(log: PartitionLog, level: int, *, batch_count: int = 100, start: int = 0) -> list[int]:
    """Read all that can be read from an offset on, in answers of so many batches."""
    name = {READ_COMMITTED: "read_committed", READ_UNCOMMITTED: "read_uncommitted"}[level]
    positions = Positions(read_options(ConsumerOptions, "h:1", {"isolation_level": name}))
    positions.assign([A])
    positions.seek(A, start)
    offsets: list[int] = []
    end = log.last_stable if level == READ_COMMITTED else log.end
    while True:
        [asked], _ = positions.plan(lambda _: 0, 0.0)
        answer = log.answer(asked.fetch_offset, batch_count, level)
        positions.handle_answer(asked, answer, 0.0)
        while records := positions.take_records(3):
            assert all(record.value == b"%d" % record.offset for record in records)
            offsets += [record.offset for record in records]
        if not len(answer.records):
            assert positions.position(A) == max(end, start)
            return offsets


def test_records_of_aborted_transactions_are_left_out() -> None:
    """Whatever is between them, and whatever comes behind them of the same producer."""
    log = PartitionLog()
    log.write(1, 2)
    log.write(2, 2)
    log.write(PLAIN)
    log.finish(1, is_commit=False)
    log.write(1)
    log.write(2)
    log.finish(2, is_commit=True)
    log.finish(1, is_commit=True)
    for batch_count in range(1, 9):
        assert read(log, READ_COMMITTED, batch_count=batch_count) == [2, 3, 4, 6, 7]
        assert read(log, READ_UNCOMMITTED, batch_count=batch_count) == [0, 1, 2, 3, 4, 6, 7]


def test_a_reader_may_begin_within_an_aborted_transaction() -> None:
    """Its list names a first offset that is before the answer's."""
    log = PartitionLog()
    log.write(1, 5)
    log.write(1, 5)
    log.write(PLAIN)
    log.finish(1, is_commit=False)
    log.write(PLAIN)
    for start in range(11):
        assert read(log, READ_COMMITTED, start=start) == [10, 12]


def test_nothing_behind_an_open_transaction_is_read() -> None:
    """Until it has ended."""
    log = PartitionLog()
    log.write(PLAIN)
    log.write(1)
    log.write(PLAIN)
    assert read(log, READ_COMMITTED) == [0]
    log.finish(1, is_commit=False)
    assert read(log, READ_COMMITTED) == [0, 2]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "commit", "abort"]),
        st.sampled_from([1, 2, 3, PLAIN]),
        st.integers(1, 3),
    ),
    max_size=30,
)


@given(OPERATIONS, st.integers(1, 6), st.integers(0, 40))
def test_any_history_is_read_as_the_model_has_it(
    operations: list[tuple[str, int, int]], batch_count: int, start: int
) -> None:
    """From any offset on, in answers of any size: each committed record below the last stable
    offset once and in order, and no other."""
    log = PartitionLog()
    for what, producer_id, count in operations:
        if what == "write":
            log.write(producer_id, count)
        elif producer_id != PLAIN:
            log.finish(producer_id, is_commit=what == "commit")
    start = min(start, log.last_stable)
    expected = [offset for offset in sorted(log.committed) if start <= offset < log.last_stable]
    assert read(log, READ_COMMITTED, batch_count=batch_count, start=start) == expected


def test_the_end_of_committed_records_is_the_last_stable_offset() -> None:
    """`on_partition_eof` is called there, and again further on."""
    log = PartitionLog()
    log.write(PLAIN)
    log.write(1)
    options = read_options(ConsumerOptions, "h:1", {"isolation_level": "read_committed"})
    positions = Positions(options)
    positions.assign([A])
    positions.seek(A, 0)
    ends: list[int] = []
    for _ in range(2):
        for _ in range(3):
            [asked], _ = positions.plan(lambda _: 0, 0.0)
            answer = log.answer(asked.fetch_offset, 10, READ_COMMITTED)
            positions.handle_answer(asked, answer, 0.0)
            while positions.take_records(10):
                pass
            positions.report_ends(lambda _, end: ends.append(end))
        log.finish(1, is_commit=False)
    assert ends == [1, 3]


def test_a_marker_that_is_damaged_is_no_end() -> None:
    """The checksum is compared first, of markers, too."""
    log = PartitionLog()
    log.write(1)
    log.finish(1, is_commit=False)
    damaged = bytearray(log.batches[-1].data)
    damaged[-1] ^= 1
    log.batches[-1] = log.batches[-1]._replace(data=bytes(damaged))
    with pytest.raises(CorruptRecords, match="the checksum does not match"):
        read(log, READ_COMMITTED)


def test_what_is_passed_over_counts_as_done() -> None:
    """A group's offset does not stay in front of markers and aborted records."""
    log = PartitionLog()
    log.write(1, 3)
    log.finish(1, is_commit=False)
    options = read_options(ConsumerOptions, "h:1", {"isolation_level": "read_committed"})
    positions = Positions(options)
    positions.assign([A])
    positions.seek(A, 0)
    [asked], _ = positions.plan(lambda _: 0, 0.0)
    positions.handle_answer(asked, log.answer(0, 10, READ_COMMITTED), 0.0)
    assert positions.take_records(10) == []
    assert [each.name for each in positions.recently_delivered] == [A]
    assert positions.position(A) == 4
