"""Fetch sessions: after the first request only what changed travels, in both directions.

A session remembers what its asker wants of each partition and what it was last told about it. The
asker then sends only new or changed partitions, and the broker answers only those that have
something to say: records, an error, a divergence, or a high watermark or log start other than the
last one told. After an error the partition is told anew, whatever it was told before.

Sessions belong to no connection: an asker that reconnects goes on with its id and next epoch. The
epochs of a session count 1, 2, ...; a request out of that order is refused, so a lost answer is
noticed, and the asker opens a new session. Ids are random, so an asker that outlived a restart of
the broker does not hit somebody else's session.

Changed partitions move to the end of the order in which answers are filled: who got data moved on,
so it is changed, and comes last next time (FET-11: a backlogged partition starves nobody).

There are `slots` of them. One that was idle for `IDLE_S_MAX` is dropped at the next request of
anybody: its asker is gone, mostly, and what it remembers keeps deleted partitions in memory. When
all are taken the asker gets no session and sends full requests, which always works.
"""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minibroker.broker.log.validate import Refused
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.roles import Leader
from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET, ErrorCode
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    SESSION_NONE,
    FetchRequest,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.types import TopicPartition

IDLE_S_MAX = 120.0
SESSION_ID_MAX = 2**31 - 1
SESSION_EPOCH_MAX = 2**31 - 1


class Calm(NamedTuple):
    """How a partition was when it had nothing to say; while it `holds` it still has nothing.

    An asker of hundreds of partitions, most of them idle, is answered in time for few of them.
    """

    partition: Partition
    role: Leader
    log_start: int
    log_end: int
    high_watermark: int

    def holds(self) -> bool:
        """Whether the partition is as it was."""
        role, log = self.role, self.partition.log
        return (
            self.partition.role is role
            and log.log_end == self.log_end
            and role.high_watermark == self.high_watermark
            and log.log_start == self.log_start
        )


class Wanted:
    """One partition that an asker wants: the request for it, and what it was last told.

    Another request for it makes another `Wanted`: this one may still be waiting for its answer.
    """

    __slots__ = ("calm", "high_watermark", "log_start", "name", "request")

    def __init__(self, request: PartitionFetch) -> None:
        self.request = request
        self.name = TopicPartition(request.topic, request.partition)
        self.high_watermark = NO_OFFSET
        self.log_start = NO_OFFSET
        self.calm: Calm | None = None

    @property
    def knows_all(self) -> bool:
        """Whether nothing has happened since its asker was told all there was."""
        calm = self.calm
        return (
            calm is not None
            and calm.high_watermark == self.high_watermark
            and calm.log_start == self.log_start
            and calm.holds()
        )

    def tell(self, answer: PartitionFetched) -> bool:
        """Note what will be told; False where the asker knows all of it already."""
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
    """What one asker wants. `next_epoch` is the only session epoch its next request may carry."""

    __slots__ = ("last_used", "next_epoch", "session_id", "wanted")

    def __init__(self, session_id: int, now: float) -> None:
        self.session_id = session_id
        self.next_epoch = 1
        self.last_used = now
        self.wanted: dict[TopicPartition, Wanted] = {}

    def advance(self, now: float) -> None:
        """A request of the expected epoch came."""
        self.next_epoch = 1 if self.next_epoch == SESSION_EPOCH_MAX else self.next_epoch + 1
        self.last_used = now

    def update(
        self, partitions: Iterable[PartitionFetch], forgotten: Iterable[TopicPartition]
    ) -> None:
        """Take over what is new or changed, to the end of the order, and drop what is to go."""
        for request in partitions:
            wanted = Wanted(request)
            before = self.wanted.pop(wanted.name, None)
            if before is not None and before.request.topic_id == request.topic_id:
                wanted.high_watermark = before.high_watermark
                wanted.log_start = before.log_start
            self.wanted[wanted.name] = wanted
        for name in forgotten:
            self.wanted.pop(TopicPartition(*name), None)


class FetchContext:
    """One request in its session, if any: which partitions to read, and which answers to send.

    `is_incremental`: in a running session, where only those travel that have something to say.
    """

    __slots__ = ("is_incremental", "session", "wanted")

    def __init__(
        self, wanted: Sequence[Wanted], session: FetchSession | None, is_incremental: bool
    ) -> None:
        self.wanted = wanted
        self.session = session
        self.is_incremental = is_incremental

    @property
    def session_id(self) -> int:
        """For the answer; 0 where there is no session."""
        return SESSION_NONE if self.session is None else self.session.session_id

    def answers(
        self, fetched: Iterable[tuple[Wanted, PartitionFetched]]
    ) -> tuple[PartitionFetched, ...]:
        """Those that travel: all, or in a running session the ones with something to say."""
        return tuple(
            answer for wanted, answer in fetched if wanted.tell(answer) or not self.is_incremental
        )


class FetchSessions:
    """The slots. A dict in the order of last use, so those to drop stand first."""

    def __init__(self, rng: random.Random, slots: int) -> None:
        self._rng = rng
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}

    def context(self, request: FetchRequest, now: float) -> FetchContext:
        """Place a request in its session. Raises `Refused` for an unknown id or a wrong epoch."""
        self._drop_idle(now)
        if request.session_epoch == SESSION_EPOCH_NONE:
            self._sessions.pop(request.session_id, None)
            return FetchContext([*map(Wanted, request.partitions)], None, is_incremental=False)
        if request.session_epoch == SESSION_EPOCH_OPEN:
            self._sessions.pop(request.session_id, None)
            opened = self._open(now)
            if opened is None:
                return FetchContext([*map(Wanted, request.partitions)], None, is_incremental=False)
            opened.update(request.partitions, ())
            return FetchContext([*opened.wanted.values()], opened, is_incremental=False)
        session = self._continue(request, now)
        session.update(request.partitions, request.forgotten)
        return FetchContext([*session.wanted.values()], session, is_incremental=True)

    def statistics(self) -> int:
        """How many slots are taken."""
        return len(self._sessions)

    def _drop_idle(self, now: float) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < IDLE_S_MAX:
                return
            del self._sessions[oldest.session_id]

    def _open(self, now: float) -> FetchSession | None:
        if len(self._sessions) >= self._slots:
            return None
        session_id = self._rng.randint(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, SESSION_ID_MAX)
        session = self._sessions[session_id] = FetchSession(session_id, now)
        return session

    def _continue(self, request: FetchRequest, now: float) -> FetchSession:
        session = self._sessions.pop(request.session_id, None)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no such fetch session")
        self._sessions[session.session_id] = session
        if request.session_epoch != session.next_epoch:
            raise Refused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"expected epoch {session.next_epoch}, got {request.session_epoch}",
            )
        session.advance(now)
        return session
