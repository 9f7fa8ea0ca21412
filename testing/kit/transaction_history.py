"""The transactions of a `History`: what was sent, processed and committed in each, and its end.

What a transaction holds counts once it is committed. The end of one may not be known: its program
was killed, or got no answer. Then what was polled tells: a transaction of which a value was polled
was committed, and so all of its values must be there. Without values it may be either.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Place(NamedTuple):
    """Where a record is stored."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offset {self.offset}"


class Moment(NamedTuple):
    """When an event took place: Unix time in seconds, and its number among those of one time."""

    at_s: float
    number: int


class End(StrEnum):
    """How a transaction has ended, as far as the history knows."""

    UNKNOWN = "its end is not known"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class RecordedTransaction:
    """A transaction. `processed` has values, each with its moment. `offsets` are the
    next offsets to read, by group, topic and partition."""

    name: Hashable
    sent: dict[Hashable, None] = field(default_factory=dict)
    processed: list[tuple[Moment, Hashable]] = field(default_factory=list)
    offsets: dict[tuple[str, tuple[str, int]], int] = field(default_factory=dict)
    end: End = End.UNKNOWN

    def __str__(self) -> str:
        return f"{self.name!r} ({self.end})"

    def has_offset_behind(self, place: Place) -> bool:
        """Whether a group commits, with the transaction, an offset behind a record."""
        return any(
            name == place[:2] and offset > place.offset
            for (_, name), offset in self.offsets.items()
        )


Places = Mapping[Hashable, Collection[Place]]


class Outcome(NamedTuple):
    """The transactions that were committed, as far as the polled records show, and those that may
    have been. `split` are sentences about transactions that were committed in part, each with the
    value that it is about."""

    committed: list[RecordedTransaction]
    possible: list[RecordedTransaction]
    split: list[tuple[Hashable, str]]


class TransactionHistory:
    """See the head of this module."""

    def __init__(self) -> None:
        self._transactions: dict[Hashable, RecordedTransaction] = {}
        self._senders: dict[Hashable, list[RecordedTransaction]] = {}  # by value

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def __iter__(self) -> Iterator[RecordedTransaction]:
        return iter(self._transactions.values())

    def open(self, name: Hashable) -> RecordedTransaction:
        """Return a transaction that has not ended; the first mention of it begins it. Raises
        `ValueError` for one that has ended."""
        found = self._transactions.setdefault(name, RecordedTransaction(name))
        if found.end is not End.UNKNOWN:
            raise ValueError(f"transaction {name!r} has ended: it was {found.end}")
        return found

    def has_sent(self, value: Hashable) -> bool:
        """Whether a value was sent in a transaction."""
        return value in self._senders

    def was_aborted(self, value: Hashable) -> bool:
        """Whether each transaction that has sent a value was aborted."""
        return all(each.end is End.ABORTED for each in self._senders.get(value, ()))

    def add_sent(self, transaction: RecordedTransaction, value: Hashable) -> None:
        """Add a value that is sent in a transaction. Raises `ValueError` if it was sent in it."""
        if value in transaction.sent:
            raise ValueError(
                f"{value!r} was sent before in {transaction.name!r}; a history needs each value"
                " once in a transaction"
            )
        transaction.sent[value] = None
        self._senders.setdefault(value, []).append(transaction)

    def forget_sent(self, transaction: RecordedTransaction, value: Hashable) -> None:
        """Forget a value that was refused at once."""
        transaction.sent.pop(value, None)
        others = [each for each in self._senders.get(value, ()) if each is not transaction]
        self._senders[value] = others
        if not others:
            del self._senders[value]

    # -- when the program has done all that it is to do

    def outcome(self, places: Places) -> Outcome:
        """Return how the transactions have ended. `places` are those of the polled values."""
        committed = [each for each in self if each.end is End.COMMITTED]
        spare = {
            value: len(places.get(value, ())) - sum(each.end is End.COMMITTED for each in senders)
            for value, senders in self._senders.items()
        }
        possible, split = [], []
        for each in self:
            if each.end is not End.UNKNOWN:
                continue
            if not each.sent:
                possible.append(each)
                continue
            polled = [value for value in each.sent if spare[value] > 0]
            if not polled:
                continue
            committed.append(each)
            for value in polled:
                spare[value] -= 1
            split += [
                (value, f"of {each}, {polled[0]!r} was polled and {value!r} was not")
                for value in each.sent
                if value not in polled
            ]
        return Outcome(committed, possible, split)

    def wrong_reads(self, outcome: Outcome, places: Places) -> Iterator[tuple[Hashable, str]]:
        """Yield the value and a sentence for each value that was not polled at one place for the
        one committed transaction that has sent it."""
        for value, senders in self._senders.items():
            found = sorted(places.get(value, ()))
            effective = [each for each in senders if each in outcome.committed]
            if len(found) == len(effective) <= 1:
                continue
            sent = " and ".join(f"in {each}" for each in senders)
            if found:
                at = " and at ".join(map(str, found))
                yield value, f"{value!r} was polled at {at}, and sent {sent}"
            elif any(each.end is End.COMMITTED for each in effective):
                yield value, f"{value!r} was sent {sent}, and never polled"

    def missing_offsets(self, outcome: Outcome, places: Places) -> Iterator[tuple[Hashable, str]]:
        """Yield the value and a sentence for each value that was processed in a committed
        transaction, with which no group has committed an offset behind it."""
        for each in outcome.committed:
            for _, value in each.processed:
                found = places.get(value, ())
                is_passed = any(map(each.has_offset_behind, found)) if found else each.offsets
                if not is_passed:
                    at = "".join(f" at {place}" for place in sorted(found)[:1])
                    text = (
                        f"{value!r}{at} was processed in {each}, and no offset behind it is in it"
                    )
                    yield value, text
