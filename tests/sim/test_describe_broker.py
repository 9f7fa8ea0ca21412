"""What a broker says of itself when it is asked, ready or not."""

import trio
import trio.testing

from minibroker.broker.machine import MachineFacts
from minibroker.client.admin import Admin
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.brokers import (
    DescribeBrokerRequest,
    DescribeBrokerResponse,
    MachineDescription,
)
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_cluster
from tests.unit.node import batch_of

SETTINGS = {
    "default.replication.factor": "2",
    "num.partitions": "1",
    "replica.lag.time.max.ms": "2000",
}


class Asker:
    """Asks brokers of one world."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._network = world.network.host("asker")

    async def call(self, broker: SimulatedBroker, api_key: ApiKey, request: object) -> object:
        """One request on a connection of its own."""
        endpoint = Endpoint(broker.name, 9092)
        async with open_channel(self._network, endpoint, ChannelOptions("asker")) as channel:
            return await channel.call(api_key, request)

    async def describe(self, broker: SimulatedBroker, **asked: bool) -> DescribeBrokerResponse:
        """What a broker says of itself."""
        request = DescribeBrokerRequest(**asked)
        answer = await self.call(broker, ApiKey.DESCRIBE_BROKER, request)
        assert isinstance(answer, DescribeBrokerResponse)
        return answer

    async def make_topic(self, broker: SimulatedBroker) -> None:
        """Have a topic `t` of one partition made."""
        await self.call(broker, ApiKey.METADATA, MetadataRequest(("t",)))

    async def wait_ready(self, broker: SimulatedBroker) -> DescribeBrokerResponse:
        """The answer that says so; the test's time-out ends an endless wait."""
        while True:
            answer = await self.describe(broker)
            if answer.is_ready:
                return answer
            await trio.sleep(0.01)


async def test_a_broker_describes_itself(autojump_clock: trio.testing.MockClock) -> None:
    """Who it is, that it is ready, how its lease is kept, and its clock; of its machine only to who
    asks for that."""
    world = SimulatedWorld(1)
    async with open_cluster(world, SETTINGS, 2) as cluster:
        second, asker = cluster.broker(2), Asker(world)
        second.wall_shift_ms = 5_000
        second.machine = MachineFacts("1.2", "3.11", "memory:", 10, 100, 7, 1024)
        answer = await asker.wait_ready(second)
        assert (answer.node_id, answer.reasons, answer.machine) == (2, (), None)
        assert second.replicas is not None
        assert answer.broker_epoch == second.replicas.broker_epoch
        assert answer.cluster_id == second.replicas.image.cluster_id != ""
        endpoint = Endpoint(second.name, 9092)
        network = world.network.host("client")
        async with open_channel(network, endpoint, ChannelOptions("client")) as channel:
            assert channel.cluster_id == answer.cluster_id
        assert answer.controller_id in (1, 2)
        assert answer.listeners == (NamedEndpoint("PLAINTEXT", "broker-2", 9092),)
        assert abs(answer.wall_ms - world.wall_ms() - 5_000) < 100
        await trio.sleep(2)
        answer = await asker.describe(second, include_machine=True)
        assert answer.session_timeout_ms == 1_000
        assert 0 <= answer.renewal_age_ms <= 300
        assert 0 < answer.renewal_us <= 10_000
        facts = ("1.2", "3.11", "memory:", "/data", 10, 100, 7, 1024, 5)
        assert answer.machine == MachineDescription(*facts)


async def test_a_broker_that_lost_its_store_answers_and_is_not_ready(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """From when its lease may have ended until it is registered, and told, again."""
    world = SimulatedWorld(1)
    async with open_cluster(world, SETTINGS, 2) as cluster:
        second, asker = cluster.broker(2), Asker(world)
        before = await asker.wait_ready(second)
        second.link.cut()
        await trio.sleep(0.7)  # less than its session
        assert (await asker.describe(second)).is_ready
        await trio.sleep(1)
        lapsed = "its registration has lapsed: it has not reached the metadata store in time"
        answer = await asker.describe(second)
        assert (answer.is_ready, answer.reasons) == (False, (lapsed,))
        assert answer.renewal_age_ms >= 1_000
        second.link.heal()
        assert (await asker.wait_ready(second)).broker_epoch > before.broker_epoch


async def test_a_broker_whose_replica_lags_is_not_ready(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """From when its leader has taken it out of the in-sync set until it is in there again. Who
    leads is ready all the while."""
    world = SimulatedWorld(1)
    async with open_cluster(world, SETTINGS, 2) as cluster:
        asker = Asker(world)
        await asker.make_topic(cluster.broker(1))
        for broker in cluster.brokers:
            await asker.wait_ready(broker)
        leaders = [broker for broker in cluster.brokers if leads(broker)]
        followers = [broker for broker in cluster.brokers if not leads(broker)]
        assert (len(leaders), len(followers)) == (1, 1)
        followers[0].files.space_bytes = followers[0].files.used_bytes
        batch = PartitionProduce("t", 0, batch_of())
        await asker.call(leaders[0], ApiKey.PRODUCE, ProduceRequest(1, 1_000, (batch,)))
        await trio.sleep(5)
        answer = await asker.describe(followers[0])
        assert answer.reasons == ("1 replica is not in sync: t-0",)
        assert (await asker.describe(leaders[0])).is_ready
        followers[0].files.space_bytes = None
        await asker.wait_ready(followers[0])


async def test_a_broker_that_hears_nobody_is_not_ready(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Cut off from its leader and the controller it is not told that it is out of sync, and finds
    out; who leads goes on being ready."""
    world = SimulatedWorld(4)
    async with open_cluster(world, SETTINGS, 2) as cluster:
        asker = Asker(world)
        await asker.make_topic(cluster.broker(1))
        for broker in cluster.brokers:
            await asker.wait_ready(broker)
        (leader,) = [broker for broker in cluster.brokers if leads(broker)]
        (follower,) = [broker for broker in cluster.brokers if not leads(broker)]
        assert (await asker.describe(follower)).controller_id == leader.node_id
        await trio.sleep(10)  # with nothing to copy its leader is not silent
        assert (await asker.describe(follower)).is_ready
        world.network.cut("broker-1", "broker-2")
        await trio.sleep(3)
        silent = f"broker {leader.node_id}, which it copies from, does not answer"
        reasons = (await asker.describe(follower)).reasons
        assert silent in reasons
        assert any(reason.startswith("the controller may have fenced it") for reason in reasons)
        assert (await asker.describe(leader)).is_ready
        world.network.heal()
        await asker.wait_ready(follower)


async def test_a_broker_that_stops_is_not_ready_while_it_still_serves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A controlled shutdown that waits for an answer of the controller."""
    world = SimulatedWorld(1)
    async with open_cluster(world, SETTINGS, 2) as cluster:
        asker = Asker(world)
        controller_id = (await asker.wait_ready(cluster.broker(1))).controller_id
        (other,) = [broker for broker in cluster.brokers if broker.node_id != controller_id]
        await asker.wait_ready(other)
        world.network.cut("broker-1", "broker-2")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.stop)
            await trio.sleep(1)
            answer = await asker.describe(other)
            assert (answer.is_ready, answer.reasons) == (False, ("it is shutting down",))
            world.network.heal()


async def test_a_controller_that_was_paused_does_not_describe_the_cluster(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Resumed, it still knows all as live and itself as the controller, and says that it may not
    be the controller any more: the cluster is described as the present one knows it."""
    world = SimulatedWorld(1)
    async with open_cluster(world, SETTINGS, 3) as cluster:
        asker = Asker(world)
        for broker in cluster.brokers:
            await asker.wait_ready(broker)
        said = {broker: await asker.describe(broker) for broker in cluster.brokers}
        (old,) = [broker for broker, answer in said.items() if answer.is_controller]
        assert {answer.controller_id for answer in said.values()} == {old.node_id}
        others = {broker.node_id for broker in cluster.brokers if broker is not old}
        old.pause()
        await trio.sleep(10)
        old.resume()
        answer = await asker.describe(old)
        assert (answer.controller_id, answer.is_controller) == (old.node_id, False)
        async with Admin(old.address, seams=world.seams("admin")) as admin:
            described = await admin.describe_cluster()
        assert described.controller_id in others
        assert described.is_from_controller


def leads(broker: SimulatedBroker) -> bool:
    """Whether it leads t-0."""
    assert broker.replicas is not None
    partition = broker.replicas.get(TopicPartition("t", 0))
    return partition is not None and partition.is_leader
