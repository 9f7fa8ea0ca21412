"""Brokers that consist of a `ControllerNode` and a listener; what they are told is kept and shown.

Everything between them is real: store, network, sessions, dispatch. Only the replicas are a fake:
they take what they are told by its epochs, as real ones do, and remember how it came.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import trio

from minibroker.broker.config import load
from minibroker.broker.controller import entries
from minibroker.broker.controller.context import OwnBrokerHandlers, RegistrationFacts
from minibroker.broker.controller.node import ControllerNode
from minibroker.broker.controller.state import PartitionRecord, State
from minibroker.broker.groups.coordinator import Coordinator
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import StoreUnavailable, TransactionTooLarge
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.listener import Acceptor
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.broker.server.request_times import RequestTimes
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.coordinator import TransactionCoordinator
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    IsrMember,
    PartitionChange,
)
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreateTopicsRequest,
    NewTopic,
)
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.network import SimulatedNetwork
from tests.unit.controller.fake_replicas import FakeReplicas

PORT = 9092
ENOUGH_S = 10.0  # of virtual time, for anything that is waited for here
T0 = TopicPartition("t", 0)


class BrokerStore:
    """The shared store as one broker reaches it: it may be cut off from it. More than `writes_max`
    writes at once are too many."""

    def __init__(self, store: MemoryStore, step: Callable[[], None], writes_max: float) -> None:
        self._store = store
        self._step = step
        self.writes_max = writes_max
        self.is_cut = False

    async def _do(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        if self.is_cut:
            await trio.sleep(0.05)
            raise StoreUnavailable("cut off")
        if call == self._store.transact:
            self._step()
            await trio.lowlevel.checkpoint_if_cancelled()
        answer = await call(*arguments)
        if call == self._store.transact:
            self._step()
            await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_cut:
            raise StoreUnavailable("cut off")
        return answer

    async def get(self, prefix: str) -> Any:
        return await self._do(self._store.get, prefix)

    async def transact(self, compare: Any, writes: Any) -> Any:
        if len(writes) > self.writes_max:
            raise TransactionTooLarge(f"{len(writes)} writes")
        return await self._do(self._store.transact, compare, writes)

    async def watch(self, prefix: str, after: int) -> Any:
        return await self._do(self._store.watch, prefix, after)

    async def grant(self, ttl_s: float) -> Any:
        return await self._do(self._store.grant, ttl_s)

    async def renew(self, lease_id: int) -> None:
        await self._do(self._store.renew, lease_id)

    async def revoke(self, lease_id: int) -> None:
        await self._do(self._store.revoke, lease_id)

    async def close(self) -> None:
        raise AssertionError("whoever opened the store closes it")


class FakeBroker:
    """One broker and its directory. `start` may be called again after `kill` or `stop`."""

    def __init__(self, fleet: "Fleet", node_id: int, settings: dict[str, str]) -> None:
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.directory_id = f"directory-{node_id}"
        self.directory: dict[TopicPartition, bytes] = {}  # topic ids of the logs in it
        self.tails: dict[TopicPartition, tuple[int, int]] = {}  # their last epochs and ends
        self.claimed_epoch: int | None = None  # in what it says of its logs, instead of its own
        self.run = 0
        self.is_running = False
        self._fleet = fleet
        self._config = load(flags={"node.id": str(node_id), **settings}).config
        fleet.born += 1
        self._rng = Random(f"{fleet.seed}/{node_id}/{fleet.born}")
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def start(self, **registration: Any) -> None:
        """A new process with this directory; `registration` is what it says of its last run."""
        assert not self.is_running
        self.run += 1
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self.store = BrokerStore(self._fleet.store, self._fleet.step, self._fleet.writes_max)
        purgatory = Purgatory()
        self.replicas = FakeReplicas(self)
        order_handlers = OwnBrokerHandlers(
            self.replicas.obey_roles,
            self.replicas.stop,
            self.replicas.update_metadata,
            self.replicas.describe,
            purgatory.notify,
            self.replicas.hand_over,
        )
        network = self._fleet.network.host(self.name)
        self.node = ControllerNode(self._config, self.store, network, order_handlers, self._rng)
        said = RegistrationFacts(Endpoint(self.name, PORT), self.directory_id, self.run)
        replicas: Any = self.replicas
        may_decide_alone = self.node.may_decide_alone
        memory = RequestMemory(self._config.queued_max_request_bytes)
        services: Any = Services(
            self._config,
            self.replicas,  # type: ignore[arg-type]
            purgatory,
            self.node,
            memory,
            FetchSessions(self._rng, 10, purgatory, memory),
            Coordinator(self._config, replicas, purgatory, lambda: 0, may_decide_alone, self._rng),
            TransactionCoordinator(self._config, replicas, purgatory, lambda: 0, may_decide_alone),
            VerifiedAppends(replicas, purgatory, lambda: 0),
            RequestTimes(),
            lambda: 0,
        )
        await self._fleet.nursery.start(self._run, services, replace(said, **registration))

    async def _run(self, services: Services, said: RegistrationFacts, task_status: Any) -> None:
        self.is_running = True
        has_started = False
        listener = await self._fleet.network.host(self.name).listen(Endpoint(self.name, PORT))
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(Acceptor(services, {"PLAINTEXT": listener}).run)
                    await nursery.start(self.node.run, said)
                    has_started = True
                    task_status.started()
                    await trio.sleep_forever()
        except Exception:
            # What a dead process still stumbles over is nobody's concern.
            if not self._scope.cancel_called:
                raise
        finally:
            self.is_running = False
            self._fleet.network.stop_host(self.name)
            self._ended.set()
            if not has_started:
                task_status.started()

    def step(self) -> None:
        """An order was taken here."""
        self._fleet.step()

    def die(self) -> None:
        """As `kill`, but nobody waits for it."""
        self.is_running = False
        self._scope.cancel()

    async def kill(self) -> None:
        """The process dies; its registration stands until the lease ends."""
        self._fleet.network.stop_host(self.name)
        self._scope.cancel()
        await self._ended.wait()

    async def stop(self) -> None:
        """A clean stop."""
        await self.node.leave()
        await self.kill()
        await self.node.close()

    def leaders(self) -> dict[TopicPartition, int]:
        """Who leads, as this broker was told."""
        return {
            TopicPartition(name, partition.partition): partition.leader
            for name, topic in self.replicas.image.topics.items()
            for partition in topic.partitions
        }


class Fleet:
    """See the head of this module."""

    def __init__(self, nursery: trio.Nursery, seed: int) -> None:
        self.seed = seed
        self.nursery = nursery
        self.store = MemoryStore()
        self.writes_max = math.inf
        self.network = SimulatedNetwork(Random(seed))
        self.born = 0  # processes of two machines are never the same
        self.steps = 0
        self.dies_at = -1
        self.brokers: dict[int, FakeBroker] = {}

    def __getitem__(self, node_id: int) -> FakeBroker:
        return self.brokers[node_id]

    @property
    def running(self) -> list[FakeBroker]:
        return [broker for broker in self.brokers.values() if broker.is_running]

    @property
    def controller(self) -> FakeBroker:
        """The one broker that believes it is controller."""
        (found,) = [broker for broker in self.running if broker.node.is_controller]
        return found

    def step(self) -> None:
        """Something is done: a call of the store, or an order taken. At one of them the
        controller dies."""
        self.steps += 1
        if self.steps == self.dies_at:
            for broker in self.running:
                if broker.node.is_controller:
                    self.network.stop_host(broker.name)
                    broker.die()

    async def add(self, *node_ids: int, **settings: str) -> None:
        """Start brokers that were not there before."""
        flags = {name.replace("_", "."): value for name, value in settings.items()}
        for node_id in node_ids:
            self.brokers[node_id] = FakeBroker(self, node_id, flags)
            await self.brokers[node_id].start()
        await self.settled()

    async def create(
        self, name: str = "t", partitions: int = 1, replicas: int = 1, **c: str
    ) -> Any:
        """Make a topic, through whoever is controller."""
        configs = tuple(ConfigEntry(key.replace("_", "."), value) for key, value in c.items())
        new = NewTopic(name, partitions, replicas, configs)
        job = self.running[0].node.forward(CreateTopicsRequest((new,)))
        result = (await job.wait()).topics[0]
        assert not result.error, result
        return result

    async def alter_isr(self, leader: int, *isr: int) -> Any:
        """What the broker that leads t-0 would ask for; the answer."""
        record, topic = await self.record(), (await self.state()).topics["t"]
        change = PartitionChange(
            "t",
            topic.id,
            0,
            record.leader_epoch,
            record.partition_epoch,
            tuple(IsrMember(node) for node in isr),
        )
        node = self[leader].node
        request = AlterPartitionRequest(leader, node.broker_epoch, (change,))
        return (await node.call(ApiKey.ALTER_PARTITION, request)).partitions[0]

    async def state(self) -> State:
        """What the store says."""
        return without_pause(entries.read_state((await self.store.get("")).entries))

    async def record(self, name: TopicPartition = T0) -> PartitionRecord:
        """What the store says of a partition."""
        record = (await self.state()).partition(name)
        assert record is not None
        return record

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait on virtual time."""
        with trio.move_on_after(ENOUGH_S):
            while not await condition():  # noqa: ASYNC110 - what it asks has no event
                await trio.sleep(0.01)
            return
        raise AssertionError(f"it did not come to that: {what}; {await self.state()}")

    async def settled(self) -> None:
        """Until the registrations are admitted, and every running broker knows what the store
        says."""

        async def is_settled() -> bool:
            snapshot = await self.store.get("")
            state = without_pause(entries.read_state(snapshot.entries))
            registered = entries.read_brokers(snapshot.entries)
            controllers = [broker for broker in self.running if broker.node.is_controller]
            return (
                len(controllers) == 1
                and set(registered) == {broker.node_id for broker in self.running}
                and all(
                    state.admissions[node].epoch == registered[node].epoch
                    for node in registered
                    if node in state.admissions
                )
                and set(registered) <= set(state.admissions)
                and all(knows(broker, state, registered) for broker in self.running)
            )

        await self.until(is_settled, "settled")


def knows(broker: FakeBroker, state: State, registered: Any) -> bool:
    """Whether a broker was told all that concerns it, and nothing else is left there."""
    image = broker.replicas.image
    if {node: one.epoch for node, one in image.brokers.items()} != {
        node: one.epoch for node, one in registered.items()
    }:
        return False
    roles = {}
    if set(image.topics) != set(state.topics):
        return False
    for name, record in state.partitions():
        topic = state.topics[name.topic]
        known = image.topics[name.topic]
        if known.id != topic.id or dict(known.configs) != dict(topic.configs):
            return False
        wanted = (record.leader, record.leader_epoch, record.partition_epoch, record.isr)
        told = known.partitions[name.partition]
        if wanted != (told.leader, told.leader_epoch, told.partition_epoch, told.isr):
            return False
        if broker.node_id in record.replicas:
            roles[name] = wanted
    return roles == {
        name: (role.leader, role.leader_epoch, role.partition_epoch, role.isr)
        for name, role in broker.replicas.roles.items()
    }


@asynccontextmanager
async def open_fleet(count: int = 3, seed: int = 1, **settings: str) -> AsyncIterator[Fleet]:
    """Brokers 1 to `count`, who know each other; killed at the end."""
    async with trio.open_nursery() as nursery:
        fleet = Fleet(nursery, seed)
        await fleet.add(*range(1, count + 1), **settings)
        yield fleet
        for broker in fleet.running:
            await broker.kill()
