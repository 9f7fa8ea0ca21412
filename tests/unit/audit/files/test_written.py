"""The written table of batches, as the driver looks into it."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.audit.files.directories import LogDirectory, find_brokers
from minibroker.audit.files.segments import scan_segment
from minibroker.audit.files.written import WrittenBatches, count_batches, with_positions
from minibroker.audit.model import BATCHES as SCHEMA
from minibroker.audit.model import Finding, Severity
from minibroker.protocol.records.batch import iterate_headers
from tests.support.made_cluster import BATCHES, RECORDS, TOPIC, make_cluster


@pytest.fixture
def log(tmp_path: Path) -> LogDirectory:
    """A log of several segments, the last of which ends in bytes that are no batch."""
    make_cluster(tmp_path, 2)  # of the first one retention took the front
    last = max((tmp_path / "broker-2" / f"{TOPIC}-1").glob("*.log"))
    last.write_bytes(last.read_bytes() + b"half a batch")
    return find_brokers([tmp_path / "broker-2"])[0].logs[1]


@pytest.fixture
def written(tmp_path: Path, log: LogDirectory) -> WrittenBatches:
    """Its table, the last segment in a file before the others."""
    for number, segment in enumerate(reversed(log.segments)):
        table = pa.Table.from_batches(scan_segment(log.replica, segment), SCHEMA)
        (tmp_path / "out").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "out" / f"part-{number}.parquet")
    return WrittenBatches((tmp_path / "out").as_uri())


def test_batches_and_records_are_counted(written: WrittenBatches) -> None:
    """What is no batch does not count."""
    assert count_batches(written) == (BATCHES, BATCHES * RECORDS)


def test_a_record_is_found_in_its_batch(log: LogDirectory, written: WrittenBatches) -> None:
    """A finding about an offset gets segment and position of the batch that has it; one that names
    no broker, no offset, or one that the log does not have stays as it is."""
    finding = Finding("lost-write", Severity.ERROR, TOPIC, 1, log.broker)
    for segment in log.segments:
        for position, header in iterate_headers(segment.path.read_bytes()[: -len("half a batch")]):
            for offset in (header.base_offset, header.base_offset + RECORDS - 1):
                there = replace(finding, offset=offset)
                placed = replace(there, segment=segment.base_offset, position=position)
                assert list(with_positions([there], written)) == [placed]
    elsewhere = [
        finding,
        replace(finding, broker=None, offset=1),
        replace(finding, broker=1, offset=1),
        replace(finding, offset=BATCHES * RECORDS),
    ]
    assert list(with_positions(elsewhere, written)) == elsewhere


@pytest.mark.parametrize("rows_max", [BATCHES - 1, BATCHES, BATCHES + 1])
def test_a_table_is_written_as_it_comes(tmp_path: Path, log: LogDirectory, rows_max: int) -> None:
    """In place of an older one. A small one is returned, too, with all rows before, between and
    behind tables without a row."""
    older = tmp_path / "a place" / "part-7.parquet"
    older.parent.mkdir()
    older.write_bytes(b"of an older audit")
    nothing = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    whole = [each for segment in log.segments for each in scan_segment(log.replica, segment)][:-1]
    written = WrittenBatches(older.parent.as_uri())
    rows = [nothing, *(each for table in whole for each in (table, nothing))]
    written.write_here(rows)
    kept = written.read_small(rows_max)
    assert not older.exists()
    assert count_batches(written) == (BATCHES, BATCHES * RECORDS)
    expected = pa.Table.from_batches(whole)
    assert kept == (expected if rows_max >= BATCHES else None)
    assert written.read(SCHEMA.names, torn=False) == expected
