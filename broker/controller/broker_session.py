"""A broker's registration, and the lease that shows the other brokers that it is live.

The broker renews the lease every heartbeat. It counts the lease's time from the moment when it
*asked* for the renewal; the store never counts from earlier. So the broker regards its lease as
ended before the others do. If the lease ends, the broker registers again, with a higher epoch, and
the controller treats it as a broker that came back. After several short sessions in a row the
broker waits longer each time before it registers.

When a broker starts, a registration of its node id may still exist. If that names the same data
directory, it is from an earlier run of this broker: the lock on the directory proves that the run
has ended, and the broker replaces the registration at once. (If an operator has started a copy of
the directory, the replaced broker is still running; it finds out by `check`.) Otherwise another
broker has the same node id. Then this broker waits until a dead broker's lease would have ended,
and gives up with an error.
"""

import logging
import math
from random import Random
from typing import Final, NamedTuple

import trio

from minibroker.broker.controller import entries
from minibroker.broker.controller.backoff import Backoff
from minibroker.broker.controller.features import check_level
from minibroker.broker.controller.state import BrokerRegistration
from minibroker.broker.controller.store_retry import StoreRetry
from minibroker.broker.metadata.store import (
    ABSENT,
    NO_LEASE,
    Compare,
    LeaseLost,
    MetadataStore,
    StoreError,
    StoreUnavailable,
)
from minibroker.protocol.constants import NO_EPOCH

log = logging.getLogger(__name__)

LASTING_TTLS: Final = 10  # time-outs after which a session was no short one
FOREIGN_TTLS: Final = 2  # time-outs for which a broker waits for another's registration to end


class NodeIdTaken(StoreError):
    """Another live broker is registered under this node id."""


class SessionStatistics(NamedTuple):
    """The lease's time to live, the time at which its last successful renewal was asked for (minus
    infinity before the first), and how long that renewal took; all in seconds."""

    ttl_s: float
    renewed_at: float
    renewal_s: float


class BrokerSession:
    """See the head of this module. `epoch` is the broker epoch, -1 while not registered."""

    def __init__(
        self,
        store: MetadataStore,
        store_retry: StoreRetry,
        ttl_s: float,
        heartbeat_s: float,
        rng: Random,
    ) -> None:
        self.epoch = NO_EPOCH
        self.level_revision = ABSENT  # of the feature level that was found supported
        self.lease_id = NO_LEASE
        self._store = store
        self._store_retry = store_retry
        self._ttl_s = ttl_s
        self._heartbeat_s = heartbeat_s
        self.registered_at = -math.inf  # when the present registration was asked for
        self._believed_until = -math.inf
        self._renewed_at = -math.inf
        self._renewal_s = 0.0
        self._losses = Backoff(ttl_s, rng)

    def statistics(self) -> SessionStatistics:
        """Return the statistics of the lease."""
        return SessionStatistics(self._ttl_s, self._renewed_at, self._renewal_s)

    def is_current(self, now: float) -> bool:
        """Whether the others must still count this broker as live, as far as it can know."""
        return now < self._believed_until

    async def register(self, wanted: BrokerRegistration) -> None:
        """Obtain a lease and write the registration under it.

        Raises `NodeIdTaken`, and `StoreError`, also if the cluster's feature level was raised and
        is not supported any more.
        """
        key = entries.broker_key(wanted.node_id)
        give_up_at = trio.current_time() + FOREIGN_TTLS * self._ttl_s
        while True:
            snapshot = await self._store.get(key)
            registered = entries.read_brokers(snapshot.entries).get(wanted.node_id)
            if registered is not None and registered.directory_id != wanted.directory_id:
                if trio.current_time() >= give_up_at:
                    raise NodeIdTaken(
                        f"node id {wanted.node_id} is taken: a broker with another data directory"
                        f" is registered under it at {registered.endpoint}; give this one another"
                        " node.id, or stop that one"
                    )
                with trio.move_on_at(give_up_at):
                    await self._store.watch(key, snapshot.revision)
                continue
            asked_at = trio.current_time()
            lease = await self._store.grant(self._ttl_s)
            compare = [
                Compare(key, entries.revision_of(snapshot.entries, key)),
                Compare(entries.FEATURE_LEVEL, self.level_revision),
            ]
            try:
                outcome = await self._store.transact(
                    compare, [entries.broker_put(wanted, lease.id)]
                )
            except LeaseLost:
                continue
            if outcome.succeeded:
                self.epoch, self.lease_id = outcome.revision, lease.id
                self.registered_at = asked_at
                self._on_renewal(asked_at)
                return
            await self._check_level(wanted)

    async def _check_level(self, wanted: BrokerRegistration) -> None:
        found = (await self._store.get(entries.FEATURE_LEVEL)).entries
        check_level(entries.read_feature_level(found), wanted.levels)
        self.level_revision = entries.revision_of(found, entries.FEATURE_LEVEL)

    def check(self, registered: BrokerRegistration | None) -> None:
        """Raise `NodeIdTaken` if the registration in the store is a later one than this."""
        if registered is not None and registered.epoch > self.epoch:
            raise NodeIdTaken(
                f"node id {registered.node_id} was taken over from this broker by one at"
                f" {registered.endpoint}, which has a copy of its data directory; stop that one,"
                " and take the copy away"
            )

    async def keep(self) -> None:
        """Renew the lease every heartbeat until it is lost. Raises `StoreError`."""
        try:
            await self._renew_until_lost()
        finally:
            self._store_retry.forget(self)

    async def _renew_until_lost(self) -> None:
        is_doubted = False
        while True:
            await trio.sleep(self._heartbeat_s)
            asked_at = trio.current_time()
            try:
                await self._store.renew(self.lease_id)
            except LeaseLost:
                self._store_retry.on_answer(self)
                self._believed_until = -math.inf
                return
            except StoreUnavailable as error:
                self._store_retry.on_failure(self, error)
                if not is_doubted and not self.is_current(trio.current_time()):
                    is_doubted = True
                    log.warning(
                        "%s Its session was not renewed for %.1f s: until it is, acks=0 and acks=1"
                        " are refused; acks=all and reads go on",
                        self._store_retry.name,
                        trio.current_time() - self._renewed_at,
                    )
            else:
                is_doubted = False
                self._store_retry.on_answer(self)
                self._on_renewal(asked_at)

    def _on_renewal(self, asked_at: float) -> None:
        self._believed_until = asked_at + self._ttl_s
        self._renewed_at = asked_at
        self._renewal_s = trio.current_time() - asked_at

    async def pause_after_loss(self) -> None:
        """Wait before registering if this session was lost soon after another one.

        The work after a registration may have cost the session. Then all brokers of a busy machine
        may lose theirs at the same time, and must not all register again at the same time.
        """
        if trio.current_time() - self.registered_at > LASTING_TTLS * self._ttl_s:
            self._losses.on_success()
        pause_s = self._losses.draw_pause_s()
        self._losses.on_failure()
        if pause_s:
            log.warning("%s It registers in %.1f s", self._store_retry.name, pause_s)
            await trio.sleep(pause_s)

    async def end(self) -> None:
        """Remove the registration now. Raises `StoreError`."""
        self._believed_until = -math.inf
        if self.lease_id != NO_LEASE:
            await self._store.revoke(self.lease_id)
