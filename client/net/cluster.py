"""What a client knows of the cluster, and the way to each broker.

One task keeps the metadata: it asks any broker that answers, when somebody needs to know more
(`request_refresh`), and every `metadata.max.age.ms`. Who has something to send to a leader that is
gone asks after every answer again, until there is another, so the pauses between answers that
bring nothing new decide how soon it is found. They are a sixteenth of the time since the first
such answer, 20 to 200 ms: that is what a failover is prolonged by at most, and a leader that stays
away costs five requests a second. The next answer then comes from another broker, where there is
one: the last may be cut off from the controller and not know it.

Nobody is waited for who need not be. A broker that cannot be reached delays only those who want
that one; where any broker will do, the next is tried a quarter of a second after the last, and the
first that answers is taken. One that has been silent for a second has the metadata asked for; if
they no longer name it as alive, its connections are closed: what was under way goes elsewhere.
Calls that need an answer give up after the client's patience (its `max.block.ms` or
`default.api.timeout.ms`) with a `ClientTimeout` that names who was asked.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

import trio

from minibroker.client.errors import ClientClosed, ClientError, ClientTimeout
from minibroker.client.net.channel import ConnectionLost, RpcChannel
from minibroker.client.net.connection_pool import JITTER, REQUESTS, Connection, ConnectionPool
from minibroker.client.net.metadata import Leader, Metadata
from minibroker.client.options import ClientOptions, Seams
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import RETRIABLE, BrokerError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from minibroker.protocol.types import Endpoint, TopicPartition

# How long one broker may keep the others from being asked.
NEXT_BROKER_AFTER_S: Final = 0.25
# How long an answer is waited for that any broker can give; doubled each time, but not for ever.
ANSWER_PATIENCE_S: Final = 1.0
ANSWER_PATIENCE_S_MAX: Final = 8.0
# Between two refreshes that brought nothing new: a share of the time since the first of them.
REFRESH_PAUSE_S: Final = 0.02
REFRESH_PAUSE_S_MAX: Final = 0.2
REFRESH_PAUSE_SHARE: Final = 1 / 16
# A topic that nobody has looked up for so long is not asked for any more (metadata.max.idle.ms).
TOPIC_IDLE_S_MAX: Final = 300.0
# After this long without a refresh the next one has nothing to do with the last.
REFRESH_QUIET_S: Final = 1.0

Response = TypeVar("Response")


class ClusterStatistics(NamedTuple):
    """What the client knows, and how often it asked."""

    broker_count: int
    topic_count: int
    refresh_count: int


class Cluster:
    """What one client knows of the cluster. `open_cluster` makes it.

    `on_topic_deleted` is called with a topic that seems deleted and has long not been looked up.
    """

    def __init__(self, options: ClientOptions, seams: Seams) -> None:
        self.options = options
        self.seams = seams
        self.may_create_topics = options.may_create_topics  # by asking for them
        self._pool = ConnectionPool(options, seams, self.request_refresh)
        self._known = Metadata()
        # The topics that are asked for, in order, with when they were wanted or looked up last; and
        # those that were looked up since the last refresh.
        self._wanted: dict[str, float] = {}
        self._used: dict[str, None] = {}
        self.on_topic_deleted: Callable[[str], None] = lambda topic: None
        self._error: Exception | None = None  # why the last try to ask failed
        self._refresh_wanted = trio.Event()
        self._refreshes_begun = 0
        self._refreshes_done = 0
        self._changed = trio.lowlevel.ParkingLot()

    # -- what is known; plain calls

    def leader_of(self, topic_partition: TopicPartition) -> Leader | None:
        """The leader and its epoch; None while there is none, or it is not known."""
        self._used[topic_partition.topic] = None
        return self._known.leader_of(topic_partition)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is not known."""
        self._used[topic] = None
        known = self._known.topics.get(topic)
        return len(known.partitions) if known else None

    def topic_id(self, topic: str) -> bytes | None:
        """Which topic of that name it is; None while that is not known."""
        known = self._known.topics.get(topic)
        return known.topic_id if known else None

    def known_partition_count(self, topic: str) -> int:
        """How many partitions a topic is known to have, 0 or more. Asking is no use of it: a topic
        that is asked about in no other way is forgotten."""
        known = self._known.topics.get(topic)
        return len(known.partitions) if known else 0

    @property
    def controller_id(self) -> int:
        """The broker that makes and deletes topics; -1 while there is none, or it is not known."""
        return self._known.controller_id

    def statistics(self) -> ClusterStatistics:
        """What is known now."""
        known = self._known
        return ClusterStatistics(len(known.endpoints), len(known.topics), self._refreshes_done)

    def update_leader(
        self, topic_partition: TopicPartition, leader: Leader, topic_id: bytes = b""
    ) -> bool:
        """Take a hint from an answer, if it is newer than what is known; False if it is not.

        `topic_id` is the one that the request named; empty: not checked.
        """
        is_news = self._known.update_leader(topic_partition, leader, topic_id)
        if is_news:
            self._changed.unpark_all()
        return is_news

    def request_refresh(self) -> None:
        """Have the metadata asked for again, soon."""
        self._refresh_wanted.set()

    def request_topic(self, topic: str) -> None:
        """Have a topic's metadata asked for, soon; nobody waits for them."""
        self._wanted[topic] = trio.current_time()
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
        with trio.move_on_after(self.options.call_timeout_ms / 1000):
            while (known := self._known.topics.get(name)) is None:
                self._wanted[name] = trio.current_time()
                await self.refreshed()
                error = self._known.errors.get(name, ErrorCode.NONE)
                if name not in self._known.topics and self._is_final(error):
                    break
            else:
                return known
        self._wanted.pop(name, None)
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise self._no_topic(name)
        if error != ErrorCode.NONE:
            raise self._not_created(name, error)
        raise self.timeout()

    def is_missing(self, topic: str) -> bool:
        """Whether a broker has said that there is no such topic."""
        error = self._known.errors.get(topic)
        return error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic not in self._known.topics

    def why_missing(self, name: TopicPartition) -> BrokerError | None:
        """The error for a partition that does not exist, as far as is known; None if it may."""
        count = self.partition_count(name.topic)
        if count is None:
            return self._no_topic(name.topic) if self.is_missing(name.topic) else None
        if name.partition < count:
            return None
        text = f"topic {name.topic!r} has {count} partitions, numbered from 0: there is no {name}"
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def _no_topic(self, name: str) -> BrokerError:
        text = f"there is no topic {name!r}, and this client creates none: create it first"
        if self.may_create_topics:
            text = (
                f"there is no topic {name!r}, and asking for it did not create it:"
                " create it first (auto.create.topics.enable may be off)"
            )
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def _not_created(self, name: str, error: ErrorCode) -> BrokerError:
        """`error` is why the topic could not be made when it was asked for."""
        text = f"there is no topic {name!r}, and asking for it did not create it"
        if error == ErrorCode.INVALID_REPLICATION_FACTOR:
            text += (
                f": a new topic gets more replicas (default.replication.factor) than the"
                f" {len(self._known.endpoints)} brokers that are alive; create it with fewer, or"
                " start the others"
            )
        elif error == ErrorCode.INVALID_PARTITIONS:
            text += (
                ": with the default number of partitions (num.partitions) the cluster would have"
                " more than it may have; delete topics, or create it with fewer partitions"
            )
        return BrokerError(error, text)

    async def refreshed(self) -> None:
        """Until an answer is there that was asked for after this call.

        Raises `ClientTimeout` and `ClientClosed`.
        """
        awaited = self._refreshes_begun + 1
        self.request_refresh()
        with trio.move_on_after(self.options.call_timeout_ms / 1000):
            while self._refreshes_done < awaited:
                if self._pool.is_closed:
                    raise ClientClosed("this client was closed")
                await self._changed.park()
            return
        raise self.timeout()

    async def channel(self, node_id: int, purpose: str = REQUESTS) -> RpcChannel:
        """An open channel to one broker. Raises `ConnectionLost` if the next try fails."""
        endpoint = self._known.endpoints.get(node_id)
        if endpoint is None:
            self.request_refresh()
            await trio.sleep(REFRESH_PAUSE_S)
            raise ConnectionLost(f"broker {node_id} is not known to be alive")
        return await self._pool.connect(endpoint, purpose)

    async def ask(
        self, api_key: ApiKey, message: Request[Response], avoid: RpcChannel | None = None
    ) -> Response:
        """An answer that any broker can give, however long it takes.

        Who is lost or silent meanwhile is left for another at once, so the request may be done
        twice. Raises `BrokerError` where the broker does not serve it.
        """
        return (await self._ask(api_key, message, avoid))[1]

    async def _ask(
        self, api_key: ApiKey, message: Request[Response], avoid: RpcChannel | None
    ) -> tuple[RpcChannel, Response]:
        """The answer, and from where."""
        patience_s = ANSWER_PATIENCE_S
        while True:
            try:
                channel = await self.any_channel(avoid)
                with trio.move_on_after(patience_s):
                    answer = await channel.call(api_key, message)
                    self._error = None
                    return channel, answer
                avoid = channel
                patience_s = min(2 * patience_s, ANSWER_PATIENCE_S_MAX)
                self._error = ClientTimeout(f"{channel.endpoint} is silent")
            except (OSError, ClientTimeout) as error:
                self._error = error

    async def any_channel(self, avoid: RpcChannel | None = None) -> RpcChannel:
        """An open channel to whoever answers, not `avoid` if there is another broker.

        Raises `ClientTimeout` and `ClientClosed`.
        """
        with trio.move_on_after(self.options.call_timeout_ms / 1000):
            while True:
                for connection in self._to_try(avoid):
                    if (found := self._least_loaded(avoid)) is not None:
                        return found
                    self._pool.ensure_attempt(connection)
                    with trio.move_on_after(NEXT_BROKER_AFTER_S):
                        await self._pool.wait_changed()
                found = self._least_loaded(avoid) or self._least_loaded(None, is_choosy=False)
                if found is not None:
                    return found
        raise self.timeout()

    def _to_try(self, avoid: RpcChannel | None) -> list[Connection]:
        """Whom to connect to, if need be: who failed just now only if nobody else is left."""
        endpoints = self._candidates()
        turn = self.seams.rng.randrange(len(endpoints))
        turned = endpoints[turn:] + endpoints[:turn]
        connections = [self._pool.connection(each, REQUESTS) for each in turned]
        closed = [each for each in connections if not each.is_open]
        now = trio.current_time()
        fresh = [each for each in closed if each.attempt is None and each.retry_at <= now]
        is_alone = next(self._pool.open_connections(REQUESTS), None) is None
        return fresh + [each for each in closed if each not in fresh] if is_alone else fresh

    def _least_loaded(
        self, avoid: RpcChannel | None, *, is_choosy: bool = True
    ) -> RpcChannel | None:
        """Who has the least to do. A choosy asker takes no one who has been silent for long."""
        silent = self._pool.silent() if is_choosy else []
        open_channels = [
            connection.channel
            for connection in self._pool.open_connections(REQUESTS)
            if connection.channel is not None
            and connection.channel is not avoid
            and connection.endpoint not in silent
        ]
        return min(open_channels, key=lambda channel: channel.statistics().in_flight, default=None)

    def _candidates(self) -> list[Endpoint]:
        """Whom to ask: the brokers that were alive last, then those named at the start."""
        alive = self._known.endpoints.values()
        return list(dict.fromkeys([*alive, *self.options.bootstrap_servers]))

    def timeout(self, last: Exception | None = None) -> ClientTimeout:
        """The error for an answer that did not come, with whom was asked and what they said."""
        names = ", ".join(map(str, self._candidates()))
        text = f"no answer from {names} within {self.options.call_timeout_ms} ms"
        errors = [
            connection.error
            for connection in (self._pool.connection(each, REQUESTS) for each in self._candidates())
            if connection.error is not None
        ]
        last = last or self._error or (errors[-1] if errors else None)
        return ClientTimeout(f"{text}; last error: {last}" if last else text)

    # -- the task that asks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections and metadata, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._pool.run)
                task_status.started()
                await self._keep_metadata()
        finally:
            self._changed.unpark_all()  # nothing more will be learnt: `refreshed` raises

    async def _keep_metadata(self) -> None:
        fruitless_since = ended_at = float("-inf")
        avoid: RpcChannel | None = None
        while True:
            with trio.move_on_after(self.options.metadata_max_age_ms / 1000):
                await self._refresh_wanted.wait()
            self._refresh_wanted = trio.Event()
            if trio.current_time() - ended_at > REFRESH_QUIET_S:
                fruitless_since = float("inf")
            self._refreshes_begun += 1
            self._forget_idle(trio.current_time())
            wanted = tuple(self._wanted)
            request = MetadataRequest(wanted, self.may_create_topics)
            channel, answer = await self._ask(ApiKey.METADATA, request, avoid)
            is_news = self._known.update(answer) or wanted != tuple(self._wanted)
            self._record_tellers(answer, channel.endpoint)
            self._refreshes_done = self._refreshes_begun
            self._pool.close_silent(self._known.endpoints.values())
            self._pool.keep(self._candidates())
            self._changed.unpark_all()
            if is_news:
                fruitless_since, avoid = float("inf"), None
            else:
                now = trio.current_time()
                fruitless_since, avoid = min(fruitless_since, now), channel
                await trio.sleep(self._pause_s(now - fruitless_since))
            ended_at = trio.current_time()

    def _record_tellers(self, answer: MetadataResponse, teller: Endpoint) -> None:
        """Whose addresses these are, for errors: nobody at this end has typed them."""
        named = {teller, *self.options.bootstrap_servers}
        endpoints = {Endpoint(each.host, each.port): each.node_id for each in answer.brokers}
        self._pool.advertised = {
            endpoint: f"broker {node_id} is advertised as {endpoint} by {teller}"
            for endpoint, node_id in endpoints.items()
            if endpoint not in named
        }

    def _forget_idle(self, now: float) -> None:
        """Ask no more for topics that nobody has looked up for long; most of them are deleted."""
        self._wanted.update(dict.fromkeys(self._used, now))
        self._used.clear()
        for topic in [name for name, at in self._wanted.items() if now - at > TOPIC_IDLE_S_MAX]:
            del self._wanted[topic]
            if self._known.forget(topic):
                self.on_topic_deleted(topic)

    def _pause_s(self, fruitless_s: float) -> float:
        """How long to wait after an answer that brought nothing new, as those before it."""
        pause_s = max(REFRESH_PAUSE_S, REFRESH_PAUSE_SHARE * fruitless_s)
        jitter = self.seams.rng.uniform(1 - JITTER, 1 + JITTER)
        return min(pause_s, REFRESH_PAUSE_S_MAX) * jitter

    def _is_final(self, error: ErrorCode) -> bool:
        """Whether a topic with this error will not come to be by waiting."""
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return not self.may_create_topics
        return error != ErrorCode.NONE and error not in RETRIABLE


async def report_regularly(
    report: Callable[[], object],
    every_ms: int,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call it now and then, until cancelled. What it raises comes out."""
    task_status.started()
    while True:
        await trio.sleep(every_ms / 1000)
        report()


def check_trio() -> None:
    """Raise `ClientError` where trio does not run, as under asyncio."""
    if not trio.lowlevel.in_trio_task():
        raise ClientError(
            "this client needs trio: call it inside of trio.run, or use minibroker.client.asyncio"
            " in an asyncio program, minibroker.client.blocking in a plain one"
        )


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
    failure comes out. If the block is cancelled, the task goes on until the block has ended, so
    that what is left to do there still has connections.

    An interrupt (KeyboardInterrupt) may come into any task that is running. It comes out alone,
    without the groups and tracebacks of the nurseries that it went through.
    """
    failure: BaseException | None = None
    is_interrupted = False
    scope = trio.CancelScope()

    async def run_on(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal is_interrupted
        with scope:
            try:
                await run(task_status=task_status)
            except BaseException as error:
                is_interrupted = _is_interrupt(error)
                if not is_interrupted:
                    raise
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(run_on)
            scope.shield = True  # not before: a shielded task whose start is cancelled never ends
            yield
        except (Exception, GeneratorExit, KeyboardInterrupt, SystemExit) as error:
            failure = error
        finally:
            scope.cancel()
    if is_interrupted:
        raise KeyboardInterrupt from None
    if failure is not None:
        raise failure


def _is_interrupt(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt ended a task, or a nursery in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)
