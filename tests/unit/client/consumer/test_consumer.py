"""The consumer against a broker that holds a list of batches, on a simulated network."""

import math
from typing import Any

import pytest
import trio

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import (
    ClientClosed,
    ClientTimeout,
    CorruptRecords,
    OffsetOutOfRange,
)
from minibroker.protocol.constants import BATCH_HEADER_BYTES, NO_OFFSET, ApiKey, ErrorCode
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionOffset,
)
from minibroker.protocol.records.batch import read_header, stamp, write_header
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION_ID = 7


class Shelf:
    """What a scripted broker needs to serve topic "t": its batches, one record each.

    Record `n` of a partition has the offset, the value and the time (in ms) `n`.
    """

    def __init__(self, broker: Any, partition_count: int = 1) -> None:
        self.ends = [0] * partition_count
        self.starts = [0] * partition_count
        self.errors: dict[int, int] = {}
        self.undecodable = -1  # the offset of a batch that a faulty producer sent
        self.asked: dict[TopicPartition, PartitionFetch] = {}
        self.changed = trio.Event()
        broker.answers[ApiKey.METADATA] = self.metadata
        broker.answers[ApiKey.LIST_OFFSETS] = self.list_offsets
        broker.answers[ApiKey.FETCH] = self.fetch
        self.broker = broker

    def append(self, count: int, partition: int = 0) -> None:
        """More records; a waiting FETCH is answered."""
        self.ends[partition] += count
        self.changed.set()
        self.changed = trio.Event()

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        partitions = tuple(
            PartitionMetadata(number, leader_id=1, leader_epoch=0)
            for number in range(len(self.ends))
        )
        return MetadataResponse(
            brokers=(BrokerMetadata(1, *self.broker.endpoint),),
            topics=tuple(TopicMetadata(n, partitions=partitions) for n in request.topics or ()),
        )

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        def answer(asked: Any) -> PartitionOffset:
            start, end = self.starts[asked.partition], self.ends[asked.partition]
            offset = {-1: end, -2: start}.get(asked.timestamp, max(asked.timestamp, start))
            if asked.timestamp >= end:
                offset = NO_OFFSET
            return PartitionOffset(asked.topic, asked.partition, offset=offset)

        return ListOffsetsResponse(tuple(answer(asked) for asked in request.partitions))

    def _one(self, offset: int) -> bytes:
        batch = bytearray(one(offset))
        if offset == self.undecodable:
            batch[BATCH_HEADER_BYTES:] = b"\xff" * (len(batch) - BATCH_HEADER_BYTES)
            write_header(batch, read_header(batch))
        return bytes(batch)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        if request.session_epoch == 0:
            self.asked.clear()
        for name in request.forgotten:
            del self.asked[TopicPartition(*name)]
        for asked in request.partitions:
            self.asked[TopicPartition(asked.topic, asked.partition)] = asked
        with trio.move_on_after(request.wait_ms_max / 1000):
            while not (found := self._read()):
                await self.changed.wait()
        return FetchResponse(session_id=SESSION_ID, partitions=tuple(found))

    def _read(self) -> list[PartitionFetched]:
        found = []
        for name, asked in self.asked.items():
            start, end = self.starts[name.partition], self.ends[name.partition]
            at = asked.fetch_offset
            error = self.errors.get(name.partition, 0)
            if not error and not start <= at <= end:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            records = b"" if error else b"".join(map(self._one, range(at, min(end, at + 10))))
            if error or records:
                found.append(PartitionFetched(*name, error, end, start, records))
        return found


def one(offset: int) -> bytes:
    """A stored batch of one record."""
    batch = encode_batch([(offset, None, b"%d" % offset, ())])
    stamp(batch, offset, 0)
    return bytes(batch)


@pytest.fixture
def consumer(seams: Any) -> Any:
    """Makes consumers of the scripted broker."""

    def make(**options: object) -> Consumer:
        return Consumer("a:9092", seams=seams, **{"auto_offset_reset": "earliest"} | options)

    return make


async def read(consumer: Consumer, count: int) -> list[int]:
    """Poll until there are `count` records; their offsets."""
    offsets: list[int] = []
    with trio.fail_after(10):
        while len(offsets) < count:
            offsets += [record.offset for record in await consumer.poll(1)]
    return offsets


async def test_a_consumer_reads_from_the_beginning_and_on(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """With auto.offset.reset=earliest all records come, then those that are added."""
    shelf = Shelf(await start_broker("a"))
    shelf.append(25)
    async with consumer() as it:
        assert await it.assign_topics("t") == [A]
        assert await read(it, 25) == list(range(25))
        assert await it.poll(0.2) == []
        shelf.append(1)
        assert await read(it, 1) == [25]
        assert it.position(A) == 26


async def test_latest_begins_at_the_end(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """With auto.offset.reset=latest only what comes later is read."""
    shelf = Shelf(await start_broker("a"))
    shelf.append(5)
    async with consumer(auto_offset_reset="latest") as it:
        await it.assign_topics("t")
        assert await it.poll(1) == []
        shelf.append(2)
        assert await read(it, 2) == [5, 6]


async def test_none_raises_where_there_is_nothing_to_go_on(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """CCO-03: policy none raises when retention has taken the position, until a seek."""
    shelf = Shelf(await start_broker("a"))
    shelf.append(5)
    async with consumer(auto_offset_reset="none") as it:
        it.assign([A])
        it.seek(A, 0)
        assert len(await read(it, 5)) == 5
        shelf.ends[0], shelf.starts[0] = 90, 80
        shelf.append(0)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match="t-0 at offset 5"):
                await it.poll(1)
        it.seek_to_beginning(A)
        assert await read(it, 10) == list(range(80, 90))


async def test_polls_in_front_of_an_undecodable_batch_take_their_time(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """The failure is raised at once and then once a second, or at the end of a poll: not ten
    thousand times a second. It names what is behind the batch; a seek there goes on at once."""
    shelf = Shelf(await start_broker("a"))
    shelf.undecodable = 3
    shelf.append(9)
    async with consumer() as it:
        await it.assign_topics("t")
        assert await read(it, 3) == [0, 1, 2]
        began, due_s = trio.current_time(), -1.0
        for timeout_s, pause_s in ((60, 1.0), (float("inf"), 1.0), (0.25, 0.25)):
            for _ in range(5):
                due_s += pause_s
                with pytest.raises(CorruptRecords, match=r"t-0 at offset 3: .* seek to offset 4"):
                    await it.poll(timeout_s)
                assert trio.current_time() - began == pytest.approx(due_s)
        it.seek(A, 4)
        began = trio.current_time()
        assert await read(it, 5) == [4, 5, 6, 7, 8]
        assert trio.current_time() - began < 0.2


async def test_a_seek_ends_the_wait_in_front_of_an_undecodable_batch(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """A poll that waits to raise again returns the records behind the batch instead."""
    shelf = Shelf(await start_broker("a"))
    shelf.undecodable = 0
    shelf.append(9)
    async with consumer() as it:
        it.assign([A])
        with pytest.raises(CorruptRecords):
            await it.poll(5)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def seek_on() -> None:
                await trio.sleep(0.5)
                it.seek(A, 1)

            assert next(iter(await it.poll(5))).offset == 1


async def test_iterating_and_polling_may_be_mixed(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """K6: the position is behind what was handed out, and a poll goes on exactly there."""
    Shelf(await start_broker("a")).append(30)
    async with consumer() as it:
        await it.assign_topics("t")
        seen = []
        async for record in it:
            seen.append(record.offset)
            assert it.position(A) == record.offset + 1
            if len(seen) == 3:
                break
        assert seen == [0, 1, 2]
        assert await read(it, 27) == list(range(3, 30))


async def test_poll_returns_at_most_max_poll_records(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """max.poll.records bounds a poll; a timeout of 0 takes what is there."""
    Shelf(await start_broker("a")).append(20)
    async with consumer(max_poll_records=7) as it:
        await it.assign_topics("t")
        assert await it.poll(0) == []
        await trio.sleep(0.1)
        assert [len(await it.poll(0)) for _ in range(4)] == [7, 7, 6, 0]


async def test_poll_waits_no_longer_than_asked(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """An empty topic costs a poll its timeout, whatever the broker's long poll."""
    Shelf(await start_broker("a"))
    async with consumer() as it:
        await it.assign_topics("t")
        start = trio.current_time()
        assert await it.poll(0.3) == []
        assert trio.current_time() - start == pytest.approx(0.3, abs=0.001)


async def test_close_wakes_who_polls(start_broker: Any, consumer: Any, autojump_clock: Any) -> None:
    """A poll without a timeout ends at once when the consumer is closed, and so do later calls."""
    Shelf(await start_broker("a"))
    async with consumer() as it, trio.open_nursery() as nursery:
        await it.assign_topics("t")
        woken_at = math.inf

        async def poll() -> None:
            nonlocal woken_at
            with pytest.raises(ClientClosed):
                await it.poll()
            woken_at = trio.current_time()

        nursery.start_soon(poll)
        await trio.sleep(2)
        closed_at = trio.current_time()
        await it.close()
        await trio.sleep(0.5)
        assert woken_at - closed_at < 0.001
        with pytest.raises(ClientClosed):
            it.seek(A, 0)


async def test_a_seek_does_not_wait_for_the_long_poll(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """Who seeks back from the end gets records in milliseconds, not after fetch.max.wait.ms."""
    Shelf(await start_broker("a")).append(5)
    async with consumer(fetch_max_wait_ms=20_000) as it:
        await it.assign_topics("t")
        await read(it, 5)
        await it.poll(1)
        start = trio.current_time()
        it.seek(A, 2)
        assert await read(it, 3) == [2, 3, 4]
        assert trio.current_time() - start < 0.15


async def test_questions_do_not_wait_behind_the_long_poll(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """A connection answers in order, so FETCH has one of its own."""
    Shelf(await start_broker("a")).append(5)
    async with consumer(fetch_max_wait_ms=20_000) as it:
        await it.assign_topics("t")
        await read(it, 5)
        await it.poll(1)
        start = trio.current_time()
        assert await it.end_offsets() == {A: 5}
        assert await it.beginning_offsets() == {A: 0}
        assert trio.current_time() - start < 0.1


async def test_seek_to_time_finds_the_first_record_not_older(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """Beyond the newest record it is the end, so that what comes later is read."""
    shelf = Shelf(await start_broker("a"), 2)
    shelf.append(20, 0)
    shelf.append(8, 1)
    async with consumer() as it:
        await it.assign_topics("t")
        await it.seek_to_time(12)
        assert (it.position(A), it.position(B)) == (12, 8)
        assert await read(it, 8) == list(range(12, 20))


async def test_only_changes_travel_in_a_fetch_session(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """After the first request only partitions whose offset moved are named, and who leaves."""
    broker = await start_broker("a")
    shelf = Shelf(broker, 3)
    shelf.append(10, 0)
    async with consumer() as it:
        await it.assign_topics("t")
        await read(it, 10)
        await it.poll(0.1)
        first, second = broker.asked(FetchRequest)[:2]
        assert (first.session_epoch, len(first.partitions)) == (0, 3)
        assert (second.session_id, second.session_epoch) == (SESSION_ID, 1)
        assert [(each.partition, each.fetch_offset) for each in second.partitions] == [(0, 10)]
        it.pause(B)
        await it.poll(2)
        assert broker.asked(FetchRequest)[-1].partitions == ()
        assert (B in shelf.asked, A in shelf.asked) == (False, True)


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_a_lost_session_is_opened_anew(
    start_broker: Any, consumer: Any, autojump_clock: Any, code: ErrorCode
) -> None:
    """A broker that forgot the session gets a full request; the application notices nothing."""
    broker = await start_broker("a")
    shelf = Shelf(broker)
    shelf.append(5)
    async with consumer() as it:
        await it.assign_topics("t")
        await read(it, 5)
        fetch = broker.answers[ApiKey.FETCH]

        def forget(_: object) -> FetchResponse:
            broker.answers[ApiKey.FETCH] = fetch
            return FetchResponse(error=code, session_id=SESSION_ID)

        broker.answers[ApiKey.FETCH] = forget
        await it.poll(1)
        shelf.append(3)
        assert await read(it, 3) == [5, 6, 7]
        epochs = [request.session_epoch for request in broker.asked(FetchRequest)]
        assert epochs.count(0) == 2


async def test_a_lost_connection_is_made_again(
    start_broker: Any, network: Any, consumer: Any, autojump_clock: Any
) -> None:
    """CCO-08: after a reset the consumer goes on where it was, without gap or repeat."""
    shelf = Shelf(await start_broker("a"))
    shelf.append(50)
    async with consumer(max_poll_records=3) as it:
        await it.assign_topics("t")
        seen: list[int] = []
        while len(seen) < 50:
            network.reset("client", "a")
            seen += [record.offset for record in await it.poll(1)]
        assert seen == list(range(50))


async def test_leadership_errors_pass_unseen(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """CCO-04: while a partition has trouble it gives nothing; afterwards it goes on."""
    broker = await start_broker("a")
    shelf = Shelf(broker, 2)
    shelf.append(4, 0)
    shelf.append(4, 1)
    shelf.errors[0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    async with consumer() as it:
        await it.assign_topics("t")
        records = await it.poll(1)
        assert {record.partition for record in records} == {1}
        await trio.sleep(2)
        assert len(broker.asked(FetchRequest)) < 40
        assert len(broker.asked(MetadataRequest)) > 2
        shelf.errors.clear()
        shelf.append(0)
        assert await read(it, 4) == [0, 1, 2, 3]


async def test_no_fetch_before_the_first_poll(
    start_broker: Any, consumer: Any, autojump_clock: Any
) -> None:
    """Who assigns and then seeks has not fetched the wrong end first."""
    broker = await start_broker("a")
    Shelf(broker).append(20)
    async with consumer() as it:
        await it.assign_topics("t")
        await trio.sleep(1)
        it.seek(A, 15)
        await trio.sleep(1)
        assert broker.asked(FetchRequest) == []
        assert await read(it, 5) == list(range(15, 20))


async def test_an_unreachable_cluster_is_a_clear_error(consumer: Any, autojump_clock: Any) -> None:
    """Nobody there: the error says who was asked and why it failed, after the time given."""
    async with consumer(default_api_timeout_ms=2000) as it:
        with pytest.raises(ClientTimeout, match="a:9092 within 2000 ms; last error"):
            await it.assign_topics("t")


async def test_a_consumer_that_is_not_entered_says_so(consumer: Any, autojump_clock: Any) -> None:
    """Calls before `async with` are an error that names what is missing."""
    with pytest.raises(ClientClosed, match="async with"):
        await consumer().poll(1)
