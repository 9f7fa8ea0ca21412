"""A broker's part in control: it registers, may be elected controller, and asks whoever is.

    ControllerNode.run
     |- BrokerSession.keep     renews the lease, until it is lost
     |- _watch_brokers         who is registered
     |- _stand                 who is controller; elects itself when nobody is
     |   `- Controller.run     as long as it is
     |- _claim_producer_ids    blocks of producer ids
     `- _forward_all           requests for the controller that nobody waits for here

The first three end with the session. Then the broker registers anew: it has lost the office, if it
had it, but goes on serving, for epochs fence whatever others have decided meanwhile.

To be elected is one transaction: the controller key, which must be absent (or this node's own from
a former life), and the next controller epoch. From then on every write of the controller compares
the key's revision, so one that was paused past its lease cannot write.
"""

import logging
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any, Final

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller import entries
from minibroker.broker.controller.controller import Controller, ControllerLost
from minibroker.broker.controller.entries import Office
from minibroker.broker.controller.patience import Patience
from minibroker.broker.controller.ports import Job, Ports, Registration, Surroundings
from minibroker.broker.controller.producer_ids import ProducerIds, claim_block
from minibroker.broker.controller.requests import Request, is_refused, refuse
from minibroker.broker.controller.session import BrokerSession, SessionStatistics
from minibroker.broker.controller.state import ClosedLog, Departure, Registered
from minibroker.broker.controller.statistics import Statistics
from minibroker.broker.metadata.store import (
    Compare,
    Delete,
    LeaseLost,
    MetadataStore,
    StoreUnavailable,
)
from minibroker.broker.turns import without_pause
from minibroker.client.channel import ChannelOptions, open_channel
from minibroker.client.net import Network
from minibroker.protocol.constants import NO_EPOCH, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.control import ControlledShutdownRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest

CALL_S_MAX: Final = 10.0  # for an answer of the controller, across elections
CALL_AGAIN_S: Final = 0.05  # after NOT_CONTROLLER
RESIGN_S_MAX: Final = 2.0  # that a stop waits for a store which may have given up the office
NOT_CONTROLLER_TEXT: Final = "this broker is not the controller"

log = logging.getLogger(__name__)


class NoController(OSError):
    """No controller answered in time. Whether one did what was asked is not known."""


class ControllerNode:
    """See the head of this module. One for each broker; `run` is its one task."""

    def __init__(
        self, config: Config, store: MetadataStore, network: Network, ports: Ports, rng: Random
    ) -> None:
        self._patience = Patience(config.node_id)
        self._around = Surroundings(config, store, self._patience, network, ports, rng)
        self._node_id = config.node_id
        self._store = store
        self._process = rng.randbytes(8).hex()
        self._session = BrokerSession(
            store,
            self._patience,
            config.broker_session_timeout_ms / 1000,
            config.broker_heartbeat_interval_ms / 1000,
        )
        self._office: Office | None = None
        self._brokers: dict[int, Registered] = {}
        self._changed = trio.Event()  # the office, the registrations, or the controller here
        self._calls: dict[trio.CancelScope, None] = {}  # to who holds the office
        self._controller: Controller | None = None
        self._term = trio.CancelScope()  # of the controller here
        self._has_left = False
        self._registered = trio.CancelScope()  # as long as the registration stands and is true
        self._producer_ids = ProducerIds()
        self._ids_wanted = trio.Event()
        self._forwards: deque[Job[Any]] = deque()
        self._forwarding = trio.Event()

    # -- what the rest of the broker asks

    @property
    def broker_epoch(self) -> int:
        """Of the present registration, -1 before the first."""
        return self._session.epoch

    @property
    def is_controller(self) -> bool:
        """Whether this broker believes that it is the controller."""
        return self._controller is not None

    def statistics(self) -> Statistics | None:
        """Counts of the controller here; None where it is not."""
        return None if self._controller is None else self._controller.statistics()

    def session_statistics(self) -> SessionStatistics:
        """How this broker's lease is kept."""
        return self._session.statistics()

    def is_lease_current(self, now: float) -> bool:
        """Whether the others must still count this broker as live, as far as it can know."""
        return self._session.is_current(now)

    def store_trouble(self) -> str:
        """What is wrong with the metadata store at present; empty if nothing is."""
        return self._patience.trouble()

    def submit(self, request: Request) -> Job[Any]:
        """Hand a request to the controller, if that is here; else it is refused at once."""
        if self._controller is not None:
            return self._controller.submit(request)
        job = Job[Any](request)
        job.finish(refuse(request, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT))
        return job

    async def call(self, api_key: ApiKey, request: Request) -> Any:
        """The answer of whoever is controller.

        Raises `OSError` where none answered in time, or the connection to it was lost: it may
        have done what was asked.
        """
        with trio.move_on_after(CALL_S_MAX):
            while True:
                response = await self._try_call(api_key, request)
                if response is not None:
                    return response
        trouble = self.store_trouble()
        raise NoController("no controller answered in time" + (trouble and f" ({trouble})"))

    def forward(self, request: CreateTopicsRequest) -> Job[Any]:
        """`call` in the background; its failure is LEADER_NOT_AVAILABLE for each topic."""
        if self._controller is not None:
            return self._controller.submit(request)
        job = Job[Any](request)
        self._forwards.append(job)
        self._forwarding.set()
        return job

    def next_producer_id(self) -> int | None:
        """A producer id that nobody had, or None while the next block is on its way."""
        producer_id = self._producer_ids.take()
        if self._producer_ids.ask():
            self._ids_wanted.set()
        return producer_id

    def register_anew(self) -> None:
        """Something that the registration says has changed: come back, as it is now."""
        self._registered.cancel()

    # -- life

    async def run(
        self,
        registration: Registration,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take part until cancelled; started with the broker epoch, once registered.

        Raises `StoreError` if the store cannot be used, `NodeIdTaken` if another broker has, or
        takes, this node id.
        """
        await self._register(registration)
        self._producer_ids.add(await self._patience.ask(claim_block, self._store))
        task_status.started(self.broker_epoch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._claim_producer_ids)
            nursery.start_soon(self._forward_all)
            while True:
                with self._registered:
                    async with trio.open_nursery() as session:
                        session.start_soon(self._watch_brokers)
                        session.start_soon(self._stand)
                        await self._session.keep()
                        session.cancel_scope.cancel()
                log.warning("[Broker id=%d] Its session ended; registering anew", self._node_id)
                await self._register(registration)

    async def _register(self, registration: Registration) -> None:
        self._registered = trio.CancelScope()
        wanted = registration.as_of_now(self._node_id, self._process)
        await self._patience.ask(self._session.register, wanted)

    async def leave(self) -> None:
        """Before a clean stop: have others lead, and be controller, as far as they can.

        `run` goes on until it is cancelled. Never raises for others' failures.
        """
        config = self._around.config
        if config.controlled_shutdown_enable:
            for attempt in range(1 + config.controlled_shutdown_max_retries):
                if attempt:
                    await self._pause(config.controlled_shutdown_retry_backoff_ms / 1000)
                if await self._is_let_go() or not await self._may_others_lead():
                    break
        # Not before: where all leave at once, one of them must let the others go.
        self._has_left = True
        await self._resign()

    async def close(self, logs: Iterable[ClosedLog] | None = None) -> None:
        """The last thing of a clean stop, once all is on disk: let the registration vanish.

        `logs` are those that were closed; they are kept for the audit, which else could not know
        what must still be there. None: they were not closed as they should be.
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
            snapshot = await self._patience.watch(self._store, entries.BROKERS, after)
            after = snapshot.revision
            self._brokers = entries.read_brokers(snapshot.entries)
            self._session.check(self._brokers.get(self._node_id))
            if self._controller is not None:
                self._controller.note_brokers(snapshot.revision, self._brokers)
            self._wake()

    async def _stand(self) -> None:
        """Follow who is controller, and be it when nobody is."""
        after = 0
        while True:
            snapshot = await self._patience.watch(self._store, entries.CONTROLLER, after)
            after = snapshot.revision
            found = snapshot.entries
            office = entries.read_office(found)
            self._note_office(office)
            if self._has_left or (office is not None and office.node_id != self._node_id):
                continue
            epoch = entries.read_controller_epoch(found) + 1
            keys = entries.CONTROLLER, entries.CONTROLLER_EPOCH
            compare = [Compare(key, entries.revision_of(found, key)) for key in keys]
            puts = entries.office_puts(self._node_id, epoch, self._session.lease_id)
            try:
                outcome = await self._patience.ask(self._store.transact, compare, puts)
            except LeaseLost:
                return  # the renewal will hear of it too
            if outcome.succeeded:
                self._office = Office(self._node_id, outcome.revision)
                await self._govern(Controller(self._around, self._office, epoch))

    async def _govern(self, controller: Controller) -> None:
        """Be controller until the office is lost or given up."""
        self._controller = controller
        self._wake()
        try:
            with trio.CancelScope() as self._term:
                await controller.run()
        except* ControllerLost:
            log.warning("[Broker id=%d] It is not the controller any more", self._node_id)
        finally:
            self._controller = None
            controller.dismiss()
            self._wake()

    async def _resign(self) -> None:
        """Give up the office, so that the others need not wait for its lease to end."""
        if self._controller is None:
            return
        assert self._office is not None
        compare = [Compare(entries.CONTROLLER, self._office.revision)]
        self._term.cancel()
        try:
            with trio.fail_after(RESIGN_S_MAX):
                await self._store.transact(compare, [Delete(entries.CONTROLLER)])
        except (StoreUnavailable, trio.TooSlowError) as error:
            log.warning("The office of controller could not be given up: %r", error)

    # -- requests to the controller

    def _note_office(self, office: Office | None) -> None:
        """Who was replaced, and perhaps only stopped, is not waited for any more."""
        if office != self._office:
            for call in self._calls:
                call.cancel()
        self._office = office
        self._wake()

    async def _try_call(self, api_key: ApiKey, request: Request) -> Any | None:
        """One attempt; None if there is no controller, or it was not what was asked."""
        office, response = self._office, None
        if office is not None and office.node_id == self._node_id and self._controller is not None:
            response = await self._controller.submit(request).wait()
        elif office is not None and office.node_id in self._brokers.keys() - {self._node_id}:
            endpoint = self._brokers[office.node_id].endpoint
            options = ChannelOptions(f"broker-{self._node_id}", CALL_S_MAX, CALL_S_MAX)
            with trio.CancelScope() as call:
                self._calls[call] = None
                try:
                    async with open_channel(self._around.network, endpoint, options) as channel:
                        response = await channel.call(api_key, request)
                finally:
                    del self._calls[call]
        else:
            await self._changed.wait()
        if response is not None and is_refused(response, ErrorCode.NOT_CONTROLLER):
            await trio.sleep(CALL_AGAIN_S)
            return None
        return response

    async def _forward_all(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                while not self._forwards:
                    self._forwarding = trio.Event()
                    await self._forwarding.wait()
                nursery.start_soon(self._forward, self._forwards.popleft())

    async def _forward(self, job: Job[Any]) -> None:
        try:
            job.finish(await self.call(ApiKey.CREATE_TOPICS, job.request))
        except (OSError, BrokerError) as error:
            job.finish(refuse(job.request, ErrorCode.LEADER_NOT_AVAILABLE, str(error)))
        self._around.ports.notify(job)

    async def _is_let_go(self) -> bool:
        """Ask to leave; whether it is of no use to ask again."""
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
        """Before asking again: as long as it can help."""
        with trio.move_on_after(seconds):
            changed = self._changed
            while await self._may_others_lead():
                await changed.wait()
                changed = self._changed

    async def _may_others_lead(self) -> bool:
        """Whether some other broker lives and stays, so that to ask again can help."""
        try:
            found = (await self._store.get(entries.ADMISSIONS)).entries
        except StoreUnavailable:
            return True
        admissions = without_pause(entries.read_state(found)).admissions
        others = self._brokers.keys() - {self._node_id}
        return any(not (one in admissions and admissions[one].is_leaving) for one in others)

    # -- producer ids

    async def _claim_producer_ids(self) -> None:
        while True:
            await self._ids_wanted.wait()
            self._ids_wanted = trio.Event()
            self._producer_ids.add(await self._patience.ask(claim_block, self._store))

    # -- help

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
