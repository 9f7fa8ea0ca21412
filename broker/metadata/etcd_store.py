"""The metadata store in etcd: for brokers on several machines.

    PREFIX/metadata/KEY    the entries
    PREFIX/writers/NAME    one mark for each writer, which is a broker

**A transaction whose answer is lost.** etcd may have made it, or may make it yet. So each names
what its writer has written before: it compares the revision of the writer's mark, and changes the
mark to a value of its own. Of two requests that compare the same revision at most one is made, so
that one which was not answered is sent again as it was; if it finds the mark changed, the mark says
whose doing that was. `transact` goes on until it knows: `StoreUnavailable` says that nothing was
written, whatever became of the connection. The first write of a broker that has started again also
ends all that its former life may have left on the way.

**A watch** asks for the state, and if that is not new, for all that has happened under the prefix
since. etcd keeps what has happened until somebody compacts it; then, or when the stream has said
anything, or nothing for `WATCH_S`, the state is asked for again. So no event can be missed, by
whatever reconnections, and a stream that has died without a word is noticed.

**A lease** is etcd's. Its time is in whole seconds, rounded up, and etcd ends it up to half a
second late, or a full time later after an election of its own leader: later than the holder
believes, which harms nobody. Earlier must not be: some versions let a member that was deposed as
leader without knowing it go on renewing. Therefore a renewal counts once a read, which etcd's
members agree upon, finds the term that the renewal was made in.

A revision below one that was seen means that etcd was made anew, or set back to an old copy, under
a running broker. That is an error: epochs that were given away would be given away again.
"""

import logging
import math
from collections.abc import Sequence
from random import Random
from typing import Final

import trio

from minibroker.broker.metadata import etcd_codec
from minibroker.broker.metadata.etcd_codec import REFUSED, Json, Mark
from minibroker.broker.metadata.etcd_gateway import (
    NOT_FOUND,
    Access,
    Gateway,
    Refused,
    TooLarge,
    Unanswered,
)
from minibroker.broker.metadata.store import (
    NO_LEASE,
    Compare,
    Delete,
    Lease,
    LeaseLost,
    Put,
    Snapshot,
    StoreError,
    StoreUnavailable,
    TransactionOutcome,
    TransactionTooLarge,
)

WATCH_S: Final = 2.0
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0

log = logging.getLogger(__name__)


class EtcdStore:
    """See the head of this module, and `MetadataStore`. Nothing is asked before the first call.

    `writer` is a name that no other process writes under at the same time.
    """

    def __init__(self, access: Access, prefix: str, writer: str, rng: Random) -> None:
        """Raises `StoreError` if a file that `access` names cannot be used."""
        self._gateway = Gateway(access)
        place = prefix.rstrip("/")
        self._root = f"{place}/metadata/"
        self._mark_key = f"{place}/writers/{writer}"
        self._mark: Mark | None = None  # as it was last seen
        self._life = rng.randbytes(8).hex().encode()
        self._attempts = 0
        self._turn = trio.Lock()
        self._newest = 0

    async def get(self, prefix: str) -> Snapshot:
        answer = await self._agreed("kv/range", etcd_codec.range_body(self._root + prefix))
        entries = etcd_codec.read_entries(answer, self._root)
        return Snapshot(etcd_codec.revision_of(answer), entries)

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        assert len({write.key for write in writes}) == len(writes), "a key is written twice"
        compare = [one._replace(key=self._root + one.key) for one in compare]
        writes = [one._replace(key=self._root + one.key) for one in writes]
        if not writes:
            body = etcd_codec.comparison_body(compare, self._mark_key)
            answer = await self._agreed("kv/txn", body)
            return TransactionOutcome(
                answer.get("succeeded", False), etcd_codec.revision_of(answer)
            )
        async with self._turn:
            try:
                outcome = await self._write(compare, writes)
            except Refused as refusal:
                if refusal.code != NOT_FOUND:
                    raise
                raise LeaseLost(f"a lease has ended: {refusal}") from None
        if not outcome.succeeded:
            await self._check_leases(writes)
        return outcome

    async def watch(self, prefix: str, after: int) -> Snapshot:
        is_broken = False
        while (snapshot := await self.get(prefix)).revision <= after:
            try:
                await self._wait_for_news(prefix, after)
            except StoreUnavailable:
                if is_broken:  # by two connections: who asks waits before the next one
                    raise
                is_broken = True  # perhaps one member alone is away, which concerns nobody
            else:
                is_broken = False
        return snapshot

    async def grant(self, ttl_s: float) -> Lease:
        answer = await self._gateway.call("lease/grant", {"TTL": str(math.ceil(ttl_s))})
        return Lease(int(answer["ID"]), ttl_s)

    async def renew(self, lease_id: int) -> None:
        while True:
            answer = await self._gateway.call("lease/keepalive", {"ID": str(lease_id)})
            if int(answer.get("TTL", 0)) <= 0:
                raise LeaseLost(f"lease {lease_id} has ended")
            agreed = await self._agreed("kv/txn", etcd_codec.comparison_body([], self._mark_key))
            if etcd_codec.term_of(agreed) == etcd_codec.term_of(answer):
                return

    async def revoke(self, lease_id: int) -> None:
        try:
            await self._gateway.call("lease/revoke", {"ID": str(lease_id)})
        except Refused as refusal:
            if refusal.code != NOT_FOUND:
                raise

    async def close(self) -> None:
        await self._gateway.close()

    async def _agreed(self, path: str, body: Json, *, may_repeat: bool = True) -> Json:
        """The answer that etcd's members agree upon; so it is never older than one before."""
        newest = self._newest
        answer = await self._gateway.call(path, body, may_repeat=may_repeat)
        revision = etcd_codec.revision_of(answer)
        if revision < newest:
            raise StoreError(
                f"etcd has gone back from revision {newest} to {revision}: it was made anew, or an"
                " old copy was put back. Stop all brokers before that, and start them after it"
            )
        self._newest = max(self._newest, revision)
        return answer

    async def _write(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        attempt, is_in_doubt, backoff_s = self._next_attempt(), False, BACKOFF_S
        mark = await self._known_mark()
        while True:
            body = etcd_codec.transaction_body(compare, writes, mark, attempt, is_in_doubt)
            try:
                answer = await self._agreed("kv/txn", body, may_repeat=False)
            except TooLarge as refusal:
                if is_in_doubt:  # it has grown by that, and an earlier request may be made yet
                    raise
                raise TransactionTooLarge(str(refusal)) from None
            except StoreUnavailable as error:
                if isinstance(error, Unanswered) and not is_in_doubt:
                    is_in_doubt = True
                    log.warning("Asking etcd until it says whether a write was made: %s", error)
                if not is_in_doubt:
                    raise
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
                continue
            revision = etcd_codec.revision_of(answer)
            if answer.get("succeeded", False):
                self._mark = mark._replace(revision=revision)
                return TransactionOutcome(True, revision)
            found, known = etcd_codec.read_mark(answer), mark
            mark = self._mark = known._replace(revision=found.revision)
            if found.value == attempt:
                return TransactionOutcome(True, found.revision)
            if found.revision == known.revision or found.value == attempt + REFUSED:
                return TransactionOutcome(False, revision)
            # A call that was cancelled, or a former life, was late; this one was not made then.
            if is_in_doubt and not found.value.startswith(self._life):
                raise StoreError(f"another process writes to etcd as {mark.key}")
            attempt, is_in_doubt = self._next_attempt(), False

    async def _check_leases(self, writes: Sequence[Put | Delete]) -> None:
        """Raise `LeaseLost` if one has ended: etcd asks for them only if the comparisons hold."""
        for lease_id in {write.lease for write in writes if isinstance(write, Put)} - {NO_LEASE}:
            answer = await self._gateway.call("lease/timetolive", {"ID": str(lease_id)})
            if int(answer.get("TTL", 0)) < 0:
                raise LeaseLost(f"lease {lease_id} has ended")

    async def _known_mark(self) -> Mark:
        if self._mark is None:
            answer = await self._agreed("kv/range", etcd_codec.mark_body(self._mark_key))
            self._mark = Mark(self._mark_key, etcd_codec.read_mark(answer).revision)
        return self._mark

    def _next_attempt(self) -> bytes:
        self._attempts += 1
        return self._life + b" %d" % self._attempts

    async def _wait_for_news(self, prefix: str, after: int) -> None:
        body = etcd_codec.watch_body(self._root + prefix, after)
        news = await self._gateway.first_news("watch", body, WATCH_S)
        if news.get("canceled", False) and "compact_revision" not in news:
            reason = news.get("cancel_reason", "no reason")
            raise StoreUnavailable(f"etcd has ended a watch: {reason}")
