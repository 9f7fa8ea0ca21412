"""A broker's registration, lease and claims, and how it asks the controller."""

import logging
from random import Random

import pytest
import trio
import trio.testing

from minibroker.broker.config import load
from minibroker.broker.controller.broker_session import BrokerSession, NodeIdTaken
from minibroker.broker.controller.cluster_id import ensure_cluster_id
from minibroker.broker.controller.context import OwnBrokerHandlers, RegistrationFacts
from minibroker.broker.controller.node import RESIGN_S_MAX, ControllerNode
from minibroker.broker.controller.producer_ids import ProducerIdsExhausted
from minibroker.broker.controller.state import BrokerRegistration
from minibroker.broker.controller.store_retry import StoreRetry
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import Delete, Put, StoreError, StoreUnavailable
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.control import AlterPartitionRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.types import Endpoint
from minibroker.testing.network import SimulatedNetwork
from minibroker.testing.store import StoreLink
from tests.unit.controller.fleet import T0, FakeBroker, Fleet, open_fleet


class FailingStore(MemoryStore):
    """A memory store whose next transactions fail, as many as `failures` says."""

    failures = 0

    async def transact(self, compare, writes):
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("no room")
        return await super().transact(compare, writes)


def lonely_node(store, **settings):
    """A node without anybody to talk to, and nothing that could take a role."""
    order_handlers = OwnBrokerHandlers(*[lambda *_: None] * 6)
    config = load(flags=settings).config
    return ControllerNode(
        config, store, SimulatedNetwork(Random(1)).host("h"), order_handlers, Random(1)
    )


REGISTRATION = RegistrationFacts(Endpoint("h", 1), "directory", 1)


async def test_a_restarted_broker_replaces_itself_at_once(autojump_clock):
    """The same data directory: the former life is over, as broker and as controller."""
    async with open_fleet(1) as fleet:
        await fleet.create()
        epoch = fleet[1].node.broker_epoch
        began_at = trio.current_time()
        await fleet[1].kill()
        await fleet[1].start()
        await fleet.settled()
        assert trio.current_time() - began_at < 0.1
        assert fleet[1].node.broker_epoch > epoch
        record = await fleet.record()
        assert (record.leader, record.isr, record.leader_epoch) == (1, (1,), 1)
        assert fleet[1].replicas.image.controller_epoch == 1


async def test_a_node_id_that_is_taken(autojump_clock):
    """Another directory under the same node id is refused while the first lives; its address is
    named; nothing of the first one changes."""
    async with open_fleet(1) as fleet:
        before = (await fleet.store.get("")).entries
        other = lonely_node(fleet.store)
        with pytest.raises(NodeIdTaken, match="broker-1:9092"):
            await other.run(REGISTRATION)
        assert (await fleet.store.get("")).entries == before


async def test_a_node_id_becomes_free_with_the_lease(autojump_clock):
    """Another directory may have the node id once the lease of the dead one has ended; what that
    one held is missing here (K2)."""
    async with open_fleet(2) as fleet:
        await fleet.create(replicas=2)
        dead = fleet[2]
        await dead.kill()
        fleet.brokers[2] = FakeBroker(fleet, 2, {})
        fleet[2].directory_id = "another"
        await fleet[2].start()
        await fleet.settled()
        assert (await fleet.record()).isr == (1,)


async def test_sessions_lost_in_a_row_are_followed_by_growing_pauses(autojump_clock):
    """After one lost session a broker registers at once, after the next ones later and later; a
    session that lasted ends that."""
    async with open_fleet(1) as fleet:
        node = fleet[1].node
        ttl_s = node.session_statistics().ttl_s

        async def lose_session() -> float:
            """How many time-outs of a session it takes to come back; a renewal finds the loss."""
            epoch, lost_at = node.broker_epoch, trio.current_time()
            await fleet.store.revoke(node._session.lease_id)
            while node.broker_epoch == epoch:  # noqa: ASYNC110 - nothing says when
                await trio.sleep(ttl_s / 100)
            return (trio.current_time() - lost_at) / ttl_s

        assert await lose_session() < 0.5
        assert 0.5 <= await lose_session() <= 1.5
        assert 1.0 <= await lose_session() <= 2.5
        await trio.sleep(11 * ttl_s)
        assert await lose_session() < 0.5
        assert 0.5 <= await lose_session() <= 1.5


async def test_belief_in_the_lease_ends_before_the_lease(autojump_clock):
    """The holder counts from when it asked, the store from when it answered."""

    class SlowStore(MemoryStore):
        async def grant(self, ttl_s):
            await trio.sleep(0.3)
            return await super().grant(ttl_s)

    node = lonely_node(SlowStore())
    assert not node.may_decide_alone(trio.current_time())
    assert node.broker_epoch == -1
    session = BrokerSession(SlowStore(), StoreRetry(1), 1.0, 0.25, Random(1))
    asked_at = trio.current_time()
    await session.register(BrokerRegistration(1, -1, Endpoint("h", 1), "d", 1, "p"))
    assert session.is_current(asked_at + 0.99)
    assert not session.is_current(asked_at + 1.0)


async def test_a_store_that_does_not_answer_holds_up_no_stop(autojump_clock, caplog):
    """A controller that leaves waits some seconds for its resignation; then its lease does it."""
    async with open_fleet(1) as fleet:
        link = StoreLink(fleet.store, Random(1))
        fleet[1].store._store = link
        await fleet.settled()
        link.hold()
        with trio.fail_after(RESIGN_S_MAX + 0.1):
            await fleet[1].node._resign()
        link.heal()
    assert "could not resign as controller: TooSlowError()" in caplog.text


async def test_a_call_without_a_controller_ends(autojump_clock):
    """Nobody is controller: an `OSError` after ten seconds; a forwarded request is answered."""
    node = lonely_node(MemoryStore())
    began_at = trio.current_time()
    with pytest.raises(OSError, match="no controller"):
        await node.call(ApiKey.ALTER_PARTITION, AlterPartitionRequest(1, 1))
    assert trio.current_time() - began_at == pytest.approx(10)


async def test_a_call_waits_for_the_next_controller(autojump_clock):
    """While no controller is elected a call waits; the next controller answers it."""
    async with open_fleet() as fleet:
        await fleet[1].kill()
        job = fleet[3].node.forward(CreateTopicsRequest((NewTopic("t", 1, 2),)))
        assert (await job.wait()).topics[0].error in (0, ErrorCode.LEADER_NOT_AVAILABLE)
        await fleet.settled()


async def test_settings_wait_for_the_next_controller(autojump_clock):
    """A killed controller that still counts as active was not asked: the next one alters them."""
    async with open_fleet() as fleet:
        await fleet.create()
        await fleet[1].kill()
        change = TopicConfigChanges("t", (ConfigChange("retention.ms", "7000"),))
        job = fleet[3].node.forward(AlterConfigsRequest((change,), is_forwarded=True))
        assert (await job.wait()).topics[0].error == 0
        await fleet.settled()


async def test_a_store_that_does_not_answer_delays(autojump_clock, caplog):
    """A job is tried again with growing pauses until the store is back; nothing is lost."""
    store = FailingStore()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(nursery, 1)
        fleet.store = store
        await fleet.add(1)
        store.failures = 5
        began_at = trio.current_time()
        with caplog.at_level(logging.WARNING):
            await fleet.create()
        assert trio.current_time() - began_at >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8
        await fleet.settled()
        await fleet[1].kill()
    assert "no room" in caplog.text


async def test_producer_ids_are_never_given_twice(autojump_clock):
    """PID-17: every broker gives ids of blocks of its own, also after a restart."""
    taken = []
    async with open_fleet() as fleet:
        for restarts in range(2):
            for broker in fleet.running:
                for _ in range(1500):
                    while (producer_id := broker.node.next_producer_id()) is None:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    taken.append(producer_id)
            if not restarts:
                await fleet[3].kill()
                await fleet[3].start()
    assert len(set(taken)) == len(taken) == 9000


async def test_producer_ids_run_out_loudly(autojump_clock):
    """A counter near 2^63 ends the broker at its start."""
    store = MemoryStore()
    await store.transact([], [Put("producer-ids", b"%d" % (2**63 - 5))])
    with pytest.raises(ProducerIdsExhausted):
        await lonely_node(store).run(REGISTRATION)


@pytest.mark.parametrize("key", ["controller", "controller-epoch", "topics/t", "brokers/2"])
async def test_an_unreadable_entry_stops_the_broker(autojump_clock, key):
    """A store whose entries make no sense is an error that names the entry, and stays as it is."""
    store = MemoryStore()
    await store.transact([], [Put(key, b"\xff{")])
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreError, match=f"entry '{key}'"), flatten_subgroups=True
    ):
        await lonely_node(store).run(REGISTRATION)
    assert (await store.get(key)).entries[key].value == b"\xff{"


async def test_a_missing_partition_stops_the_broker(autojump_clock):
    """A topic without the entry of one of its partitions is damage, not a smaller topic."""
    async with open_fleet(1) as fleet:
        await fleet.create(partitions=2)
        key = list((await fleet.store.get("partitions/")).entries)[1]
        await fleet[1].kill()
    await fleet.store.transact([], [Delete(key)])
    await trio.sleep(2)
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreError, match=f"entry '{key}'"), flatten_subgroups=True
    ):
        await lonely_node(fleet.store).run(REGISTRATION)


async def test_the_cluster_id_is_made_once(autojump_clock):
    """The first start makes a cluster id of 22 characters, every later one finds it."""
    store, ids = MemoryStore(), []

    async def ensure(seed):
        ids.append((await ensure_cluster_id(store, Random(seed))).cluster_id)

    async with trio.open_nursery() as nursery:
        for seed in range(3):
            nursery.start_soon(ensure, seed)
    assert len(set(ids)) == 1
    assert len(ids[0]) == 22


async def test_a_damaged_replica_is_reported(autojump_clock, caplog):
    """REC-03: a single replica that was found damaged has no leader; the command is named."""
    async with open_fleet(1) as fleet:
        await fleet.create()
        await fleet[1].kill()
        with caplog.at_level(logging.ERROR):
            await fleet[1].start(damaged=lambda: (T0,))
            await fleet.settled()
        assert (await fleet.record()).leader == -1
        assert "minibroker partition recover t 0" in caplog.text
        await fleet[1].kill()
        await fleet[1].start()
        await fleet.settled()
        assert (await fleet.record()).leader == 1


async def test_a_clean_stop_without_the_store(autojump_clock, caplog):
    """A store that is away delays a stop, but does not make it fail; the lease lapses."""
    async with open_fleet() as fleet:
        fleet[2].store.is_cut = True
        with caplog.at_level(logging.WARNING):
            await fleet[2].stop()
        assert "will lapse" in caplog.text
        await fleet.settled()


async def test_who_has_left_does_not_stand_again(autojump_clock):
    """Between its leave and its end a broker lets others be controller, even if there is none."""
    async with open_fleet(1) as fleet:
        await fleet[1].node.leave()
        await trio.sleep(2)
        assert not fleet[1].node.is_controller
        assert (await fleet.store.get("")).entries.keys().isdisjoint({"controller"})
        assert "brokers/1" in (await fleet.store.get("brokers/")).entries


async def test_a_call_finds_who_took_over(autojump_clock):
    """Who is asked and is not controller any more says so, and the caller looks again."""
    async with open_fleet() as fleet:
        fleet[3].store.is_cut = True
        await fleet[1].node.leave()
        job = fleet[3].node.forward(CreateTopicsRequest((NewTopic("t"),)))
        await trio.sleep(0.3)
        assert job.result is None
        fleet[3].store.is_cut = False
        assert (await job.wait()).topics[0].error == 0


async def test_a_call_does_not_wait_for_who_was_replaced(autojump_clock):
    """A5: a controller that falls silent with a request is left as soon as another is elected."""
    async with open_fleet(broker_session_timeout_ms="1000", broker_heartbeat_interval_ms="250") as (
        fleet
    ):
        fleet.network.hold("broker-1", "broker-3")
        job = fleet[3].node.forward(CreateTopicsRequest((NewTopic("t"),)))
        await trio.sleep(0.1)
        fleet[1].store.is_cut = True
        with trio.fail_after(3):
            assert (await job.wait()).topics[0].error == 0
