"""One follower's fetches from its leader: at most one FETCH, its answer, and its effect.

The leader handles the request when the follower asks, so it learns from it at that step. The
answer's bytes are read at that moment, too, as they would be sent, whatever happens to the log
later.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from minibroker.broker.log.admission import CheckedBatches
from minibroker.broker.replication.fetch_connection import check
from minibroker.broker.replication.fetch_plan import FetchPlan
from minibroker.broker.replication.follower import Follower, LeaderAnswer, Next
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.roles import Leader
from minibroker.broker.server.handlers import fetch
from minibroker.broker.turns import Steps, finished
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, ErrorCode
from minibroker.protocol.messages.fetch import FetchResponse, PartitionFetched
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import Slice
from minibroker.testing.lab.machine import Machine, Process


@dataclass(frozen=True, slots=True)
class FetchInFlight:
    """A FETCH: its leader, the follower's plan that made it, and the answer."""

    leader: int
    plan: FetchPlan
    answer: FetchResponse | Parked[FetchResponse]


class FollowerFetcher:
    """See the head of this module."""

    def __init__(self, number: int, machines: Mapping[int, Machine]) -> None:
        self._number = number
        self._machines = machines
        self._in_flight: FetchInFlight | None = None

    @property
    def leader(self) -> int:
        """The broker at which its FETCH is under way."""
        return NO_NODE if self._current is None else self._current.leader

    @property
    def is_in_flight(self) -> bool:
        """Whether a FETCH was sent and its answer has not arrived."""
        return self._current is not None

    @property
    def is_answered(self) -> bool:
        """Whether the leader has answered."""
        in_flight = self._current
        return in_flight is not None and isinstance(in_flight.answer, FetchResponse)

    @property
    def deadline(self) -> float:
        """When a waiting FETCH is answered without more."""
        in_flight = self._current
        if in_flight is not None and isinstance(in_flight.answer, Parked):
            return in_flight.answer.deadline()
        return math.inf

    def may_ask(self, now: float) -> bool:
        """Whether there is a leader to send a FETCH to, and no reason to wait."""
        partition = self._process.partition
        role = partition.role
        if not isinstance(role, Follower) or self._machines[role.leader].process is None:
            return False
        plan = self._process.fetchers.plan
        return not role.failure and not plan.is_syncing and plan.next_due(now) == math.inf

    # -- steps

    def ask(self, now: float) -> str:
        """Send the next FETCH, and let the leader handle it."""
        process, in_flight = self._process, self._current
        if in_flight is not None:
            return f"{self._number} has a FETCH under way"
        role, log = process.partition.role, process.partition.log
        if not isinstance(role, Follower):
            why = "it leads" if isinstance(role, Leader) else role.reason
            return f"{self._number} does not fetch: {why}"
        request = process.fetchers.plan.next(now, process.broker_epoch, are_starts_durable=True)
        if request is None:
            why = "it waits before it tries again"
            if role.failure:
                why = "it has failed"
            elif process.fetchers.plan.is_syncing:
                why = "its log is not on disk yet"
            return f"{self._number} does not fetch: {why}"
        leader = self._machines[role.leader].process
        text = f"{self._number} fetches from {log.log_end}"
        last_epoch = role.last_fetched_epoch(log)
        if last_epoch != NO_EPOCH:
            text += f", epoch {last_epoch}"
        if leader is None:
            process.fetchers.plan.end_session()
            return f"{text}; {role.leader} is down"
        answer = fetch.handle(leader.services, request, now)
        sent = answer if isinstance(answer, Parked) else as_sent(answer)
        self._in_flight = FetchInFlight(role.leader, process.fetchers.plan, sent)
        return f"{text}; it waits" if isinstance(answer, Parked) else text

    def receive(self, now: float) -> str:
        """Receive the answer, and apply it."""
        in_flight, plan = self._current, self._process.fetchers.plan
        if in_flight is None:
            return f"{self._number} has no FETCH under way"
        if isinstance(in_flight.answer, Parked):
            return f"the FETCH of {self._number} still waits"
        self._in_flight = None
        response = in_flight.answer
        if response.error:
            plan.end_session()
            return f"{self._number} is told {ErrorCode(response.error).name}"
        plan.on_response(response)
        fetched = check(response)
        if not response.partitions:
            return f"{self._number} gets nothing new"
        return self._apply(response.partitions[0], fetched.batches[0], now)

    # -- what happens by itself

    def try_waiting(self, now: float) -> Iterator[str]:
        """Answer the waiting FETCH, if it can be answered now."""
        in_flight = self._current
        if in_flight is not None and isinstance(in_flight.answer, Parked):
            answer = in_flight.answer.attempt(now)
            if answer is not None:
                self._in_flight = replace(in_flight, answer=as_sent(answer))
                yield f"{in_flight.leader} answers the FETCH of {self._number}"

    def expire(self, now: float) -> Iterator[str]:
        """Answer the FETCH that has waited for its time."""
        in_flight = self._current
        if in_flight is not None and self.deadline <= now:
            assert isinstance(in_flight.answer, Parked)
            yield f"{in_flight.leader} answers the FETCH of {self._number}: its time is up"
            self._in_flight = replace(in_flight, answer=as_sent(in_flight.answer.expire()))

    def on_crash(self, broker: int) -> None:
        """Handle that a broker ended, and with it all its connections."""
        if self._in_flight is not None and broker == self._in_flight.leader:
            self._in_flight.plan.end_session()
            self._in_flight = None

    # -- help

    @property
    def _process(self) -> Process:
        process = self._machines[self._number].process
        assert process is not None, "a broker that is down takes no step"
        return process

    @property
    def _current(self) -> FetchInFlight | None:
        """Return the FETCH under way that belongs to the follower's present role."""
        process = self._machines[self._number].process
        if process is None or self._in_flight is None:
            return None
        return self._in_flight if self._in_flight.plan is process.fetchers.plan else None

    def _apply(
        self, answer: PartitionFetched, batches: CheckedBatches | InvalidBatch, now: float
    ) -> str:
        process = self._process
        partition = process.partition
        log = partition.log
        asked = process.fetchers.plan.complete(answer)
        assert asked is not None, "the answer is to the request under way"
        role, before = asked.assignment.role, log.log_end
        replicas = process.replicas
        outcome = replicas.apply_answer(partition, LeaderAnswer(asked.offset, answer, batches), now)
        if outcome.next is Next.ASK_RANGE:
            leader = self._machines[role.leader].process
            if leader is not None:
                theirs = leader.partition.log
                ends = (theirs.log_start, theirs.log_end)
                outcome = replicas.fit_to_range(partition, ends, now)
        if outcome.next is Next.BACK_OFF:
            asked.assignment.backoff.fail(now)
        else:
            asked.assignment.backoff.reset()
        text = f"{self._number} {_outcome_text(answer, before, log.log_end)}"
        if outcome.next is Next.STOP:
            text += f"; it refuses: {outcome.reason}"
        return text


def as_sent(answer: FetchResponse | Steps[FetchResponse]) -> FetchResponse:
    """Return the response with bytes in place of the slices."""
    response = finished(answer)
    partitions = []
    for fetched in response.partitions:
        slices = cast(Sequence[Slice], fetched.records)  # b"" is none, too
        partitions.append(replace(fetched, records=b"".join(part.read() for part in slices)))
    return replace(response, partitions=tuple(partitions))


def _outcome_text(answer: PartitionFetched, before: int, after: int) -> str:
    """Describe an answer, and how the log changed from `before` to `after`."""
    cut = f"; it cuts its log to {after}" if after < before else ""
    if answer.error and after > before:
        return f"is told {ErrorCode(answer.error).name}; its log starts again at {after}"
    if answer.error:
        return f"is told {ErrorCode(answer.error).name}{cut}"
    if answer.diverging_epoch != NO_EPOCH:
        return f"is told: epoch {answer.diverging_epoch} ends at {answer.diverging_end}{cut}"
    records = "no records"
    if after > before:
        records = f"offset {before}" if after == before + 1 else f"offsets {before} to {after - 1}"
    return f"gets {records}, HW {answer.high_watermark}"
