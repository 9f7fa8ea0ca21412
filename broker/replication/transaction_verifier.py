"""The tasks that ask the coordinators of transactions about partitions, for `VerifiedAppends`.

    run
     |- _ask_of     some for each transactional id, with one question under way
     `- _serve(1)   a connection to the coordinators on broker 1; it ends after a while without use

A question that cannot be asked, because no coordinator is known or reached, is answered with an
error after which the producer sends its batch again.
"""

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Final, TypeAlias

import trio

from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.client.net.channel import ChannelOptions, RpcChannel, open_channel
from minibroker.client.net.network import Network
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    TransactionPartitions,
)
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

REQUEST_S_MAX: Final = 10.0
ASKED_AT_ONCE: Final = 5  # questions about one transactional id that are under way
TOLD_S: Final = 10.0  # between two log lines about coordinators that are not reached
IDLE_S: Final = 10.0  # a connection without questions is closed after that

# Asks a coordinator about a transaction of a transaction version; returns the errors of partitions.
Verifier: TypeAlias = Callable[
    [TransactionPartitions, int], Awaitable[Mapping[TopicPartition, int]]
]


class _Link:
    """The connection to one broker: `channel` is None until it is there, and if it was not made."""

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.channel: RpcChannel | None = None
        self.users = 0
        self.idle_since = 0.0


class CoordinatorLinks:
    """A `Verifier` that sends ADD_PARTITIONS_TO_TXN. `run` holds its connections."""

    def __init__(
        self, node_id: int, network: Network, keeper: Callable[[str], BrokerImage | None]
    ) -> None:
        """`keeper` returns the broker that coordinates a transactional id, None if not known."""
        self._options = ChannelOptions(f"verifier-{node_id}", REQUEST_S_MAX, REQUEST_S_MAX)
        self._network = network
        self._keeper = keeper
        self._links: dict[int, _Link] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Hold the connections until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def verify(
        self, asked: TransactionPartitions, version: int
    ) -> Mapping[TopicPartition, int]:
        """Ask the coordinator. Raises OSError or BrokerError if it is not reached."""
        broker = self._keeper(asked.transactional_id)
        if broker is None or self._nursery is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return {TopicPartition(*name): code for name in asked.partitions}
        link = self._links.get(broker.node_id)
        if link is None:
            link = self._links[broker.node_id] = _Link()
            self._nursery.start_soon(self._serve, broker, link)
        link.users += 1
        try:
            await link.ready.wait()
            if link.channel is None:
                raise OSError(f"broker {broker.node_id} is not reached")
            request = AddPartitionsToTxnRequest((asked,), version)
            response = await link.channel.call(ApiKey.ADD_PARTITIONS_TO_TXN, request)
        finally:
            link.users -= 1
            link.idle_since = trio.current_time()
        if response.error or not response.transactions:
            error = response.error or ErrorCode.NETWORK_EXCEPTION
            return {TopicPartition(*name): error for name in asked.partitions}
        results = response.transactions[0].partitions
        return {TopicPartition(each.topic, each.partition): each.error for each in results}

    async def _serve(self, broker: BrokerImage, link: _Link) -> None:
        try:
            async with open_channel(self._network, broker.endpoint, self._options) as channel:
                link.channel = channel
                link.idle_since = trio.current_time()
                link.ready.set()
                while channel.is_open and (
                    link.users or trio.current_time() - link.idle_since < IDLE_S
                ):
                    with trio.move_on_after(IDLE_S):
                        await channel.closed.wait()
                self._forget(broker.node_id, link)
        except (OSError, BrokerError) as error:
            logger.info("Broker %d is asked about no transaction: %s", broker.node_id, error)
        finally:
            self._forget(broker.node_id, link)
            link.channel = None
            link.ready.set()

    def _forget(self, node_id: int, link: _Link) -> None:
        if self._links.get(node_id) is link:
            del self._links[node_id]


class TransactionVerifier:
    """Asks what `VerifiedAppends` wants to know, by a verifier."""

    def __init__(self, appends: VerifiedAppends, verify: Verifier) -> None:
        self._waiting: dict[str, deque[tuple[TransactionPartitions, int]]] = {}  # by id
        self._tasks: Counter[str] = Counter()  # by id
        self._appends = appends
        self._verify = verify
        self._asked = trio.Event()
        self._told_at = -inf
        appends.on_question = self._wake

    def _wake(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._asked = trio.Event()
                while questions := self._appends.take_questions():
                    for asked, version in questions:
                        transactional_id = asked.transactional_id
                        waiting = self._waiting.setdefault(transactional_id, deque())
                        waiting.append((asked, version))
                        if self._tasks[transactional_id] < ASKED_AT_ONCE:
                            self._tasks[transactional_id] += 1
                            nursery.start_soon(self._ask_of, transactional_id)
                    await trio.lowlevel.checkpoint()
                await self._asked.wait()

    async def _ask_of(self, transactional_id: str) -> None:
        """Ask about an id until nothing waits."""
        waiting = self._waiting[transactional_id]
        try:
            while waiting:
                await self._ask(*waiting.popleft())
        finally:
            self._tasks[transactional_id] -= 1
            if not self._tasks[transactional_id]:
                del self._tasks[transactional_id], self._waiting[transactional_id]

    async def _ask(self, asked: TransactionPartitions, version: int) -> None:
        errors: Mapping[TopicPartition, int] = {}
        try:
            errors = await self._verify(asked, version)
        except (OSError, BrokerError) as error:
            self._tell(asked.transactional_id, error)
        finally:
            # Nothing waits for an answer that never comes.
            self._appends.answer(asked, version, errors, trio.current_time())

    def _tell(self, transactional_id: str, error: Exception) -> None:
        """Log that a coordinator is not reached, not for each of the batches that wait for it."""
        now = trio.current_time()
        if now - self._told_at >= TOLD_S:
            self._told_at = now
            logger.info("The coordinator of %.200r is not reached: %s", transactional_id, error)
