"""The written table of batches: its location, and the driver's queries on it.

It lies where the driver and all executors find it under one address: a directory that all of them
see, or a URI of a file system that Spark's Hadoop client supports (HDFS, S3). The driver reads a
directory itself, since a short read would cost Spark a job; a URI is read by Spark.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.arrow import compute as pc
from minibroker.audit.files.directories import Replica, UsageError
from minibroker.audit.model import BATCHES, Finding

_GROUP_ROWS: Final = 1 << 16  # of a Parquet file: Spark may read each group in its own task


class WrittenBatches:
    """The table at an address, a URI. `path` is its directory if it is on a local file system.

    Without a session only a local directory can be read and written.
    """

    def __init__(self, address: str, spark: SparkSession | None = None) -> None:
        self.address = address
        parts = urlsplit(address)
        self.path = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._spark = spark

    def check_free(self) -> None:
        """Raise UsageError if anything exists at the address: it might be other data."""
        assert self._spark is not None
        jvm: Any = self._spark._jvm
        place = jvm.org.apache.hadoop.fs.Path(self.address)
        java_session: Any = self._spark._jsparkSession
        settings = java_session.sessionState().newHadoopConf()
        if place.getFileSystem(settings).exists(place):
            raise UsageError(f"{self.address} is there already: name another place, or remove it")

    def frame(self) -> DataFrame:
        """Return the table as Spark reads it."""
        assert self._spark is not None
        return self._spark.read.schema(from_arrow_schema(BATCHES)).parquet(self.address)

    def write(self, batches: DataFrame) -> None:
        """Let the executors write the table; an existing one is replaced."""
        batches.write.mode("overwrite").parquet(self.address)

    def write_here(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the table in this process."""
        assert self.path is not None, "only the executors write to a file system that is not local"
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        with pq.ParquetWriter(self.path / "part-0.parquet", BATCHES) as writer:
            for group in _in_groups(batches):
                writer.write_table(group)

    def read_small(self, rows_max: int) -> pa.Table | None:
        """Return the table if it is in a directory and has no more than `rows_max` rows."""
        if self.path is None:
            return None
        found = ds.dataset(self.path, schema=BATCHES, format="parquet")
        return found.to_table() if found.count_rows() <= rows_max else None

    def read(self, columns: list[str], **wanted: object) -> pa.Table:
        """Return some columns of the rows whose other columns have the `wanted` values."""
        if self.path is None:
            found = self.frame()
            for name, value in wanted.items():
                found = found.where(col(name) == lit(value))
            return found.select(*columns).toArrow()
        equal = [(name, "==", value) for name, value in wanted.items()]
        return ds.dataset(self.path, schema=BATCHES, format="parquet").to_table(
            columns=columns, filter=pq.filters_to_expression(equal)
        )


def _in_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about _GROUP_ROWS rows; none is empty."""
    group: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        group.append(batch)
        count += batch.num_rows
        if count >= _GROUP_ROWS:
            yield pa.Table.from_batches(group, BATCHES)
            group, count = [], 0
    if count:
        yield pa.Table.from_batches(group, BATCHES)


def count_batches(written: WrittenBatches) -> tuple[int, int]:
    """Return how many batches there are, and how many records their headers count."""
    counts = written.read(["count"], torn=False).column("count")
    return len(counts), pc.sum(counts.cast(pa.int64())).as_py() or 0


def with_positions(findings: Iterable[Finding], written: WrittenBatches) -> Iterator[Finding]:
    """Yield findings about single records, each with the batch that contains its offset, if any.

    A log may have an offset twice; then it is the first batch.
    """
    tables: dict[Replica, pa.Table] = {}
    columns = ["segment", "position", "base_offset", "last_offset"]
    for finding in findings:
        if finding.broker is None or finding.topic is None or finding.partition is None:
            yield finding
            continue
        replica = Replica(finding.broker, finding.topic, finding.partition)
        if replica not in tables:
            order = [(name, "ascending") for name in columns[:2]]
            found = written.read(columns, torn=False, **replica.columns)
            tables[replica] = found.sort_by(order)
        yield _placed(finding, tables[replica])


def _placed(finding: Finding, batches: pa.Table) -> Finding:
    if finding.offset is None:
        return finding
    holds = pc.and_(
        pc.less_equal(batches["base_offset"], finding.offset),
        pc.greater_equal(batches["last_offset"], finding.offset),
    )
    at = pc.index(holds, True).as_py()
    if at < 0:
        return finding
    segment, position = (batches[name][at].as_py() for name in ("segment", "position"))
    return replace(finding, segment=segment, position=position)
