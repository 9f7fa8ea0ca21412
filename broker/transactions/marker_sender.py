"""The tasks that send markers to the leaders of partitions: one for each leader that has some to
write, with one request in flight. A task ends after a while without markers.

    run
     |- _send_to(1)    a connection to broker 1
     `- _send_to(2)    ...

`MarkerQueue` decides what is sent and when; see there. This broker's own partitions get their
markers in the same way, over its own listener.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.transactions.markers import MarkerQueue
from minibroker.client.net.channel import ChannelOptions, RpcChannel, open_channel
from minibroker.client.net.network import Network
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import BrokerError

logger = logging.getLogger(__name__)

REQUEST_S_MAX: Final = 40.0  # longer than a leader waits for its in-sync replicas
CONNECT_S_MAX: Final = 5.0
IDLE_S: Final = 10.0  # a connection without markers is closed after that


class MarkerSender:
    """See the head of this module."""

    def __init__(
        self,
        node_id: int,
        network: Network,
        image: Callable[[], ClusterImage],
        markers: MarkerQueue,
        on_marked: Callable[[], None],
    ) -> None:
        """`image` returns the image of the cluster; `on_marked` hears that transactions may have
        got their last marker."""
        self._options = ChannelOptions(f"coordinator-{node_id}", REQUEST_S_MAX, CONNECT_S_MAX)
        self._network = network
        self._image = image
        self._markers = markers
        self._on_marked = on_marked
        self._woken = trio.Event()
        markers.on_added = self.wake
        self._tasks: dict[int, trio.Event] = {}  # by broker; set when there is more to send

    def wake(self) -> None:
        """Look for markers to send."""
        self._woken.set()

    async def run(self) -> None:
        """Send markers until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._woken = trio.Event()
                while self._markers.route(self._image(), trio.current_time()):
                    await trio.lowlevel.checkpoint()
                self._on_marked()  # of partitions that do not exist any more
                for node_id in self._markers.leaders:
                    if node_id in self._tasks:
                        self._tasks[node_id].set()
                    else:
                        self._tasks[node_id] = trio.Event()
                        nursery.start_soon(self._send_to, node_id)
                with trio.move_on_at(self._markers.deadline):
                    await self._woken.wait()

    async def _send_to(self, node_id: int) -> None:
        """Send a broker its markers, until there are none for a while or it is not reached."""
        try:
            broker = self._image().brokers.get(node_id)
            if broker is None:
                raise OSError(f"broker {node_id} is not live")
            async with open_channel(self._network, broker.endpoint, self._options) as channel:
                await self._send_by(channel, node_id)
        except (OSError, BrokerError) as error:
            logger.info("Broker %d gets no markers: %s", node_id, error)
            self._markers.on_lost(node_id, trio.current_time())
        finally:
            del self._tasks[node_id]
            self.wake()

    async def _send_by(self, channel: RpcChannel, node_id: int) -> None:
        while True:
            request = self._markers.take(node_id)
            if request is None:
                with trio.move_on_after(IDLE_S) as idle:
                    await self._tasks[node_id].wait()
                if idle.cancelled_caught:
                    return
                self._tasks[node_id] = trio.Event()
                continue
            answer = await channel.call(ApiKey.WRITE_TXN_MARKERS, request)
            self._markers.on_answer(node_id, answer, trio.current_time())
            self._on_marked()
            self.wake()  # what is to be sent again
