"""A consumer whose partition changes its leader, on virtual time: no gap, no repeat, no fiction."""

import logging
from typing import Any

import pytest
import trio

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import LogTruncated
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.offsets import ListOffsetsRequest
from minibroker.protocol.types import TopicPartition
from tests.unit.client.replicated import HOSTS, Partition, Replicated

A = TopicPartition("t", 0)


class Reading:
    """The brokers of topic "t", a producer that fills it, and what a consumer has read."""

    def __init__(self, cluster: Replicated, seams: Any) -> None:
        self.cluster = cluster
        self.seams = seams
        self.offsets: list[int] = []
        self.values: list[bytes | None] = []
        self.at: list[float] = []

    def consumer(self, **options: object) -> Consumer:
        """One that asks the first leader for metadata too."""
        return Consumer(
            "a:9092",
            seams=self.seams,
            **{"auto_offset_reset": "earliest"} | options,
        )

    async def fill(self, *values: bytes) -> None:
        """Each value is a batch of its own."""
        async with Producer("a:9092,b:9092,c:9092", seams=self.seams, linger_ms=0) as producer:
            for value in values:
                await producer.send_and_wait("t", value)

    async def read(self, consumer: Consumer, count: int) -> None:
        """Poll until so many more records came."""
        wanted = len(self.offsets) + count
        with trio.fail_after(20):
            while len(self.offsets) < wanted:
                for record in await consumer.poll(1):
                    self.offsets.append(record.offset)
                    self.values.append(record.value)
                    self.at.append(trio.current_time())


@pytest.fixture
async def reading(start_broker: Any, network: Any, seams: Any) -> Reading:
    """One partition, led by 1."""
    brokers = {node: await start_broker(host) for node, host in HOSTS.items()}
    return Reading(Replicated(network, brokers, [1]), seams)


@pytest.mark.parametrize(("fault", "late_s"), [("kill", 0.1), ("stop", 0.5)])
async def test_a_consumer_follows_soon_and_sees_each_record_once(
    reading: Reading, autojump_clock: Any, fault: str, late_s: float
) -> None:
    """CCO-08, NET-06: a leader that dies, or hangs, is left as soon as the cluster has another; the
    offsets go on without a gap and without a repeat, and nobody is stormed meanwhile."""
    cluster = reading.cluster
    await reading.fill(b"0", b"1", b"2")
    async with reading.consumer() as consumer:
        await consumer.assign_topics("t")
        await reading.read(consumer, 3)
        getattr(cluster, fault)(1)
        await consumer.poll(1.1)
        cluster.fail_over(1, 2)
        await reading.fill(b"3")
        stored_at = cluster.partitions[0].logs[2][-1].at
        await reading.read(consumer, 1)
        assert reading.at[-1] - stored_at < late_s
        assert sum(len(each.asked(MetadataRequest)) for each in cluster.brokers.values()) < 60
        await reading.fill(b"4")
        await reading.read(consumer, 1)
    assert reading.offsets == [0, 1, 2, 3, 4]
    assert reading.values == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_hint_in_a_fetch_answer_is_followed_at_once(
    reading: Reading, autojump_clock: Any
) -> None:
    """CCO-04, CPR-13: NOT_LEADER and FENCED with the new leader in them need no metadata and no
    back-off, also where it is the same broker in a new term."""
    cluster = reading.cluster
    await reading.fill(b"0")
    async with reading.consumer() as consumer:
        await consumer.assign_topics("t")
        await reading.read(consumer, 1)
        asked = sum(len(each.asked(MetadataRequest)) for each in cluster.brokers.values())
        for leader in (2, 2, 3):
            cluster.partitions[0].elect(leader)
            cluster.notify()
            began = trio.current_time()
            fetches = len(cluster.brokers[leader].asked(FetchRequest))
            while len(cluster.brokers[leader].asked(FetchRequest)) == fetches:
                await consumer.poll(0.005)
            assert trio.current_time() - began < 0.02
        after = sum(len(each.asked(MetadataRequest)) for each in cluster.brokers.values())
        assert after == asked
    fetch = cluster.brokers[3].asked(FetchRequest)[-1].partitions[0]
    assert (fetch.fetch_offset, fetch.leader_epoch, fetch.last_fetched_epoch) == (1, 3, 0)


async def test_where_to_begin_is_asked_of_the_next_leader_soon(
    reading: Reading, autojump_clock: Any
) -> None:
    """NET-07: while a leader is away its back-off, up to a second, does not delay the others."""
    cluster = reading.cluster
    await reading.fill(b"0")
    async with reading.consumer() as consumer:
        await consumer.assign_topics("t")
        cluster.kill(1)
        assert await consumer.poll(1.1) == []
        cluster.fail_over(1, 3)
        failed_over_at = trio.current_time()
        await reading.read(consumer, 1)
        assert reading.at[-1] - failed_over_at < 0.25
        assert (await consumer.end_offsets())[A] == 1


async def test_a_leader_that_does_not_know_its_epoch_yet_is_asked_again(
    reading: Reading, autojump_clock: Any
) -> None:
    """CCO-04: UNKNOWN_LEADER_EPOCH is retried; the metadata may be newer than the leader."""
    cluster = reading.cluster
    await reading.fill(b"0")
    partition = cluster.partitions[0]
    partition.known_epoch = 1
    async with reading.consumer() as consumer:
        await consumer.assign_topics("t")
        assert await consumer.poll(0.3) == []
        partition.elect(1)
        await reading.read(consumer, 1)
    assert reading.offsets == [0]


async def lose_the_tail(reading: Reading, consumer: Consumer) -> None:
    """Read records 0 to 5, of which the next leader has 0 to 2, and writes others behind them."""
    cluster = reading.cluster
    await reading.fill(b"0", b"1", b"2")
    cluster.lagging = {2, 3}
    await reading.fill(b"3", b"4", b"5")
    await reading.read(consumer, 6)
    cluster.lagging.clear()
    cluster.kill(1)
    cluster.fail_over(1, 2)
    await reading.fill(*(b"new %d" % number for number in range(3, 9)))


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_where_records_were_lost_a_consumer_goes_on_where_the_logs_part(
    reading: Reading, autojump_clock: Any, caplog: Any, policy: str
) -> None:
    """After an unclean election nothing new is left out, though the log is longer than before, and
    nothing is read again that is still the same; a warning names the offsets."""
    async with reading.consumer(auto_offset_reset=policy) as consumer:
        consumer.assign([A])
        consumer.seek(A, 0)
        await lose_the_tail(reading, consumer)
        with caplog.at_level(logging.WARNING):
            await reading.read(consumer, 6)
    assert reading.offsets == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]
    assert reading.values[6:] == [b"new %d" % number for number in range(3, 9)]
    assert "t-0 at offset 6: the log was cut to offset 3: its leader has lost" in caplog.text


async def test_where_records_were_lost_policy_none_raises_until_a_seek(
    reading: Reading, autojump_clock: Any
) -> None:
    """The error names where the consumer stood and where the logs part."""
    async with reading.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([A])
        consumer.seek(A, 0)
        await lose_the_tail(reading, consumer)
        for _ in range(2):
            with pytest.raises(
                LogTruncated, match=r"t-0 at offset 6: .* cut to offset 3"
            ) as raised:
                await consumer.poll(5)
        assert raised.value.offset == 6
        consumer.seek(A, 3)
        await reading.read(consumer, 6)
    assert reading.values[6:] == [b"new %d" % number for number in range(3, 9)]


async def test_what_was_lost_before_it_was_returned_is_never_seen(
    reading: Reading, autojump_clock: Any, caplog: Any
) -> None:
    """Fetched ahead and lost meanwhile: the application sees the new records only, and no warning
    or error, whatever the policy."""
    cluster = reading.cluster
    await reading.fill(b"0", b"1")
    cluster.lagging = {2, 3}
    await reading.fill(b"2", b"3")
    cluster.lagging.clear()
    async with reading.consumer(auto_offset_reset="none", max_poll_records=1) as consumer:
        consumer.assign([A])
        consumer.seek(A, 0)
        await reading.read(consumer, 1)  # the rest was fetched with it
        cluster.kill(1)
        cluster.fail_over(1, 2)
        await reading.fill(b"new 2")
        await trio.sleep(0.5)
        caplog.clear()
        await reading.read(consumer, 2)
    assert reading.values == [b"0", b"1", b"new 2"]
    assert not [each for each in caplog.records if "cut" in each.getMessage()]


@pytest.mark.parametrize("epochs", [0, 3])
async def test_a_topic_made_anew_is_read_from_its_beginning(
    reading: Reading, autojump_clock: Any, caplog: Any, epochs: int
) -> None:
    """Its first record comes after all that was read of the old one; epochs begin anew too."""
    cluster = reading.cluster
    for _ in range(epochs):
        cluster.partitions[0].elect(1)
    cluster.partitions[0].tell()
    await reading.fill(b"0", b"1", b"2")
    async with reading.consumer(auto_offset_reset="latest", metadata_max_age_ms=2000) as consumer:
        consumer.assign([A])
        consumer.seek(A, 0)
        await reading.read(consumer, 3)
        cluster.topic_id = bytes(15) + b"1"
        cluster.partitions = [Partition(2)]
        cluster.notify()
        await reading.fill(*(b"new %d" % number for number in range(5)))
        await reading.read(consumer, 5)
    assert reading.values[3:] == [b"new %d" % number for number in range(5)]
    assert "t-0 at offset 3: the log was cut to offset 0: the topic was deleted" in caplog.text


async def test_a_topic_made_anew_while_nobody_looks_is_noticed(
    reading: Reading, autojump_clock: Any
) -> None:
    """RM-11: led by the same broker in the same epoch, with records at the next offset: a fetch
    names the topic's id, so none of the new records is skipped."""
    cluster = reading.cluster
    await reading.fill(b"0", b"1", b"2")
    async with reading.consumer() as consumer:
        consumer.assign([A])
        await reading.read(consumer, 3)
        consumer.pause(A)
        await consumer.poll(2)
        cluster.topic_id = bytes(15) + b"1"
        cluster.partitions = [Partition(1)]
        await reading.fill(*(b"new %d" % number for number in range(5)))
        consumer.resume(A)
        await reading.read(consumer, 5)
    assert reading.values[3:] == [b"new %d" % number for number in range(5)]


async def test_records_of_a_deleted_topic_that_wait_are_not_returned(
    reading: Reading, autojump_clock: Any
) -> None:
    """RM-11: fetched ahead, none of them returned: the first record is that of the new topic."""
    cluster = reading.cluster
    await reading.fill(b"0", b"1", b"2")
    async with reading.consumer(metadata_max_age_ms=1000) as consumer:
        await consumer.assign_topics("t")
        await consumer.poll(0)
        await trio.sleep(0.2)
        assert consumer.statistics().queued_bytes
        [asked] = cluster.brokers[1].asked(ListOffsetsRequest)[-1].partitions
        assert asked.topic_id == cluster.topic_id
        cluster.topic_id = bytes(15) + b"1"
        cluster.partitions = [Partition(1)]
        await reading.fill(*(b"new %d" % number for number in range(5)))
        await trio.sleep(2)
        await reading.read(consumer, 5)
    assert reading.values == [b"new %d" % number for number in range(5)]


async def test_a_late_answer_about_a_deleted_topic_is_not_taken_over(
    reading: Reading, autojump_clock: Any
) -> None:
    """RM-11: records of the old topic, at the offset at which the new one is read, arrive after the
    client has learnt of the new one."""
    cluster = reading.cluster
    is_due = trio.Event()

    async def answer_late(request: FetchRequest) -> FetchResponse:
        answer = await cluster.fetch(1, request)
        await is_due.wait()
        return answer

    cluster.brokers[1].answers[ApiKey.FETCH] = answer_late
    await reading.fill(b"0", b"1", b"2")
    async with reading.consumer(metadata_max_age_ms=500) as consumer:
        await consumer.assign_topics("t")
        await consumer.poll(0.1)
        cluster.topic_id = bytes(15) + b"1"
        cluster.partitions = [Partition(1)]
        await reading.fill(*(b"new %d" % number for number in range(5)))
        await consumer.poll(1)
        is_due.set()
        await reading.read(consumer, 5)
    assert reading.values == [b"new %d" % number for number in range(5)]
