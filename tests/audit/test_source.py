"""The data source under Spark: all that is on the disk, and the same with filters as without.

What it plans is tested without Spark in `tests/unit/audit/test_source.py`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from minibroker.audit.files.directories import find_brokers
from minibroker.audit.source import FORMAT, TABLES, read_table, register
from minibroker.protocol.records.batch import iterate_headers
from tests.support.made_cluster import NOW_MS, RECORDS, TOPIC, make_cluster

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers' directories; nobody writes to them."""
    root = tmp_path_factory.mktemp("cluster")
    make_cluster(root, PARTITIONS)
    return root


@pytest.fixture(scope="module")
def spark_with_source(spark: SparkSession) -> SparkSession:
    """A session that knows the format."""
    register(spark)
    return spark


def table(spark: SparkSession, name: str, *paths: Path, **options: str) -> DataFrame:
    """A table of some directories, as people ask for it."""
    reader = spark.read.format(FORMAT).option("table", name).options(**options)
    return reader.load([str(path) for path in paths] if len(paths) > 1 else str(paths[0]))


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """All rows, in an order of their own."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_every_batch_is_a_row(spark_with_source: SparkSession, cluster: Path) -> None:
    """Each batch of each file is there once, at its place; several paths are read together."""
    expected = [
        (number, partition, int(path.stem), position, header.base_offset, header.record_count)
        for number in (1, 2)
        for partition in range(PARTITIONS)
        for path in (cluster / f"broker-{number}" / f"{TOPIC}-{partition}").glob("*.log")
        for position, header in iterate_headers(path.read_bytes())
    ]
    paths = (cluster / "broker-1", cluster / "broker-2")
    found = table(spark_with_source, "batches", *paths, bytesPerTask="300000")
    place = ("broker", "partition", "segment", "position", "base_offset", "count")
    sound = found.where("not torn and crc_stored = crc_computed")
    assert rows(sound.select(*place)) == sorted(expected, key=repr)


@pytest.fixture(scope="module")
def everything(spark_with_source: SparkSession, cluster: Path) -> dict[str, list[Row]]:
    """All rows of each table, read without a filter."""
    return {name: table(spark_with_source, name, cluster).collect() for name in TABLES}


@pytest.mark.parametrize(
    ("name", "condition", "keeps", "is_done_here"),
    [
        (
            "batches",
            "broker = 2 and partition in (0, 3)",
            lambda row: row.broker == 2 and row.partition in (0, 3),
            True,
        ),
        (
            "batches",
            "topic = 'made' and partition = 1 and base_offset > 30",
            lambda row: row.partition == 1 and row.base_offset > 30,
            False,
        ),
        (
            "records",
            "offset >= 17 and offset < 40 and broker <> 2",
            lambda row: 17 <= row.offset < 40 and row.broker != 2,
            False,
        ),
        (
            "records",
            "broker = 3 and offset > 30 and offset <= 33",
            lambda row: row.broker == 3 and 30 < row.offset <= 33,
            True,
        ),
        (
            "index",
            "partition = 2 and kind = 'index'",
            lambda row: row.partition == 2 and row.kind == "index",
            False,
        ),
        ("index", "topic = 'other'", lambda row: False, True),
    ],
)
def test_filters_change_nothing_but_the_work(
    spark_with_source: SparkSession,
    cluster: Path,
    everything: dict[str, list[Row]],
    name: str,
    condition: str,
    keeps: Callable[[Row], bool],
    is_done_here: bool,
) -> None:
    """A filter that is pushed down keeps the rows that Spark would have kept, itself or with it."""
    filtered = table(spark_with_source, name, cluster).where(condition)
    expected = filter(keeps, everything[name])
    assert rows(filtered) == sorted(map(tuple, expected), key=repr)
    plan = filtered._jdf.queryExecution().executedPlan().toString()
    assert ("Filter " not in plan) == is_done_here, plan


def test_records_are_decoded(spark_with_source: SparkSession, cluster: Path) -> None:
    """Keys, values, times and offsets are those that were produced."""
    found = table(spark_with_source, "records", cluster / "broker-1").where("partition = 1")
    number = 10
    offset = number * RECORDS + 2
    assert found.count() == found.select("offset").distinct().count()
    (row,) = found.where(f"offset = {offset}").collect()
    assert (row.key, row.value, row.headers) == (b"2", b"1 %d 2" % number, [])
    assert row.timestamp == NOW_MS + offset


def test_what_is_read_is_what_was_listed(
    spark_with_source: SparkSession, cluster: Path, tmp_path: Path
) -> None:
    """A log that grew since is read up to where it ended in the listing."""
    root = tmp_path / "broker-1"
    shutil.copytree(cluster / "broker-1", root)
    [broker] = find_brokers([root])
    listed = table(spark_with_source, "batches", root).count()
    for path in root.rglob("*.log"):
        path.write_bytes(path.read_bytes() * 2)
    assert read_table(spark_with_source, broker.logs).count() == listed
    assert table(spark_with_source, "batches", root).count() == 2 * listed
    assert read_table(spark_with_source, ()).collect() == []


def test_errors_say_what_to_do(
    spark_with_source: SparkSession, cluster: Path, tmp_path: Path
) -> None:
    """Errors of options are raised where they are given, of paths when the read is planned."""
    with pytest.raises(AnalysisException, match="no table rows: it has batches, records, index"):
        table(spark_with_source, "rows", cluster)
    with pytest.raises(AnalysisException, match="no data directory"):
        table(spark_with_source, "batches", tmp_path).count()
    with pytest.raises(AnalysisException, match="leave out"):
        spark_with_source.read.format(FORMAT).schema("a INT").load(str(cluster)).count()
