"""All checks by name, and what each must be given."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from minibroker.audit.checks import groups, ledgers, log, producers, replicas
from minibroker.audit.model import Tables

Check = Callable[[Tables], DataFrame | None]  # None: nothing can be wrong

CHECKS: Final[Mapping[str, Check]] = {
    **log.CHECKS,
    **replicas.CHECKS,
    **producers.CHECKS,
    **groups.CHECKS,
    **ledgers.CHECKS,
}


def missing_input(name: str, tables: Tables) -> str:
    """Why a check has nothing to look at; "" if it has."""
    if name in ledgers.CHECKS and tables.ledger is None:
        return "no ledger was given"
    if name == "unexpected" and not tables.is_ledger_complete:
        return "the ledgers were not said to be complete (--ledger-complete)"
    if name in groups.CHECKS and tables.committed is None:
        return "no group has committed anything"
    return ""
