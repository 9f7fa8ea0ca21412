"""What a producer has taken and not delivered yet: batches, memory, what to send, what to do next.

Pure: no clock, no randomness, no sockets. The producer appends, one sender asks `drain` for
requests and reports every answer with `answer`; all they need to know comes back as values. Every
batch that was sealed is settled exactly once, whatever happens: `take_settled` hands it over.

Order within a partition rests on three things: a lane's queue is sorted, its head alone may be
drained, and all it has in flight is on one connection. So a batch that waits for its retry holds
back those behind it. What may follow a batch that is in flight is decided by
sequence_numbers.py, or without idempotence only by `in_flight_max`: 1 keeps order there too.

Memory is held per batch, not per record: opening a batch takes `batch_bytes`, sealing gives back
what was not needed, and settling the rest. So appending a record to an open batch needs one
comparison, and `producer.py` does it inline.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from minibroker.client.errors import BufferFull, ClientTimeout
from minibroker.client.producer.batches import NO_BATCH, Batch, Lane, OpenBatch, Settled
from minibroker.client.producer.sequence_numbers import Numbering
from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    NO_OFFSET,
    ErrorCode,
)
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE, BrokerError
from minibroker.protocol.messages.produce import PartitionProduced
from minibroker.protocol.types import TopicPartition

# Leadership errors and lost connections heal fast: their back-off is shorter, in seconds.
LEADERSHIP_BACKOFF_S = 0.02
LEADERSHIP_BACKOFF_MAX_S = 0.2

# Who leads a partition: (node id, leader epoch), None where nobody does.
LeaderOf: TypeAlias = Callable[[TopicPartition], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """A producer's options, as far as they concern what it holds."""

    batch_bytes: int
    linger_s: float
    memory_bytes: int
    request_bytes_max: int
    in_flight_max: int  # batches of one lane under way
    delivery_timeout_s: float
    retries: int
    retry_backoff_s: float
    retry_backoff_max_s: float
    compression: int
    is_idempotent: bool


class Accumulator:
    """All lanes of one producer. One task drains it and reports answers."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.numbering = Numbering()
        self.free_bytes = limits.memory_bytes
        self._lanes: dict[TopicPartition, Lane] = {}
        self._open: dict[Lane, None] = {}  # lanes with an open batch, the oldest first
        self._waiting: dict[Lane, None] = {}  # lanes with a queue, the next to be served first
        self._unsettled: OrderedDict[Batch, None] = OrderedDict()  # roots, as they were sealed
        self._settled: list[Settled] = []

    def lane(self, topic_partition: TopicPartition) -> Lane:
        """The partition's lane, made when first asked for."""
        lane = self._lanes.get(topic_partition)
        if lane is None:
            lane = self._lanes[topic_partition] = Lane(topic_partition)
        return lane

    def lanes_of(self, topic: str) -> list[Lane]:
        """Every lane of a topic that was ever asked for."""
        return [lane for lane in self._lanes.values() if lane.topic_partition.topic == topic]

    def drop_lanes(self, topic: str) -> bool:
        """Forget the lanes of a topic that was deleted; False, and nothing done, if one is in use.

        Their sequences are forgotten with them. A lane that is made for the same partition later
        begins with 0 again, so it must do so in a new epoch: a broker that has the topic after all
        would take its first batch for a repetition.
        """
        lanes = self.lanes_of(topic)
        if any(lane.open is not NO_BATCH or lane.queue or lane.in_flight for lane in lanes):
            return False
        for lane in lanes:
            del self._lanes[lane.topic_partition]
        self.numbering.forget(lanes)
        return True

    # Appending

    def open_batch(
        self, lane: Lane, record_bytes: int, now: float, now_ms: int, *, may_overdraw: bool = False
    ) -> OpenBatch:
        """Seal what is open in the lane and open a batch that has room for such a record.

        `now` is monotonic, in seconds; `now_ms` the time of records that come without.
        Raises `BufferFull`, with every open batch sealed but nothing else changed.
        """
        if lane.open is not NO_BATCH:
            self.seal(lane)
        room = self.limits.batch_bytes - BATCH_HEADER_BYTES
        if record_bytes > room:
            room = record_bytes
        reserved = room + BATCH_HEADER_BYTES
        if reserved > self.free_bytes and not may_overdraw:
            self.seal_all()  # they are the only memory that no answer gives back (CPR-01)
        if reserved > self.free_bytes and not may_overdraw:
            raise BufferFull(
                f"buffer.memory ({self.limits.memory_bytes} bytes) is used up: "
                "await room() before the next send_nowait()"
            )
        self.free_bytes -= reserved
        lane.open = batch = OpenBatch(reserved, room, now, now_ms)
        self._open[lane] = None
        return batch

    def seal(self, lane: Lane) -> None:
        """Make the lane's open batch ready to be sent."""
        opened = lane.open
        lane.open = NO_BATCH
        del self._open[lane]
        self.free_bytes += opened.reserved
        if not opened.records:  # it was opened for a record that was then refused
            return
        data = opened.encode(self.limits.compression)
        deadline = opened.opened_at + self.limits.delivery_timeout_s
        batch = Batch(lane, data, len(opened.records), deadline)
        batch.watchers = opened.watchers
        batch.named = opened.named
        batch.position = lane.next_position
        lane.next_position += batch.record_count
        self.free_bytes -= batch.reserved
        self._unsettled[batch] = None
        lane.queue.append(batch)
        if lane.topic_partition.partition >= 0:
            self._waiting[lane] = None

    def adopt(self, orphans: Lane, lane: Lane) -> None:
        """Move the first batch of a lane that is no partition's to one that is."""
        if lane.open is not NO_BATCH:
            self.seal(lane)
        batch = orphans.queue.popleft()
        batch.lane = lane
        batch.position = lane.next_position
        lane.next_position += batch.record_count
        lane.queue.append(batch)
        self._waiting[lane] = None

    def take_back(self, orphans: Lane) -> Batch:
        """The first batch of a lane that is no partition's, to be appended elsewhere anew."""
        batch = orphans.queue.popleft()
        self.free_bytes += batch.reserved
        del self._unsettled[batch]
        return batch

    def seal_due(self, now: float) -> None:
        """Seal the batches whose linger time is over."""
        while self._open:
            lane = next(iter(self._open))
            if lane.open.opened_at + self.limits.linger_s > now:  # the sum of `next_due`
                break
            self.seal(lane)

    def seal_all(self) -> None:
        """Seal every open batch: somebody waits for them, or memory is short."""
        for lane in list(self._open):
            self.seal(lane)

    # Sending

    def nodes_wanted(self, leader_of: LeaderOf) -> tuple[set[int], bool]:
        """Which nodes lead a lane that waits, and whether one that waits has no leader."""
        nodes = set()
        is_leaderless = False
        for lane in self._waiting:
            leader = leader_of(lane.topic_partition)
            if leader is None:
                is_leaderless = True
            else:
                nodes.add(leader[0])
        return nodes, is_leaderless

    def drain(self, node_id: int, leader_of: LeaderOf, now: float) -> list[Batch]:
        """The next request for a node: at most one batch of each lane, empty if none may go.

        The batches count as in flight until `answer` was called for each of them.
        """
        batches: list[Batch] = []
        request_bytes = 0
        for lane in list(self._waiting):
            leader = leader_of(lane.topic_partition)
            if leader is None or leader[0] != node_id:
                continue
            batch = lane.queue[0]
            if not self._may_send(lane, batch, node_id, leader[1], now):
                continue
            request_bytes += len(batch.data)
            if batches and request_bytes > self.limits.request_bytes_max:
                break
            self._start(lane, batch, node_id, leader[1])
            batches.append(batch)
        return batches

    def _may_send(
        self, lane: Lane, batch: Batch, node_id: int, leader_epoch: int, now: float
    ) -> bool:
        if lane.in_flight and (
            lane.node_id != node_id or len(lane.in_flight) >= self.limits.in_flight_max
        ):
            return False
        # A new leader is a new try: no back-off (CPR-13).
        if batch.retry_at > now and batch.leader_epoch == leader_epoch:
            return False
        return not self.limits.is_idempotent or self.numbering.may_send(lane, batch)

    def _start(self, lane: Lane, batch: Batch, node_id: int, leader_epoch: int) -> None:
        lane.queue.popleft()
        if self.limits.is_idempotent and batch.identity is None:
            self.numbering.number(lane, batch)
        batch.attempts += 1
        batch.leader_epoch = leader_epoch
        lane.node_id = node_id
        insort(lane.in_flight, batch, key=_position)
        del self._waiting[lane]
        if lane.queue:
            self._waiting[lane] = None  # behind the others: the drain rotates

    # Answers

    def answer(self, batch: Batch, answer: PartitionProduced, now: float) -> None:
        """A broker's answer for a batch in flight, or what stands for it.

        A connection that was lost is NETWORK_EXCEPTION, a request that took too long
        REQUEST_TIMED_OUT (NET-06).
        """
        lane = batch.lane
        lane.in_flight.remove(batch)
        if answer.error == ErrorCode.NONE:
            self._deliver(lane, batch, answer.base_offset)
        elif self.numbering.is_known_to_be_written(lane, batch, answer.error):
            self._deliver(lane, batch, NO_OFFSET)
        elif batch.is_settled:  # the delivery time-out came first
            self.free_bytes += batch.reserved
        else:
            self._refused(lane, batch, answer, now)
        if not lane.in_flight:
            self.numbering.resolve(lane)

    def _deliver(self, lane: Lane, batch: Batch, base_offset: int) -> None:
        lane.trouble = ""
        self.numbering.acknowledged(lane, batch)
        if batch.is_settled:
            self.free_bytes += batch.reserved
        else:
            self._settle(batch, base_offset, None)

    def _refused(self, lane: Lane, batch: Batch, answer: PartitionProduced, now: float) -> None:
        code = answer.error
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(lane, batch)
            return
        can_retry = batch.attempts <= self.limits.retries
        is_about_numbers = self.numbering.is_about_numbers(lane, batch, answer)
        if is_about_numbers and lane.must_renumber:
            batch.attempts -= 1  # its try was lost before it was made
            self._requeue(lane, batch)
        elif (is_about_numbers or code in RETRIABLE) and can_retry:
            batch.retry_at = now + self._backoff_s(batch, code)
            # Lost connections the cluster's links tell; numbers follow from an earlier refusal.
            if code != ErrorCode.NETWORK_EXCEPTION and not is_about_numbers:
                lane.note_trouble(str(_error_of(answer)))
            self._requeue(lane, batch)
        else:
            self.numbering.gave_up(lane, batch)
            self._settle(batch, NO_OFFSET, _error_of(answer, batch))

    def _backoff_s(self, batch: Batch, code: int) -> float:
        if code in REFRESH_METADATA or code == ErrorCode.REQUEST_TIMED_OUT:
            first, most = LEADERSHIP_BACKOFF_S, LEADERSHIP_BACKOFF_MAX_S
        else:
            first, most = self.limits.retry_backoff_s, self.limits.retry_backoff_max_s
        return min(most, first * 2.0 ** min(batch.attempts - 1, 16))

    def _requeue(self, lane: Lane, batch: Batch) -> None:
        lane.requeue(batch)
        self._waiting[lane] = None

    def _split(self, lane: Lane, batch: Batch) -> None:
        parts = batch.split(self.limits.compression)
        self.numbering.number_parts(batch, parts)
        for part in parts:
            self.free_bytes -= part.reserved  # may go below 0 by a header: given back soon
            self._requeue(lane, part)
        self.free_bytes += batch.reserved

    # Settling

    def expire(self, now: float) -> None:
        """Fail what was not delivered within delivery.timeout.ms."""
        timeout_s = self.limits.delivery_timeout_s
        while self._unsettled:
            root = next(iter(self._unsettled))
            if root.deadline > now:
                return
            self._give_up(self._parts_of(root), lambda batch: _timeout_of(batch, timeout_s))

    def fail_all(self, make_error: Callable[[Batch], Exception]) -> None:
        """Fail everything that is not delivered: the producer ends."""
        self.seal_all()
        for root in list(self._unsettled):
            self._give_up(self._parts_of(root), make_error)

    def fail_lane(self, lane: Lane, error: Exception) -> None:
        """Fail everything of one lane that waits: it can never be sent."""
        if lane.open is not NO_BATCH:
            self.seal(lane)
        self._give_up(list(lane.queue), lambda _batch: error)

    def _parts_of(self, root: Batch) -> list[Batch]:
        lane = root.lane
        return [batch for batch in (*lane.in_flight, *lane.queue) if batch.root is root]

    def _give_up(self, batches: Iterable[Batch], make_error: Callable[[Batch], Exception]) -> None:
        for batch in batches:
            if batch.is_settled:
                continue
            lane = batch.lane
            self.numbering.gave_up(lane, batch)
            is_in_flight = batch in lane.in_flight
            self._settle(batch, NO_OFFSET, make_error(batch))
            if is_in_flight:
                self.free_bytes -= batch.reserved  # held until its request is answered
            else:
                lane.queue.remove(batch)
                if not lane.queue:
                    self._waiting.pop(lane, None)
            if not lane.in_flight:
                self.numbering.resolve(lane)

    def _settle(self, batch: Batch, base_offset: int, error: Exception | None) -> None:
        assert not batch.is_settled, "a batch is settled once"
        batch.is_settled = True
        self.free_bytes += batch.reserved
        root = batch.root
        root.unsettled_parts -= 1
        if not root.unsettled_parts:
            del self._unsettled[root]
        self._settled.append(Settled(batch, base_offset, error))

    def take_settled(self) -> list[Settled]:
        """What was settled since the last call."""
        settled, self._settled = self._settled, []
        return settled

    # Waiting

    def unsettled(self) -> list[Batch]:
        """The batches to wait for: each is done once its `unsettled_parts` is 0."""
        return list(self._unsettled)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open, waiting or in flight."""
        return not self._open and not self._unsettled

    @property
    def needs_identity(self) -> bool:
        """Whether a producer id must be asked for before anything can be drained."""
        return self.limits.is_idempotent and self.numbering.identity is None and bool(self._waiting)

    def next_due(self, now: float) -> float:
        """When time alone makes something to do, in monotonic seconds; infinity if never."""
        due = float("inf")
        if self._open:
            due = next(iter(self._open)).open.opened_at + self.limits.linger_s
        if self._unsettled:
            due = min(due, next(iter(self._unsettled)).deadline)
        for lane in self._waiting:
            if lane.queue[0].retry_at > now:
                due = min(due, lane.queue[0].retry_at)
        return due


def _position(batch: Batch) -> int:
    return batch.position


def _error_of(answer: PartitionProduced, batch: Batch | None = None) -> BrokerError:
    """What a broker said, and of which batch if it is given."""
    told = [f"{batch.record_count} records for {batch.lane.topic_partition}"] if batch else []
    text = ": ".join(told + ([answer.error_message] if answer.error_message else []))
    try:
        return BrokerError(ErrorCode(answer.error), text)
    except ValueError:  # a code that is younger than this client
        return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"code {answer.error}, {text}")


def _timeout_of(batch: Batch, timeout_s: float) -> ClientTimeout:
    lane = batch.lane
    name = str(lane.topic_partition)
    if lane.topic_partition.partition < 0:
        name = f"topic {lane.topic_partition.topic!r}, of which no broker has told anything,"
    text = f"{batch.record_count} records for {name} were not acknowledged within"
    text += f" delivery.timeout.ms ({timeout_s:g} s), after {batch.attempts} tries"
    return ClientTimeout(f"{text}: {lane.trouble}" if lane.trouble else text)
