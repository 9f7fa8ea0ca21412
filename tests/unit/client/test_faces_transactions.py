"""Transactions in each form of the client: over real sockets, to a broker of this process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio

from minibroker import client
from minibroker.client import (
    ClientError,
    ConsumerGroupMetadata,
    ProducerFenced,
    TopicPartition,
    TransactionAbortable,
    TransactionError,
    blocking,
)
from minibroker.client import asyncio as for_asyncio

OPTIONS: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
Values = list[bytes | None]


class Stop(Exception):
    """Ends the block of a transaction."""


async def send_awaited(face: Any, address: str, topic: str) -> None:
    """Commit, abort, send outside, be fenced: with `async with`."""
    options = {"transactional_id": topic}
    async with face.Producer(address, **options) as producer:
        with pytest.raises(ClientError, match="there is no transaction"):
            await producer.send(topic, b"outside")
        async with producer.transaction():
            for number in range(1000):
                await producer.send(topic, b"%d" % number, partition=0)
            await producer.flush()
            group = ConsumerGroupMetadata(topic)
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, group)
        with pytest.raises(ClientError, match="there is no transaction"):
            await producer.send(topic, b"outside")
        with pytest.raises(Stop):  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aborted", partition=0)
                await producer.send(topic, b"aborted", partition=0)
                raise Stop
        await producer.begin_transaction()
        await producer.send(topic, b"aborted", partition=0)
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send(topic, b"last", partition=0)
        await producer.commit_transaction()
        async with face.Producer(address, **options):
            pass
        with pytest.raises(ProducerFenced) as caught:
            async with producer.transaction():
                await producer.send(topic, b"of a zombie", partition=0)
        assert caught.value.remedy == "close"
        with pytest.raises(TransactionError):
            await producer.send(topic, b"of a zombie")


async def read_awaited(face: Any, address: str, topic: str) -> Values:
    """What a reader of committed records gets, and the offset that the group has."""
    name, values = TopicPartition(topic, 0), []
    async with face.Consumer(address, group_id=topic, **OPTIONS) as consumer:
        consumer.assign([name])
        assert consumer.group_metadata() == ConsumerGroupMetadata(topic)
        committed = (await consumer.committed(name))[name]
        assert committed.offset == 5
        consumer.seek_to_beginning()
        while await consumer.lag() != {name: 0}:
            values += [record.value for record in await consumer.poll(0.1)]
    return values


def trio_face(address: str, topic: str) -> Values:
    """With trio."""
    trio.run(send_awaited, client, address, topic)
    return trio.run(read_awaited, client, address, topic)


def asyncio_face(address: str, topic: str) -> Values:
    """With asyncio."""
    asyncio.run(send_awaited(for_asyncio, address, topic))
    return asyncio.run(read_awaited(for_asyncio, address, topic))


def blocking_face(address: str, topic: str) -> Values:
    """With plain calls."""
    options: dict[str, Any] = {"transactional_id": topic}
    with blocking.Producer(address, **options) as producer:
        with pytest.raises(ClientError, match="there is no transaction"):
            producer.send(topic, b"outside")
        with producer.transaction():
            for number in range(1000):
                producer.send(topic, b"%d" % number, partition=0)
            producer.flush()
            group = ConsumerGroupMetadata(topic)
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, group)
        with pytest.raises(ClientError, match="there is no transaction"):
            producer.send(topic, b"outside")
        with pytest.raises(Stop), producer.transaction():  # noqa: PT012
            producer.send_and_wait(topic, b"aborted", partition=0)
            producer.send(topic, b"aborted", partition=0)
            raise Stop
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"last", partition=0)
        producer.commit_transaction()
        with blocking.Producer(address, **options):
            pass
        with pytest.raises(ProducerFenced), producer.transaction():
            producer.send(topic, b"of a zombie", partition=0)
        with pytest.raises(TransactionError):
            producer.send(topic, b"of a zombie")
    name, values = TopicPartition(topic, 0), []
    with blocking.Consumer(address, group_id=topic, **OPTIONS) as consumer:
        consumer.assign([name])
        assert consumer.group_metadata() == ConsumerGroupMetadata(topic)
        committed = consumer.committed(name)[name]
        assert committed is not None
        assert committed.offset == 5
        consumer.seek_to_beginning()
        while consumer.lag() != {name: 0}:
            values += [record.value for record in consumer.poll(0.1)]
    return values


FACES: dict[str, Callable[[str, str], Values]] = {
    "trio": trio_face,
    "asyncio": asyncio_face,
    "blocking": blocking_face,
}


@pytest.mark.parametrize("face", FACES)
def test_transactions_in_each_form(address: str, face: str) -> None:
    """The same calls do the same, and a reader of committed records gets what was committed."""
    values = FACES[face](address, f"transactions-{face}")
    assert values == [*(b"%d" % number for number in range(1000)), b"last"]


def test_a_record_that_cannot_be_sent_is_not_left_out_of_a_commit(address: str) -> None:
    """The loop finds out; the commit raises that once, and the transaction is aborted."""
    with blocking.Producer(address, transactional_id="wrong") as producer:
        with producer.transaction():
            producer.send("wrong", b"x", partition=0)
        with pytest.raises(ValueError, match="no wrong-9"), producer.transaction():  # noqa: PT012
            producer.send("wrong", b"aborted", partition=0)
            producer.send("wrong", b"x", partition=9)
        producer.begin_transaction()
        producer.send("wrong", b"aborted", partition=0)
        producer.send("wrong", b"x", partition=9)
        with pytest.raises(ValueError, match="no wrong-9"):
            producer.commit_transaction()
        with pytest.raises(TransactionAbortable, match="no wrong-9"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("wrong", b"y", partition=0)
    with blocking.Consumer(address, **OPTIONS) as consumer:
        consumer.assign([("wrong", 0)])
        values: Values = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(1)]
    assert values == [b"x", b"y"]


def test_a_cancelled_task_aborts(address: str) -> None:
    """The cancellation comes out, and the next transaction can begin."""

    async def main() -> None:
        async with for_asyncio.Producer(address, transactional_id="cancelled") as producer:
            with pytest.raises(TimeoutError):  # noqa: PT012
                async with asyncio.timeout(0.05), producer.transaction():
                    await producer.send_and_wait("cancelled", b"aborted")
                    await asyncio.sleep(60)
            async with producer.transaction():
                await producer.send("cancelled", b"committed")

    asyncio.run(main())
