"""A planned restore (`restore_plan.py`) is written into the store."""

from collections.abc import Sequence

from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import RESTORE_AGAIN, BackupError
from minibroker.broker.controller.restore_plan import RestorePlan
from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Delete,
    MetadataStore,
    Put,
    TransactionOutcome,
    TransactionTooLarge,
)


async def carry_out(store: MetadataStore, plan: RestorePlan) -> None:
    """Make all writes in one transaction, or, if the store does not take that, in several.

    In the latter case no broker starts before the last one is made; if the restore is interrupted,
    it must be run again. Raises `BackupError` if the store has changed since it was planned, and
    `StoreError`.
    """
    try:
        _check_made(await store.transact(plan.compare, plan.writes))
    except TransactionTooLarge:
        begun = await store.transact(plan.compare, [Put(entries.RESTORE, b"{}")])
        _check_made(begun)
        compare = [Compare(entries.RESTORE, begun.revision), Compare(entries.CONTROLLER, ABSENT)]
        await _write_in_parts(store, compare, plan.writes)


async def _write_in_parts(
    store: MetadataStore, compare: Sequence[Compare], writes: Sequence[Put | Delete]
) -> None:
    """Write both halves; the last write of a plan ends the restore."""
    half = len(writes) // 2
    for part in (writes[:half], writes[half:]):
        try:
            _check_made(await store.transact(compare, part))
        except TransactionTooLarge:
            if len(part) == 1:
                raise
            await _write_in_parts(store, compare, part)


def _check_made(outcome: TransactionOutcome) -> None:
    if not outcome.succeeded:
        raise BackupError(
            "the metadata store has changed meanwhile: stop all brokers and every other restore,"
            f" then {RESTORE_AGAIN}"
        )
