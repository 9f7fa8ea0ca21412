"""The records that a producer has accepted and not delivered yet: batches and their memory.

Pure: no clock, no randomness, no sockets. The producer appends; one sender calls `advance` when
something is due, asks `drain` for requests, and reports every answer with `handle_answer`. Results
are returned as values. Each sealed batch is completed exactly once: `advance` or `pop_completed`
returns it.

Order within a partition rests on three things: `PartitionQueue.sealed` is sorted by position, only
its first batch may be drained, and all its batches in flight are on one connection. So a batch that
waits for its retry holds back those after it. `sequence_numbers.py` decides which batches may
follow one in flight; without idempotence only `in_flight_max` limits them, and 1 keeps the order
there, too.

Memory is held per batch, not per record: opening a batch reserves `batch_bytes`, sealing frees what
was not needed, and completing it the rest. So appending a record to an open batch needs one
comparison, and `producer.py` does it inline.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from minibroker.client.errors import BufferFull, ClientTimeout
from minibroker.client.producer.batches import (
    NO_BATCH,
    Batch,
    CompletedBatch,
    OpenBatch,
    PartitionQueue,
)
from minibroker.client.producer.sequence_numbers import SequenceNumbers
from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    NO_OFFSET,
    ErrorCode,
)
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE, BrokerError
from minibroker.protocol.messages.produce import PartitionProduced
from minibroker.protocol.types import TopicPartition

# A new leader or connection is often there soon, so this back-off is shorter, in seconds.
LEADERSHIP_BACKOFF_S = 0.02
LEADERSHIP_BACKOFF_MAX_S = 0.2

_position = attrgetter("position")

# The leader of a partition: (node id, leader epoch), None without one.
LeaderOf: TypeAlias = Callable[[TopicPartition], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class AccumulatorOptions:
    """The part of a producer's options that the accumulator uses."""

    batch_bytes: int
    linger_s: float
    memory_bytes: int
    request_bytes_max: int
    in_flight_max: int  # batches of one queue in flight
    delivery_timeout_s: float
    retries: int
    retry_backoff_s: float
    retry_backoff_max_s: float
    compression: int
    is_idempotent: bool
    is_transactional: bool = False


class Work(NamedTuple):
    """What the sender has to do, and when it must ask again."""

    completed: list[CompletedBatch]  # to be reported
    nodes: set[int]  # which lead a queue with sealed batches
    is_leaderless: bool  # a queue with sealed batches has no leader
    needs_identity: bool  # no batch can be drained without a producer id
    next_due: float  # monotonic seconds; infinity if nothing has a deadline


class Accumulator:
    """All queues of one producer. One task drains it and reports answers."""

    def __init__(self, options: AccumulatorOptions) -> None:
        self.options = options
        self.sequences = SequenceNumbers(is_transactional=options.is_transactional)
        self.free_bytes = options.memory_bytes
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._open: dict[PartitionQueue, None] = {}  # with an open batch, the oldest first
        self._waiting: dict[
            PartitionQueue, None
        ] = {}  # with sealed batches, the next to be drained first
        self._incomplete: OrderedDict[Batch, None] = OrderedDict()  # roots, in the order of sealing
        self._completed: list[CompletedBatch] = []
        self._has_new_due = False  # a batch whose time has not come is the next of its queue

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the partition's queue; make it at the first call."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
        return queue

    def queues_of(self, topic: str) -> list[PartitionQueue]:
        """Return all queues of a topic."""
        return [queue for queue in self._queues.values() if queue.topic_partition.topic == topic]

    def drop_queues(self, topic: str) -> bool:
        """Drop the queues of a topic that was deleted; return False, and drop none, if one is in
        use.

        Their sequences are dropped with them. A queue that is made for the same partition later
        begins with 0 again, so it must do so in a new epoch: a broker that still has the topic
        would take its first batch for a repetition.
        """
        queues = self.queues_of(topic)
        if not self.sequences.may_forget(queues) or any(
            queue.open_batch is not NO_BATCH or queue.sealed or queue.in_flight for queue in queues
        ):
            return False
        for queue in queues:
            del self._queues[queue.topic_partition]
        self.sequences.forget(queues)
        return True

    # Appending

    def open_batch(
        self,
        queue: PartitionQueue,
        record_bytes: int,
        now: float,
        now_ms: int,
        *,
        may_overdraw: bool = False,
    ) -> OpenBatch:
        """Seal the queue's open batch, and open one that has room for such a record.

        `now` is monotonic, in seconds; `now_ms` is the time of records without one. Raises
        `BufferFull`, with every open batch sealed but nothing else changed.
        """
        if queue.open_batch is not NO_BATCH:
            self.seal(queue)
        room = self.options.batch_bytes - BATCH_HEADER_BYTES
        if record_bytes > room:
            room = record_bytes
        reserved = room + BATCH_HEADER_BYTES
        if reserved > self.free_bytes and not may_overdraw:
            self.seal_all()  # no answer will free the memory of open batches (CPR-01)
        if reserved > self.free_bytes and not may_overdraw:
            raise BufferFull(
                f"buffer.memory ({self.options.memory_bytes} bytes) is used up: "
                "await room() before the next send_nowait()"
            )
        self.free_bytes -= reserved
        queue.open_batch = batch = OpenBatch(reserved, room, now, now_ms)
        self._open[queue] = None
        return batch

    def seal(self, queue: PartitionQueue) -> None:
        """Make the queue's open batch ready to be sent."""
        opened = queue.open_batch
        queue.open_batch = NO_BATCH
        del self._open[queue]
        self.free_bytes += opened.reserved
        if not opened.records:  # it was opened for a record that was then refused
            return
        data = opened.encode(self.options.compression, with_crc=not self.options.is_idempotent)
        deadline = opened.opened_at + self.options.delivery_timeout_s
        batch = Batch(queue, data, len(opened.records), deadline)
        batch.watchers = opened.watchers
        batch.explicit_partitions = opened.explicit_partitions
        batch.position = queue.next_position
        queue.next_position += batch.record_count
        self.free_bytes -= batch.reserved
        self._incomplete[batch] = None
        queue.sealed.append(batch)
        if queue.topic_partition.partition >= 0:
            self._waiting[queue] = None

    def move_first(self, unassigned: PartitionQueue, queue: PartitionQueue) -> None:
        """Move the first batch of a queue without a partition to one with a partition."""
        if queue.open_batch is not NO_BATCH:
            self.seal(queue)
        batch = unassigned.sealed.popleft()
        batch.queue = queue
        batch.position = queue.next_position
        queue.next_position += batch.record_count
        queue.sealed.append(batch)
        self._waiting[queue] = None

    def remove_first(self, unassigned: PartitionQueue) -> Batch:
        """Remove and return the first batch of a queue without a partition, to be appended
        elsewhere."""
        batch = unassigned.sealed.popleft()
        self.free_bytes += batch.reserved
        del self._incomplete[batch]
        return batch

    def seal_all(self) -> None:
        """Seal every open batch: a caller waits for them, or memory is short."""
        for queue in list(self._open):
            self.seal(queue)

    # Sending

    def advance(self, now: float, leader_of: LeaderOf) -> Work:
        """Seal the batches whose linger time is over, fail those that were not delivered within
        delivery.timeout.ms, and return what is to be done."""
        next_due = min(self._seal_due(now), self._expire(now))
        nodes = set()
        is_leaderless = False
        for queue in self._waiting:
            retry_at = queue.sealed[0].retry_at
            if now < retry_at < next_due:
                next_due = retry_at
            leader = leader_of(queue.topic_partition)
            if leader is None:
                is_leaderless = True
            else:
                nodes.add(leader[0])
        is_anonymous = self.options.is_idempotent and self.sequences.identity is None
        needs_identity = is_anonymous and bool(self._waiting)
        return Work(self.pop_completed(), nodes, is_leaderless, needs_identity, next_due)

    def _seal_due(self, now: float) -> float:
        """Seal the batches whose linger time is over. Return when the next one's is."""
        while self._open:
            queue = next(iter(self._open))
            due = queue.open_batch.opened_at + self.options.linger_s
            if due > now:
                return due
            self.seal(queue)
        return inf

    def _expire(self, now: float) -> float:
        """Fail the batches that were not delivered in time. Return when the next one is due."""
        timeout_s = self.options.delivery_timeout_s
        while self._incomplete:
            root = next(iter(self._incomplete))
            if root.deadline > now:
                return root.deadline
            self._give_up(self._parts_of(root), lambda batch: _timeout_of(batch, timeout_s))
        return inf

    def drain(self, node_id: int, leader_of: LeaderOf, now: float, count: int) -> list[list[Batch]]:
        """Return the next requests for a node, at most `count`: the batches of each, at most one of
        each queue.

        The batches count as in flight until `handle_answer` was called for each of them.
        """
        leader_epochs: dict[PartitionQueue, int] = {}
        for queue in self._waiting:
            leader = leader_of(queue.topic_partition)
            if leader is not None and leader[0] == node_id:
                leader_epochs[queue] = leader[1]
        requests: list[list[Batch]] = []
        while self._waiting and len(requests) < count:
            batches = self._drain_one(node_id, leader_epochs, now)
            if not batches:
                break
            requests.append(batches)
        return requests

    def pop_has_new_due(self) -> bool:
        """Whether a drain since the last call may have brought the time forward for which `advance`
        is next due: who drains calls it then."""
        has_new_due, self._has_new_due = self._has_new_due, False
        return has_new_due

    def _drain_one(
        self, node_id: int, leader_epochs: dict[PartitionQueue, int], now: float
    ) -> list[Batch]:
        """Return the batches of the next request; none if none may be sent."""
        batches: list[Batch] = []
        request_bytes = 0
        for queue in list(self._waiting):
            leader_epoch = leader_epochs.get(queue)
            if leader_epoch is None:
                continue
            batch = queue.sealed[0]
            if not self._may_send(queue, batch, node_id, leader_epoch, now):
                continue
            request_bytes += len(batch.data)
            if batches and request_bytes > self.options.request_bytes_max:
                break
            self._start(queue, batch, node_id, leader_epoch, now)
            batches.append(batch)
        return batches

    def _may_send(
        self, queue: PartitionQueue, batch: Batch, node_id: int, leader_epoch: int, now: float
    ) -> bool:
        if queue.in_flight and (
            queue.node_id != node_id or len(queue.in_flight) >= self.options.in_flight_max
        ):
            return False
        # A new leader is a new try: no back-off (CPR-13).
        if batch.retry_at > now and batch.leader_epoch == leader_epoch:
            return False
        return not self.options.is_idempotent or self.sequences.may_send(queue, batch)

    def _start(
        self, queue: PartitionQueue, batch: Batch, node_id: int, leader_epoch: int, now: float
    ) -> None:
        queue.sealed.popleft()
        if self.options.is_idempotent and batch.identity is None:
            self.sequences.assign(queue, batch)
        batch.attempts += 1
        batch.leader_epoch = leader_epoch
        queue.node_id = node_id
        insort(queue.in_flight, batch, key=_position)
        del self._waiting[queue]
        if queue.sealed:
            self._waiting[queue] = None  # after the others: the queues take turns
            self._has_new_due |= queue.sealed[0].retry_at > now

    # Answers

    def handle_answer(self, batch: Batch, answer: PartitionProduced, now: float) -> None:
        """Handle a broker's answer for a batch in flight, or the error that replaces it.

        A lost connection is NETWORK_EXCEPTION, a request that took too long REQUEST_TIMED_OUT
        (NET-06).
        """
        queue = batch.queue
        queue.in_flight.remove(batch)
        if answer.error == ErrorCode.NONE:
            self._deliver(queue, batch, answer.base_offset)
        elif self.sequences.is_known_to_be_written(queue, batch, answer.error):
            self._deliver(queue, batch, NO_OFFSET)
        elif batch.is_completed:  # the delivery time-out came first
            self.free_bytes += batch.reserved
        else:
            self._handle_refusal(queue, batch, answer, now)
        if not queue.in_flight:
            self.sequences.resolve(queue)

    def _deliver(self, queue: PartitionQueue, batch: Batch, base_offset: int) -> None:
        queue.last_error = ""
        self.sequences.on_acknowledged(queue, batch)
        if batch.is_completed:
            self.free_bytes += batch.reserved
        else:
            self._complete(batch, base_offset, None)

    def _handle_refusal(
        self, queue: PartitionQueue, batch: Batch, answer: PartitionProduced, now: float
    ) -> None:
        code = answer.error
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(queue, batch)
            return
        can_retry = batch.attempts <= self.options.retries
        is_about_numbers = self.sequences.is_about_numbers(queue, batch, answer)
        if is_about_numbers and queue.must_renumber:
            batch.attempts -= 1  # the connection was lost before the batch was sent
            self._requeue(queue, batch)
        elif (is_about_numbers or code in RETRIABLE) and can_retry:
            batch.retry_at = now + self._backoff_s(batch, code)
            # The connection pool logs lost connections; sequences follow an earlier refusal.
            if code != ErrorCode.NETWORK_EXCEPTION and not is_about_numbers:
                is_usual = self._awaits_markers(queue, code)
                queue.record_error(str(_error_of(answer)), is_usual=is_usual)
            self._requeue(queue, batch)
        else:
            self.sequences.on_given_up(queue, batch)
            self._complete(batch, NO_OFFSET, _error_of(answer, batch))

    def _backoff_s(self, batch: Batch, code: int) -> float:
        is_short = code in REFRESH_METADATA or code == ErrorCode.REQUEST_TIMED_OUT
        if is_short or self._awaits_markers(batch.queue, code):
            first, most = LEADERSHIP_BACKOFF_S, LEADERSHIP_BACKOFF_MAX_S
        else:
            first, most = self.options.retry_backoff_s, self.options.retry_backoff_max_s
        return min(most, first * 2.0 ** min(batch.attempts - 1, 16))

    def _awaits_markers(self, queue: PartitionQueue, code: int) -> bool:
        """Whether a transaction cannot begin in the partition, perhaps because the one before is
        just getting its markers."""
        is_first = self.options.is_transactional and not queue.expected_sequence
        return is_first and code == ErrorCode.NOT_ENOUGH_REPLICAS

    def _requeue(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.requeue(batch)
        self._waiting[queue] = None

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        parts = batch.split(self.options.compression, with_crc=not self.options.is_idempotent)
        self.sequences.assign_parts(batch, parts)
        for part in parts:
            self.free_bytes -= part.reserved  # may go below 0 by a header, which is freed soon
            self._requeue(queue, part)
        self.free_bytes += batch.reserved

    # Settling

    def fail_all(self, make_error: Callable[[Batch], Exception]) -> None:
        """Fail all undelivered batches: the producer ends, or its transaction."""
        self.seal_all()
        for root in list(self._incomplete):
            self._give_up(self._parts_of(root), make_error)

    def fail_queue(self, queue: PartitionQueue, error: Exception) -> None:
        """Fail all waiting batches of one queue, which can never be sent."""
        if queue.open_batch is not NO_BATCH:
            self.seal(queue)
        self._give_up(list(queue.sealed), lambda _batch: error)

    def _parts_of(self, root: Batch) -> list[Batch]:
        queue = root.queue
        return [batch for batch in (*queue.in_flight, *queue.sealed) if batch.root is root]

    def _give_up(self, batches: Iterable[Batch], make_error: Callable[[Batch], Exception]) -> None:
        for batch in batches:
            if batch.is_completed:
                continue
            queue = batch.queue
            self.sequences.on_given_up(queue, batch)
            is_in_flight = batch in queue.in_flight
            self._complete(batch, NO_OFFSET, make_error(batch))
            if is_in_flight:
                self.free_bytes -= batch.reserved  # held until its request is answered
            else:
                queue.sealed.remove(batch)
                if not queue.sealed:
                    self._waiting.pop(queue, None)
            if not queue.in_flight:
                self.sequences.resolve(queue)

    def _complete(self, batch: Batch, base_offset: int, error: Exception | None) -> None:
        assert not batch.is_completed, "a batch is completed once"
        batch.is_completed = True
        self.free_bytes += batch.reserved
        root = batch.root
        root.incomplete_parts -= 1
        if not root.incomplete_parts:
            del self._incomplete[root]
        self._completed.append(CompletedBatch(batch, base_offset, error))

    def pop_completed(self) -> list[CompletedBatch]:
        """Return the batches completed since the last call."""
        completed, self._completed = self._completed, []
        return completed

    # Waiting

    def incomplete(self) -> list[Batch]:
        """Return the batches to wait for: each is done once its `incomplete_parts` is 0."""
        return list(self._incomplete)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is open, waiting or in flight."""
        return not self._open and not self._incomplete


def _error_of(answer: PartitionProduced, batch: Batch | None = None) -> BrokerError:
    """Return the error of a broker's answer, with its batch if that is given."""
    texts = [f"{batch.record_count} records for {batch.queue.topic_partition}"] if batch else []
    text = ": ".join(texts + ([answer.error_message] if answer.error_message else []))
    try:
        return BrokerError(ErrorCode(answer.error), text)
    except ValueError:  # a code that this client does not know
        return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"code {answer.error}, {text}")


def _timeout_of(batch: Batch, timeout_s: float) -> ClientTimeout:
    queue = batch.queue
    name = str(queue.topic_partition)
    if queue.topic_partition.partition < 0:
        name = f"topic {queue.topic_partition.topic!r}, of which no broker has told anything,"
    text = f"{batch.record_count} records for {name} were not acknowledged within"
    text += f" delivery.timeout.ms ({timeout_s:g} s), after {batch.attempts} tries"
    return ClientTimeout(f"{text}: {queue.last_error}" if queue.last_error else text)
