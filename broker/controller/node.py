"""A broker's part in control: it registers, may be elected controller, and asks whoever is.

    ControllerNode.run
     |- BrokerSession.keep     renews the lease, until it is lost
     |- _watch_brokers         who is registered
     |- _look_for_vacancy      whether anybody can fence this broker at all
     |- _elect_when_vacant     who is controller; elects itself when nobody is
     |   `- Controller.run     as long as it is
     |- _claim_producer_ids    blocks of producer ids
     `- ControllerCalls.run    requests for the controller that nobody waits for here

The first four end with the session. Then the broker registers again. If it was the controller, it
is not any more. It goes on serving meanwhile: leader epochs fence it where others were elected.

What the broker promises alone (acks 0 and 1, committed offsets) rests on two leases: the session,
by which its registration stands, and the controller lease (`controller_lease.py`), by which the
controller has not fenced it. `may_decide_alone` asks both.

To be elected is one transaction: the controller key, which must be absent (or this node's own from
a former life), and the next controller epoch. From then on every write of the controller compares
the key's revision, so one that was paused past its lease cannot write.
"""

import logging
from collections.abc import Iterable
from random import Random
from typing import Any, Final

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller import entries
from minibroker.broker.controller.backoff import Backoff
from minibroker.broker.controller.broker_session import BrokerSession, SessionStatistics
from minibroker.broker.controller.context import (
    Job,
    NodeContext,
    OwnBrokerHandlers,
    RegistrationFacts,
)
from minibroker.broker.controller.controller import (
    Controller,
    ControllerIsolated,
    ControllerLost,
)
from minibroker.broker.controller.controller_calls import (
    CALL_AGAIN_S,
    CALL_S_MAX,
    ControllerCalls,
)
from minibroker.broker.controller.controller_lease import ControllerLease
from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.producer_ids import ProducerIds, claim_block
from minibroker.broker.controller.requests import Request
from minibroker.broker.controller.state import ClosedLog, Departure
from minibroker.broker.controller.statistics import Statistics
from minibroker.broker.controller.store_retry import StoreRetry
from minibroker.broker.metadata.store import (
    Compare,
    LeaseLost,
    MetadataStore,
    Snapshot,
    StoreUnavailable,
)
from minibroker.broker.turns import without_pause
from minibroker.client.net.network import Network
from minibroker.protocol.constants import NO_EPOCH, NO_STAMP, ApiKey
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.configs import AlterConfigsRequest
from minibroker.protocol.messages.control import (
    ControlledShutdownRequest,
    ProbeRequest,
    ProbeResponse,
)
from minibroker.protocol.messages.topics import CreateTopicsRequest

RESIGN_S_MAX: Final = 2.0  # that a stop waits for a store that may not answer

log = logging.getLogger(__name__)


class ControllerNode:
    """See the head of this module. One for each broker; `run` is its one task."""

    def __init__(
        self,
        config: Config,
        store: MetadataStore,
        network: Network,
        order_handlers: OwnBrokerHandlers,
        rng: Random,
    ) -> None:
        self._store_retry = StoreRetry(config.node_id)
        self._config = config
        self._node_id = config.node_id
        self._store = store
        self._process = rng.randbytes(8).hex()
        self._heartbeat_s = config.broker_heartbeat_interval_ms / 1000
        self._session = BrokerSession(
            store,
            self._store_retry,
            config.broker_session_timeout_ms / 1000,
            self._heartbeat_s,
            rng,
        )
        self._controller_lease = ControllerLease(config.fence_timeout_ms / 1000)
        self._candidacy = Backoff(config.fence_timeout_ms / 1000, rng)
        self._context = NodeContext(
            config,
            store,
            self._store_retry,
            network,
            order_handlers,
            rng,
            self.probe,
            self._session.is_current,
        )
        self._calls = ControllerCalls(self._context)
        self._brokers_revision = 0  # of the registrations that `_calls` knows
        self._controller_scope = trio.CancelScope()  # of the controller here
        self._has_left = False
        self._registered = trio.CancelScope()  # as long as the registration stands and is true
        self._producer_ids = ProducerIds()
        self._ids_wanted = trio.Event()

    # -- what the rest of the broker asks

    @property
    def broker_epoch(self) -> int:
        """The epoch of the present registration, -1 before the first."""
        return self._session.epoch

    @property
    def is_controller(self) -> bool:
        """Whether this broker believes that it is the controller."""
        return self._calls.controller is not None

    def statistics(self) -> Statistics | None:
        """Return the statistics of the controller if it runs here, else None."""
        controller = self._calls.controller
        return None if controller is None else controller.statistics()

    def session_statistics(self) -> SessionStatistics:
        """Return the statistics of this broker's lease."""
        return self._session.statistics()

    def may_decide_alone(self, now: float) -> bool:
        """Whether no other broker can have been elected in this one's place: both leases hold."""
        return self._session.is_current(now) and self._controller_lease.is_current(now)

    def is_session_current(self, now: float) -> bool:
        """Whether the lease of this broker's registration has surely not ended."""
        return self._session.is_current(now)

    def is_controller_lease_current(self, now: float) -> bool:
        """Whether no controller can have fenced this broker."""
        return self._controller_lease.is_current(now)

    def store_trouble(self) -> str:
        """Return why the metadata store is unavailable; "" if it is not."""
        return self._store_retry.trouble()

    def probe(self, request: ProbeRequest, now: float) -> ProbeResponse:
        """Answer a controller's probe."""
        response = self._controller_lease.on_probe(request, self.broker_epoch, now)
        is_heard = not response.error and request.confirmed != NO_STAMP
        if is_heard and request.controller_id != self._node_id:
            self._candidacy.on_success()
        return response

    def submit(self, request: Request) -> Job[Any]:
        """Hand a request to the controller if it runs here; otherwise refuse it at once."""
        return self._calls.submit(request)

    async def call(self, api_key: ApiKey, request: Request) -> Any:
        """Return the active controller's answer. Raises as `ControllerCalls.call`."""
        return await self._calls.call(api_key, request)

    def forward(self, request: CreateTopicsRequest | AlterConfigsRequest) -> Job[Any]:
        """Call in the background; a failure becomes an error for each topic."""
        return self._calls.forward(request)

    def next_producer_id(self) -> int | None:
        """Return a new producer id; None while the next block is being claimed."""
        producer_id = self._producer_ids.next_id()
        if self._producer_ids.ask():
            self._ids_wanted.set()
        return producer_id

    def register_anew(self) -> None:
        """Register again, because a fact in the registration has changed."""
        self._registered.cancel()

    # -- life

    async def run(
        self,
        registration: RegistrationFacts,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Register and take part until cancelled. Reports the broker epoch once registered.

        Raises `StoreError` if the store cannot be used, and `NodeIdTaken` if another broker has or
        takes this node id.
        """
        self._session.level_revision = registration.level_revision
        await self._register(registration, is_start=True)
        claimed = await self._store_retry.ask_at_start(claim_block, self._store)
        self._producer_ids.add(claimed)
        task_status.started(self.broker_epoch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._claim_producer_ids)
            nursery.start_soon(self._calls.run)
            while True:
                with self._registered:
                    async with trio.open_nursery() as session:
                        session.start_soon(self._watch_brokers)
                        session.start_soon(self._look_for_vacancy)
                        session.start_soon(self._elect_when_vacant)
                        await self._session.keep()
                        session.cancel_scope.cancel()
                log.warning("[Broker id=%d] Its session ended; registering anew", self._node_id)
                if not self._registered.cancelled_caught:
                    await self._session.pause_after_loss()
                await self._register(registration)

    async def _register(self, registration: RegistrationFacts, *, is_start: bool = False) -> None:
        self._registered = trio.CancelScope()
        wanted = registration.as_of_now(self._node_id, self._process, self._config)
        ask = self._store_retry.ask_at_start if is_start else self._store_retry.ask
        await ask(self._session.register, wanted)
        self._controller_lease.begin(self._session.registered_at)

    async def leave(self) -> None:
        """Before a clean stop: hand leaderships and the controller's role to other brokers.

        `run` continues until it is cancelled. Never raises for failures of other brokers.
        """
        config = self._config
        if config.controlled_shutdown_enable:
            for attempt in range(1 + config.controlled_shutdown_max_retries):
                if attempt:
                    await self._pause(config.controlled_shutdown_retry_backoff_ms / 1000)
                if await self._is_let_go() or not await self._may_others_lead():
                    break
        # Not earlier: if all brokers leave together, one must be controller for the others.
        self._has_left = True
        await self._resign()

    async def close(self, logs: Iterable[ClosedLog] | None = None) -> None:
        """End a clean stop, when all data is on disk: remove the registration.

        `logs` are the closed logs, which are written for the audit: it needs to know what must
        still be there. None if they could not be closed properly.
        """
        try:
            if logs is not None and self.broker_epoch != NO_EPOCH:
                departure = Departure(self._node_id, self.broker_epoch, tuple(logs))
                for put in entries.departure_puts(departure):
                    await self._store.transact([], [put])
            await self._session.end()
        except StoreUnavailable as error:
            log.warning("The registration could not be withdrawn, it will lapse: %s", error)

    # -- the session

    async def _watch_brokers(self) -> None:
        after = 0
        while True:
            snapshot = await self._store_retry.watch(self._store, entries.BROKERS, after)
            after = snapshot.revision
            brokers = entries.read_brokers(snapshot.entries)
            self._session.check(brokers.get(self._node_id))
            self._brokers_revision = after
            self._calls.set_brokers(brokers)
            if self._calls.controller is not None:
                self._calls.controller.on_brokers(after, brokers)

    async def _look_for_vacancy(self) -> None:
        """While no controller that fences is elected, ask the store whether that is still so: no
        controller can fence this broker until a fence time-out after the last such answer."""
        while True:
            await trio.sleep(self._heartbeat_s)
            active = self._calls.active
            if active is not None and active.fences:
                continue
            asked_at = trio.current_time()
            try:
                snapshot = await self._store.get(entries.CONTROLLER)
            except StoreUnavailable:
                continue
            active = entries.read_active_controller(snapshot.entries)
            if active is None or not active.fences:
                now = trio.current_time()
                self._controller_lease.on_vacancy(asked_at, now)
                if active is not None and not self.is_controller_lease_current(now):
                    self.register_anew()  # else this controller does not say when roles stand

    async def _elect_when_vacant(self) -> None:
        """Follow the controller's key in the store, and stand for election when it is vacant."""
        after = 0
        while True:
            snapshot = await self._follow(after)
            pause_s = self._candidacy.draw_pause_s()
            while pause_s and self._may_be_elected(snapshot):
                with trio.move_on_after(pause_s) as pause:
                    snapshot = await self._follow(snapshot.revision)
                if pause.cancelled_caught:
                    break
            after = snapshot.revision
            if not self._may_be_elected(snapshot):
                continue
            found = snapshot.entries
            epoch = entries.read_controller_epoch(found) + 1
            keys = entries.CONTROLLER, entries.CONTROLLER_EPOCH
            compare = [Compare(key, entries.revision_of(found, key)) for key in keys]
            puts = entries.active_controller_puts(self._node_id, epoch, self._session.lease_id)
            try:
                outcome = await self._store_retry.ask(self._store.transact, compare, puts)
            except LeaseLost:
                return  # the renewal will fail, too
            if outcome.succeeded:
                active = ActiveController(self._node_id, outcome.revision)
                self._calls.set_active(active)
                await self._run_controller(Controller(self._context, active, epoch))

    async def _follow(self, after: int) -> Snapshot:
        """Wait until the controller's key changes, and return it."""
        snapshot = await self._store_retry.watch(self._store, entries.CONTROLLER, after)
        self._calls.set_active(entries.read_active_controller(snapshot.entries))
        return snapshot

    def _may_be_elected(self, snapshot: Snapshot) -> bool:
        """Whether there is no active controller, or only an earlier run of this node."""
        active = entries.read_active_controller(snapshot.entries)
        return not self._has_left and (active is None or active.node_id == self._node_id)

    async def _run_controller(self, controller: Controller) -> None:
        """Run the controller until another one is elected or this one resigns."""
        # It probes the brokers while it reads the store, so that their leases do not lapse.
        controller.on_brokers(self._brokers_revision, self._calls.brokers)
        self._calls.set_controller(controller)
        is_isolated = False
        try:
            with trio.CancelScope() as self._controller_scope:
                await controller.run()
        except* ControllerLost:
            log.warning("[Broker id=%d] It is not the controller any more", self._node_id)
        except* ControllerIsolated:
            is_isolated = True
        finally:
            self._calls.set_controller(None)
            controller.dismiss()
        if is_isolated:
            self._candidacy.on_failure()
            log.warning(
                "[Broker id=%d] It resigns as controller: it hears fewer than half of the"
                " registered brokers, so that another one shall govern",
                self._node_id,
            )
            await self._store_retry.ask(self._store.transact, *controller.resignation)
        else:
            self._candidacy.on_success()

    async def _resign(self) -> None:
        """Resign as controller, so that other brokers need not wait for the end of the lease."""
        controller = self._calls.controller
        if controller is None:
            return
        self._controller_scope.cancel()
        try:
            with trio.fail_after(RESIGN_S_MAX):
                await self._store.transact(*controller.resignation)
        except (StoreUnavailable, trio.TooSlowError) as error:
            log.warning("The broker could not resign as controller: %r", error)

    # -- leaving

    async def _is_let_go(self) -> bool:
        """Ask to leave. Return whether asking again is of no use."""
        with trio.move_on_after(CALL_S_MAX):
            while True:
                # Made anew each time: the session may have been lost meanwhile.
                request = ControlledShutdownRequest(self._node_id, self.broker_epoch)
                try:
                    response = await self.call(ApiKey.CONTROLLED_SHUTDOWN, request)
                except (OSError, BrokerError) as error:
                    log.info("The request to leave was not answered: %s", error)
                    await trio.sleep(CALL_AGAIN_S)
                    continue
                if response.remaining:
                    level = logging.WARNING if await self._may_others_lead() else logging.INFO
                    text = "%d partitions are still led here: no other in-sync replica stays"
                    log.log(level, text, len(response.remaining))
                elif response.error:
                    log.warning("The request to leave was refused: error %d", response.error)
                return not response.error and not response.remaining
        log.warning("No controller answered the request to leave")
        return True

    async def _pause(self, seconds: float) -> None:
        """Wait before asking again, but not longer than other brokers may lead."""
        with trio.move_on_after(seconds):
            changed = self._calls.changed
            while await self._may_others_lead():
                await changed.wait()
                changed = self._calls.changed

    async def _may_others_lead(self) -> bool:
        """Whether another broker is live and stays, so that asking again can help."""
        try:
            found = (await self._store.get(entries.ADMISSIONS)).entries
        except StoreUnavailable:
            return True
        admissions = without_pause(entries.read_state(found)).admissions
        others = self._calls.brokers.keys() - {self._node_id}
        return any(not (one in admissions and admissions[one].is_leaving) for one in others)

    # -- producer ids

    async def _claim_producer_ids(self) -> None:
        while True:
            await self._ids_wanted.wait()
            self._ids_wanted = trio.Event()
            self._producer_ids.add(await self._store_retry.ask(claim_block, self._store))
