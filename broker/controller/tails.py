"""The task that compares log ends, for partitions whose replica with the longest log must lead.

If every member of an ISR may have lost the end of its log, the partition waits until all of them
can be asked (`elections.waiting_for_tails`). Then this task asks the brokers for their log ends,
and has the controller elect by the answers.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final, Protocol, TypeAlias

import trio

from minibroker.broker.controller.channels import Channel
from minibroker.broker.controller.elections import LogTail
from minibroker.broker.controller.state import State, TopicRecord
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition

AGAIN_S: Final = 0.2  # between two comparisons

log = logging.getLogger(__name__)

Tails: TypeAlias = Mapping[TopicPartition, LogTail]


class Recoverer(Protocol):
    """The controller, as the comparison of log ends uses it."""

    @property
    def state(self) -> State:
        """The cluster as it was last written."""

    def waiting_for_tails(self) -> Mapping[TopicPartition, tuple[int, ...]]:
        """The partitions that wait, each with the brokers to ask."""

    async def recover(self, tails: Mapping[int, Tails]) -> None:
        """Elect leaders by the log ends on these brokers."""

    async def until_pushed(self, nodes: Collection[int] | None = None) -> None:
        """Wait until each of these live brokers knows the state or does not answer."""

    async def wait_for_progress(self) -> None:
        """Wait until the state changes or a broker acknowledges an order."""


class TailComparison:
    """See the head of this module. `channels` lead to the live brokers."""

    def __init__(self, recoverer: Recoverer, channels: Mapping[int, Channel]) -> None:
        self._recoverer = recoverer
        self._channels = channels

    async def run(self) -> None:
        """Compare the log ends of partitions that wait, until cancelled."""
        while True:
            waiting = self._recoverer.waiting_for_tails()
            if not waiting:
                await self._recoverer.wait_for_progress()
                continue
            nodes = sorted({node for candidates in waiting.values() for node in candidates})
            await self._recoverer.until_pushed(nodes)
            tails = {
                node: await tails_of(self._channels[node], self._recoverer.state.topics)
                for node in nodes
                if node in self._channels
            }
            await self._recoverer.recover(tails)
            if self._recoverer.waiting_for_tails():
                await trio.sleep(AGAIN_S)


async def tails_of(channel: Channel, topics: Mapping[str, TopicRecord]) -> Tails:
    """Ask a broker for its log ends; none if it does not answer in this registration."""
    try:
        response = await channel.describe()
    except (OSError, BrokerError) as error:
        log.info("Broker %d cannot be asked: %s", channel.pushes.broker.node_id, error)
        return {}
    if response.broker_epoch != channel.pushes.broker.epoch:
        return {}
    return {
        TopicPartition(one.topic, one.partition): LogTail(one.last_epoch, one.log_end)
        for one in response.replicas
        if one.topic in topics and topics[one.topic].id == one.topic_id
    }
