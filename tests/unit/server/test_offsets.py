"""LIST_OFFSETS and OFFSETS_FOR_LEADER_EPOCH through their handlers (row FET-13, R9)."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import offsets
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ErrorCode,
)
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    PartitionEpoch,
    PartitionEpochEnd,
    PartitionListOffsets,
    PartitionOffset,
)
from minibroker.protocol.records.compression import ZSTD
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import in_worker
from tests.unit.node import Node, batch_of, state_of

INCONSISTENT = ErrorCode.INCONSISTENT_TOPIC_ID


def list_offset(
    node: Node, timestamp: int, *, leader_epoch: int = -1, replica_id: int = -1, now: float = 0.0
) -> PartitionOffset:
    asked = PartitionListOffsets("t", 0, timestamp, leader_epoch)
    request = ListOffsetsRequest(replica_id, (asked,))
    answer = offsets.list_offsets(node.services, request, now)
    assert isinstance(answer, ListOffsetsResponse), "it is answered at once"
    return answer.partitions[0]


async def ask(node: Node, *asked: PartitionListOffsets, in_worker=in_worker) -> list:
    """The answers to a request that may be parked: all that are not errors, as (name, offset)."""
    answer = offsets.list_offsets(
        node.services, ListOffsetsRequest(partitions=asked), trio.current_time()
    )
    if isinstance(answer, Parked):
        async with trio.open_nursery() as nursery:
            run = node.services.offset_lookups.run
            nursery.start_soon(run, in_worker, node.purgatory.notify)
            answer = await node.purgatory.wait_for_answer(answer)
            nursery.cancel_scope.cancel()
    return list(answer.partitions)


async def offset_at(node: Node, timestamp: int) -> PartitionOffset:
    """The answer for the first record of a time or later."""
    [found] = await ask(node, PartitionListOffsets("t", 0, timestamp))
    return found


def epoch_end(
    node: Node, epoch: int, leader_epoch: int = -1, *, replica_id: int = -1, now: float = 0.0
) -> PartitionEpochEnd:
    asked = PartitionEpoch("t", 0, epoch, leader_epoch)
    request = OffsetsForLeaderEpochRequest(replica_id, (asked,))
    turns = offsets.offsets_for_leader_epoch(node.services, request, now)
    return without_pause(turns).partitions[0]


def append(node: Node, count: int, time_ms: int = 1_000) -> None:
    node.partition().append_as_leader(batch_of(count, time_ms=time_ms), 1, 0.0, 1_000)


def test_latest_and_earliest() -> None:
    """FET-13: latest is the high watermark for consumers, the log end for followers."""
    node = Node()
    node.lead(state_of(epochs=(3, 0), isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.followed(2, 2)
    assert list_offset(node, LATEST_TIMESTAMP) == PartitionOffset("t", 0, 0, -1, 2, 3)
    assert list_offset(node, LATEST_TIMESTAMP, replica_id=-2).offset == 2
    assert list_offset(node, LATEST_TIMESTAMP, replica_id=2).offset == 5
    assert list_offset(node, EARLIEST_TIMESTAMP) == PartitionOffset("t", 0, 0, -1, 0, 3)


def test_who_was_left_by_its_followers_tells_no_consumer_its_end() -> None:
    """As in a fetch: a leader whose session may have ended, and of which no follower in sync has
    asked anything for longer than a session and a follower's wait, may have been replaced, and the
    log may have gone on at another."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.followed(2, 5)
    config = node.services.config
    left_at = (config.broker_session_timeout_ms + config.replica_fetch_wait_max_ms) / 1000 + 0.1
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at).offset == 5
    node.broker_epoch += 1  # it registered again, and was not told of its roles yet
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at).error
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at).offset == 5
    node.controller.is_session_over = True
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at - 0.2).offset == 5
    for timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP):
        error = list_offset(node, timestamp, now=left_at).error
        assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at, replica_id=2).offset == 5
    assert epoch_end(node, 0, now=left_at - 0.2).end_offset == 5
    assert epoch_end(node, 0, now=left_at).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert epoch_end(node, 0, now=left_at, replica_id=2).end_offset == 5


async def test_who_was_left_by_its_followers_looks_up_no_time(autojump_clock: MockClock) -> None:
    """Nor when the followers left during the look-up."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.followed(2, 5, now=trio.current_time())
    node.controller.is_session_over = True
    assert (await offset_at(node, 0)).offset == 0

    async def slow_worker(function, *arguments):
        await trio.sleep(60)
        return function(*arguments)

    asked = PartitionListOffsets("t", 0, 0)
    [found] = await ask(node, asked, in_worker=slow_worker)
    assert found.error == ErrorCode.REQUEST_TIMED_OUT
    assert (await offset_at(node, 0)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_another_topic_of_the_same_name_is_not_meant() -> None:
    """RM-11: who has learnt of a topic that was made anew is told nothing about the deleted one."""
    node = Node()
    node.lead()
    append(node, 5)
    for topic_id, error in ((b"", 0), (node.partition().topic_id, 0), (b"n" * 16, INCONSISTENT)):
        asked = PartitionListOffsets("t", 0, LATEST_TIMESTAMP, topic_id=topic_id)
        [found] = offsets.list_offsets(
            node.services, ListOffsetsRequest(partitions=(asked,)), 0.0
        ).partitions
        assert (found.error, found.offset) == (error, -1 if error else 5)


async def test_by_time() -> None:
    """The first record of a time or later, below the high watermark; -1 where there is none."""
    node = Node()
    node.lead()
    for time_ms in (1_000, 2_000, 3_000):
        append(node, 2, time_ms)
    assert await offset_at(node, 1_500) == PartitionOffset("t", 0, 0, 2_000, 2, 0)
    assert await offset_at(node, 3_001) == PartitionOffset("t", 0)


async def test_the_record_of_the_largest_timestamp() -> None:
    """-3: the first of those that have it. None where it is not committed yet, or was deleted."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    for time_ms in (1_000, 3_000, 3_000, 2_000):
        append(node, 2, time_ms)
    assert await offset_at(node, MAX_TIMESTAMP) == PartitionOffset("t", 0, 0)
    node.followed(2, 8)
    assert await offset_at(node, MAX_TIMESTAMP) == PartitionOffset("t", 0, 0, 3_000, 2, 0)
    append(node, 1, 9_000)
    assert await offset_at(node, MAX_TIMESTAMP) == PartitionOffset("t", 0, 0)


async def test_an_empty_log_has_no_largest_timestamp() -> None:
    """As for any time."""
    node = Node()
    node.lead()
    assert await offset_at(node, MAX_TIMESTAMP) == PartitionOffset("t", 0, 0)


def test_ends_of_tiered_storage_are_those_without_it() -> None:
    """As in Kafka; other negative timestamps have no meaning."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    append(node, 5)
    assert list_offset(node, -4) == PartitionOffset("t", 0, 0, -1, 0, 3)
    assert list_offset(node, -5) == PartitionOffset("t", 0, 0, -1, -1, -1)
    assert list_offset(node, -6).error == ErrorCode.UNSUPPORTED_VERSION


def test_equal_entries_are_answered_once() -> None:
    """A small request cannot ask for the same work many times. Both ends may be asked for."""
    node = Node()
    node.lead(state_of(), state_of(TopicPartition("t", 1)))
    append(node, 5)
    latest, earliest = (
        PartitionListOffsets("t", 0, timestamp)
        for timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)
    )
    other = PartitionListOffsets("t", 1, LATEST_TIMESTAMP)
    for asked, expected in (
        ([latest] * 3, [(0, 0, 5)]),
        ([latest, other, latest, other], [(0, 0, 5), (1, 0, 0)]),
        ([latest, other, earliest], [(0, 0, 5), (1, 0, 0), (0, 0, 0)]),
    ):
        request = ListOffsetsRequest(partitions=tuple(asked))
        answer = offsets.list_offsets(node.services, request, 0.0)
        assert isinstance(answer, ListOffsetsResponse)
        assert [(each.partition, each.error, each.offset) for each in answer.partitions] == expected


async def test_two_times_of_a_partition_are_refused() -> None:
    """As at Kafka: a small request could ask for any amount of work."""
    node = Node()
    node.lead()
    append(node, 5)
    [answer] = await ask(node, *[PartitionListOffsets("t", 0, time_ms) for time_ms in (5, 6, 7)])
    assert answer.error == ErrorCode.INVALID_REQUEST


async def test_a_large_request_is_answered_in_turns() -> None:
    """Of many partitions, and of many entries for one: other tasks run in between."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(300)]
    node.lead(*map(state_of, names))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        entries = [PartitionListOffsets(*name, LATEST_TIMESTAMP) for name in names]
        answers = await ask(node, *entries * 10)
        assert [(each.topic, each.partition) for each in answers] == names
        assert turns > 3000 // offsets.AT_ONCE
        turns = 0
        [answer] = await ask(node, *[PartitionListOffsets("t", 0, 1_500)] * 3000)
        assert answer == PartitionOffset("t", 0)
        assert turns > 3000 // offsets.AT_ONCE
        nursery.cancel_scope.cancel()


async def test_one_batch_is_unpacked_at_a_time() -> None:
    """In a worker, and of two requests in turn; each batch once."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(3)]
    node.lead(*map(state_of, names))
    for name in names:
        for time_ms in (1_000, 2_000, 3_000):
            records = [(time_ms, None, b"x", ())] * 50
            batch = memoryview(encode_batch(records, compression=ZSTD))
            node.partition(name).append_as_leader(batch, 1, 0.0, 1_000)
    running = calls = 0

    async def worker(function, *arguments):
        nonlocal running, calls
        running, calls = running + 1, calls + 1
        assert running == 1
        await trio.lowlevel.checkpoint()
        result = function(*arguments)
        running -= 1
        return result

    done: list[str] = []

    async def look_up(label: str, *asked: PartitionListOffsets) -> None:
        request = ListOffsetsRequest(partitions=asked)
        parked = offsets.list_offsets(node.services, request, trio.current_time())
        assert isinstance(parked, Parked)
        answer = await node.purgatory.wait_for_answer(parked)
        assert {each.offset for each in answer.partitions} == {50}
        done.append(label)

    async with trio.open_nursery() as nursery:
        run = node.services.offset_lookups.run
        nursery.start_soon(run, worker, node.purgatory.notify)
        async with trio.open_nursery() as clients:
            clients.start_soon(
                look_up, "long", *(PartitionListOffsets(*name, 1_500) for name in names)
            )
            await trio.testing.wait_all_tasks_blocked()
            clients.start_soon(look_up, "other long", PartitionListOffsets("t", 0, 1_500))
        nursery.cancel_scope.cancel()
    assert calls == 4


async def test_a_request_of_one_partition_overtakes_one_of_many() -> None:
    """The requests are served in turn, a partition each."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(9)]
    node.lead(*map(state_of, names))
    for name in names:
        node.partition(name).append_as_leader(batch_of(1, time_ms=1_000), 1, 0.0, 1_000)
    lookups, done = node.services.offset_lookups, []
    for asked in (names, names[:1]):
        entries = tuple(PartitionListOffsets(*name, 0) for name in asked)
        parked = offsets.list_offsets(
            node.services, ListOffsetsRequest(partitions=entries), trio.current_time()
        )
        assert isinstance(parked, Parked)
        assert parked.attempt(0.0) is None

    def notify(lookup) -> None:
        done.append(len(lookup.answers))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lookups.run, in_worker, notify)
        while len(done) < 2:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert done == [1, 9]


async def test_a_look_up_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    """What is found by then is answered, the rest is REQUEST_TIMED_OUT; other requests go on."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(3)]
    node.lead(*map(state_of, names))
    for name in names:
        node.partition(name).append_as_leader(batch_of(1, time_ms=1_000), 1, 0.0, 1_000)

    async def slow_worker(function, *arguments):
        await trio.sleep(offsets.LOOKUP_S * 0.7)
        return function(*arguments)

    asked = [PartitionListOffsets(*name, 0) for name in names]
    answers = await ask(node, *asked, in_worker=slow_worker)
    late = ErrorCode.REQUEST_TIMED_OUT
    assert [(each.partition, each.error) for each in answers] == [(0, 0), (1, late), (2, late)]
    assert (await offset_at(node, 0)).offset == 0


async def test_a_defect_in_a_look_up_is_raised_where_its_answer_is_sent() -> None:
    """It concerns that request; the next one is answered."""
    node = Node()
    node.lead()
    append(node, 1)

    async def broken(function, *arguments):
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await ask(node, PartitionListOffsets("t", 0, 0), in_worker=broken)
    assert caught.group_contains(ZeroDivisionError)
    assert (await offset_at(node, 0)).offset == 0


async def test_a_log_that_is_closed_meanwhile() -> None:
    """The topic is deleted while its batch is unpacked: the client asks for metadata again."""
    node = Node()
    node.lead()
    append(node, 1)

    async def closing(function, *arguments):
        node.partition().log.abandon()
        return function(*arguments)

    [found] = await ask(node, PartitionListOffsets("t", 0, 0), in_worker=closing)
    assert found.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_new_leader_does_not_send_consumers_back() -> None:
    """R9: as long as the high watermark is below the term's start, latest is not available."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.lead(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)))
    assert list_offset(node, LATEST_TIMESTAMP).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await offset_at(node, 9_999)).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offset(node, EARLIEST_TIMESTAMP).offset == 0
    node.followed(2, 5)
    assert list_offset(node, LATEST_TIMESTAMP).offset == 5


def test_epochs_of_the_asker_are_checked() -> None:
    """FET-05 holds here too."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    fenced, unknown = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
    assert list_offset(node, LATEST_TIMESTAMP, leader_epoch=2).error == fenced
    assert list_offset(node, LATEST_TIMESTAMP, leader_epoch=4).error == unknown
    assert epoch_end(node, 3, leader_epoch=2).error == fenced
    assert epoch_end(node, 3, leader_epoch=4).error == unknown
    assert list_offset(Node(), LATEST_TIMESTAMP).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert epoch_end(Node(), 3).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_where_an_epoch_ended() -> None:
    """EPO-01 to EPO-05 through the request: end of the largest epoch not above the asked one."""
    node = Node()
    node.lead(state_of(epochs=(2, 0)))
    append(node, 3)
    node.lead(state_of(epochs=(4, 1)))
    append(node, 2)
    assert epoch_end(node, 1) == PartitionEpochEnd("t", 0, 0, 1, 0)
    assert epoch_end(node, 2) == PartitionEpochEnd("t", 0, 0, 2, 3)
    assert epoch_end(node, 3) == PartitionEpochEnd("t", 0, 0, 2, 3)
    assert epoch_end(node, 4) == PartitionEpochEnd("t", 0, 0, 4, 5)
    for undefined in (5, -1):
        assert epoch_end(node, undefined) == PartitionEpochEnd("t", 0, 0, -1, -1)
