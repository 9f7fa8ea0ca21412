"""Fetch sessions: after the first request only changes are sent, in both directions.

A session remembers what its reader (a consumer or a follower) wants of each partition, and the last
answer about it. The reader then sends only new or changed partitions. The broker answers only
partitions with news: records, an error, a divergence, or a high watermark or log start other than
the last one sent. After an error the next answer about the partition is sent in any case.

Most partitions of a large session have no news for a long time. A partition *rests* from an answer
that left nothing to send until it is notified in the purgatory or the reader names it again. No
request looks at it while it rests, so the cost of a request does not depend on the number of
resting partitions. The time of a resting follower's last fetch is still needed; it is kept once for
the whole session (`LastFetch`).

A session belongs to no connection: a reader that reconnects continues with its id and next epoch,
on another wire, too. So a session takes only partitions that Kafka's wire can name.
The epochs of a session are 1, 2, ...; a request out of that order is refused. So a lost answer is
noticed, and the reader opens a new session. Ids are random, so that a reader from before a restart
of the broker does not find another reader's session.

Partitions that do not rest are filled in the order in which they were named or notified. A reader
that got data names the partition again with its next offset, so it comes last the next time
(FET-11: a backlogged partition does not starve others).

There are `slots` sessions. One that was idle for `IDLE_S_MAX` is dropped at the next request of any
reader: its own reader is probably gone, and it keeps deleted partitions in memory. When all slots
are taken, a reader gets no session and sends full requests, which always works.

Their memory counts with that of requests (`request_memory.py`). Where that is too much, the largest
session is closed whose last connection has ended, or else the largest of all connections and
sessions. A session's reader then gets FETCH_SESSION_ID_NOT_FOUND, and opens another.
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, cast

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Purgatory, Watch
from minibroker.broker.replication.roles import LastFetch, Leader, Progress
from minibroker.broker.server.request_memory import ELEMENT_BYTES, RequestMemory
from minibroker.broker.turns import AT_ONCE, Turns, at_once, without_pause
from minibroker.protocol.constants import (
    INT32_MAX,
    NO_EPOCH,
    NO_OFFSET,
    TOPIC_NAME_CHARS_MAX,
    ErrorCode,
)
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    SESSION_NONE,
    FetchRequest,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)
TOPIC_ID_BYTES: Final = 16

IDLE_S_MAX = 120.0
SESSION_ID_MAX = 2**31 - 1
SESSION_EPOCH_MAX = 2**31 - 1


class Wanted:
    """One partition that a reader wants: the request for it, and the last answer's offsets.

    `resting` is the progress of a resting follower. Each request for the partition makes another
    `Wanted`, because the one before may still wait for its answer.
    """

    __slots__ = ("high_watermark", "log_start", "name", "request", "resting")

    def __init__(self, request: PartitionFetch) -> None:
        self.request = request
        self.name = TopicPartition(request.topic, request.partition)
        self.high_watermark = NO_OFFSET
        self.log_start = NO_OFFSET
        self.resting: Progress | None = None

    def record_answer(self, answer: PartitionFetched) -> bool:
        """Record an answer that will be sent. Return whether it has news for the reader."""
        if answer.error:
            self.high_watermark = self.log_start = NO_OFFSET
            return True
        is_news = (
            len(answer.records) > 0
            or answer.diverging_epoch != NO_EPOCH
            or answer.high_watermark != self.high_watermark
            or answer.log_start != self.log_start
        )
        self.high_watermark = answer.high_watermark
        self.log_start = answer.log_start
        return is_news


class FetchSession:
    """The partitions that one reader wants. `next_epoch` is the only valid session epoch of its
    next request. `watch` is registered under each of the partitions in the purgatory. `peer` is the
    connection (host:port) of the last request, `is_abandoned` once that has ended.
    """

    __slots__ = (
        "_awake",
        "_purgatory",
        "_wanted",
        "is_abandoned",
        "last_fetch",
        "last_used",
        "next_epoch",
        "on_hang_up",
        "peer",
        "replica_id",
        "session_id",
        "watch",
    )

    def __init__(self, session_id: int, replica_id: int, purgatory: Purgatory, now: float) -> None:
        self.session_id = session_id
        self.replica_id = replica_id
        self.next_epoch = 1
        self.last_used = now
        self.last_fetch = LastFetch()
        self.watch = Watch()
        self.peer = ""
        self.is_abandoned = False
        self.on_hang_up: Callable[[], None] = lambda: None
        self._purgatory = purgatory
        self._wanted: dict[TopicPartition, Wanted] = {}
        # The partitions that do not rest, in the order in which answers are filled.
        self._awake: dict[TopicPartition, Wanted] = {}

    def advance(self, now: float) -> None:
        """Record a request with the expected epoch."""
        self.next_epoch = 1 if self.next_epoch == SESSION_EPOCH_MAX else self.next_epoch + 1
        self.last_used = now

    def forget(self, names: Iterable[TopicPartition]) -> None:
        """Drop partitions.

        A reader that forgets a partition and names it again in one request starts over with it: it
        may not have used the answers before.
        """
        for name in names:
            gone = self._wanted.pop(TopicPartition(*name), None)
            if gone is not None:
                self._remove_awake(gone)
                self._purgatory.unwatch(self.watch, gone.name)

    def names_of(self, wanted: Iterable[TopicIdPartition]) -> Turns[list[TopicPartition]]:
        """Return the partitions whose topics have these ids; the topics may be deleted by now."""
        ids: set[TopicIdPartition] = set()
        for part in at_once(wanted):
            ids.update(part)
            yield
        names: list[TopicPartition] = []
        for some in at_once([*self._wanted.values()]):
            names += (
                one.name
                for one in some
                if TopicIdPartition(one.request.topic_id, one.name.partition) in ids
            )
            yield
        return names

    def update(self, partitions: Iterable[PartitionFetch]) -> None:
        """Put new or changed partitions at the end of the order."""
        for request in partitions:
            wanted = Wanted(request)
            before = self._wanted.get(wanted.name)
            if before is None:
                self._purgatory.watch(self.watch, wanted.name)
            else:
                self._remove_awake(before)
                if before.request.topic_id == request.topic_id:
                    wanted.high_watermark = before.high_watermark
                    wanted.log_start = before.log_start
            self._wanted[wanted.name] = self._awake[wanted.name] = wanted

    @property
    def is_empty(self) -> bool:
        """Whether the session has no partition."""
        return not self._wanted

    @property
    def size(self) -> int:
        """About how many bytes the session takes."""
        return ELEMENT_BYTES * len(self._wanted)

    def hang_up(self, reason: str) -> None:
        """Close the session, because requests take too much memory."""
        logger.warning("closing the fetch session of %s: %s", self.peer or "a reader", reason)
        self.on_hang_up()

    def awake(self) -> list[Wanted]:
        """Return the partitions that may have news."""
        if self.watch.notified:
            notified, self.watch.notified = self.watch.notified, {}
            for name in notified:
                wanted = self._wanted.get(cast(TopicPartition, name))
                if wanted is not None:
                    self._wake(wanted)
        return [*self._awake.values()]

    def wake_all(self) -> None:
        """End the rest of all partitions."""
        for wanted in self._wanted.values():
            self._wake(wanted)

    def record_for_resting(self, broker_epoch: int, now: float) -> None:
        """Count a follower's request for all resting partitions.

        Call it after the request is recorded for the others: for one that rested until now, the
        request before counts.
        """
        self.last_fetch.broker_epoch = broker_epoch
        self.last_fetch.fetched_at = now

    def rest(self, wanted: Wanted, leader: Leader) -> None:
        """Let a partition rest until it is notified: its answer leaves nothing to send.

        It stays awake if the reader has named it again, or if each of its fetches must be recorded.
        """
        if self._awake.get(wanted.name) is not wanted:
            return
        if self.replica_id >= 0:
            offset = wanted.request.fetch_offset
            wanted.resting = leader.rest(self.replica_id, offset, self.last_fetch)
            if wanted.resting is None:
                return
        del self._awake[wanted.name]

    def close(self) -> None:
        """Stop watching. A request that still waits is answered at its deadline."""
        for wanted in self._wanted.values():
            self._wake(wanted)
            self._purgatory.unwatch(self.watch, wanted.name)

    def _wake(self, wanted: Wanted) -> None:
        self._awake.setdefault(wanted.name, wanted)
        if wanted.resting is not None:
            wanted.resting.end_rest(self.last_fetch)
            wanted.resting = None

    def _remove_awake(self, wanted: Wanted) -> None:
        self._wake(wanted)
        del self._awake[wanted.name]


class FetchContext:
    """One request in its session, if any: which partitions to read, and which answers to send.

    `is_incremental`: the session is running, so only answers with news are sent.
    """

    __slots__ = ("_alone", "is_incremental", "session")

    def __init__(
        self, alone: Sequence[Wanted], session: FetchSession | None, *, is_incremental: bool
    ) -> None:
        self._alone = alone  # without a session
        self.session = session
        self.is_incremental = is_incremental

    @property
    def wanted(self) -> Sequence[Wanted]:
        """The partitions that may have news, in the order in which they are filled."""
        return self._alone if self.session is None else self.session.awake()

    @property
    def is_empty(self) -> bool:
        """Whether the request wants no partition."""
        return not self._alone if self.session is None else self.session.is_empty

    @property
    def session_id(self) -> int:
        """The session id for the answer; 0 without a session."""
        return SESSION_NONE if self.session is None else self.session.session_id

    def must_send(self, wanted: Wanted, answer: PartitionFetched) -> bool:
        """Record a partition's answer. Return whether to send it: always, or in a running session
        if it has news."""
        return wanted.record_answer(answer) or not self.is_incremental


class FetchSessions:
    """The sessions of a broker. Tests replace `session_type`."""

    session_type: ClassVar[type[FetchSession]] = FetchSession

    def __init__(
        self, rng: random.Random, slots: int, purgatory: Purgatory, memory: RequestMemory
    ) -> None:
        self._rng = rng
        self._slots = slots
        self._purgatory = purgatory
        self._memory = memory
        # In the order of last use, so that the ones to drop come first.
        self._sessions: dict[int, FetchSession] = {}

    def context(self, request: FetchRequest, now: float, peer: str = "") -> FetchContext:
        """As `context_in_turns`, without pauses."""
        return without_pause(self.context_in_turns(request, now, peer))

    def context_in_turns(self, request: FetchRequest, now: float, peer: str) -> Turns[FetchContext]:
        """Return the context of a peer's request; pause after some hundred partitions.

        Raises `Refused` for an unknown id or a wrong epoch, and for a session that was closed
        meanwhile.
        """
        self._drop_idle(now)
        if request.session_epoch not in (SESSION_EPOCH_NONE, SESSION_EPOCH_OPEN):
            session = self._continue(request, now)
            yield from self._update(session, request, peer)
            return FetchContext((), session, is_incremental=True)
        self.close(request.session_id)
        if request.session_epoch == SESSION_EPOCH_OPEN and len(self._sessions) < self._slots:
            session = self._open(request.replica_id, now)
            yield from self._update(session, request, peer)
            return FetchContext((), session, is_incremental=False)
        wanted: dict[TopicPartition, Wanted] = {}
        for some in at_once(request.partitions):
            for each in map(Wanted, some):
                wanted[each.name] = each
            if len(some) == AT_ONCE:
                yield
        return FetchContext([*wanted.values()], None, is_incremental=False)

    def close(self, session_id: int) -> None:
        """Close a session, if there is one of this id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            self._memory.set_held(session, 0)

    def abandon(self, peer: str) -> None:
        """Record that a connection has ended: its sessions are the first to go."""
        for session in self._sessions.values():
            if session.peer == peer:
                session.is_abandoned = True

    def statistics(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def _drop_idle(self, now: float) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < IDLE_S_MAX:
                return
            self.close(oldest.session_id)

    def _update(self, session: FetchSession, request: FetchRequest, peer: str) -> Turns[None]:
        session.peer, session.is_abandoned = peer, False
        forgotten: Sequence[TopicPartition] = request.forgotten
        if request.forgotten_by_id:
            forgotten = yield from session.names_of(request.forgotten_by_id)
            self._check_open(session)
        for names in at_once(forgotten):
            session.forget(names)
            if len(names) == AT_ONCE:
                yield
                self._check_open(session)
        for some in at_once(request.partitions):
            if not all(map(_is_legal, some)):
                self.close(session.session_id)
                what = "a topic's name, its id or the number of a partition is too long"
                raise Refused(ErrorCode.INVALID_REQUEST, what)
            session.update(some)
            self._memory.set_held(session, session.size)
            if len(some) == AT_ONCE:
                yield
            self._check_open(session)

    def _check_open(self, session: FetchSession) -> None:
        """Raise Refused if a session was closed while its request paused."""
        if self._sessions.get(session.session_id) is not session:
            what = "the fetch session takes too much memory"
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, what)

    def _open(self, replica_id: int, now: float) -> FetchSession:
        session_id = self._rng.randint(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, SESSION_ID_MAX)
        session = self.session_type(session_id, replica_id, self._purgatory, now)
        session.on_hang_up = lambda: self.close(session_id)
        self._sessions[session_id] = session
        return session

    def _continue(self, request: FetchRequest, now: float) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no such fetch session")
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)  # used last
        if request.session_epoch != session.next_epoch:
            raise Refused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"expected epoch {session.next_epoch}, got {request.session_epoch}",
            )
        session.advance(now)
        return session


def _is_legal(request: PartitionFetch) -> bool:
    return (
        abs(request.partition) <= INT32_MAX
        and len(request.topic) <= TOPIC_NAME_CHARS_MAX
        and len(request.topic_id) in (0, TOPIC_ID_BYTES)
    )
