"""Transactions of our clients against the real broker app, on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel

from minibroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from minibroker.client.committed_offsets import ConsumerGroupMetadata
from minibroker.client.errors import ProducerFailed, ProducerFenced, TransactionAbortable
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_broker

SETTINGS = {
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


class Bench:
    """A broker, and clients of it."""

    def __init__(self, world: SimulatedWorld, broker: SimulatedBroker) -> None:
        self.world = world
        self.broker = broker

    def producer(self, transactional_id: str = "id", **options: Any) -> Producer:
        """A transactional producer."""
        seams = self.world.seams(f"producer-{transactional_id}")
        options = {"linger_ms": 0} | options
        return Producer(
            self.broker.address, seams=seams, transactional_id=transactional_id, **options
        )

    def consumer(self, level: str = "read_committed", **options: Any) -> Consumer:
        """A consumer that begins at the beginning."""
        options = {"auto_offset_reset": "earliest", "isolation_level": level} | options
        return Consumer(self.broker.address, seams=self.world.seams("consumer"), **options)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """An admin client."""
        async with Admin(self.broker.address, seams=self.world.seams("admin")) as admin:
            yield admin

    async def values(self, topic: str, count: int, level: str = "read_committed") -> list[bytes]:
        """All records of partition 0, at least so many: up to its end for the level."""
        name, values = TopicPartition(topic, 0), []
        async with self.consumer(level) as consumer:
            consumer.assign([name])
            with trio.fail_after(60):
                while len(values) < count or await consumer.lag() != {name: 0}:
                    values += [record.value for record in await consumer.poll(1)]
        return values


@pytest.fixture
async def bench(autojump_clock: Any) -> Any:
    """A broker that creates topics of two partitions."""
    world = SimulatedWorld(1)
    async with open_broker(world, SETTINGS) as broker:
        yield Bench(world, broker)


async def test_committed_records_are_read_and_aborted_ones_are_not(bench: Bench) -> None:
    """Of several partitions, in many transactions one after the other."""
    async with bench.producer() as producer:
        for number in range(20):
            try:
                async with producer.transaction():
                    for partition in range(2):
                        await producer.send("out", b"%d" % number, partition=partition)
                    await producer.flush()
                    if number % 3 == 0:
                        raise KeyError
            except KeyError:
                pass
    everything = [b"%d" % number for number in range(20)]
    committed = [value for number, value in enumerate(everything) if number % 3]
    assert await bench.values("out", 13) == committed
    assert await bench.values("out", 20, "read_uncommitted") == everything


async def test_an_open_transaction_is_not_read(bench: Bench) -> None:
    """Neither is what is behind it; end offsets, lag and the end of a partition are in front of
    it. A poll that waits gets the records once they are committed."""
    ends: list[int] = []
    async with (
        bench.producer() as producer,
        bench.producer("other") as other,
        bench.consumer(on_partition_eof=lambda _, end: ends.append(end)) as consumer,
    ):
        async with other.transaction():
            await other.send("out", b"before", partition=0)
        await producer.begin_transaction()
        opened = await producer.send_and_wait("out", b"open", partition=0)
        async with other.transaction():
            await other.send("out", b"behind", partition=0)
        consumer.assign([OUT])
        assert [record.value for record in await consumer.poll(1)] == [b"before"]
        assert await consumer.poll(5) == []
        assert await consumer.end_offsets() == {OUT: opened.offset}
        assert await consumer.lag() == {OUT: 0}
        assert ends == [opened.offset]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.commit_transaction)
            values = [record.value for record in await consumer.poll(10)]
            if len(values) < 2:
                values += [record.value for record in await consumer.poll(10)]
        assert values == [b"open", b"behind"]


@pytest.mark.parametrize("partition", [0, 1], ids=["written", "not written"])
async def test_a_successor_fences_and_ends_the_open_transaction(
    bench: Bench, partition: int
) -> None:
    """Its start aborts what the zombie has sent, whatever the zombie does next."""
    async with bench.producer() as zombie:
        await zombie.begin_transaction()
        await zombie.send_and_wait("out", b"of the zombie", partition=0)
        async with bench.producer() as producer:
            async with producer.transaction():
                await producer.send("out", b"of the next", partition=0)
            with pytest.raises(TransactionAbortable, match="another producer"):
                await zombie.send_and_wait("out", b"late", partition=partition)
            with pytest.raises(ProducerFenced):
                await zombie.abort_transaction()
            with pytest.raises(ProducerFenced):
                await zombie.begin_transaction()
            async with producer.transaction():
                await producer.send("out", b"goes on", partition=0)
    assert await bench.values("out", 2) == [b"of the next", b"goes on"]


@pytest.mark.parametrize("partition", [0, 1, None], ids=["written", "not written", "commit"])
async def test_a_producer_goes_on_after_a_late_transaction(
    bench: Bench, partition: int | None
) -> None:
    """What it does next in the transaction is refused, and the next transaction is sound."""
    async with bench.producer(transaction_timeout_ms=1000) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("out", b"late", partition=0)
        await trio.sleep(60)
        call = producer.commit_transaction
        if partition is not None:
            call = partial(producer.send_and_wait, "out", b"later", partition=partition)
        with pytest.raises(TransactionAbortable, match=r"after transaction\.timeout\.ms"):
            await call()
        await producer.abort_transaction()
        for value in (b"next", b"last"):
            async with producer.transaction():
                await producer.send("out", value, partition=0)
    assert await bench.values("out", 2) == [b"next", b"last"]


async def test_an_operator_ends_a_transaction(bench: Bench) -> None:
    """Its producer hears that it is fenced."""
    async with bench.producer() as producer, bench.admin() as admin:
        await producer.begin_transaction()
        await producer.send_and_wait("out", b"never", partition=0)
        [described] = await admin.describe_transactions("id")
        assert described.state == "Ongoing"
        await admin.abort_transaction("id")
        with pytest.raises(ProducerFenced, match="an operator has aborted"):
            await producer.commit_transaction()
    assert await bench.values("out", 0) == []


async def test_a_timeout_that_the_broker_does_not_allow(bench: Bench) -> None:
    """The producer does not start, and the error names the setting."""
    with pytest.raises(ProducerFailed, match=r"transaction\.max\.timeout\.ms"):
        async with bench.producer(transaction_timeout_ms=2**31 - 1):
            raise AssertionError("it does not start")


async def transform(bench: Bench, producer: Producer, consumer: Consumer, count: int) -> None:
    """Copy so many records in transactions with their offsets."""
    copied = 0
    while copied < count:
        records = await consumer.poll(10)
        async with producer.transaction():
            for record in records:
                assert record.value is not None
                await producer.send("out", record.value, partition=0)
            offsets = consumer.committable_offsets()
            await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        copied += len(records)


async def test_input_is_transformed_once(bench: Bench) -> None:
    """Consume, transform, produce: after an abort the next member reads the records again, and each
    is in the output once."""
    async with bench.producer("input") as source, source.transaction():
        for number in range(10):
            await source.send("in", b"%d" % number, partition=0)
    options = {"group_id": "g", "enable_auto_commit": False, "max_poll_records": 4}
    async with bench.admin() as admin:
        await admin.create_topics(NewTopic("out", 1))
        async with bench.producer() as producer:
            async with bench.consumer(**options) as consumer:
                await consumer.subscribe("in")
                await transform(bench, producer, consumer, 4)
                with pytest.raises(KeyError):  # noqa: PT012
                    async with producer.transaction():
                        for record in await consumer.poll(10):
                            await producer.send("out", record.value, partition=0)
                        offsets = consumer.committable_offsets()
                        group = consumer.group_metadata()
                        await producer.send_offsets_to_transaction(offsets, group)
                        raise KeyError
            committed = await admin.committed_offsets("g")
            assert committed[IN].offset == 4
            async with bench.consumer(**options) as consumer:
                await consumer.subscribe("in")
                await transform(bench, producer, consumer, 6)
                assert (await consumer.committed(IN))[IN] is not None
        committed = await admin.committed_offsets("g")
        assert committed[IN].offset == 11, "behind the marker"
    assert await bench.values("out", 10) == [b"%d" % number for number in range(10)]


async def test_a_consumer_that_is_no_member_any_more_commits_nothing(bench: Bench) -> None:
    """KIP-447: its offsets are refused, so the records of the transaction are not committed."""
    async with bench.producer() as producer, bench.consumer(group_id="g") as consumer:
        async with producer.transaction():
            await producer.send("in", b"x", partition=0)
        await consumer.subscribe("in")
        assert len(await consumer.poll(10)) == 1
        group = consumer.group_metadata()
        assert group == ConsumerGroupMetadata("g", group.generation, group.member_id)
        assert group.generation > 0
        await consumer.unsubscribe()
        with pytest.raises(TransactionAbortable, match="not a member any more"):  # noqa: PT012
            async with producer.transaction():
                await producer.send("out", b"x", partition=0)
                await producer.send_offsets_to_transaction({IN: 1}, group)
    assert await bench.values("out", 0) == []


@pytest.mark.parametrize("when", ["open", "decided"])
async def test_a_broker_may_restart_in_a_transaction(bench: Bench, when: str) -> None:
    """The producer goes on with it, and commits it once."""
    async with bench.producer(request_timeout_ms=2000, delivery_timeout_ms=60_000) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("out", b"before", partition=0)

        async def restart() -> None:
            await bench.broker.kill()
            await bench.broker.start()

        async with trio.open_nursery() as nursery:
            if when == "decided":
                nursery.start_soon(producer.commit_transaction)
                await trio.lowlevel.checkpoint()
            nursery.start_soon(restart)
            if when == "open":
                await producer.send("out", b"meanwhile", partition=0)
                await producer.commit_transaction()
        is_done = False
        while not is_done:  # a marker that comes twice may fail a transaction that begins
            with suppress(TransactionAbortable):
                async with producer.transaction():
                    await producer.send("out", b"after", partition=0)
                is_done = True
    values = await bench.values("out", 2)
    assert values == [b"before", *([b"meanwhile"] if when == "open" else []), b"after"]
