"""Which delivered records the application is done with, so that they may be committed.

A poll hands out records; with the next poll, the application is done with them. Iterating takes a
poll's worth (`drawn`) and hands out one after the other: with each, the application is done with
those before it, and what it has not reached can go back. So a position that is committed without
the application's saying so is never behind a record that it may still be working on (K6, CCO-06).

A plain list iterator hands out: it is the fastest there is, any thread can ask how far it has come
(`length_hint`), and no interrupt comes between taking a record from it and having it. The blocking
`poll` takes all of it at once (`iterate` with `as_one`): records that an interrupt kept from the
application are still there, and go back.
"""

from collections.abc import Iterator
from operator import length_hint

from minibroker.client.consumer.assigned_partition import OffsetAndMetadata, Offsets
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.positions import Positions
from minibroker.protocol.types import TopicPartition


class DeliveredPositions:
    """The records that one consumer has delivered, and those buffered by its iterator."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._polled: list[ConsumerRecord] = []
        self._is_one = False  # the drawn are handed out all at once
        self.is_abandoned = False
        # What iteration has taken and not handed out.
        self.buffered: Iterator[ConsumerRecord] = iter(())

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the application has, by name."""
        return self._positions.assignment

    @property
    def buffered_count(self) -> int:
        """How much that is: it falls while the application goes on."""
        return length_hint(self.buffered)

    def iterate(
        self, records: list[ConsumerRecord], *, as_one: bool = False
    ) -> Iterator[ConsumerRecord]:
        """Hand these out by the iterator; they were just taken.

        `as_one`: they will be taken from it all at once, and the application is done with none
        before it comes back.
        """
        self._polled, self.buffered, self._is_one = records, iter(records), as_one
        return self.buffered

    def return_buffered(self) -> None:
        """Give back what was not handed out; it is taken again first."""
        if buffered := list(self.buffered):
            del self._polled[-len(buffered) :]
            self._positions.give_back(buffered)

    def position(self, name: TopicPartition) -> int | None:
        """The offset of the next record to hand out; None while it is not known."""
        for record in self._polled[len(self._polled) - self.buffered_count :]:
            if record[:2] == name:
                return record.offset
        return self._positions.position(name)

    def committable_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions, as they are committed: behind all that was handed out."""
        offsets = {name: self.position(name) for name in self._positions.assignment}
        return {
            name: self._positions.of(name).committable(offset)
            for name, offset in offsets.items()
            if offset is not None
        }

    def not_behind_committed(self, chosen: Offsets) -> Offsets:
        """Of positions chosen earlier, those to commit now: after `abandon` none goes back."""
        if not self.is_abandoned:
            return chosen
        saved = {name: self._positions.of(name).committed for name in self._positions.assignment}
        return {
            name: each
            for name, each in chosen.items()
            if (last := saved.get(name)) is None or each.offset > last
        }

    def mark_done(self) -> None:
        """The application is done with all that it was handed: it asks for more, or ends."""
        self.return_buffered()
        self._polled = []
        self._record_done([])

    def abandon(self) -> None:
        """The application will not be done with it: its work ends here.

        What it has committed itself counts as done. Nothing is handed out after this.
        """
        self.record_iteration()
        self.return_buffered()
        self._polled = []
        self.is_abandoned = True
        for assigned in self._positions.recently_delivered:
            if (
                assigned.is_in_progress
                and assigned.done is not None
                and assigned.position is not None
            ):
                done = max(assigned.done, assigned.committed or 0)
                assigned.position = min(assigned.position, done)

    def record_iteration(self) -> None:
        """While it iterates, the application is done with all but the record of this moment."""
        if self._polled:
            handed_count = 0 if self._is_one else len(self._polled) - self.buffered_count
            self._record_done(self._polled[max(0, handed_count - 1) :])

    def uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where the application is done, where that is more than was committed."""
        positions = map(self._positions.of, self._positions.assignment)
        return {
            assigned.name: assigned.committable(assigned.done)
            for assigned in positions
            if assigned.done is not None and assigned.has_uncommitted
        }

    def record_committed(self, offsets: Offsets) -> None:
        """These were committed; of those that are still assigned it is remembered."""
        assigned = set(self._positions.assignment)
        for name, committed in offsets.items():
            if name in assigned:
                self._positions.of(name).committed = committed.offset

    def _record_done(self, in_progress: list[ConsumerRecord]) -> None:
        firsts: dict[tuple[str, int], int] = {}
        for record in in_progress:
            firsts.setdefault((record.topic, record.partition), record.offset)
        touched, self._positions.recently_delivered = self._positions.recently_delivered, []
        for assigned in touched:
            if assigned.is_in_progress:
                assigned.done = firsts.get(assigned.name, assigned.position)
                assigned.is_in_progress = assigned.name in firsts
                if assigned.is_in_progress:
                    self._positions.recently_delivered.append(assigned)
