"""What a program did with its records, and whether that keeps a promise.

    history = History()
    history.sent("order 1", key="ann")
    history.acknowledged("order 1")
    ...
    history.check_nothing_is_lost()

A test calls a method for each thing that the program under test does, in the order in which it does
it, from any thread. The checks go by this order and by nothing else: no clock, no broker. They
raise `PromiseBroken`, whose text has a sentence for each record that breaks the promise.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Final, NamedTuple

SHOWN_MAX: Final = 10


class PromiseBroken(AssertionError):
    """A history that does not keep a promise; the text says which records break it."""


class _Polled(NamedTuple):
    """A record as a consumer got it."""

    place: tuple[str, int]  # topic and partition
    offset: int
    value: Hashable


class _Committed(NamedTuple):
    """A commit of a group, and how many events came before it."""

    group: str
    place: tuple[str, int]
    offset: int
    at: int


class History:
    """What a program did. Values stand for records: a test sends each value once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0  # of all events, which is their order
        self._sent: dict[Hashable, Hashable] = {}  # the key by value
        self._acknowledged: dict[Hashable, int] = {}
        self._polled: list[tuple[int, _Polled]] = []
        self._seen: set[Hashable] = set()  # the values that were polled
        self._processed: list[tuple[int, Hashable]] = []
        self._commits: list[_Committed] = []

    def sent(self, value: Hashable, key: Hashable = None) -> None:
        """The program is about to send this value. Raises `ValueError` if it was sent before."""
        with self._lock:
            if value in self._sent:
                raise ValueError(f"{value!r} was sent before; a history needs each value once")
            self._sent[value] = key
            self._count += 1

    def forget(self, value: Hashable) -> None:
        """The client has refused this value at once: it was not sent."""
        with self._lock:
            self._sent.pop(value, None)

    def acknowledged(self, value: Hashable) -> None:
        """A broker has acknowledged this value. Raises `ValueError` if it was never sent."""
        with self._lock:
            self._check_sent(value, "acknowledged")
            self._acknowledged.setdefault(value, self._count)
            self._count += 1

    def polled(self, value: Hashable, topic: str, partition: int, offset: int) -> None:
        """A consumer got this record."""
        with self._lock:
            self._polled.append((self._count, _Polled((topic, partition), offset, value)))
            self._seen.add(value)
            self._count += 1

    def processed(self, value: Hashable) -> None:
        """The program has done with this value what it does: its effect is there. Raises
        `ValueError` if it was neither sent nor polled."""
        with self._lock:
            if value not in self._seen:
                self._check_sent(value, "processed")
            self._processed.append((self._count, value))
            self._count += 1

    def committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """A group has committed: its next member goes on at `offset`."""
        with self._lock:
            self._commits.append(_Committed(group, (topic, partition), offset, self._count))
            self._count += 1

    # -- checks, when the program has done all that it is to do

    def check_nothing_is_lost(self) -> None:
        """Each value that was acknowledged was polled."""
        self._check_there_were_some()
        polled = {record.value for _, record in self._polled}
        _judge(
            f"{value!r} was acknowledged and never polled"
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
                )
            else:
                latest[key] = record.value
        _judge(broken)

    def check_at_least_once(self) -> None:
        """Each value that was acknowledged was processed."""
        self._check_there_were_some()
        processed = {value for _, value in self._processed}
        _judge(
            f"{value!r} was acknowledged and never processed"
            for value in self._acknowledged
            if value not in processed
        )

    def check_exactly_once(self) -> None:
        """Each value that was acknowledged was processed once, and no value more than once."""
        self.check_at_least_once()
        counts = Counter(value for _, value in self._processed)
        _judge(f"{value!r} was processed {n} times" for value, n in counts.items() if n > 1)

    def check_stored_once(self) -> None:
        """No value is in a log at two places, as after a retry without idempotence."""
        places = defaultdict(set)
        for _, record in self._polled:
            places[record.value].add((*record.place, record.offset))
        _judge(
            f"{value!r} is at {' and at '.join(_place(*each) for each in sorted(found))}"
            for value, found in places.items()
            if len(found) > 1
        )

    def check_commit_after_processing(self) -> None:
        """When a group commits, all that was polled before the committed offset is processed: so a
        crash skips nothing."""
        first: dict[Hashable, int] = {}
        for at, value in self._processed:
            first.setdefault(value, at)
        broken: dict[tuple[str, _Polled], str] = {}  # a sentence a record, for the first commit
        for commit in self._commits:
            for at, record in self._polled:
                is_passed = record.place == commit.place and record.offset < commit.offset
                is_done = first.get(record.value, self._count) <= commit.at
                if at < commit.at and is_passed and not is_done:
                    broken.setdefault(
                        (commit.group, record),
                        f"group {commit.group!r} has committed {commit.offset} of"
                        f" {_place(*commit.place)} before {record.value!r} at"
                        f" {record.offset} was processed",
                    )
        _judge(broken.values())

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

    def check_commits_never_go_back(self) -> None:
        """A group commits offsets that ascend, in each partition."""
        latest: dict[tuple[str, tuple[str, int]], int] = {}
        broken = []
        for commit in self._commits:
            name = commit.group, commit.place
            if commit.offset < latest.get(name, commit.offset):
                broken.append(
                    f"group {commit.group!r} has committed {commit.offset} of"
                    f" {_place(*commit.place)} after {latest[name]}"
                )
            latest[name] = commit.offset
        _judge(broken)


def _other_forms(value: Hashable) -> list[Hashable]:
    """The same as bytes, if it is text, or as text."""
    if isinstance(value, str):
        return [value.encode()]
    return [value.decode(errors="replace")] if isinstance(value, bytes) else []


def _place(topic: str, partition: int, offset: int | None = None) -> str:
    return f"{topic}-{partition}" + ("" if offset is None else f", offset {offset}")


def _judge(broken: Iterable[str]) -> None:
    """Raise `PromiseBroken` if there is a sentence."""
    sentences = list(broken)
    if sentences:
        shown = sentences[:SHOWN_MAX]
        if len(sentences) > SHOWN_MAX:
            shown.append(f"and {len(sentences) - SHOWN_MAX} more")
        raise PromiseBroken("\n".join(shown))
