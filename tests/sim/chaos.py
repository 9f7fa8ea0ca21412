"""One broker under faults: producers and consumers that write down what they were told, and judges.

Two phases. In the first, faults come at random times: the process is killed or stopped in order,
the machine loses power, links are held, throttled or reset, the disk fills up. Which of them come
depends on what was promised (`Promise`): power cuts only where every ack waited for an fsync. In
the second everything is healed, and within a bounded virtual time every record must be delivered
and every consumer be at the end.

Then the judges compare the ledgers with what the broker holds: acknowledged records are there
exactly once, at the offset that was told; none is there twice, acknowledged or not; each
producer's records are in order per partition; what a consumer was shown is what is there, without
a gap and in order.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from minibroker.client import Admin, Consumer, Producer, TopicPartition
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_broker, simulate
from minibroker.testing.network import NetworkOptions

TOPIC = "numbers"
PARTITIONS = 3
PRODUCERS = 2
CONSUMERS = 2
CHAOS_S = 30.0
HEAL_S_MAX = 300.0
# Slow enough that at most times something is under way: a fault then finds something to break.
NETWORK = NetworkOptions(delay_s_min=0.001, delay_s_max=0.05)


class Promise(NamedTuple):
    """A flush mode, and whether acknowledged records survive a power cut under it."""

    flush: str
    survives_power_off: bool


PROMISES = (Promise("never", False), Promise("interval", False), Promise("always", True))


@dataclass
class Ledger:
    """What the clients were told."""

    acked: dict[TopicPartition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    sent: int = 0
    failed: int = 0
    shown: list[dict[TopicPartition, list[tuple[int, bytes]]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def take(self, delivery) -> None:
        """Called with every batch's fate."""
        if delivery.error is not None:
            self.failed += delivery.record_count
            return
        name = TopicPartition(delivery.topic, delivery.partition)
        for record in delivery.records():
            if record.offset >= 0:
                assert record.offset not in self.acked[name], f"{name} {record.offset} acked twice"
                self.acked[name][record.offset] = record.value


async def produce(
    world: SimulatedWorld, address: str, number: int, ledger: Ledger, stop: trio.Event
):
    """Send numbered records until told to stop; return when all are delivered."""
    rng = world.rng(f"producer-{number}")
    options = {"batch_size": rng.choice((200, 2000)), "linger_ms": rng.choice((0, 5, 50))}
    async with Producer(
        address,
        seams=world.seams(f"producer-{number}"),
        on_delivery=ledger.take,
        delivery_timeout_ms=600_000,
        **options,
    ) as producer:
        count = 0
        while not stop.is_set():
            for _ in range(rng.randint(1, 20)):
                value = b"%d:%d" % (number, count)
                await producer.send(TOPIC, value, partition=rng.randrange(PARTITIONS))
                count += 1
            await trio.sleep(rng.expovariate(1 / 0.2))
        await producer.flush()
    ledger.sent += count


async def consume(
    world: SimulatedWorld, address: str, number: int, ledger: Ledger, until: trio.Event
):
    """Read everything from the start; stop at the end of the log once `until` is set."""
    shown: dict[TopicPartition, list[tuple[int, bytes]]] = defaultdict(list)
    ledger.shown.append(shown)
    async with Consumer(
        address, auto_offset_reset="earliest", seams=world.seams(f"consumer-{number}")
    ) as consumer:
        await consumer.assign_topics(TOPIC)
        while True:
            is_last = until.is_set()
            records = await consumer.poll(1.0)
            for record in records:
                name = TopicPartition(record.topic, record.partition)
                shown[name].append((record.offset, record.value))
            if is_last and not records and await is_at_end(consumer):
                return


async def is_at_end(consumer: Consumer) -> bool:
    """Whether a consumer has read everything there is."""
    names = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    ends = await consumer.end_offsets(*names)
    return all(consumer.position(name) == ends[name] for name in names)


async def torment(
    world: SimulatedWorld, broker: SimulatedBroker, promise: Promise, ledger: Ledger
) -> None:
    """Do harm for a while; leave the broker running and everything healed."""
    rng = world.rng("faults")
    faults = ["kill", "kill", "stop", "reset", "hold", "throttle", "fill"]
    faults += ["power_off", "power_off"] if promise.survives_power_off else []
    hosts = [f"producer-{n}" for n in range(PRODUCERS)] + [
        f"consumer-{n}" for n in range(CONSUMERS)
    ]
    end = trio.current_time() + CHAOS_S
    while trio.current_time() < end:
        await trio.sleep(rng.expovariate(1 / 1.0))
        fault = rng.choice(faults)
        ledger.faults.append(fault)
        await inflict(fault, world, broker, rng, rng.choice(hosts))


async def inflict(
    fault: str, world: SimulatedWorld, broker: SimulatedBroker, rng: random.Random, host: str
) -> None:
    """One fault, and its end."""
    pause = rng.expovariate(1 / 1.0)
    if fault in ("kill", "stop", "power_off"):
        await {"kill": broker.kill, "stop": broker.stop, "power_off": broker.power_off}[fault]()
        await trio.sleep(pause)
        await broker.start()
    elif fault == "fill":
        broker.files.space_bytes = broker.files.used_bytes + rng.randint(0, 500)
        await trio.sleep(pause)
        broker.files.space_bytes = None
    elif fault == "reset":
        world.network.reset(host, broker.name)
    elif fault == "hold":
        source, target = rng.choice([(host, broker.name), (broker.name, host)])
        world.network.hold(source, target)
        await trio.sleep(pause)
        world.network.release(source, target)
    else:
        world.network.throttle(broker.name, host, 2_000)
        await trio.sleep(pause)
        world.network.heal()


async def run(seed: int, promise: Promise) -> Ledger:
    """Run one seed. Raise an `AssertionError` if a promise was broken."""
    world = SimulatedWorld(seed, NETWORK)
    ledger = Ledger()
    segment_bytes = str(world.rng("settings").choice((2_000, 20_000, 1_000_000)))
    settings = {
        "flush": promise.flush,
        "flush.ms": "200",
        "num.partitions": str(PARTITIONS),
        "log.segment.bytes": segment_bytes,
        "log.index.interval.bytes": "300",
    }
    async with open_broker(world, settings) as broker:
        async with Admin(broker.address, seams=world.seams("admin")) as admin:
            await admin.create_topics(TOPIC)
        stop, drained = trio.Event(), trio.Event()
        async with trio.open_nursery() as readers:
            for number in range(CONSUMERS):
                readers.start_soon(consume, world, broker.address, number, ledger, drained)
            async with trio.open_nursery() as writers:
                for number in range(PRODUCERS):
                    writers.start_soon(produce, world, broker.address, number, ledger, stop)
                await torment(world, broker, promise, ledger)
                world.network.heal()
                stop.set()
                writers.cancel_scope.deadline = trio.current_time() + HEAL_S_MAX
            assert not writers.cancel_scope.cancelled_caught, "producers do not come to an end"
            drained.set()
            readers.cancel_scope.deadline = trio.current_time() + HEAL_S_MAX
        assert not readers.cancel_scope.cancelled_caught, "consumers do not come to the end"
        stored = await read_all(world, broker.address)
    judge(ledger, stored)
    return ledger


async def read_all(
    world: SimulatedWorld, address: str
) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """What the broker holds now."""
    last = Ledger()
    drained = trio.Event()
    drained.set()
    await consume(world, address, 99, last, drained)
    return last.shown[0]


def judge(ledger: Ledger, stored: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
    """Compare what was told with what is there."""
    for name, records in stored.items():
        assert [offset for offset, _ in records] == list(range(len(records))), f"gap in {name}"
        assert len({value for _, value in records}) == len(records), f"{name} holds duplicates"
        last_of: dict[bytes, int] = {}
        for _, value in records:
            producer, _, number = value.partition(b":")
            assert last_of.get(producer, -1) < int(number), f"{name}: {value!r} is out of order"
            last_of[producer] = int(number)
    for name, acked in ledger.acked.items():
        there = dict(stored.get(name, []))
        for offset, value in acked.items():
            found = there.get(offset)
            assert found == value, f"{name} {offset}: acked {value!r}, there is {found!r}"
    assert ledger.failed == 0, "no fault lasted as long as delivery.timeout.ms"
    assert sum(map(len, stored.values())) == ledger.sent, "every record that was sent is there"
    for shown in ledger.shown:
        for name, records in shown.items():
            assert records == stored[name], f"{name}: a consumer was shown something else"


def run_seed(seed: int) -> Ledger:
    """One deterministic run; the promise goes round with the seed."""
    promise = PROMISES[seed % len(PROMISES)]

    async def main() -> Ledger:
        return await run(seed, promise)

    return simulate(main, seed)
