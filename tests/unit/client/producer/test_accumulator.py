"""The accumulator's single rules; test_accumulator_model.py holds them together."""

import gc
import math

import pytest

from minibroker.client.errors import BufferFull, ClientTimeout
from minibroker.client.producer.accumulator import Accumulator, AccumulatorOptions, Work
from minibroker.client.producer.batches import (
    Batch,
    OpenBatch,
    PartitionQueue,
    ProducerIdAndEpoch,
)
from minibroker.client.producer.raw_record import RawRecord, record_bytes
from minibroker.client.producer.routes import Routes
from minibroker.protocol.constants import PRODUCER_EPOCH_MAX, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.produce import PartitionProduced
from minibroker.protocol.records import batch as batch_format
from minibroker.protocol.records.batch import has_valid_crc, read_header
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Machine:
    """An accumulator with a producer id, and short ways to use it."""

    def __init__(self, **changes) -> None:
        values = {
            "batch_bytes": 1000,
            "linger_s": 0.005,
            "memory_bytes": 100_000,
            "request_bytes_max": 100_000,
            "in_flight_max": 5,
            "delivery_timeout_s": 100.0,
            "retries": 2**31 - 1,
            "retry_backoff_s": 0.1,
            "retry_backoff_max_s": 1.0,
            "compression": 0,
            "is_idempotent": True,
        }
        self.accumulator = Accumulator(AccumulatorOptions(**(values | changes)))
        self.accumulator.sequences.identity = ProducerIdAndEpoch(7, 0)
        self.routes = Routes(self.accumulator, lambda _: True)
        self.leader = (0, 1)

    def append(self, queue: PartitionQueue, value: bytes, now: float) -> None:
        """Append a record with timestamp 0."""
        record: RawRecord = (0, None, value, ())
        self.routes.append(queue, record, record_bytes(record), now)

    def send(self, where: TopicPartition = P0, *, count: int = 1, now: float = 0.0) -> None:
        """A batch of `count` records, sealed."""
        queue = self.accumulator.queue(where)
        for _ in range(count):
            self.append(queue, b"value", now)
        self.accumulator.seal(queue)

    def begin(self, where: TopicPartition = P0) -> None:
        """Have the first batch acknowledged, which goes alone: one record, sequence 0."""
        self.send(where)
        self.handle_answer(self.drain()[0])
        assert self.errors() == [None]

    def drain(self, now: float = 0.0) -> list[Batch]:
        """The next request; empty if there is none."""
        requests = self.accumulator.drain(0, lambda _: self.leader, now, 1)
        return requests[0] if requests else []

    def advance(self, now: float) -> Work:
        return self.accumulator.advance(now, lambda _: self.leader)

    def handle_answer(self, batch: Batch, error: int = 0, *, now: float = 0.0, **more) -> None:
        answer = PartitionProduced(*batch.queue.topic_partition, error=error, **more)
        self.accumulator.handle_answer(batch, answer, now)

    def errors(self) -> list[Exception | None]:
        return [completed.error for completed in self.accumulator.pop_completed()]


def numbers(batches: list[Batch]) -> list[tuple[int, int]]:
    """Epoch and sequence of each."""
    return [(batch.identity.epoch, batch.sequence) for batch in batches]


def test_a_request_has_at_most_one_batch_of_each_partition() -> None:
    """Several partitions share a request; a partition's batches follow each other."""
    machine = Machine()
    machine.begin(P0)
    machine.begin(P1)
    for _ in range(2):
        machine.send(P0)
        machine.send(P1)
    assert [batch.queue.topic_partition for batch in machine.drain()] == [P0, P1]
    assert [batch.queue.topic_partition for batch in machine.drain()] == [P0, P1]
    assert not machine.drain()


def test_requests_are_drained_together_up_to_a_count() -> None:
    """Each has at most one batch of a partition, and the partitions take turns at the limit of
    bytes."""
    machine = Machine(request_bytes_max=100)
    machine.begin(P0)
    machine.begin(P1)
    for _ in range(2):
        machine.send(P0)
        machine.send(P1)
    requests = machine.accumulator.drain(0, lambda _: machine.leader, 0.0, 3)
    assert [[batch.queue.topic_partition for batch in each] for each in requests] == [
        [P0],
        [P1],
        [P0],
    ]
    (last,) = machine.accumulator.drain(0, lambda _: machine.leader, 0.0, 3)
    assert [batch.queue.topic_partition for batch in last] == [P1]


def test_what_there_is_to_do_is_said_by_advance() -> None:
    """Which nodes have batches, that a batch has no leader, and when the next deadline is."""
    machine = Machine(delivery_timeout_s=50.0)
    assert machine.advance(0.0) == ([], set(), False, False, math.inf)
    machine.send(P0)
    machine.send(P1)
    assert machine.advance(0.0) == ([], {0}, False, False, 50.0)
    leaders = {P0: (3, 1)}
    assert machine.accumulator.advance(0.0, leaders.get) == ([], {3}, True, False, 50.0)
    assert machine.accumulator.drain(7, lambda _: machine.leader, 0.0, 5) == [], "0 leads them"
    batches = machine.drain()
    assert machine.advance(0.0) == ([], set(), False, False, 50.0)
    for batch in batches:
        machine.handle_answer(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert machine.advance(0.0) == ([], {0}, False, False, pytest.approx(0.1))
    completed, *_, next_due = machine.advance(50.0)
    assert [batch for batch, *_ in completed] == batches
    assert next_due == math.inf


def test_the_first_batch_goes_alone() -> None:
    """A20: a broker accepts any first sequence, so no other batch may arrive before it; in a new
    epoch again."""
    machine = Machine()
    for _ in range(3):
        machine.send()
    (first,) = machine.drain()
    assert not machine.drain()
    machine.handle_answer(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (first,) = machine.drain(now=1.0)
    assert numbers([first]) == [(1, 0)]
    assert not machine.drain(now=1.0)
    machine.handle_answer(first)
    assert numbers(machine.drain(now=1.0) + machine.drain(now=1.0)) == [(1, 1), (1, 2)]


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_batch_is_checksummed_once(monkeypatch: pytest.MonkeyPatch, is_idempotent: bool) -> None:
    """The checksum covers the producer's id and sequence, so it is computed behind them; another
    try is sent as it is, and the parts of a split batch have one each."""
    computed: list[int] = []
    compute = batch_format._compute_crc

    def count(batch: bytearray, size: int) -> int:
        computed.append(size)
        return compute(batch, size)

    monkeypatch.setattr(batch_format, "_compute_crc", count)
    machine = Machine(is_idempotent=is_idempotent)
    machine.send(count=2)
    (batch,) = machine.drain()
    assert len(computed) == 1
    assert has_valid_crc(batch.data, read_header(batch.data))
    machine.handle_answer(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    machine.leader = (0, 2)
    (again,) = machine.drain()
    assert again is batch
    machine.handle_answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    computed.clear()
    parts = []
    while len(parts) < 2:
        parts += machine.drain(now=10.0)
        machine.handle_answer(parts[-1])
    assert all(has_valid_crc(part.data, read_header(part.data)) for part in parts)


def test_a_lingering_batch_is_sealed_when_it_is_due() -> None:
    """CPR-01: not before linger.ms, and then at once."""
    machine = Machine()
    machine.append(machine.accumulator.queue(P0), b"x", 1.0)
    assert machine.advance(1.0).next_due == pytest.approx(1.005)
    machine.advance(1.004)
    assert not machine.drain()
    machine.advance(1.0051)
    assert len(machine.drain()) == 1


def test_full_memory_seals_what_is_open_and_takes_nothing() -> None:
    """CPR-01, CPR-14: memory exhausted makes batches ready; settling them gives it back."""
    machine = Machine(memory_bytes=2500)
    for partition in range(2):
        queue = machine.accumulator.queue(TopicPartition("t", partition))
        machine.append(queue, bytes(800), 0.0)
    queue = machine.accumulator.queue(TopicPartition("t", 2))
    with pytest.raises(BufferFull):
        machine.append(queue, bytes(800), 0.0)
    batches = machine.drain()
    assert len(batches) == 2
    for batch in batches:
        machine.handle_answer(batch)
    assert machine.accumulator.free_bytes == 2500


def test_one_in_flight_mutes_the_partition() -> None:
    """CPR-12: the next batch waits for the answer, and a retry goes first."""
    machine = Machine(in_flight_max=1, is_idempotent=False)
    machine.send()
    machine.send()
    (first,) = machine.drain()
    assert not machine.drain()
    machine.handle_answer(first, ErrorCode.NETWORK_EXCEPTION)
    assert not machine.drain(now=0.01), "it waits for its back-off, and so does the other"
    assert machine.drain(now=1.0) == [first]


def test_a_new_leader_skips_the_back_off() -> None:
    """CPR-13: the back-off was for the old one."""
    machine = Machine()
    machine.send()
    (batch,) = machine.drain()
    machine.handle_answer(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not machine.drain()
    machine.leader = (0, 2)
    assert machine.drain() == [batch]


def test_a_partition_goes_to_its_next_leader_once_the_last_has_answered() -> None:
    """A20: what is in flight is on one connection, so that nothing overtakes at another broker."""
    machine = Machine()
    for _ in range(2):
        machine.send()
    (first,) = machine.drain()
    machine.leader = (1, 2)
    drained = [machine.accumulator.drain(node, lambda _: machine.leader, 0.0, 1) for node in (0, 1)]
    assert drained == [[], []]
    machine.handle_answer(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert machine.accumulator.drain(1, lambda _: machine.leader, 0.0, 5) == [[first]]


def test_a_retry_keeps_its_numbers_and_goes_alone() -> None:
    """CPR-03: id, epoch and sequence stay; those behind wait until it is settled."""
    machine = Machine()
    machine.begin()
    for _ in range(3):
        machine.send(count=2)
    batches = [machine.drain()[0] for _ in range(3)]
    assert numbers(batches) == [(0, 1), (0, 3), (0, 5)]
    for batch in batches:
        machine.handle_answer(batch, ErrorCode.NETWORK_EXCEPTION)
    assert machine.drain(now=1.0) == batches[:1]
    assert not machine.drain(now=1.0)
    machine.handle_answer(batches[0])
    assert numbers(machine.drain(now=1.0)) == [(0, 3)]


def test_a_duplicate_counts_as_delivered() -> None:
    """CPR-06: without an offset."""
    machine = Machine()
    machine.send()
    machine.handle_answer(machine.drain()[0], ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    (completed,) = machine.accumulator.pop_completed()
    assert (completed.base_offset, completed.error) == (-1, None)


def test_out_of_order_of_the_next_batch_raises_the_epoch() -> None:
    """CPR-07, L1: only the queue that got the error starts again; others end their numbers."""
    machine = Machine()
    machine.send(P0)
    machine.send(P1)
    batches = machine.drain()
    machine.send(P1)
    machine.handle_answer(batches[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (again,) = machine.drain()
    assert again is batches[0]
    assert numbers([again]) == [(1, 0)]
    assert numbers(batches[1:]) == [(0, 0)], "what may have been written keeps its numbers"
    machine.handle_answer(batches[1])
    assert numbers(machine.drain()) == [(1, 0)]


def test_out_of_order_of_a_later_batch_is_tried_again() -> None:
    """A20: the one before it failed and is sent first; nothing is renumbered."""
    machine = Machine()
    machine.begin()
    machine.send()
    machine.send()
    first, second = machine.drain()[0], machine.drain()[0]
    machine.handle_answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    machine.handle_answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    machine.handle_answer(machine.drain(now=1.0)[0])
    assert numbers(machine.drain(now=1.0)) == [(0, 2)]


@pytest.mark.parametrize(("log_start", "expected"), [(-1, (0, 1)), (5, (1, 0))])
def test_an_unknown_producer_is_believed_if_the_log_start_is_known(
    log_start: int, expected: tuple[int, int]
) -> None:
    """CPR-09: else the batch is tried again as it is."""
    machine = Machine()
    machine.send()
    machine.handle_answer(machine.drain()[0])
    machine.send()
    (batch,) = machine.drain()
    machine.handle_answer(batch, ErrorCode.UNKNOWN_PRODUCER_ID, log_start=log_start)
    assert numbers(machine.drain(now=1.0)) == [expected]


def test_after_the_last_epoch_a_new_id_is_needed() -> None:
    """A20: at 32767 the producer asks again instead of wrapping."""
    machine = Machine()
    machine.accumulator.sequences.identity = ProducerIdAndEpoch(7, PRODUCER_EPOCH_MAX)
    machine.send()
    (batch,) = machine.drain()
    machine.handle_answer(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not machine.drain(now=1.0)
    assert machine.advance(1.0).needs_identity
    machine.accumulator.sequences.identity = ProducerIdAndEpoch(8, 0)
    assert numbers(machine.drain(now=1.0)) == [(0, 0)]


def test_a_batch_that_failed_for_good_makes_those_behind_start_again() -> None:
    """CPR-16: they were refused because it is missing; a new epoch lets them through."""
    machine = Machine()
    machine.begin()
    machine.send()
    machine.send()
    first, second = machine.drain()[0], machine.drain()[0]
    machine.handle_answer(first, ErrorCode.INVALID_RECORD)
    machine.handle_answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert numbers(machine.drain(now=1.0)) == [(1, 0)]
    (error,) = machine.errors()
    assert isinstance(error, BrokerError)


def test_used_up_retries_fail_without_renumbering_what_follows() -> None:
    """CPR-16: it may have been written, and then its successor is accepted as it is."""
    machine = Machine(retries=1)
    machine.begin()
    machine.send()
    machine.send()
    first, second = machine.drain()[0], machine.drain()[0]
    for batch in (first, second):
        machine.handle_answer(batch, ErrorCode.NETWORK_EXCEPTION)
    machine.handle_answer(machine.drain(now=1.0)[0], ErrorCode.NETWORK_EXCEPTION, now=1.0)
    assert len(machine.errors()) == 1
    assert numbers(machine.drain(now=2.0)) == [(0, 2)]


def test_the_delivery_time_out_holds_new_batches_until_it_is_known() -> None:
    """A20: unresolved; the late answer may still resolve it without a new epoch. A batch was
    acknowledged before, or the rule of the first batch would hold the new one."""
    machine = Machine(delivery_timeout_s=1.0)
    machine.begin()
    machine.send()
    (batch,) = machine.drain()
    (expired,) = machine.advance(1.0).completed
    error = expired.error
    assert isinstance(error, ClientTimeout)
    machine.send(now=1.0)
    assert not machine.drain(now=1.0)
    machine.handle_answer(batch)
    assert not machine.errors(), "it is settled once"
    assert numbers(machine.drain(now=1.0)) == [(0, 2)]


def test_why_batches_do_not_get_through_is_said_once(caplog) -> None:
    """In the log at the first refusal, not at the next; and in the error in the end."""
    machine = Machine(delivery_timeout_s=1.0)
    machine.send()
    for now in (0.0, 0.3, 0.6):
        (batch,) = machine.drain(now)
        error = ErrorCode.KAFKA_STORAGE_ERROR
        machine.handle_answer(batch, error, now=now, error_message="the disk is full")
    assert [record.getMessage() for record in caplog.records] == [
        "t-0: KAFKA_STORAGE_ERROR: the disk is full; trying again"
    ]
    (expired,) = machine.advance(1.0).completed
    assert str(expired.error).endswith("after 3 tries: KAFKA_STORAGE_ERROR: the disk is full")


def test_what_follows_from_a_refusal_is_not_said(caplog) -> None:
    """Batches behind a refused one have the wrong numbers; the reason is the first one's."""
    machine = Machine()
    machine.begin()
    machine.send()
    machine.send()
    first, second = machine.drain()[0], machine.drain()[0]
    machine.handle_answer(first, ErrorCode.KAFKA_STORAGE_ERROR)
    machine.handle_answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert [record.getMessage() for record in caplog.records] == [
        "t-0: KAFKA_STORAGE_ERROR; trying again"
    ]


def test_trouble_that_came_back_is_said_again(caplog) -> None:
    """A delivery in between ends the trouble."""
    machine = Machine()
    for now in (0.0, 10.0):
        machine.send(now=now)
        machine.handle_answer(machine.drain(now)[0], ErrorCode.NOT_ENOUGH_REPLICAS, now=now)
        machine.handle_answer(machine.drain(now + 5)[0], now=now + 5)
    assert len(caplog.records) == 2


def test_after_a_time_out_without_answer_the_epoch_is_raised() -> None:
    """A20: nobody knows whether the batch was written, so its numbers are left behind."""
    machine = Machine(delivery_timeout_s=1.0)
    machine.send()
    (batch,) = machine.drain()
    machine.advance(1.0)
    machine.handle_answer(batch, ErrorCode.NETWORK_EXCEPTION, now=1.0)
    machine.send(now=1.0)
    assert numbers(machine.drain(now=1.0)) == [(1, 0)]
    assert machine.accumulator.free_bytes > 99_000


def test_a_split_shares_the_numbers_of_the_whole() -> None:
    """CPR-11: those behind keep theirs; whoever waits for the batch waits for both parts."""
    machine = Machine()
    machine.begin()
    machine.send(count=5)
    machine.send()
    whole, behind = machine.drain()[0], machine.drain()[0]
    machine.handle_answer(whole, ErrorCode.MESSAGE_TOO_LARGE)
    machine.handle_answer(behind, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for expected in ((0, 1), (0, 3), (0, 6)):
        assert whole.incomplete_parts or expected == (0, 6)
        (part,) = machine.drain(now=1.0)
        assert numbers([part]) == [expected]
        machine.handle_answer(part)
    assert not whole.incomplete_parts
    assert machine.accumulator.is_idle


def test_records_without_a_time_have_that_of_their_batch():
    """Plain records and others keep their order; who brought a time keeps it."""
    batch = OpenBatch(1000, 1000, 0.0, 77)
    for record in (
        (None, None, b"plain", ()),
        (None, b"k", b"keyed", ()),
        (5, None, b"timed", ()),
        (None, None, None, ()),
        (None, None, b"plain", (("h", b"1"),)),
        (None, None, b"", ()),
    ):
        batch.append(record)
    data = batch.encode(0)
    records = decode_records(data, read_header(data))
    assert [(r.timestamp, r.key, r.value) for r in records] == [
        (77, None, b"plain"),
        (77, b"k", b"keyed"),
        (5, None, b"timed"),
        (77, None, None),
        (77, None, b"plain"),
        (77, None, b""),
    ]


def test_a_settled_batch_goes_without_the_collector():
    """No cycle holds a batch: its bytes are free as soon as it is delivered."""
    machine = Machine()
    machine.send()
    (batch,) = machine.drain()
    machine.handle_answer(batch)
    machine.accumulator.pop_completed()
    queue = batch.queue
    del batch
    left = [each for each in gc.get_objects() if isinstance(each, Batch) and each.queue is queue]
    assert not left


def test_lanes_of_a_deleted_topic_are_forgotten() -> None:
    """CPR-03: not while they are in use. A broker that has the topic after all knows sequence 0 of
    this epoch already, so a queue that is made again begins in the next one."""
    machine = Machine()
    machine.send(P0)
    machine.send(TopicPartition("other", 0))
    assert not machine.accumulator.drop_queues("t")
    first, other = machine.drain()
    assert not machine.accumulator.drop_queues("t")
    machine.handle_answer(first)
    assert machine.accumulator.drop_queues("t")
    assert machine.accumulator.queues_of("t") == []
    machine.send(P0)
    machine.send(TopicPartition("other", 0))
    assert numbers(machine.drain()) == [(1, 0)]  # the other queue waits for its answer
    machine.handle_answer(other)
    assert numbers([first, other, *machine.drain()]) == [(0, 0), (0, 0), (1, 0)]


def test_forgetting_unused_lanes_costs_no_epoch() -> None:
    """Nothing was ever sent by them."""
    machine = Machine()
    machine.accumulator.queue(P0)
    assert machine.accumulator.drop_queues("t")
    machine.send(P1)
    assert numbers(machine.drain()) == [(0, 0)]


def test_a_transactional_batch_that_cannot_follow_fails() -> None:
    """The epoch is the coordinator's: nothing is numbered anew in it. In the next one, all queues
    begin again from 0, also behind a batch of the last one that is still under way."""
    machine = Machine(is_transactional=True)
    machine.begin()
    for _ in range(3):
        machine.send()
    first, second, third = machine.drain() + machine.drain() + machine.drain()
    machine.handle_answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not machine.errors(), "one before it is under way"
    machine.handle_answer(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    [error] = machine.errors()
    assert isinstance(error, BrokerError)
    assert machine.accumulator.sequences.identity == ProducerIdAndEpoch(7, 0)
    machine.accumulator.fail_all(lambda _: BufferFull("the transaction has failed"))
    assert len(machine.errors()) == 2
    machine.accumulator.sequences.identity = ProducerIdAndEpoch(7, 1)
    machine.send()
    assert not machine.drain(now=1.0)
    machine.handle_answer(third, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert numbers(machine.drain(now=1.0)) == [(1, 0)]
    assert machine.accumulator.sequences.identity == ProducerIdAndEpoch(7, 1)


def test_the_batches_of_a_transactional_producer_say_so() -> None:
    """Under their checksum; the parts of a split batch, too."""
    machine = Machine(is_transactional=True)
    machine.send(count=2)
    (batch,) = machine.drain()
    machine.handle_answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    parts = [batch]
    while len(parts) < 3:
        parts += machine.drain(now=10.0)
        machine.handle_answer(parts[-1])
    for part in parts:
        header = read_header(part.data)
        assert header.is_transactional
        assert has_valid_crc(part.data, header)
    machine = Machine()
    machine.send()
    assert not read_header(machine.drain()[0].data).is_transactional


def test_the_sequences_of_a_deleted_topic_are_kept_in_their_transaction() -> None:
    """There is no other epoch in which they could begin again before its end."""
    machine = Machine(is_transactional=True)
    machine.begin()
    assert not machine.accumulator.drop_queues("t")
    machine.accumulator.sequences.identity = ProducerIdAndEpoch(7, 1)
    assert machine.accumulator.drop_queues("t")
    assert machine.accumulator.sequences.identity == ProducerIdAndEpoch(7, 1)
