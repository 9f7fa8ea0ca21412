"""The controller: alone in deciding which topics there are and who leads each partition.

It elects itself when it starts, by writing the controller key with the next epoch. In the same
transaction every partition gets a new leader epoch: whatever an earlier run of this broker, or an
earlier controller, still has under way is of an older epoch from then on. Every later write
compares the controller key's revision, so a controller that was replaced cannot write; it stops
the broker (`ControllerFenced`).

Requests of clients become jobs, done one after another: plan (pure, `decisions`), transaction,
orders to the replicas, the new image, the answer. Only then is the job's waiter woken, so a topic
that was answered for can be used at once, and it survives a crash of the machine.

    submit -> plan -> store.transact -> reconfigure, apply, publish, stop -> result, notify

Orders are level-triggered. At each start all roles are pushed once more, and before them the
deletions of all topics whose tombstones still stand; a broker that died between a transaction and
its orders catches up there. Tombstones go once that push was carried out.

A store that does not answer delays jobs (a request's own deadline answers its client); a store
that is damaged stops the broker.
"""

import logging
from base64 import urlsafe_b64encode
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller import decisions, entries
from minibroker.broker.controller.decisions import Plan, TopicsRequest, TopicsResponse
from minibroker.broker.controller.entries import Tombstone
from minibroker.broker.controller.producer_ids import ProducerIds, next_block
from minibroker.broker.metadata.model import (
    EPOCH_DURING_DELETE,
    BrokerImage,
    ClusterImage,
    LeaderAndIsr,
    PartitionState,
    StoppedPartition,
    StopReplica,
    TopicImage,
)
from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Delete,
    MetadataStore,
    Put,
    StoreUnavailable,
)
from minibroker.broker.replication.replicas import Obeyed
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.configs import AlterConfigsRequest, AlterConfigsResponse
from minibroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from minibroker.protocol.types import Endpoint, TopicPartition

JOBS_MAX: Final = 1_000  # waiting; one more is refused with REQUEST_TIMED_OUT
ORDER_PARTITIONS_MAX: Final = 64  # in one order while clients are served: opening logs takes time
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class ControllerFenced(Exception):
    """Another broker took the controller key; this one must not go on."""


class NextProducerIdBlock(NamedTuple):
    """The request to claim one more block of producer ids."""


class Job(Generic[Result]):
    """A request on its way through the controller; it is its own key in the purgatory.

    `result` is None until the job is done.
    """

    __slots__ = ("request", "result")

    def __init__(self, request: TopicsRequest | NextProducerIdBlock) -> None:
        self.request = request
        self.result: Result | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """How the controller's decisions reach the rest of this broker. None of them waits.

    `reconfigure(topic, overrides)` comes before the roles of a topic and at each change of its
    settings; `apply` and `stop` are the replicas'; `publish` hands out the newest image;
    `notify(job)` wakes who waits for the job.
    """

    reconfigure: Callable[[str, Mapping[str, str]], None]
    apply: Callable[[LeaderAndIsr], Sequence[Obeyed]]
    stop: Callable[[StopReplica], object]
    publish: Callable[[ClusterImage], None]
    notify: Callable[[Hashable], None]


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself when it starts: its address, and the logs it found damaged."""

    endpoint: Endpoint
    damaged: Collection[TopicPartition] = ()


class Statistics(NamedTuple):
    """Counts since the start; `waiting` is now."""

    waiting: int
    done: int
    retries: int


class Controller:
    """See the head of this module. `run` is the one task; `submit` may be called at any time."""

    def __init__(self, config: Config, store: MetadataStore, ports: Ports, rng: Random) -> None:
        self._config = config
        self._store = store
        self._ports = ports
        self._rng = rng
        self._image = ClusterImage()
        self._revision = 0  # of the controller key, as this controller wrote it
        self._jobs: deque[Job[object]] = deque()
        self._arrived = trio.Event()
        self._producer_ids = ProducerIds()
        self._done = 0
        self._retries = 0

    @overload
    def submit(self, request: CreateTopicsRequest) -> Job[CreateTopicsResponse]: ...
    @overload
    def submit(self, request: DeleteTopicsRequest) -> Job[DeleteTopicsResponse]: ...
    @overload
    def submit(self, request: AlterConfigsRequest) -> Job[AlterConfigsResponse]: ...
    def submit(self, request: TopicsRequest) -> Job[Any]:
        """Queue a request; its answer becomes the job's result. Full queues answer at once."""
        job = Job[object](request)
        if len(self._jobs) < JOBS_MAX:
            self._enqueue(job)
        else:
            what = "the controller has too many requests waiting"
            job.result = decisions.refuse(request, ErrorCode.REQUEST_TIMED_OUT, what)
        return job

    def next_producer_id(self) -> int | None:
        """A producer id that nobody had, or None while the next block is on its way."""
        producer_id = self._producer_ids.take()
        if self._producer_ids.ask():
            self._enqueue(Job(NextProducerIdBlock()))
        return producer_id

    def statistics(self) -> Statistics:
        """Counts since the start."""
        return Statistics(len(self._jobs), self._done, self._retries)

    async def run(
        self,
        registration: Registration,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Become controller, give out all roles (then started), and do the jobs as they come.

        Raises `StoreError` if the store cannot be used, `ControllerFenced` if it was replaced.
        """
        tombstones = await self._take_office(registration)
        self._push_everything(tombstones)
        if tombstones:
            await self._commit([entries.tombstone_removal(one) for one in tombstones])
        await self._claim_producer_ids()
        task_status.started()
        while True:
            while not self._jobs:
                self._arrived = trio.Event()
                await self._arrived.wait()
            job = self._jobs[0]
            job.result = await self._perform_patiently(job.request)
            self._jobs.popleft()
            self._done += 1
            self._ports.notify(job)

    def _enqueue(self, job: Job[object]) -> None:
        self._jobs.append(job)
        self._arrived.set()

    async def _take_office(self, registration: Registration) -> tuple[Tombstone, ...]:
        """Write the controller key and new leader epochs; the deletions that may be unfinished."""
        node_id = self._config.node_id
        while True:
            stored = entries.read_all(await self._store.get(""))
            epoch = stored.image.controller_epoch + 1
            image = decisions.elect_all(stored.image, self._config, node_id, registration.damaged)
            writes = [
                entries.controller_put(node_id, epoch),
                entries.broker_put(node_id, registration.endpoint),
            ]
            for topic in image.topics.values():
                writes += entries.partition_puts(topic)
            compare = [Compare(entries.CONTROLLER, stored.controller_revision)]
            outcome = await self._store.transact(compare, writes)
            if outcome.succeeded:
                break
        self._revision = outcome.revision
        self._image = replace(
            image,
            controller_id=node_id,
            controller_epoch=epoch,
            brokers={node_id: BrokerImage(node_id, registration.endpoint, outcome.revision)},
        )
        name = f"[Controller id={node_id} epoch={epoch}]"
        log.info("%s Elected, with %d topics", name, len(image.topics))
        for partition in sorted(registration.damaged):
            if self._image.partition(partition) is not None:
                log.error("%s Partition %s is offline: its log is damaged", name, partition)
        return stored.tombstones

    def _push_everything(self, tombstones: Sequence[Tombstone]) -> None:
        self._stop(
            StoppedPartition(tombstone.name, tombstone.id, partition, EPOCH_DURING_DELETE)
            for tombstone in tombstones
            for partition in range(tombstone.partition_count)
        )
        topics = self._image.topics.values()
        self._reconfigure(topics)
        self._apply(decisions.states_of(topics), is_full=True)
        self._ports.publish(self._image)

    async def _perform_patiently(self, request: TopicsRequest | NextProducerIdBlock) -> object:
        """Do a job, again and again while the store does not answer."""
        backoff_s = BACKOFF_S
        while True:
            try:
                return await self._perform(request)
            except StoreUnavailable as error:
                self._retries += 1
                log.warning("%s; trying again in %d ms", error, backoff_s * 1000)
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _perform(self, request: TopicsRequest | NextProducerIdBlock) -> object:
        plan: Plan[TopicsResponse]
        match request:
            case NextProducerIdBlock():
                return await self._claim_producer_ids()
            case CreateTopicsRequest():
                plan = decisions.plan_create(self._image, self._config, request, self._rng)
            case DeleteTopicsRequest():
                plan = decisions.plan_delete(self._image, request)
            case AlterConfigsRequest():
                plan = decisions.plan_alter(self._image, self._config, request)
        if plan.writes:
            await self._commit(plan.writes)
            return decisions.admit(plan.answer, await self._carry_out(plan))
        return plan.answer

    async def _commit(self, writes: Sequence[Put | Delete]) -> None:
        """Write, as long as this broker is still the controller."""
        compare = [Compare(entries.CONTROLLER, self._revision)]
        outcome = await self._store.transact(compare, writes)
        if not outcome.succeeded:
            raise ControllerFenced("another broker has become controller in the same store")

    async def _carry_out(self, plan: Plan[TopicsResponse]) -> Counter[str]:
        """Give the orders that follow from what was written.

        Returns of which new topics how many partitions could not be made yet: the replicas try on.
        """
        self._image = plan.image
        self._reconfigure((*plan.created, *plan.altered))
        states = decisions.states_of(plan.created)
        unmade = Counter[str]()
        for first in range(0, len(states), ORDER_PARTITIONS_MAX):
            results = self._apply(states[first : first + ORDER_PARTITIONS_MAX])
            unmade.update(result.topic_partition.topic for result in results if result.error)
            await trio.lowlevel.checkpoint()
        # Before the stop: a produce that it interrupts shall hear that the topic is gone.
        self._ports.publish(self._image)
        self._stop(decisions.stops_of(plan.deleted))
        return unmade

    async def _claim_producer_ids(self) -> range:
        """Claim the next block by compare-and-set (PID-17)."""
        while True:
            found = (await self._store.get(entries.PRODUCER_IDS)).entries
            block = next_block(entries.read_producer_ids(found))
            compare = [
                Compare(entries.PRODUCER_IDS, entries.revision_of(found, entries.PRODUCER_IDS))
            ]
            outcome = await self._store.transact(compare, [entries.producer_ids_put(block.stop)])
            if outcome.succeeded:
                self._producer_ids.add(block)
                return block

    def _reconfigure(self, topics: Iterable[TopicImage]) -> None:
        for topic in topics:
            self._ports.reconfigure(topic.name, topic.configs)

    def _apply(
        self, states: tuple[PartitionState, ...], *, is_full: bool = False
    ) -> Sequence[Obeyed]:
        return self._ports.apply(LeaderAndIsr(*self._sender(), states, is_full))

    def _stop(self, partitions: Iterable[StoppedPartition]) -> None:
        stopped = tuple(partitions)
        if stopped:
            self._ports.stop(StopReplica(*self._sender(), stopped, delete=True))

    def _sender(self) -> tuple[int, int, int]:
        """Controller id and epoch, and the epoch of the broker that is meant."""
        node_id = self._config.node_id
        return node_id, self._image.controller_epoch, self._image.brokers[node_id].epoch


async def ensure_cluster_id(store: MetadataStore, rng: Random) -> str:
    """The cluster's id, made at the first start; data directories are marked with it."""
    while True:
        found = (await store.get(entries.CLUSTER_ID)).entries
        cluster_id = entries.read_cluster_id(found)
        if cluster_id is not None:
            return cluster_id
        made = urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
        await store.transact([Compare(entries.CLUSTER_ID, ABSENT)], [entries.cluster_id_put(made)])
