"""The whole broker on a simulated disk and network and on virtual time (rows BRK, REC)."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
import trio.testing

from minibroker.broker.app import Started, System, serve
from minibroker.broker.config import load
from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.recovery import accept_damage
from minibroker.broker.machine import MachineFacts
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import Put
from minibroker.client.net.channel import ChannelOptions, ConnectionLost, RpcChannel, open_channel
from minibroker.protocol.constants import ACKS_ALL, BATCH_HEADER_BYTES, ApiKey, ErrorCode
from minibroker.protocol.messages.brokers import DescribeBrokerRequest
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.metadata import MetadataRequest, TopicMetadata
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
)
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.records.batch import (
    NO_PRODUCER,
    ProducerStamp,
    iterate_headers,
    read_header,
    write_header,
)
from minibroker.protocol.records.compression import UNPACKED_BYTES_MAX, ZSTD, compress
from minibroker.protocol.records.record import decode_records, encode_batch
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.disk import SimulatedFiles
from minibroker.testing.network import SimulatedNetwork

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
BROKER = Endpoint("broker", 9092)


async def in_worker(function: Callable[[*Arguments], T], /, *arguments: *Arguments) -> T:
    """A simulation has no threads."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


class Machine:
    """A disk, a metadata store and a wire, and the broker that runs on them, or does not."""

    def __init__(self, seed: int = 1, **settings: str) -> None:
        self.rng = random.Random(seed)
        self.files = SimulatedFiles(self.rng)
        self.files.clock_ms = self._wall_ms
        self.store = MemoryStore()
        self.network = SimulatedNetwork(self.rng)
        self.boot_id = "boot-1"
        self.facts = MachineFacts("simulated")
        flags = {name.replace("_", "."): value for name, value in settings.items()}
        address = {"listeners": str(BROKER), "log.dirs": "/data"}
        self.config = load(flags=address | flags).config
        self._scope = trio.CancelScope()
        self._shutdown = trio.Event()

    @staticmethod
    def _wall_ms() -> int:
        return 1_700_000_000_000 + int(trio.current_time() * 1000)

    @property
    def system(self) -> System:
        return System(
            network=self.network.host("broker"),
            files=self.files,
            store=self.store,
            wall_ms=self._wall_ms,
            boot_id=self.boot_id,
            rng=self.rng,
            in_worker=in_worker,
            machine=lambda: self.facts,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Started]:
        """A broker that is stopped cleanly at the end, unless it was killed before."""
        self._shutdown = trio.Event()
        async with trio.open_nursery() as nursery:
            started = await nursery.start(self._run)
            yield started
            self._shutdown.set()

    async def _run(self, task_status: trio.TaskStatus[Started]) -> None:
        with trio.CancelScope() as self._scope:
            await serve(self.config, self.system, self._shutdown, task_status)

    def kill(self) -> None:
        """kill -9: what was written is there, connections break."""
        self.files.kill()
        self._die()

    def power_off(self) -> None:
        """The machine stops: what was not synced may be gone."""
        self.files.power_off()
        self.boot_id += "+"
        self._die()

    def _die(self) -> None:
        # In this order: no task of a dead process notices anything.
        self._scope.cancel()
        self.network.stop_host("broker")

    def stop(self) -> None:
        """SIGTERM."""
        self._shutdown.set()

    def connect(self) -> Any:
        return open_channel(self.network.host("client"), BROKER, ChannelOptions())


async def topic(channel: RpcChannel, name: str = "t") -> TopicMetadata:
    """The topic, made if it is not there."""
    metadata = await channel.call(ApiKey.METADATA, MetadataRequest((name,)))
    found: TopicMetadata = metadata.topics[0]
    return found


async def produce(
    channel: RpcChannel, *values: bytes, producer: ProducerStamp = NO_PRODUCER, name: str = "t"
) -> PartitionProduced:
    batch = encode_batch([(1, None, value, ()) for value in values], producer=producer)
    request = ProduceRequest(ACKS_ALL, 5_000, (PartitionProduce(name, 0, batch),))
    answer = await channel.call(ApiKey.PRODUCE, request)
    produced: PartitionProduced = answer.partitions[0]
    return produced


async def consume(channel: RpcChannel, offset: int = 0) -> list[bytes | None]:
    """All values from an offset to the high watermark."""
    values: list[bytes | None] = []
    while True:
        request = FetchRequest(wait_ms_max=0, partitions=(PartitionFetch("t", 0, offset),))
        (fetched,) = (await channel.call(ApiKey.FETCH, request)).partitions
        assert not fetched.error
        if not fetched.records:
            assert offset == fetched.high_watermark
            return values
        for position, header in iterate_headers(fetched.records):
            batch = fetched.records[position : position + header.size]
            values += [r.value for r in decode_records(batch, header) if r.offset >= offset]
            offset = header.next_offset


async def test_what_was_produced_is_consumed(autojump_clock: trio.testing.MockClock) -> None:
    """A topic is made on first use, records come in order, offsets go on after a restart."""
    machine = Machine()
    async with machine.running() as started:
        assert started.damaged == ()
        async with machine.connect() as channel:
            assert (await topic(channel)).partitions[0].leader_id == 1
            assert (await produce(channel, b"a", b"b")).base_offset == 0
            assert (await produce(channel, b"c")).base_offset == 2
    async with machine.running(), machine.connect() as channel:
        described = await topic(channel)
        assert described.partitions[0].leader_epoch == 1
        assert await consume(channel) == [b"a", b"b", b"c"]
        assert (await produce(channel, b"d")).base_offset == 3
        assert await consume(channel, 2) == [b"c", b"d"]


async def test_records_stamped_far_from_now_are_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """`doctor` asks for them: the topic, the last such timestamp, and how long ago it came."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await produce(channel, b"a", b"b")  # of 1970
        await trio.sleep(5)
        described = await channel.call(ApiKey.DESCRIBE_BROKER, DescribeBrokerRequest())
        [told] = described.far_stamped
        assert (told.topic, told.timestamp, told.count) == ("t", 1, 1)
        assert 5_000 <= told.age_ms < 6_000


async def test_a_bomb_is_refused_and_others_are_served(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A batch that unpacks to more than any client takes is not stored, on a small request, whose
    records lie in the buffer that connections share."""
    machine = Machine()
    bomb = bytearray(encode_batch([(1, None, b"x", ())])[:BATCH_HEADER_BYTES])
    bomb += compress(ZSTD, bytes(UNPACKED_BYTES_MAX + 1))
    header = read_header(bomb)._replace(batch_length=len(bomb) - 12, attributes=ZSTD)
    write_header(bomb, header)
    async with machine.running(), machine.connect() as channel, machine.connect() as other:
        await topic(channel)
        request = ProduceRequest(ACKS_ALL, 5_000, (PartitionProduce("t", 0, bomb),))
        sent = channel.start(ApiKey.PRODUCE, request)
        assert (await produce(other, b"meanwhile")).error == ErrorCode.NONE
        refused = (await sent.wait()).partitions[0]
        assert refused.error == ErrorCode.INVALID_RECORD
        assert "unpack to more than" in refused.error_message
        assert (await produce(channel, b"after")).error == ErrorCode.NONE
        assert await consume(channel) == [b"meanwhile", b"after"]


async def test_a_killed_broker_keeps_what_it_wrote(autojump_clock: trio.testing.MockClock) -> None:
    """A kill loses nothing that was acknowledged, and a batch that is sent again is not doubled."""
    machine = Machine()
    stamp = ProducerStamp(0, 0, 0)
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await channel.call(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest())
        first = await produce(channel, b"a", b"b", producer=stamp)
        machine.kill()
        with pytest.raises(ConnectionLost):
            await produce(channel, b"never")
    async with machine.running(), machine.connect() as channel:
        again = await produce(channel, b"a", b"b", producer=stamp)
        assert again.base_offset == first.base_offset == 0
        assert (await produce(channel, b"c", producer=ProducerStamp(0, 0, 2))).base_offset == 2
        assert await consume(channel) == [b"a", b"b", b"c"]
        answer = await channel.call(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest())
        assert answer.producer_id >= 1_000


@pytest.mark.parametrize("seed", range(10))
async def test_flush_always_survives_a_power_cut(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """N1: with flush=always no record that was acknowledged is lost when the power goes."""
    machine = Machine(seed, flush="always")
    acknowledged = []
    for life in range(4):
        async with machine.running(), machine.connect() as channel:
            await topic(channel)
            for number in range(machine.rng.randint(1, 8)):
                value = b"%d-%d" % (life, number)
                assert (await produce(channel, value)).error == 0
                acknowledged.append(value)
            assert await consume(channel) == acknowledged
            machine.power_off()


async def test_a_clean_stop_leaves_its_mark(autojump_clock: trio.testing.MockClock) -> None:
    """BRK-02, BRK-05: after a clean stop the mark and the high watermark are on the disk."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        assert "clean-shutdown" not in machine.files.list(machine.config.data_dir)
        await topic(channel)
        await produce(channel, b"a", b"b")
    assert "clean-shutdown" in machine.files.list(machine.config.data_dir)
    checkpoint = machine.files.read_bytes(machine.config.data_dir / "replication-offset-checkpoint")
    assert checkpoint.split() == [b"0", b"1", b"t", b"0", b"2"]


async def test_a_waiting_client_sees_the_connection_close(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PUR-10: a stop answers no waiting request; its client sees a closed connection, at once."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        request = FetchRequest(wait_ms_max=25_000, partitions=(PartitionFetch("t", 0),))
        reply = channel.start(ApiKey.FETCH, request)
        await trio.sleep(1)
        machine.stop()
        with pytest.raises(ConnectionLost):
            await reply.wait()
        assert trio.current_time() < 5


async def test_two_brokers_never_share_a_directory(autojump_clock: trio.testing.MockClock) -> None:
    """BRK-08: the second broker on a data directory does not start, and the first goes on."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        with pytest.raises(DataDirectoryError):
            await serve(machine.config, machine.system, trio.Event())
        await topic(channel)
        assert (await produce(channel, b"a")).error == 0


async def test_a_taken_address_leaves_the_directory_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """BRK-03: a start that fails gives everything back, and the next one works."""
    machine = Machine()
    listener = await machine.network.host("broker").listen(BROKER)
    with pytest.raises(OSError, match="cannot listen"):
        await serve(machine.config, machine.system, trio.Event())
    listener.close()
    async with machine.running(), machine.connect() as channel:
        assert (await topic(channel)).error == 0


async def test_a_failed_fsync_stops_the_broker(autojump_clock: trio.testing.MockClock) -> None:
    """N1: an fsync that failed is not tried again: it leaves serve, without a clean mark, and
    with one that the next start must not believe the page cache."""
    machine = Machine(flush="always")

    async def run() -> None:
        async with machine.running(), machine.connect() as channel:
            await topic(channel)
            await produce(channel, b"a")
            machine.files.fail("sync")
            with pytest.raises(ConnectionLost):
                await produce(channel, b"b")

    with pytest.raises(ExceptionGroup) as raised:
        await run()
    assert raised.group_contains(OSError)
    assert "clean-shutdown" not in machine.files.list(machine.config.data_dir)
    assert "tail-unsafe" in machine.files.list(machine.config.data_dir)
    async with machine.running(), machine.connect() as channel:
        await trio.sleep(1)  # what was recovered counts once it is synced again
        assert (await consume(channel))[0] == b"a"


async def test_topics_come_and_go(autojump_clock: trio.testing.MockClock) -> None:
    """RM-13: a deleted topic is gone at once, and one of the same name begins anew."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        request = CreateTopicsRequest((NewTopic("t", 2), NewTopic("bad name")))
        made, bad = (await channel.call(ApiKey.CREATE_TOPICS, request)).topics
        assert (made.error, bad.error) == (0, ErrorCode.INVALID_TOPIC_EXCEPTION)
        await produce(channel, b"old")
        waiting = channel.start(
            ApiKey.FETCH,
            FetchRequest(wait_ms_max=20_000, partitions=(PartitionFetch("t", 0, 1),)),
        )
        async with machine.connect() as other:
            await other.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(("t",)))
        (gone,) = (await waiting.wait()).partitions
        assert gone.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await produce(channel, b"x")).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await topic(channel)).topic_id != made.topic_id
        assert (await produce(channel, b"new")).base_offset == 0
        assert await consume(channel) == [b"new"]


async def test_the_house_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Retention, deleted files and checkpoints happen by themselves while the broker runs."""
    machine = Machine()
    root = machine.config.data_dir
    async with machine.running(), machine.connect() as channel:
        configs = (ConfigEntry("segment.bytes", "100"), ConfigEntry("retention.bytes", "100"))
        request = CreateTopicsRequest((NewTopic("t", configs=configs),))
        await channel.call(ApiKey.CREATE_TOPICS, request)
        for _ in range(5):
            await produce(channel, b"x" * 10)
        await trio.sleep(6)
        assert b"t 0 5" in machine.files.read_bytes(root / "replication-offset-checkpoint")
        assert machine.files.sync_count > 0
        await trio.sleep(200)
        names = machine.files.list(root / "t-0")
        assert len([name for name in names if name.endswith(".log")]) < 5
        assert not [name for name in names if name.endswith(".deleted")]
        assert b"t 0 5" in machine.files.read_bytes(root / "recovery-point-offset-checkpoint")
        asked = (PartitionFetch("t", 0, 0),)
        answer = await channel.call(ApiKey.FETCH, FetchRequest(partitions=asked))
        assert answer.partitions[0].error == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_damaged_log_is_offline_and_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """REC-03: records lost from the middle take one partition offline, with the way out named."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await topic(channel, "u")
        for _ in range(3):
            await produce(channel, b"x" * 100)
        machine.kill()
    machine.files.flip(machine.config.data_dir / "t-0" / "00000000000000000000.log", 250)
    async with machine.running() as started, machine.connect() as channel:
        assert started.damaged == (TopicPartition("t", 0),)
        assert (await topic(channel)).partitions[0].error == ErrorCode.LEADER_NOT_AVAILABLE
        refused = await produce(channel, b"y")
        assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert "partition recover t 0" in (refused.error_message or "")
        assert (await topic(channel, "u")).partitions[0].leader_id == 1


async def test_unknown_logs_are_kept_aside(autojump_clock: trio.testing.MockClock) -> None:
    """N4: a log that the metadata does not know is renamed, never deleted."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await produce(channel, b"a")
    cluster_id = await machine.store.get("cluster-id")
    machine.store = MemoryStore()
    await machine.store.transact([], [Put("cluster-id", cluster_id.entries["cluster-id"].value)])
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        assert await consume(channel) == []
    names = machine.files.list(machine.config.data_dir)
    (stray,) = [name for name in names if name.endswith("-stray")]
    log = machine.config.data_dir / stray / "00000000000000000000.log"
    assert len(machine.files.read_bytes(log)) > 0


async def test_a_lost_directory_takes_its_partition_offline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """REC-03: its topic is not served from an empty log; accepted, no offset is given out again."""
    machine = Machine()
    directory = machine.config.data_dir / "t-0"
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await produce(channel, b"a", b"b")
    machine.files.remove_tree(directory)
    for _ in range(2):
        async with machine.running() as started, machine.connect() as channel:
            assert started.damaged == (TopicPartition("t", 0),)
            assert (await produce(channel, b"x")).error == ErrorCode.KAFKA_STORAGE_ERROR
    accept_damage(machine.files, directory)
    async with machine.running() as started, machine.connect() as channel:
        assert started.damaged == ()
        assert (await produce(channel, b"c")).base_offset == 2


async def test_a_topic_made_on_a_full_disk_comes_up_by_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A partition for whose log there is no room answers KAFKA_STORAGE_ERROR, others go on, and it
    serves once there is room."""
    machine = Machine()
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        machine.files.space_bytes = 0
        request = CreateTopicsRequest((NewTopic("u"),))
        (made,) = (await channel.call(ApiKey.CREATE_TOPICS, request)).topics
        assert made.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(channel, b"x", name="u")).error == ErrorCode.KAFKA_STORAGE_ERROR
        assert await consume(channel) == []
        machine.files.space_bytes = None
        await trio.sleep(6)
        assert (await produce(channel, b"x", name="u")).base_offset == 0
