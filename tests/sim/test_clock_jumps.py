"""A wall clock that jumps while a broker runs: nothing expires by it until it has stayed."""

import logging

import pytest
import trio

from minibroker.broker import wall_clock
from minibroker.client import Admin, Consumer, Producer
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.brokers import DescribeBrokerRequest, DescribeBrokerResponse
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_broker, simulate

SETTLE_S = 150.0
WEEKS_MS = 14 * 86_400_000
OFTEN = {
    "log.retention.check.interval.ms": "5000",
    "offsets.retention.check.interval.ms": "5000",
    "offsets.topic.replication.factor": "1",
    "producer.id.expiration.check.interval.ms": "5000",
}
T0 = TopicPartition("t", 0)


async def describe(world: SimulatedWorld, broker: SimulatedBroker) -> DescribeBrokerResponse:
    endpoint, options = Endpoint(broker.name, 9092), ChannelOptions("asker")
    async with open_channel(world.network.host("asker"), endpoint, options) as channel:
        answer = await channel.call(ApiKey.DESCRIBE_BROKER, DescribeBrokerRequest())
        assert isinstance(answer, DescribeBrokerResponse)
        return answer


@pytest.mark.parametrize("shift_ms", [WEEKS_MS, -WEEKS_MS])
def test_nothing_expires_by_a_jump_until_the_clock_has_stayed(
    shift_ms: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Records, producers and committed offsets are kept for the settling time after a jump, the
    broker says so, and after it they go by the present clock. A jump back and forth ends the
    same."""
    monkeypatch.setattr(wall_clock, "SETTLE_S", SETTLE_S)
    caplog.set_level(logging.INFO, logger=wall_clock.__name__)

    async def main() -> None:
        world = SimulatedWorld(1)
        seams = world.seams("client")
        async with open_broker(world, OFTEN) as broker, Admin(broker.address, seams=seams) as admin:

            def kept() -> tuple[int, int]:
                """The log's start, and how many producers it knows."""
                assert broker.replicas is not None
                partition = broker.replicas.get(T0)
                assert partition is not None
                return partition.log.log_start, len(partition.log.producers)

            async with Producer(broker.address, seams=seams) as producer:
                for number in range(3):
                    await producer.send_and_wait("t", b"%d" % number)
            async with Consumer(
                broker.address, seams=seams, group_id="g", auto_offset_reset="earliest"
            ) as consumer:
                await consumer.subscribe("t")
                while not await consumer.poll(1):
                    pass
            for _ in range(2):
                broker.wall_shift_ms = shift_ms - broker.wall_shift_ms
                await trio.sleep(SETTLE_S / 2)
                assert kept() == (0, 1)
                assert (await admin.committed_offsets("g"))[T0].offset == 3
                answer = await describe(world, broker)
                assert abs(abs(answer.clock_jump_ms) - WEEKS_MS) < 1000
                assert 0 < answer.clock_settles_in_ms < SETTLE_S * 1000
            broker.wall_shift_ms = WEEKS_MS
            await trio.sleep(SETTLE_S - 10)
            assert kept() == (0, 1)
            await trio.sleep(30)
            assert kept() == (3, 0)
            assert T0 not in await admin.committed_offsets("g")
            assert (await describe(world, broker)).clock_settles_in_ms == 0

    simulate(main, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3 + ["INFO"]


def test_a_broker_that_was_down_for_long_deletes_what_is_old():
    """Between a stop and a start the clock is believed."""

    async def main() -> None:
        world = SimulatedWorld(2)
        async with open_broker(world, OFTEN) as broker:
            async with Producer(broker.address, seams=world.seams("client")) as producer:
                await producer.send_and_wait("t", b"old")
            await broker.stop()
            broker.wall_shift_ms = WEEKS_MS
            await broker.start()
            await trio.sleep(30)
            assert broker.replicas is not None
            partition = broker.replicas.get(T0)
            assert partition is not None
            assert partition.log.log_start == 1

    simulate(main, 2)


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "killed"])
def test_a_start_in_the_past_is_reported(is_stopped: bool, caplog: pytest.LogCaptureFixture):
    """A machine whose clock begins in 1970 says so, after a kill as after a stop in order."""

    async def main() -> None:
        world = SimulatedWorld(3)
        async with open_broker(world) as broker:
            await (broker.stop() if is_stopped else broker.kill())
            broker.wall_shift_ms = -50 * 365 * 86_400_000
            await broker.start()
            assert (await describe(world, broker)).clock_jump_ms < -49 * 365 * 86_400_000

    simulate(main, 3)
    assert [
        record.message[:24] for record in caplog.records if record.name == wall_clock.__name__
    ] == ["The wall clock jumped by"]
