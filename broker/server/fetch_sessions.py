"""Fetch sessions: after the first request only what changed travels, in both directions.

A session remembers what its asker wants of each partition and what it was last told about it. The
asker then sends only new or changed partitions, and the broker answers only those that have
something to say: records, an error, a divergence, or a high watermark or log start other than the
last one told. After an error the partition is told anew, whatever it was told before.

Most partitions of a large session have nothing to say for a long time. A partition *rests* from an
answer that left nothing to say until it is notified in the purgatory or the asker names it again.
No request looks at it meanwhile, so a request costs what the others cost, however many rest. What
must be known of a resting follower all the same, when it last fetched, is kept once for the whole
session (`LastFetch`).

Sessions belong to no connection: an asker that reconnects goes on with its id and next epoch. The
epochs of a session count 1, 2, ...; a request out of that order is refused, so a lost answer is
noticed, and the asker opens a new session. Ids are random, so an asker that outlived a restart of
the broker does not hit somebody else's session.

Partitions that do not rest are filled in the order in which they were named or notified. One that
got data has moved on, so it is named again and comes last next time (FET-11: a backlogged partition
starves nobody).

There are `slots` of them. One that was idle for `IDLE_S_MAX` is dropped at the next request of
anybody: its asker is gone, mostly, and what it remembers keeps deleted partitions in memory. When
all are taken the asker gets no session and sends full requests, which always works.
"""

import random
from collections.abc import Iterable, Sequence
from typing import ClassVar, cast

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Purgatory, Watch
from minibroker.broker.replication.roles import LastFetch, Leader, Progress
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


class Wanted:
    """One partition that an asker wants: the request for it, and what it was last told.

    `resting` is the progress of a follower that rests. Another request for the partition makes
    another `Wanted`: this one may still be waiting for its answer.
    """

    __slots__ = ("high_watermark", "log_start", "name", "request", "resting")

    def __init__(self, request: PartitionFetch) -> None:
        self.request = request
        self.name = TopicPartition(request.topic, request.partition)
        self.high_watermark = NO_OFFSET
        self.log_start = NO_OFFSET
        self.resting: Progress | None = None

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
    """What one asker wants. `next_epoch` is the only session epoch its next request may carry.

    `watch` stands under each of its partitions in the purgatory.
    """

    __slots__ = (
        "_awake",
        "_purgatory",
        "_wanted",
        "last_fetch",
        "last_used",
        "next_epoch",
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
        self._purgatory = purgatory
        self._wanted: dict[TopicPartition, Wanted] = {}
        # Those that do not rest, in the order in which answers are filled.
        self._awake: dict[TopicPartition, Wanted] = {}

    def advance(self, now: float) -> None:
        """A request of the expected epoch came."""
        self.next_epoch = 1 if self.next_epoch == SESSION_EPOCH_MAX else self.next_epoch + 1
        self.last_used = now

    def update(
        self, partitions: Iterable[PartitionFetch], forgotten: Iterable[TopicPartition]
    ) -> None:
        """Drop what is to go, and take over what is new or changed, to the end of the order.

        Who names a partition in both begins anew with it: what it was told, it may not have taken.
        """
        for name in forgotten:
            gone = self._wanted.pop(TopicPartition(*name), None)
            if gone is not None:
                self._take_out(gone)
                self._purgatory.unwatch(self.watch, gone.name)
        for request in partitions:
            wanted = Wanted(request)
            before = self._wanted.get(wanted.name)
            if before is None:
                self._purgatory.watch(self.watch, wanted.name)
            else:
                self._take_out(before)
                if before.request.topic_id == request.topic_id:
                    wanted.high_watermark = before.high_watermark
                    wanted.log_start = before.log_start
            self._wanted[wanted.name] = self._awake[wanted.name] = wanted

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return not self._wanted

    def awake(self) -> list[Wanted]:
        """Those that may have something to say."""
        if self.watch.notified:
            notified, self.watch.notified = self.watch.notified, {}
            for name in notified:
                wanted = self._wanted.get(cast(TopicPartition, name))
                if wanted is not None:
                    self._wake(wanted)
        return [*self._awake.values()]

    def wake_all(self) -> None:
        """Let none of them rest."""
        for wanted in self._wanted.values():
            self._wake(wanted)

    def record_fetch(self, broker_epoch: int, now: float) -> None:
        """Have a follower's request count for the partitions that rest. It is noted for the others
        before: where one of them rested until now, the request before counts."""
        self.last_fetch.broker_epoch = broker_epoch
        self.last_fetch.fetched_at = now

    def rest(self, wanted: Wanted, leader: Leader) -> None:
        """Look at a partition no more until it is notified: its answer leaves nothing to say.

        It stays awake if the asker has named it again, or if each of its fetches must be noted.
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
        """Watch nothing any more. A request that still waits is answered when its time is up."""
        for wanted in self._wanted.values():
            self._wake(wanted)
            self._purgatory.unwatch(self.watch, wanted.name)

    def _wake(self, wanted: Wanted) -> None:
        self._awake.setdefault(wanted.name, wanted)
        if wanted.resting is not None:
            wanted.resting.end_rest(self.last_fetch)
            wanted.resting = None

    def _take_out(self, wanted: Wanted) -> None:
        self._wake(wanted)
        del self._awake[wanted.name]


class FetchContext:
    """One request in its session, if any: which partitions to read, and which answers to send.

    `is_incremental`: in a running session, where only those travel that have something to say.
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
        """Those that may have something to say now, in the order in which they are to be filled."""
        return self._alone if self.session is None else self.session.awake()

    @property
    def is_empty(self) -> bool:
        """Whether the request asks for nothing."""
        return not self._alone if self.session is None else self.session.is_empty

    @property
    def session_id(self) -> int:
        """For the answer; 0 where there is no session."""
        return SESSION_NONE if self.session is None else self.session.session_id

    def travels(self, wanted: Wanted, answer: PartitionFetched) -> bool:
        """Whether to send an answer: all, or in a running session those with something to say. It
        counts as told."""
        return wanted.tell(answer) or not self.is_incremental


class FetchSessions:
    """The slots. Tests put other sessions in."""

    session_type: ClassVar[type[FetchSession]] = FetchSession

    def __init__(self, rng: random.Random, slots: int, purgatory: Purgatory) -> None:
        self._rng = rng
        self._slots = slots
        self._purgatory = purgatory
        # In the order of last use, so those to drop stand first.
        self._sessions: dict[int, FetchSession] = {}

    def context(self, request: FetchRequest, now: float) -> FetchContext:
        """Place a request in its session. Raises `Refused` for an unknown id or a wrong epoch."""
        self._drop_idle(now)
        if request.session_epoch not in (SESSION_EPOCH_NONE, SESSION_EPOCH_OPEN):
            session = self._continue(request, now)
            session.update(request.partitions, request.forgotten)
            return FetchContext((), session, is_incremental=True)
        self._close(request.session_id)
        if request.session_epoch == SESSION_EPOCH_OPEN and len(self._sessions) < self._slots:
            session = self._open(request.replica_id, now)
            session.update(request.partitions, ())
            return FetchContext((), session, is_incremental=False)
        return FetchContext([*map(Wanted, request.partitions)], None, is_incremental=False)

    def statistics(self) -> int:
        """How many slots are taken."""
        return len(self._sessions)

    def _drop_idle(self, now: float) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < IDLE_S_MAX:
                return
            self._close(oldest.session_id)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _open(self, replica_id: int, now: float) -> FetchSession:
        session_id = self._rng.randint(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, SESSION_ID_MAX)
        session = self.session_type(session_id, replica_id, self._purgatory, now)
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
