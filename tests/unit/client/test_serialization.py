"""Keys and values of an application's own types, in all three forms of the clients; and the event
that the end of a partition was reached."""

import asyncio
import json
from typing import Any

import pytest
import trio
import trio.testing

import minibroker.client.asyncio as for_asyncio
from minibroker.client import (
    DeserializationFailed,
    NewTopic,
    Producer,
    TopicPartition,
    blocking,
)
from minibroker.client.consumer.positions import Positions
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.fetch import PartitionFetched
from minibroker.protocol.records.record import encode_batch
from tests.unit.client.groups.grouped import Workplace, open_workplace

A = TopicPartition("t", 0)
WRITTEN: dict[str, Any] = {"key_serializer": str.encode, "value_serializer": lambda v: b"%d" % v}
READ: dict[str, Any] = {"key_deserializer": bytes.decode, "value_deserializer": int}


def producer_of(place: Workplace, **options: Any) -> Producer[Any, Any]:
    """One for trio."""
    return Producer(place.broker.address, seams=place.world.seams("user"), **options)


async def test_what_is_sent_is_serialized(autojump_clock: Any) -> None:
    """By each way of sending; None is no key, or a tombstone, and is not serialized."""
    async with open_workplace() as place, producer_of(place, **WRITTEN) as producer:
        await producer.send("t", 1, "a", partition=0)
        producer.send_nowait("t", 2, partition=0)
        assert producer.send_many("t", [3, 4], "b", partition=0) == 2
        await producer.send_and_wait("t", None, "c", partition=0)
        async with place.consumer("a", group_id="") as plain:
            plain.assign([A])
            records = await plain.poll(5)
        async with place.consumer("a", group_id="", **READ) as typed:
            typed.assign([A])
            read = [record[4:6] for record in await typed.poll(5)]
    stored = [(b"a", b"1"), (None, b"2"), (b"b", b"3"), (b"b", b"4"), (b"c", None)]
    assert [record[4:6] for record in records] == stored
    assert read == [("a", 1), (None, 2), ("b", 3), ("b", 4), ("c", None)]


async def test_what_cannot_be_serialized_is_not_taken(autojump_clock: Any) -> None:
    """`send` raises what the function raises, and says which of them returned no bytes."""
    async with open_workplace() as place:
        async with producer_of(place, value_serializer=json.dumps) as producer:
            with pytest.raises(TypeError, match="what value_serializer returns is bytes or None"):
                await producer.send("t", {})
            with pytest.raises(TypeError, match="not JSON serializable"):
                producer.send_many("t", [1j])
        assert producer.statistics().delivered == 0
    with pytest.raises(TypeError, match="key_serializer is a function of one argument, not 'utf'"):
        producer_of(place, key_serializer="utf")
    with pytest.raises(TypeError, match="value_deserializer is a function of one argument"):
        place.consumer("a", value_deserializer="utf")


async def test_a_record_is_serialized_once_however_long_it_waits(autojump_clock: Any) -> None:
    """Also where there was no room for it at first."""
    made: list[int] = []

    def serialize(value: int) -> bytes:
        made.append(value)
        return b"%0500d" % value

    options: dict[str, Any] = {"buffer_memory": 2000, "batch_size": 1000}
    async with open_workplace() as place:
        async with producer_of(place, value_serializer=serialize, **options) as producer:
            for value in range(20):
                await producer.send("t", value)
            await producer.flush()
            await trio.testing.wait_all_tasks_blocked()
            for value in range(20, 23):
                await producer.send("t", value)
            assert (await producer.send_and_wait("t", 23)).timestamp
        assert producer.statistics().delivered == 24
    assert made == list(range(24))


TOMBSTONE: dict[str, Any] = {"match": "a tombstone goes by send"}
HOLED: list[Any] = [b"a", None]


async def test_many_values_hold_no_tombstone(autojump_clock: Any) -> None:
    """None is refused before any of the values is taken."""
    async with open_workplace() as place:
        async with producer_of(place) as producer:
            with pytest.raises(TypeError, **TOMBSTONE):
                producer.send_many("t", HOLED)
        assert producer.statistics().delivered == 0


@pytest.mark.parametrize("serializer", [None, bytes])
def test_no_kind_of_producer_takes_a_tombstone_among_many(address: str, serializer: Any) -> None:
    """The blocking one and that for asyncio do as the one for trio does."""
    producer = blocking.Producer(address, value_serializer=serializer)
    with producer, pytest.raises(TypeError, **TOMBSTONE):
        producer.send_many("t", HOLED)
    assert producer.statistics().delivered == 0

    async def main() -> None:
        async with for_asyncio.Producer(address, value_serializer=serializer) as producer:
            with pytest.raises(TypeError, **TOMBSTONE):
                await producer.send_many("t", HOLED)
        assert producer.statistics().delivered == 0

    asyncio.run(main())


async def test_a_record_that_cannot_be_deserialized_stops_its_reader(autojump_clock: Any) -> None:
    """Those before it are returned and may be committed; each poll raises, until the seek."""
    async with open_workplace() as place:
        async with producer_of(place) as producer:
            for value in (b"1", b"2", b"three", b"4"):
                await producer.send("t", value, partition=0)
        async with place.consumer("a", **READ) as a:
            a.assign([A])
            assert [record.value for record in await a.poll(5)] == [1, 2]
            for _ in range(2):
                with pytest.raises(
                    DeserializationFailed, match="t-0 at offset 2: its value"
                ) as told:
                    await a.poll(5)
            assert (told.value.topic_partition, told.value.offset) == (A, 2)
            assert isinstance(told.value.__cause__, ValueError)
            await a.commit()
            assert (await a.committed(A))[A] == a._positions.committable(A, 2)
            a.seek(A, 3)
            assert [record.value for record in await a.poll(5)] == [4]


async def test_an_interrupt_in_a_deserializer_loses_nothing(autojump_clock: Any) -> None:
    """The next poll returns what this one had taken, and nothing more is committed."""
    interrupts = [KeyboardInterrupt]

    def deserialize(value: bytes) -> int:
        if value == b"3" and interrupts:
            raise interrupts.pop()
        return int(value)

    async with open_workplace() as place:
        async with producer_of(place) as producer:
            for value in (b"1", b"2", b"3", b"4"):
                await producer.send("t", value, partition=0)
        async with place.consumer("a", value_deserializer=deserialize) as a:
            a.assign([A])
            with pytest.raises(KeyboardInterrupt):
                await a.poll(5)
            await a.commit()
            assert a.position(A) == 0
            assert [record.value for record in await a.poll(5)] == [1, 2, 3, 4]


async def test_the_ledger_tells_of_what_was_returned(autojump_clock: Any, tmp_path: Any) -> None:
    """Not of what could not be deserialized, nor of what lies behind it."""
    async with open_workplace() as place:
        async with producer_of(place) as producer:
            for value in (b"1", b"two", b"3"):
                await producer.send("t", value, partition=0)
        async with place.consumer("a", group_id="", ledger=tmp_path / "told", **READ) as a:
            a.assign([A])
            await a.poll(5)
            with pytest.raises(DeserializationFailed):
                await a.poll(5)
            a.seek(A, 2)
            await a.poll(5)
    told = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert [each["value"] for each in told if each["name"] == "record_data"] == ["1", "3"]


def test_what_goes_back_before_a_gap_is_kept() -> None:
    """The log has lost what lies behind the taken records, and they are not done with."""
    positions = Positions(read_options(ConsumerOptions, "127.0.0.1:9092", {}))
    positions.assign([A])
    positions.seek(A, 0)
    asked = positions.plan(lambda _: 0, 0.0)[0][0]
    data = encode_batch([(1, None, b"%d" % number, ()) for number in range(5)])
    answer = PartitionFetched(*A, high_watermark=9, records=data)
    positions.handle_answer(asked, answer, 0.0)
    behind = positions.plan(lambda _: 0, 0.0)[0][0]
    gone = PartitionFetched(*A, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    positions.handle_answer(behind, gone, 0.0)
    taken = positions.take_records(500)
    assert (len(taken), positions.position(A)) == (5, None)
    positions.give_back(taken[2:])
    assert positions.position(A) == 2
    assert [record.offset for record in positions.take_records(500)] == [2, 3, 4]
    assert positions.plan(lambda _: 0, 0.0)[0][0].fetch_offset == 5


async def test_what_iteration_gives_back_comes_again(autojump_clock: Any, tmp_path: Any) -> None:
    """Deserialized once more; the ledger has the bytes."""
    async with open_workplace() as place:
        async with producer_of(place) as producer:
            for value in (b"1", b"2", b"3"):
                await producer.send("t", value, partition=0)
        async with place.consumer("a", group_id="", ledger=tmp_path / "told", **READ) as a:
            a.assign([A])
            assert (await anext(a)).value == 1
            assert a.position(A) == 1
            a.pause(A)
            assert await a.poll(0) == []
            a.resume(A)
            assert [record.value for record in await a.poll(5)] == [2, 3]
    told = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert [each["value"] for each in told if each["name"] == "record_data"] == [*"123", *"23"]


@pytest.mark.parametrize("size", [1, 5000])
def test_the_blocking_clients_serialize_in_the_thread_that_sends(address: str, size: int) -> None:
    """So that `send` raises what the function raises."""
    with blocking.Admin(address) as admin:
        admin.create_topics(NewTopic(f"blocking-{size}", 1))
    with blocking.Producer(address, value_serializer=str.encode) as producer:
        for letter in "abc":
            producer.send(f"blocking-{size}", letter * size)
        with pytest.raises(TypeError):
            producer.send("t", 1)  # type: ignore[arg-type]
    with blocking.Consumer(
        address, auto_offset_reset="earliest", value_deserializer=bytes.decode
    ) as consumer:
        consumer.assign_topics(f"blocking-{size}")
        found = [record.value for _, record in zip("abc", consumer, strict=False)]
    assert found == [letter * size for letter in "abc"]


def test_the_asyncio_clients_serialize(address: str) -> None:
    """And are told of ends in the event loop."""
    ends: list[tuple[TopicPartition, int]] = []

    async def main() -> list[Any]:
        async with for_asyncio.Admin(address) as admin:
            await admin.create_topics(NewTopic("asyncio", 1))
        async with for_asyncio.Producer(address, value_serializer=json_bytes) as producer:
            delivery = await producer.send("asyncio", [1, 2])
            await delivery
        reached = asyncio.Event()

        def on_eof(name: TopicPartition, end: int) -> None:
            ends.append((name, end))
            reached.set()

        async with for_asyncio.Consumer(
            address,
            auto_offset_reset="earliest",
            value_deserializer=json.loads,
            on_partition_eof=on_eof,
        ) as consumer:
            await consumer.assign_topics("asyncio")
            records = await consumer.poll()
            while not reached.is_set():
                await consumer.poll(0.1)
        return [record.value for record in records]

    assert asyncio.run(main()) == [[1, 2]]
    assert ends == [(TopicPartition("asyncio", 0), 1)]


def json_bytes(value: object) -> bytes:
    """A serializer."""
    return json.dumps(value).encode()


async def test_the_end_of_a_partition_is_told_once(autojump_clock: Any) -> None:
    """Once all before it was returned, again when more was returned, and again after a seek."""
    ends: list[tuple[int, int]] = []

    def on_eof(name: TopicPartition, end: int) -> None:
        ends.append((name.partition, end))

    async with open_workplace() as place:
        await place.fill(2)
        async with place.consumer("a", group_id="", on_partition_eof=on_eof) as a:
            await a.assign_topics("t")
            count = 0
            while count < 8:
                records = await a.poll(5)
                assert all(
                    number not in dict(ends) for number in {each.partition for each in records}
                )
                count += len(records)
            await a.poll(1)
            await a.poll(1)
            assert sorted(ends) == [(0, 2), (1, 2), (2, 2), (3, 2)]
            ends.clear()
            await place.fill(1, partition_count=1)
            assert len(await a.poll(5)) == 1
            assert ends == []
            await a.poll(1)
            assert ends == [(0, 3)]
            a.seek_to_end(A)
            await a.poll(1)
            assert ends == [(0, 3), (0, 3)]


async def test_the_end_of_an_empty_partition_is_told(autojump_clock: Any) -> None:
    """And by iteration, too, which goes on waiting; what the function raises ends the poll."""

    class Reached(Exception):
        pass

    def on_eof(name: TopicPartition, end: int) -> None:
        assert end == 0
        raise Reached

    options: dict[str, Any] = {"group_id": "", "on_partition_eof": on_eof}
    async with open_workplace() as place, place.consumer("a", **options) as a:
        a.assign([A])
        with trio.fail_after(60), pytest.raises(Reached):
            await anext(a)


async def test_ends_are_told_one_by_one(autojump_clock: Any) -> None:
    """What the function raises for one keeps nobody from hearing of the others."""
    ends: list[int] = []

    def on_eof(name: TopicPartition, end: int) -> None:
        ends.append(name.partition)
        if len(ends) == 1:
            raise RuntimeError("the first")

    options: dict[str, Any] = {"group_id": "", "on_partition_eof": on_eof}
    async with open_workplace() as place, place.consumer("a", **options) as a:
        await a.assign_topics("t")
        with pytest.raises(RuntimeError, match="the first"):
            await a.poll(5)
        await a.poll(5)
    assert sorted(ends) == [0, 1, 2, 3]


async def test_an_end_is_told_while_others_have_records(autojump_clock: Any) -> None:
    """Nobody has to wait until all are at their end."""
    ends: list[tuple[int, int]] = []

    def on_eof(name: TopicPartition, end: int) -> None:
        ends.append((name.partition, end))

    options: dict[str, Any] = {"group_id": "", "on_partition_eof": on_eof}
    async with open_workplace() as place, place.consumer("a", **options) as a:
        b = TopicPartition("t", 1)
        await place.fill(2, partition_count=1)
        a.assign([A, b])
        async with producer_of(place) as producer:
            for number in range(10):
                await producer.send_and_wait("t", b"%d" % number, partition=1)
                await a.poll(5)
        assert (0, 2) in ends


async def test_a_member_is_told_of_ends(autojump_clock: Any) -> None:
    """In a group, with records before it that iteration hands out one by one."""
    ends: list[int] = []
    async with open_workplace() as place:
        await place.fill(3, partition_count=1)
        async with place.consumer("a", on_partition_eof=lambda *told: ends.append(told[1])) as a:
            await a.subscribe("t")
            for _ in range(3):
                await anext(a)
                assert 3 not in ends
            await a.poll(1)
            assert ends.count(3) == 1
