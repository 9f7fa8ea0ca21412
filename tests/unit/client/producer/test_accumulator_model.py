"""The accumulator against a model broker: random answers, losses, time-outs and forgetting.

The model keeps one partition as a list and checks sequences as a broker does (five batches
remembered for each producer id). A driver with a seeded generator interleaves sending, answers in
order, refusals, connections that break with requests on either side of the append, and time.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from minibroker.client.errors import BufferFull
from minibroker.client.producer.accumulator import Accumulator, AccumulatorOptions
from minibroker.client.producer.batches import Batch, CompletedBatch, ProducerIdAndEpoch
from minibroker.client.producer.raw_record import RawRecord, record_bytes
from minibroker.client.producer.routes import Routes
from minibroker.protocol.constants import NO_OFFSET, SEQUENCE_MAX, ErrorCode
from minibroker.protocol.messages.produce import PartitionProduced
from minibroker.protocol.records.batch import BatchHeader, increment_sequence, read_header
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition
from tests.support.seeds import rest_in_soak

TOPIC = "t"


@dataclass
class ModelPartition:
    """A log as a list of values, and what it remembers of one producer."""

    values: list[bytes] = field(default_factory=list)
    epoch: int = -1
    expected: int = -1
    cached: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    size_max: int = 1_000_000
    batches: list[tuple[BatchHeader, int]] = field(default_factory=list)  # and their offsets

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """What PRODUCE does with one batch: error code and base offset."""
        header = read_header(data)
        if len(data) > self.size_max:
            return ErrorCode.MESSAGE_TOO_LARGE, NO_OFFSET
        refusal, offset = self._check(header)
        if refusal is not None:
            return refusal, offset
        base = len(self.values)
        self.values += [record.value for record in decode_records(data, header)]
        if header.producer_id >= 0:
            self.batches.append((header, base))
            self._remember(header, base)
        return ErrorCode.NONE, base

    def _remember(self, header: BatchHeader, base: int) -> None:
        if header.producer_epoch != self.epoch:
            self.cached.clear()
        self.epoch = header.producer_epoch
        self.cached.append((header.base_sequence, header.record_count, base))
        self.expected = increment_sequence(header.base_sequence, header.record_count)

    def _check(self, header) -> tuple[ErrorCode | None, int]:
        if header.producer_id < 0:
            return None, NO_OFFSET
        sequence = header.base_sequence
        if self.epoch == -1:
            return (ErrorCode.UNKNOWN_PRODUCER_ID if sequence else None), NO_OFFSET
        if header.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, NO_OFFSET
        if header.producer_epoch > self.epoch:
            return (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if sequence else None), NO_OFFSET
        for first, count, base in self.cached:
            if (first, count) == (sequence, header.record_count):
                return ErrorCode.NONE, base
        if sequence != self.expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, NO_OFFSET
        return None, NO_OFFSET

    def lose(self, count: int) -> None:
        """A new leader has not got the last batches; it knows the producer by the others."""
        del self.batches[len(self.batches) - count :]
        self.forget()
        self.values = self.values[: sum(header.record_count for header, _ in self.batches)]
        for header, base in self.batches:
            self._remember(header, base)

    def forget(self) -> None:
        """As after retention or a lost snapshot: nothing is known of the producer."""
        self.epoch, self.expected = -1, -1
        self.cached.clear()


@dataclass
class Run:
    """One seeded run. `calm` makes every fault stop, so that all must be delivered."""

    rng: random.Random
    options: AccumulatorOptions
    partition_count: int = 3
    forgets: bool = False
    loses_tails: bool = False
    first_sequence: int = 0

    def __post_init__(self) -> None:
        self.now = 0.0
        self.accumulator = Accumulator(self.options)
        self.accumulator.sequences.identity = ProducerIdAndEpoch(7, 0)
        self.routes = Routes(self.accumulator, lambda _: True)
        self.models = [ModelPartition() for _ in range(self.partition_count)]
        self.leaders = [0] * self.partition_count
        self.epoch = 0
        self.wire: dict[int, deque[list[Batch]]] = {0: deque(), 1: deque()}
        self.unanswered: dict[int, deque[list[tuple[Batch, PartitionProduced]]]] = {
            0: deque(),
            1: deque(),
        }
        self.told = [0] * self.partition_count  # the end of what was acknowledged
        self.sent: list[list[bytes]] = [[] for _ in range(self.partition_count)]
        self.acked: list[list[tuple[int, bytes]]] = [[] for _ in range(self.partition_count)]
        self.failed: list[list[bytes]] = [[] for _ in range(self.partition_count)]
        self.serial = 0
        self.is_calm = False

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        return self.leaders[topic_partition.partition], self.epoch

    def send(self) -> None:
        partition = self.rng.randrange(self.partition_count)
        for _ in range(self.rng.randrange(1, 6)):
            value = b"%d:%06d" % (partition, self.serial)
            queue = self.accumulator.queue(TopicPartition(TOPIC, partition))
            record: RawRecord = (1000, None, value, ())
            try:
                self.routes.append(queue, record, record_bytes(record), self.now)
            except BufferFull:
                return
            self.serial += 1
            self.sent[partition].append(value)

    def drain(self, node: int) -> None:
        self._advance()
        if len(self.wire[node]) + len(self.unanswered[node]) >= self.options.in_flight_max:
            return
        places = self.options.in_flight_max - len(self.wire[node]) - len(self.unanswered[node])
        count = self.rng.randint(1, places)
        self.wire[node] += self.accumulator.drain(node, self.leader_of, self.now, count)

    def serve(self, node: int) -> None:
        """The broker takes the oldest request."""
        if not self.wire[node]:
            return
        answers = []
        for batch in self.wire[node].popleft():
            partition = batch.queue.topic_partition.partition
            answers.append((batch, self._answer(batch, partition, node)))
        self.unanswered[node].append(answers)

    def _answer(self, batch: Batch, partition: int, node: int) -> PartitionProduced:
        model = self.models[partition]
        if self.leaders[partition] != node:
            return PartitionProduced(TOPIC, partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        chance = self.rng.random()
        if not self.is_calm and chance < 0.05:
            return PartitionProduced(TOPIC, partition, ErrorCode.NOT_ENOUGH_REPLICAS)
        if self.forgets and not self.is_calm and chance < 0.1:
            model.forget()
        code, offset = model.append(bytes(batch.data))
        if not self.is_calm and code == ErrorCode.NONE and chance > 0.95:
            code, offset = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, NO_OFFSET
        return PartitionProduced(TOPIC, partition, code, offset, log_start=0)

    def deliver(self, node: int) -> None:
        """The client reads the oldest answer."""
        if self.unanswered[node]:
            for batch, answer in self.unanswered[node].popleft():
                if answer.error == ErrorCode.NONE:
                    end = answer.base_offset + batch.record_count
                    self.told[answer.partition] = max(self.told[answer.partition], end)
                self.accumulator.handle_answer(batch, answer, self.now)
            self._record(self.accumulator.pop_completed())

    def cut(self, node: int) -> None:
        """The connection breaks: some requests had arrived, no answer comes."""
        for _ in range(self.rng.randrange(len(self.wire[node]) + 1)):
            self.serve(node)
        batches = [batch for answers in self.unanswered[node] for batch, _ in answers]
        batches += [batch for request in self.wire[node] for batch in request]
        self.unanswered[node].clear()
        self.wire[node].clear()
        for batch in batches:
            partition = batch.queue.topic_partition.partition
            lost = PartitionProduced(TOPIC, partition, ErrorCode.NETWORK_EXCEPTION)
            self.accumulator.handle_answer(batch, lost, self.now)
        self._record(self.accumulator.pop_completed())

    def move_leader(self) -> None:
        self.leaders[self.rng.randrange(self.partition_count)] ^= 1
        self.epoch += 1

    def fail_over(self) -> None:
        """A leader dies, with answers on the wire; who is next may lack what nobody was told of."""
        partition = self.rng.randrange(self.partition_count)
        model = self.models[partition]
        self.cut(self.leaders[partition])
        bases = [base for _, base in model.batches if base >= self.told[partition]]
        model.lose(self.rng.randrange(len(bases) + 1))
        self.leaders[partition] ^= 1
        self.epoch += 1

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._advance()

    def _advance(self) -> None:
        self._record(self.accumulator.advance(self.now, self.leader_of).completed)

    def _record(self, outcomes: list[CompletedBatch]) -> None:
        for completed in outcomes:
            batch = completed.batch
            partition = batch.queue.topic_partition.partition
            values = [r.value for r in decode_records(batch.data, read_header(batch.data))]
            if completed.error is None:
                base = completed.base_offset
                offsets = [NO_OFFSET if base < 0 else base + n for n in range(len(values))]
                self.acked[partition] += zip(offsets, values, strict=True)
            else:
                self.failed[partition] += values

    def step(self) -> None:
        node = self.rng.randrange(2)
        chance = self.rng.random()
        if chance < 0.3:
            self.send()
        elif chance < 0.55:
            self.drain(node)
        elif chance < 0.75:
            self.serve(node)
        elif chance < 0.93:
            self.deliver(node)
        elif chance < 0.97:
            self.pass_time(self.rng.choice((0.001, 0.01, 0.1)))
        elif chance < 0.985:
            self.cut(node)
        elif self.loses_tails:
            self.fail_over()
        else:
            self.move_leader()

    def finish(self) -> None:
        """No more faults: everything must settle soon."""
        self.is_calm = True
        self.accumulator.seal_all()
        for _ in range(3000):
            if self.accumulator.is_idle and not any(
                (*self.wire.values(), *self.unanswered.values())
            ):
                break
            for node in (0, 1):
                self.drain(node)
                self.serve(node)
                self.deliver(node)
            self.pass_time(0.01)
        assert self.accumulator.is_idle, "without faults everything settles"
        assert self.accumulator.free_bytes == self.options.memory_bytes, "all memory is back"


def options(**changes) -> AccumulatorOptions:
    """Small batches and short times, so that every rule is met in a short run."""
    values = {
        "batch_bytes": 61 + 100,
        "linger_s": 0.005,
        "memory_bytes": 100_000,
        "request_bytes_max": 100_000,
        "in_flight_max": 5,
        "delivery_timeout_s": 1000.0,
        "retries": 2**31 - 1,
        "retry_backoff_s": 0.1,
        "retry_backoff_max_s": 1.0,
        "compression": 0,
        "is_idempotent": True,
    }
    return AccumulatorOptions(**(values | changes))


def is_subsequence(few: list[bytes], many: list[bytes]) -> bool:
    """Whether `few` occurs in `many`, in this order."""
    rest = iter(many)
    return all(value in rest for value in few)


@pytest.mark.parametrize("seed", rest_in_soak(range(60)))
def test_every_record_is_stored_once_and_in_order(seed: int) -> None:
    """CPR-03: with a broker that keeps its state, what is acked lies there once, in send order."""
    run = Run(random.Random(seed), options())
    for _ in range(1500):
        run.step()
    run.finish()
    for partition, model in enumerate(run.models):
        assert model.values == run.sent[partition]
        assert not run.failed[partition]
        assert sorted(value for _, value in run.acked[partition]) == model.values
        for offset, value in run.acked[partition]:
            assert offset == NO_OFFSET or model.values[offset] == value


@pytest.mark.parametrize("seed", rest_in_soak(range(60)))
def test_every_record_survives_leaders_that_lack_the_last_batches(seed: int) -> None:
    """R1, R2, L1: of what was under way a new leader has any part; all of it is stored once and in
    order in the end, and no epoch is spent on it."""
    run = Run(random.Random(seed), options(), loses_tails=True)
    for _ in range(1500):
        run.step()
    run.finish()
    for partition, model in enumerate(run.models):
        assert model.values == run.sent[partition]
        assert sorted(value for _, value in run.acked[partition]) == model.values
        for offset, value in run.acked[partition]:
            assert offset == NO_OFFSET or model.values[offset] == value
    assert run.accumulator.sequences.identity == ProducerIdAndEpoch(7, 0)


@pytest.mark.parametrize("seed", rest_in_soak(range(40)))
def test_delivery_time_outs_lose_nothing_that_was_acked(seed: int) -> None:
    """A20: batches that time out may or may not be stored; all others are, once and in order."""
    run = Run(random.Random(seed), options(delivery_timeout_s=0.15))
    for _ in range(1500):
        run.step()
    run.finish()
    for partition, model in enumerate(run.models):
        acked = [value for _, value in run.acked[partition]]
        assert len(acked) + len(run.failed[partition]) == len(run.sent[partition])
        assert len(set(model.values)) == len(model.values), "nothing is stored twice"
        assert set(acked) <= set(model.values)
        assert is_subsequence(model.values, run.sent[partition]), "and in send order"


@pytest.mark.parametrize("seed", rest_in_soak(range(60)))
def test_a_broker_that_forgets_the_producer_gets_everything(seed: int) -> None:
    """R7: after UNKNOWN_PRODUCER_ID, or where any first sequence is accepted, nothing is lost."""
    run = Run(random.Random(seed), options(), forgets=True)
    for _ in range(1500):
        run.step()
    run.finish()
    for partition, model in enumerate(run.models):
        assert not run.failed[partition]
        assert set(model.values) == set(run.sent[partition])
        for offset, value in run.acked[partition]:
            assert offset == NO_OFFSET or model.values[offset] == value


@pytest.mark.parametrize("seed", rest_in_soak(range(60)))
def test_batches_too_large_for_the_broker_are_split_and_get_through(seed: int) -> None:
    """CPR-11: the parts of a split batch keep their place and their numbers."""
    run = Run(random.Random(seed), options(batch_bytes=1000))
    for model in run.models:
        model.size_max = 61 + 60
    for _ in range(1500):
        run.step()
    run.finish()
    for partition, model in enumerate(run.models):
        assert model.values == run.sent[partition]
        assert not run.failed[partition]


@pytest.mark.parametrize("seed", rest_in_soak(range(40)))
def test_one_in_flight_keeps_order_without_idempotence(seed: int) -> None:
    """CPR-12: with one request in flight a retry is never overtaken (it may be stored twice)."""
    run = Run(random.Random(seed), options(in_flight_max=1, is_idempotent=False))
    for _ in range(1500):
        run.step()
    run.finish()
    for partition, model in enumerate(run.models):
        first = list(dict.fromkeys(model.values))
        assert first == run.sent[partition]


def test_sequences_wrap_to_zero() -> None:
    """R8: the sequence after 2^31-1 is 0, and retries across the wrap are recognised."""
    run = Run(random.Random(1), options(), partition_count=1)
    run.send()
    run.finish()
    queue = run.accumulator.queue(TopicPartition(TOPIC, 0))
    queue.next_sequence = queue.expected_sequence = SEQUENCE_MAX - 7
    run.models[0].expected = SEQUENCE_MAX - 7
    run.models[0].cached.clear()  # or a batch after the wrap is taken for the one above
    run.is_calm = False
    for _ in range(1500):
        run.step()
    run.finish()
    assert run.models[0].values == run.sent[0]
    assert queue.expected_sequence < 10_000
    assert queue.identity == ProducerIdAndEpoch(7, 0), "no epoch was spent on it"
