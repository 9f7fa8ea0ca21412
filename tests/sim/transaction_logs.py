"""What the bytes of a log say of transactions, and what a replica believes of them.

`replay` goes through the batches as simply as can be, and knows nothing of snapshots, lists of
aborted transactions and recovery. What a replica has in memory must agree with it at any time:
after a truncation, a restart, a failover or a compaction.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.broker.log.producers import ProducerEntry
from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.messages.fetch import AbortedTransaction
from minibroker.protocol.records.batch import BatchHeader, iterate_headers
from minibroker.protocol.records.control import read_end_marker
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import SimulatedBroker
from tests.sim.checkers import Violation
from tests.sim.sights import EVERYTHING, read_log
from tests.sim.transaction_checkers import Attempts, Shown


class Aborted(NamedTuple):
    """An aborted transaction of a log: its first offset, and that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class LogTransactions:
    """The first offset of each producer's open transaction, and the aborted ones in the order of
    their markers."""

    open: dict[int, int] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)


def batches(data: bytes) -> Iterator[tuple[bytes, BatchHeader]]:
    """The whole batches in some bytes."""
    for position, header in iterate_headers(data):
        yield data[position : position + header.size], header


def replay(data: bytes) -> LogTransactions:
    """What a log says that begins with these batches."""
    found = LogTransactions()
    for batch, header in batches(data):
        marker = read_end_marker(batch, header)
        if marker is not None:
            first_offset = found.open.pop(header.producer_id, None)
            if first_offset is not None and not marker.is_commit:
                found.aborted.append(Aborted(header.producer_id, first_offset, header.last_offset))
        elif header.is_transactional and not header.is_control:
            found.open.setdefault(header.producer_id, header.base_offset)
    return found


class Ended(NamedTuple):
    """A transaction of a log: the values of its records, and what its marker says."""

    values: list[bytes]
    is_commit: bool


def ended(data: bytes) -> Iterator[Ended]:
    """The transactions of a log that have markers, and records left."""
    pending: dict[int, list[bytes]] = defaultdict(list)
    for batch, header in batches(data):
        marker = read_end_marker(batch, header)
        if marker is not None:
            values = pending.pop(header.producer_id, [])
            if values:
                yield Ended(values, marker.is_commit)
        elif header.is_transactional and not header.is_control and header.record_count:
            records = decode_records(batch, header)
            pending[header.producer_id] += [bytes(record.value or b"") for record in records]


def read_committed(
    data: bytes, offset: int, aborted: Sequence[AbortedTransaction]
) -> tuple[list[Shown], int]:
    """What a reader of committed records is shown of the batches of an answer, from an offset on,
    and the offset behind them."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    aborting: set[int] = set()
    shown: list[Shown] = []
    end = offset
    for batch, header in batches(data):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        end = header.next_offset
        if header.is_control:
            marker = read_end_marker(batch, header)
            if marker is not None and not marker.is_commit:
                aborting.discard(header.producer_id)
        elif header.record_count and not (
            header.is_transactional and header.producer_id in aborting
        ):
            shown += [
                Shown(record.offset, bytes(record.value or b""), bytes(record.key or b""))
                for record in decode_records(batch, header)
                if record.offset >= offset
            ]
    return shown, max(end, offset)


class Belief(NamedTuple):
    """A replica in one process of a broker: what it has in memory, and its bytes."""

    who: str
    name: TopicPartition
    open: dict[int, int]
    aborted: list[Aborted]
    data: bytes


class SoundBeliefs:
    """Each replica believes of its transactions what its log says. It is compared in each process
    and after each truncation, and whenever it is asked for; in a compacted log only which are open,
    because a compaction drops the aborted records with the list of them."""

    def __init__(self, compacted: Sequence[str] = ()) -> None:
        self._compacted = compacted
        self._compared: dict[tuple[int, TopicPartition], tuple[int, int]] = {}

    def look(self, brokers: Sequence[SimulatedBroker], *, is_whole: bool = False) -> None:
        """Compare what is new, or, with `is_whole`, everything. Raises `Violation`."""
        for broker in brokers:
            for name in names_of(broker):
                replicas = broker.replicas
                partition = None if replicas is None else replicas.get(name)
                if partition is None:
                    continue
                state = (broker.life, partition.log.generation)
                if is_whole or self._compared.get((broker.node_id, name)) != state:
                    self._compared[broker.node_id, name] = state
                    self.compare(belief_of(broker, name))

    def compare(self, belief: Belief) -> None:
        """Raises `Violation`."""
        told = replay(belief.data)
        if belief.open != told.open:
            raise Violation(
                f"{belief.who}: open transactions of {belief.name} are {told.open},"
                f" it believes {belief.open}"
            )
        if belief.name.topic not in self._compacted and belief.aborted != told.aborted:
            differing = sorted({*belief.aborted} ^ {*told.aborted})
            raise Violation(
                f"{belief.who}: its list of aborted transactions of {belief.name} differs from its"
                f" log in {differing[:5] or 'its order'}"
            )


class RightMarkers:
    """On each replica of a topic, a follower's too, each transaction has a marker of its own, and
    that says what its process was told. A compacted topic is to be looked at often: what is wrong
    there may soon be gone."""

    def __init__(self, topic: str, attempts: Attempts) -> None:
        self._topic = topic
        self._attempts = attempts
        self._compared: dict[tuple[int, TopicPartition], tuple[int, int, int]] = {}

    def look(self, brokers: Sequence[SimulatedBroker]) -> None:
        """Compare the logs that have changed. Raises `Violation`."""
        for broker in brokers:
            for name in names_of(broker):
                replicas = broker.replicas
                partition = None if replicas is None else replicas.get(name)
                if partition is None or name.topic != self._topic:
                    continue
                log = partition.log
                state = (broker.life, log.generation, log.log_end)
                if self._compared.get((broker.node_id, name)) != state:
                    self._compared[broker.node_id, name] = state
                    self.compare(broker.name, name, read_log(log, log.log_start, log.log_end))

    def compare(self, who: str, name: TopicPartition, data: bytes) -> None:
        """Raises `Violation`."""
        for values, is_commit in ended(data):
            self._attempts.check_ended(f"{who} {name}", values, is_commit=is_commit)


def names_of(broker: SimulatedBroker) -> list[TopicPartition]:
    """The partitions of a broker, if it runs and has not closed its logs yet to end."""
    if broker.replicas is None or not broker.is_running or not broker.files.locks:
        return []
    return [*broker.replicas.high_watermarks()]


def belief_of(broker: SimulatedBroker, name: TopicPartition) -> Belief:
    """What a broker that runs believes of a partition."""
    assert broker.replicas is not None
    partition = broker.replicas.get(name)
    assert partition is not None
    log = partition.log
    entries = log._segments.aborted(log.log_start, EVERYTHING)
    return Belief(
        broker.name,
        name,
        opened(log.producers.entries()),
        [Aborted(*entry[:3]) for entry in entries],
        read_log(log, log.log_start, log.log_end),
    )


def opened(entries: Sequence[tuple[int, ProducerEntry]]) -> dict[int, int]:
    """The first offset of each producer's open transaction."""
    return {
        producer_id: entry.transaction_start
        for producer_id, entry in entries
        if entry.transaction_start != NO_OFFSET
    }


def held_back(brokers: Sequence[SimulatedBroker]) -> str:
    """Which replica's last stable offset is below its high watermark, or "" if none is."""
    for broker in brokers:
        for name in names_of(broker):
            assert broker.replicas is not None
            partition = broker.replicas.get(name)
            assert partition is not None
            stable, end = partition.last_stable_offset, partition.high_watermark
            if stable < end:
                opened_at = opened(partition.log.producers.entries())
                return f"{broker.name} {name}: {stable} of {end} is stable, open are {opened_at}"
    return ""
