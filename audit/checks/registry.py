"""All checks by name, and the input that each needs."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from minibroker.audit.checks import (
    compaction,
    ends,
    group_reads,
    groups,
    isolation,
    ledgers,
    log,
    producers,
    replicas,
    transaction_lists,
    transactions,
)
from minibroker.audit.checks.group_offsets import LOST_CHECK
from minibroker.audit.model import Tables

Check = Callable[[Tables], DataFrame | None]  # None: the check cannot find anything

CHECKS: Final[Mapping[str, Check]] = {
    **log.CHECKS,
    **replicas.CHECKS,
    **compaction.CHECKS,
    **ends.CHECKS,
    **producers.CHECKS,
    **transactions.CHECKS,
    **transaction_lists.CHECKS,
    **groups.CHECKS,
    **ledgers.CHECKS,
    **isolation.CHECKS,
    **group_reads.CHECKS,
}


def missing_input(name: str, tables: Tables) -> str:
    """Return why a check has no input; "" if it has."""
    of_ledgers = {**ledgers.CHECKS, **isolation.CHECKS, **group_reads.CHECKS}
    if name in of_ledgers and tables.ledger is None:
        return "no ledger was given"
    if name == "unexpected" and not tables.is_ledger_complete:
        return "the ledgers were not said to be complete (--ledger-complete)"
    if name in groups.CHECKS and tables.committed is None:
        return "no group has committed anything"
    if name == LOST_CHECK and tables.ledger is None:
        return "no ledger was given"
    return ""
