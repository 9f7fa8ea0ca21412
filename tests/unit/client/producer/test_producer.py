"""The producer against the real broker app, on a simulated network and virtual time."""

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from minibroker.client.errors import BufferFull, ClientClosed, ClientTimeout, DeliveryFailed
from minibroker.client.producer.delivery import CloseReport, Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.testing.cluster import SimulatedWorld, open_broker


class Bench:
    """A broker, and producers whose deliveries are kept."""

    def __init__(self, world: SimulatedWorld, broker) -> None:
        self.world = world
        self.broker = broker
        self.deliveries: list[Delivery] = []

    def producer(self, *, watched: bool = True, **options) -> Producer:
        return Producer(
            self.broker.address,
            seams=self.world.seams("client"),
            on_delivery=self.deliveries.append if watched else None,
            **options,
        )

    def records(self) -> dict[tuple[int, int], bytes]:
        """What was acknowledged, by partition and offset."""
        return {
            (delivery.partition, record.offset): record.value
            for delivery in self.deliveries
            if delivery.error is None
            for record in delivery.records()
        }


@asynccontextmanager
async def open_bench(**settings: str):
    world = SimulatedWorld(1)
    async with open_broker(
        world, {name.replace("_", "."): value for name, value in settings.items()}
    ) as broker:
        yield Bench(world, broker)


async def test_records_are_delivered_in_order_to_a_topic_that_is_new(autojump_clock) -> None:
    """CPR-01: also those sent before the topic's partitions were known."""
    async with open_bench(num_partitions="3") as bench:
        async with bench.producer() as producer:
            for number in range(500):
                producer.send_nowait("new", b"%d" % number, b"key-%d" % (number % 5))
            await producer.flush()
            for number in range(500, 1000):
                await producer.send("new", b"%d" % number, b"key-%d" % (number % 5))
        records = bench.records()
        assert len(records) == 1000
        for partition in range(3):
            values = [int(v) for (p, _), v in sorted(records.items()) if p == partition]
            assert values == sorted(values)


async def test_records_without_a_key_and_with_a_partition_arrive(autojump_clock) -> None:
    """Sticky ones fill batches of all partitions; a partition that is named is obeyed."""
    async with open_bench(num_partitions="4") as bench:
        async with bench.producer(batch_size=1000) as producer:
            for _ in range(400):
                producer.send_nowait("t", b"x" * 50)
            producer.send_nowait("t", b"named", partition=2)
        counts = [0] * 4
        for partition, _ in bench.records():
            counts[partition] += 1
        assert sum(counts) == 401
        assert min(counts) > 50
        assert [p for (p, _), value in bench.records().items() if value == b"named"] == [2]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_send_many_takes_all_kinds_of_batches(autojump_clock, compression: str) -> None:
    """send_many says how many it took, and they arrive in order, compressed or not."""
    async with open_bench() as bench:
        async with bench.producer(compression_type=compression) as producer:
            values = [b"value-%d" % number for number in range(3000)]
            assert producer.send_many("t", values) == 3000
        assert list(bench.records().values()) == values


async def test_one_record_can_be_waited_for(autojump_clock) -> None:
    """Who asks learns partition and offset of a record, with its headers and time stored."""
    async with open_bench() as bench, bench.producer(watched=False) as producer:
        first = await producer.send_and_wait("t", b"a", headers=(("h", b"1"),), timestamp_ms=5)
        pending = producer.send_for_delivery("t", None, b"key")
        assert (first.topic, first.partition, first.offset) == ("t", 0, 0)
        assert (await pending.wait()).offset == 1


async def test_what_is_not_bytes_is_refused_with_a_hint(autojump_clock) -> None:
    """The error names the type and what to do."""
    async with open_bench() as bench, bench.producer() as producer:
        with pytest.raises(TypeError, match=r"not str; encode it first"):
            producer.send_nowait("t", "text")
        with pytest.raises(TypeError, match=r"a key is bytes"):
            producer.send_nowait("t", b"", 5)
        with pytest.raises(TypeError, match=r"a header"):
            producer.send_nowait("t", b"", headers=(("h", "text"),))
        producer.send_nowait("t", bytearray(b"like bytes"))


async def test_a_misspelt_option_of_a_record_is_refused(autojump_clock) -> None:
    """The error names those that there are. Nothing is sent."""
    options: Any = {"header": ()}
    async with open_bench() as bench, bench.producer() as producer:
        expected = "no option 'header': it has headers, partition, timestamp_ms"
        with pytest.raises(TypeError, match=expected):
            await producer.send_and_wait("t", b"", **options)
        with pytest.raises(TypeError, match=expected):
            producer.send_for_delivery("t", b"", **options)
        assert not producer.statistics().bytes_held


@pytest.mark.parametrize(
    ("error", "topic", "wrong"),
    [
        (ValueError, "t", {"timestamp_ms": 2**63}),
        (ValueError, "t", {"timestamp_ms": -1}),
        (ValueError, "t", {"headers": (("lone \ud800", b""),)}),
        (ValueError, "lone \ud800", {}),
        (ValueError, "t", {"partition": -1}),
        (TypeError, "t", {"timestamp_ms": 1.5}),
        (TypeError, "t", {"partition": "0"}),
        (TypeError, "t", {"partition": True}),
        (TypeError, "", {}),
    ],
)
async def test_a_record_that_no_batch_can_hold_harms_no_other(
    autojump_clock, error: type[Exception], topic: str, wrong: dict[str, object]
) -> None:
    """It is refused at its own call, before and after the topic is known; the rest is delivered."""
    async with open_bench() as bench:
        async with bench.producer() as producer:
            for value in (b"one", b"two"):
                producer.send_nowait("t", value)
                with pytest.raises(error):
                    producer.send_nowait(topic, b"wrong", **wrong)
                await producer.flush()
        assert list(bench.records().values()) == [b"one", b"two"]


async def test_a_record_that_is_too_large_is_refused_at_once(autojump_clock) -> None:
    """CPR: larger than max.request.size can never be sent."""
    async with open_bench() as bench, bench.producer(max_request_size=2000) as producer:
        with pytest.raises(ValueError, match=r"max\.request\.size"):
            producer.send_nowait("t", bytes(2000))
        with pytest.raises(ValueError, match=r"max\.request\.size"):
            producer.send_many("t", [bytes(2000)])


async def test_a_record_larger_than_a_batch_is_sent_alone(autojump_clock) -> None:
    """batch.size limits how much waits, not how large a record may be."""
    async with open_bench() as bench:
        async with bench.producer(batch_size=500) as producer:
            producer.send_nowait("t", b"small")
            producer.send_nowait("t", bytes(100_000))
            producer.send_nowait("t", b"small")
        assert [len(value) for value in bench.records().values()] == [5, 100_000, 5]


async def test_a_partition_that_does_not_exist_is_an_error(autojump_clock) -> None:
    """Known before: refused at send. Not known before: the delivery fails with that reason."""
    async with open_bench() as bench, bench.producer() as producer:
        producer.send_nowait("t", b"early", partition=7)
        await producer.send_and_wait("t", b"x")
        await producer.flush()
        assert ["no t-7" in str(d.error) for d in bench.deliveries] == [True, False]
        with pytest.raises(ValueError, match="no t-7"):
            producer.send_nowait("t", b"late", partition=7)


async def test_delivery_timeout_holds_while_nothing_is_known_of_a_topic(autojump_clock) -> None:
    """No broker answers: the record is given up in its time, however long max.block.ms is."""
    async with open_bench() as bench:
        await bench.broker.kill()
        start = trio.current_time()
        with pytest.raises(DeliveryFailed, match=r"delivery\.timeout\.ms"):
            async with bench.producer(
                watched=False, delivery_timeout_ms=2000, request_timeout_ms=1000
            ) as producer:
                await producer.send("t", b"x")
        assert trio.current_time() - start < 3


async def test_a_topic_that_may_not_exist_fails_what_waits_for_it(autojump_clock) -> None:
    """The error is the broker's and names the topic; the producer goes on."""
    async with open_bench(auto_create_topics_enable="false") as bench:  # noqa: SIM117
        async with bench.producer(watched=False, max_block_ms=2000) as producer:
            producer.send_nowait("missing", b"x")
            with pytest.raises(DeliveryFailed, match="missing"):
                await producer.flush()
            with pytest.raises((BrokerError, ClientTimeout), match="missing"):
                await producer.send_and_wait("missing", b"x")


async def test_full_memory_refuses_and_gives_room_again(autojump_clock) -> None:
    """CPR-14: BufferFull takes nothing; room() returns when batches are done."""
    async with open_bench() as bench:
        async with bench.producer(buffer_memory=10_000, batch_size=1000) as producer:
            taken = 0
            with pytest.raises(BufferFull):  # noqa: PT012
                while True:
                    producer.send_nowait("t", b"%04d" % taken + bytes(96))
                    taken += 1
            assert taken < 110
            await producer.room()
            producer.send_nowait("t", b"%04d" % taken)
        assert len(bench.records()) == taken + 1
        assert producer.statistics().bytes_held == 0


async def test_room_that_does_not_come_is_a_time_out(autojump_clock) -> None:
    """CPR-14: `send` waits max.block.ms for memory, then says so; nothing is queued."""
    async with open_bench() as bench:
        bench.world.network.hold("client", "broker-1")
        async with bench.producer(
            buffer_memory=5000, batch_size=1000, max_block_ms=500
        ) as producer:
            with pytest.raises(ClientTimeout, match=r"max\.block\.ms"):  # noqa: PT012
                for _ in range(100):
                    await producer.send("t", bytes(100))
            bench.world.network.release("client", "broker-1")


async def test_a_tight_loop_of_sends_lets_the_sender_run(autojump_clock) -> None:
    """`await send` reaches a checkpoint with each ready batch, so batches leave meanwhile."""
    async with open_bench() as bench:
        async with bench.producer() as producer:
            await producer.send_and_wait("t", b"first")
            for _ in range(20_000):
                await producer.send("t", bytes(100))
            assert producer.statistics().delivered > 0 or producer.statistics().bytes_held > 0
            before = bench.deliveries[:]
        assert sum(d.record_count for d in bench.deliveries) == 20_001
        assert len(bench.deliveries) > len(before) or before


async def test_a_killed_broker_costs_nothing_but_time(autojump_clock) -> None:
    """CPR-03, R1, R2: retries across a restart store each record once and in order."""
    async with open_bench() as bench:
        async with bench.producer() as producer, trio.open_nursery() as nursery:

            async def restart() -> None:
                for _ in range(3):
                    await trio.sleep(0.3)
                    await bench.broker.kill()
                    await trio.sleep(0.5)
                    await bench.broker.start()

            nursery.start_soon(restart)
            for number in range(3000):
                await producer.send("t", b"%d" % number)
                await trio.sleep(0.001)
        values = [int(value) for _, value in sorted(bench.records().items())]
        assert values == list(range(3000))


async def test_close_returns_in_time_and_says_what_was_not_delivered(autojump_clock) -> None:
    """CPR-15: with the broker out of reach, close gives up and counts."""
    async with open_bench() as bench, bench.producer(watched=False) as producer:
        await producer.send_and_wait("t", b"delivered")
        bench.world.network.hold("client", "broker-1")
        producer.send_nowait("t", b"not delivered")
        start = trio.current_time()
        report = await producer.close(2)
        assert trio.current_time() - start == pytest.approx(2, abs=0.01)
        assert report == CloseReport(delivered=1, failed=0, undelivered=1)
        with pytest.raises(ClientClosed):
            producer.send_nowait("t", b"late")
        assert await producer.close() == report, "closing again says the same"


async def test_failures_that_nobody_saw_are_raised_at_the_end(autojump_clock) -> None:
    """A send cannot get lost silently: delivery.timeout.ms over, `async with` raises."""
    async with open_bench() as bench:
        with pytest.raises(DeliveryFailed, match=r"delivery\.timeout\.ms"):  # noqa: PT012
            async with bench.producer(
                watched=False, delivery_timeout_ms=1000, request_timeout_ms=500
            ) as producer:
                await producer.send_and_wait("t", b"x")
                bench.world.network.hold("client", "broker-1")
                producer.send_nowait("t", b"lost")


async def test_failures_that_somebody_saw_are_not_raised_again(autojump_clock) -> None:
    """Who waited for the record was told."""
    async with (
        open_bench() as bench,
        bench.producer(watched=False, delivery_timeout_ms=1000, request_timeout_ms=500) as producer,
    ):
        await producer.send_and_wait("t", b"x")
        bench.world.network.hold("client", "broker-1")
        with pytest.raises(ClientTimeout):
            await producer.send_and_wait("t", b"lost")


async def test_cancellation_inside_the_block_does_not_hang(autojump_clock) -> None:
    """A cancelled program ends at once, whatever is undelivered."""
    async with open_bench() as bench:
        start = trio.current_time()
        with trio.move_on_after(1):
            async with bench.producer() as producer:
                await producer.send_and_wait("t", b"x")
                bench.world.network.hold("client", "broker-1")
                producer.send_nowait("t", b"never")
                await trio.sleep_forever()
        assert trio.current_time() - start < 2
        assert isinstance(bench.deliveries[-1].error, ClientClosed)


async def test_an_error_in_the_block_comes_out_as_it_is(autojump_clock) -> None:
    """No group around it, and what was sent before is still delivered."""
    async with open_bench() as bench:
        with pytest.raises(KeyError):  # noqa: PT012
            async with bench.producer() as producer:
                producer.send_nowait("t", b"sent")
                raise KeyError("mine")
        assert list(bench.records().values()) == [b"sent"]


async def test_one_option_writes_a_ledger(autojump_clock, tmp_path: Path) -> None:
    """audit: each record acknowledged has its line, with the offset."""
    path = tmp_path / "ledger"
    async with open_bench() as bench, bench.producer(watched=False, ledger=path) as producer:
        assert producer.send_many("t", [b"a", b"b"]) == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()][1:-1]
    assert [(line["value"], line["offset"]) for line in lines] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_every_kind_of_acks_delivers(autojump_clock, acks: str) -> None:
    """With acks=0 the offset is not known, else it is."""
    async with open_bench() as bench:
        async with bench.producer(acks=acks) as producer:
            for number in range(100):
                await producer.send("t", b"%d" % number)
        assert sum(d.record_count for d in bench.deliveries) == 100
        assert (bench.deliveries[0].base_offset == -1) == (acks == "0")


async def test_a_batch_too_large_for_the_topic_is_split(autojump_clock) -> None:
    """CPR-11: and a single record that is too large fails alone, with the broker's reason."""
    async with open_bench(message_max_bytes="1000") as bench:
        async with bench.producer() as producer:
            for number in range(200):
                producer.send_nowait("t", b"%03d" % number + bytes(40))
            producer.send_nowait("t", bytes(5000))
            producer.send_nowait("t", b"after")
        values = [value[:3] for _, value in sorted(bench.records().items())]
        assert values == [b"%03d" % number for number in range(200)] + [b"aft"]
        failed = [d for d in bench.deliveries if d.error is not None]
        assert [d.record_count for d in failed] == [1]
        assert isinstance(failed[0].error, BrokerError)
        assert failed[0].error.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_ends_the_block_comes_out_as_it_is(
    autojump_clock, kind: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """`sys.exit` and an exception deliver first; an interrupt waits for nothing, and says so."""
    async with open_bench() as bench:
        error = kind(3)
        with pytest.raises(kind) as caught:  # noqa: PT012
            async with bench.producer(linger_ms=1000) as producer:
                await producer.send_and_wait("t", b"0")
                for number in range(5):
                    producer.send_nowait("t", b"%d" % number)
                raise error
        assert caught.value is error
        delivered = sum(each.record_count for each in bench.deliveries if each.error is None)
        waits = kind in (ValueError, SystemExit)
        assert delivered == (6 if waits else 1)
        assert ("5 records were dropped" in capsys.readouterr().err) == (not waits)


async def test_a_cancelled_block_says_what_it_dropped(
    autojump_clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """And waits for nothing."""
    async with open_bench() as bench:
        with trio.CancelScope() as scope:
            async with bench.producer(linger_ms=1000) as producer:
                await producer.send_and_wait("t", b"0")
                producer.send_nowait("t", b"1")
                scope.cancel()
                await trio.sleep(1)
    assert capsys.readouterr().err.count("1 record was dropped") == 1


async def test_sys_exit_says_that_records_were_not_delivered(autojump_clock) -> None:
    """Its exit code might say that all is well."""
    world = SimulatedWorld(1)
    short = {"delivery_timeout_ms": 60, "request_timeout_ms": 50, "linger_ms": 1}
    with pytest.raises(DeliveryFailed):  # noqa: PT012
        async with Producer("nobody:1", seams=world.seams("client"), **short) as producer:
            producer.send_nowait("t", b"lost")
            raise SystemExit(0)


async def test_a_flush_beside_a_close_that_gives_up_raises(autojump_clock) -> None:
    """It cannot say that all was delivered."""
    world = SimulatedWorld(1)
    async with Producer("nobody:1", seams=world.seams("client")) as producer:
        producer.send_nowait("t", b"lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.close, 0.1)
            with pytest.raises(ClientClosed, match="1 records given up"):
                await producer.flush()
