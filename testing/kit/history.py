"""What a program did with its records, and whether that keeps a promise.

    history = History()
    history.sent("order 1", key="ann")
    history.acknowledged("order 1")
    ...
    history.check_nothing_is_lost()

A test calls a method for each thing that the program under test does, in the order in which it does
it, from any thread. The checks go by this order. An event that took place before its call has the
argument `at` (Unix time in seconds), which gives its place among the others; so has a history that
is read from brokers. The checks raise `PromiseBroken`, whose text has a sentence for each record
that breaks the promise, with the offsets and times of what happened to the record.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from threading import Lock
from typing import Final, NamedTuple

from minibroker.testing.kit.transaction_history import (
    End,
    Moment,
    Outcome,
    Place,
    TransactionHistory,
)
from minibroker.testing.kit.wall_time import time_of_day

SHOWN_MAX: Final = 10
FACTS_SHOWN_MAX: Final = 8


class PromiseBroken(AssertionError):
    """A history that does not keep a promise; the text says which records break it."""


class _Polled(NamedTuple):
    """A record as a consumer got it."""

    place: tuple[str, int]  # topic and partition
    offset: int
    value: Hashable


class _Processed(NamedTuple):
    """A value that was processed, and when. `where` names the transaction with which it counted, or
    is empty."""

    at: Moment
    value: Hashable
    where: str = ""


class _Committed(NamedTuple):
    """A commit of a group, when, and by whom. `where` as above."""

    group: str
    place: tuple[str, int]
    offset: int
    at: Moment
    where: str = ""
    by: str = ""

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{time_of_day(self.at.at_s)} committed {self.offset}{by}"


class Commit(NamedTuple):
    """A commit in a history. `offset` is the next one to read; `at_s` is Unix time in seconds; `by`
    names the client and the member, where they are known."""

    group: str
    topic: str
    partition: int
    offset: int
    at_s: float
    by: str


class History:
    """What a program did. Values stand for records: a test sends each value once, or once in each
    transaction that sends it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0  # of all events, which is the order of those of one moment
        self._latest_s = 0.0  # the time of the latest event that was told without a time
        self._facts: dict[Hashable, list[tuple[Moment, str]]] = defaultdict(list)  # by value
        self._sent: dict[Hashable, Hashable] = {}  # the key by value
        self._acknowledged: dict[Hashable, Moment] = {}
        self._polled: list[tuple[Moment, _Polled]] = []
        self._seen: set[Hashable] = set()  # the values that were polled
        self._processed: list[_Processed] = []
        self._commits: list[_Committed] = []
        self._transactions = TransactionHistory()
        self._named = Counter[str]()  # how many transactions of a transactional id have a name

    def sent(
        self,
        value: Hashable,
        key: Hashable = None,
        *,
        transaction: Hashable = None,
        at: float | None = None,
    ) -> None:
        """The program is about to send this value. Raises `ValueError` if it was sent before,
        outside of a transaction or in the same one."""
        with self._lock:
            if value in self._sent and (
                transaction is None or not self._transactions.has_sent(value)
            ):
                raise ValueError(f"{value!r} was sent before; a history needs each value once")
            if transaction is not None:
                if self._transactions.was_aborted(value):
                    self._sent.pop(value, None)  # so its place in the order is the new one
                self._transactions.add_sent(self._transactions.open(transaction), value)
            self._sent[value] = key
            self._add_fact(value, self._moment(at), "sent")

    def forget(self, value: Hashable, *, transaction: Hashable = None) -> None:
        """The client has refused this value at once: it was not sent."""
        with self._lock:
            if transaction is not None:
                self._transactions.forget_sent(self._transactions.open(transaction), value)
            if not self._transactions.has_sent(value):
                self._sent.pop(value, None)

    def acknowledged(self, value: Hashable, *, at: float | None = None) -> None:
        """A broker has acknowledged this value. Raises `ValueError` if it was never sent."""
        with self._lock:
            self._check_sent(value, "acknowledged")
            moment = self._moment(at)
            self._acknowledged.setdefault(value, moment)
            self._add_fact(value, moment, "acknowledged")

    def polled(
        self, value: Hashable, topic: str, partition: int, offset: int, *, at: float | None = None
    ) -> None:
        """A consumer got this record."""
        with self._lock:
            self._poll(value, Place(topic, partition, offset), self._moment(at), "polled")

    def appended(
        self, value: Hashable, topic: str, partition: int, offset: int, *, at: float | None = None
    ) -> None:
        """A broker has this record: it counts as sent, acknowledged, and there to be polled."""
        with self._lock:
            moment = self._moment(at)
            self._sent.setdefault(value, None)
            self._acknowledged.setdefault(value, moment)
            self._poll(value, Place(topic, partition, offset), moment, "appended")

    def processed(
        self, value: Hashable, *, transaction: Hashable = None, at: float | None = None
    ) -> None:
        """The program has done with this value what it does: its effect is there; of a transaction,
        once that is committed. Raises `ValueError` if it was neither sent nor polled."""
        with self._lock:
            if value not in self._seen:
                self._check_sent(value, "processed")
            moment = self._moment(at)
            if transaction is None:
                self._processed.append(_Processed(moment, value))
            else:
                recorded = self._transactions.open(transaction)
                recorded.processed.append((moment, value))
            self._add_fact(value, moment, "processed")

    def committed(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        transaction: Hashable = None,
        at: float | None = None,
        by: str = "",
    ) -> None:
        """A group has committed: its next member goes on at `offset`; with a transaction, once that
        is committed. `by` names the member, for the sentences of checks."""
        with self._lock:
            place, moment = (topic, partition), self._moment(at)
            if transaction is None:
                self._commits.append(_Committed(group, place, offset, moment, by=by))
            else:
                self._transactions.open(transaction).offsets[group, place] = offset

    def commits(self) -> list[Commit]:
        """Return the commits that count, in the order of their times."""
        with self._lock:
            ordered = sorted(self._commits, key=lambda each: each.at)
            return [
                Commit(each.group, *each.place, each.offset, each.at.at_s, each.by)
                for each in ordered
            ]

    # -- transactions; a call that names one begins it, if it is new

    def name_transaction(self, transactional_id: str) -> str:
        """Return a name that no other transaction has."""
        with self._lock:
            self._named[transactional_id] += 1
            return f"{transactional_id} #{self._named[transactional_id]}"

    def transaction_committed(self, transaction: Hashable) -> None:
        """The coordinator has confirmed the commit: what the transaction sent is acknowledged, and
        what was processed and committed in it counts. Raises `ValueError` if it has ended."""
        with self._lock:
            ended = self._transactions.open(transaction)
            ended.end = End.COMMITTED
            where, moment = f" in {transaction!r}", self._moment()
            for value in ended.sent:
                self._acknowledged.setdefault(value, moment)
                self._add_fact(value, moment, f"committed{where}")
            for _, value in ended.processed:
                self._processed.append(_Processed(moment, value, where))
            moment = self._moment()
            for (group, place), offset in ended.offsets.items():
                self._commits.append(_Committed(group, place, offset, moment, where))

    def transaction_aborted(self, transaction: Hashable) -> None:
        """The transaction was aborted, by the program or for it. Raises `ValueError` if it has
        ended."""
        with self._lock:
            ended = self._transactions.open(transaction)
            ended.end = End.ABORTED
            moment = self._moment()
            for value in ended.sent:
                self._add_fact(value, moment, f"aborted in {transaction!r}")

    # -- checks, when the program has done all that it is to do

    def check_nothing_is_lost(self) -> None:
        """Each value that was acknowledged was polled."""
        self._check_there_were_some()
        polled = {record.value for _, record in self._polled}
        _judge(
            f"{value!r} was acknowledged and never polled{self._told(value)}"
            for value in self._acknowledged
            if value not in polled
        )

    def check_order_per_key(self) -> None:
        """A consumer gets the values of a key in the order in which they were sent. A value that
        comes again, as after a rebalance, is not judged a second time."""
        place = {value: number for number, value in enumerate(self._sent)}
        latest: dict[Hashable, Hashable] = {}
        seen = set()
        broken = []
        for _, record in self._polled:
            key = self._sent.get(record.value)
            if key is None or record.value in seen:
                continue
            seen.add(record.value)
            before = latest.get(key)
            if before is not None and place[before] > place[record.value]:
                broken.append(
                    f"of key {key!r}, {record.value!r} was sent before {before!r} and polled after"
                    f"{self._told(record.value)}"
                )
            else:
                latest[key] = record.value
        _judge(broken)

    def check_at_least_once(self) -> None:
        """Each value that was acknowledged was processed, not only in transactions that were
        aborted. Values that were sent in transactions are judged in topics from which the program
        has processed something."""
        self._check_there_were_some()
        _judge(self._unprocessed(self._outcome()))

    def check_exactly_once(self) -> None:
        """Each value that was acknowledged was processed once, and no value more than once.

        If the program has transactions, this is about those that were committed, and moreover:
        consumers polled each value that a committed transaction has sent, at one place, and no
        value of an aborted one; and each transaction commits the offsets of what was processed in
        it. A transaction whose end is not known may have either, as a whole.
        """
        self._check_there_were_some()
        outcome, places = self._outcome(), self._places()
        broken = [*self._unprocessed(outcome), *self._processed_again(outcome)]
        if self._transactions:
            found = [
                *self._transactions.wrong_reads(outcome, places),
                *self._transactions.missing_offsets(outcome, places),
            ]
            broken += [
                *(text + self._told(value) for value, text in outcome.split),
                *(text + self._told(value) for value, text in found),
                *self._early_commits(outcome),
                *self._commits_back(),
            ]
        _judge(broken)

    def check_stored_once(self) -> None:
        """No value is in a log at two places, as after a retry without idempotence."""
        _judge(
            f"{value!r} is at {' and at '.join(map(str, sorted(found)))}{self._told(value)}"
            for value, found in self._places().items()
            if len(found) > 1
        )

    def check_commit_after_processing(self) -> None:
        """When a group commits, all that was polled before the committed offset is processed: so a
        crash skips nothing."""
        _judge(self._early_commits(self._outcome()))

    def check_commits_never_go_back(self) -> None:
        """A group commits offsets that ascend, in each partition."""
        _judge(self._commits_back())

    # -- inside

    def _places(self) -> dict[Hashable, set[Place]]:
        """Where each polled value is stored."""
        places = defaultdict(set)
        for _, record in self._polled:
            places[record.value].add(Place(*record.place, record.offset))
        return places

    def _outcome(self) -> Outcome:
        return self._transactions.outcome(self._places())

    def _all_processed(self, outcome: Outcome) -> list[_Processed]:
        """What was processed, also in transactions that count without a known end."""
        unknown = (each for each in outcome.committed if each.end is End.UNKNOWN)
        return self._processed + [
            _Processed(at, value, f" in {each.name!r}")
            for each in unknown
            for at, value in each.processed
        ]

    def _unprocessed(self, outcome: Outcome) -> Iterator[str]:
        processed = {each.value for each in self._all_processed(outcome)}
        done = processed | {value for each in outcome.possible for _, value in each.processed}
        in_vain = {value: each for each in self._transactions for _, value in each.processed}
        for value in self._inputs(processed | {*in_vain}):
            if value not in done:
                where = f" except in {in_vain[value]}" if value in in_vain else ""
                yield f"{value!r} was acknowledged and never processed{where}{self._told(value)}"

    def _inputs(self, processed: set[Hashable]) -> Iterator[Hashable]:
        """Yield the acknowledged values that are to be processed. Of those that were sent in
        transactions these are the values in topics from which something was processed."""
        topics = {each.place[0] for _, each in self._polled if each.value in processed}
        read = {each.value for _, each in self._polled if each.place[0] in topics}
        for value in self._acknowledged:
            if value in read or not self._transactions.has_sent(value):
                yield value

    def _processed_again(self, outcome: Outcome) -> Iterator[str]:
        places: dict[Hashable, list[str]] = {}
        for each in self._all_processed(outcome):
            places.setdefault(each.value, []).append(each.where)
        for value, found in places.items():
            if len(found) > 1:
                named = " and".join(where for where in found if where)
                where = f":{named}" if named else ""
                yield f"{value!r} was processed {len(found)} times{where}{self._told(value)}"

    def _early_commits(self, outcome: Outcome) -> Iterable[str]:
        first: dict[Hashable, Moment] = {}
        for each in outcome.possible:
            first |= {value: at for at, value in each.processed}
        for at, value, _ in self._all_processed(outcome):
            first[value] = min(at, first.get(value, at))
        broken: dict[tuple[str, _Polled], str] = {}  # a sentence a record, for the first commit
        for commit in sorted(self._commits, key=lambda each: each.at):
            for at, record in self._polled:
                is_passed = record.place == commit.place and record.offset < commit.offset
                is_done = record.value in first and first[record.value] <= commit.at
                if at < commit.at and is_passed and not is_done:
                    broken.setdefault(
                        (commit.group, record),
                        f"group {commit.group!r} has committed {commit.offset} of"
                        f" {_place(*commit.place)}{commit.where} before {record.value!r} at"
                        f" {record.offset} was processed{self._told(record.value, commit)}",
                    )
        return broken.values()

    def _commits_back(self) -> Iterator[str]:
        latest: dict[tuple[str, tuple[str, int]], _Committed] = {}
        for commit in sorted(self._commits, key=lambda each: each.at):
            before = latest.get((commit.group, commit.place), commit)
            if commit.offset < before.offset:
                yield (
                    f"group {commit.group!r} has committed {commit.offset} of"
                    f" {_place(*commit.place)}{commit.where} after {before.offset}"
                    f" ({before}; {commit})"
                )
            latest[commit.group, commit.place] = commit

    def _moment(self, at: float | None = None) -> Moment:
        """Return the moment of an event. Those without a time of their own keep the order in which
        they are told, also if the clock is set back."""
        self._count += 1
        if at is None:
            at = self._latest_s = max(self._latest_s, time.time())
        return Moment(at, self._count)

    def _poll(self, value: Hashable, place: Place, moment: Moment, what: str) -> None:
        self._polled.append((moment, _Polled(place[:2], place.offset, value)))
        self._seen.add(value)
        self._add_fact(value, moment, f"{what} at {place}")

    def _add_fact(self, value: Hashable, moment: Moment, text: str) -> None:
        self._facts[value].append((moment, text))

    def _told(self, value: Hashable, commit: _Committed | None = None) -> str:
        """Return what happened to a value, and when, in parentheses."""
        facts = [(at, f"{time_of_day(at.at_s)} {text}") for at, text in self._facts[value]]
        if commit is not None:
            facts.append((commit.at, str(commit)))
        shown = [text for _, text in sorted(facts)[:FACTS_SHOWN_MAX]]
        if len(facts) > FACTS_SHOWN_MAX:
            shown.append(f"and {len(facts) - FACTS_SHOWN_MAX} more")
        return f" ({'; '.join(shown)})" if shown else ""

    def _check_sent(self, value: Hashable, what: str) -> None:
        if value in self._sent:
            return
        text = f"{value!r} was {what}, and the history has no send of it"
        for other in _other_forms(value):
            if other in self._sent:
                text += f", but one of {other!r}: use one form"
        raise ValueError(text)

    def _check_there_were_some(self) -> None:
        """A history that nobody tells of acknowledgements would keep each promise about them."""
        if not self._acknowledged:
            raise PromiseBroken("the history has no acknowledgement: was `acknowledged` called?")


def _other_forms(value: Hashable) -> list[Hashable]:
    """The same as bytes, if it is text, or as text."""
    if isinstance(value, str):
        return [value.encode()]
    return [value.decode(errors="replace")] if isinstance(value, bytes) else []


def _place(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def _judge(broken: Iterable[str]) -> None:
    """Raise `PromiseBroken` if there is a sentence."""
    sentences = list(broken)
    if sentences:
        shown = sentences[:SHOWN_MAX]
        if len(sentences) > SHOWN_MAX:
            shown.append(f"and {len(sentences) - SHOWN_MAX} more")
        raise PromiseBroken("\n".join(shown))
