"""A consumer's position in each partition, and the records that were fetched but not yet returned.

A partition has two offsets. `position` is that of the next record for the application; the fetch
offset, which is ahead, is the offset of the next request. Between them are at most two completed
fetches (the records of one answer each): one that is being read and one that is ready. So a broker
is asked while the application works, and memory stays bounded.

Completed fetches are returned in the order of their arrival, over all partitions. A batch is
decoded when its first record is wanted, so a poll costs what it returns. All work is per batch,
except decoding itself: records are passed on by slices of lists.

An answer that no longer fits (the application has sought elsewhere meanwhile) is dropped: it is for
another fetch offset, or for another `Reset`. What cannot be read (damaged bytes, an offset that is
gone and no policy for it) stops the partition: the records before it are returned, then every poll
raises, until the application seeks. No record is skipped silently.

A leader that was elected uncleanly, or lost unflushed data in a power failure, may lack records
that were read here. Each FETCH names the epoch of the last record before its offset, as a
follower's does, and the leader's answer says where the logs diverge (A10, A11). This replaces
OFFSETS_FOR_LEADER_EPOCH, which Kafka's consumers send once they learn of a new leader: it costs no
round trip, needs no state in between, and checks every read, at the leader, at that moment.

With `read_committed` an answer ends at the last stable offset, and lists the aborted transactions
among its batches, which are left out (aborted_transactions.py).

Fetched records that no longer exist are dropped. If the application has seen some of them, the
partition goes on where the logs diverge, with a warning: nothing that is still the same is read
twice, nothing is left out. With policy none it stops instead, and the error names both offsets. A
topic that was created again counts as a log that was truncated to nothing.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final, TypeAlias

from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.consumer.aborted_transactions import AbortedTransactions
from minibroker.client.consumer.assigned_partition import AssignedPartition, Reset
from minibroker.client.consumer.completed_fetch import (
    CompletedFetch,
    ConsumerRecord,
    UndecodableBatch,
    valid_batches,
)
from minibroker.client.errors import (
    ClientError,
    CorruptRecords,
    LogTruncated,
    OffsetOutOfRange,
    PositionError,
    error_code,
)
from minibroker.client.options import ConsumerOptions
from minibroker.protocol.constants import (
    EARLIEST_TIMESTAMP,
    INT64_MAX,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    NO_OFFSET,
    READ_COMMITTED,
    ErrorCode,
)
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE
from minibroker.protocol.messages.fetch import PartitionFetch, PartitionFetched
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import TopicPartition

# Called with a partition and the offset of its end, once all records before it were returned.
OnPartitionEof: TypeAlias = Callable[[TopicPartition, int], object]

COMPLETED_FETCHES_MAX: Final = 2
# After so many failures in a row the metadata are requested again, whatever the errors.
STUBBORN_FAILURES: Final = 5
NOTHING: Final = memoryview(b"")
DAMAGED: Final = (
    "the stored bytes are damaged: seek behind them to go on without these records;"
    " docs/operations.md (CorruptRecords) has how to get them back"
)
UNDECODABLE: Final = (
    "the checksum is right, so a producer sent it like this, and no client can read it: seek to"
    " offset {} to go on behind it, or set skip.undecodable.batches"
)
RESET_TO: Final = {"latest": LATEST_TIMESTAMP, "earliest": EARLIEST_TIMESTAMP}

# The leader epoch of a partition; None if it has no leader, or another one than the broker.
EpochOf: TypeAlias = Callable[[TopicPartition], int | None]

log = logging.getLogger("minibroker.client")


class Positions:
    """All assigned partitions. `is_changed` is set when a broker may be asked for something new."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        # In the order of requests: a partition with new data goes last (FET-11).
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        # The id of each topic to which the positions belong. A later topic of that name may have
        # records at the same offsets, of the same epochs.
        self._topic_ids: dict[str, bytes] = {}
        # The order of returning records: an entry for each completed fetch, and perhaps more.
        self._turns: deque[AssignedPartition] = deque()
        # The partitions whose records were taken since this was emptied (delivered_positions.py).
        self.recently_delivered: list[AssignedPartition] = []
        self.is_changed = False
        # Called when the application or a reset sets a position: it leaves out what lies between.
        self.on_jump: Callable[[TopicPartition, int], None] = lambda _name, _offset: None

    # -- the application's side

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, by name."""
        return sorted(self._partitions)

    @property
    def queued_bytes(self) -> int:
        """The memory of the records that were fetched and not yet returned."""
        return sum(
            fetch.size for assigned in self._partitions.values() for fetch in assigned.fetches
        )

    def assign(self, names: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on; one that was assigned before goes on.

        In a group a new one waits for its committed offset (`awaiting_committed`).
        """
        before, self._partitions = self._partitions, {}
        for name in names:
            self._partitions[name] = before.get(name) or AssignedPartition(name)
            if name not in before and not self._options.group_id:
                self._reset(self._partitions[name], "it has no position yet")
        self._turns = deque(turn for turn in self._turns if turn.name in self._partitions)
        topics = {name.topic for name in self._partitions}
        self._topic_ids = {name: each for name, each in self._topic_ids.items() if name in topics}
        self.is_changed = True

    def seek(self, name: TopicPartition, offset: int) -> None:
        """Return the record of this offset next, or the first one after it."""
        if not 0 <= offset <= INT64_MAX:
            raise ValueError(f"an offset is 0 to {INT64_MAX}, not {offset}")
        self.of(name).seek(offset)
        self.on_jump(name, offset)
        self.is_changed = True

    def seek_to(self, name: TopicPartition, timestamp: int) -> None:
        """Go on at the earliest or latest offset, which the broker will say."""
        self.of(name).seek(None, Reset(timestamp))
        self.is_changed = True

    def position(self, name: TopicPartition) -> int | None:
        """Return the offset of the next record to return; None while it is not known."""
        return self.of(name).position

    def high_watermark(self, name: TopicPartition) -> int:
        """Return the last known high watermark; -1 before the first."""
        return self.of(name).high_watermark

    def pause(self, name: TopicPartition) -> None:
        """Return no records of this partition; it keeps its position."""
        assigned = self.of(name)
        assigned.is_paused = True
        assigned.last_taken_at = None
        self.is_changed = True  # the records that it holds keep no others waiting

    def resume(self, name: TopicPartition) -> None:
        """End a pause."""
        assigned = self.of(name)
        if assigned.is_paused:
            assigned.is_paused = False
            self._turns.extend([assigned] * len(assigned.fetches))
            self.is_changed = True

    def take_records(self, count: int, now: float = 0.0) -> list[ConsumerRecord]:
        """Return up to `count` records, in order within each partition. Raises `PositionError`."""
        self._raise_failure()
        taken: list[ConsumerRecord] = []
        while self._turns and len(taken) < count:
            assigned = self._turns[0]
            is_ready = assigned.fetches and not assigned.is_paused
            if is_ready and (records := self._read_from(assigned, count - len(taken))):
                taken += records
                assigned.last_taken_at = now
                self._mark_delivered(assigned)
            else:
                self._turns.popleft()
        if not taken:
            self._raise_failure()
        return taken

    def report_ends(self, on_partition_eof: OnPartitionEof) -> None:
        """Report each end that was reached, once. The callback may change the positions."""
        for name in [
            name for name, each in self._partitions.items() if each.unreported_end is not None
        ]:
            assigned = self._partitions.get(name)
            if assigned is not None and (end := assigned.unreported_end) is not None:
                assigned.reported_end = end
                on_partition_eof(name, end)

    def give_back(self, records: Iterable[ConsumerRecord]) -> None:
        """Take back records that were taken last and not used; they are taken again first."""
        groups = [list(group) for _, group in groupby(records, key=lambda record: record[:2])]
        for group in reversed(groups):
            assigned = self._partitions.get(TopicPartition(group[0].topic, group[0].partition))
            if assigned is None:
                continue
            if assigned.position is None:
                if assigned.reset is None or not assigned.reset.is_gap:
                    continue
                assigned.seek(group[-1].offset + 1)  # the gap after them is found again
            assert assigned.position is not None
            assert assigned.fetch_offset is not None
            # The log may have been truncated since: the records from there on are gone.
            end = min(assigned.position, assigned.fetch_offset)
            if not (group := [record for record in group if record.offset < end]):
                continue
            if not assigned.fetches:
                assigned.fetches.append(
                    self._completed_fetch(assigned.name, NOTHING, assigned.position)
                )
            assigned.fetches[0].give_back(group)
            assigned.position = group[0].offset
            if not self._turns or self._turns[0] is not assigned:
                self._turns.appendleft(assigned)

    def of(self, name: TopicPartition) -> AssignedPartition:
        """Return an assigned partition, read-only. Raises `ClientError`."""
        if name not in self._partitions:
            raise ClientError(f"{name} is not assigned")
        return self._partitions[name]

    def committable(self, name: TopicPartition, offset: int) -> OffsetAndMetadata:
        """Return an offset to commit, with the epoch of the record before if that is known."""
        if name in self._partitions:
            return self._partitions[name].committable(offset)
        return OffsetAndMetadata(offset)

    # -- the group's side

    def awaiting_committed(self) -> list[AssignedPartition]:
        """Return the partitions that wait for their committed offsets."""
        return [assigned for assigned in self._partitions.values() if assigned.awaits_committed]

    def start_at(self, assigned: AssignedPartition, committed: OffsetAndMetadata | None) -> None:
        """Set a committed offset. It is dropped if the application has sought elsewhere meanwhile,
        or if the partition was revoked since the request: others may have committed more before it
        came back."""
        if self._partitions.get(assigned.name) is assigned and assigned.awaits_committed:
            if committed is None:
                self._reset(assigned, "nothing was committed")
            else:
                assigned.start_at(committed)
            self.is_changed = True

    # -- the brokers' side

    def unresolved(
        self, epoch_of: Callable[[TopicPartition], int], now: float
    ) -> dict[TopicPartition, Reset]:
        """Return the partitions whose earliest or latest offset is to be asked for now.

        `epoch_of` returns the leader epoch of any partition, -1 without a leader.
        """
        return {
            name: assigned.reset
            for name, assigned in self._partitions.items()
            if assigned.reset is not None and assigned.may_ask(epoch_of(name), now)
        }

    def resolve(self, name: TopicPartition, reset: Reset, offset: int) -> None:
        """Set the answer; it is dropped if the application has sought since."""
        assigned = self._partitions.get(name)
        if assigned is not None and assigned.reset is reset:
            if reset.reason:
                text = "%s: %s; auto.offset.reset is %s: going on at offset %d"
                level = logging.WARNING if reset.is_gap else logging.INFO
                log.log(level, text, name, reset.reason, self._options.auto_offset_reset, offset)
            assigned.seek(offset)
            self.on_jump(name, offset)
            self.is_changed = True

    def fail(self, name: TopicPartition, reset: Reset, code: ErrorCode) -> None:
        """Set the broker's refusal; it is dropped if the application has sought since."""
        assigned = self._partitions.get(name)
        if assigned is not None and assigned.reset is reset:
            assigned.reset = None
            assigned.failure = (PositionError, f"the broker answers {code.name}")

    def defer(self, name: TopicPartition, leader_epoch: int, now: float) -> None:
        """Handle that there is no answer yet, from the leader of this epoch."""
        if (assigned := self._partitions.get(name)) is not None:
            assigned.defer(now, leader_epoch)

    def plan(self, epoch_at: EpochOf, now: float) -> tuple[list[PartitionFetch], int]:
        """Return what to ask one broker for now, and the most bytes to take; nothing to ask: wait.

        `epoch_at` returns the leader epoch of the partitions that the broker leads. Either all
        partitions that may be fetched from it are asked for, or none: one with enough records would
        be left out of a long poll, and wait for its end when it needs more.
        """
        size = self._options.max_partition_fetch_bytes
        bytes_max = self._options.fetch_max_bytes - self._waiting_bytes
        wanted: list[PartitionFetch] = []
        if bytes_max <= 0:
            return wanted, 0
        for name, assigned in self._partitions.items():
            if not assigned.is_fetchable or (epoch := epoch_at(name)) is None:
                continue
            if len(assigned.fetches) >= COMPLETED_FETCHES_MAX:
                return [], 0
            if assigned.may_ask(epoch, now):
                offset, last_epoch = assigned.fetch_offset, assigned.epochs.newest_epoch
                assert offset is not None
                topic_id = self.topic_id(name.topic)
                wanted.append(
                    PartitionFetch(*name, offset, size, epoch, last_epoch, topic_id=topic_id)
                )
        return wanted, bytes_max

    def topic_id(self, topic: str) -> bytes:
        """Return the id of the topic to which the positions belong; empty while it is not known."""
        return self._topic_ids.get(topic, b"")

    def update_topic_id(self, topic: str, topic_id: bytes) -> None:
        """Set a topic's id. If it had another one before, it was deleted and created again: go on
        with its first record."""
        before = self.topic_id(topic)
        self._topic_ids[topic] = topic_id
        if before not in (b"", topic_id):
            self._restart_topic(topic)

    def _restart_topic(self, topic: str) -> None:
        for name, assigned in self._partitions.items():
            if name.topic != topic:
                continue
            if assigned.position is not None:
                self._truncate(assigned, 0, "the topic was deleted and created again")
            elif assigned.awaits_committed:
                # Another object: what was committed for the deleted topic is not for this one.
                self._partitions[name] = AssignedPartition(name)
                self._partitions[name].is_paused = assigned.is_paused
            assigned.high_watermark = assigned.readable_end = NO_OFFSET
        self.is_changed = True

    def next_retry(self, now: float) -> float:
        """When something that failed may be asked for again; infinity if nothing waits."""
        times = [each.retry_at for each in self._partitions.values() if each.retry_at > now]
        return min(times, default=float("inf"))

    def handle_answer(self, asked: PartitionFetch, answer: PartitionFetched, now: float) -> bool:
        """Apply an answer. Return True if the metadata should be requested again (CCO-04)."""
        assigned = self._partitions.get(TopicPartition(asked.topic, asked.partition))
        if assigned is None or assigned.fetch_offset != asked.fetch_offset:
            return False
        if assigned.epochs.newest_epoch != asked.last_fetched_epoch:
            return False  # the application has sought this offset meanwhile
        if asked.topic_id not in (b"", self.topic_id(asked.topic)):
            return False  # a deleted topic of this name
        error = error_code(answer.error)
        if error == ErrorCode.NONE:
            assigned.failures = 0
            assigned.high_watermark = assigned.readable_end = answer.high_watermark
            if self._options.isolation == READ_COMMITTED:
                assigned.readable_end = answer.last_stable_offset
            if answer.diverging_epoch != NO_EPOCH:
                self._handle_divergence(assigned, answer)
            elif len(answer.records):
                self._add_records(assigned, answer, asked.leader_epoch)
            return False
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            assigned.is_out_of_range = True
            if not assigned.fetches:
                self._reset_out_of_range(assigned)
            return False
        if error in RETRIABLE and error != ErrorCode.CORRUPT_MESSAGE:
            assigned.defer(now, asked.leader_epoch)
            return error in REFRESH_METADATA or assigned.failures > STUBBORN_FAILURES
        if error == ErrorCode.CORRUPT_MESSAGE:
            assigned.failure = (CorruptRecords, f"the broker answers {error.name}: {DAMAGED}")
        else:
            assigned.failure = (PositionError, f"the broker answers {error.name}")
        return False

    # -- inside

    @property
    def _waiting_bytes(self) -> int:
        """The bytes that polls will return. Those of paused partitions do not count, since they may
        stay."""
        moving = (each for each in self._partitions.values() if not each.is_paused)
        return sum(fetch.size for assigned in moving for fetch in assigned.fetches)

    def _completed_fetch(
        self,
        name: TopicPartition,
        data: memoryview,
        start: int,
        aborted: AbortedTransactions | None = None,
    ) -> CompletedFetch:
        check_crcs = self._options.check_crcs
        return CompletedFetch(name, data, start, check_crcs=check_crcs, aborted=aborted)

    def _add_records(
        self, assigned: AssignedPartition, answer: PartitionFetched, leader_epoch: int
    ) -> None:
        assert isinstance(answer.records, bytes | bytearray | memoryview)
        assert assigned.fetch_offset is not None
        data = memoryview(answer.records)
        next_offset, last_epoch = assigned.fetch_offset, assigned.epochs.newest_epoch
        valid = valid_batches(data, next_offset, assigned.high_watermark)
        if valid.flaw:
            if not valid.headers:
                assigned.failure = (CorruptRecords, f"{valid.flaw}: {DAMAGED}")
                return
            data = data[: valid.size]  # ask for the rest again: the leader may find it, too
        for header in valid.headers:
            # No log has an epoch above its leader's: such a one is damage, and is ignored.
            if last_epoch < header.leader_epoch <= leader_epoch:
                last_epoch = header.leader_epoch
                assigned.epochs.assign(last_epoch, next_offset)
            next_offset = header.next_offset
        if 2 * len(data) < len(memoryview(data.obj)):
            data = memoryview(bytes(data))  # rather than keep the whole answer that it came in
        aborted = None
        if self._options.isolation == READ_COMMITTED:
            aborted = AbortedTransactions(answer.aborted_transactions or ())
        fetch = self._completed_fetch(assigned.name, data, assigned.fetch_offset, aborted)
        assigned.fetches.append(fetch)
        assigned.fetch_offset = next_offset
        self._turns.append(assigned)
        self._partitions[assigned.name] = self._partitions.pop(assigned.name)

    def _handle_divergence(self, assigned: AssignedPartition, answer: PartitionFetched) -> None:
        assert assigned.fetch_offset is not None
        epoch, end = answer.diverging_epoch, answer.diverging_end
        offset = assigned.divergence(epoch, end)
        self._truncate(assigned, offset, "its leader has lost what was read there")

    def _truncate(self, assigned: AssignedPartition, offset: int, reason: str) -> None:
        """Handle that the log has other records, or none, from this offset on."""
        stood = assigned.position
        assert stood is not None
        assigned.truncate(min(offset, stood))
        self.is_changed = True
        if offset >= stood:  # the application has seen none of it
            return
        text = f"the log was cut to offset {offset}: {reason}"
        if self._options.auto_offset_reset == "none":
            assigned.position = stood
            assigned.failure = (LogTruncated, f"{text}; auto.offset.reset is none: seek")
        else:
            log.warning("%s at offset %d: %s; going on there", assigned.name, stood, text)

    def _read_from(self, assigned: AssignedPartition, count: int) -> list[ConsumerRecord]:
        """Return records of the oldest completed fetch; none, and drop it, if it has no more."""
        fetch = assigned.fetches[0]
        try:
            records = self._read_decodable(assigned, fetch, count)
        except InvalidBatch as error:
            # The fetch offset, too: an answer in flight is for a later offset.
            assigned.position = assigned.fetch_offset = fetch.next_offset
            assigned.fetches.clear()
            remedy = DAMAGED
            if isinstance(error, UndecodableBatch):
                remedy = UNDECODABLE.format(error.next_offset)
            assigned.failure = (CorruptRecords, f"{error.message}: {remedy}")
            return []
        if not records and fetch.next_offset != assigned.position:
            self._mark_delivered(assigned)  # what has no records for the application is done, too
        assigned.position = fetch.next_offset
        if not records:
            assigned.fetches.popleft()
            self.is_changed = True
            if assigned.is_out_of_range and not assigned.fetches:
                self._reset_out_of_range(assigned)
        return records

    def _read_decodable(
        self, assigned: AssignedPartition, fetch: CompletedFetch, count: int
    ) -> list[ConsumerRecord]:
        """Return what `fetch.read` returns; with `skip.undecodable.batches` without the batches
        that a producer sent and no client can decode."""
        while True:
            try:
                return fetch.read(count)
            except UndecodableBatch as error:
                if not self._options.skip_undecodable_batches:
                    raise
                first, behind = fetch.next_offset, error.next_offset
                text = "%s: offsets %d to %d are skipped (skip.undecodable.batches): %s"
                log.warning(text, assigned.name, first, behind - 1, error.message)
                fetch.skip_batch()
                self.on_jump(assigned.name, behind)
                self._mark_delivered(assigned)

    def _mark_delivered(self, assigned: AssignedPartition) -> None:
        if not assigned.is_in_progress:
            assigned.is_in_progress = True
            self.recently_delivered.append(assigned)

    def _reset_out_of_range(self, assigned: AssignedPartition) -> None:
        """Handle that all fetched records are returned, and the log has nothing at the next
        offset."""
        reason = f"the log has no offset {assigned.position} (any more)"
        self._reset(assigned, reason, is_gap=True)

    def _reset(self, assigned: AssignedPartition, reason: str, *, is_gap: bool = False) -> None:
        """Ask for a new position, as the policy chooses."""
        policy = self._options.auto_offset_reset
        if policy == "none":
            text = f"{reason}, and auto.offset.reset is none: seek"
            assigned.failure = (OffsetOutOfRange, text)
        else:
            assigned.seek(None, Reset(RESET_TO[policy], reason, is_gap))
            self.is_changed = True

    def _raise_failure(self) -> None:
        """Raise the failure of a partition that stands still, once the records before are returned
        (CCO-07)."""
        for assigned in self._partitions.values():
            if assigned.failure is not None and not assigned.fetches:
                kind, text = assigned.failure
                offset = NO_OFFSET if assigned.position is None else assigned.position
                raise kind(assigned.name, offset, text)
