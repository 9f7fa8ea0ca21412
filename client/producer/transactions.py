"""The transactions of one producer: sends the requests that a `TransactionManager` makes.

    begin_session   INIT_PRODUCER_ID    when the producer starts: earlier ones of the id are fenced
    send_offsets    TXN_OFFSET_COMMIT   to the coordinator of the group
    commit, abort   END_TXN             commit first waits until all records are delivered

Each request is repeated until an answer settles it, for max.block.ms at most. One of these calls
runs at a time. The producer's records go their usual way: the sender (sender.py) reports completed
batches by `on_completed`, and one that failed makes all others of the transaction fail at once.

An interrupted or cancelled call may be repeated, as after a time-out: the state says which one.
"""

import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, TypeVar

import trio

from minibroker.client.committed_offsets import ConsumerGroupMetadata, Offsets
from minibroker.client.errors import ClientError, ProducerFailed, TransactionAbortable
from minibroker.client.net.cluster import Cluster
from minibroker.client.net.connection_pool import COMMITS
from minibroker.client.net.coordinator_client import CoordinatorClient
from minibroker.client.options import ProducerOptions
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch, CompletedBatch
from minibroker.client.producer.transaction_manager import State, TransactionManager
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.groups import TRANSACTION_KEY
from minibroker.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

# The first pause between tries: markers of the transaction before are written within it, mostly.
PAUSE_MS: Final = 20
# How long an abort may take after an interrupt or a cancellation.
INTERRUPTED_ABORT_S: Final = 1.0

Response = TypeVar("Response")

log = logging.getLogger("minibroker.client")


class Transactions:
    """See the head of this module. `report` gets the batches that a failure or an abort has
    completed, `on_change` is called when the producer takes records from now on, or none."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        report: Callable[[list[CompletedBatch]], None],
        on_change: Callable[[], None],
    ) -> None:
        options = cluster.options
        assert isinstance(options, ProducerOptions)
        self._cluster = cluster
        self._options = options
        self._accumulator = accumulator
        self._report = report
        self._on_change = on_change
        transactional_id = options.transactional_id
        self.manager = TransactionManager(transactional_id, options.transaction_timeout_ms)
        self._coordinator = CoordinatorClient(cluster, transactional_id, key_type=TRANSACTION_KEY)
        self._groups: dict[str, CoordinatorClient] = {}
        self._turn = trio.StrictFIFOLock()  # held by the call that sends requests

    async def begin_session(self) -> None:
        """Fence earlier producers of the id, and wait until their transaction has ended.

        Raises `ProducerFailed`, and `ClientTimeout` after max.block.ms.
        """
        manager = self.manager
        last = await self._settle(
            self._coordinator, ApiKey.INIT_PRODUCER_ID, manager.init, manager.handle_init
        )
        if last is not None:
            what = f"no session of transactional.id {self._options.transactional_id!r}"
            raise self._coordinator.timeout(f"{what} within {self._options.max_block_ms} ms", last)
        manager.raise_failure()
        self._accumulator.sequences.identity = manager.identity

    def begin(self) -> None:
        """Begin a transaction. Raises `ClientError` in a transaction, and `TransactionError`."""
        self.manager.begin()
        self._on_change()

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        """Commit a group's offsets in the transaction. Whatever goes wrong, the transaction has
        failed then: it cannot be committed without them."""
        async with self._turn:
            manager = self.manager
            manager.check_taking()
            if not offsets:
                return
            coordinator = self._groups.get(group.group_id)
            if coordinator is None:
                coordinator = CoordinatorClient(self._cluster, group.group_id)
                self._groups[group.group_id] = coordinator

            def make() -> TxnOffsetCommitRequest:
                return manager.offsets(offsets, group)

            def handle(answer: TxnOffsetCommitResponse) -> ErrorCode:
                return manager.handle_offsets(group.group_id, answer)

            last: Exception | None = ClientError("the call was cancelled")
            try:
                last = await self._settle(coordinator, ApiKey.TXN_OFFSET_COMMIT, make, handle)
            finally:
                if last is not None:
                    what = "offsets were sent, and it is not known whether the group has them"
                    manager.fail(TransactionAbortable, f"{what}: {last}", last)
                self._handle_failure()
            manager.raise_failure()

    async def commit(self, deliver_all: Callable[[], Awaitable[None]]) -> None:
        """Commit the transaction. `deliver_all` waits until no record is undelivered."""
        async with self._turn:
            manager = self.manager
            manager.check_commit()
            if manager.state is State.IN_TRANSACTION:
                manager.is_flushing = True
                self._on_change()
                try:
                    await deliver_all()
                    manager.begin_commit()
                finally:
                    manager.is_flushing = False
                    self._on_change()
            await self._end()

    async def abort(self) -> None:
        """Abort the transaction, without waiting for its records."""
        async with self._turn:
            self.manager.begin_abort()
            self._on_change()
            self._give_up(
                lambda batch: ClientError(
                    f"{batch.record_count} records for {batch.queue.topic_partition} were given up:"
                    " their transaction is aborted"
                )
            )
            await self._end()

    def fail(self, cause: Exception) -> None:
        """Let the open transaction be one that can only be aborted."""
        self.manager.fail(TransactionAbortable, str(cause), cause)
        self._handle_failure()

    async def _end(self) -> None:
        manager = self.manager
        if not manager.has_writes:
            manager.complete()
            return
        last = await self._settle(
            self._coordinator, ApiKey.END_TXN, manager.end, manager.handle_end
        )
        if last is not None:
            raise manager.in_doubt(last, self._options.max_block_ms)
        manager.raise_failure()
        self._accumulator.sequences.identity = manager.identity

    async def abort_after(self, error: BaseException, abort: Callable[[], Awaitable[None]]) -> None:
        """Abort because a block ended with `error`, unless the end is decided or the producer has
        failed. What goes wrong becomes a note of the error. Raises `ProducerFailed` if the error
        says to abort, and the producer can only be closed."""
        if not self.manager.may_abort:
            return
        is_calm = isinstance(error, Exception | SystemExit)
        deadline = inf if is_calm else trio.current_time() + INTERRUPTED_ABORT_S
        with trio.CancelScope(deadline=deadline, shield=not is_calm) as scope:
            try:
                await abort()
            except ClientError as failure:
                if isinstance(failure, ProducerFailed) and isinstance(error, TransactionAbortable):
                    raise failure from error
                error.add_note(f"and the transaction is not aborted: {failure}")
        if scope.cancelled_caught:
            error.add_note("and the transaction is not aborted yet: no answer in time")

    async def close(self) -> bool:
        """Abort the transaction that is open, because the producer ends, unless a call that is
        under way ends it. Return whether it was aborted, with what was undelivered."""
        async with self._turn:
            pass
        if not self.manager.may_abort:
            return False
        name = self._options.transactional_id
        log.warning("transactional.id %r: the producer ends in a transaction: aborting it", name)
        try:
            await self.abort()
        except ClientError as error:
            log.warning("transactional.id %r: %s", name, error)
        return True

    # -- batches

    def on_completed(self, completed: list[CompletedBatch]) -> list[CompletedBatch]:
        """Handle completed batches. Return what is to be reported: these and, after a failure, all
        others of the transaction."""
        reported = list(map(self._judged, completed))
        if self.manager.has_failed:
            reported += self._failed_with_them()
        return reported

    def _judged(self, completed: CompletedBatch) -> CompletedBatch:
        batch, _, error = completed
        if batch.attempts:
            self.manager.on_written()
        if error is None:
            return completed
        return completed._replace(error=self.manager.on_batch_failed(error))

    def _failed_with_them(self) -> list[CompletedBatch]:
        self._on_change()
        self._accumulator.fail_all(lambda _batch: self.manager.failure())
        return list(map(self._judged, self._accumulator.pop_completed()))

    def _handle_failure(self) -> None:
        """Fail what is undelivered, if the transaction has failed."""
        if self.manager.has_failed:
            self._report(self._failed_with_them())

    def _give_up(self, make_error: Callable[[Batch], Exception]) -> None:
        self._accumulator.fail_all(make_error)
        self._report(list(map(self._judged, self._accumulator.pop_completed())))

    # -- requests

    async def _settle(
        self,
        coordinator: CoordinatorClient,
        api_key: ApiKey,
        make: Callable[[], Request[Response]],
        handle: Callable[[Response], ErrorCode],
    ) -> Exception | None:
        """Send a request until an answer settles it. Return the last error if none does in time."""
        last: Exception | None = None
        failures = 0
        with trio.move_on_after(self._options.max_block_ms / 1000):
            while not self.manager.has_failed:
                try:
                    answer = await coordinator.ask(api_key, make(), COMMITS)
                except OSError as error:
                    last = error
                except BrokerError as error:  # no other try will change it
                    self.manager.on_refused(error)
                    return None
                else:
                    code = handle(answer)
                    if code == ErrorCode.NONE:
                        return None
                    last = BrokerError(code, api_key.name)
                    if code == ErrorCode.NOT_COORDINATOR:
                        coordinator.forget()
                await coordinator.pause(failures, PAUSE_MS)
                failures += 1
            return None
        return last or self._cluster.timeout()
