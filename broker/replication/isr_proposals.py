"""Proposals of in-sync sets: the timer that looks for lagging followers, and the queue to the
controller.

A leader's proposal waits here, at most one for each partition. A newer one replaces one that was
not sent yet: a leader makes a newer one only after the older was settled in another way. One
request is in flight at a time, with all proposals gathered before it. It is repeated until the
controller answers. The controller gives a repeated proposal the same answer, so a lost answer does
no harm (A5, A6). The partition knows whether an answer still concerns its leader.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

import trio

from minibroker.broker.replication.roles import IsrProposal
from minibroker.broker.turns import Turns, take_turns
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrMember,
    PartitionAltered,
    PartitionChange,
)
from minibroker.protocol.types import TopicPartition

AGAIN_S: Final = 0.05  # before a request is repeated
PARTITIONS_MAX: Final = 1_000  # in one request, whose header must stay below its limit

logger = logging.getLogger(__name__)

# Sends a request to the active controller; OSError or BrokerError if it does not answer in time.
Call = Callable[[ApiKey, AlterPartitionRequest], Awaitable[Any]]


class Leaders(Protocol):
    """The partitions that are led here."""

    @property
    def broker_id(self) -> int:
        """The id of this broker."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of its current registration."""

    def has_silent_followers(self, now: float) -> bool:
        """Whether a follower sends no FETCH."""

    def review_isrs(self, now: float) -> Turns[None]:
        """Propose the removal of followers that fell behind or are silent."""

    def resolve(self, proposal: IsrProposal, answer: PartitionAltered, now: float) -> bool:
        """Apply an answer. Returns False if the proposal must be sent again."""


class IsrProposals:
    """The proposals that wait to be sent."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, IsrProposal] = {}
        self._news = trio.Event()

    def put(self, proposal: IsrProposal) -> None:
        """Queue a proposal; it replaces a waiting one of the same partition."""
        self._waiting[TopicPartition(proposal.topic, proposal.partition)] = proposal
        self._news.set()

    def put_back(self, proposals: Iterable[IsrProposal]) -> None:
        """Queue proposals again, except those that were replaced in the meantime."""
        for proposal in proposals:
            name = TopicPartition(proposal.topic, proposal.partition)
            self._waiting.setdefault(name, proposal)

    async def next_batch(self) -> list[IsrProposal]:
        """Wait for a proposal, then return `next_batch_nowait`."""
        while not self._waiting:
            self._news = trio.Event()
            await self._news.wait()
        return self.next_batch_nowait()

    def next_batch_nowait(self) -> list[IsrProposal]:
        """Remove and return waiting proposals, as many as one request may hold."""
        names = [*self._waiting][:PARTITIONS_MAX]
        return [self._waiting.pop(name) for name in names]

    def statistics(self) -> int:
        """How many wait to be sent."""
        return len(self._waiting)


class Intervals(NamedTuple):
    """How often leaders look for followers that fell behind (`lag_s`) or are silent (`silence_s`),
    in seconds."""

    lag_s: float
    silence_s: float


async def keep_isrs(
    leaders: Leaders, queue: IsrProposals, call: Call, intervals: Intervals
) -> None:
    """Look for followers to remove, and send the leaders' proposals, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, leaders, queue, call)
        review_at = trio.current_time() + intervals.lag_s
        while True:
            await trio.sleep(min(intervals.silence_s, intervals.lag_s))
            now = trio.current_time()
            if leaders.has_silent_followers(now) or now >= review_at:
                review_at = now + intervals.lag_s
                await take_turns(leaders.review_isrs(now))


async def _send(leaders: Leaders, queue: IsrProposals, call: Call) -> None:
    who, is_troubled = f"[Broker id={leaders.broker_id}]", False
    while True:
        proposals = await queue.next_batch()
        response = await _ask(leaders, proposals, call)
        if isinstance(response, str):
            if not is_troubled:
                text = "%s In-sync sets cannot be changed: %s; asking again until they can"
                logger.warning(text, who, response)
            is_troubled, unsettled = True, proposals
        else:
            if is_troubled:
                logger.info("%s In-sync sets can be changed again", who)
            is_troubled, unsettled = False, _hand_out(leaders, proposals, response)
        if unsettled:
            queue.put_back(unsettled)
            await trio.sleep(AGAIN_S)


async def _ask(
    leaders: Leaders, proposals: list[IsrProposal], call: Call
) -> AlterPartitionResponse | str:
    """Send all proposals in one request. Returns the answer, or why there is none."""
    request = AlterPartitionRequest(
        leaders.broker_id,
        leaders.broker_epoch,
        tuple(map(change_of, proposals)),
    )
    try:
        response: AlterPartitionResponse = await call(ApiKey.ALTER_PARTITION, request)
    except (OSError, BrokerError) as error:
        return str(error)
    return f"refused with error {response.error}" if response.error else response


def _hand_out(
    leaders: Leaders, proposals: list[IsrProposal], response: AlterPartitionResponse
) -> list[IsrProposal]:
    """Pass the answers to the leaders. Returns the proposals that must be sent again."""
    now = trio.current_time()
    answers = {(answer.topic, answer.partition): answer for answer in response.partitions}
    return [
        proposal
        for proposal in proposals
        if not leaders.resolve(proposal, _answer_of(proposal, answers), now)
    ]


def _answer_of(
    proposal: IsrProposal, answers: dict[tuple[str, int], PartitionAltered]
) -> PartitionAltered:
    """Return the answer to a proposal; if none came, an error that makes it be sent again."""
    name = proposal.topic, proposal.partition
    return answers.get(name) or PartitionAltered(*name, ErrorCode.UNKNOWN_SERVER_ERROR)


def change_of(proposal: IsrProposal) -> PartitionChange:
    """Return a proposal in the form of the request."""
    members = zip(proposal.pending.proposed, proposal.broker_epochs, strict=True)
    return PartitionChange(
        proposal.topic,
        proposal.topic_id,
        proposal.partition,
        proposal.leader_epoch,
        proposal.partition_epoch,
        tuple(IsrMember(node_id, epoch) for node_id, epoch in members),
    )
