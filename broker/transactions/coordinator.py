"""The transaction coordinator of a broker, for the transactional ids whose partition of
`__transaction_state` this broker leads.

    handlers -> serving(id) -> shard.table, append    plain calls, which never wait
    run      -> follows the partitions here, starts serving, aborts late transactions, expires ids,
                and appends the last record of transactions that have all their markers
    MarkerSender.run -> sends the markers

What it shares with the coordinator of groups is in `coordination.coordinator`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

import trio

from minibroker.broker.config import Config
from minibroker.broker.coordination.coordinator import PartitionedCoordinator
from minibroker.broker.errors import Refused
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.transactions.markers import MarkerQueue
from minibroker.broker.transactions.records import in_batches, is_storable
from minibroker.broker.transactions.registry import TransactionRegistry
from minibroker.broker.transactions.shard import TransactionShard
from minibroker.broker.transactions.table import PARTITION_BYTES, TRANSACTION_BYTES, text_bytes
from minibroker.broker.transactions.transaction import Transaction, abort_to_go_on
from minibroker.broker.turns import take_turns
from minibroker.protocol.constants import TRANSACTIONS_TOPIC, ErrorCode

UNMARKED_S: Final = 30.0  # after which the log says what a transaction waits for, and how often
UNMARKED_TOLD: Final = 5  # transactions that it names
_ERRORS: Final = {int(code): code.name for code in ErrorCode} | {0: "no answer yet"}

logger = logging.getLogger(__name__)


class TransactionCoordinator(PartitionedCoordinator[TransactionShard]):
    """See the head of this module."""

    topic = TRANSACTIONS_TOPIC

    def __init__(
        self,
        config: Config,
        replicas: Replicas,
        purgatory: Purgatory,
        wall_ms: Callable[[], int],
        may_decide_alone: Callable[[float], bool],
        *,
        expiry_ms: Callable[[], int] | None = None,
    ) -> None:
        """`wall_ms` is the wall clock. `may_decide_alone` says whether, at a time of trio's clock,
        no other broker can have replaced this one. `expiry_ms` is the wall clock by which
        transactions are late and ids expire, if not `wall_ms`."""
        fence_timeout_s = config.fence_timeout_ms / 1000
        super().__init__(replicas, purgatory, may_decide_alone, fence_timeout_s)
        self._config = config
        self._wall_ms = wall_ms
        self._expiry_ms = expiry_ms or wall_ms
        self.markers = MarkerQueue()
        self._late_at = self._expiry_at = self._unmarked_at = 0.0

    # -- for handlers

    def serving(self, transactional_id: str, now: float) -> TransactionShard:
        """Return the shard of an id, if this broker coordinates it. Raises `Refused`:
        INVALID_REQUEST for an id that cannot be, and as `served` does."""
        check_transactional_id(transactional_id)
        return self.served(transactional_id, now)

    def append(
        self, shard: TransactionShard, records: Sequence[tuple[str, Transaction | None]], now: float
    ) -> int:
        """Append records of a shard; see `CoordinatorShard.append`."""
        return shard.append(records, now, self._wall_ms())

    def check_room(
        self, transactional_id: str, before: Transaction | None, after: Transaction
    ) -> None:
        """Raise `Refused` if transactions would take more than `transaction.coordinator.max.bytes`.
        Clients try again."""
        growth = 0 if before is not None else TRANSACTION_BYTES + text_bytes(transactional_id)
        partitions = 0 if before is None else len(before.partitions)
        growth += PARTITION_BYTES * (len(after.partitions) - partitions)
        held_bytes_max = self._config.transaction_coordinator_max_bytes
        if growth > 0 and self.held_bytes + growth > held_bytes_max:
            what = f"transactions take {held_bytes_max} bytes (transaction.coordinator.max.bytes)"
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, what)

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self._wall_ms()

    def statistics(self) -> tuple[int, int, int]:
        """Return how many ids this broker coordinates, how many of them have an open transaction,
        and how many transactions lack markers."""
        counts = [shard.table.statistics() for shard in self._shards.values() if shard.registry]
        ids, are_open = sum(one for one, _ in counts), sum(one for _, one in counts)
        return ids, are_open, self.markers.statistics()

    def on_marked(self) -> None:
        """Handle that transactions may have got their last marker."""
        for key in self.markers.pop_marked():
            shard = self._shards.get(key.home)
            if shard is not None and shard.registry is not None:
                shard.registry.on_marked(key.transactional_id)
                self.review()

    # -- the task

    def _make_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(partition, self._replicas.append)

    async def _start_serving(self, shard: TransactionShard) -> None:
        leader = shard.leader
        assert leader is not None
        registry = TransactionRegistry(
            leader.leader_epoch,
            shard.partition.topic_partition,
            shard.table,
            self.markers,
            partial(self.append, shard),
            self._wall_ms,
        )
        await take_turns(registry.start(trio.current_time()))
        shard.registry = registry
        self.on_marked()
        ids, are_open = shard.table.statistics()
        logger.info(
            "%s: coordinator in epoch %d of %d transactional ids, %d with an open transaction",
            shard.partition.topic_partition,
            registry.leader_epoch,
            ids,
            are_open,
        )

    async def _do_duties(self) -> None:
        config, now = self._config, trio.current_time()
        late_s = config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        expiry_s = config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        if self._late_at <= now:
            await self._abort_late()
            self._late_at = now + late_s
        if self._expiry_at <= now:
            await self._drop_expired()
            self._expiry_at = now + expiry_s
        if self._unmarked_at <= now:
            self._tell_of_unmarked(now)
            self._unmarked_at = now + UNMARKED_S
        self._duty_at = min(self._late_at, self._expiry_at, self._unmarked_at)

    def _tell_of_unmarked(self, now: float) -> None:
        """Log which decided transactions lack markers for long, and why."""
        late = self.markers.troubles(now - UNMARKED_S)
        for trouble in islice(late, UNMARKED_TOLD):
            logger.warning(
                "Transaction of %.200r is decided for %d s, and its marker is not written to %s:"
                " %s",
                trouble.transactional_id,
                now - trouble.since,
                trouble.partition,
                _ERRORS.get(trouble.error, trouble.error),
            )

    async def _abort_late(self) -> None:
        """Abort transactions that are open for longer than their timeout, with a new epoch, so that
        nothing more is written for them."""
        now_ms = self._expiry_ms()
        for shard in list(self._shards.values()):
            for some in in_batches(_present(shard, list(shard.table.ongoing))):
                late = list(shard.table.late(now_ms, [key for key, _ in some]))
                aborted = [(key, abort_to_go_on(each, self._wall_ms())) for key, each in late]
                if aborted and self._try_append(shard, aborted):
                    for key, each in late:
                        logger.info(
                            "Transaction of %.200r is open for more than its timeout of %d ms:"
                            " aborted",
                            key,
                            each.timeout_ms,
                        )
                await trio.lowlevel.checkpoint()

    async def _drop_expired(self) -> None:
        """Append tombstones for ids that were not used for `transactional.id.expiration.ms`."""
        oldest_ms = self._expiry_ms() - self._config.transactional_id_expiration_ms
        for shard in list(self._shards.values()):
            for some in in_batches(_present(shard, list(shard.table.transactions))):
                expired = shard.table.expired(oldest_ms, [key for key, _ in some])
                tombstones = [(key, None) for key in expired]
                if tombstones:
                    self._try_append(shard, tombstones)
                await trio.lowlevel.checkpoint()

    def _try_append(
        self, shard: TransactionShard, records: Sequence[tuple[str, Transaction | None]]
    ) -> bool:
        """Append records to a shard that is served. If that fails, the next time tries again."""
        if shard.registry is None or shard.leader is None:
            return False
        if shard.leader.leader_epoch != shard.registry.leader_epoch:
            return False
        try:
            self.append(shard, records, trio.current_time())
        except Refused as refused:
            logger.info("%s: not written yet: %s", shard.partition.topic_partition, refused)
            return False
        self.review()
        return True


def _present(
    shard: TransactionShard, ids: Iterable[str]
) -> Iterator[tuple[str, Transaction | None]]:
    """Yield ids with their state, as it is when it is asked for."""
    for transactional_id in ids:
        yield transactional_id, shard.table.get(transactional_id)


def check_transactional_id(transactional_id: str) -> None:
    """Raise `Refused` (INVALID_REQUEST) if an id is empty or too long for a record."""
    if not transactional_id or not is_storable(transactional_id):
        raise Refused(ErrorCode.INVALID_REQUEST, "a transactional id has 1 to 32767 bytes")
