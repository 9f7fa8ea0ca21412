"""Which delivered records the application is done with, so that they may be committed.

A poll hands out records; with the next poll, the application is done with them. Iterating takes a
poll's worth (`drawn`) and hands out one after the other: with each, the application is done with
those before it, and what it has not reached can go back. So a position that is committed without
the application's saying so is never behind a record that it may still be working on (K6, CCO-06).

A plain list iterator hands out: it is the fastest there is, it can be asked from any thread how far
it has come (`length_hint`), and no interrupt comes between taking a record from it and having it.
The blocking `poll` takes all of it at once (`draw` with `as_one`): what an interrupt kept from the
application is still there, and goes back.
"""

from collections.abc import Iterator
from operator import length_hint

from minibroker.client.consumer.assigned_partition import OffsetAndMetadata, Offsets
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.positions import Positions
from minibroker.protocol.types import TopicPartition


class Hand:
    """Of one consumer, over its `positions`."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._drawn: list[ConsumerRecord] = []
        self._is_one = False  # the drawn are handed out all at once
        self.is_dropped = False
        # What iteration has taken and not handed out.
        self.undrawn: Iterator[ConsumerRecord] = iter(())

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the application has, by name."""
        return self._positions.assignment

    @property
    def undrawn_count(self) -> int:
        """How much that is: it falls while the application goes on."""
        return length_hint(self.undrawn)

    def draw(
        self, records: list[ConsumerRecord], *, as_one: bool = False
    ) -> Iterator[ConsumerRecord]:
        """Hand these out by the iterator; they were just taken.

        `as_one`: they will be taken from it all at once, and the application is done with none
        before it comes back.
        """
        self._drawn, self.undrawn, self._is_one = records, iter(records), as_one
        return self.undrawn

    def return_undrawn(self) -> None:
        """Give back what was not handed out; it is taken again first."""
        if undrawn := list(self.undrawn):
            del self._drawn[-len(undrawn) :]
            self._positions.give_back(undrawn)

    def position(self, name: TopicPartition) -> int | None:
        """The offset of the next record to hand out; None while it is not known."""
        for record in self._drawn[len(self._drawn) - self.undrawn_count :]:
            if record[:2] == name:
                return record.offset
        return self._positions.position(name)

    def standing(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions, as they are committed: behind all that was handed out."""
        offsets = {name: self.position(name) for name in self._positions.assignment}
        return {
            name: self._positions.of(name).committable(offset)
            for name, offset in offsets.items()
            if offset is not None
        }

    def still_ahead(self, chosen: Offsets) -> Offsets:
        """Of positions chosen earlier, those to commit now: after `drop` none goes back."""
        if not self.is_dropped:
            return chosen
        saved = {name: self._positions.of(name).saved for name in self._positions.assignment}
        return {
            name: each
            for name, each in chosen.items()
            if (last := saved.get(name)) is None or each.offset > last
        }

    def come_back(self) -> None:
        """The application is done with all that it was handed: it asks for more, or ends."""
        self.return_undrawn()
        self._drawn = []
        self._settle([])

    def drop(self) -> None:
        """The application will not be done with it: its work ends here.

        What it has committed itself counts as done. Nothing is handed out after this.
        """
        self.note_iteration()
        self.return_undrawn()
        self._drawn = []
        self.is_dropped = True
        for position in self._positions.taken_from:
            if position.is_in_hand and position.done is not None and position.position is not None:
                done = max(position.done, position.saved or 0)
                position.position = min(position.position, done)

    def note_iteration(self) -> None:
        """While it iterates, the application is done with all but the record of this moment."""
        if self._drawn:
            handed_count = 0 if self._is_one else len(self._drawn) - self.undrawn_count
            self._settle(self._drawn[max(0, handed_count - 1) :])

    def unsaved(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where the application is done, where that is more than was committed."""
        positions = map(self._positions.of, self._positions.assignment)
        return {
            position.name: position.committable(position.done)
            for position in positions
            if position.done is not None and position.is_unsaved
        }

    def note_saved(self, offsets: Offsets) -> None:
        """These were committed; of those that are still assigned it is remembered."""
        assigned = set(self._positions.assignment)
        for name, committed in offsets.items():
            if name in assigned:
                self._positions.of(name).saved = committed.offset

    def _settle(self, in_hand: list[ConsumerRecord]) -> None:
        firsts: dict[tuple[str, int], int] = {}
        for record in in_hand:
            firsts.setdefault((record.topic, record.partition), record.offset)
        touched, self._positions.taken_from = self._positions.taken_from, []
        for position in touched:
            if position.is_in_hand:
                position.done = firsts.get(position.name, position.position)
                position.is_in_hand = position.name in firsts
                if position.is_in_hand:
                    self._positions.taken_from.append(position)
