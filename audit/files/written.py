"""The written table of batches, as the driver looks into it without Spark: what costs a moment here
would cost Spark a job."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from minibroker.audit.arrow import compute as pc
from minibroker.audit.files.directories import Replica
from minibroker.audit.model import BATCHES, Finding


def write_batches(rows: pa.Table, path: Path) -> None:
    """Write the table, as Spark does: a directory of files. What is there is replaced."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    pq.write_table(rows, path / "part-0.parquet")


def count_batches(path: Path) -> tuple[int, int]:
    """How many batches there are, and how many records they say they hold."""
    counts = _read(path, ["count"], ~pc.field("torn")).column("count")
    return len(counts), pc.sum(counts.cast(pa.int64())).as_py() or 0


def with_positions(findings: Iterable[Finding], path: Path) -> Iterator[Finding]:
    """Findings about single records, each with the batch in which its offset lies, if one is there.

    A log may have an offset twice; then it is the first place.
    """
    tables: dict[Replica, pa.Table] = {}
    columns = ["segment", "position", "base_offset", "last_offset"]
    for finding in findings:
        if finding.broker is None or finding.topic is None or finding.partition is None:
            yield finding
            continue
        replica = Replica(finding.broker, finding.topic, finding.partition)
        if replica not in tables:
            is_here = ~pc.field("torn")
            for name, value in replica._asdict().items():
                is_here &= pc.field(name) == value
            order = [(name, "ascending") for name in columns[:2]]
            tables[replica] = _read(path, columns, is_here).sort_by(order)
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


def _read(path: Path, columns: list[str], wanted: ds.Expression) -> pa.Table:
    return ds.dataset(path, schema=BATCHES, format="parquet").to_table(
        columns=columns, filter=wanted
    )
