"""A whole broker that runs out of file descriptors, on a simulated disk that counts them."""

import pytest
import trio
import trio.testing

from minibroker.broker.machine import MachineFacts
from minibroker.client.net.channel import RpcChannel
from minibroker.protocol.constants import ACKS_ALL, ApiKey, ErrorCode
from minibroker.protocol.messages.offsets import ListOffsetsRequest, PartitionListOffsets
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.topics import DeleteTopicsRequest
from minibroker.protocol.records.record import encode_batch
from tests.sim.test_broker import Machine, consume, produce, topic

LIMIT = 64
DAY_MS = 86_400_000


def small(**settings: str) -> Machine:
    """A machine whose process may open few files."""
    machine = Machine(**settings)
    machine.files.descriptors_max = LIMIT
    machine.facts = MachineFacts("simulated", open_files_max=LIMIT)
    return machine


async def roll(channel: RpcChannel, number: int, name: str = "t") -> ErrorCode:
    """Produce a record of a time that no segment of the others may hold."""
    batch = encode_batch([(number * 8 * DAY_MS, None, b"%d" % number, ())])
    request = ProduceRequest(ACKS_ALL, 5_000, (PartitionProduce(name, 0, batch),))
    answer = await channel.call(ApiKey.PRODUCE, request)
    return ErrorCode(answer.partitions[0].error)


@pytest.mark.parametrize("flush", ["interval", "always", "never"])
async def test_segments_beyond_the_limit(
    autojump_clock: trio.testing.MockClock, flush: str
) -> None:
    """A log has more segments than the process may open files: they are written, read and found by
    time, also after a stop, a kill and a power cut."""
    machine = small(flush=flush, log_message_timestamp_after_max_ms=str(1 << 62))
    wanted = [b"%d" % number for number in range(2 * LIMIT)]
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        for number in range(2 * LIMIT):
            assert await roll(channel, number) == ErrorCode.NONE
        assert await consume(channel) == wanted
    for end in (machine.kill, machine.stop, machine.power_off):
        async with machine.running():
            async with machine.connect() as channel:
                assert await consume(channel) == wanted
                time = PartitionListOffsets("t", 0, 8 * DAY_MS * LIMIT)
                found = await channel.call(
                    ApiKey.LIST_OFFSETS, ListOffsetsRequest(partitions=(time,))
                )
                assert found.partitions[0].offset == LIMIT
            assert machine.files.descriptors <= LIMIT
            end()


async def test_no_descriptor_for_minutes(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What would open a file is refused or put off, and goes on when descriptors are free again:
    rolls, flushes, checkpoints, retention, the removal of files."""
    machine = small(
        log_retention_ms="100000",
        log_retention_check_interval_ms="10000",
        log_message_timestamp_after_max_ms=str(1 << 62),
        log_segment_delete_delay_ms="1000",
    )
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await topic(channel, "gone")
        for number in range(20):
            assert await roll(channel, number) == ErrorCode.NONE
        await channel.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(("gone",)))
        assert (await produce(channel, b"x")).error == ErrorCode.NONE
        machine.files.descriptors_max = 0
        for number in (20, 21):
            assert await roll(channel, number) == ErrorCode.KAFKA_STORAGE_ERROR
        await trio.sleep(300)
        machine.files.descriptors_max = LIMIT
        await trio.sleep(60)
        assert await roll(channel, 22) == ErrorCode.NONE
        assert (await consume(channel, 21)) == [b"22"]
    lines = [line for line in caplog.text.splitlines() if "appends are refused" in line]
    assert len(lines) == 1
    assert "ulimit -n" in lines[0]
    async with machine.running(), machine.connect() as channel:
        assert (await consume(channel, 21)) == [b"22"]


async def test_a_deleted_topic_holds_no_descriptor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its files are closed when it is deleted, long before they are removed."""
    machine = small(log_message_timestamp_after_max_ms=str(1 << 62))
    async with machine.running(), machine.connect() as channel:
        await topic(channel)
        await trio.sleep(1)  # until the names of its files are on the disk
        before = machine.files.descriptors
        await topic(channel, "u")
        for number in range(10):
            assert await roll(channel, number, "u") == ErrorCode.NONE
        assert machine.files.descriptors == before + 10
        await channel.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(("u",)))
        assert machine.files.descriptors == before
