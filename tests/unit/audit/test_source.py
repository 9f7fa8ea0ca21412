"""What the data source plans: which segments are read, in which tasks. How it reads needs Spark."""

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.files.directories import (
    LogDirectory,
    Replica,
    SegmentFile,
    find_brokers,
)
from minibroker.audit.model import BATCHES, Scan
from minibroker.audit.source import (
    TABLES,
    OptionError,
    Options,
    Piece,
    Selection,
    cut_large,
    is_read_here,
    pack,
    pieces_of,
    plan_tasks,
    read_pieces,
)
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.manager import LogManager
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.support.made_cluster import CLUSTER_ID, LIMITS, NOW_MS, TOPIC, TOPIC_ID

MB = 1 << 20
LIMITS_OF_ONE = replace(LIMITS, segment_bytes=MB)
ROOT = Path(__file__).resolve().parents[3]


def piece(base_offset: int = 0, *, broker: int = 1, topic: str = "t", partition: int = 0) -> Piece:
    """A segment of 1 MB."""
    path = Path(f"/{broker}/{topic}-{partition}/{base_offset:020}.log")
    return Piece(Replica(broker, topic, partition), SegmentFile(path, base_offset, MB, True))


def chosen(filters: list[Filter], pieces: list[Piece], *, has_offsets: bool = True) -> list[Piece]:
    """What is left of pieces by filters that can all be done."""
    selection = Selection(has_offsets)
    assert all(selection.apply(wanted) for wanted in filters)
    return list(selection.choose(pieces))


def test_filters_choose_logs() -> None:
    """Broker, topic and partition choose by equality or a list; several hold together."""
    pieces = [
        piece(broker=broker, topic=topic, partition=partition)
        for broker in (1, 2)
        for topic in ("a", "b")
        for partition in (0, 1, 2)
    ]
    found = chosen(
        [
            IsNotNull(("topic",)),
            EqualTo(("topic",), "a"),
            EqualTo(("broker",), 2),
            In(("partition",), (2, 1, 7)),
            In(("partition",), (0, 1)),
        ],
        pieces,
    )
    assert [tuple(piece.replica) for piece in found] == [(2, "a", 1)]
    assert chosen([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], pieces) == []


@pytest.mark.parametrize(
    ("filters", "bases"),
    [
        ([], [0, 10, 20, 0, 30]),
        ([GreaterThanOrEqual(("offset",), 20)], [20, 0, 30]),
        ([GreaterThan(("offset",), 18)], [10, 20, 0, 30]),
        ([GreaterThan(("offset",), 19)], [20, 0, 30]),
        ([LessThan(("offset",), 10)], [0, 0]),
        ([LessThanOrEqual(("offset",), 10)], [0, 10, 0]),
        ([EqualTo(("offset",), 15)], [10, 0]),
        ([GreaterThan(("offset",), 29), LessThan(("offset",), 31)], [20, 30]),
    ],
)
def test_offsets_choose_segments(filters: list[Filter], bases: list[int]) -> None:
    """A segment goes up to the next one's name; the last one of a log has no end."""
    pieces = [piece(0), piece(10), piece(20), piece(0, partition=1), piece(30, partition=1)]
    assert [piece.segment.base_offset for piece in chosen(filters, pieces)] == bases
    assert chosen(filters, []) == []


def test_what_cannot_be_done_here_is_left_to_spark() -> None:
    """A filter that is not understood, or not done exactly, is not taken and changes nothing."""
    selection = Selection(has_offsets=False)
    for wanted in (
        EqualTo(("offset",), 5),
        GreaterThan(("partition",), 0),
        IsNull(("topic",)),
        Not(EqualTo(("topic",), "a")),
        StringStartsWith(("topic",), "a"),
        IsNotNull(("offset",)),
        EqualTo(("headers", "topic"), "a"),
    ):
        assert not selection.apply(wanted), wanted
    assert selection == Selection(has_offsets=False)
    assert not Selection(has_offsets=True).apply(EqualTo(("offset",), 1.5))


def test_segments_are_packed_into_few_tasks() -> None:
    """Tasks keep the order and about the size; nothing is lost, and what is larger stays alone."""
    pieces = [piece(number) for number in range(100)]
    groups = pack(pieces, 10 * MB)
    assert [each for group in groups for each in group] == pieces
    assert {len(group) for group in groups[:-1]} == {8}  # opening one costs something, too
    assert [len(group) for group in pack(pieces[:3], MB // 2)] == [1, 1, 1]
    empty = [Piece(each.replica, each.segment._replace(size=0)) for each in pieces]
    assert len(pack(empty, 256 * MB)) == 1
    assert pack([], MB) == []


def test_large_segments_are_cut_where_batches_begin(tmp_path: Path) -> None:
    """The parts of a segment, read by themselves, are the rows of the whole, of each table; where
    the index file does not help, the segment is one part."""
    [log] = large_log(tmp_path)
    pieces = pieces_of([log])
    parts = [*cut_large(pieces, 2000)]
    assert len(parts) > 5
    assert sum(part.size for part in parts) == pieces[0].size
    for table in ("batches", "records", "bodies"):
        whole, cut = (
            pa.Table.from_batches(read_pieces(table, some), TABLES[table])
            for some in (pieces, parts)
        )
        assert whole == cut
    assert [*cut_large(pieces, pieces[0].size)] == pieces
    index = log.segments[0].path.with_suffix(".index")
    entries = index.read_bytes()
    index.write_bytes(bytes(byte ^ (at % 8 == 7) for at, byte in enumerate(entries)))
    assert [*cut_large(pieces, 2000)] == pieces
    index.unlink()
    assert [*cut_large(pieces, 2000)] == pieces


def test_damage_is_the_same_in_parts(tmp_path: Path) -> None:
    """What is no batch is one row in the part that has it, however the segment is cut."""
    [log] = large_log(tmp_path)
    path = log.segments[0].path
    content = bytearray(path.read_bytes())
    content[5000:5100] = bytes(100)
    path.write_bytes(content)
    pieces = pieces_of([log])
    parts = [*cut_large(pieces, 2000)]
    whole, cut = (
        pa.Table.from_batches(read_pieces("batches", some), BATCHES) for some in (pieces, parts)
    )
    assert len(parts) > 5
    assert whole == cut
    assert any(whole["torn"].to_pylist())


def test_the_tasks_of_an_index_have_whole_segments(tmp_path: Path) -> None:
    """An index file is held against all batches of its segment."""
    [log] = large_log(tmp_path)
    pieces = pieces_of([log])
    assert plan_tasks(pieces, "index", 2, 2000) == [tuple(pieces)]
    assert len(plan_tasks(pieces, "batches", 2, 2000)) > 5


@pytest.mark.parametrize(
    ("master", "table", "megabytes", "scan", "expected"),
    [
        ("local[*]", "batches", 256, Scan.AUTO, True),
        ("local[*]", "batches", 257, Scan.AUTO, False),
        ("local[2]", "index", 257, Scan.AUTO, False),
        ("local[2]", "bodies", 129, Scan.AUTO, False),
        ("local-cluster[2,1,1024]", "batches", 64, Scan.AUTO, True),
        ("spark://host:7077", "batches", 65, Scan.AUTO, False),
        ("local[2]", "batches", 1, Scan.SPARK, False),
        ("local[2]", "batches", 5000, Scan.DRIVER, True),
        ("spark://host:7077", "bodies", 5000, Scan.DRIVER, True),
        ("local[2]", "records", 16, Scan.DRIVER, True),
        ("local[2]", "records", 17, Scan.DRIVER, False),  # they would not fit in memory
    ],
)
def test_spark_reads_what_is_large(
    master: str, table: str, megabytes: int, scan: Scan, expected: bool
) -> None:
    """Also if its executors are threads of this process; unless the user says who reads."""
    pieces = [piece(number) for number in range(megabytes)]
    assert is_read_here(master, pieces, table, scan) is expected


def large_log(root: Path) -> list[LogDirectory]:
    """A log of one segment of many batches."""
    manager = LogManager(RealFiles(), root / "broker-1", LIMITS_OF_ONE)
    manager.start("boot", CLUSTER_ID, 1, NOW_MS)
    log = manager.create(TopicPartition(TOPIC, 0), TOPIC_ID, LIMITS_OF_ONE, NOW_MS)
    for number in range(400):
        batch = encode_batch([(NOW_MS, b"key", b"%d" % number, ())])
        log.append_as_leader(memoryview(batch), 0, NOW_MS)
    manager.close({TopicPartition(TOPIC, 0): log.log_end})
    return list(find_brokers([root])[0].logs)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r'name one, .* \.load\("\.\.\."\)'),
        ({"path": "x", "tables": "records"}, "no option tables: it has path, .*table"),
        ({"path": "x", "table": "record"}, "no table record: it has batches, records, index"),
        ({"path": "x", "bytesPerTask": "1m"}, "bytesPerTask is a number of bytes above 0, .*1m"),
        ({"path": "x", "bytesPerTask": "0"}, "bytesPerTask is a number of bytes above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str], told: str) -> None:
    """The error says what is wrong and what could be asked instead."""
    with pytest.raises(OptionError, match=told):
        Options.parse(given)


def test_a_directory_without_logs_is_refused(tmp_path: Path) -> None:
    """A path that is not there, holds no data directory, or no logs: each is told apart."""
    with pytest.raises(OptionError, match="is not there"):
        Options.parse({"path": str(tmp_path / "missing")}).list()
    with pytest.raises(OptionError, match="no data directory"):
        Options.parse({"path": str(tmp_path)}).list()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    with pytest.raises(OptionError, match="no logs in"):
        Options.parse({"path": str(tmp_path)}).list()


def test_a_directory_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Half an answer is no answer: what cannot be listed is an error."""
    (tmp_path / "meta.properties").write_text("nonsense")
    with pytest.raises(OptionError, match=r"cannot read .*meta\.properties"):
        Options.parse({"path": str(tmp_path)}).list()


@pytest.mark.parametrize("table", TABLES)
def test_the_docs_list_the_columns(table: str) -> None:
    """docs/audit.md has every column of every table, in order and with its type in Spark."""
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^### `{table}`(.*?)^##", text, re.DOTALL | re.MULTILINE)
    schema = from_arrow_schema(TABLES[table])
    told = re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE)
    assert told == [(column.name, column.dataType.simpleString()) for column in schema]
