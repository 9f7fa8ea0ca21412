"""The task that compares log ends: for partitions whose leader is who has the longest log.

Partitions that lost the end of their log with every member of their ISR wait until all of these
can be asked (`elections.waiting_for_tails`). Then this task asks for the ends of their logs, and
makes what it hears a decision of the controller's.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final, Protocol, TypeAlias

import trio

from minibroker.broker.controller.channels import Channel
from minibroker.broker.controller.elections import LogTail
from minibroker.broker.controller.state import State
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition

AGAIN_S: Final = 0.2  # between two comparisons

log = logging.getLogger(__name__)

Tails: TypeAlias = Mapping[TopicPartition, LogTail]


class Recoverer(Protocol):
    """The controller, as far as it concerns who compares log ends."""

    @property
    def state(self) -> State:
        """The cluster as it was last written."""

    def waiting_for_tails(self) -> Mapping[TopicPartition, tuple[int, ...]]:
        """The partitions that wait, each with the brokers that are to be asked."""

    async def recover(self, tails: Mapping[int, Tails]) -> None:
        """Decide who leads, by the ends of the logs on these brokers."""

    async def until_told(self, nodes: Collection[int] | None = None) -> None:
        """Wait until these live brokers know the state, as far as they answer."""

    async def wait_for_progress(self) -> None:
        """Wait until the state, or what brokers were told, has changed."""


class TailComparison:
    """See the head of this module. `channels` are those to the live brokers."""

    def __init__(self, recoverer: Recoverer, channels: Mapping[int, Channel]) -> None:
        self._recoverer = recoverer
        self._channels = channels

    async def run(self) -> None:
        """See to partitions that wait, until cancelled."""
        while True:
            waiting = self._recoverer.waiting_for_tails()
            if not waiting:
                await self._recoverer.wait_for_progress()
                continue
            nodes = sorted({node for candidates in waiting.values() for node in candidates})
            await self._recoverer.until_told(nodes)
            tails = {
                node: await self._tails_of(self._channels[node])
                for node in nodes
                if node in self._channels
            }
            await self._recoverer.recover(tails)
            if self._recoverer.waiting_for_tails():
                await trio.sleep(AGAIN_S)

    async def _tails_of(self, channel: Channel) -> Tails:
        """The ends of the logs on a broker; none if it does not answer in this registration."""
        try:
            response = await channel.describe()
        except (OSError, BrokerError) as error:
            log.info("Broker %d cannot be asked: %s", channel.pushes.broker.node_id, error)
            return {}
        if response.broker_epoch != channel.pushes.broker.epoch:
            return {}
        topics = self._recoverer.state.topics
        return {
            TopicPartition(one.topic, one.partition): LogTail(one.last_epoch, one.log_end)
            for one in response.replicas
            if one.topic in topics and topics[one.topic].id == one.topic_id
        }
