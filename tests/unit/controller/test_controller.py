"""The controller of a single broker, with a memory store, on virtual time."""

import logging
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from minibroker.broker.config import Config
from minibroker.broker.controller import controller as module
from minibroker.broker.controller.controller import (
    Controller,
    ControllerFenced,
    Ports,
    Registration,
    ensure_cluster_id,
)
from minibroker.broker.controller.producer_ids import ProducerIdsExhausted
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.model import EPOCH_DURING_DELETE
from minibroker.broker.metadata.store import Put, StoreError, StoreUnavailable
from minibroker.broker.replication.replicas import Obeyed
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.types import Endpoint, TopicPartition

ENDPOINT = Endpoint("127.0.0.1", 9092)


class FailingStore(MemoryStore):
    """A memory store whose next transactions fail, as many as `failures` says."""

    failures = 0

    async def transact(self, compare, writes):
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("no room")
        return await super().transact(compare, writes)


class Broker:
    """What the controller's orders arrive at: a list of them, in order."""

    def __init__(self, store, config=None, seed=1):
        self.orders = []
        self.unmade = ()
        self.image = None
        self.done = trio.Event()
        ports = Ports(
            reconfigure=lambda topic, overrides: self.note("reconfigure", topic, dict(overrides)),
            apply=lambda order: self.note("apply", order) or self.results(order),
            stop=lambda order: self.note("stop", order),
            publish=self.publish,
            notify=self.notify,
        )
        self.controller = Controller(config or Config(), store, ports, Random(seed))

    def results(self, order):
        """What the replicas say of an order: those of `unmade` have no room yet."""
        error = ErrorCode.KAFKA_STORAGE_ERROR
        names = (TopicPartition(state.topic, state.partition) for state in order.partitions)
        return [Obeyed(name, error if name in self.unmade else 0) for name in names]

    def note(self, *order):
        self.orders.append(order)

    def publish(self, image):
        self.image = image
        self.note("publish", image)

    def notify(self, job):
        self.note("notify", job)
        self.done.set()
        self.done = trio.Event()

    async def ask(self, request):
        job = self.controller.submit(request)
        while job.result is None:
            await self.done.wait()
        return job.result

    def names(self):
        """The kinds of the orders since the last call."""
        names = [order[0] for order in self.orders]
        self.orders.clear()
        return names


@asynccontextmanager
async def running(store, damaged=(), **options):
    broker = Broker(store, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.controller.run, Registration(ENDPOINT, damaged))
        yield broker
        nursery.cancel_scope.cancel()


def new(*topics):
    return CreateTopicsRequest(topics)


async def test_it_elects_itself_before_anything_else():
    """At its first start it is controller in epoch 0 and publishes an image with itself in it."""
    async with running(MemoryStore()) as broker:
        assert broker.image.controller_id == 1
        assert broker.image.controller_epoch == 0
        assert broker.image.brokers[1].endpoint == ENDPOINT
        assert broker.names() == ["apply", "publish"]


async def test_each_start_raises_every_leader_epoch():
    """A restart gives each partition, the controller and the broker a higher epoch (CTL-14)."""
    store = MemoryStore()
    async with running(store) as broker:
        await broker.ask(
            new(NewTopic("t", 2), NewTopic("u", configs=(ConfigEntry("flush", "never"),)))
        )
        first = broker.image
    async with running(store) as broker:
        second = broker.image
        kinds = [order[0] for order in broker.orders]
        (order,) = [order[1] for order in broker.orders if order[0] == "apply"]
    assert second.controller_epoch == first.controller_epoch + 1
    assert second.brokers[1].epoch > first.brokers[1].epoch
    for name in ("t", "u"):
        assert second.topics[name].id == first.topics[name].id
        assert second.topics[name].configs == first.topics[name].configs
        for old, image in zip(
            first.topics[name].partitions, second.topics[name].partitions, strict=True
        ):
            assert (image.leader, image.leader_epoch) == (1, old.leader_epoch + 1)
    assert kinds == ["reconfigure", "reconfigure", "apply", "publish"]
    assert order.is_full
    assert (order.controller_epoch, order.broker_epoch) == (1, second.brokers[1].epoch)
    assert {(state.topic, state.partition, state.leader_epoch) for state in order.partitions} == {
        ("t", 0, 1),
        ("t", 1, 1),
        ("u", 0, 1),
    }


async def test_leader_epochs_grow_from_start_to_start():
    """The raised epochs are in the store: the next start raises them further."""
    store, epochs = MemoryStore(), []
    async with running(store) as broker:
        await broker.ask(new(NewTopic("t")))
    for _ in range(3):
        async with running(store) as broker:
            epochs.append(broker.image.topics["t"].partitions[0].leader_epoch)
    assert epochs == [1, 2, 3]


async def test_a_damaged_partition_stays_offline(caplog):
    """A partition whose log was found damaged gets no leader, and that is said (REC-03)."""
    store = MemoryStore()
    async with running(store) as broker:
        await broker.ask(new(NewTopic("t", 2)))
    with caplog.at_level(logging.ERROR):
        async with running(store, damaged=[TopicPartition("t", 1)]) as broker:
            leaders = [image.leader for image in broker.image.topics["t"].partitions]
    assert leaders == [1, NO_NODE]
    assert "Partition t-1 is offline" in caplog.text


async def test_a_topic_is_there_before_it_is_answered_for():
    """Settings, roles, image, answer: in this order, once the store has it."""
    store = MemoryStore()
    async with running(store) as broker:
        broker.names()
        answer = await broker.ask(new(NewTopic("t", 3)))
        assert answer.topics[0].error == 0
        assert "topics/t" in (await store.get("topics/")).entries
        ((_, order),) = [order for order in broker.orders if order[0] == "apply"]
        assert [state.partition for state in order.partitions] == [0, 1, 2]
        assert not order.is_full
        assert broker.names() == ["reconfigure", "apply", "publish", "notify"]


async def test_a_large_topic_is_applied_in_parts():
    """The roles of many partitions are given in several orders, so that the loop goes on."""
    async with running(MemoryStore()) as broker:
        broker.names()
        await broker.ask(new(NewTopic("t", 150)))
        sizes = [len(order[1].partitions) for order in broker.orders if order[0] == "apply"]
    assert sizes == [64, 64, 22]


async def test_a_refused_request_touches_nothing():
    """A request that is refused, or only validated, is answered without a write or an order."""
    store = MemoryStore()
    async with running(store) as broker:
        revision = (await store.get("")).revision
        broker.names()
        assert (await broker.ask(new(NewTopic(".")))).topics[0].error != 0
        await broker.ask(CreateTopicsRequest((NewTopic("t"),), validate_only=True))
        assert broker.names() == ["notify", "notify"]
        assert (await store.get("")).revision == revision


async def test_a_deleted_topic_leaves_a_tombstone_until_the_next_start():
    """The name is free at once; a start deletes what still lies there, then forgets it (CTL-15)."""
    store = MemoryStore()
    async with running(store) as broker:
        created = await broker.ask(new(NewTopic("t", 2)))
        topic_id = created.topics[0].topic_id
        broker.names()
        await broker.ask(DeleteTopicsRequest(("t",)))
        stop = next(order[1] for order in broker.orders if order[0] == "stop")
        assert stop.delete
        assert [(one.topic_id, one.partition, one.leader_epoch) for one in stop.partitions] == [
            (topic_id, 0, 0),
            (topic_id, 1, 0),
        ]
        assert broker.names() == ["publish", "stop", "notify"]
        again = await broker.ask(new(NewTopic("t")))
        assert again.topics[0].topic_id != topic_id
        assert list((await store.get("tombstones/")).entries) == [f"tombstones/{topic_id.hex()}"]
    async with running(store) as broker:
        assert [order[0] for order in broker.orders[:2]] == ["stop", "reconfigure"]
        assert [
            (one.topic, one.topic_id, one.partition, one.leader_epoch)
            for one in broker.orders[0][1].partitions
        ] == [("t", topic_id, number, EPOCH_DURING_DELETE) for number in (0, 1)]
        assert dict((await store.get("tombstones/")).entries) == {}
        assert len((await store.get("partitions/")).entries) == 1


async def test_settings_reach_the_logs():
    """A changed setting is given to the replicas and is there after a restart."""
    store = MemoryStore()
    async with running(store) as broker:
        await broker.ask(new(NewTopic("t")))
        broker.names()
        changes = TopicConfigChanges("t", (ConfigChange("retention.ms", "5"),))
        answer = await broker.ask(AlterConfigsRequest((changes,)))
        assert answer.topics[0].error == 0
        assert broker.orders[0] == ("reconfigure", "t", {"retention.ms": "5"})
        assert broker.names() == ["reconfigure", "publish", "notify"]
    async with running(store) as broker:
        assert broker.image.topics["t"].configs == {"retention.ms": "5"}


async def test_requests_are_done_in_their_order():
    """Jobs submitted in one turn are done one after another: the later sees the earlier."""
    async with running(MemoryStore()) as broker:
        jobs = [broker.controller.submit(new(NewTopic("t"))) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        exists = ErrorCode.TOPIC_ALREADY_EXISTS
        assert [job.result.topics[0].error for job in jobs] == [0, exists, exists]
        assert broker.controller.statistics().done == 3


async def test_a_full_queue_answers_at_once(monkeypatch):
    """More jobs than may wait are refused with a retriable error and not remembered."""
    monkeypatch.setattr(module, "JOBS_MAX", 2)
    async with running(MemoryStore()) as broker:
        jobs = [broker.controller.submit(new(NewTopic(f"t{n}"))) for n in range(3)]
        assert [job.result is None for job in jobs] == [True, True, False]
        assert jobs[2].result.topics[0].error == ErrorCode.REQUEST_TIMED_OUT


async def test_a_store_that_does_not_answer_delays(autojump_clock, caplog):
    """A job is tried again with growing pauses until the store is back; nothing is lost."""
    store = FailingStore()
    async with running(store) as broker:
        store.failures = 7
        start = trio.current_time()
        with caplog.at_level(logging.WARNING):
            answer = await broker.ask(new(NewTopic("t")))
        pauses_s = 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1
        assert trio.current_time() - start == pytest.approx(pauses_s)
        assert (answer.topics[0].error, broker.controller.statistics().retries) == (0, 7)
    assert "no room" in caplog.text


async def test_a_replaced_controller_stops():
    """A write after another took the controller key is refused, and ends the broker."""
    store = MemoryStore()
    with pytest.RaisesGroup(ControllerFenced):
        async with running(store) as broker:
            async with running(store):
                pass
            await broker.ask(new(NewTopic("t")))
    assert dict((await store.get("topics/")).entries) == {}


async def test_producer_ids_are_never_given_twice():
    """Ids are distinct across restarts and between brokers on one store (PID-17)."""
    store, taken = MemoryStore(), []
    for _ in range(3):
        async with running(store) as broker:
            for _ in range(2500):
                producer_id = broker.controller.next_producer_id()
                if producer_id is None:
                    await trio.testing.wait_all_tasks_blocked()
                    producer_id = broker.controller.next_producer_id()
                taken.append(producer_id)
    assert None not in taken
    assert len(set(taken)) == 7500
    assert taken == sorted(taken)


async def test_an_exhausted_block_gives_none_until_the_next_arrives(autojump_clock):
    """While the store delays the next block there is no id; then ids go on (PID-17)."""
    store = FailingStore()
    async with running(store) as broker:
        store.failures = 3
        ids = [broker.controller.next_producer_id() for _ in range(1001)]
        assert ids == [*range(1000), None]
        await trio.sleep(1)
        assert broker.controller.next_producer_id() == 1000


async def test_producer_ids_run_out_loudly():
    """A counter near 2^63 ends the broker at its start."""
    store = MemoryStore()
    await store.transact([], [Put("producer-ids", b"%d" % (2**63 - 5))])
    with pytest.RaisesGroup(ProducerIdsExhausted):
        async with running(store):
            pass


@pytest.mark.parametrize("key", ["controller", "topics/t", "cluster-id"])
async def test_an_unreadable_entry_stops_the_start(key):
    """A store whose entries make no sense is an error that names the entry, and stays as it is."""
    store = MemoryStore()
    await store.transact([], [Put(key, b"\xff{")])
    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match=f"entry '{key}'")):
        async with running(store):
            pass
    assert list((await store.get("")).entries) == [key]


async def test_a_missing_partition_stops_the_start():
    """A topic without the entry of one of its partitions is damage, not a smaller topic."""
    store = MemoryStore()
    async with running(store) as broker:
        await broker.ask(new(NewTopic("t", 2)))
    key = list((await store.get("partitions/")).entries)[1]
    await store.transact([], [module.Delete(key)])
    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match=f"entry '{key}'")):
        async with running(store):
            pass


async def test_the_cluster_id_is_made_once():
    """The first start makes a cluster id of 22 characters, every later one finds it."""
    store = MemoryStore()
    ids = []

    async def ensure(seed):
        ids.append(await ensure_cluster_id(store, Random(seed)))

    async with trio.open_nursery() as nursery:
        for seed in range(5):
            nursery.start_soon(ensure, seed)
    assert len(set(ids)) == 1
    assert len(ids[0]) == 22


async def test_partitions_without_a_log_are_told_of():
    """Where the replicas have no room for a log, the topic is made, and the answer says both."""
    async with running(MemoryStore()) as broker:
        broker.unmade = {TopicPartition("t", 1), TopicPartition("t", 2)}
        answer = await broker.ask(new(NewTopic("t", 3), NewTopic("u")))
        offline, fine = answer.topics
        assert offline.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert "is made" in offline.error_message
        assert "2 of its partitions" in offline.error_message
        assert fine.error == ErrorCode.NONE
        assert broker.image.topics.keys() == {"t", "u"}
