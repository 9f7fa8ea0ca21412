"""Checks of each log by itself."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from minibroker.audit.findings import as_findings
from minibroker.audit.model import Tables


def _none(name: str, tables: Tables) -> DataFrame:
    nothing = tables.replicas.limit(0).select("topic", "partition", "broker")
    return as_findings(name, nothing.withColumns({"severity": lit(""), "detail": lit("")}))


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame]]] = {
    name: partial(_none, name)
    for name in (
        *("crc", "torn-tail", "gap", "overlap", "segment-name"),
        *("epoch-order", "epoch-checkpoint", "index"),
    )
}
