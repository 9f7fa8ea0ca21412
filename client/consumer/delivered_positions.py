"""The delivered records that the application is done with, so that they may be committed.

A poll delivers records; with the next poll, the application is done with them. Iterating polls once
for many records and delivers one after the other: with each, the application is done with those
before it, and those that it has not reached are `buffered` and can go back. So auto commit never
commits past a record that the application may still be working on (K6, CCO-06).

A plain list iterator delivers them: it is the fastest way, any thread can ask how far it has come
(`length_hint`), and no interrupt can lose a record that was taken from it. The blocking `poll`
takes all of it at once (`iterate` with `as_one`): records that an interrupt kept from the
application are still in it, and go back.
"""

from collections.abc import Iterator
from operator import length_hint
from typing import Generic

from minibroker.client.committed_offsets import OffsetAndMetadata, Offsets
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.deserializers import as_stored
from minibroker.client.consumer.positions import Positions
from minibroker.client.serialization import K, V
from minibroker.protocol.types import TopicPartition


class DeliveredPositions(Generic[K, V]):
    """The records that one consumer has delivered, and those buffered by its iterator."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._polled: list[ConsumerRecord[K, V]] = []
        self._is_one = False  # the polled records are taken all at once
        self.is_abandoned = False
        # The polled records that iteration has not delivered yet.
        self.buffered: Iterator[ConsumerRecord[K, V]] = iter(())

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the application has, by name."""
        return self._positions.assignment

    @property
    def buffered_count(self) -> int:
        """Return how many records are buffered: it falls while the application iterates."""
        return length_hint(self.buffered)

    def iterate(
        self, records: list[ConsumerRecord[K, V]], *, as_one: bool = False
    ) -> Iterator[ConsumerRecord[K, V]]:
        """Deliver these records, which were just polled, by the iterator.

        `as_one`: the caller takes them all at once, and the application is done with none before
        the next call.
        """
        self._polled, self.buffered, self._is_one = records, iter(records), as_one
        return self.buffered

    def return_buffered(self) -> None:
        """Return the buffered records to the positions; the next poll delivers them first."""
        if buffered := list(self.buffered):
            del self._polled[-len(buffered) :]
            self._positions.give_back(map(as_stored, buffered))

    def position(self, name: TopicPartition) -> int | None:
        """Return the offset of the next record to deliver; None while it is not known."""
        for record in self._polled[len(self._polled) - self.buffered_count :]:
            if record[:2] == name:
                return record.offset
        return self._positions.position(name)

    def committable_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions, which are behind all delivered records, as they are committed."""
        offsets = {name: self.position(name) for name in self._positions.assignment}
        return {
            name: self._positions.of(name).committable(offset)
            for name, offset in offsets.items()
            if offset is not None
        }

    def not_behind_committed(self, chosen: Offsets) -> Offsets:
        """Return the chosen offsets to commit: after `abandon` none below a committed one."""
        if not self.is_abandoned:
            return chosen
        saved = {name: self._positions.of(name).committed for name in self._positions.assignment}
        return {
            name: each
            for name, each in chosen.items()
            if (last := saved.get(name)) is None or each.offset > last
        }

    def mark_done(self) -> None:
        """Record that the application is done with all delivered records."""
        self.return_buffered()
        self._polled = []
        self._record_done([])

    def abandon(self) -> None:
        """Give up on the delivered records that the application is not done with.

        Those that it has committed itself count as done. Nothing is delivered after this.
        """
        self.record_iteration()
        self.return_buffered()
        self._polled = []
        self.is_abandoned = True
        for assigned in self._positions.recently_delivered:
            if (
                assigned.is_in_progress
                and assigned.processed_offset is not None
                and assigned.position is not None
            ):
                done = max(assigned.processed_offset, assigned.committed or 0)
                assigned.position = min(assigned.position, done)

    def record_iteration(self) -> None:
        """Record that an iterating application is done with all but the last delivered record."""
        if self._polled:
            handed_count = 0 if self._is_one else len(self._polled) - self.buffered_count
            self._record_done(self._polled[max(0, handed_count - 1) :])

    def uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return up to where the application is done, where that is more than was committed."""
        positions = map(self._positions.of, self._positions.assignment)
        return {
            assigned.name: assigned.committable(assigned.processed_offset)
            for assigned in positions
            if assigned.processed_offset is not None and assigned.has_uncommitted
        }

    def record_committed(self, offsets: Offsets) -> None:
        """Record committed offsets of the partitions that are still assigned."""
        assigned = set(self._positions.assignment)
        for name, committed in offsets.items():
            if name in assigned:
                self._positions.of(name).committed = committed.offset

    def _record_done(self, in_progress: list[ConsumerRecord[K, V]]) -> None:
        firsts: dict[tuple[str, int], int] = {}
        for record in in_progress:
            firsts.setdefault((record.topic, record.partition), record.offset)
        touched, self._positions.recently_delivered = self._positions.recently_delivered, []
        for assigned in touched:
            if assigned.is_in_progress:
                assigned.processed_offset = firsts.get(assigned.name, assigned.position)
                assigned.is_in_progress = assigned.name in firsts
                if assigned.is_in_progress:
                    self._positions.recently_delivered.append(assigned)
