"""The records of `__transaction_state` as the table COORDINATED: what coordinators have stored."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, col
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.checks.cached import cache
from minibroker.audit.checks.facts import PARTITION
from minibroker.audit.checks.local_frames import local_frame, local_rows
from minibroker.audit.files.transaction_states import StateRecord, read_state
from minibroker.audit.model import COORDINATED
from minibroker.protocol.constants import TRANSACTIONS_TOPIC


def stored_by_coordinators(records: DataFrame, replicas: DataFrame) -> DataFrame:
    """Return the table COORDINATED, from RECORDS and REPLICAS."""
    judged = replicas.where((col("topic") == TRANSACTIONS_TOPIC) & col("is_reference"))
    wanted = (
        records.where(col("topic") == TRANSACTIONS_TOPIC)
        .join(broadcast(judged.select("broker", *PARTITION, "judged_end")), ["broker", *PARTITION])
        .where(col("offset") < col("judged_end"))
        .select("partition", "offset", "key", "value")
    )
    schema = from_arrow_schema(COORDINATED)
    if local_rows(records) is None:
        return cache(wanted.mapInArrow(_read, schema))
    # Few enough for the driver, so that no Python worker has to start.
    there = _read(wanted.toArrow().to_batches())
    return local_frame(records.sparkSession, pa.Table.from_batches(there, COORDINATED), schema)


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            {"home": home, "at": at, **_fields(key, value)}
            for home, at, key, value in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            )
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=COORDINATED)


def _fields(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    try:
        record = read_state(key, value)
    except ValueError as error:
        return {"problem": str(error)}
    partitions = [name._asdict() for name in record.partitions]
    return {**record._asdict(), "partitions": partitions}


assert set(StateRecord._fields) <= set(COORDINATED.names), "a record is a row of COORDINATED"
