"""The sender moves batches from the accumulator to the brokers, and answers back.

    run                               seals and expires batches, asks for what is missing
    +- _serve (a node)                connects to one broker, again and again
    +- _obtain_producer_id            asks for a producer id
    +- _ask_for_partitions (a topic)  asks for a topic's partitions
    +- _watch_cluster                 passes on changes of the metadata

Apart from appends, only this module changes the accumulator. Its tasks run in one loop and touch
the accumulator only between two awaits, so they do not interfere. `_send_to` is synchronous, and is
called where a request becomes possible: `run` calls it for new batches, `_handle_answers` when an
answer has freed a place in flight. The connection's reader calls `_handle_answers` after it has
completed all answers that have arrived. So one wake-up of the reader handles the answers of many
batches and sends the next requests.

A node whose connection breaks fails all its requests in flight at once and in order (NET-06), then
connects again; the cluster knows the back-off. A node that is down delays only its own queues
(NET-07). While a queue has no leader, or one that is down, the sender asks for metadata again after
every answer (`_send_to_all`); the cluster limits the rate. So batches that were lost with a leader
go to the next one as soon as any broker knows it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

import trio

from minibroker.client.errors import ClientError, ClientTimeout, error_code
from minibroker.client.net.channel import PendingReply, RequestTimedOut, RpcChannel
from minibroker.client.net.cluster import Cluster
from minibroker.client.net.metadata import Leader
from minibroker.client.producer.accumulator import Work
from minibroker.client.producer.batches import Batch, CompletedBatch, ProducerIdAndEpoch
from minibroker.client.producer.routes import Routes
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE, BrokerError
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.messages.producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL, SECOND_PROTOCOL


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """The part of a producer's options that the sender uses."""

    acks: int
    in_flight_max: int  # requests in flight to one node
    request_timeout_ms: int  # how long a broker may wait for its replicas
    retry_backoff_s: float
    transactional_id: str | None = None


class _Sent(NamedTuple):
    """A request in flight, and its batches."""

    batches: list[Batch]
    request: ProduceRequest
    reply: PendingReply[ProduceResponse | None]


class _Node:
    """One broker, and the requests in flight to it, oldest first."""

    __slots__ = ("channel", "has_work", "is_down", "node_id", "requests")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.is_down = False  # the connection was lost, or could not be made
        self.channel: RpcChannel | None = None
        self.requests: deque[_Sent] = deque()
        self.has_work = trio.Event()


class Sender:
    """Moves batches from an accumulator to the brokers; `report_completed` gets those completed."""

    def __init__(
        self,
        options: SenderOptions,
        routes: Routes,
        cluster: Cluster,
        rng: Random,
        report_completed: Callable[[list[CompletedBatch]], None],
    ) -> None:
        self._options = options
        self._routes = routes
        self._accumulator = routes.accumulator
        self._cluster = cluster
        self._rng = rng
        self._report_completed = report_completed
        self._nodes: dict[int, _Node] = {}
        self._woken = trio.Event()
        self._is_obtaining_id = False

    def wake(self) -> None:
        """Wake the sender, because the accumulator has something new or its next deadline has
        changed."""
        self._woken.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send batches until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_cluster)
            task_status.started()
            while True:
                work = self._accumulator.advance(trio.current_time(), self._cluster.leader_of)
                if work.completed:
                    self._report_completed(work.completed)
                self._ask_for_what_is_missing(work, nursery)
                self._send_to_all(work, nursery)
                with trio.move_on_at(work.next_due):
                    await self._woken.wait()
                self._woken = trio.Event()

    # What is missing

    def _ask_for_what_is_missing(self, work: Work, nursery: trio.Nursery) -> None:
        topics_to_ask = self._routes.topics_to_ask
        while topics_to_ask:
            nursery.start_soon(self._ask_for_partitions, topics_to_ask.pop())
        if work.needs_identity and not self._is_obtaining_id:
            self._is_obtaining_id = True
            nursery.start_soon(self._obtain_producer_id)

    async def _ask_for_partitions(self, topic: str) -> None:
        try:
            metadata = await self._cluster.topic(topic)
        except BrokerError as error:
            self._routes.on_unknown_topic(topic, error)
        except ClientError as error:
            text = f"nothing was learnt of topic {topic!r} within max.block.ms; it may not exist"
            self._routes.on_unknown_topic(topic, ClientTimeout(f"{text}: {error}"))
        else:
            count = len(metadata.partitions)
            self._routes.on_partitions_known(
                topic, count, self._rng.randrange(count), trio.current_time()
            )
        # Even if no batch was left to complete: flush waits until no record is unassigned.
        self._report_completed(self._accumulator.pop_completed())
        self.wake()

    async def _obtain_producer_id(self) -> None:
        while True:
            answer = await self._init_producer_id()
            if answer.error == ErrorCode.NONE:
                identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                self._accumulator.sequences.identity = identity
                break
            if answer.error not in RETRIABLE:
                self._fail_without_identity(error_code(answer.error))
                break
            await trio.sleep(self._options.retry_backoff_s)
        self._is_obtaining_id = False
        self.wake()

    def _fail_without_identity(self, code: ErrorCode) -> None:
        error = BrokerError(code, "no broker gives a producer id, so no batch can be sent")
        self._accumulator.fail_all(lambda _batch: error)

    async def _init_producer_id(self) -> InitProducerIdResponse:
        try:
            return await self._cluster.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest())
        except BrokerError as error:
            return InitProducerIdResponse(error=error.code)

    async def _watch_cluster(self) -> None:
        while True:
            await self._cluster.wait_changed()
            self._routes.on_metadata(self._cluster.known_partition_count)
            self.wake()

    # Sending

    def _send_to_all(self, work: Work, nursery: trio.Nursery) -> None:
        must_refresh = work.is_leaderless
        for node_id in work.nodes:
            node = self._nodes.get(node_id)
            if node is None:
                node = self._nodes[node_id] = _Node(node_id)
                nursery.start_soon(self._serve, node)
            if node.channel is None:
                node.has_work.set()
                must_refresh = must_refresh or node.is_down
            else:
                self._send_to(node)
        if must_refresh:
            self._cluster.request_refresh()

    def _send_to(self, node: _Node) -> None:
        """Send requests to a node while there are batches for it and places in flight."""
        places = self._options.in_flight_max - len(node.requests)
        if node.channel is None or not places:
            return
        drained = self._accumulator.drain(
            node.node_id, self._cluster.leader_of, trio.current_time(), places
        )
        if self._accumulator.pop_has_new_due():
            self.wake()
        if not drained:
            return
        requests = list(map(self._request, drained))
        try:
            on_answers = partial(self._handle_answers, node)
            replies = node.channel.start_produce(requests, on_answers)
        except (OSError, BrokerError) as error:
            for batches in drained:
                self._fail_batches(batches, error)
            self.wake()  # there are retries to wait for, or failures to report
        else:
            node.requests += map(_Sent, drained, requests, replies)

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        partitions = []
        for batch in batches:
            topic, partition = batch.queue.topic_partition
            batch.topic_id = self._cluster.topic_id(topic) or b""
            partitions.append(PartitionProduce(topic, partition, batch.data, batch.topic_id))
        options = self._options
        return ProduceRequest(
            options.acks,
            options.request_timeout_ms,
            tuple(partitions),
            options.transactional_id,
            FIRST_PROTOCOL if options.transactional_id is None else SECOND_PROTOCOL,
        )

    # Answers

    async def _serve(self, node: _Node) -> None:
        """Keep a connection to a node while there is work for it."""
        while True:
            await node.has_work.wait()
            node.has_work = trio.Event()  # `run` sets it again if there is work without connection
            try:
                channel = await self._cluster.channel(node.node_id)
            except OSError:
                node.is_down = True
                self.wake()
                continue
            node.is_down = False
            node.channel = channel
            self._send_to(node)
            await channel.closed.wait()
            node.channel = None
            node.is_down = True
            for batches, request, reply in node.requests:
                try:
                    self._handle_response(batches, request, reply.message())
                except OSError as error:
                    self._fail_batches(batches, error)
            node.requests.clear()
            self._report()
            self.wake()

    def _handle_answers(self, node: _Node) -> None:
        """Handle the answers, and start new requests to the node."""
        requests = node.requests
        while requests and requests[0].reply.is_completed:
            batches, request, reply = requests.popleft()
            self._handle_response(batches, request, reply.message())
        self._report()
        self._send_to(node)

    def _handle_response(
        self, batches: list[Batch], request: ProduceRequest, response: ProduceResponse | None
    ) -> None:
        now = trio.current_time()
        if response is None:  # acks=0: no broker answers, the batches are on their way
            for batch in batches:
                self._accumulator.handle_answer(
                    batch, PartitionProduced(*batch.queue.topic_partition), now
                )
            return
        answers = response.partitions
        for index, batch in enumerate(batches):
            answer = answers[index] if index < len(answers) else None
            if answer is None or (answer.topic, answer.partition) != batch.queue.topic_partition:
                answer = PartitionProduced(
                    *batch.queue.topic_partition,
                    error=ErrorCode.UNKNOWN_SERVER_ERROR,
                    error_message="the broker's answer says nothing about them",
                )
            if answer.error:
                self._update_leader(batch, answer, request.partitions[index].topic_id)
            self._accumulator.handle_answer(batch, answer, now)

    def _update_leader(self, batch: Batch, answer: PartitionProduced, topic_id: bytes) -> None:
        """Use the leader that an error names; if that is not new, request metadata."""
        hint = Leader(answer.leader_id, answer.leader_epoch)
        is_news = self._cluster.update_leader(batch.queue.topic_partition, hint, topic_id)
        if answer.error in REFRESH_METADATA and not is_news:
            self._cluster.request_refresh()
        self.wake()  # there is a retry to wait for

    def _fail_batches(self, batches: list[Batch], error: Exception) -> None:
        """Fail batches for which no answer will come."""
        is_late = isinstance(error, RequestTimedOut)
        code = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NETWORK_EXCEPTION
        now = trio.current_time()
        for batch in batches:
            lost = PartitionProduced(
                *batch.queue.topic_partition, error=code, error_message=str(error)
            )
            self._accumulator.handle_answer(batch, lost, now)

    def _report(self) -> None:
        completed = self._accumulator.pop_completed()
        if completed:
            self._report_completed(completed)
