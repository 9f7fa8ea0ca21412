"""The tasks that fetch records for a consumer: one for each broker that leads its partitions.

    run ---- _resolve_offsets      asks for the offset of a partition without a position
         |-- _watch_cluster        passes on changes of the metadata
         |-- _interrupt_outdated   ends a long poll that the application no longer wants
         `-- _fetch_from           for each leader: plan, FETCH, handle the answer; again

Each broker has one FETCH in flight at a time, on a connection of its own. The FETCH waits at the
broker until there is data, so partitions that become wanted meanwhile (after a seek) would wait,
too. After a short grace the fetcher then closes the connection, and sends the next request on a new
one. The broker still has the fetch session, but the fetcher opens a new one: that costs less than
to find out what the broker has received. While a partition has no leader, or one that is down, the
fetcher asks for metadata again after every answer; the cluster limits the rate.

It fetches nothing before the application asks for the first records: it may want to seek first.
"""

import logging
from dataclasses import replace
from typing import Final

import trio

from minibroker.client.consumer.assigned_partition import RETRY_S_MAX
from minibroker.client.consumer.positions import EpochOf, Positions
from minibroker.client.errors import error_code
from minibroker.client.net.channel import RpcChannel
from minibroker.client.net.cluster import Cluster
from minibroker.client.net.connection_pool import FETCHES
from minibroker.client.net.list_offsets import ask_offsets
from minibroker.client.net.metadata import Leader
from minibroker.client.options import ConsumerOptions
from minibroker.protocol.constants import NO_EPOCH, ApiKey, ErrorCode
from minibroker.protocol.fetch_session_handler import FetchSessionHandler
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionFetch
from minibroker.protocol.types import TopicPartition

INTERRUPT_AFTER_S: Final = 0.02
SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)

log = logging.getLogger("minibroker.client")


class _Broker:
    """A broker from which records are fetched. `channel` is set while a FETCH is in flight on
    it."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.is_down = False  # the connection was lost, or could not be made
        self.session = FetchSessionHandler()
        self.channel: RpcChannel | None = None
        self.is_interrupted = False


class Fetcher:
    """Moves records from the brokers into `positions`. `arrived` is unparked when some have
    arrived."""

    def __init__(self, cluster: Cluster, positions: Positions, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._positions = positions
        self._options = options
        self._brokers: dict[int, _Broker] = {}
        self._warned: set[TopicPartition] = set()  # about these topics
        self._is_started = False
        self._changed = trio.lowlevel.ParkingLot()
        self._fetch_now_requested = trio.lowlevel.ParkingLot()
        self.arrived = trio.lowlevel.ParkingLot()

    def start(self) -> None:
        """Fetch from now on, because the application wants records."""
        if not self._is_started:
            self._is_started = True
            self._changed.unpark_all()

    def wake(self) -> None:
        """Check again what to fetch, if the positions have changed."""
        if self._positions.is_changed:
            self._positions.is_changed = False
            self._changed.unpark_all()

    def fetch_now(self) -> None:
        """Do the same, without letting a long poll in flight delay it."""
        self.wake()
        self._fetch_now_requested.unpark_all()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._resolve_offsets)
            nursery.start_soon(self._watch_cluster)
            nursery.start_soon(self._interrupt_outdated)
            task_status.started()
            while True:
                self._update_topic_ids()
                self._start_fetching(nursery)
                await self._changed.park()

    def _update_topic_ids(self) -> None:
        """Update the topics' ids, and find those that have changed."""
        assignment = self._positions.assignment
        self._warned &= set(assignment)
        for topic in {name.topic: None for name in assignment}:
            if topic_id := self._cluster.topic_id(topic):
                self._positions.update_topic_id(topic, topic_id)
        self.wake()

    def _start_fetching(self, nursery: trio.Nursery) -> None:
        """Start a task for each leader; request metadata if a partition has none, or one that is
        down."""
        for name in self._positions.assignment:
            leader = self._cluster.leader_of(name)
            if leader is None:
                self._cluster.request_topic(name.topic)
                self._warn(name)
            elif (broker := self._brokers.get(leader.node_id)) is None:
                broker = _Broker(leader.node_id)
                self._brokers[leader.node_id] = broker
                nursery.start_soon(self._fetch_from, broker)
            elif broker.is_down:
                self._cluster.request_refresh()

    def _warn(self, name: TopicPartition) -> None:
        """Warn once that a partition does not exist; it may be created later (CCO-04)."""
        reason = self._cluster.why_missing(name)
        if reason is not None and name not in self._warned:
            self._warned.add(name)
            log.warning("%s is assigned, and waited for: %s", name, reason)

    async def _watch_cluster(self) -> None:
        while True:
            await self._cluster.wait_changed()
            self._changed.unpark_all()

    async def _resolve_offsets(self) -> None:
        while True:
            now = trio.current_time()
            wanted = self._positions.unresolved(self._epoch_of, now)
            if not wanted:
                await self._wait(now)
                continue
            epochs = {name: self._epoch_of(name) for name in wanted}
            asked_of = {name: self._positions.topic_id(name.topic) for name in wanted}
            timestamps = {name: reset.timestamp for name, reset in wanted.items()}
            found = await ask_offsets(self._cluster, timestamps)
            for name, answer in found.items():
                if asked_of[name] not in (b"", self._positions.topic_id(name.topic)):
                    continue  # it was deleted and created again meanwhile: ask again
                if answer.error:
                    self._positions.fail(name, wanted[name], error_code(answer.error))
                    self.arrived.unpark_all()
                else:
                    self._positions.resolve(name, wanted[name], answer.offset)
            for name, epoch in epochs.items():
                if name not in found:
                    self._positions.defer(name, epoch, trio.current_time())
            self.wake()

    async def _wait(self, now: float) -> None:
        """Wait until something changes, or a retry is due."""
        with trio.move_on_at(self._positions.next_retry(now)):
            await self._changed.park()

    async def _fetch_from(self, broker: _Broker) -> None:
        while True:
            wanted, _ = self._plan(broker)
            if not (wanted and self._is_started):
                await self._wait(trio.current_time())
                continue
            try:
                channel = await self._cluster.channel(broker.node_id, FETCHES)
                broker.is_down = False
                await self._fetch(broker, channel)
            except OSError:
                broker.session.reset()
                broker.is_down = not broker.is_interrupted
                broker.is_interrupted = False
                self._changed.unpark_all()

    async def _fetch(self, broker: _Broker, channel: RpcChannel) -> None:
        wanted, bytes_max = self._plan(broker)
        if not wanted:
            return
        request = self._build(broker.session, wanted, bytes_max)
        reply = channel.start(ApiKey.FETCH, request)
        broker.channel = channel
        try:
            response = await reply.wait()
        finally:
            broker.channel = None
        error = error_code(response.error)
        if error == ErrorCode.NONE:
            self._handle_response(broker.session, response)
        broker.session.on_response(response)
        if error not in (ErrorCode.NONE, *SESSION_ERRORS):
            await trio.sleep(RETRY_S_MAX)

    def _build(
        self, session: FetchSessionHandler, wanted: list[PartitionFetch], bytes_max: int
    ) -> FetchRequest:
        """Return the request that makes the broker fetch exactly `wanted`."""
        by_name = {TopicPartition(each.topic, each.partition): each for each in wanted}
        session.begin()
        session.forget_all_but(set(by_name))
        for name, each in by_name.items():
            session.ask(name, each)
        return session.build(
            wait_ms_max=self._options.fetch_max_wait_ms,
            bytes_min=self._options.fetch_min_bytes,
            bytes_max=bytes_max,
            isolation_level=self._options.isolation,
        )

    def _handle_response(self, session: FetchSessionHandler, response: FetchResponse) -> None:
        now = trio.current_time()
        for answer in response.partitions:
            name = TopicPartition(answer.topic, answer.partition)
            asked = session.asked(name)
            if asked is None:
                continue
            hint = Leader(answer.leader_id, answer.leader_epoch)
            is_news = self._cluster.update_leader(name, hint, asked.topic_id)
            if self._positions.handle_answer(asked, answer, now) and not is_news:
                self._cluster.request_refresh()
        self.wake()
        self.arrived.unpark_all()

    def _epoch_of(self, name: TopicPartition) -> int:
        leader = self._cluster.leader_of(name)
        return leader.leader_epoch if leader else NO_EPOCH

    def _plan(self, broker: _Broker) -> tuple[list[PartitionFetch], int]:
        """Return the partitions to fetch from a broker now, and the most bytes to take.

        They have the id of the topic to which the positions belong: a topic that was created again
        may have records at these offsets, of the same epochs.
        """
        epoch_at = self._epoch_at(broker.node_id)
        wanted, bytes_max = self._positions.plan(epoch_at, trio.current_time())
        id_of = self._cluster.topic_id  # of topics whose ids the positions will be told
        return [
            each if each.topic_id else replace(each, topic_id=id_of(each.topic) or b"")
            for each in wanted
        ], bytes_max

    def _epoch_at(self, node_id: int) -> EpochOf:
        def epoch_at(name: TopicPartition) -> int | None:
            leader = self._cluster.leader_of(name)
            return leader.leader_epoch if leader and leader.node_id == node_id else None

        return epoch_at

    async def _interrupt_outdated(self) -> None:
        while True:
            await self._fetch_now_requested.park()
            await trio.sleep(INTERRUPT_AFTER_S)
            for broker in self._brokers.values():
                if broker.channel is not None and self._is_outdated(broker):
                    broker.is_interrupted = True
                    broker.channel.close()

    def _is_outdated(self, broker: _Broker) -> bool:
        """Whether a partition that is wanted is missing in the FETCH in flight."""
        wanted, _ = self._plan(broker)
        asked = broker.session.asked
        return any(asked(TopicPartition(each.topic, each.partition)) != each for each in wanted)
