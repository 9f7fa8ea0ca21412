"""A client's metadata of the cluster, and its connections to the brokers.

One task keeps the metadata up to date: it asks any broker that answers, when a caller needs newer
metadata (`request_refresh`), and every `metadata.max.age.ms`. A sender whose leader is gone
requests a refresh after every answer until there is another leader, so the pauses between answers
without news decide how soon it is found. A pause is a sixteenth of the time since the first such
answer, 20 to 200 ms. So the pauses prolong a failover by at most a sixteenth, and a leader that
stays away costs five requests a second. After an answer without news another broker is asked, if
there is one: the last may be cut off from the controller and not know it.

A broker that cannot be reached delays only the requests to that broker. For a request to any
broker, the next broker is tried a quarter of a second after the last, and the first answer counts.
If a broker has been silent for a second, the client refreshes the metadata; if they do not have the
broker as live any more, its connections are closed, and the requests go elsewhere. Calls that need
an answer end after the client's time-out (its `max.block.ms` or `default.api.timeout.ms`) with a
`ClientTimeout` that names the brokers that were asked.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

import trio

from minibroker.client.errors import ClientClosed, ClientError, ClientTimeout, reason_of
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

# How long to wait for one broker before the next is asked, too.
NEXT_BROKER_AFTER_S: Final = 0.25
# The first time-out for an answer that any broker can give; doubled each time, up to a limit.
ANSWER_TIMEOUT_S: Final = 1.0
ANSWER_TIMEOUT_S_MAX: Final = 8.0
# The pause between two refreshes without news: a share of the time since the first of them.
REFRESH_PAUSE_S: Final = 0.02
REFRESH_PAUSE_S_MAX: Final = 0.2
REFRESH_PAUSE_SHARE: Final = 1 / 16
# A topic that was not looked up for so long is not asked for any more (metadata.max.idle.ms).
TOPIC_IDLE_S_MAX: Final = 300.0
# After this long without a refresh the pauses begin anew.
REFRESH_QUIET_S: Final = 1.0

Response = TypeVar("Response")


class ClusterStatistics(NamedTuple):
    """What the client knows, and how often it has asked."""

    broker_count: int
    topic_count: int
    refresh_count: int


class Cluster:
    """The metadata and connections of one client. `open_cluster` makes it.

    `on_topic_deleted` is called with a topic that seems deleted and was not looked up for long.
    """

    def __init__(
        self, options: ClientOptions, seams: Seams, on_topic_deleted: Callable[[str], None]
    ) -> None:
        self.options = options
        self.seams = seams
        self.may_create_topics = options.may_create_topics  # by asking for them
        self._pool = ConnectionPool(options, seams, self.request_refresh)
        self._known = Metadata()
        # The topics that are asked for, in order, with when they were last requested or looked
        # up; and those that were looked up since the last refresh.
        self._wanted: dict[str, float] = {}
        self._used: dict[str, None] = {}
        self._on_topic_deleted = on_topic_deleted
        self._error: Exception | None = None  # why the last try to ask failed
        self._refresh_wanted = trio.Event()
        self._refreshes_begun = 0
        self._refreshes_done = 0
        self._changed = trio.lowlevel.ParkingLot()

    # -- what is known; plain calls

    def leader_of(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader and its epoch; None if there is none, or it is not known."""
        self._used[topic_partition.topic] = None
        return self._known.leader_of(topic_partition)

    def partition_count(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if that is not known."""
        self._used[topic] = None
        known = self._known.topics.get(topic)
        return len(known.partitions) if known else None

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic; None if that is not known."""
        known = self._known.topics.get(topic)
        return known.topic_id if known else None

    def known_partition_count(self, topic: str) -> int:
        """Return how many partitions a topic is known to have, 0 or more. This does not count as a
        look-up: a topic with no other look-ups is forgotten."""
        known = self._known.topics.get(topic)
        return len(known.partitions) if known else 0

    @property
    def controller_id(self) -> int:
        """The controller's broker id; -1 if there is none, or it is not known."""
        return self._known.controller_id

    def statistics(self) -> ClusterStatistics:
        """Return counts of what is known now."""
        known = self._known
        return ClusterStatistics(len(known.endpoints), len(known.topics), self._refreshes_done)

    def update_leader(
        self, topic_partition: TopicPartition, leader: Leader, topic_id: bytes = b""
    ) -> bool:
        """Use a hint from an answer, if it is newer than what is known; return whether it is.

        `topic_id` is the one that the request named; empty: not checked.
        """
        is_news = self._known.update_leader(topic_partition, leader, topic_id)
        if is_news:
            self._changed.unpark_all()
        return is_news

    def request_refresh(self) -> None:
        """Request a refresh of the metadata, soon."""
        self._refresh_wanted.set()

    def request_topic(self, topic: str) -> None:
        """Request a topic's metadata, soon, without waiting for them."""
        self._wanted[topic] = trio.current_time()
        self.request_refresh()

    async def wait_changed(self) -> None:
        """Wait until something about brokers, topics or leaders has changed."""
        await self._changed.park()

    # -- what may have to be asked for

    async def topic(self, name: str) -> TopicMetadata:
        """Return a topic's metadata; create the topic if client and broker allow that.

        Raises `BrokerError` if the topic cannot exist, or does not and may not be created, and
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
        """Return the error for a partition that does not exist, as far as is known; None if it
        may."""
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
        """Return the error for a topic that could not be created, because of `error`."""
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
        """Wait for an answer that was requested after this call.

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
        """Return an open channel to one broker. Raises `ConnectionLost` if the next try fails."""
        endpoint = self._known.endpoints.get(node_id)
        if endpoint is None:
            self.request_refresh()
            await trio.sleep(REFRESH_PAUSE_S)
            raise ConnectionLost(f"broker {node_id} is not known to be alive")
        return await self._pool.connect(endpoint, purpose)

    async def ask(
        self, api_key: ApiKey, message: Request[Response], avoid: RpcChannel | None = None
    ) -> Response:
        """Send a request that any broker can answer, and wait however long it takes.

        If a broker is lost or silent meanwhile, another is asked at once, so the request may be
        executed twice. Raises `BrokerError` if the broker does not serve it.
        """
        return (await self._ask(api_key, message, avoid))[1]

    async def _ask(
        self, api_key: ApiKey, message: Request[Response], avoid: RpcChannel | None
    ) -> tuple[RpcChannel, Response]:
        """Return the answer, and the address of its broker."""
        timeout_s = ANSWER_TIMEOUT_S
        while True:
            try:
                channel = await self.any_channel(avoid)
                with trio.move_on_after(timeout_s):
                    answer = await channel.call(api_key, message)
                    self._error = None
                    return channel, answer
                avoid = channel
                timeout_s = min(2 * timeout_s, ANSWER_TIMEOUT_S_MAX)
                self._error = ClientTimeout(f"{channel.endpoint} is silent")
            except (OSError, ClientTimeout) as error:
                self._error = error

    async def any_channel(self, avoid: RpcChannel | None = None) -> RpcChannel:
        """Return an open channel to any broker, not `avoid` if there is another.

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
        """The connections to try: those that failed just now only if there are no others."""
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
        """Return the channel with the fewest requests in flight. If the caller is choosy, not one
        that has been silent for long."""
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
        """The addresses to ask: the brokers that were live last, then the bootstrap servers."""
        alive = self._known.endpoints.values()
        return list(dict.fromkeys([*alive, *self.options.bootstrap_servers]))

    def timeout(self, last: Exception | None = None) -> ClientTimeout:
        """Return the error for a time-out, with the brokers that were asked, and their errors."""
        names = ", ".join(map(str, self._candidates()))
        text = f"no answer from {names} within {self.options.call_timeout_ms} ms"
        errors = [
            connection.error
            for connection in (self._pool.connection(each, REQUESTS) for each in self._candidates())
            if connection.error is not None
        ]
        last = last or self._error or (errors[-1] if errors else None)
        if isinstance(last, ClientTimeout):  # it says all that already
            return ClientTimeout(str(last))
        return ClientTimeout(f"{text}; last error: {reason_of(last)}" if last else text)

    # -- the task that asks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections and metadata, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._pool.run)
                task_status.started()
                await self._keep_metadata()
        finally:
            self._changed.unpark_all()  # no refresh will come: `refreshed` raises

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
            self._pool.cluster_id = self._pool.cluster_id or answer.cluster_id
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
        """Record which broker has told each address, for error messages."""
        named = {teller, *self.options.bootstrap_servers}
        endpoints = {Endpoint(each.host, each.port): each.node_id for each in answer.brokers}
        self._pool.advertised = {
            endpoint: f"broker {node_id} is advertised as {endpoint} by {teller}"
            for endpoint, node_id in endpoints.items()
            if endpoint not in named
        }

    def _forget_idle(self, now: float) -> None:
        """Stop asking for topics that were not looked up for long; most of them are deleted."""
        self._wanted.update(dict.fromkeys(self._used, now))
        self._used.clear()
        for topic in [name for name, at in self._wanted.items() if now - at > TOPIC_IDLE_S_MAX]:
            del self._wanted[topic]
            if self._known.forget(topic):
                self._on_topic_deleted(topic)

    def _pause_s(self, fruitless_s: float) -> float:
        """Return how long to wait after an answer without news, as those before it."""
        pause_s = max(REFRESH_PAUSE_S, REFRESH_PAUSE_SHARE * fruitless_s)
        jitter = self.seams.rng.uniform(1 - JITTER, 1 + JITTER)
        return min(pause_s, REFRESH_PAUSE_S_MAX) * jitter

    def _is_final(self, error: ErrorCode) -> bool:
        """Whether waiting does not help against a topic's error."""
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return not self.may_create_topics
        return error != ErrorCode.NONE and error not in RETRIABLE


async def report_regularly(
    report: Callable[[], object],
    every_ms: int,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call a function regularly, until cancelled. Its exceptions are raised."""
    task_status.started()
    while True:
        await trio.sleep(every_ms / 1000)
        report()


def check_trio() -> None:
    """Raise `ClientError` if trio does not run, as under asyncio."""
    if not trio.lowlevel.in_trio_task():
        raise ClientError(
            "this client needs trio: call it inside of trio.run, or use minibroker.client.asyncio"
            " in an asyncio program, minibroker.client.blocking in a plain one"
        )


@asynccontextmanager
async def open_cluster(
    options: ClientOptions,
    seams: Seams,
    on_topic_deleted: Callable[[str], None] = lambda topic: None,
) -> AsyncIterator[Cluster]:
    """Open a cluster for the length of a block, whose exception is raised as it is."""
    cluster = Cluster(options, seams, on_topic_deleted)
    async with in_background(cluster.run):
        yield cluster


@asynccontextmanager
async def in_background(run: Callable[..., Awaitable[object]]) -> AsyncIterator[None]:
    """Run a task beside a block, until the block ends. The block's exception is raised as it is.

    `run` reports through `task_status` when it is ready. If it fails, the block is cancelled and
    its exception is raised. If the block is cancelled, the task goes on until the block has ended,
    so that the block's clean-up still has connections.

    An interrupt (KeyboardInterrupt) may be raised in any running task. It leaves the block alone,
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

    try:
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(run_on)
                # Not before: a shielded task whose start is cancelled never ends.
                scope.shield = True
                yield
            except (Exception, GeneratorExit, KeyboardInterrupt, SystemExit) as error:
                failure = error
            finally:
                scope.cancel()
    except BaseExceptionGroup as group:  # an interrupt may also come while the task ends
        if not _is_interrupt(group):
            raise
        is_interrupted = True
    if is_interrupted:
        raise KeyboardInterrupt from None
    if failure is not None:
        raise failure


def _is_interrupt(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt ended a task, or a nursery in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)
