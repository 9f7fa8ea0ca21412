"""The metadata store in etcd: for brokers on several machines.

    PREFIX/metadata/KEY    the entries
    PREFIX/writers/NAME    one mark for each writer, which is a broker

**A transaction whose answer is lost.** etcd may have executed it, or may execute it later. So each
transaction compares the revision of its writer's mark, and sets the mark to a value of its own. Of
two requests that compare the same revision etcd executes at most one. So an unanswered request is
sent again unchanged; if it finds the mark changed, the mark's value tells by which request.
`transact` goes on until it knows: `StoreUnavailable` means that nothing was written, whatever
happened to the connection. The first write of a restarted broker also invalidates the requests of
its former process that etcd has not executed yet.

**A watch** reads the state. If that is not new, it asks for all events under the prefix since. etcd
keeps events until they are compacted. After a compaction, a message of the stream, or `WATCH_S`
without one, the watch reads the state again. So it misses no change when it reconnects, and it
notices a stream that is dead.

**A lease** is etcd's. Its time is in whole seconds, rounded up. etcd ends it up to half a second
late, or a whole lease time late after an election of etcd's own leader. A later end than the holder
expects is harmless; an earlier one is not. Some versions of etcd let a deposed leader renew leases
until it learns of the new one. Therefore a renewal counts only after a linearizable read that has
the same term as the renewal.

A revision below an earlier one means that etcd was created again, or restored from an old copy,
under a running broker. That is an error, because epochs would be used twice.
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
    """See the head of this module, and `MetadataStore`. No request is sent before the first call.

    `writer` is a name that no other process writes under at the same time.
    """

    def __init__(self, access: Access, prefix: str, writer: str, rng: Random) -> None:
        """Raises `StoreError` if a file that `access` names cannot be used."""
        self._gateway = Gateway(access)
        place = prefix.rstrip("/")
        self._root = f"{place}/metadata/"
        self._mark_key = f"{place}/writers/{writer}"
        self._mark: Mark | None = None  # the last known one
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
                if is_broken:  # twice in a row: the caller waits before the next try
                    raise
                is_broken = True  # perhaps only one member is away, which does no harm
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
        """Return a linearizable answer, which is never older than one before."""
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
                if is_in_doubt:  # that makes it larger; an earlier request may be executed
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
            # Not made: a late request of a cancelled call or of a former process came first.
            if is_in_doubt and not found.value.startswith(self._life):
                raise StoreError(f"another process writes to etcd as {mark.key}")
            attempt, is_in_doubt = self._next_attempt(), False

    async def _check_leases(self, writes: Sequence[Put | Delete]) -> None:
        """Raise `LeaseLost` if a lease has ended: etcd checks only if the comparisons hold."""
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
