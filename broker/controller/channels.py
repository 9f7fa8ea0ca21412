"""The tasks that send orders and metadata to brokers, one task for each registration.

A channel sends the requests of its `pushes` on one connection, each after the answer to the one
before. If the broker refuses a request as a whole, the channel opens a new connection after a
pause, and sends that request again first. A broker that does not answer delays no other broker. To
its own broker the controller makes plain calls instead of a connection; the rest is the same.

Requests are numbered. A connection that was given up while the broker was silent may still bring
its request after later ones: the broker refuses it, since it would bring back an old state.

A channel ends only by cancellation, when its registration or the controller is gone. From then on
it does not touch `pushes`, because the next channel of the same process continues with them.
"""

import logging
import math
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

import trio

from minibroker.broker.controller.context import NodeContext, OwnBrokerHandlers
from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.plans import NO_CHANGE, Change
from minibroker.broker.controller.pushes import Acknowledgement, Push, Pushes
from minibroker.broker.controller.state import BrokerRegistration, State, Tombstone
from minibroker.broker.turns import take_turns
from minibroker.client.net.channel import ChannelOptions, RpcChannel, open_channel
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)

# The turns of the loop before a request to the controller's own broker. Another broker's answer
# takes about as many, so all brokers create new logs at the same pace: a follower that is ahead
# would fetch from leaders that do not lead yet.
TURNS_OF_OTHERS: Final = 3
REQUEST_S_MAX: Final = 10.0  # of one request to a broker of an earlier version
BACKOFF_S: Final = 0.02
BACKOFF_S_MAX: Final = 1.0
REPEAT_S_MAX: Final = 5.0  # between two attempts at what a broker refuses

log = logging.getLogger(__name__)
Send: TypeAlias = Callable[[Push], Awaitable[Any]]


class Channel:
    """See the head of this module. `run` is its task; `wake` has it look for more to send."""

    def __init__(
        self,
        context: NodeContext,
        pushes: Pushes,
        numbers: Iterator[int],
        state: Callable[[], State],
        on_acknowledged: Callable[[BrokerRegistration, Acknowledgement], None],
    ) -> None:
        self.pushes = pushes
        self.scope = trio.CancelScope()
        self._context = context
        self._numbers = numbers
        self._state = state
        self._on_acknowledged = on_acknowledged
        self._woken = trio.Event()

    def wake(self) -> None:
        """Look for more to send."""
        self._woken.set()

    async def run(self) -> None:
        """Send requests to the broker until `scope` is cancelled."""
        backoff_s = BACKOFF_S
        with self.scope:
            while True:
                try:
                    async with self.open() as send:
                        while await self._tell(send):
                            backoff_s = BACKOFF_S
                except (OSError, BrokerError) as error:
                    log.info("Broker %d cannot be told: %s", self.pushes.broker.node_id, error)
                await trio.lowlevel.checkpoint_if_cancelled()
                self.pushes.fail()
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def describe(self) -> DescribeReplicasResponse:
        """Ask the broker for a description of its replicas. Raises `OSError`."""
        push = Push(ApiKey.DESCRIBE_REPLICAS, DescribeReplicasRequest())
        async with self.open() as send:
            response = await send(push)
        assert isinstance(response, DescribeReplicasResponse)
        return response

    async def _wait(self) -> None:
        """Wait until there is more to send, or a refused request is due again."""
        pause_s = REPEAT_S_MAX if self.pushes.has_refused else math.inf
        with trio.move_on_after(pause_s) as pause:
            while not self.pushes.has_more:
                self._woken = trio.Event()
                await self._woken.wait()
        if pause.cancelled_caught:
            self.pushes.repeat()

    async def _tell(self, send: Send) -> bool:
        """Send the next request, or wait for one; False if the broker refused it as a whole."""
        await trio.lowlevel.checkpoint_if_cancelled()  # `_wait` may have ended in this turn
        push = self.pushes.next(self._state())
        if push is None:
            await self._wait()
            return True
        push = push._replace(request=replace(push.request, number=next(self._numbers)))
        response = await send(push)
        await trio.lowlevel.checkpoint_if_cancelled()
        acknowledgement = self.pushes.handle_response(push, response)
        if acknowledgement is None:
            node_id, error = self.pushes.broker.node_id, response.error
            log.info("Broker %d refuses what it is told: error %d", node_id, error)
            return False
        self._on_acknowledged(self.pushes.broker, acknowledgement)
        return True

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Send]:
        """Open a new connection for requests to the broker. Raises `OSError`."""
        broker: BrokerRegistration = self.pushes.broker
        node_id = self._context.config.node_id
        if broker.node_id == node_id:
            yield _local(self._context.order_handlers)
            return
        # A broker that acknowledges nothing for so long is not heard; a new connection may help.
        timeout_s = broker.fence_timeout_ms / 1000 or REQUEST_S_MAX
        options = ChannelOptions(f"controller-{node_id}", timeout_s, timeout_s)
        async with open_channel(self._context.network, broker.endpoint, options) as channel:
            yield partial(_send, channel)


class Channels:
    """One channel for each live registration. The keys of `live` are node ids.

    The pushes of a registration that has gone are kept: the same process may register again.
    """

    def __init__(
        self,
        context: NodeContext,
        active: ActiveController,
        controller_epoch: int,
        state: Callable[[], State],
        on_acknowledged: Callable[[BrokerRegistration, Acknowledgement], None],
    ) -> None:
        self.live: dict[int, Channel] = {}
        self._away: dict[int, Pushes] = {}
        self._context = context
        self._active = active
        self._controller_epoch = controller_epoch
        self._numbers = count(1)
        self._get_state = state
        self._on_acknowledged = on_acknowledged

    def set(self, state: State, nursery: trio.Nursery) -> None:
        """Open channels to new registrations, and end those to registrations that have gone."""
        for node, channel in list(self.live.items()):
            if state.brokers.get(node) != channel.pushes.broker:
                channel.scope.cancel()
                self._away[node] = self.live.pop(node).pushes
        for node, broker in state.brokers.items():
            if node not in self.live:
                pushes = self._pushes_of(broker, state)
                channel = Channel(
                    self._context, pushes, self._numbers, self._get_state, self._on_acknowledged
                )
                self.live[node] = channel
                nursery.start_soon(channel.run)

    def _pushes_of(self, broker: BrokerRegistration, state: State) -> Pushes:
        """The kept pushes of this process, or new ones, which begin with everything."""
        pushes = self._away.pop(broker.node_id, None)
        if pushes is not None and pushes.broker.process == broker.process:
            pushes.renew(broker)
            return pushes
        pushes = Pushes(broker, self._active, self._controller_epoch)
        pushes.stop(state.tombstones.values())
        return pushes

    def add_change(self, change: Change, tombstones: Sequence[Tombstone]) -> None:
        """Queue a change and deleted topics for each broker."""
        for pushes in (*(channel.pushes for channel in self.live.values()), *self._away.values()):
            if change != NO_CHANGE:
                pushes.add(change)
            pushes.stop(tombstones)
        for channel in self.live.values():
            channel.wake()

    def change_counts(self, nodes: Collection[int]) -> Mapping[int, int]:
        """Return a mark for each of these brokers that is live: what it must be told by now."""
        return {node: self.live[node].pushes.change_count for node in nodes if node in self.live}

    def staying(self, state: State) -> list[int]:
        """Return the live brokers that are not fenced and have not asked to stop."""
        return [
            node for node in self.live if not state.is_leaving(node) and node not in state.fenced
        ]

    def uncreated(self, state: State) -> Mapping[str, int]:
        """Count by topic the partitions whose leader has no room for their logs."""
        count = Counter[str]()
        for node, channel in self.live.items():
            for name, error in channel.pushes.uncreated.items():
                record = state.partition(name)
                is_led = record is not None and record.leader == node
                count[name.topic] += is_led and error == ErrorCode.KAFKA_STORAGE_ERROR
        return count

    def are_acknowledged(self, broker: BrokerRegistration) -> bool:
        """Whether no order waits for this registration."""
        channel = self._of(broker)
        return channel is None or channel.pushes.acknowledged >= channel.pushes.change_count

    def acknowledged(self, broker: BrokerRegistration) -> int:
        """What this registration has acknowledged, to compare with a mark; -1 before anything."""
        channel = self._of(broker)
        return -1 if channel is None else channel.pushes.acknowledged

    def resend_all_roles(self, broker: BrokerRegistration) -> int | None:
        """Send all roles to this registration again. Return the mark of that; None if the
        registration is not admitted yet."""
        channel = self._of(broker)
        if channel is None:
            return None
        mark = channel.pushes.resend_all_roles()
        channel.wake()
        return mark

    def _of(self, broker: BrokerRegistration) -> Channel | None:
        channel = self.live.get(broker.node_id)
        return channel if channel is not None and channel.pushes.broker == broker else None

    def has_acknowledged(self, marks: Mapping[int, int]) -> bool:
        """Whether each broker of these marks that is still live has acknowledged up to its mark."""
        return all(
            channel.pushes.acknowledged >= marks.get(node, 0) for node, channel in self.live.items()
        )


async def _send(channel: RpcChannel, push: Push) -> Any:
    return await channel.call(push.api_key, push.request)


def _local(order_handlers: OwnBrokerHandlers) -> Send:
    """Send to the controller's own broker, by plain calls."""
    calls: dict[ApiKey, Callable[[Any, float], Any]] = {
        ApiKey.UPDATE_METADATA: order_handlers.update_metadata,
        ApiKey.STOP_REPLICA: order_handlers.stop,
        ApiKey.LEADER_AND_ISR: order_handlers.obey_roles,
        ApiKey.DESCRIBE_REPLICAS: order_handlers.describe,
        ApiKey.HAND_OVER: order_handlers.hand_over,
    }

    async def send(push: Push) -> Any:
        for _ in range(TURNS_OF_OTHERS):
            await trio.lowlevel.checkpoint()
        answer = calls[push.api_key](push.request, trio.current_time())
        return await take_turns(answer) if isinstance(answer, Generator) else answer

    return send
