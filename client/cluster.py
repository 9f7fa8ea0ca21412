"""What a client knows of the cluster, and the way to each broker.

One task keeps the metadata: it asks any broker that answers, when somebody needs to know more
(`request_refresh`), and every `metadata.max.age.ms`. A leader is believed by its epoch: what was
learnt from a newer epoch is never replaced by an older one, whether it came in metadata or as a
hint in the answer to a request.

Nobody is waited for who need not be. A broker that cannot be reached delays only those who want
that one; where any broker will do, the next is tried a quarter of a second after the last, and the
first that answers is taken. Calls that need an answer give up after the client's patience (its
`max.block.ms` or `default.api.timeout.ms`) with a `ClientTimeout` that names who was asked.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from minibroker.client.channel import ConnectionLost, RpcChannel
from minibroker.client.errors import ClientTimeout, error_code
from minibroker.client.links import JITTER, REQUESTS, Links
from minibroker.client.options import ClientOptions, Seams
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import RETRIABLE, BrokerError
from minibroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from minibroker.protocol.types import Endpoint, TopicPartition

# How long one broker may keep the others from being asked.
NEXT_BROKER_AFTER_S: Final = 0.25
METADATA_PATIENCE_S: Final = 3.0
# Between two refreshes that brought nothing new.
REFRESH_PAUSE_S: Final = 0.02
REFRESH_PAUSE_S_MAX: Final = 0.2


class Leader(NamedTuple):
    """Who leads a partition, in which epoch. `node_id` is -1 while nobody does."""

    node_id: int
    leader_epoch: int


_NO_LEADER: Final = Leader(NO_NODE, NO_EPOCH)


class ClusterStatistics(NamedTuple):
    """What the client knows, and how often it asked."""

    broker_count: int
    topic_count: int
    refresh_count: int


class Cluster:
    """Made by `open_cluster`."""

    def __init__(self, options: ClientOptions, seams: Seams) -> None:
        self.options = options
        self.seams = seams
        self._links = Links(options, seams)
        self._endpoints: dict[int, Endpoint] = {}
        self._wanted: dict[str, None] = {}  # the topics that are asked for, in order
        self._topics: dict[str, TopicMetadata] = {}
        self._errors: dict[str, ErrorCode] = {}  # of topics, in the last answer
        self._leaders: dict[TopicPartition, Leader] = {}
        self._error: Exception | None = None  # why the last try to ask failed
        self._refresh_wanted = trio.Event()
        self._refreshes_begun = 0
        self._refreshes_done = 0
        self._changed = trio.lowlevel.ParkingLot()

    # -- what is known; plain calls

    def leader_of(self, topic_partition: TopicPartition) -> Leader | None:
        """The leader and its epoch; None while there is none, or it is not known."""
        leader = self._leaders.get(topic_partition)
        return None if leader is None or leader.node_id == NO_NODE else leader

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is not known."""
        known = self._topics.get(topic)
        return len(known.partitions) if known else None

    def statistics(self) -> ClusterStatistics:
        """What is known now."""
        return ClusterStatistics(len(self._endpoints), len(self._topics), self._refreshes_done)

    def update_leader(
        self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int
    ) -> None:
        """Take a hint from an answer, if it is newer than what is known."""
        known = self._leaders.get(topic_partition, _NO_LEADER)
        if leader_id == NO_NODE or leader_epoch <= known.leader_epoch:
            return
        self._leaders[topic_partition] = Leader(leader_id, leader_epoch)
        if leader_id not in self._endpoints:
            self.request_refresh()
        self._changed.unpark_all()

    def request_refresh(self) -> None:
        """Have the metadata asked for again, soon."""
        self._refresh_wanted.set()

    def want(self, topic: str) -> None:
        """Have a topic's metadata asked for, soon; nobody waits for them."""
        self._wanted[topic] = None
        self.request_refresh()

    async def wait_changed(self) -> None:
        """Until something about brokers, topics or leaders was learnt."""
        await self._changed.park()

    # -- what may have to be asked for

    async def topic(self, name: str) -> TopicMetadata:
        """A topic's metadata, which creates the topic where client and broker allow that.

        Raises `BrokerError` where it cannot exist, or does not and may not be created, and
        `ClientTimeout`.
        """
        error = ErrorCode.NONE
        with trio.move_on_after(self.options.patience_ms / 1000):
            while (known := self._topics.get(name)) is None:
                self._wanted[name] = None
                await self.refreshed()
                error = self._errors.get(name, ErrorCode.NONE)
                if name not in self._topics and self._is_final(error):
                    break
            else:
                return known
        self._wanted.pop(name, None)
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise self._no_topic(name)
        if error != ErrorCode.NONE:
            raise BrokerError(error, f"topic {name!r}")
        raise self.timeout()

    def why_missing(self, name: TopicPartition) -> BrokerError | None:
        """The error for a partition that does not exist, as far as is known; None if it may."""
        count = self.partition_count(name.topic)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if count is None:
            return self._no_topic(name.topic) if self._errors.get(name.topic) == unknown else None
        if name.partition < count:
            return None
        text = f"topic {name.topic!r} has {count} partitions, numbered from 0: there is no {name}"
        return BrokerError(unknown, text)

    def _no_topic(self, name: str) -> BrokerError:
        text = f"there is no topic {name!r}, and this client may not create it: create it first"
        if self.options.may_create_topics:
            text = (
                f"there is no topic {name!r}, and asking for it did not create it:"
                " create it first (auto.create.topics.enable may be off)"
            )
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    async def refreshed(self) -> None:
        """Until an answer is there that was asked for after this call. Raises `ClientTimeout`."""
        awaited = self._refreshes_begun + 1
        self.request_refresh()
        with trio.move_on_after(self.options.patience_ms / 1000):
            while self._refreshes_done < awaited:
                await self._changed.park()
            return
        raise self.timeout()

    async def channel(self, node_id: int, lane: str = REQUESTS) -> RpcChannel:
        """An open channel to one broker. Raises `ConnectionLost` if the next try fails."""
        endpoint = self._endpoints.get(node_id)
        if endpoint is None:
            self.request_refresh()
            await trio.sleep(REFRESH_PAUSE_S)
            raise ConnectionLost(f"broker {node_id} is not known to be alive")
        return await self._links.connect(endpoint, lane)

    async def any_channel(self, avoid: RpcChannel | None = None) -> RpcChannel:
        """An open channel to whoever answers, not `avoid` if there is another broker.

        Raises `ClientTimeout`.
        """
        turn = self.seams.rng.randrange(len(self._candidates()))
        with trio.move_on_after(self.options.patience_ms / 1000):
            while True:
                endpoints = self._candidates()
                found = self._least_loaded(avoid if len(endpoints) > 1 else None)
                if found is not None:
                    return found
                turn += 1
                link = self._links.link(endpoints[turn % len(endpoints)], REQUESTS)
                if not link.is_open:
                    self._links.want(link)
                with trio.move_on_after(NEXT_BROKER_AFTER_S):
                    await self._links.changed.park()
        raise self.timeout()

    def _least_loaded(self, avoid: RpcChannel | None) -> RpcChannel | None:
        open_channels = [
            link.channel
            for link in self._links.open_links(REQUESTS)
            if link.channel is not None and link.channel is not avoid
        ]
        return min(open_channels, key=lambda channel: channel.statistics().in_flight, default=None)

    def _candidates(self) -> list[Endpoint]:
        """Whom to ask: the brokers that were alive last, then those named at the start."""
        return list(dict.fromkeys([*self._endpoints.values(), *self.options.bootstrap_servers]))

    def timeout(self, last: Exception | None = None) -> ClientTimeout:
        """The error for an answer that did not come, with whom was asked and what they said."""
        names = ", ".join(map(str, self._candidates()))
        text = f"no answer from {names} within {self.options.patience_ms} ms"
        errors = [
            link.error
            for link in (self._links.link(each, REQUESTS) for each in self._candidates())
            if link.error is not None
        ]
        last = last or self._error or (errors[-1] if errors else None)
        return ClientTimeout(f"{text}; last error: {last}" if last else text)

    # -- the task that asks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections and metadata, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._links.run)
            task_status.started()
            await self._keep_metadata()

    async def _keep_metadata(self) -> None:
        pause = REFRESH_PAUSE_S
        while True:
            with trio.move_on_after(self.options.metadata_max_age_ms / 1000):
                await self._refresh_wanted.wait()
            self._refresh_wanted = trio.Event()
            self._refreshes_begun += 1
            before = (self._endpoints, tuple(self._wanted), dict(self._leaders))
            self._take_over(await self._ask())
            self._refreshes_done = self._refreshes_begun
            self._changed.unpark_all()
            if before == (self._endpoints, tuple(self._wanted), self._leaders):
                await trio.sleep(pause * self.seams.rng.uniform(1 - JITTER, 1 + JITTER))
                pause = min(2 * pause, REFRESH_PAUSE_S_MAX)
            else:
                pause = REFRESH_PAUSE_S

    async def _ask(self) -> MetadataResponse:
        """An answer, from whoever gives one, however long it takes."""
        avoid: RpcChannel | None = None
        while True:
            try:
                channel = await self.any_channel(avoid)
                request = MetadataRequest(tuple(self._wanted), self.options.may_create_topics)
                with trio.move_on_after(METADATA_PATIENCE_S):
                    answer = await channel.call(ApiKey.METADATA, request)
                    assert isinstance(answer, MetadataResponse)
                    self._error = None
                    return answer
                avoid = channel
                self._error = ClientTimeout(f"{channel.endpoint} is silent")
            except (OSError, BrokerError, ClientTimeout) as error:
                self._error = error
                await trio.sleep(REFRESH_PAUSE_S)

    def _take_over(self, answer: MetadataResponse) -> None:
        if answer.brokers:
            self._endpoints = {
                broker.node_id: Endpoint(broker.host, broker.port) for broker in answer.brokers
            }
        self._errors = {topic.name: error_code(topic.error) for topic in answer.topics}
        for topic in answer.topics:
            error = self._errors[topic.name]
            if error == ErrorCode.NONE and topic.partitions:
                self._take_topic(topic)
            elif error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._drop_leaders(topic.name)
                self._topics.pop(topic.name, None)

    def _take_topic(self, topic: TopicMetadata) -> None:
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self._drop_leaders(topic.name)  # deleted and made again: epochs start anew
        self._topics[topic.name] = topic
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition)
            if partition.leader_epoch >= self._leaders.get(name, _NO_LEADER).leader_epoch:
                self._leaders[name] = Leader(partition.leader_id, partition.leader_epoch)

    def _drop_leaders(self, topic: str) -> None:
        for name in [name for name in self._leaders if name.topic == topic]:
            del self._leaders[name]

    def _is_final(self, error: ErrorCode) -> bool:
        """Whether a topic with this error will not come to be by waiting."""
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return not self.options.may_create_topics
        return error != ErrorCode.NONE and error not in RETRIABLE


@asynccontextmanager
async def open_cluster(options: ClientOptions, seams: Seams) -> AsyncIterator[Cluster]:
    """A cluster for the length of a block, whose exception comes out as it is."""
    cluster = Cluster(options, seams)
    async with in_background(cluster.run):
        yield cluster


@asynccontextmanager
async def in_background(run: Callable[..., Awaitable[object]]) -> AsyncIterator[None]:
    """Run a task beside a block, until the block ends; the block's exception comes out as it is.

    `run` says through `task_status` when it is ready. If it fails, the block is cancelled and its
    failure comes out.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        try:
            yield
        except Exception as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
