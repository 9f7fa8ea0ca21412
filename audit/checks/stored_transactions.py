"""The table TRANSACTIONS, from the batches, and the batches whose records do not count.

The transactional batches and the markers of a log are folded in its order, one task for each log.
The runs tell whether there are any: without transactions nothing here is planned.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, explode, sequence
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks.facts import REPLICA, is_transactional, runs
from minibroker.audit.checks.local_frames import (
    ROWS_MAX,
    collect_small,
    from_rows,
    local_frame,
    local_rows,
)
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.checks.transaction_history import (
    COMMITTED,
    Row,
    Step,
    TransactionHistory,
)
from minibroker.audit.model import REPLICA_FIELDS, TRANSACTIONS
from minibroker.protocol.records.batch import TRANSACTIONAL

_ORDER: Final = (*REPLICA, "segment", "position")
_COLUMNS: Final = (*REPLICA, *(each.name for each in fields(Step)))
_UNCOMMITTED: Final = pa.schema(
    [*REPLICA_FIELDS, pa.field("offset", pa.int64()), pa.field("outcome", pa.string())]
)


def has_transactions(batches: DataFrame) -> bool:
    """Whether there may be a batch of a transaction, or a marker."""
    rows = local_rows(runs(batches))
    return rows is None or bool(pc.any(rows["has_transactions"]).as_py())


@memoize_per_run
def transactions(batches: DataFrame) -> DataFrame:
    """Return the table TRANSACTIONS, from BATCHES; the caller has asked whether there are any."""
    schema = from_arrow_schema(TRANSACTIONS)
    if (rows := local_rows(batches)) is not None:
        is_step = pc.greater(pc.bit_wise_and(rows["attributes"], TRANSACTIONAL), 0)
        is_sound = pc.equal(rows["crc_stored"], rows["crc_computed"])
        steps = rows.filter(pc.and_(is_step, is_sound)).select([*_COLUMNS])
        in_order = steps.sort_by([(name, "ascending") for name in _ORDER])
        found = pa.Table.from_batches(_fold(in_order.to_batches()), TRANSACTIONS)
        return local_frame(batches.sparkSession, found, schema)
    is_sound = ~col("torn") & col("crc_stored").eqNullSafe(col("crc_computed"))
    steps = batches.where(is_sound & is_transactional()).select(*_COLUMNS)
    logs = steps.repartition(*REPLICA).sortWithinPartitions(*_ORDER)
    return collect_small(logs.mapInArrow(_fold, schema))


def _fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of TRANSACTIONS for the steps of logs, in order."""
    history, log = TransactionHistory(), None
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for broker, topic, partition, *step in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            name = (broker, topic, partition)
            if log not in (None, name):
                rows += ((*log, *row) for row in history.open())
                history = TransactionHistory()
            log = name
            if (ended := history.add(Step(*step))) is not None:
                rows.append((*log, *ended))
        yield _batch(rows)
    if log is not None:
        yield _batch([(*log, *row) for row in history.open()])


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(TRANSACTIONS)
    arrays = [
        pa.array(column, each.type) for column, each in zip(columns, TRANSACTIONS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS)


@memoize_per_run
def uncommitted_offsets(batches: DataFrame) -> DataFrame:
    """Return REPLICA, `offset` and `outcome` of the records that a reader of committed records does
    not get: of transactions that were aborted, or have no marker. The caller has asked whether
    there are transactions.

    If the driver holds the transactions, and the offsets are few, it makes the table itself.
    """
    known = transactions(batches)
    if (rows := local_rows(known)) is not None:
        columns = [*REPLICA, "outcome", "uncommitted"]
        found = rows.filter(pc.not_equal(rows["outcome"], COMMITTED)).select(columns).to_pylist()
        if sum(_length(each) for row in found for each in row["uncommitted"]) <= ROWS_MAX:
            offsets = (
                (*(row[name] for name in REPLICA), offset, row["outcome"])
                for row in found
                for each in row["uncommitted"]
                for offset in range(each["first"], each["last"] + 1)
            )
            return from_rows(batches.sparkSession, _UNCOMMITTED, offsets)
    ranges = known.where(col("outcome") != COMMITTED).select(
        *REPLICA, "outcome", explode("uncommitted").alias("range")
    )
    offset = explode(sequence("range.first", "range.last")).alias("offset")
    return collect_small(ranges.select(*REPLICA, offset, "outcome"))


def _length(offsets: Mapping[str, int]) -> int:
    return offsets["last"] - offsets["first"] + 1


assert tuple(TRANSACTIONS.names[3:]) == Row._fields, "a row of the history is one of TRANSACTIONS"
