"""The records of the offsets topic as tables: STORED, a row per record, and COMMITTED, what they
amount to.

Each in-sync replica of the offsets topic is read separately, below the judged end of its log. The
history of a partition is one pass over its records in the order of the log, so Spark sorts them,
one task for each replica.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, col
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.checks.cached import cache
from minibroker.audit.checks.commit_history import (
    CommitHistory,
    Row,
    members_as_text,
    members_of,
)
from minibroker.audit.checks.facts import PARTITION
from minibroker.audit.checks.findings import in_sync
from minibroker.audit.checks.local_frames import collect_small, local_frame, local_rows
from minibroker.audit.files.commits import (
    Commit,
    ConsumerRecord,
    Generation,
    UnreadableRecord,
    read_record,
)
from minibroker.audit.model import COMMITTED, STORED
from minibroker.protocol.constants import OFFSETS_TOPIC

_ORDER: Final = ("broker", "home", "at")


def stored_by_groups(
    records: DataFrame, replicas: DataFrame, uncommitted: DataFrame | None = None
) -> DataFrame:
    """Return the table STORED, from RECORDS and REPLICAS, without the records of transactions that
    were aborted or are open (`uncommitted_offsets`).

    The commits of a transaction count once it is committed. Among those of a key the last record in
    the log counts, whenever its transaction ended.
    """
    judged = replicas.where((col("topic") == OFFSETS_TOPIC) & in_sync())
    stored = records.where(col("topic") == OFFSETS_TOPIC).join(
        broadcast(judged.select("broker", *PARTITION, "judged_end")), ["broker", *PARTITION]
    )
    wanted = stored.where(col("offset") < col("judged_end")).select(
        "broker", "partition", "offset", "key", "value"
    )
    if uncommitted is not None:
        dropped = uncommitted.where(col("topic") == OFFSETS_TOPIC)
        place = ["broker", "partition", "offset"]
        wanted = wanted.join(dropped.select(*place), place, "left_anti")
    schema = from_arrow_schema(STORED)
    if local_rows(records) is None:
        return cache(wanted.mapInArrow(_read, schema))
    # Few enough for the driver, so that no Python worker has to start.
    there = _read(wanted.toArrow().to_batches())
    return local_frame(records.sparkSession, pa.Table.from_batches(there, STORED), schema)


def committed_by_groups(stored: DataFrame) -> DataFrame:
    """Return the table COMMITTED, from STORED."""
    schema = from_arrow_schema(COMMITTED)
    if (rows := local_rows(stored)) is not None:
        in_order = rows.sort_by([(name, "ascending") for name in _ORDER])
        there = _fold(in_order.to_batches())
        return local_frame(stored.sparkSession, pa.Table.from_batches(there, COMMITTED), schema)
    logs = stored.repartition("broker", "home").sortWithinPartitions(*_ORDER)
    return collect_small(logs.mapInArrow(_fold, schema))


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of STORED for the records that have a check."""
    for batch in batches:
        rows = [
            (broker, home, at, *fields)
            for broker, home, at, key, value in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            )
            if (fields := _fields(key, value)) is not None
        ]
        yield _batch(rows, STORED)


def _fields(key: bytes | None, value: bytes | None) -> tuple[object, ...] | None:
    """Return a row's columns behind its place; None for a record that no check looks at."""
    try:
        record = read_record(key, value)
    except UnreadableRecord as error:
        named = (error.group, error.topic, error.partition)
        return *named, None, None, None, None, None, str(error)
    if isinstance(record, ConsumerRecord):
        return None
    if isinstance(record, Commit):
        return *record, None, None, None
    members = members_as_text(record.members)
    return record.group, None, None, None, None, None, record.number, members, None


def _fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of COMMITTED for STORED in the order of broker, home and offset."""
    history, log = CommitHistory(), None
    for batch in batches:
        for broker, home, at, *fields in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if log not in (None, (broker, home)):
                yield _rows_of(log, history)
                history = CommitHistory()
            log = broker, home
            _add(history, at, fields)
    if log is not None:
        yield _rows_of(log, history)


def _add(history: CommitHistory, at: int, fields: list[Any]) -> None:
    group, topic, partition, offset, leader_epoch, time_ms, generation, members, problem = fields
    if problem is not None:
        history.add_unreadable(at, problem, group, topic, partition)
    elif members is not None:
        history.add(at, Generation(group, generation, members_of(members)))
    else:
        history.add(at, Commit(group, topic, partition, offset, leader_epoch, time_ms))


def _rows_of(log: tuple[int, int] | None, history: CommitHistory) -> pa.RecordBatch:
    assert log is not None
    return _batch([(*log, *row) for row in history.rows()], COMMITTED)


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


assert tuple(COMMITTED.names[2:]) == Row._fields, "a row of the history is one of COMMITTED"
