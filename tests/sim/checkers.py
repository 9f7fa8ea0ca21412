"""What must always be true of a cluster, as objects that look at it again and again.

A `Sight` is the cluster at one moment: the replicas that its running brokers hold, and what the
metadata store says. Each checker is shown every sight, remembers what it needs, and raises
`Violation` as soon as a promise is broken. None of them asks a broker what it believes of others,
so a broker's mistake cannot hide itself; and all of them work on hand-made sights too.

`Committed` is the heart: the bytes that any replica ever called committed, per partition. They
never change, every replica has them below its high watermark, every new leader has all of them,
and so has every member of the in-sync set that the store knows.

A broker whose machine lost power may have lost its tail. Until the controller has admitted it
again (`Sight.lost_tails`) nothing is asked of its logs.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.types import TopicPartition

Key = tuple[str, int]  # topic id (hex) and partition


class Violation(AssertionError):
    """A promise was broken."""


class Resting(NamedTuple):
    """A follower that rests in a fetch session, as its leader knows it: the end of its log, and
    when (seconds) the session last fetched."""

    broker: int
    log_end: int
    fetched_at: float


class Replica(NamedTuple):
    """One replica in one process of a broker. `read(start, end)`: its batches as bytes."""

    broker: int
    life: int
    key: Key
    name: TopicPartition
    is_leader: bool
    leader_epoch: int
    high_watermark: int
    log_start: int
    log_end: int
    generation: int  # grows with every cut
    read: Callable[[int, int], bytes]
    size: int = 0  # of the log, in bytes
    resting: tuple[Resting, ...] = ()  # the followers of a leader
    promises: bool = False  # it is a leader that takes acks=1: sure not to have been replaced

    def __str__(self) -> str:
        role = "leader" if self.is_leader else "replica"
        return f"{role} {self.name} of broker {self.broker} (epoch {self.leader_epoch})"


class Agreed(NamedTuple):
    """What the store says of one partition; `original` is empty without a reassignment."""

    name: TopicPartition
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    unsafe: tuple[int, ...] = ()
    partition_epoch: int = 0
    original: tuple[int, ...] = ()
    former: tuple[int, ...] = ()


class ActiveController(NamedTuple):
    """Who is controller since a revision of the store, and in which registration of that broker;
    -1: in one that is over."""

    node_id: int
    revision: int
    broker_epoch: int


class Proposal(NamedTuple):
    """A leader asked in this epoch that a replica leaves the in-sync set."""

    leader: int
    leader_epoch: int
    replica: int


class Departure(NamedTuple):
    """A leader asked that a replica leaves the in-sync set: for how long it was behind, for how
    long it had sent no FETCH, and the limits of both (seconds); how many stay, and how many
    acks=all needs."""

    leader: int
    replica: int
    behind_s: float
    lag_s_max: float
    silent_s: float
    silence_s_max: float
    staying: int
    needed: int


class Sight(NamedTuple):
    """The cluster at one moment.

    `admitted` are the brokers that are registered as they were admitted, with their epochs; `now`
    is in seconds.
    """

    replicas: tuple[Replica, ...]
    agreed: Mapping[Key, Agreed]
    lost_tails: frozenset[int] = frozenset()
    # The epoch of the controller whose word each process of a broker took last.
    obeyed: Mapping[tuple[int, int], int] = {}
    leaving: frozenset[int] = frozenset()  # brokers that have asked to stop
    admitted: Mapping[int, int] = {}
    active_controller: ActiveController | None = None
    now: float = 0.0

    @property
    def sound(self) -> list[Replica]:
        """The replicas of which something is asked."""
        return [each for each in self.replicas if each.broker not in self.lost_tails]


class Checker(Protocol):
    """See the head of this module."""

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""


class OneLeader:
    """In one leader epoch one process leads. A later life of the same broker is another one: it
    may have lost what the first one told its followers."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[Key, int], tuple[int, int]] = {}

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for each in sight.replicas:
            if each.is_leader:
                who = (each.broker, each.life)
                first = self.leaders.setdefault((each.key, each.leader_epoch), who)
                if first != who:
                    raise Violation(
                        f"{each} in its life {each.life}: broker {first[0]} in life {first[1]}"
                        " led in this epoch"
                    )

    @property
    def terms(self) -> int:
        """How many terms began after the first of each partition."""
        return len(self.leaders) - len({key for key, _ in self.leaders})


class RisingHighWatermark:
    """A leader's high watermark never falls within its term, and nobody's is above its log."""

    def __init__(self) -> None:
        self._last: dict[tuple[Key, int, int, int], int] = {}

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for each in sight.replicas:
            if not each.log_start <= each.high_watermark <= each.log_end:
                raise Violation(
                    f"{each}: high watermark {each.high_watermark} outside of the log,"
                    f" {each.log_start} to {each.log_end}"
                )
            if each.is_leader:
                term = (each.key, each.broker, each.life, each.leader_epoch)
                if each.high_watermark < self._last.get(term, 0):
                    raise Violation(
                        f"{each}: high watermark fell from {self._last[term]}"
                        f" to {each.high_watermark}"
                    )
                self._last[term] = each.high_watermark


@dataclass
class History:
    """What is committed of one partition, and in which leader epoch it was first seen to be.

    Records are known from `start` on: what is below was deleted before anybody looked.
    """

    name: TopicPartition
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    end: int = 0
    ends: dict[int, int] = field(default_factory=dict)  # leader epoch -> the end seen in it

    def end_before(self, leader_epoch: int) -> int:
        """What was committed when this epoch began."""
        return max((end for epoch, end in self.ends.items() if epoch < leader_epoch), default=0)

    def position_of(self, offset: int) -> int:
        """Where the batch that holds an offset lies in `data`."""
        for position, header in iterate_headers(bytes(self.data)):
            if offset < header.next_offset:
                return position
        return len(self.data)

    def begin_at(self, offset: int) -> None:
        """Nothing is known below an offset."""
        self.data.clear()
        self.start = self.end = offset


@dataclass
class Deletions:
    """What clients asked to delete, and what they were told is deleted: offsets of partitions."""

    asked: dict[TopicPartition, int] = field(default_factory=dict)
    told: dict[TopicPartition, int] = field(default_factory=dict)

    def note_asked(self, name: TopicPartition, offset: int) -> None:
        """Records below an offset may be gone from now on."""
        self.asked[name] = max(offset, self.asked.get(name, 0))

    def note_told(self, name: TopicPartition, low_watermark: int) -> None:
        """No replica that may lead has records below. Raises `Violation`."""
        if low_watermark > self.asked.get(name, 0):
            raise Violation(f"{name} begins at {low_watermark}, nobody asked for that")
        self.told[name] = max(low_watermark, self.told.get(name, 0))


class Deleted:
    """Records that were deleted never come back: no member of the in-sync set that the store knows,
    of which one leads now or may lead next, has records below what clients were told."""

    def __init__(self, deletions: Deletions) -> None:
        self._deletions = deletions

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for each in sight.sound:
            agreed = sight.agreed.get(each.key)
            told = self._deletions.told.get(each.name, 0)
            has_deleted = each.log_start < min(told, each.log_end)
            if agreed is not None and each.broker in agreed.isr and has_deleted:
                raise Violation(
                    f"{each} is in sync and has records from {each.log_start} on: those below"
                    f" {told} were deleted"
                )


class Comparer(Protocol):
    """What compares the replicas of a topic that do not hold the same bytes."""

    def compare(self, replica: Replica, end: int, now: float) -> None:
        """Compare a replica's log below `end`. Raises `Violation`."""


class Compared(NamedTuple):
    """Up to where a replica was found equal, at a boundary of batches."""

    generation: int = -1
    offset: int = 0
    position: int = 0


class Committed:
    """See the head of this module."""

    def __init__(
        self, deletions: Deletions | None = None, tables: "Mapping[str, Comparer] | None" = None
    ) -> None:
        self.histories: dict[Key, History] = {}
        self._deletions = deletions or Deletions()
        self._compared: dict[tuple[int, int, Key], Compared] = {}
        self._tables = {} if tables is None else tables
        self._now = 0.0

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        self._now = sight.now
        for each in sight.sound:
            if each.log_start > self._deletions.asked.get(each.name, 0):
                raise Violation(f"{each}: the log starts at {each.log_start}, nobody removed any")
            self._compare(each, each.high_watermark)
        by_place = {(each.broker, each.key): each for each in sight.sound}
        for each in sight.sound:
            if each.is_leader:
                needed = self.histories[each.key].end_before(each.leader_epoch)
                self._demand(each, needed, "a leader")
        for key, agreed in sight.agreed.items():
            history = self.histories.get(key)
            for member in agreed.isr:
                replica = by_place.get((member, key))
                if history is not None and replica is not None and member not in agreed.unsafe:
                    self._demand(replica, history.end, "a member of the in-sync set")

    def _demand(self, replica: Replica, end: int, what: str) -> None:
        if replica.log_end < end:
            raise Violation(
                f"{replica} is {what} and ends at {replica.log_end}:"
                f" {end} records were committed before"
            )
        self._compare(replica, end)

    def _compare(self, replica: Replica, end: int) -> None:
        """Below `end` the replica must hold what is committed; more is committed from now on."""
        key = replica.key
        history = self.histories.setdefault(key, History(replica.name))
        place = (replica.broker, replica.life, replica.key)
        table = self._tables.get(replica.name.topic)
        if table is not None:
            table.compare(replica, end, self._now)
            if end > history.end:
                history.end = end
                history.ends[replica.leader_epoch] = end
            return
        done = self._compared.get(place, Compared())
        if done.generation != replica.generation:
            done = Compared(replica.generation)
        start = max(replica.log_start, history.start)
        if start > history.end:
            history.begin_at(start)
            self._compared = {place: at for place, at in self._compared.items() if place[2] != key}
        if start > done.offset or done.offset > history.end:
            done = Compared(replica.generation, start, history.position_of(start))
        if end > done.offset:
            data = replica.read(done.offset, end)
            position = done.position + len(data)
            known = history.data[done.position : position]
            if known != data[: len(known)] or (end <= history.end and len(known) < len(data)):
                raise Violation(
                    f"{replica}: records from {done.offset} to {end} differ from the committed ones"
                )
            history.data += data[len(known) :]
            done = Compared(replica.generation, end, position)
        self._compared[place] = done
        if end > history.end:
            history.end = end
            history.ends[replica.leader_epoch] = end


class SoundIsr:
    """What the store says is possible: leader in ISR in replicas, epochs that never fall."""

    def __init__(self) -> None:
        self._epochs: dict[Key, int] = {}

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for key, agreed in sight.agreed.items():
            is_led_from_within = agreed.leader < 0 or agreed.leader in agreed.isr
            is_possible = agreed.isr and set(agreed.isr) <= set(agreed.replicas)
            if not (is_possible and is_led_from_within):
                raise Violation(f"the store says of {agreed.name}: {agreed}")
            if agreed.leader_epoch < self._epochs.get(key, 0):
                raise Violation(f"the leader epoch of {agreed.name} fell: {agreed}")
            self._epochs[key] = agreed.leader_epoch


class SoleLeader:
    """Who is sure to lead, so that it promises records and offsets alone, was not replaced: the
    store has no later leader. One that asked to stop leads on until others do."""

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for each in sight.replicas:
            agreed = sight.agreed.get(each.key)
            if not each.promises or agreed is None or each.broker in sight.leaving:
                continue
            if agreed.leader != each.broker and agreed.leader_epoch > each.leader_epoch:
                raise Violation(f"{each} believes that it leads alone; the store says {agreed}")


class UnaskedChanges:
    """An election takes a member of the in-sync set, and without one no broker leaves the set that
    lives on as it was admitted, unless the leader has asked for that (`proposals`), or a
    reassignment removes its replica. For clusters without unclean elections."""

    def __init__(self, proposals: Container[Proposal]) -> None:
        self._proposals = proposals
        self._last = Sight((), {})

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for key, agreed in sight.agreed.items():
            last = self._last.agreed.get(key)
            if last is not None and last != agreed:
                self._compare(last, agreed, sight)
        self._last = sight

    def _compare(self, last: Agreed, agreed: Agreed, sight: Sight) -> None:
        if agreed.leader_epoch > last.leader_epoch:
            is_next = agreed.partition_epoch == last.partition_epoch + 1
            if is_next and not last.unsafe and agreed.leader not in (*last.isr, -1):
                raise Violation(f"not in sync, and elected: {agreed} after {last}")
            return
        before, after = self._last.admitted, sight.admitted
        steady = {
            node
            for node in set(last.isr) - set(agreed.isr)
            if node in before and before[node] == after.get(node)
        }
        for node in sorted(steady.intersection(agreed.replicas) - sight.leaving):
            if Proposal(agreed.leader, agreed.leader_epoch, node) not in self._proposals:
                raise Violation(f"nobody asked for it: {agreed} after {last}")


class JustifiedDepartures:
    """A replica is asked to leave the in-sync set once it lags; before that, only if it sends no
    FETCH, and if enough stay for acks=all. `departures` grows, and is emptied here."""

    def __init__(self, departures: list[Departure]) -> None:
        self._departures = departures

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        while self._departures:
            each = self._departures.pop(0)
            if each.behind_s > each.lag_s_max:
                continue
            who = f"broker {each.leader} wants broker {each.replica} out of sync"
            if each.silent_s <= each.silence_s_max:
                raise Violation(f"{who}, which sent a FETCH {each.silent_s:.2f} s ago")
            if each.staying < each.needed:
                raise Violation(f"{who}, and then {each.staying} of {each.needed} are in sync")


class PatientCandidates:
    """A broker that resigned as controller and lives on is elected again only after `pause_s`,
    unless another broker was the controller meanwhile. A process that was restarted takes over from
    its former life."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._last: ActiveController | None = None  # who had it last, in which registration
        self._had_at = 0.0

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        active_controller = sight.active_controller
        if active_controller is None:
            return
        last = self._last
        if (
            last is not None
            and last.revision != active_controller.revision
            and (last.node_id, last.broker_epoch)
            == (active_controller.node_id, active_controller.broker_epoch)
            and active_controller.broker_epoch >= 0
            and sight.now - self._had_at < self._pause_s
        ):
            raise Violation(
                f"broker {active_controller.node_id} resigned as controller, and was elected again"
                f" after {sight.now - self._had_at:.2f} s"
            )
        if last is None or last.revision != active_controller.revision:
            self._last = active_controller
        self._had_at = sight.now


class NewestController:
    """Who took the word of a controller takes none of its predecessors' any more."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], int] = {}

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        for process, epoch in sight.obeyed.items():
            newest = self._newest.get(process, epoch)
            if epoch < newest:
                raise Violation(
                    f"broker {process[0]} obeyed controller epoch {newest}, and now {epoch}"
                )
            self._newest[process] = epoch


class WakefulSessions:
    """A follower that rests in a fetch session when its leader's log grows rests no more after the
    session's next fetch: else it would count as keeping up and never get the records."""

    def __init__(self) -> None:
        self._behind: dict[tuple[object, ...], float] = {}

    def look(self, sight: Sight) -> None:
        """Raises `Violation`."""
        behind = {}
        for each in sight.replicas:
            for follower in each.resting:
                if follower.log_end < each.log_end:
                    term = (each.key, each.broker, each.life, each.leader_epoch)
                    place = (*term, follower.broker, follower.log_end)
                    behind[place] = self._behind.get(place, follower.fetched_at)
                    if follower.fetched_at > behind[place]:
                        raise Violation(
                            f"{each} ends at {each.log_end}: broker {follower.broker} has fetched"
                            f" and still rests at {follower.log_end}"
                        )
        self._behind = behind


class Shown:
    """What consumers were shown: one value for one offset, whoever asks and whenever, and each
    consumer gets one after the other."""

    def __init__(self) -> None:
        self.values: dict[tuple[TopicPartition, int], bytes] = {}
        self.next: dict[tuple[str, TopicPartition], int] = {}

    def note(self, consumer: str, name: TopicPartition, offset: int, value: bytes) -> None:
        """A consumer was shown a record. Raises `Violation`."""
        wanted = self.next.get((consumer, name), 0)
        if offset != wanted:
            raise Violation(f"{consumer} was shown {name} {offset} instead of {wanted}")
        self.next[consumer, name] = offset + 1
        first = self.values.setdefault((name, offset), value)
        if first != value:
            raise Violation(f"{name} {offset} was shown as {first!r}, now it is {value!r}")


Records = Mapping[TopicPartition, list[tuple[int, bytes]]]


@dataclass
class Ledger:
    """What the producers sent and were told. Values are `PRODUCER:NUMBER`, numbers only grow."""

    deletions: Deletions = field(default_factory=Deletions)
    sent: dict[str, set[bytes]] = field(default_factory=dict)  # by topic
    acked: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)

    def note_sent(self, topic: str, value: bytes) -> None:
        """It was given to a producer."""
        self.sent.setdefault(topic, set()).add(value)

    def note_acked(self, name: TopicPartition, offset: int, value: bytes) -> None:
        """A producer was told that the record has this offset (-1: not told). Raises `Violation`.

        An offset that is not known is no promise of a place, but the record must be there.
        """
        before = self.acked.setdefault(name, {}).setdefault(offset, value) if offset >= 0 else value
        if before != value:
            raise Violation(f"{name} {offset} was acknowledged for {before!r} and for {value!r}")

    def forget(self, topic: str) -> None:
        """The topic is being deleted."""
        self.sent.pop(topic, None)
        for name in [name for name in self.acked if name.topic == topic]:
            del self.acked[name]

    def judge(self, stored: Records) -> None:
        """Compare what was told with what is stored at the end. Raises `Violation`.

        Every record is there exactly once, since all were delivered in the end; the acknowledged
        ones at their offsets; each producer's are in order within a partition. Those that clients
        asked to delete may be gone.
        """
        for name, records in stored.items():
            self._judge_order(name, records)
        for name, acked in self.acked.items():
            there = dict(stored.get(name, []))
            asked = self.deletions.asked.get(name, 0)
            for offset, value in acked.items():
                if offset < asked and offset not in there:
                    continue
                if there.get(offset) != value:
                    raise Violation(
                        f"{name} {offset}: {value!r} was acknowledged,"
                        f" {there.get(offset)!r} is there"
                    )
        for topic, sent in self.sent.items():
            found = [value for name in stored if name.topic == topic for _, value in stored[name]]
            if len(found) != len(set(found)):
                raise Violation(f"{topic} holds records twice: {doubles(found)}")
            is_cut = any(name.topic == topic for name in self.deletions.asked)
            if not (set(found) <= sent if is_cut else set(found) == sent):
                raise Violation(
                    f"{topic}: missing {sorted(sent - set(found))[:5]},"
                    f" never sent {sorted(set(found) - sent)[:5]}"
                )

    def _judge_order(self, name: TopicPartition, records: list[tuple[int, bytes]]) -> None:
        last_of: dict[bytes, int] = {}
        start = min(records[0][0], self.deletions.asked.get(name, 0)) if records else 0
        for place, (offset, value) in enumerate(records, start):
            if offset != place:
                raise Violation(f"{name} has {offset} in the place of {place}")
            producer, _, number = value.partition(b":")
            if last_of.get(producer, -1) >= int(number):
                raise Violation(f"{name} {offset}: {value!r} comes behind {last_of[producer]}")
            last_of[producer] = int(number)


def doubles(values: list[bytes]) -> list[bytes]:
    """Some values that are there more than once."""
    return sorted(value for value in set(values) if values.count(value) > 1)[:5]
