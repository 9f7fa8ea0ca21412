"""The clients for asyncio: what they do, their lives, and what a cancelled call leaves."""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from minibroker.client import Delivery, TopicPartition
from minibroker.client.admin import NewTopic
from minibroker.client.asyncio import Admin, Consumer, DeliveryFuture, Producer
from minibroker.client.errors import (
    ClientClosed,
    ClientError,
    ClientTimeout,
    DeliveryFailed,
)
from tests.support.interrupts import cancelled_after

ENDS_WITHIN_S = 10.0
NAMES = ("minibroker-producer", "minibroker-consumer", "minibroker-admin")
SHORT: dict[str, Any] = {
    "delivery_timeout_ms": 60,
    "request_timeout_ms": 50,
    "linger_ms": 1,
    "max_block_ms": 50,
}
NAME = TopicPartition("awaited", 0)
pytestmark = pytest.mark.usefixtures("collects_its_own")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """The loop of each client ends, at the latest when nobody has the client any more."""
    yield
    collect_clients()


def collect_clients() -> None:
    """Collect clients until none runs."""
    until = time.monotonic() + ENDS_WITHIN_S
    while left := [each.name for each in threading.enumerate() if each.name in NAMES]:
        gc.collect()
        assert time.monotonic() < until, left
        time.sleep(0.001)


@pytest.fixture(scope="module")
def filled(address: str) -> str:
    """A broker with a hundred records in the partition."""

    async def fill() -> None:
        async with Producer(address) as producer:
            for number in range(100):
                await producer.send(NAME.topic, b"%d" % number, partition=0)

    asyncio.run(fill())
    return address


def test_what_is_sent_is_read_and_committed(address: str) -> None:
    """By all three clients, in one program."""

    async def main() -> None:
        async with Producer(address, linger_ms=20) as producer:
            futures = [await producer.send("said", b"%d" % n, partition=0) for n in range(50)]
            assert await futures[7] == await futures[7]
            assert (await futures[7])[:3] == ("said", 0, 7)
            told = await asyncio.gather(*futures)
            assert [each.offset for each in told] == list(range(50))
            assert (await producer.send_and_wait("said", bytes(5000))).offset == 50
            await producer.flush()
        options: dict[str, Any] = {"group_id": "said", "auto_offset_reset": "earliest"}
        seen = []
        async with Consumer(address, **options) as consumer:
            await consumer.subscribe("said")
            async for record in consumer:
                seen.append(record.offset)
                if len(seen) == 51:
                    break
            await consumer.commit()
            name = TopicPartition("said", 0)
            assert consumer.assignment == [name]
            assert consumer.subscription == ["said"]
            assert consumer.position(name) == 51
            assert await consumer.lag() == {name: 0}
            consumer.seek_to_beginning()
            assert len(await consumer.poll(10)) == 51
            assert await consumer.poll(0) == []
        assert seen == list(range(51))
        async with Admin(address) as admin:
            assert "said" in await admin.list_topics()
            assert (await admin.committed_offsets("said"))[name].offset == 51

    asyncio.run(main())


CLIENTS: dict[str, Callable[[str], Any]] = {
    "producer": Producer,
    "consumer": lambda address: Consumer(address, group_id="g"),
    "admin": Admin,
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_lives_that_are_not_one_block(address: str, kind: str) -> None:
    """As a lifespan function has them; close may be repeated, and ends the client."""

    async def main() -> None:
        client = await CLIENTS[kind](address).start()
        with pytest.raises(ClientError, match="started once"):
            await client.start()
        await asyncio.gather(client.close(), client.close())
        await client.close()
        refused: dict[str, Callable[[], Awaitable[object]]] = {
            "producer": lambda: client.send("t", b""),
            "consumer": lambda: client.poll(0),
            "admin": lambda: client.list_topics(),
        }
        with pytest.raises(ClientClosed, match="closed"):
            await refused[kind]()
        with pytest.raises(ClientClosed, match=r"call start\(\)"):
            await CLIENTS[kind](address).close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_event_loop_that_ends_without_close_leaves_nothing(address: str, kind: str) -> None:
    """The client ends when it is collected, and says so."""

    async def main() -> None:
        client = await CLIENTS[kind](address).start()
        if kind == "consumer":
            client.assign([NAME])
            waiting.append(asyncio.create_task(client.poll()))
            await asyncio.sleep(0.05)

    waiting: list[asyncio.Task[Any]] = []
    with pytest.warns(ResourceWarning, match=f"unclosed minibroker-{kind}"):  # noqa: PT031
        asyncio.run(main())
        waiting.clear()
        collect_clients()


def test_a_client_serves_one_event_loop_after_another(filled: str) -> None:
    """As tests do that have a loop each, and notebooks that are run again."""
    consumer = Consumer(filled)
    asyncio.run(consumer.start())

    async def read() -> int:
        consumer.assign([NAME])
        consumer.seek_to_beginning()
        return len(await consumer.poll(10))

    assert asyncio.run(read()) == asyncio.run(read()) > 0
    asyncio.run(consumer.close())


def test_failures_come_out(address: str) -> None:
    """By the future, or else by flush or close; each once."""

    async def main() -> None:
        producer = await Producer("127.0.0.1:1", **SHORT).start()
        future = await producer.send("t", b"")
        assert not future.done()
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        with pytest.raises(ClientTimeout):
            await future
        assert isinstance(future.exception(), ClientTimeout)
        await producer.flush()
        await producer.send("t", b"")
        with pytest.raises(DeliveryFailed):
            await producer.flush()
        with pytest.raises(TypeError):
            await producer.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(ClientTimeout):
            await producer.send_and_wait("t", b"")
        await producer.send("t", b"")
        with pytest.raises(DeliveryFailed):
            await producer.close()
        async with Admin(address) as admin:
            await admin.create_topics(NewTopic("narrow", 1))
        async with Producer(address) as producer:
            await producer.send_and_wait("narrow", b"")
            with pytest.raises(ValueError, match="partition"):
                await producer.send_and_wait("narrow", b"", partition=9)

    asyncio.run(main())


def test_callbacks_run_in_the_event_loop(address: str) -> None:
    """Those of batches, of records, and of a group, which may call the consumer."""
    threads: set[str] = set()
    told: list[Any] = []

    def tell(what: object) -> None:
        asyncio.get_running_loop()
        threads.add(threading.current_thread().name)
        told.append(what)

    def on_delivery(delivery: Delivery) -> None:
        tell(delivery.record_count)

    def on_record(future: DeliveryFuture) -> None:
        tell(future.result().offset)

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        tell(partitions)
        await consumer.commit({partitions[0]: 0})
        with pytest.raises(ClientError, match="callback"):
            await consumer.poll(0)

    async def main() -> None:
        nonlocal consumer
        async with Producer(address, on_delivery=on_delivery, linger_ms=20) as producer:
            future = await producer.send("heard", b"1")
            future.add_done_callback(on_record)
            await producer.flush()
            assert told == [1, 0] or told == [0, 1]
        consumer = Consumer(address, group_id="heard", auto_offset_reset="earliest")
        async with consumer:
            await consumer.subscribe("heard", on_assigned=on_assigned, on_revoked=tell_async)
            assert len(await consumer.poll(10)) == 1
        name = TopicPartition("heard", 0)
        assert told[2:] == [[name], [name]]

    async def tell_async(partitions: list[TopicPartition]) -> None:
        tell(partitions)

    consumer: Consumer
    asyncio.run(main())
    assert threads == {threading.current_thread().name}


def test_what_a_callback_raises_comes_out_of_the_poll(filled: str) -> None:
    """As from the trio consumer."""

    async def on_assigned(_: list[TopicPartition]) -> None:
        raise ValueError("mine")

    async def main() -> None:
        async with Consumer(filled, group_id="raises") as consumer:
            await consumer.subscribe(NAME.topic, on_assigned=on_assigned)
            with pytest.raises(ValueError, match="mine"):
                await consumer.poll(10)

    asyncio.run(main())


def test_sending_waits_for_room_and_other_tasks_go_on(address: str) -> None:
    """buffer.memory holds back the task that sends, and not the event loop."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def main() -> None:
        options: dict[str, Any] = {"buffer_memory": 50_000, "batch_size": 1000, "linger_ms": 0}
        ticking = asyncio.create_task(tick())
        async with Producer(address, **options) as producer:
            for number in range(3000):
                await producer.send("roomy", b"%0100d" % number)
            await producer.flush()
            assert producer.statistics().delivered == 3000
        ticking.cancel()
        taken = 0

        async def fill(producer: Producer) -> None:
            nonlocal taken
            for taken in range(1, 101):  # noqa: B007
                await producer.send("t", bytes(900))

        options = {"buffer_memory": 20_000, "max_block_ms": 60_000}
        async with Producer("127.0.0.1:1", **options) as producer:
            with pytest.raises(TimeoutError):  # it waits for room that nobody makes
                await asyncio.wait_for(fill(producer), 0.3)
            with suppress(DeliveryFailed):
                await producer.close(0)
        assert taken < 100
        options = {"buffer_memory": 20_000, "max_block_ms": 20}
        async with Producer("127.0.0.1:1", **options) as producer:
            # Either there is no room within max.block.ms, or room comes of records that fail by it.
            with pytest.raises(ClientTimeout, match=r"max\.block\.ms"):  # noqa: PT012
                futures = [await producer.send("t", bytes(900)) for _ in range(100)]
                await futures[0]
            with suppress(DeliveryFailed):
                await producer.close(0)

    asyncio.run(main())
    assert ticks > 10


def test_many_values_are_sent_in_order_and_other_tasks_go_on(address: str) -> None:
    """Where there is room for all of them, and where `send_many` waits for it."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def main() -> None:
        values = [b"%d" % number for number in range(5000)]
        async with Producer(address) as producer:
            ticking = asyncio.create_task(tick())
            assert await producer.send_many("many", values, partition=0) == 5000
            ticking.cancel()
        roomless: dict[str, Any] = {"buffer_memory": 20_000, "batch_size": 1000}
        async with Producer(address, **roomless) as producer:
            assert await producer.send_many("many", values, b"key", partition=0) == 5000
            assert await producer.send_many("many", [], partition=0) == 0
        async with Consumer(address, auto_offset_reset="earliest") as consumer:
            await consumer.assign_topics("many")
            found: list[bytes | None] = []
            while len(found) < 10_000:
                found += [record.value for record in await consumer.poll(10)]
        assert found == values * 2

    asyncio.run(main())
    assert ticks >= 5000 // 1024


def test_a_tight_loop_of_sends_starves_nobody(address: str) -> None:
    """Also where there is always room."""

    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async with Producer(address) as producer:
            for _ in range(5000):
                await producer.send("tight", b"")
            seen = ticks
        ticking.cancel()
        return seen

    assert asyncio.run(main()) >= 9


@pytest.mark.parametrize("iterates", [False, True])
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_cancelled_polls_lose_and_repeat_nothing(filled: str, iterates: bool, rounds: int) -> None:
    """Whatever task polls next, and whenever the cancellation comes."""
    rng = random.Random(7)

    async def main() -> None:
        cancelled = 0
        async with Consumer(filled, max_poll_records=7, fetch_max_wait_ms=5) as consumer:
            consumer.assign([NAME])
            for _ in range(rounds):
                consumer.seek(NAME, 0)
                got: list[int] = []
                while len(got) < 100:
                    call = consumer.__anext__() if iterates else consumer.poll(5)
                    found = await cancelled_after(rng.randrange(12), call)
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.uniform(0, 0.002))
                    if found is None:
                        cancelled += 1
                    else:
                        got += [found.offset] if iterates else [each.offset for each in found]
                assert got == list(range(100))
        assert cancelled > 2 * rounds

    asyncio.run(main())


def test_a_timeout_around_a_poll_is_a_cancellation(filled: str) -> None:
    """`asyncio.timeout` and `asyncio.wait_for` leave the consumer as it was."""

    async def main() -> None:
        async with Consumer(filled, fetch_max_wait_ms=5) as consumer:
            consumer.assign([NAME])
            consumer.seek_to_end()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await consumer.poll()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.poll(), 0.02)
            assert await consumer.poll(0) == []
            consumer.seek(NAME, 90)
            assert len(await consumer.poll(10)) == 10

    asyncio.run(main())


def test_auto_commit_waits_for_the_next_poll(filled: str) -> None:
    """CCO-06: all records of a poll are worked on until the next one. What is interrupted in
    between is read again, and auto commit, however often, passes none of it."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_records": 10}

    async def committed(group_id: str) -> int:
        async with Admin(filled) as admin:
            offsets = await admin.committed_offsets(group_id)
        return offsets[NAME].offset if NAME in offsets else 0

    async def main() -> None:
        often = {"group_id": "worked", "auto_commit_interval_ms": 1}
        async with Consumer(filled, **often, **options) as consumer:
            consumer.assign([NAME])
            assert len(await consumer.poll(10)) == 10
            for _ in range(5):
                await asyncio.sleep(0.01)
                assert await committed("worked") == 0
            assert len(await consumer.poll(10)) == 10
            until = time.monotonic() + ENDS_WITHIN_S
            while (offset := await committed("worked")) == 0:
                assert time.monotonic() < until
            assert offset == 10
        with suppress(ZeroDivisionError):
            async with Consumer(filled, group_id="broken off", **options) as consumer:
                consumer.assign([NAME])
                assert len(await consumer.poll(10)) == 10
                raise ZeroDivisionError
        assert await committed("broken off") == 0

    asyncio.run(main())


def test_two_tasks_that_poll_are_told(filled: str) -> None:
    """One polls at a time."""

    async def main() -> None:
        async with Consumer(filled) as consumer:
            consumer.assign([NAME])
            consumer.seek_to_end()
            waiting = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0.05)
            with pytest.raises(ClientError, match="one thread or task at a time"):
                await consumer.poll(0)
            await consumer.close()
            with pytest.raises(ClientClosed):
                await waiting

    asyncio.run(main())


def test_a_member_that_is_cancelled_at_every_turn_skips_nothing(filled: str) -> None:
    """In a poll, a commit or an iteration, after each number of turns of the event loop: each
    record is returned once, and what is committed was returned before."""

    async def main() -> None:
        cancelled = 0
        options: dict[str, Any] = {"max_poll_records": 30, "fetch_max_wait_ms": 5}
        async with Consumer(filled, group_id="turns", **options) as consumer:
            consumer.assign([NAME])
            for turns in range(1, 25):
                consumer.seek(NAME, 0)
                got: list[int] = []
                while len(got) < 100:
                    if found := await cancelled_after(turns, consumer.poll(5)):
                        got += [each.offset for each in found]
                    elif record := await cancelled_after(turns + 3, consumer.__anext__()):
                        got.append(record.offset)
                    else:
                        cancelled += 1
                        await asyncio.sleep(0.001)
                        if cancelled % 7 == 0:
                            got += [each.offset for each in await consumer.poll(5)]
                    await cancelled_after(turns, consumer.commit())
                    position = consumer.position(NAME)
                    assert position == len(got)
                assert got == list(range(100)), f"cancelled after {turns} turns"
                await consumer.commit()
                committed = (await consumer.committed())[NAME]
                assert committed is not None
                assert committed.offset == 100
        assert cancelled > 20

    asyncio.run(main())


def test_cancelled_sends_deliver_what_was_accepted(address: str) -> None:
    """Once, in order, whatever waits for room is cancelled."""
    rng = random.Random(11)

    async def main() -> None:
        accepted: list[int] = []
        deliveries: list[Delivery] = []
        options: dict[str, Any] = {"buffer_memory": 20_000, "linger_ms": 0}
        async with Producer(address, on_delivery=deliveries.append, **options) as producer:
            for number in range(3000):
                call = producer.send("overtaken", b"%d" % number, b"key")
                if rng.random() < 0.1:
                    taken = await cancelled_after(rng.randrange(6), call)
                else:
                    taken = await call
                if taken is not None:
                    accepted.append(number)
        stored = [int(record.value or b"") for each in deliveries for record in each.records()]
        assert stored == sorted(set(stored))
        assert set(accepted) <= set(stored)

    asyncio.run(main())


def test_a_cancelled_block_says_what_it_drops(capfd: pytest.CaptureFixture[str]) -> None:
    """It waits for nothing."""

    async def main() -> None:
        async with Producer("127.0.0.1:1") as producer:
            for _ in range(7):
                await producer.send("dropped", b"x")
            await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(main())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert "7 records were dropped" in capfd.readouterr().err


def test_an_exception_of_the_block_comes_out_with_what_failed() -> None:
    """The block's exception, with a note."""

    async def main() -> None:
        async with Producer("127.0.0.1:1", **SHORT) as producer:
            await producer.send("t", b"")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        asyncio.run(main())
    assert "1 records were not delivered" in caught.value.__notes__[0]


def test_a_cancelled_start_and_a_cancelled_close_end_the_client(address: str) -> None:
    """At whatever moment."""

    async def main() -> None:
        for turns in range(12):
            if (producer := await cancelled_after(turns, Producer(address).start())) is not None:
                await producer.close()
            producer = await Producer("127.0.0.1:1").start()
            await producer.send("t", b"")
            await cancelled_after(turns, producer.close())
            await producer.close(0)
            consumer = await Consumer(address, group_id="c").start()
            await cancelled_after(turns, consumer.close())
            await consumer.close()

    asyncio.run(main())
