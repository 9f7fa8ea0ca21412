"""The tasks that probe brokers: one for each registration, on a connection of its own.

So a probe never waits behind an order. `heartbeats.py` evaluates the answers. The controller sends
a probe every heartbeat interval, and at once after the first answer on a connection, so that a
newly elected controller confirms as soon as it can. It replaces a connection on which an answer
takes longer than half of the broker's time-out.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import trio

from minibroker.broker.controller.context import NodeContext
from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.heartbeats import BrokerHeartbeats, Confirmation
from minibroker.broker.controller.state import BrokerRegistration
from minibroker.client.net.channel import ChannelOptions, RpcChannel, open_channel
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.control import ProbeRequest, ProbeResponse

AGAIN_S: Final = 0.1  # before a lost connection is replaced; at most a heartbeat interval

log = logging.getLogger(__name__)
Ask: TypeAlias = Callable[[ProbeRequest], Awaitable[ProbeResponse]]


class OrderProgress(NamedTuple):
    """Questions about a broker's orders; each takes its registration.

    `are_acknowledged`: no order waits. `resend_all_roles` sends all roles again and returns a mark,
    or None if nothing can be sent yet. `acknowledged` is compared with the mark.
    """

    are_acknowledged: Callable[[BrokerRegistration], bool]
    resend_all_roles: Callable[[BrokerRegistration], int | None]
    acknowledged: Callable[[BrokerRegistration], int]


class Prober:
    """See the head of this module. `run` is its only task. It calls `on_due` when `heartbeats`
    would fence a broker or end a fence."""

    def __init__(
        self,
        context: NodeContext,
        sender: tuple[ActiveController, int],
        heartbeats: BrokerHeartbeats,
        orders: OrderProgress,
        on_due: Callable[[], None],
    ) -> None:
        self._context = context
        self._active, self._controller_epoch = sender
        self._heartbeats = heartbeats
        self._orders = orders
        self._on_due = on_due
        self._interval_s = context.config.broker_heartbeat_interval_ms / 1000
        self._targets: dict[int, tuple[BrokerRegistration, trio.CancelScope]] = {}
        self._wanted: Mapping[int, BrokerRegistration] = {}
        self._changed = trio.Event()

    def set_registered(self, registered: Mapping[int, BrokerRegistration]) -> None:
        """Set the brokers to probe."""
        self._wanted = {
            node: broker for node, broker in registered.items() if broker.fence_timeout_ms
        }
        self._changed.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                self._set_targets(nursery)
                now = trio.current_time()
                self._heartbeats.tick(now)
                if self._heartbeats.is_due(now):
                    self._on_due()
                with trio.move_on_after(self._interval_s / 2):
                    await self._changed.wait()

    def _set_targets(self, nursery: trio.Nursery) -> None:
        for node, (broker, scope) in list(self._targets.items()):
            if self._wanted.get(node) != broker:
                scope.cancel()
                del self._targets[node]
        for node, broker in self._wanted.items():
            if node not in self._targets:
                scope = trio.CancelScope()
                self._targets[node] = broker, scope
                nursery.start_soon(self._probe, broker, scope)

    async def _probe(self, broker: BrokerRegistration, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    async with self._open(broker) as ask:
                        await self._probe_by(ask, broker)
                except (OSError, BrokerError) as error:
                    log.debug("Broker %d cannot be probed: %s", broker.node_id, error)
                await trio.sleep(min(AGAIN_S, self._interval_s))

    async def _probe_by(self, ask: Ask, broker: BrokerRegistration) -> None:
        """Probe on one connection until it is lost."""
        await self._probe_once(ask, broker)
        while True:
            next_at = trio.current_time() + self._interval_s
            await self._probe_once(ask, broker)
            await trio.sleep_until(next_at)

    async def _probe_once(self, ask: Ask, broker: BrokerRegistration) -> None:
        request = ProbeRequest(
            self._active.node_id,
            self._controller_epoch,
            broker.epoch,
            *self._confirmation(broker),
        )
        answer = await ask(request)
        await trio.lowlevel.checkpoint_if_cancelled()
        if answer.error:
            log.debug("Broker %d refuses a probe: error %d", broker.node_id, answer.error)
            return
        self._heartbeats.on_answer(
            broker,
            answer.stamp,
            answer.lapse,
            trio.current_time(),
            is_obedient=self._orders.are_acknowledged(broker),
        )

    def _confirmation(self, broker: BrokerRegistration) -> Confirmation:
        """What the next probe confirms: nothing once another broker may be the controller."""
        heartbeats, orders = self._heartbeats, self._orders
        if heartbeats.needs_roles(broker):
            mark = orders.resend_all_roles(broker)
            if mark is not None:
                heartbeats.begin_roles(broker, mark)
        heartbeats.on_acknowledged(broker, orders.acknowledged(broker))
        return self.allowed(heartbeats.confirmation(broker), trio.current_time())

    def allowed(self, confirmation: Confirmation, now: float) -> Confirmation:
        """Return the confirmation if this broker's own lease in the store is current, else an empty
        one."""
        return confirmation if self._context.is_session_current(now) else Confirmation()

    @asynccontextmanager
    async def _open(self, broker: BrokerRegistration) -> AsyncIterator[Ask]:
        node_id = self._context.config.node_id
        if broker.node_id == node_id:
            yield self._ask_here
            return
        timeout_s = broker.fence_timeout_ms / 2000
        options = ChannelOptions(f"prober-{node_id}", timeout_s, timeout_s)
        async with open_channel(self._context.network, broker.endpoint, options) as channel:
            yield partial(_ask, channel)

    async def _ask_here(self, request: ProbeRequest) -> ProbeResponse:
        """Probe the controller's own broker."""
        await trio.lowlevel.checkpoint()
        return self._context.probe(request, trio.current_time())


async def _ask(channel: RpcChannel, request: ProbeRequest) -> ProbeResponse:
    return await channel.call(ApiKey.PROBE, request)
