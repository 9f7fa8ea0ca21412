"""The task that moves leaderships from live leaders: handover first, then election.

A record that was acknowledged with acks=1 may be on the leader alone. So the controller tells the
leader first (HAND_OVER): from then on the leader refuses acks 0 and 1, and reports when the target
has all records that it appended before. Only then does the controller elect the target. The order
holds for a bounded time, after which a leader that hears no more leads as before. So the controller
must write the election before that time, and writes none that would be `too_late`. The time
includes a session: a controller that was stopped for that long is not the controller any more.

    ELECT_LEADERS       handover, then election of each partition that is ready; the leaders of the
                        other partitions stay
    a rebalance         the same, for partitions whose preferred replica does not lead
    a reassignment      the same, for partitions whose leader is to leave the assignment
    an unclean election nothing is handed over: the partition has no leader. The replicas' log ends
                        are asked for, and one replica is elected
    CONTROLLED_SHUTDOWN handover of all, then the request itself, which also moves the partitions
                        that are not ready: the broker is about to stop

The task serves one request at a time.
"""

import logging
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller.channels import Channel, Send
from minibroker.broker.controller.context import Job
from minibroker.broker.controller.elections import UncleanElection, unclean_candidates
from minibroker.broker.controller.moves import (
    Balance,
    Move,
    imbalanced,
    moves_from,
    preferred_moves,
)
from minibroker.broker.controller.pushes import Push
from minibroker.broker.controller.state import State
from minibroker.broker.controller.tails import Tails, tails_of
from minibroker.broker.turns import Turns, at_once, take_turns
from minibroker.protocol.constants import NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.control import ControlledShutdownRequest
from minibroker.protocol.messages.leaders import (
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    HandOverRequest,
    HandOverResponse,
    PartitionElected,
    PartitionHandedOver,
    PartitionToHandOver,
)
from minibroker.protocol.types import TopicPartition

PARTITIONS_MAX: Final = 200  # in one order
AGAIN_S: Final = 0.01  # before a leader is asked again
HANDOVER_S_MAX: Final = 1.0  # that a leader refuses acks=1 because its target is behind
LEAVING_S_MAX: Final = 3.0  # the same for a broker that is about to stop
REASSIGNMENT_AGAIN_S: Final = 1.0  # before a leader that is to leave is asked again
DECISION_S_MAX: Final = 1.0  # from the last answer to the beginning of the write

log = logging.getLogger(__name__)

Act: TypeAlias = Callable[[Sequence[Move], float], Awaitable[None]]


class Elector(Protocol):
    """The controller, as the task that moves leaderships uses it."""

    @property
    def state(self) -> State:
        """The cluster as it was last written."""

    async def elect(self, moves: Sequence[Move], too_late: float) -> Collection[TopicPartition]:
        """Elect these targets, unless it is too late; return the partitions moved."""

    def moves_to_targets(self) -> Turns[Sequence[Move]]:
        """Return the moves that reassignments wait for now."""

    async def until_pushed(self) -> None:
        """Wait until each live broker knows the state or does not answer."""

    def queue(self, job: Job[Any]) -> None:
        """Queue a request for decision."""

    def answer(self, job: Job[Any], answer: Any) -> None:
        """Answer a request."""


class Handovers:
    """See the head of this module. `sender` is this controller's node id and epoch, with which its
    orders begin."""

    def __init__(
        self,
        config: Config,
        elector: Elector,
        channels: Mapping[int, Channel],
        sender: tuple[int, int],
        now: float,
    ) -> None:
        self._config = config
        self._elector = elector
        self._channels = channels
        self._sender = sender
        self._session_s = config.broker_session_timeout_ms / 1000
        self._balance = Balance(config.leader_imbalance_check_interval_seconds, now)
        self._requests: deque[Job[Any]] = deque()
        self._reassignments_due_at = math.inf  # when to look at `moves_to_targets`
        self._work = trio.Event()

    def submit(self, job: Job[Any]) -> None:
        """Queue a request; requests are served in order."""
        self._requests.append(job)
        self._work.set()

    def restart_balance(self, now: float) -> None:
        """Wait another interval before rebalancing: a broker came, went or asked to stop."""
        self._balance.restart(now)

    def move_reassigned(self) -> None:
        """Move the leaderships that reassignments wait for, until none is left."""
        if math.isinf(self._reassignments_due_at):
            self._reassignments_due_at = -math.inf
            self._work.set()

    def dismiss(self) -> list[Job[Any]]:
        """Return the unanswered requests, which are not served any more."""
        jobs = [*self._requests]
        self._requests.clear()
        return jobs

    def statistics(self) -> int:
        """Return how many requests wait."""
        return len(self._requests)

    async def run(self) -> None:
        """Serve requests and rebalance, until cancelled."""
        while True:
            if self._requests:
                await self._serve(self._requests[0])
            elif trio.current_time() >= self._reassignments_due_at:
                await self._move_reassigned()
            elif trio.current_time() >= self._balance.due_at:
                await self._rebalance()
            else:
                self._work = trio.Event()
                await self._wait()

    async def _wait(self) -> None:
        """Wait until a request arrives, or rebalancing or a reassignment is due."""
        due_at = self._reassignments_due_at
        if self._config.auto_leader_rebalance_enable:
            due_at = min(due_at, self._balance.due_at)
        with trio.move_on_at(due_at):
            await self._work.wait()

    async def _move_reassigned(self) -> None:
        self._reassignments_due_at = math.inf
        if moves := await take_turns(self._elector.moves_to_targets()):
            await self._move(moves)
            self._reassignments_due_at = trio.current_time() + REASSIGNMENT_AGAIN_S

    async def _rebalance(self) -> None:
        percentage = self._config.leader_imbalance_per_broker_percentage
        moves = await take_turns(imbalanced(self._elector.state, percentage))
        await self._move(moves)
        self._balance.restart(trio.current_time())

    async def _serve(self, job: Job[Any]) -> None:
        match job.request:
            case ElectLeadersRequest(partitions=names) as request:
                if request.election_type == UNCLEAN:
                    answer = await self._elect_uncleanly(names or (), request.leader)
                else:
                    answer = await self._elect(names)
                self._requests.popleft()
                self._elector.answer(job, answer)
            case ControlledShutdownRequest(broker_id=node):
                moves = await take_turns(moves_from(self._elector.state, node))
                await self._hand_over(node, moves, LEAVING_S_MAX, _go_on)
                self._requests.popleft()
                self._elector.queue(job)

    async def _elect(self, names: Sequence[TopicPartition] | None) -> ElectLeadersResponse:
        selecting = preferred_moves(self._elector.state, names)
        moves, others = await take_turns(selecting)
        moved = await self._move(moves)
        if moved:
            await self._elector.until_pushed()
        results = [
            PartitionElected(*move.name) if move.name in moved else _not_moved(move)
            for move in moves
        ]
        return ElectLeadersResponse(partitions=(*results, *others))

    async def _elect_uncleanly(
        self, names: Sequence[TopicPartition], wanted: int
    ) -> ElectLeadersResponse:
        """Compare the logs of the replicas that may lead, once their brokers know that none does,
        and elect one of each partition."""
        await self._elector.until_pushed()
        state = self._elector.state
        tails: dict[int, Tails] = {}
        for node in unclean_candidates(state, names, wanted):
            if node in self._channels:
                with trio.move_on_after(HANDOVER_S_MAX):
                    tails[node] = await tails_of(self._channels[node], state.topics)
        decision = Job[Any](UncleanElection(names, tails, state, wanted))
        self._elector.queue(decision)
        results: Sequence[PartitionElected] = await decision.wait()
        if not all(one.error for one in results):
            await self._elector.until_pushed()
        return ElectLeadersResponse(partitions=tuple(results))

    async def _move(self, moves: Sequence[Move]) -> set[TopicPartition]:
        """Have each leader hand over and elect the targets; return the partitions moved."""
        moved: set[TopicPartition] = set()

        async def elect(ready: Sequence[Move], too_late: float) -> None:
            moved.update(await self._elector.elect(ready, too_late))

        by_leader = defaultdict[int, list[Move]](list)
        for move in moves:
            by_leader[move.leader].append(move)
        for leader, wanted in by_leader.items():
            for some in at_once(wanted, PARTITIONS_MAX):
                late = await self._hand_over(leader, some, HANDOVER_S_MAX, elect)
                if late:
                    await self._release(leader, late)
        return moved

    async def _hand_over(
        self, leader: int, moves: Sequence[Move], wait_s: float, act: Act
    ) -> list[Move]:
        """Have a leader hand over; pass the moves that are ready to `act`. Return the others."""
        give_up_at = trio.current_time() + wait_s
        too_late = give_up_at + DECISION_S_MAX
        waiting = {move.name: move for move in moves}
        while waiting:
            ready = await self._ask(leader, [*waiting.values()], give_up_at)
            if not ready:
                break
            for move in ready:
                del waiting[move.name]
            await act(ready, too_late)
        return [*waiting.values()]

    async def _ask(self, leader: int, moves: Sequence[Move], give_up_at: float) -> list[Move]:
        """Order a leader to hand over until some targets have all its records; return their moves,
        or none if the leader refuses or it takes too long."""
        ready: list[Move] = []
        channel = self._channels.get(leader)
        if channel is None:
            return ready
        with trio.move_on_at(give_up_at):
            try:
                async with channel.open() as send:
                    waiting = {move.name: move for move in moves}
                    while waiting and not ready:
                        for some in at_once([*waiting.values()], PARTITIONS_MAX):
                            until = give_up_at + DECISION_S_MAX + self._session_s
                            answers = await self._order(channel, send, some, until)
                            for move in some:
                                answer = answers.get(move.name)
                                if answer is None or answer.error:
                                    del waiting[move.name]
                                elif answer.is_ready:
                                    ready.append(move)
                        if waiting and not ready:
                            await trio.sleep(AGAIN_S)
            except (OSError, BrokerError) as error:
                log.info("Broker %d cannot be asked to hand over: %s", leader, error)
        return ready

    async def _release(self, leader: int, moves: Sequence[Move]) -> None:
        """Tell a leader whose targets were too slow to lead as before; soon it would by itself."""
        log.info("Broker %d leads on %d partitions: targets are behind", leader, len(moves))
        channel = self._channels.get(leader)
        if channel is None:
            return
        with trio.move_on_after(HANDOVER_S_MAX):
            try:
                async with channel.open() as send:
                    released = [move._replace(target=NO_NODE) for move in moves]
                    await self._order(channel, send, released, trio.current_time())
            except (OSError, BrokerError) as error:
                log.info("Broker %d cannot be told to lead on: %s", leader, error)

    async def _order(
        self, channel: Channel, send: Send, moves: Sequence[Move], until: float
    ) -> Mapping[TopicPartition, PartitionHandedOver]:
        """Send one order that holds until a time; return the answer for each partition."""
        hold_s = max(0.0, until - trio.current_time())
        wanted = tuple(
            PartitionToHandOver(
                move.name.topic,
                move.topic_id,
                move.name.partition,
                move.leader_epoch,
                move.target,
            )
            for move in moves
        )
        sender = (*self._sender, channel.pushes.broker.epoch)
        request = HandOverRequest(*sender, partitions=wanted, hold_ms=math.ceil(hold_s * 1000))
        response: HandOverResponse = await send(Push(ApiKey.HAND_OVER, request))
        return {TopicPartition(one.topic, one.partition): one for one in response.partitions}


async def _go_on(ready: Sequence[Move], too_late: float) -> None:
    """Do nothing: CONTROLLED_SHUTDOWN moves all partitions of its broker together."""


def _not_moved(move: Move) -> PartitionElected:
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    what = f"broker {move.target} did not catch up in time; broker {move.leader} leads on"
    return PartitionElected(*move.name, code, what)
