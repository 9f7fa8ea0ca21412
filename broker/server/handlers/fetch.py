"""FETCH: answer with file slices, or wait until there are enough bytes to answer with.

A fetch is answered at once if it does not want to wait, names no partition, has `bytes_min` to
read, or has a partition whose answer is an error or a divergence. Otherwise it is parked under its
partitions, or, in a session, under the session's watch. Each attempt looks at the partitions as
they are then, by arithmetic over the index; the answer is read from the log only when it is due. A
partition of a session with nothing to send in an answer rests (`fetch_sessions.py`): neither this
nor a later request looks at it before it is notified.

A consumer reads up to the high watermark, or, for committed records only (READ_COMMITTED), up to
the last stable offset; then it gets the aborted transactions that overlap its records, too. The
last stable offset rises only with the high watermark, so the same notification wakes both. A
follower reads up to the log end. An offset between the high
watermark and the log end is no error: a new leader may not know yet that it is committed, so there
is nothing to read for now. An offset beyond the log end is OFFSET_OUT_OF_RANGE at once. A consumer
would then apply its reset policy, so a leader that may have been replaced answers
NOT_LEADER_OR_FOLLOWER instead.

A follower's fetch also says that the follower has everything below its offsets, and that it is
alive. The leader records each accepted read before it makes the answer, so the answer carries the
high watermark that this fetch has raised. A waiting fetch of a follower also ends when the high
watermark differs from the one sent last, so that all replicas know what is committed. It does not
end at once: while records flow, the next ones carry the high watermark, and a round trip for it
alone would come with each of them. A fetch from an earlier registration of a broker is refused.

Records that were damaged after they were written are an error, CORRUPT_MESSAGE, unless another
replica can lead: a reader must not take them for the end of the log. `log/runs.py` has the checks.

Replication quotas: a follower that is not in sync gets no records of a throttled partition while
the leader's quota is exceeded (`replication/quotas.py`). Such a partition does not count for
`bytes_min` and does not rest. Nothing is notified when the quota has room again, so the request
then waits at most until that is expected.

Records that are not in the page cache are read into it by a worker thread before they are chosen
(`log/cached_reads.py`), so the answer takes steps, and other connections are served meanwhile. This
connection's next request waits. The partition, its role and its log may be others after that: it is
looked at again from the beginning.

Limits: partitions are filled in the request's order. The first batch of the answer is sent whole,
however large it is, so that a reader always makes progress; all other batches obey both limits.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from minibroker.broker.errors import Refused
from minibroker.broker.log.cached_reads import NotCached, reading_ahead
from minibroker.broker.log.log import Log
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.quotas import ReplicationQuotas
from minibroker.broker.replication.roles import FollowerFetch
from minibroker.broker.server.fetch_sessions import FetchContext, Wanted
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Steps, Turns, at_once, up_to_a_step, without_pause
from minibroker.protocol.constants import (
    ELEMENTS_AT_ONCE,
    NO_EPOCH,
    NO_OFFSET,
    READ_COMMITTED,
    ErrorCode,
)
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    AbortedTransaction,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.types import OffsetAndEpoch, Slice, records_size

NO_DIVERGENCE: Final = OffsetAndEpoch(NO_OFFSET, NO_EPOCH)


class _View(NamedTuple):
    """A partition in one attempt: the offset where this reader stops, and where its log diverges
    from this one. Valid within the attempt, during which no other task runs."""

    partition: Partition
    end: int
    divergence: OffsetAndEpoch | None


def _must_delete(partition: Partition, wanted: Wanted) -> bool:
    """Whether a DELETE_RECORDS request waits for this follower to learn the new log start. The
    follower learns of deletions by retention with the next answer."""
    return NO_OFFSET < wanted.log_start < partition.leader().start_required


class _Fetch:
    """One request in its session."""

    __slots__ = (
        "_attempted_at",
        "_bytes_max",
        "_bytes_min",
        "_context",
        "_deadline",
        "_is_of_earlier_registration",
        "_may_be_replaced",
        "_now",
        "_request",
        "_services",
    )

    def __init__(
        self, services: Services, request: FetchRequest, context: FetchContext, now: float
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._deadline = now + request.wait_ms_max / 1000
        self._bytes_max = min(request.bytes_max, services.config.fetch_max_bytes)
        self._bytes_min = min(request.bytes_min, self._bytes_max)
        self._is_of_earlier_registration = False
        self._may_be_replaced = not (self._is_follower or services.controller.may_decide_alone(now))
        self._now = now
        self._attempted_at = now

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys that the answer depends on: its partitions, or the session's watch of them."""
        session = self._context.session
        if session is not None:
            return (session.watch,)
        return tuple([wanted.name for wanted in self._context.wanted])

    @property
    def may_wait(self) -> bool:
        """Whether the answer may wait for records."""
        return self._request.wait_ms_max > 0 and not self._context.is_empty

    def deadline(self) -> float:
        """Return the time until which the request waits."""
        return self._deadline

    @property
    def _is_follower(self) -> bool:
        return self._request.replica_id >= 0

    @property
    def _is_stable(self) -> bool:
        """Whether a consumer reads only committed records."""
        return self._request.isolation_level == READ_COMMITTED and not self._is_follower

    def begin(self, now: float) -> Turns[None]:
        """Record a follower's reads. Wake all partitions if all may have to be refused."""
        session, request = self._context.session, self._request
        if self._is_follower:
            live = self._services.image.brokers.get(request.replica_id)
            self._is_of_earlier_registration = (
                live is not None and NO_EPOCH < request.broker_epoch < live.epoch
            )
        if session is not None and (self._is_of_earlier_registration or self._may_be_replaced):
            session.wake_all()
        if self._is_follower and not self._is_of_earlier_registration:
            self._services.replicas.record_arrival(request.replica_id, now)
            for some in at_once(self._context.wanted):
                for wanted in some:
                    self._record_progress(wanted, now)
                if len(some) == AT_ONCE:
                    yield
            if session is not None:
                session.record_for_resting(request.broker_epoch, now)

    def _record_progress(self, wanted: Wanted, now: float) -> None:
        """Record one read of a follower, unless it is refused or diverges (FET-09)."""
        asked, request = wanted.request, self._request
        try:
            partition, _, divergence = self._look(wanted)
        except Refused:  # the answer has the error
            return
        if self._context.session is None:
            wanted.high_watermark = partition.high_watermark
            wanted.log_start = partition.log.log_start
        if divergence is None:
            fetch = FollowerFetch(
                request.replica_id, asked.fetch_offset, asked.log_start, request.broker_epoch
            )
            self._services.replicas.record_fetch(partition, fetch, now)

    def attempt(self, now: float) -> Any:
        """Return the answer if it is due, else None. An answer about many partitions is a
        generator, and one with records that a worker has to read. A new high watermark and deleted
        records alone bring the deadline forward."""
        self._attempted_at = now
        all_wanted = self._context.wanted
        views: list[_View] = []
        try:
            if not self._is_due(all_wanted, views, now):
                return None
        except Exception:
            self._services.fetch_sessions.close(self._context.session_id)
            raise
        if len(all_wanted) > ELEMENTS_AT_ONCE:
            return self._answer_in_steps(all_wanted, ())
        return up_to_a_step(self._answer_in_steps(all_wanted, views))

    @property
    def _quotas(self) -> ReplicationQuotas:
        return self._services.replicas.quotas

    def _is_held_back(self, wanted: Wanted, view: _View) -> bool:
        """Whether there are records for this follower that the leader's quota keeps from it now."""
        return (
            self._is_follower
            and view.divergence is None
            and wanted.request.fetch_offset < view.end
            and self._quotas.holds_back(
                view.partition, self._request.replica_id, self._attempted_at
            )
        )

    def _is_due(self, all_wanted: Sequence[Wanted], views: list[_View], now: float) -> bool:
        """Whether the answer is due. The views of the first partitions are added to `views`."""
        readable = 0
        wait_s_max = math.inf
        for wanted in all_wanted:
            try:
                view = self._look(wanted)
            except Refused:
                return True
            views.append(view)
            if self._is_held_back(wanted, view):
                wait_s_max = min(wait_s_max, self._quotas.leader.retry_at(now) - now)
            else:
                readable += self._readable_bytes(wanted, view)
            if readable >= self._bytes_min:
                return True
            if self._is_follower and view.partition.high_watermark != wanted.high_watermark:
                wait_s_max = min(wait_s_max, self._news_wait_s(wanted))
            if self._is_follower and _must_delete(view.partition, wanted):
                wait_s_max = 0.0
        self._deadline = min(self._deadline, now + wait_s_max)
        return readable >= self._bytes_min or now >= self._deadline

    def _news_wait_s(self, wanted: Wanted) -> float:
        """Return how long (s) a new high watermark may wait for records to travel with; 0 if the
        follower knows none."""
        if wanted.high_watermark == NO_OFFSET:
            return 0.0
        return self._services.config.replica_high_watermark_wait_max_ms / 1000

    def answer(self) -> Any:
        """Return the answer with the records that there are, perhaps none, as `attempt` does."""
        all_wanted = self._context.wanted
        steps = self._answer_in_steps(all_wanted, ())
        return steps if len(all_wanted) > ELEMENTS_AT_ONCE else up_to_a_step(steps)

    def _answer_in_steps(
        self, all_wanted: Sequence[Wanted], views: Sequence[_View]
    ) -> Steps[FetchResponse]:
        """Read the records and return the answer. `views` are this attempt's, of the first
        partitions; none where the answer pauses."""
        room = self._bytes_max
        is_empty = True
        answers = []
        try:
            for index, wanted in enumerate(all_wanted):
                view = views[index] if index < len(views) else None
                try:
                    answer, size = self._fetch(wanted, view, room, at_least_one=is_empty)
                except NotCached:
                    views = ()
                    answer, size = yield from self._read_ahead(wanted, room, at_least_one=is_empty)
                if size:
                    is_empty = False
                    room = max(0, room - size)
                if self._context.must_send(wanted, answer):
                    answers.append(answer)
                if index % ELEMENTS_AT_ONCE == ELEMENTS_AT_ONCE - 1:
                    yield None
        except Exception:
            self._services.fetch_sessions.close(self._context.session_id)  # it is half changed
            raise
        nodes = self._services.nodes(answers)
        return FetchResponse(0, self._context.session_id, tuple(answers), nodes)

    def _read_ahead(
        self, wanted: Wanted, room: int, *, at_least_one: bool
    ) -> Steps[tuple[PartitionFetched, int]]:
        """As `_fetch`, after a worker has read the records into the page cache."""

        def fetch(may_block: bool) -> tuple[PartitionFetched, int]:
            return self._fetch(wanted, None, room, at_least_one=at_least_one, may_block=may_block)

        return (yield from reading_ahead(fetch, min(wanted.request.bytes_max, room)))

    def _look(self, wanted: Wanted) -> _View:
        """Return a partition as it is for this reader.

        Raises `Refused`. A divergence is checked before an offset beyond the end, because it tells
        a follower more.
        """
        asked = wanted.request
        partition = self._services.partition(wanted.name, asked.topic_id)
        request = self._request
        end = partition.readable_end(
            request.replica_id, asked.leader_epoch, request.isolation_level
        )
        if self._is_of_earlier_registration:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "you have registered anew since")
        if self._may_be_replaced:
            self._services.refuse_if_abandoned(partition.leader(), self._now)
        divergence = partition.divergence(asked.fetch_offset, asked.last_fetched_epoch)
        log_end = partition.log.log_end
        if divergence is None and asked.fetch_offset > log_end:
            if not self._is_follower and self._services.may_be_replaced(wanted.name, self._now):
                what = "another broker may lead, and have more: ask for metadata"
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, what)
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log ends at {log_end}")
        return _View(partition, end, divergence)

    def _readable_bytes(self, wanted: Wanted, view: _View) -> int:
        """Return how many bytes a partition has for this reader. A divergence counts as enough for
        an answer."""
        if view.divergence is not None:
            return self._bytes_min
        offset = wanted.request.fetch_offset
        if offset >= view.end:
            return 0
        return min(view.partition.log.readable_bytes(offset, view.end), wanted.request.bytes_max)

    def _fetch(
        self,
        wanted: Wanted,
        view: _View | None,
        room: int,
        *,
        at_least_one: bool,
        may_block: bool = False,
    ) -> tuple[PartitionFetched, int]:
        """Return one partition's answer and the size (bytes) of its records. Raises NotCached, and
        has changed nothing, unless it `may_block`."""
        asked = wanted.request
        offset, size = asked.fetch_offset, 0
        records: Sequence[Slice] = ()
        aborted: tuple[AbortedTransaction, ...] | None = () if self._is_stable else None
        try:
            if view is None or not view.partition.is_leader:
                view = self._look(wanted)
            partition, end, divergence = view
            if self._is_held_back(wanted, view):
                pass
            elif divergence is None and offset < end:
                extent = offset, min(asked.bytes_max, room), end
                records, aborted = _read(
                    partition.log, extent, at_least_one, may_block, is_stable=self._is_stable
                )
                if records:
                    size = records_size(records)
                    self._record_sent(partition, offset, size)
            elif divergence is None and self._context.session is not None:
                self._context.session.rest(wanted, partition.leader())
        except BadBytes as bad:
            refused = self._services.replicas.refusal_of(partition, bad)
            return self._failure(wanted, refused.code), 0
        except Refused as refused:
            return self._failure(wanted, refused.code), 0
        diverging = divergence or NO_DIVERGENCE
        return PartitionFetched(
            *wanted.name,
            0,
            partition.high_watermark,
            partition.log.log_start,
            records,
            diverging_epoch=diverging.leader_epoch,
            diverging_end=diverging.offset,
            topic_id=asked.topic_id if self._request.is_by_id else b"",
            last_stable_offset=partition.last_stable_offset,
            aborted_transactions=aborted,
        ), size

    def _record_sent(self, partition: Partition, offset: int, size: int) -> None:
        if self._is_follower:
            partition.leader().record_sent(self._request.replica_id, offset)
            partition.traffic.bytes_to_followers += size
            self._quotas.record_sent(partition, size, self._attempted_at)
        else:
            partition.traffic.bytes_out += size

    def _failure(self, wanted: Wanted, code: ErrorCode) -> PartitionFetched:
        leader_id, leader_epoch = self._services.leader_hint(wanted.name, code)
        return PartitionFetched(
            *wanted.name,
            code,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            topic_id=wanted.request.topic_id if self._request.is_by_id else b"",
        )


def _read(
    log: Log,
    extent: tuple[int, int, int],
    at_least_one: bool,
    may_block: bool,
    *,
    is_stable: bool,
) -> tuple[Sequence[Slice], tuple[AbortedTransaction, ...] | None]:
    """Return the records of an extent (offset, most bytes, end), and with `is_stable` the aborted
    transactions that overlap them. Raises as `Log.read`."""
    if not extent[1] and not at_least_one:  # nothing is read ahead for an answer that is full
        return (), () if is_stable else None
    if not is_stable:
        return log.read(*extent, at_least_one=at_least_one, may_block=may_block), None
    records, entries = log.read_committed(*extent, at_least_one=at_least_one, may_block=may_block)
    return records, tuple([AbortedTransaction(*entry[:2]) for entry in entries])


def handle(
    services: Services, request: FetchRequest, now: float, peer: str = ""
) -> FetchResponse | Parked[FetchResponse] | Steps[FetchResponse]:
    """Answer a peer (host:port) at once or in steps, or park. An error of the session is the error
    of the whole answer."""
    unknown: list[PartitionFetched] = []
    try:
        if request.is_by_id:
            request, unknown = without_pause(_named(services, request))
        fetch = without_pause(_begin(services, request, now, peer))
    except Refused as refused:
        return FetchResponse(refused.code)
    if unknown:
        return up_to_a_step(_with_unknown(unknown, fetch))
    answer: FetchResponse | Steps[FetchResponse] | None = (
        fetch.attempt(now) if fetch.may_wait else fetch.answer()
    )
    if answer is not None:
        return answer
    return Parked(fetch.keys, fetch.deadline, fetch.attempt, fetch.answer)


def _named(
    services: Services, request: FetchRequest
) -> Turns[tuple[FetchRequest, list[PartitionFetched]]]:
    """Return the request with the names of its topics, and the answers for ids that no topic has.

    A session is only for topics that are known: a request with an unknown id opens none, and one of
    a session is refused. Its client then sends a whole request.
    """
    names = services.image.topic_names
    partitions: list[PartitionFetch] = []
    unknown: list[PartitionFetched] = []
    for some in at_once(request.partitions):
        for asked in some:
            name = names.get(asked.topic_id)
            if name is not None:
                partitions.append(replace(asked, topic=name))
                continue
            code = ErrorCode.UNKNOWN_TOPIC_ID
            unknown.append(PartitionFetched("", asked.partition, code, topic_id=asked.topic_id))
        if len(some) == AT_ONCE:
            yield
    if unknown and request.session_epoch not in (SESSION_EPOCH_NONE, SESSION_EPOCH_OPEN):
        what = "no topic of this id is known: send a whole request"
        raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, what)
    epoch = SESSION_EPOCH_NONE if unknown else request.session_epoch
    return replace(request, partitions=tuple(partitions), session_epoch=epoch), unknown


def _with_unknown(unknown: list[PartitionFetched], fetch: _Fetch) -> Steps[FetchResponse]:
    answer = fetch.answer()
    known: FetchResponse = answer if isinstance(answer, FetchResponse) else (yield from answer)
    return replace(known, partitions=(*unknown, *known.partitions))


def _begin(services: Services, request: FetchRequest, now: float, peer: str) -> Turns[_Fetch]:
    """Find or make the session, and record a follower's reads. Raises `Refused`."""
    try:
        context = yield from services.fetch_sessions.context_in_turns(request, now, peer)
        fetch = _Fetch(services, request, context, now)
        yield from fetch.begin(now)
    except Refused:
        raise
    except Exception:
        services.fetch_sessions.close(request.session_id)  # it may be half changed
        raise
    return fetch


def is_large(request: FetchRequest) -> bool:
    """Whether a request takes more than one turn."""
    forgotten = len(request.forgotten) + len(request.forgotten_by_id)
    return len(request.partitions) + forgotten > ELEMENTS_AT_ONCE


def handle_in_turns(
    services: Services, request: FetchRequest, now: float, peer: str
) -> Steps[FetchResponse | Parked[FetchResponse]]:
    """As `handle`, for a request about many partitions."""
    unknown: list[PartitionFetched] = []
    try:
        if request.is_by_id:
            request, unknown = yield from _named(services, request)
        fetch = yield from _begin(services, request, now, peer)
    except Refused as refused:
        return FetchResponse(refused.code)
    if unknown:
        return (yield from _with_unknown(unknown, fetch))
    return Parked(fetch.keys, fetch.deadline, fetch.attempt, fetch.answer)
