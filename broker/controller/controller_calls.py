"""A broker's calls of the controller, which is here, at another broker, or not elected yet.

A request goes to the active controller. If that is replaced while a request waits for it, the
request is cancelled and sent to the next one. `forward` is for callers that cannot wait.

A controller that was killed counts as active until its lease ends. ALTER_CONFIGS waits for the next
one: no connection was made, so nothing was done. CREATE_TOPICS fails at once, because METADATA
sends it and its client may need the new leaders of other topics.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.controller.context import Job, NodeContext
from minibroker.broker.controller.controller import Controller
from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.requests import Request, is_refused, refuse
from minibroker.broker.controller.state import BrokerRegistration
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.configs import AlterConfigsRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest

CALL_S_MAX: Final = 10.0  # for an answer of the controller, across elections
CALL_AGAIN_S: Final = 0.05  # after NOT_CONTROLLER


class Forwarded(NamedTuple):
    """How a request is forwarded: its error if no controller answers, and whether it waits while no
    connection to the controller can be made."""

    api_key: ApiKey
    failure: ErrorCode
    waits: bool


# A client that creates topics asks for their leaders again; one that changes settings does not know
# whether they were changed.
FORWARDED: Final[Mapping[type, Forwarded]] = {
    CreateTopicsRequest: Forwarded(ApiKey.CREATE_TOPICS, ErrorCode.LEADER_NOT_AVAILABLE, False),
    AlterConfigsRequest: Forwarded(ApiKey.ALTER_CONFIGS, ErrorCode.REQUEST_TIMED_OUT, True),
}
NOT_CONTROLLER_TEXT: Final = "this broker is not the controller"


class NoController(OSError):
    """No controller answered in time. One may have done what was asked."""


class NotConnected(OSError):
    """No connection to the controller could be made, so nothing was sent."""


class ControllerCalls:
    """See the head of this module. `run` is its only task.

    `active` is the controller that this broker knows of; `brokers` are the registered brokers;
    `controller` is the one that runs in this broker, if any.
    """

    def __init__(self, context: NodeContext) -> None:
        self.active: ActiveController | None = None
        self.brokers: Mapping[int, BrokerRegistration] = {}
        self.controller: Controller | None = None
        self.changed = trio.Event()  # one of the three above
        self._context = context
        self._node_id = context.config.node_id
        self._calls: dict[trio.CancelScope, None] = {}  # to the active controller
        self._forwards: deque[Job[Any]] = deque()
        self._forwarding = trio.Event()

    def set_active(self, active: ActiveController | None) -> None:
        """Set the active controller. Calls that wait for the one before are cancelled."""
        if active != self.active:
            for call in self._calls:
                call.cancel()
        self.active = active
        self._wake()

    def set_brokers(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Set the registered brokers."""
        self.brokers = brokers
        self._wake()

    def set_controller(self, controller: Controller | None) -> None:
        """Set the controller that runs in this broker; None if it does not run any more."""
        self.controller = controller
        self._wake()

    def submit(self, request: Request) -> Job[Any]:
        """Hand a request to the controller if it runs here; otherwise refuse it at once."""
        if self.controller is not None:
            return self.controller.submit(request)
        job = Job[Any](request)
        job.finish(refuse(request, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT))
        return job

    async def call(self, api_key: ApiKey, request: Request, *, waits: bool = False) -> Any:
        """Return the active controller's answer. With `waits`, repeat the call while no connection
        to the controller can be made.

        Raises `OSError` if no controller answered in time, or the connection to it was lost: it may
        have done what was asked.
        """
        with trio.move_on_after(CALL_S_MAX):
            while True:
                try:
                    response = await self._try_call(api_key, request)
                except NotConnected:
                    if not waits:
                        raise
                    await trio.sleep(CALL_AGAIN_S)
                    continue
                if response is not None:
                    return response
        trouble = self._context.store_retry.trouble()
        raise NoController("no controller answered in time" + (trouble and f" ({trouble})"))

    def forward(self, request: CreateTopicsRequest | AlterConfigsRequest) -> Job[Any]:
        """Call in the background; a failure becomes an error for each topic (`FORWARDED`)."""
        if self.controller is not None:
            return self.controller.submit(request)
        job = Job[Any](request)
        self._forwards.append(job)
        self._forwarding.set()
        return job

    async def run(self) -> None:
        """Forward until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._forwards:
                    self._forwarding = trio.Event()
                    await self._forwarding.wait()
                nursery.start_soon(self._forward, self._forwards.popleft())

    async def _forward(self, job: Job[Any]) -> None:
        api_key, failure, waits = FORWARDED[type(job.request)]
        try:
            job.finish(await self.call(api_key, job.request, waits=waits))
        except (OSError, BrokerError) as error:
            job.finish(refuse(job.request, failure, str(error)))
        self._context.order_handlers.notify(job)

    async def _try_call(self, api_key: ApiKey, request: Request) -> Any | None:
        """Make one attempt; None if no controller was known, or another broker was asked.

        Raises `OSError`, which is `NotConnected` if the request was not sent.
        """
        active, response = self.active, None
        if active is not None and active.node_id == self._node_id and self.controller is not None:
            response = await self.controller.submit(request).wait()
        elif active is not None and active.node_id in self.brokers.keys() - {self._node_id}:
            endpoint = self.brokers[active.node_id].endpoint
            options = ChannelOptions(f"broker-{self._node_id}", CALL_S_MAX, CALL_S_MAX)
            with trio.CancelScope() as call:
                self._calls[call] = None
                is_connected = False
                try:
                    async with open_channel(self._context.network, endpoint, options) as channel:
                        is_connected = True
                        response = await channel.call(api_key, request)
                except OSError as error:
                    if is_connected:
                        raise
                    raise NotConnected(str(error)) from error
                finally:
                    del self._calls[call]
        else:
            await self.changed.wait()
        if response is not None and is_refused(response, ErrorCode.NOT_CONTROLLER):
            await trio.sleep(CALL_AGAIN_S)
            return None
        return response

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()
