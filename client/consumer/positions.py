"""Where a consumer stands in each partition, and what was fetched but not yet returned.

A partition has two offsets. `position` is that of the next record for the application; the fetch
offset, ahead of it by what lies between, is what the next request asks for. Between them wait at
most two chunks (the records of one answer each): one that is being read and one that is ready, so
that a broker is asked while the application works, and memory stays bounded.

Chunks are returned in the order in which they came, over all partitions. A batch is unpacked when
its first record is wanted, so a poll costs what it returns. All work is per batch, but for
unpacking itself: records are handed on by slices of lists.

An answer that no longer fits (the application has sought elsewhere meanwhile) is dropped: it is
for another fetch offset, or for another `Reset`. What cannot be read on (damaged bytes, an offset
that is gone and no policy for it) stops the partition: what lies before it is returned, then every
poll raises, until the application seeks. Nothing is skipped in silence.

A leader that was elected uncleanly, or lost unflushed data in a power failure, may lack what was
read here; its answer to a fetch says so (epoch_history.py). Fetched records that no longer exist
are dropped. If the application has seen some of them, the partition goes on where the logs diverge,
with a warning: nothing is read twice that is still the same, nothing is left out. With policy none
it stops instead, and the error names both offsets. A topic that was created again is a log cut to
nothing.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final, TypeAlias

from minibroker.client.consumer.assigned_partition import OffsetAndMetadata, Position, Reset
from minibroker.client.consumer.completed_fetch import Chunk, ConsumerRecord, sound_batches
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
    ErrorCode,
)
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE
from minibroker.protocol.messages.fetch import PartitionFetch, PartitionFetched
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import OffsetAndEpoch, TopicPartition

CHUNKS_MAX: Final = 2
# After so many failures in a row the leader is asked for anew, whatever they say.
STUBBORN_FAILURES: Final = 5
NOTHING: Final = memoryview(b"")
DAMAGED: Final = (
    "the stored bytes are damaged: seek behind them to go on without these records;"
    " docs/operations.md (CorruptRecords) has how to get them back"
)
RESET_TO: Final = {"latest": LATEST_TIMESTAMP, "earliest": EARLIEST_TIMESTAMP}

# The leader epoch of a partition; None where nobody leads it, or not the broker in question.
EpochOf: TypeAlias = Callable[[TopicPartition], int | None]

log = logging.getLogger("minibroker.client")


class Positions:
    """All assigned partitions. `is_changed` is set when a broker may be asked for something new."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        # In the order in which they are asked for: who got data goes last (FET-11).
        self._positions: dict[TopicPartition, Position] = {}
        # Which topic of each name the positions are in. Another one of that name may have records
        # at the same offsets, of the same epochs.
        self._topic_ids: dict[str, bytes] = {}
        # Whose turn it is to return records: an entry for each chunk, and perhaps some too many.
        self._turns: deque[Position] = deque()
        # Of which records were taken since this was emptied (delivered_positions.py).
        self.taken_from: list[Position] = []
        self.is_changed = False

    # -- the application's side

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, by name."""
        return sorted(self._positions)

    @property
    def queued_bytes(self) -> int:
        """Memory of what was fetched and not yet returned."""
        return sum(chunk.size for position in self._positions.values() for chunk in position.chunks)

    def assign(self, names: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on; one that was assigned before goes on.

        In a group a new one waits for what was committed (`unplaced`).
        """
        before, self._positions = self._positions, {}
        for name in names:
            self._positions[name] = before.get(name) or Position(name)
            if name not in before and not self._options.group_id:
                self._reset(self._positions[name], "it has no position yet")
        self._turns = deque(turn for turn in self._turns if turn.name in self._positions)
        topics = {name.topic for name in self._positions}
        self._topic_ids = {name: each for name, each in self._topic_ids.items() if name in topics}
        self.is_changed = True

    def seek(self, name: TopicPartition, offset: int) -> None:
        """Return the record of this offset next, or the first one behind it."""
        if not 0 <= offset <= INT64_MAX:
            raise ValueError(f"an offset is 0 to {INT64_MAX}, not {offset}")
        self.of(name).seek(offset)
        self.is_changed = True

    def seek_to(self, name: TopicPartition, timestamp: int) -> None:
        """Go on at the earliest or latest offset, wherever the broker says that this is."""
        self.of(name).seek(None, Reset(timestamp))
        self.is_changed = True

    def position(self, name: TopicPartition) -> int | None:
        """The offset of the next record to return; None while it is not known."""
        return self.of(name).position

    def high_watermark(self, name: TopicPartition) -> int:
        """The end of what may be read, as last heard; -1 before."""
        return self.of(name).high_watermark

    def pause(self, name: TopicPartition) -> None:
        """Return nothing of this partition; it keeps its place."""
        self.of(name).is_paused = True
        self.is_changed = True  # what it holds is in nobody's way any more

    def resume(self, name: TopicPartition) -> None:
        """End a pause."""
        position = self.of(name)
        if position.is_paused:
            position.is_paused = False
            self._turns.extend([position] * len(position.chunks))
            self.is_changed = True

    def take(self, count: int, now: float = 0.0) -> list[ConsumerRecord]:
        """Up to `count` records, in order within each partition. Raises `PositionError`."""
        self._raise_failure()
        taken: list[ConsumerRecord] = []
        while self._turns and len(taken) < count:
            position = self._turns[0]
            is_ready = position.chunks and not position.is_paused
            if is_ready and (records := self._take_from(position, count - len(taken))):
                taken += records
                position.moved_at = now
                if not position.is_in_hand:
                    position.is_in_hand = True
                    self.taken_from.append(position)
            else:
                self._turns.popleft()
        if not taken:
            self._raise_failure()
        return taken

    def give_back(self, records: Iterable[ConsumerRecord]) -> None:
        """What was taken last and not used; it is taken again first."""
        groups = [list(group) for _, group in groupby(records, key=lambda record: record[:2])]
        for group in reversed(groups):
            position = self._positions.get(TopicPartition(group[0].topic, group[0].partition))
            if position is None or position.position is None:
                continue
            if not position.chunks:
                position.chunks.append(self._chunk(position.name, NOTHING, position.position))
            position.chunks[0].give_back(group)
            position.position = group[0].offset
            self._turns.appendleft(position)

    def of(self, name: TopicPartition) -> Position:
        """An assigned partition, to look at. Raises `ClientError`."""
        if name not in self._positions:
            raise ClientError(f"{name} is not assigned")
        return self._positions[name]

    # -- the group's side

    def unplaced(self) -> list[Position]:
        """Which wait for what was committed."""
        return [position for position in self._positions.values() if position.is_unplaced]

    def place(self, position: Position, committed: OffsetAndMetadata | None) -> None:
        """What was committed; dropped if the application has sought elsewhere meanwhile, and if
        the partition was let go since it was asked: others may have committed more before it came
        back."""
        if self._positions.get(position.name) is position and position.is_unplaced:
            if committed is None:
                self._reset(position, "nothing was committed")
            else:
                position.place(committed)
            self.is_changed = True

    # -- the brokers' side

    def unresolved(
        self, epoch_of: Callable[[TopicPartition], int], now: float
    ) -> dict[TopicPartition, Reset]:
        """For which partitions the earliest or latest offset is to be asked for now.

        `epoch_of` gives the leader epoch of any partition, -1 where nobody leads it.
        """
        return {
            name: position.reset
            for name, position in self._positions.items()
            if position.reset is not None and position.may_ask(epoch_of(name), now)
        }

    def resolve(self, name: TopicPartition, reset: Reset, offset: int) -> None:
        """The answer to it; dropped if the application has sought since."""
        position = self._positions.get(name)
        if position is not None and position.reset is reset:
            position.seek(offset)
            self.is_changed = True

    def fail(self, name: TopicPartition, reset: Reset, code: ErrorCode) -> None:
        """The broker will not tell it; dropped if the application has sought since."""
        position = self._positions.get(name)
        if position is not None and position.reset is reset:
            position.reset = None
            position.failure = (PositionError, f"the broker answers {code.name}")

    def defer(self, name: TopicPartition, leader_epoch: int, now: float) -> None:
        """No answer to it yet, from the leader of this epoch."""
        if (position := self._positions.get(name)) is not None:
            position.defer(now, leader_epoch)

    def plan(self, epoch_at: EpochOf, now: float) -> tuple[list[PartitionFetch], int]:
        """What to ask one broker for now, and the most bytes to take; nothing to ask: wait.

        `epoch_at` gives the leader epoch of the partitions which that broker leads. It is asked
        for all that may be fetched from it or for none: a partition that has enough would keep
        the others' long poll from being renewed when it has not.
        """
        size = self._options.max_partition_fetch_bytes
        bytes_max = self._options.fetch_max_bytes - self._waiting_bytes
        wanted: list[PartitionFetch] = []
        if bytes_max <= 0:
            return wanted, 0
        for name, position in self._positions.items():
            if not position.is_fetchable or (epoch := epoch_at(name)) is None:
                continue
            if len(position.chunks) >= CHUNKS_MAX:
                return [], 0
            if position.may_ask(epoch, now):
                offset, last_epoch = position.fetch_offset, position.trail.last_epoch
                assert offset is not None
                topic_id = self.topic_id(name.topic)
                wanted.append(
                    PartitionFetch(*name, offset, size, epoch, last_epoch, topic_id=topic_id)
                )
        return wanted, bytes_max

    def topic_id(self, topic: str) -> bytes:
        """The id of the topic that the positions are in; empty while it is not known."""
        return self._topic_ids.get(topic, b"")

    def note_topic(self, topic: str, topic_id: bytes) -> None:
        """A topic that is read has this id. If it had another one before, it was deleted and
        created again: go on with its first record."""
        before = self.topic_id(topic)
        self._topic_ids[topic] = topic_id
        if before not in (b"", topic_id):
            self._restart(topic)

    def _restart(self, topic: str) -> None:
        for name, position in self._positions.items():
            if name.topic != topic:
                continue
            if position.position is not None:
                self._cut_back(position, 0, "the topic was deleted and created again")
            elif position.is_unplaced:
                # Another object: what was committed of the deleted topic is not for this one.
                self._positions[name] = Position(name)
                self._positions[name].is_paused = position.is_paused
            position.high_watermark = NO_OFFSET
        self.is_changed = True

    def next_retry(self, now: float) -> float:
        """When something that failed may be asked for again; infinity if nothing waits."""
        times = [each.retry_at for each in self._positions.values() if each.retry_at > now]
        return min(times, default=float("inf"))

    def note(self, asked: PartitionFetch, answer: PartitionFetched, now: float) -> bool:
        """Take an answer over. True if the leader should be asked for anew (CCO-04)."""
        position = self._positions.get(TopicPartition(asked.topic, asked.partition))
        if position is None or position.fetch_offset != asked.fetch_offset:
            return False
        if position.trail.last_epoch != asked.last_fetched_epoch:
            return False  # the application has sought this offset meanwhile
        if asked.topic_id not in (b"", self.topic_id(asked.topic)):
            return False  # a deleted topic of this name
        error = error_code(answer.error)
        if error == ErrorCode.NONE:
            position.failures = 0
            position.high_watermark = answer.high_watermark
            if answer.diverging_epoch != NO_EPOCH:
                self._note_parting(position, answer)
            elif len(answer.records):
                assert isinstance(answer.records, bytes | bytearray | memoryview)
                self._note_records(position, memoryview(answer.records), asked.leader_epoch)
            return False
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            position.is_out_of_range = True
            if not position.chunks:
                self._leave_range(position)
            return False
        if error in RETRIABLE and error != ErrorCode.CORRUPT_MESSAGE:
            position.defer(now, asked.leader_epoch)
            return error in REFRESH_METADATA or position.failures > STUBBORN_FAILURES
        if error == ErrorCode.CORRUPT_MESSAGE:
            position.failure = (CorruptRecords, f"the broker answers {error.name}: {DAMAGED}")
        else:
            position.failure = (PositionError, f"the broker answers {error.name}")
        return False

    # -- inside

    @property
    def _waiting_bytes(self) -> int:
        """What a poll would return in time. What is paused may stay, and must not stop the rest."""
        moving = (each for each in self._positions.values() if not each.is_paused)
        return sum(chunk.size for position in moving for chunk in position.chunks)

    def _chunk(self, name: TopicPartition, data: memoryview, start: int) -> Chunk:
        return Chunk(name, data, start, check_crcs=self._options.check_crcs)

    def _note_records(self, position: Position, data: memoryview, leader_epoch: int) -> None:
        assert position.fetch_offset is not None
        behind, last_epoch = position.fetch_offset, position.trail.last_epoch
        sound = sound_batches(data, behind, position.high_watermark)
        if sound.flaw:
            if not sound.headers:
                position.failure = (CorruptRecords, f"{sound.flaw}: {DAMAGED}")
                return
            data = data[: sound.size]  # the rest is asked for again: the leader may find it, too
        for header in sound.headers:
            # No log has an epoch above its leader's: such a one is damage, and not believed.
            if last_epoch < header.leader_epoch <= leader_epoch:
                last_epoch = header.leader_epoch
                position.trail.note(OffsetAndEpoch(behind, last_epoch))
            behind = header.next_offset
        if 2 * len(data) < len(memoryview(data.obj)):
            data = memoryview(bytes(data))  # rather than keep all of the answer it came in
        position.chunks.append(self._chunk(position.name, data, position.fetch_offset))
        position.fetch_offset = behind
        self._turns.append(position)
        self._positions[position.name] = self._positions.pop(position.name)

    def _note_parting(self, position: Position, answer: PartitionFetched) -> None:
        assert position.fetch_offset is not None
        epoch, end = answer.diverging_epoch, answer.diverging_end
        offset = position.trail.parting(epoch, end, position.fetch_offset)
        self._cut_back(position, offset, "its leader has lost what was read there")

    def _cut_back(self, position: Position, offset: int, reason: str) -> None:
        """The log has other records, or none, from this offset on."""
        stood = position.position
        assert stood is not None
        position.cut(min(offset, stood))
        self.is_changed = True
        if offset >= stood:  # nobody has seen any of it
            return
        text = f"the log was cut to offset {offset}: {reason}"
        if self._options.auto_offset_reset == "none":
            position.position = stood
            position.failure = (LogTruncated, f"{text}; auto.offset.reset is none: seek")
        else:
            log.warning("%s at offset %d: %s; going on there", position.name, stood, text)

    def _take_from(self, position: Position, count: int) -> list[ConsumerRecord]:
        """Records of the oldest chunk; none if there were no more in it, and it is dropped."""
        chunk = position.chunks[0]
        try:
            records = chunk.take(count)
        except InvalidBatch as error:
            # The fetch offset, too: an answer that is under way is for what lies behind.
            position.position = position.fetch_offset = chunk.next_offset
            position.chunks.clear()
            position.failure = (CorruptRecords, f"{error.message}: {DAMAGED}")
            return []
        position.position = chunk.next_offset
        if not records:
            position.chunks.popleft()
            self.is_changed = True
            if position.is_out_of_range and not position.chunks:
                self._leave_range(position)
        return records

    def _leave_range(self, position: Position) -> None:
        """All that was fetched is returned, and the log has nothing at the next offset."""
        if self._options.auto_offset_reset != "none":
            log.warning(
                "%s has no offset %d (any more); going on at the %s",
                position.name,
                position.position,
                self._options.auto_offset_reset,
            )
        self._reset(position, "the log has no such offset (any more)")

    def _reset(self, position: Position, reason: str) -> None:
        """No position: where to go on is the policy's choice."""
        policy = self._options.auto_offset_reset
        if policy == "none":
            text = f"{reason}, and auto.offset.reset is none: seek"
            position.failure = (OffsetOutOfRange, text)
        else:
            position.seek(None, Reset(RESET_TO[policy]))
            self.is_changed = True

    def _raise_failure(self) -> None:
        """Raise for a partition that stands still, once what lay before is returned (CCO-07)."""
        for position in self._positions.values():
            if position.failure is not None and not position.chunks:
                kind, text = position.failure
                offset = NO_OFFSET if position.position is None else position.position
                raise kind(position.name, offset, text)
