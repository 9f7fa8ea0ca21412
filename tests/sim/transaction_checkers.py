"""What must always be true of transactions, as objects that are told what processes did and saw.

A process that copies records tells what it is about to send and what it was answered; readers of
committed records tell what they were shown. No broker is asked. Each object raises `Violation` as
soon as a promise is broken, and `judge` at the end. All of them work on made-up histories too
(`test_transaction_checkers.py`).

Each record says which attempt wrote it, so a reader's record leads to its transaction whatever the
brokers believe. An attempt counts as committed once a process was told so; as possibly committed
since it first asked for that; else, and once it was told that it is aborted, as not committed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from minibroker.protocol.types import TopicPartition
from tests.sim.checkers import Violation


class Shown(NamedTuple):
    """A record that a reader was shown; `key` is b"" where it has none."""

    offset: int
    value: bytes
    key: bytes = b""


class Source(NamedTuple):
    """A record that is read: its partition and offset."""

    partition: int
    offset: int


class Written(NamedTuple):
    """A record of a transaction: what its value says."""

    attempt: str
    source: Source

    def encode(self) -> bytes:
        """The value of the record."""
        return f"{self.attempt}|{self.source.partition}:{self.source.offset}".encode()


def decode_written(value: bytes) -> Written:
    """What the value of a record says."""
    attempt, _, source = value.decode().partition("|")
    partition, _, offset = source.partition(":")
    return Written(attempt, Source(int(partition), int(offset)))


class Outcome(Enum):
    """What its process knows of an attempt: whether it committed."""

    NOT_ASKED = "no process has asked to commit that"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    REFUSED = "its process was told that it is aborted"


@dataclass
class Attempt:
    """One transaction of one process: the records that it gave to PRODUCE, by partition, those of
    the compacted topic, by key, as they were acknowledged, and the offsets that it commits."""

    name: str
    records: set[tuple[TopicPartition, bytes]] = field(default_factory=set)
    keyed: dict[bytes, Shown] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    outcome: Outcome = Outcome.NOT_ASKED

    @property
    def may_be_committed(self) -> bool:
        """Whether its records may be visible."""
        return self.outcome in (Outcome.IN_DOUBT, Outcome.COMMITTED)


class Attempts:
    """Atomicity: of an attempt all records are visible in the end, or none."""

    def __init__(self) -> None:
        self.all: dict[str, Attempt] = {}

    def begin(self, name: str) -> Attempt:
        """A process begins a transaction."""
        assert name not in self.all
        attempt = self.all[name] = Attempt(name)
        return attempt

    def check_shown(self, place: TopicPartition, value: bytes) -> None:
        """A reader of committed records is shown one. Raises `Violation`."""
        attempt = self.all.get(decode_written(value).attempt)
        if attempt is None or (place, value) not in attempt.records:
            raise Violation(f"{place} shows {value!r}, which no process wrote there")
        if not attempt.may_be_committed:
            raise Violation(f"{place} shows {value!r}: {attempt.outcome.value}")

    def check_ended(self, where: str, values: Iterable[bytes], *, is_commit: bool) -> None:
        """A log has these records of a transaction and then its marker. Raises `Violation`."""
        names = {decode_written(value).attempt for value in values}
        if len(names) > 1:
            raise Violation(f"{where} has no marker between {sorted(names)}")
        for attempt in [self.all[name] for name in names]:
            if is_commit and not attempt.may_be_committed:
                raise Violation(f"{where} commits {attempt.name}: {attempt.outcome.value}")
            if not is_commit and attempt.outcome is Outcome.COMMITTED:
                raise Violation(f"{where} aborts {attempt.name}, which was committed")

    def judge(self, shown: Iterable[tuple[TopicPartition, bytes]]) -> None:
        """Compare with all that is visible in the end. Raises `Violation`."""
        visible: dict[str, set[tuple[TopicPartition, bytes]]] = defaultdict(set)
        for place, value in shown:
            visible[decode_written(value).attempt].add((place, value))
        for name, attempt in self.all.items():
            there = visible[name]
            if attempt.outcome is Outcome.COMMITTED and there != attempt.records:
                missing = sorted(attempt.records - there)
                raise Violation(f"{name} was committed, and {missing[:5]} is not visible")
            if there and not attempt.may_be_committed:
                raise Violation(f"{name} is visible: {attempt.outcome.value}")
            if there and there != attempt.records:
                missing = sorted(attempt.records - there)
                raise Violation(f"{name} is visible in part: {missing[:5]} is not")


def judge_table(committed: Iterable[Attempt], shown: Iterable[Shown]) -> None:
    """Of a compacted topic the newest record of each key is visible that was written in a committed
    transaction, and no record of another. Raises `Violation`."""
    wanted: dict[bytes, Shown] = {}
    names = set()
    for attempt in committed:
        names.add(attempt.name)
        for key, record in attempt.keyed.items():
            wanted[key] = max(record, wanted.get(key, record))
    newest: dict[bytes, Shown] = {}
    for record in shown:
        if decode_written(record.value).attempt not in names:
            raise Violation(f"{record} is visible, and its transaction is not")
        newest[record.key] = record
    if newest != wanted:
        differing = sorted({*newest.values()} ^ {*wanted.values()})
        raise Violation(f"the newest visible records of keys differ in {differing[:5]}")


def judge_copies(shown: Iterable[bytes], ends: Mapping[int, int]) -> None:
    """Each record of the input was transformed once: `ends` are the ends of its partitions. Raises
    `Violation`."""
    counts = Counter(decode_written(value).source for value in shown)
    wanted = {Source(number, offset) for number, end in ends.items() for offset in range(end)}
    twice = sorted(source for source, count in counts.items() if count > 1)
    if twice or counts.keys() != wanted:
        missing, strange = sorted(wanted - counts.keys()), sorted(counts.keys() - wanted)
        raise Violation(
            f"input copied twice {twice[:5]}, not at all {missing[:5]}, never there {strange[:5]}"
        )


class Sessions:
    """Fencing: once a producer's session was answered, no request of an older epoch that is sent
    from then on changes anything; and no epoch has two processes."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int, int], str] = {}
        self._newest: dict[tuple[str, int], int] = {}

    def begin(self, transactional_id: str, producer_id: int, epoch: int, who: str) -> None:
        """A process was told that this is its epoch. Raises `Violation`."""
        owner = self._owners.setdefault((transactional_id, producer_id, epoch), who)
        if owner != who:
            raise Violation(
                f"epoch {epoch} of {transactional_id} was given to {owner}, and to {who}"
            )
        key = (transactional_id, producer_id)
        self._newest[key] = max(epoch, self._newest.get(key, -1))

    def is_fenced(self, transactional_id: str, producer_id: int, epoch: int) -> bool:
        """Whether a request of this epoch that is sent now must be refused."""
        return epoch < self._newest[transactional_id, producer_id]


def check_fenced(what: str, *, was_fenced: bool) -> None:
    """A request was accepted. Raises `Violation` if its epoch was over when it was sent."""
    if was_fenced:
        raise Violation(f"{what} was accepted, and a newer epoch had begun before it was sent")


class Views:
    """Isolation: all readers of committed records are shown the same records of a partition, in
    order, whenever they read it."""

    def __init__(self, attempts: Attempts) -> None:
        self.records: dict[TopicPartition, list[Shown]] = defaultdict(list)
        self.ends: dict[TopicPartition, int] = defaultdict(int)
        self._attempts = attempts

    def note(
        self, who: str, place: TopicPartition, start: int, end: int, shown: Sequence[Shown]
    ) -> None:
        """A reader read from one offset to another. Raises `Violation`."""
        offsets = [record.offset for record in shown]
        if offsets != sorted(set(offsets)) or (shown and not start <= offsets[0]):
            raise Violation(f"{who} is shown {place} from {start} on as {offsets}")
        for record in shown:
            self._attempts.check_shown(place, record.value)
        known_end = self.ends[place]
        if start > known_end:
            raise Violation(f"{who} begins at {start} of {place}, no reader has read {known_end}")
        before = [one for one in self.records[place] if start <= one.offset < end]
        now = [one for one in shown if one.offset < known_end]
        if before != now:
            differing = sorted({*before} ^ {*now})
            raise Violation(f"{who} is shown {place} in another way than before: {differing[:5]}")
        self.records[place] += shown[len(now) :]
        self.ends[place] = max(known_end, end)


class CommittedOffsets:
    """Offsets of a transaction count once it is committed, and from then on: a process that asks
    for stable offsets is told no less than was committed before it asked."""

    def __init__(self, attempts: Attempts) -> None:
        self.floors: dict[TopicPartition, int] = {}
        self._attempts = attempts

    def note_committed(self, attempt: Attempt) -> None:
        """A process was told that its attempt is committed."""
        for place, offset in attempt.offsets.items():
            self._raise_floor(place, offset)

    def _raise_floor(self, place: TopicPartition, offset: int) -> None:
        self.floors[place] = max(offset, self.floors.get(place, 0))

    def note_told(
        self,
        who: str,
        offsets: Mapping[TopicPartition, int],
        floors: Mapping[TopicPartition, int],
        *,
        is_stable: bool,
    ) -> None:
        """A process was told these; `floors` are those from when it asked. Raises `Violation`."""
        for place, offset in offsets.items():
            if offset >= 0 and not self._may_be_committed(place, offset):
                raise Violation(
                    f"{who} is told {offset} for {place}: no process has asked to commit that"
                )
            if is_stable and max(offset, 0) < floors.get(place, 0):
                raise Violation(f"{place} was committed at {floors[place]}, {who} is told {offset}")
            if is_stable and offset >= 0:
                self._raise_floor(place, offset)

    def _may_be_committed(self, place: TopicPartition, offset: int) -> bool:
        return any(
            attempt.offsets.get(place) == offset and attempt.may_be_committed
            for attempt in self._attempts.all.values()
        )
