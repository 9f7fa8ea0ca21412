"""The elected controller, until it is replaced or resigns.

The controller reads the store once and is the only writer of what it has read. Every transaction
compares the controller key, so state and store stay equal, and a controller that was replaced
writes nothing more (`ControllerLost`). One task makes all decisions, one at a time:

1. A review, if brokers came or went, or if one must be fenced or is heard again. It makes one
   transaction for all partitions concerned.
2. The removal of tombstones of which no broker holds a replica any more.
3. The next steps of reassignments that have become possible, and the removal of former replicas
   whose brokers have deleted them.
4. Jobs, in order. Consecutive ALTER_PARTITION requests are decided together.

Another task prepares the moves of leaderships from live brokers, and queues them as jobs
(`handovers.py`).

    on_brokers, submit -> plan (pure) -> store.transact -> send the difference -> answer

A controller that hears fewer than half of the registered brokers makes no more decisions and ends
(`ControllerIsolated`): another broker may hear more. If too few brokers have answered its last
probes, it refuses for now to remove replicas from in-sync sets: its own broker could be left alone
in them.

Nothing is triggered by an event alone. What brokers must be sent follows from the state and from
what they have acknowledged; what must be decided follows from the state and the registrations. So a
controller that stops between any two steps leaves nothing behind that the next one does not find
(Q2).

A request that creates or changes topics is answered once every live broker was sent the change, so
that clients can use it at once at any broker; for a broker that does not answer the controller
waits a bounded time. CONTROLLED_SHUTDOWN is answered then, too: the broker serves until other
brokers lead. ALTER_PARTITION is answered at once.

If every member of an ISR may have lost the end of its log, a task asks the brokers for their log
ends and queues the comparison as a job (`tails.py`). Other tasks probe the brokers; no decision
delays them (`prober.py`).
"""

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import trio

from minibroker.broker.controller import elections, entries, isr, topics
from minibroker.broker.controller.channels import Channels
from minibroker.broker.controller.context import Job, NodeContext
from minibroker.broker.controller.deletions import Deletions
from minibroker.broker.controller.elections import UncleanElection
from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.handovers import Handovers
from minibroker.broker.controller.heartbeats import BrokerHeartbeats
from minibroker.broker.controller.moves import Move, plan_moves
from minibroker.broker.controller.plans import Change, Plan
from minibroker.broker.controller.prober import OrderProgress, Prober
from minibroker.broker.controller.pushes import Acknowledgement
from minibroker.broker.controller.reassignments import (
    FormerReplica,
    Reassignments,
    plan_forgetting,
)
from minibroker.broker.controller.request_plans import plan_of
from minibroker.broker.controller.requests import Request, Response, refuse
from minibroker.broker.controller.state import BrokerRegistration, State
from minibroker.broker.controller.statistics import Statistics, count
from minibroker.broker.controller.tails import TailComparison, Tails
from minibroker.broker.defects import Defects, Stage
from minibroker.broker.metadata.store import (
    Compare,
    Delete,
    Put,
    TransactionTooLarge,
)
from minibroker.broker.turns import Turns, take_turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.brokers import UnregisterBrokerRequest
from minibroker.protocol.messages.configs import AlterConfigsRequest
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
)
from minibroker.protocol.messages.features import UpdateFeaturesRequest
from minibroker.protocol.messages.leaders import ElectLeadersRequest
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from minibroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from minibroker.protocol.types import TopicPartition

JOBS_MAX: Final = 1_000  # waiting; one more is refused with REQUEST_TIMED_OUT
PUSHING_S_MAX: Final = 5.0  # for which an answer waits until all brokers were told
REPORTS_MAX: Final = 20  # lines logged of one plan

# Requests that are answered once the brokers were told.
ANSWERED_AFTER_PUSHES: Final = (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    CreatePartitionsRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    ControlledShutdownRequest,
    UpdateFeaturesRequest,
)

# Requests that any client may send.
OF_CLIENTS: Final = (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    CreatePartitionsRequest,
    AlterConfigsRequest,
    UnregisterBrokerRequest,
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)

# Requests before which leaders hand over.
NEEDS_HANDOVER: Final = (ElectLeadersRequest, ControlledShutdownRequest)

log = logging.getLogger(__name__)


def _failed(request: Request, defects: Defects, error: Exception) -> Response:
    """Return the response to a request whose plan failed: nothing is written yet. Raises the
    exception if no client has sent the request."""
    if not isinstance(request, OF_CLIENTS):
        raise error
    reason = defects.record(type(request).__name__.removesuffix("Request"), Stage.PLAN, error)
    return refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, reason)


def _is_alteration(job: Job[Any]) -> bool:
    return isinstance(job.request, AlterPartitionRequest)


class ControllerLost(Exception):
    """Another broker is the controller, or may be: this one must stop."""


class ControllerIsolated(Exception):
    """This controller hears fewer than half of the registered brokers: another must take over."""


@dataclass(frozen=True, slots=True)
class RecoveryJob:
    """A job of the controller's own: to elect leaders by the log ends on some brokers."""

    tails: Mapping[int, Tails]


@dataclass(frozen=True, slots=True)
class ElectionJob:
    """A job of the controller's own: to elect leaders before the time `too_late` (seconds)."""

    moves: Sequence[Move]
    too_late: float


OWN_JOBS: Final = (RecoveryJob, ElectionJob, UncleanElection)


class Controller:
    """See the head of this module. `run` is its task; the rest may be called at any time."""

    def __init__(self, context: NodeContext, active: ActiveController, epoch: int) -> None:
        self._context = context
        self._config = context.config
        self._active = active
        self._epoch = epoch
        self._name = f"[Controller id={active.node_id} epoch={epoch}]"
        self._state = State()
        self._registered: Mapping[int, BrokerRegistration] = {}
        self._without_heirs: set[TopicPartition] = set()  # see elections.without_heirs
        self._reassignments = Reassignments(context.config)
        self._revision = 0  # of the registrations
        self._is_review_due = True
        self._channels = Channels(
            context, active, epoch, lambda: self._state, self._on_acknowledged
        )
        self._deletions = Deletions()
        self._handovers = Handovers(
            context.config, self, self._channels.live, (active.node_id, epoch), trio.current_time()
        )
        interval_s = self._config.broker_heartbeat_interval_ms / 1000
        now = trio.current_time()
        self._heartbeats = BrokerHeartbeats(active.node_id, interval_s, now)
        channels = self._channels
        orders = OrderProgress(
            channels.are_acknowledged, channels.resend_all_roles, channels.acknowledged
        )
        self._prober = Prober(
            context, (active, epoch), self._heartbeats, orders, self._review_again
        )
        self._jobs: deque[Job[Any]] = deque()
        self._work = trio.Event()  # there is something to do
        self._progress = trio.Event()  # the state or what brokers were told has changed
        self._done = 0

    def submit(self, request: Request) -> Job[Any]:
        """Queue a request; its answer becomes the job's result. A full queue refuses it at once."""
        job = Job[Any](request)
        if isinstance(request, AlterPartitionRequest) and self._must_postpone(request):
            what = "the controller does not hear enough brokers just now"
            job.finish(refuse(request, ErrorCode.REQUEST_TIMED_OUT, what))
        elif len(self._jobs) + self._handovers.statistics() >= JOBS_MAX:
            what = "the controller has too many requests waiting"
            job.finish(refuse(request, ErrorCode.REQUEST_TIMED_OUT, what))
        elif isinstance(request, NEEDS_HANDOVER):
            self._handovers.submit(job)
        else:
            self.queue(job)
        return job

    def queue(self, job: Job[Any]) -> None:
        """Queue a request for decision."""
        self._jobs.append(job)
        self._work.set()

    async def _decide(self, request: RecoveryJob | ElectionJob) -> Any:
        """Queue a job of the controller's own, and return its result."""
        job = Job[Any](request)
        self.queue(job)
        return await job.wait()

    def on_brokers(self, revision: int, registered: Mapping[int, BrokerRegistration]) -> None:
        """Handle the registrations that the store had at a revision."""
        if revision > self._revision:
            self._revision = revision
            if registered != self._registered:
                self._registered = registered
                self._heartbeats.set_registered(registered, trio.current_time())
                self._prober.set_registered(registered)
                self._review_again()

    def dismiss(self) -> None:
        """Refuse the requests that still wait: this controller has ended."""
        jobs = [*self._jobs, *self._handovers.dismiss()]
        self._jobs.clear()
        for job in jobs:
            if not isinstance(job.request, OWN_JOBS):
                what = "this broker is not the controller any more"
                self.answer(job, refuse(job.request, ErrorCode.NOT_CONTROLLER, what))

    def statistics(self) -> Statistics:
        """Return the counts since the election, and those of the cluster."""
        waiting = len(self._jobs) + self._handovers.statistics()
        return Statistics(
            waiting, self._done, self._context.store_retry.retries, count(self._state)
        )

    @property
    def resignation(self) -> tuple[list[Compare], list[Delete]]:
        """The transaction by which this broker resigns as controller."""
        return [Compare(entries.CONTROLLER, self._active.revision)], [Delete(entries.CONTROLLER)]

    async def run(self) -> None:
        """Run the controller until cancelled.

        Raises `ControllerLost`, `ControllerIsolated` and `StoreError`.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._prober.run)
            await self._load_state()
            nursery.start_soon(TailComparison(self, self._channels.live).run)
            nursery.start_soon(self._handovers.run)
            while True:
                if self._is_review_due:
                    self._is_review_due = False
                    await self._review(nursery)
                elif self._deletions.done:
                    plan = topics.plan_forgetting(self._state, self._deletions.pop_done())
                    await self._carry_out(plan, nursery)
                elif self._reassignments.is_due:
                    await self._reassign(nursery)
                elif self._deletions.removed:
                    plan = plan_forgetting(self._state, self._deletions.pop_removed())
                    await self._carry_out(plan, nursery)
                elif self._jobs:
                    await self._do_jobs(nursery)
                else:
                    self._work = trio.Event()
                    await self._work.wait()

    async def _review(self, nursery: trio.Nursery) -> None:
        """Review leaders and in-sync sets, and write the result before the next review fences or
        unfences a broker."""
        now = trio.current_time()
        if self._heartbeats.is_isolated(now):
            raise ControllerIsolated
        fenced = self._heartbeats.judge(now)
        review = elections.review(self._state, self._registered, self._config, fenced)
        await self._carry_out(await take_turns(review), nursery)

    async def _reassign(self, nursery: trio.Nursery) -> None:
        """Take the next steps of the reassignments under way."""
        plan = await take_turns(self._reassignments.plan(self._state))
        await self._carry_out(plan, nursery)
        if self._reassignments.names:
            self._handovers.move_reassigned()

    def moves_to_targets(self) -> Turns[Sequence[Move]]:
        """Return the moves of leaderships that reassignments wait for now."""
        return self._reassignments.moves(self._state)

    def _review_again(self) -> None:
        self._is_review_due = True
        self._work.set()

    def _must_postpone(self, request: AlterPartitionRequest) -> bool:
        """Whether a request would shrink in-sync sets while this controller may be isolated."""
        is_doubtful = self._heartbeats.is_doubtful(trio.current_time())
        return is_doubtful and isr.would_shrink(self._state, request)

    async def _load_state(self) -> None:
        snapshot = await self._context.store_retry.ask(self._context.store.get, "")
        if entries.read_active_controller(snapshot.entries) != self._active:
            raise ControllerLost
        self._state = await take_turns(entries.read_state(snapshot.entries))
        whole = Change(partitions=tuple(name for name, _ in self._state.partitions()))
        self._without_heirs = elections.without_heirs(self._state, whole.partitions)
        self._reassignments.on_change(self._state, whole)
        if leftovers := entries.leftovers(snapshot.entries, self._state):
            await self._commit(leftovers)
            text = "%s Removed what its predecessor left of topics half made or deleted: %d entries"
            log.info(text, self._name, len(leftovers))
        self.on_brokers(snapshot.revision, entries.read_brokers(snapshot.entries))
        log.info("%s Elected, with %d topics", self._name, len(self._state.topics))

    # -- jobs

    async def _do_jobs(self, nursery: trio.Nursery) -> None:
        """Do the first job, or all ALTER_PARTITION requests at the head of the queue."""
        jobs = self._next_jobs()
        requests = [job.request for job in jobs]
        try:
            answers, plan = await self._plan(requests)
        except Exception as error:
            answers = [_failed(requests[0], self._context.order_handlers.defects, error)]
            plan = Plan(None, self._state)
        if not plan.writes:
            # An answer from memory is true only if no other controller has written.
            await self._write(())
        await self._carry_out(plan, nursery)
        self._done += len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            assert self._jobs[0] is job
            self._jobs.popleft()
            if plan.writes and isinstance(job.request, ANSWERED_AFTER_PUSHES):
                nursery.start_soon(self._finish_when_pushed, job, answer)
            else:
                self.answer(job, answer)

    def _next_jobs(self) -> list[Job[Any]]:
        alterations = takewhile(_is_alteration, self._jobs)
        return list(alterations) or [self._jobs[0]]

    async def _plan(self, requests: Sequence[Any]) -> tuple[Sequence[Any], Plan[Any]]:
        """Return an answer to each of the requests, and the plan."""
        match requests[0]:
            case AlterPartitionRequest():
                plan = await take_turns(isr.plan_alterations(self._state, requests))
                return plan.answer, plan
            case ElectionJob(moves, too_late):
                is_late = trio.current_time() >= too_late
                planning: Turns[Plan[Any]] = plan_moves(self._state, () if is_late else moves)
            case RecoveryJob(tails):
                found = elections.recover(self._state, self._config, self._without_heirs, tails)
                return [found], found
            case request:
                # Unclean election may be allowed after a change of settings.
                self._is_review_due |= isinstance(request, AlterConfigsRequest)
                rng, reassigned = self._context.rng, self._reassignments.names
                planning = plan_of(request, self._state, self._config, rng, reassigned)
        plan = await take_turns(planning)
        return [plan.answer], plan

    def answer(self, job: Job[Any], answer: Any) -> None:
        """Answer a request."""
        job.finish(answer)
        self._context.order_handlers.notify(job)

    async def _finish_when_pushed(self, job: Job[Any], answer: Any) -> None:
        """Answer a request that was written, even if this broker is no longer the controller."""
        nodes = self._channels.staying(self._state)
        if isinstance(job.request, ControlledShutdownRequest):
            nodes.append(job.request.broker_id)
        try:
            await self.until_pushed(nodes)
        finally:
            if isinstance(answer, CreateTopicsResponse | CreatePartitionsResponse):
                answer = topics.admit(answer, self._channels.uncreated(self._state))
            self.answer(job, answer)

    # -- carrying out

    async def _carry_out(self, plan: Plan[Any], nursery: trio.Nursery) -> None:
        """Write a plan, adopt its state, and queue the change for the brokers. Raises
        `ControllerLost`."""
        if plan.writes:
            await self._commit(plan.writes)
        old, self._state, change = self._state, plan.state, plan.change
        self._without_heirs.difference_update(change.partitions)
        self._without_heirs |= elections.without_heirs(self._state, change.partitions)
        self._reassignments.on_change(self._state, change)
        self._channels.set(self._state, nursery)
        if change.has_other_brokers:
            self._handovers.restart_balance(trio.current_time())
            self._deletions.review(self._state.tombstones)
        new = [one for key, one in self._state.tombstones.items() if key not in old.tombstones]
        self._channels.add_change(change, new)
        for report in plan.reports[:REPORTS_MAX]:
            log.log(report.level, "%s %s", self._name, report.text)
        if len(plan.reports) > REPORTS_MAX:
            more = len(plan.reports) - REPORTS_MAX
            log.log(plan.reports[-1].level, "%s (and %d more like these)", self._name, more)
        self._on_progress()

    async def _commit(self, writes: Sequence[Put | Delete]) -> None:
        """Write, in several transactions if one is too large. Raises `ControllerLost`."""
        try:
            await self._write(writes)
        except TransactionTooLarge:
            if len(writes) == 1:
                raise
            half = len(writes) // 2
            await self._commit(writes[:half])
            await self._commit(writes[half:])

    async def _write(self, writes: Sequence[Put | Delete]) -> None:
        """Make one transaction if this is still the controller; repeat it while the store is
        unavailable."""
        compare = [Compare(entries.CONTROLLER, self._active.revision)]
        transact = self._context.store.transact
        outcome = await self._context.store_retry.ask(transact, compare, writes)
        if not outcome.succeeded:
            raise ControllerLost

    @property
    def state(self) -> State:
        """The cluster as it was last written."""
        return self._state

    def _on_acknowledged(
        self, broker: BrokerRegistration, acknowledgement: Acknowledgement
    ) -> None:
        node_id = broker.node_id
        self._heartbeats.on_acknowledgement(broker)
        for topic_id in acknowledgement.stopped:
            self._deletions.record(node_id, topic_id, self._state.tombstones)
        for name, topic_id in acknowledgement.removed:
            self._deletions.record_removed(FormerReplica(name, topic_id, node_id))
        for name, error in acknowledgement.refusals:
            log.warning("%s Broker %d refuses %s: error %d", self._name, node_id, name, error)
        if acknowledgement.stopped or acknowledgement.removed:
            self._work.set()
        self._on_progress()

    def _on_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    # -- what brokers were told

    async def elect(self, moves: Sequence[Move], too_late: float) -> Collection[TopicPartition]:
        """Elect these targets, unless it is too late; return the partitions moved."""
        moved: Collection[TopicPartition] = await self._decide(ElectionJob(moves, too_late))
        return moved

    async def until_pushed(self, nodes: Collection[int] | None = None) -> None:
        """Wait, for a bounded time, until these (or all) live brokers know the present state."""
        marks = self._channels.change_counts(self._channels.live if nodes is None else nodes)
        with trio.move_on_after(PUSHING_S_MAX):
            while not self._channels.has_acknowledged(marks):
                await self._progress.wait()

    def waiting_for_tails(self) -> Mapping[TopicPartition, tuple[int, ...]]:
        """The partitions whose logs must be compared, each with the brokers to ask."""
        return elections.waiting_for_tails(self._state, self._config, self._without_heirs)

    async def recover(self, tails: Mapping[int, Tails]) -> None:
        """Elect the leaders of partitions that may have lost data, by the log ends."""
        await self._decide(RecoveryJob(tails))

    async def wait_for_progress(self) -> None:
        """Wait until the state changes or a broker acknowledges an order."""
        await self._progress.wait()
