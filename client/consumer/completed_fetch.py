"""The records of one partition in one FETCH answer, decoded a batch at a time.

The answer begins with the batch that holds the fetch offset and may end in the middle of one. So
records below the fetch offset are dropped, and an incomplete batch at the end is left for the next
request. Batches without records for an application (control batches, batches of aborted
transactions, batches that lost all their records) only move the position.
"""

from itertools import repeat
from typing import Generic, NamedTuple

from minibroker.client.consumer.aborted_transactions import AbortedTransactions
from minibroker.client.serialization import K, V
from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC, ErrorCode
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    has_valid_crc,
    iterate_headers,
    read_header,
)
from minibroker.protocol.records.columns import Headers, decode_columns
from minibroker.protocol.records.compression import CODEC_NAMES
from minibroker.protocol.types import TopicPartition


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record as an application gets it; `timestamp` is ms since the epoch.

    Key and value are bytes, or what the consumer's deserializers make of them.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: Headers


class ValidBatches(NamedTuple):
    """The first batches of an answer, up to one that cannot be what was stored; `size` is their
    size in bytes, `flaw` what is wrong with the next one ("" if nothing is)."""

    headers: list[BatchHeader]
    size: int
    flaw: str


def valid_batches(records: memoryview, offset: int, end: int) -> ValidBatches:
    """Return the complete batches of an answer: from `offset` on, below `end` (-1: unknown), in
    order.

    No checksum covers the offset of a batch. A gap may be right, because records may have been
    compacted away. But if the batch after a gap has a lower offset, the gap was an error, and both
    are left out. A batch whose length is wrong is found, and reported, once it is the first of an
    answer.
    """
    headers: list[BatchHeader] = []
    size, next_offset, flaw = 0, offset, ""
    gap_at = -1  # where the last batch begins, if it is after a gap
    try:
        for position, header in iterate_headers(records):
            if 0 <= end < header.next_offset:
                flaw = f"the broker sent offset {header.last_offset}, and said the end is {end}"
            elif header.next_offset <= next_offset or (
                headers and header.base_offset < next_offset
            ):
                again = f"of offset {header.base_offset} after those up to {next_offset - 1}"
                flaw = f"the broker sent records {again}"
            if flaw:
                if gap_at >= 0:
                    size = gap_at
                    headers.pop()
                break
            gap_at = position if header.base_offset > next_offset else -1
            headers.append(header)
            size, next_offset = position + header.size, header.next_offset
    except InvalidBatch:
        pass
    return ValidBatches(headers, size, flaw)


class UndecodableBatch(InvalidBatch):
    """A batch whose checksum is right, and whose records cannot be decoded: so it was sent. The
    message names its producer, as far as the batch does; the records behind it begin at
    `next_offset`."""

    def __init__(self, error: InvalidBatch, header: BatchHeader) -> None:
        who = f"producer id {header.producer_id}" if header.has_producer else "no producer id"
        codec = dict(enumerate(CODEC_NAMES)).get(header.compression, "unknown")
        super().__init__(
            error.code,
            f"{error.message} (a batch of {header.size} bytes, {who}, compression {codec},"
            f" timestamp {header.max_timestamp})",
        )
        self.next_offset = header.next_offset


class CompletedFetch:
    """Some batches of a partition, from offset `start` on; `next_offset` is after the taken
    records.

    Batches of `aborted` transactions are left out. Once it has raised, it always does: it returns
    no record after damaged bytes.
    """

    def __init__(
        self,
        name: TopicPartition,
        data: memoryview,
        start: int,
        *,
        check_crcs: bool,
        aborted: AbortedTransactions | None = None,
    ) -> None:
        self.next_offset = start
        self._name = name
        self._data = data
        self._at = 0
        self._check_crcs = check_crcs
        self._aborted = aborted
        self._records: list[ConsumerRecord] = []  # of the batch before `_at`
        self._cursor = 0  # the first of them that was not taken
        self._batch_end = start  # the offset after them

    @property
    def size(self) -> int:
        """The bytes of memory that it holds until it is dropped."""
        return len(self._data)

    def read(self, count: int) -> list[ConsumerRecord]:
        """Return up to `count` records, all of one batch; none when there is nothing left.

        Raises InvalidBatch for damaged bytes, UndecodableBatch for what a producer sent.
        """
        while self._cursor == len(self._records):
            if not self._unpack_next():
                return []
        taken = self._records[self._cursor : self._cursor + count]
        self._cursor += len(taken)
        is_last = self._cursor == len(self._records)
        self.next_offset = self._batch_end if is_last else taken[-1].offset + 1
        return taken

    def skip_batch(self) -> None:
        """Leave out the batch that `read` has raised `UndecodableBatch` for."""
        header = read_header(self._data, self._at)
        self._at += header.size
        self.next_offset = header.next_offset

    def give_back(self, records: list[ConsumerRecord]) -> None:
        """Make `records`, which were taken last, the next ones to be taken."""
        if self._cursor == len(self._records):
            self._batch_end = self.next_offset
        self._records = records + self._records[self._cursor :]
        self._cursor = 0
        self.next_offset = records[0].offset

    def _unpack_next(self) -> bool:
        """Decode the next complete batch; return False if there is none."""
        at = self._at
        left = len(self._data) - at
        if left < BATCH_HEADER_BYTES:
            return self._end_at(left)
        header = read_header(self._data, at)
        if not BATCH_HEADER_BYTES <= header.size <= left:
            return self._end_at(left)
        batch = self._data[at : at + header.size]
        if header.next_offset > self.next_offset:
            records = self._unpack(batch, header)
            if records and records[0].offset < self.next_offset:
                records = [record for record in records if record.offset >= self.next_offset]
            self._records, self._cursor = records, 0
            self._batch_end = header.next_offset
            if not records:
                self.next_offset = header.next_offset
        self._at = at + header.size
        return True

    def _end_at(self, left: int) -> bool:
        """Handle a rest that is no complete batch: right after others, an error at the
        beginning."""
        if left and self._at == 0:
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"no batch in {left} bytes")
        return False

    def _unpack(self, batch: memoryview, header: BatchHeader) -> list[ConsumerRecord]:
        # First: the checksum covers the bit by which records are skipped.
        if self._check_crcs and header.magic == MAGIC and not has_valid_crc(batch, header):
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "the checksum does not match")
        if header.is_control:
            if self._aborted is not None:
                self._aborted.on_control_batch(batch, header)
            return []
        if self._aborted is not None and self._aborted.has(header):
            return []
        try:
            columns = decode_columns(batch, header)
        except InvalidBatch as error:
            if self._check_crcs or has_valid_crc(batch, header):
                raise UndecodableBatch(error, header) from None
            raise
        # One tuple at a time in C: a third of the time of calling the class for each record.
        rows = zip(*map(repeat, self._name), *columns, strict=False)
        return list(map(tuple.__new__, repeat(ConsumerRecord), rows))
