"""What the clients of a simulated cluster do, and write down.

Producers send numbered records with acks=all and idempotence. One consumer reads on for the whole
time, one begins anew every few seconds and so meets old records again. Others make topics, fill
and delete them. All of them must get through whatever happens: no fault lasts as long as their
time-outs, so an error that reaches them is a violation.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import trio

from minibroker.client import Admin, Consumer, Producer, TopicPartition
from minibroker.client.admin import NewTopic
from minibroker.client.errors import ClientError
from minibroker.client.producer.delivery import Delivery
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.checkers import Ledger, Shown, Violation
from tests.sim.compacted_tables import KeyedRecord

TOPIC = "numbers"
REPLICAS = 3
TIMEOUT_MS = 900_000
REREAD_S = 6.0
KEYS = 12  # of compacted topics
TOMBSTONES = 0.15  # of their records
CANCELLED = 0.3  # of the requests for reassignments
THROTTLED_RECORDS = 30
THROTTLED_S_MAX = 20.0


@dataclass
class Clients:
    """What all clients share; `stop` ends the producers, `drained` the readers. `crowd` are topics
    of one partition each, which nobody reads; `keyed` are the acknowledged records with keys.
    `movers` are the brokers between which partitions move; none move without any."""

    world: SimulatedWorld
    address: str
    partitions: int
    ledger: Ledger = field(default_factory=Ledger)
    shown: Shown = field(default_factory=Shown)
    stop: trio.Event = field(default_factory=trio.Event)
    drained: trio.Event = field(default_factory=trio.Event)
    delivered: int = 0
    crowd: Sequence[NewTopic] = ()
    movers: Sequence[int] = ()
    keyed: dict[TopicPartition, list[KeyedRecord]] = field(default_factory=dict)

    def take(self, delivery: Delivery) -> None:
        """Called with the fate of every batch."""
        if delivery.error is not None:
            raise Violation(f"not delivered to {delivery.topic}: {delivery.error!r}")
        name = TopicPartition(delivery.topic, delivery.partition)
        for record in delivery.records():
            if record.key is not None:
                known = KeyedRecord(record.offset, bytes(record.key), record.value)
                self.keyed.setdefault(name, []).append(known)
                continue
            self.ledger.note_acked(name, record.offset, bytes(record.value))
            self.delivered += 1

    def producer(self, host: str, rng: Random) -> Producer:
        """One with options drawn from `rng`."""
        return Producer(
            self.address,
            seams=self.world.seams(host),
            on_delivery=self.take,
            delivery_timeout_ms=TIMEOUT_MS,
            max_block_ms=TIMEOUT_MS,
            request_timeout_ms=rng.choice((1_000, 3_000)),
            batch_size=rng.choice((200, 2_000)),
            linger_ms=rng.choice((0, 5, 50)),
            compression_type=rng.choice(("none", "none", "lz4")),
        )

    def consumer(self, host: str) -> Consumer:
        """One that reads from the start."""
        return Consumer(
            self.address,
            auto_offset_reset="earliest",
            seams=self.world.seams(host),
            default_api_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=3_000,
        )

    def admin(self, host: str) -> Admin:
        """One that does not give up."""
        return Admin(
            self.address,
            seams=self.world.seams(host),
            default_api_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=3_000,
        )


async def produce(clients: Clients, number: int) -> None:
    """Send numbered records until told to stop; return when all are delivered."""
    host = f"producer-{number}"
    rng = clients.world.rng(host)
    numbers = count()
    async with clients.producer(host, rng) as producer:
        while not clients.stop.is_set():
            for _ in range(rng.randint(1, 10)):
                value = b"%d:%d" % (number, next(numbers))
                clients.ledger.note_sent(TOPIC, value)
                await producer.send(TOPIC, value, partition=rng.randrange(clients.partitions))
            await trio.sleep(rng.expovariate(1 / 0.2))
        await producer.flush()


async def produce_to_crowd(clients: Clients) -> None:
    """As `produce`, to any topic of the crowd."""
    host = "crowd"
    rng = clients.world.rng(host)
    numbers = count()
    async with clients.producer(host, rng) as producer:
        while not clients.stop.is_set():
            for _ in range(rng.randint(1, 10)):
                topic, value = rng.choice(clients.crowd).name, b"crowd:%d" % next(numbers)
                clients.ledger.note_sent(topic, value)
                await producer.send(topic, value, partition=0)
            await trio.sleep(rng.expovariate(1 / 0.2))
        await producer.flush()


async def produce_to_tables(clients: Clients) -> None:
    """Send records with few keys to compacted topics, some without a value."""
    host = "tables"
    rng = clients.world.rng(host)
    numbers = count()
    async with clients.producer(host, rng) as producer:
        while not clients.stop.is_set():
            for _ in range(rng.randint(1, 20)):
                topic, key = rng.choice(clients.crowd).name, b"k%d" % rng.randrange(KEYS)
                value = None if rng.random() < TOMBSTONES else b"%d" % next(numbers)
                await producer.send(topic, value, key=key, partition=0)
            await trio.sleep(rng.expovariate(1 / 0.1))
        await producer.flush()


async def trim(clients: Clients) -> None:
    """Delete records of the crowd, up to any that was acknowledged, until all is drained."""
    host, deletions = "trimmer", clients.ledger.deletions
    rng = clients.world.rng(host)
    async with clients.admin(host) as admin:
        while True:
            await trio.sleep(rng.expovariate(1 / 0.3))
            name = TopicPartition(rng.choice(clients.crowd).name, 0)
            acked = clients.ledger.acked.get(name)
            if acked and not clients.stop.is_set():
                offset = rng.choice([*acked]) + rng.randint(0, 1)
                deletions.note_asked(name, offset)
                low_watermarks = await admin.delete_records({name: offset})
                deletions.note_told(name, low_watermarks[name])


async def reassign(clients: Clients) -> None:
    """Move partitions of the topic that stays to other brokers, or cancel that, until the producers
    end. Nobody waits for a reassignment to end."""
    host = "reassigner"
    rng = clients.world.rng(host)
    async with clients.admin(host) as admin:
        while not clients.stop.is_set():
            await trio.sleep(rng.expovariate(1 / 0.7))
            name = TopicPartition(TOPIC, rng.randrange(clients.partitions))
            target = rng.sample(clients.movers, rng.choice((2, 3, 3)))
            wanted = None if rng.random() < CANCELLED else target
            with suppress(ClientError, BrokerError):
                await admin.alter_partition_reassignments({name: wanted})


async def consume(clients: Clients, number: int) -> None:
    """Read everything from the start; stop at the end of the log once all is `drained`."""
    name = f"consumer-{number}"
    async with clients.consumer(name) as consumer:
        await consumer.assign_topics(TOPIC)
        while not await read_on(clients, consumer, name):
            pass


async def reread(clients: Clients) -> None:
    """Begin at the start again and again, as a new consumer."""
    for turn in count():
        async with clients.consumer("rereader") as consumer:
            await consumer.assign_topics(TOPIC)
            end = trio.current_time() + REREAD_S
            while trio.current_time() < end or clients.drained.is_set():
                if await read_on(clients, consumer, f"rereader-{turn}"):
                    return


async def read_on(clients: Clients, consumer: Consumer, name: str) -> bool:
    """Poll once; whether that was all there will ever be."""
    is_last = clients.drained.is_set()
    records = await consumer.poll(1.0)
    for record in records:
        place = TopicPartition(record.topic, record.partition)
        clients.shown.note(name, place, record.offset, bytes(record.value))
    if records or not is_last:
        return False
    names = [TopicPartition(TOPIC, partition) for partition in range(clients.partitions)]
    ends = await consumer.end_offsets(*names)
    return all(consumer.position(each) == ends[each] for each in names)


async def churn(clients: Clients, number: int) -> None:
    """Make a topic, fill it, delete it, make it again; the last one may stay."""
    host, topic = f"churn-{number}", f"extra-{number}"
    rng = clients.world.rng(host)
    # Always as many: a broker that does not know of the new topic yet tells of the old one.
    new = NewTopic(topic, rng.randint(1, 2), REPLICAS)
    async with clients.admin(host) as admin:
        for turn in count():
            await insist(lambda: admin.create_topics(new), ErrorCode.TOPIC_ALREADY_EXISTS)
            await fill(clients, host, new, turn)
            await trio.sleep(rng.expovariate(1 / 1.0))
            if clients.stop.is_set():
                return
            clients.ledger.forget(topic)
            await insist(lambda: admin.delete_topics(topic), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def fill(clients: Clients, host: str, topic: NewTopic, turn: int) -> None:
    """Some records, all delivered."""
    rng = clients.world.rng(f"{host}/{turn}")
    async with clients.producer(host, rng) as producer:
        for number in range(rng.randint(0, 20)):
            value = b"%s.%d:%d" % (host.encode(), turn, number)
            clients.ledger.note_sent(topic.name, value)
            await producer.send(topic.name, value, partition=rng.randrange(topic.num_partitions))
        await producer.flush()


async def insist(call: Callable[[], Awaitable[object]], done: ErrorCode) -> None:
    """Do it until it is done: the answer to an earlier try may have been lost."""
    while True:
        try:
            await call()
            return
        except BrokerError as error:
            if error.code == done:
                return
            await trio.sleep(0.2)
        except ClientError:
            await trio.sleep(0.2)


async def throttle(clients: Clients) -> None:
    """Draw throttles of replication until the producers end, and take them away then: a replica
    that is copied too slowly would never be in sync."""
    host = "throttler"
    rng = clients.world.rng(host)
    async with clients.admin(host) as admin:
        while not clients.stop.is_set():
            await trio.sleep(rng.expovariate(1 / 1.5))
            with suppress(ClientError, BrokerError):
                await set_throttle(admin, clients, rng.choice((None, 0, 500, 5_000, 50_000)))
        await insist(lambda: set_throttle(admin, clients, None), ErrorCode.NONE)


async def set_throttle(admin: Admin, clients: Clients, rate: int | None) -> None:
    """Throttle all replicas of the topic that stays to so many bytes per second, or none."""
    text = None if rate is None else str(rate)
    replicas = None if rate is None else "*"
    sides = ("leader", "follower")
    await admin.alter_configs(
        {TOPIC: {f"{side}.replication.throttled.replicas": replicas for side in sides}}
    )
    await admin.alter_broker_configs(
        {
            node_id: {f"{side}.replication.throttled.rate": text for side in sides}
            for node_id in clients.movers
        }
    )


async def keep_in_sync(
    clients: Clients, isrs: Callable[[], dict[TopicPartition, set[int]]]
) -> None:
    """Without faults, write for longer than a follower may lag, under the tightest throttle: all is
    delivered, and the in-sync sets (`isrs`) stay as they are. Raises `Violation`."""
    host = "last-throttler"
    rng = clients.world.rng(host)
    async with clients.admin(host) as admin, clients.producer(host, rng) as producer:
        await insist(lambda: set_throttle(admin, clients, 0), ErrorCode.NONE)
        before = isrs()
        with trio.move_on_after(THROTTLED_S_MAX) as scope:
            for number in range(THROTTLED_RECORDS):
                value = b"throttled:%d" % number
                clients.ledger.note_sent(TOPIC, value)
                await producer.send(TOPIC, value, partition=number % clients.partitions)
                await trio.sleep(0.2)
            await producer.flush()
        if scope.cancelled_caught or isrs() != before:
            raise Violation(f"a throttle starves in-sync followers: {before}, now {isrs()}")
        await insist(lambda: set_throttle(admin, clients, None), ErrorCode.NONE)
