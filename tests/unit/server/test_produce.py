"""PRODUCE through its handler (rows PRO)."""

import errno
import random
from collections.abc import Callable
from types import GeneratorType

import pytest
import trio
import trio.testing

from minibroker.broker.server.handlers import produce
from minibroker.broker.server.services import HangUp
from minibroker.broker.turns import take_steps
from minibroker.protocol.constants import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    BATCH_HEADER_BYTES,
    ErrorCode,
)
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.records.batch import (
    ProducerStamp,
    has_valid_crc,
    read_header,
    write_header,
)
from minibroker.protocol.records.compression import ZSTD, compress
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles
from tests.unit.node import T0, Node, batch_of, state_of
from tests.unit.server.producing import answer, parked, request_of


@pytest.mark.parametrize("acks", [-2, 2, 32_767])
def test_unknown_acks_append_nothing(acks: int) -> None:
    """PRO-01: acks outside -1, 0, 1 are refused for every partition, and nothing is appended."""
    node = Node()
    node.lead()
    outcome = produce.handle(node.services, request_of(batch_of(), batch_of(), acks=acks), 0.0)
    assert isinstance(outcome, ProduceResponse)
    assert [p.error for p in outcome.partitions] == [ErrorCode.INVALID_REQUIRED_ACKS] * 2
    assert node.partition().log.log_end == 0


def test_acks_leader_tells_where_it_lies() -> None:
    """PRO-02: acks=1 answers after the append with base offset, no append time, and log start."""
    node = Node()
    node.lead()
    assert answer(node, request_of(batch_of(3))).base_offset == 0
    produced = answer(node, request_of(batch_of(2)))
    assert produced == PartitionProduced("t", 0, 0, 3, -1, 0)


def test_another_topic_of_the_name_is_refused() -> None:
    """RM-11: what is meant for a topic that was made anew does not go into the deleted one, which
    this broker may still lead; who names no id is not checked."""
    node = Node()
    node.lead()
    for topic_id, error in ((b"o" * 16, ErrorCode.INCONSISTENT_TOPIC_ID), (b"i" * 16, 0), (b"", 0)):
        wanted = PartitionProduce("t", 0, batch_of(), topic_id)
        assert answer(node, ProduceRequest(ACKS_LEADER, 0, (wanted,))).error == error
    assert node.partition().log.log_end == 2


def test_nobody_is_led_to_the_leader_of_another_topic() -> None:
    """A broker that knows only the deleted topic of a name gives no hint: its higher epoch would
    hide the leader of the new one for good."""
    node = Node()
    node.know(state_of(leader=2, isr=(2,), replicas=(2,), epochs=(7, 0)))
    inconsistent, not_leader = ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER
    for topic_id, error, leader in ((b"o" * 16, inconsistent, -1), (b"i" * 16, not_leader, 2)):
        wanted = PartitionProduce("t", 0, batch_of(), topic_id)
        refused = answer(node, ProduceRequest(ACKS_LEADER, 0, (wanted,)))
        assert (refused.error, refused.leader_id) == (error, leader)


def test_a_topic_is_named_by_its_id() -> None:
    """The answer has the id, and name; an id that no topic has is UNKNOWN_TOPIC_ID."""
    node = Node()
    node.lead()
    ids = (b"i" * 16, b"j" * 16, b"k" * 16)
    wanted = tuple(PartitionProduce("", 0, batch_of(), one) for one in ids)
    outcome = produce.handle(node.services, ProduceRequest(ACKS_LEADER, 0, wanted), 0.0)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert [(one.topic, one.error, one.topic_id) for one in outcome.partitions] == [
        ("t", 0, ids[0]),
        ("", unknown, ids[1]),
        ("", unknown, ids[2]),
    ]
    assert node.partition().log.log_end == 1


def test_the_address_of_another_leader_is_told() -> None:
    """Beside the hint, once for each broker; not that of a broker which is not live."""
    node = Node()
    node.live(1, 2)
    two, three = {"leader": 2, "isr": (2,), "replicas": (2,)}, {"leader": 3, "isr": (3,)}
    node.know(*(state_of(TopicPartition("t", n), **two) for n in (0, 1)))
    node.know(state_of(TopicPartition("u", 0), replicas=(3,), **three))
    names = (T0, TopicPartition("t", 1), TopicPartition("u", 0))
    wanted = tuple(PartitionProduce(*name, batch_of(), b"i" * 16) for name in names)
    outcome = produce.handle(node.services, ProduceRequest(ACKS_LEADER, 0, wanted), 0.0)
    assert [one.leader_id for one in outcome.partitions] == [2, 2, 3]
    assert {one.topic_id for one in outcome.partitions} == {b""}
    assert outcome.nodes == ((2, "broker-2", 9092),)


def test_the_append_time_is_told() -> None:
    """PRO-02: a topic that stamps records tells the time it gave them."""
    node = Node()
    node.lead(overrides={"message.timestamp.type": "LogAppendTime"})
    node.wall_time_ms = 77_000
    assert answer(node, request_of(batch_of())).log_append_time_ms == 77_000


def test_acks_none_is_silent() -> None:
    """PRO-03: acks=0 appends and has no answer."""
    node = Node()
    node.lead()
    assert produce.handle(node.services, request_of(batch_of(), acks=ACKS_NONE), 0.0) is None
    assert node.partition().log.log_end == 1


def test_acks_none_hangs_up_on_errors() -> None:
    """PRO-03: with acks=0 an error of any partition ends the connection."""
    node = Node()
    node.lead()
    request = ProduceRequest(
        ACKS_NONE, 0, (PartitionProduce("t", 0, batch_of()), PartitionProduce("u", 0, batch_of()))
    )
    with pytest.raises(HangUp):
        produce.handle(node.services, request, 0.0)
    assert node.partition().log.log_end == 1


def test_acks_all_alone_is_answered_at_once() -> None:
    """PAR-02: with a single replica acks=all needs no fetch of anybody."""
    node = Node()
    node.lead()
    assert answer(node, request_of(batch_of(2), acks=ACKS_ALL)).base_offset == 0
    assert node.partition().high_watermark == 2


def test_whom_to_ask_instead() -> None:
    """PRO-08, MET-07: led elsewhere, or only known: NOT_LEADER with a hint; unknown: UNKNOWN."""
    node = Node()
    node.lead(state_of(leader=2, epochs=(4, 0), isr=(2,), replicas=(1, 2)))
    elsewhere = TopicPartition("e", 0)
    node.know(state_of(elsewhere, leader=3, epochs=(7, 0), isr=(3,), replicas=(3,)))
    led_by_two = answer(node, request_of(batch_of()))
    assert led_by_two.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (led_by_two.leader_id, led_by_two.leader_epoch) == (2, 4)
    on_three = answer(node, request_of(batch_of(), name=elsewhere))
    assert on_three.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (on_three.leader_id, on_three.leader_epoch) == (3, 7)
    for unknown in (TopicPartition("u", 0), TopicPartition("t", 1), TopicPartition("t", -1)):
        refused = answer(node, request_of(batch_of(), name=unknown))
        assert refused.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_exactly_one_batch() -> None:
    """PRO-09: no batch, or two, is INVALID_RECORD."""
    node = Node()
    node.lead()
    two = memoryview(bytearray(bytes(batch_of()) * 2))
    for records in (memoryview(bytearray()), two):
        assert answer(node, request_of(records)).error == ErrorCode.INVALID_RECORD
    assert node.partition().log.log_end == 0


def test_times_out_of_the_window() -> None:
    """PRO-10: a timestamp too far from the broker's clock is INVALID_TIMESTAMP."""
    node = Node()
    node.lead(overrides={"message.timestamp.after.max.ms": "10"})
    late = answer(node, request_of(batch_of(time_ms=node.wall_time_ms + 11)))
    assert late.error == ErrorCode.INVALID_TIMESTAMP
    assert answer(node, request_of(batch_of(time_ms=node.wall_time_ms + 10))).error == 0


@pytest.mark.parametrize("claimed", [-1, 0, 31_536_000_000])
@pytest.mark.parametrize("compression", [0, 4])
def test_the_largest_time_is_that_of_the_records(claimed: int, compression: int) -> None:
    """PRO-10: sarama before 1.45.1 left it at -1, which no look-up found and no retention deleted;
    what was left at 0 was deleted at once. Kafka computes it before it looks at the window."""
    node = Node()
    node.lead()
    now = node.wall_time_ms
    batch = encode_batch(
        [(now, None, b"a", ()), (now - 5, None, b"b", ())], compression=compression
    )
    write_header(batch, read_header(batch)._replace(max_timestamp=claimed))
    assert answer(node, request_of(memoryview(batch))).error == 0
    [part] = node.partition().log.read(0, 1000, 2)
    header = read_header(part.read())
    assert header.max_timestamp == now
    assert has_valid_crc(part.read(), header)


def test_a_damaged_largest_time_is_not_corrected() -> None:
    """Where the checksum is wrong, the batch was damaged on its way, and is sent again."""
    node = Node()
    node.lead()
    batch = batch_of(3)
    batch[40] ^= 1
    assert answer(node, request_of(batch)).error == ErrorCode.CORRUPT_MESSAGE


def test_a_negative_time_is_no_time() -> None:
    """PRO-10: -1 means no timestamp; below it there is none."""
    node = Node()
    node.lead()
    assert answer(node, request_of(batch_of(time_ms=-1))).error == 0
    for time_ms in (-2, -(2**63)):
        error = answer(node, request_of(batch_of(time_ms=time_ms))).error
        assert error == ErrorCode.INVALID_TIMESTAMP


def with_records(body: bytes, count: int, compression: int = 0) -> memoryview:
    """A batch with a right checksum that claims to hold so many records."""
    batch = bytearray(encode_batch([(1_000, None, b"v", ())])[:BATCH_HEADER_BYTES] + body)
    header = read_header(batch)._replace(
        batch_length=len(batch) - 12,
        attributes=compression,
        record_count=count,
        last_offset_delta=count - 1,
    )
    write_header(batch, header)
    return memoryview(batch)


@pytest.mark.parametrize(
    ("body", "count", "compression"),
    [
        (b"", 1, 0),
        (random.Random(1).randbytes(50), 1, 0),
        (random.Random(1).randbytes(60), 1, 1),
        (bytes(encode_batch([(1, None, b"v", ())])[BATCH_HEADER_BYTES:]), 1000, 0),
        (bytes(encode_batch([(1, None, b"v", ())])[BATCH_HEADER_BYTES:]), 2**31 - 1, 0),
        (bytes(encode_batch([(1, None, b"v", ())] * 1000)[BATCH_HEADER_BYTES:]), 1, 0),
        (bytes(encode_batch([(1, None, b"v", ())] * 1000)[BATCH_HEADER_BYTES:]), 999, 0),
        (bytes(encode_batch([(1, None, b"v", ())] * 1000, compression=4)[61:-9]), 1000, 4),
        (bytes(encode_batch([(1, None, b"v", ())] * 1000, compression=4)[61:]), 999, 4),
    ],
)
def test_what_no_client_can_decode_is_refused(body: bytes, count: int, compression: int) -> None:
    """Every reader would stop in front of it. Nothing is appended, no offset is used up."""
    node = Node()
    node.lead()
    refused = answer(node, request_of(with_records(body, count, compression)))
    assert refused.error == ErrorCode.INVALID_RECORD
    assert refused.error_message
    assert answer(node, request_of(batch_of())).base_offset == 0


async def test_what_is_too_much_for_a_turn_is_looked_into_all_the_same() -> None:
    """A batch that unpacks to more than a turn may take goes to a worker, and what is behind it has
    the budget of another turn. No bomb is stored, and no nonsense hides behind one."""
    node = Node()
    node.lead()
    large = [(1_000, None, bytes(1_000), ())] * 20_000
    packed = compress(4, b"\0" * (101 << 20))
    in_worker: list[object] = []

    async def count(function: Callable[[], object]) -> object:
        in_worker.append(function)
        return function()

    outcome = produce.handle(
        node.services,
        request_of(
            batch_of(),
            memoryview(encode_batch(large, compression=4)),
            with_records(packed, 1, 4),
            with_records(random.Random(1).randbytes(60), 1, 1),
            batch_of(),
        ),
        0.0,
    )
    assert isinstance(outcome, GeneratorType)
    answered = await take_steps(outcome, count)
    assert isinstance(answered, ProduceResponse)
    refused = ErrorCode.INVALID_RECORD
    assert [each.error for each in answered.partitions] == [0, 0, refused, refused, 0]
    assert [each.base_offset for each in answered.partitions if not each.error] == [0, 1, 20_001]
    assert len(in_worker) == 2


def test_what_is_too_large_is_not_unpacked() -> None:
    """It is refused by its size alone, without a worker."""
    node = Node()
    bomb = with_records(compress(4, b"\0" * (101 << 20)), 1, 4)
    node.lead(overrides={"max.message.bytes": str(len(bomb) - 1)})
    assert answer(node, request_of(bomb)).error == ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_of_the_future_is_named() -> None:
    """The first one of a batch is known by its header; of others only that there is one."""
    node = Node()
    node.lead()
    now, later = node.wall_time_ms, node.wall_time_ms + 10**9
    refused = answer(node, request_of(memoryview(encode_batch([(later, b"k", b"a", ())]))))
    assert (refused.error, refused.wrong_record) == (ErrorCode.INVALID_TIMESTAMP, 0)
    records = [(now, b"k", b"a", ()), (later, b"k", b"b", ())]
    refused = answer(node, request_of(memoryview(encode_batch(records))))
    assert (refused.error, refused.wrong_record) == (ErrorCode.INVALID_TIMESTAMP, -1)


def test_a_compacted_topic_takes_records_with_keys_and_not_too_many() -> None:
    """Others are refused, and nothing of their batches is appended. 65,537 records are 1 kB here,
    and would be some hundred times as many bytes when they are compacted."""
    node = Node()
    node.lead(overrides={"cleanup.policy": "compact"})
    now = node.wall_time_ms
    keyless = encode_batch([(now, b"k", b"a", ()), (now, None, b"b", ())])
    refused = answer(node, request_of(memoryview(keyless)))
    assert refused.error == ErrorCode.INVALID_RECORD
    assert "record 1 of the batch has no key" in refused.error_message
    assert refused.wrong_record == 1
    many = encode_batch([(now, b"k", b"a", ())] * 65_537, compression=ZSTD)
    refused = answer(node, request_of(memoryview(many)))
    assert refused.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "send smaller batches" in refused.error_message
    assert node.partition().log.log_end == 0
    keyed = encode_batch([(now, b"k", None, ())] * 65_536, compression=ZSTD)
    assert answer(node, request_of(memoryview(keyed))).error == 0


async def test_many_batches_take_several_turns() -> None:
    """Together they unpack to more than one turn may take; a worker is not needed."""
    node = Node()
    node.lead()
    batch = encode_batch([(1_000, None, bytes(1_000), ())] * 3_000, compression=4)
    sent = [memoryview(bytearray(batch)) for _ in range(9)]
    bad = with_records(random.Random(1).randbytes(60), 1, 1)

    async def fail(function: Callable[[], object]) -> object:
        raise AssertionError(function)

    outcome = produce.handle(node.services, request_of(*sent, bad), 0.0)
    assert isinstance(outcome, GeneratorType)
    answered = await take_steps(outcome, fail)
    assert isinstance(answered, ProduceResponse)
    assert [each.error for each in answered.partitions] == [0] * 9 + [ErrorCode.INVALID_RECORD]


def test_what_was_damaged_on_its_way_is_sent_again() -> None:
    """A wrong checksum comes first: CORRUPT_MESSAGE, upon which producers send again."""
    node = Node()
    node.lead()
    batch = batch_of(3)
    for at in range(BATCH_HEADER_BYTES, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x81
        error = answer(node, request_of(memoryview(damaged))).error
        assert error == ErrorCode.CORRUPT_MESSAGE


def test_a_repeated_batch_gets_its_first_answer() -> None:
    """R1: a batch that is sent again is answered with its original offset and not written."""
    node = Node()
    node.lead()
    stamp = ProducerStamp(7, 0, 0)
    first = answer(node, request_of(batch_of(2, producer=stamp)))
    answer(node, request_of(batch_of(1, producer=ProducerStamp(7, 0, 2))))
    assert answer(node, request_of(batch_of(2, producer=stamp))) == first
    assert node.partition().log.log_end == 3


def test_a_repetition_is_known_in_one_session_and_one_partition_only() -> None:
    """Idempotence is no more than that: a program that begins again has another producer id, and
    what went to another partition is another record."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(2)]
    node.lead(*map(state_of, names))
    one, other = batch_of(2, producer=ProducerStamp(7, 0, 0)), ProducerStamp(8, 0, 0)
    answer(node, request_of(one))
    assert answer(node, request_of(batch_of(2, producer=other))).base_offset == 2
    elsewhere = ProduceRequest(ACKS_LEADER, 0, (PartitionProduce(*names[1], one),))
    outcome = produce.handle(node.services, elsewhere, 0.0)
    assert isinstance(outcome, ProduceResponse)
    assert (outcome.partitions[0].error, outcome.partitions[0].base_offset) == (0, 0)
    assert answer(node, request_of(one)).base_offset == 0


def test_a_full_disk_is_told_and_passes() -> None:
    """A full disk is KAFKA_STORAGE_ERROR; nothing of the batch stays, and later it works again."""
    node = Node()
    node.lead()
    answer(node, request_of(batch_of()))
    size = node.partition().log.size
    node.files.fail("append", number=errno.ENOSPC)
    refused = answer(node, request_of(batch_of(100)))
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.partition().log.size == size
    assert answer(node, request_of(batch_of())).base_offset == 1


def test_records_are_refused_before_the_disk_is_full() -> None:
    """Nothing of the batch stays, the error says why, and what was appended before is a duplicate;
    with room again the same batch is appended where it would have been."""
    node = Node()
    node.lead()
    old, new = (batch_of(1, producer=ProducerStamp(7, 0, number)) for number in range(2))
    answer(node, request_of(old))
    size = node.partition().log.size
    node.manager.room.observe(9, 200)
    refused = answer(node, request_of(new))
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "9 bytes are free on the disk" in (refused.error_message or "")
    assert node.partition().log.size == size
    assert (answer(node, request_of(old)).error, node.partition().log.size) == (0, size)
    node.manager.room.observe(10, 200)
    assert answer(node, request_of(new)).base_offset == 1


def test_any_bytes_have_a_known_error() -> None:
    """R6: whatever is sent as a batch, the code is one that a producer can handle."""
    rng = random.Random(3)
    node = Node(SimulatedFiles(rng))
    node.lead()
    good = bytes(batch_of(3))
    for _ in range(2_000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(BATCH_HEADER_BYTES)] = rng.randrange(256)
        del bad[rng.choice((rng.randrange(len(bad)), len(bad))) :]
        before = node.partition().log.log_end
        produced = answer(node, request_of(memoryview(bad)))
        assert produced.error or node.partition().log.log_end > before


async def test_nothing_parked_holds_the_receive_buffer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A produce that waits keeps no view of its request, so the buffer can be used again."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    received = bytearray(bytes(batch_of(5)))
    waiting = parked(node, request_of(memoryview(received), acks=ACKS_ALL))
    received.append(0)
    received.pop()
    assert waiting.attempt(0.0) is None


async def test_flush_always_acknowledges_what_is_durable(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """N1: with flush=always acks=1 and acks=all wait for the fsync, and share it."""
    node = Node(flush="always")
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    await trio.testing.wait_all_tasks_blocked()
    first = parked(node, request_of(batch_of(), acks=ACKS_LEADER))
    second = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    assert node.partition().high_watermark == 0
    assert node.partition().log.durable_end == 0
    assert (await node.purgatory.wait_for_answer(first)).partitions[0].error == 0
    assert (await node.purgatory.wait_for_answer(second)).partitions[0].base_offset == 1
    assert node.partition().high_watermark == node.partition().log.durable_end == 2
    assert node.files.sync_count <= 3
