"""Reading ledgers: what their lines mean, and that nothing in them can stop an audit."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from minibroker.audit.files.ledger import (
    ledger_chunks,
    ledger_rows,
    read_chunk,
    read_columns,
    without_copies,
)
from minibroker.audit.model import LEDGER
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.groups.offset_commits import CommitAnswer
from minibroker.client.ledger import ConsumerLedger, Ledger
from minibroker.client.options import ProducerOptions
from minibroker.client.producer.delivery import Delivery
from minibroker.protocol.constants import READ_COMMITTED, ErrorCode
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition

BARE = ProducerOptions(acks=1, enable_idempotence=False)
ACKED = {"name": "producer_send_success", "topic": "t", "partition": 0, "key": None, "value": "v"}
BEGAN = {"name": "startup_complete"}
ODD = (b"\xff", b"\\udcff", b"\\", b'"', b"{}", b"}\n{", b"\n", b" ", b"1", b"-", b"e3", b"null")
SHOWN = {"name": "record_data", "topic": "t", "partition": 1, "key": "k", "value": None}


def rows_of(*lines: bytes | dict[str, object]) -> list[dict[str, object]]:
    """The rows that lines make."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    batches = ledger_rows("L", raw)
    assert all(batch.schema == LEDGER for batch in batches)
    return pa.Table.from_batches(batches, LEDGER).to_pylist()


def events_of(*lines: bytes | dict[str, object]) -> list[object]:
    """Of each row, the line and what it is."""
    return [(row["line"], row["event"]) for row in rows_of(*lines)]


def read(path: Path, chunk_bytes: int = 100) -> list[dict[str, object]]:
    """The rows of a file that is read in chunks."""
    chunks, problems = ledger_chunks([path], chunk_bytes)
    assert problems == []
    batches = [batch for chunk in chunks for batch in read_chunk(chunk)]
    return pa.Table.from_batches(batches, LEDGER).to_pylist()


def test_a_ledger_says_what_its_consumer_reads(tmp_path: Path) -> None:
    """Committed records only, if its first line says so; other levels mean nothing."""
    levels = ("read_committed", "read_uncommitted", None, 5)
    path = tmp_path / "ledger"
    lines = ({"name": "startup_complete", "isolation": level} for level in levels)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["event"] for row in read(path)] == ["began", "isolated", "began", "began", "began"]


def test_our_consumer_says_what_it_reads(tmp_path: Path) -> None:
    """The option `isolation_level` is in the first line of its ledger."""
    path = tmp_path / "ledger"
    with ConsumerLedger(path, lambda: 77, isolation=READ_COMMITTED):
        pass
    assert [row["event"] for row in read(path)] == ["began", "isolated", "ended"]


def test_what_our_clients_write_is_read(tmp_path: Path) -> None:
    """Every record with its bytes, its place and what its acknowledgement was worth."""
    data = encode_batch([(5, b"k", b"\xff\x00", ()), (5, None, "ü\U0001f600".encode(), ())])
    path = tmp_path / "ledger"
    with Ledger(path, BARE, lambda: 77) as ledger:
        ledger.record(Delivery("t", 3, 10, 2, None, data))
        ledger.record(Delivery("t", 3, -1, 2, None, data))
        ledger.record(Delivery("t", 3, -1, 2, TimeoutError("late"), data))
        ledger.record(Delivery("t", -1, -1, 2, TimeoutError("never sent"), data))
    with ConsumerLedger(path, lambda: 78) as shown:
        shown.record([ConsumerRecord("t", 3, at, 5, b"\x80", None, ()) for at in (10, 11)])
    rows = read(path)
    assert [row["event"] for row in rows] == [
        "began",
        "repeating",
        "acked",
        "acked",
        "acked",
        "acked",
        "failed",
        "failed",
        "ended",
        "began",
        "shown",
        "shown",
        "shown-offset",
        "shown-offset",
        "ended",
    ]
    assert [row["offset"] for row in rows if row["event"] == "acked"] == [10, 11, None, None]
    assert rows[2] == {
        "ledger": str(path), "line": 2, "event": "acked", "acks": 1, "topic": "t", "partition": 3,
        "offset": 10, "key": b"k", "value": b"\xff\x00", "timestamp": 77, "topic_id": None,
        "group": None, "member": None, "generation": None, "error": None,
    }  # fmt: skip
    assert (rows[3]["key"], rows[3]["value"]) == (None, "ü\U0001f600".encode())
    assert (rows[10]["key"], rows[10]["value"]) == (b"\x80", None)
    assert [row["offset"] for row in rows[10:14]] == [10, 11, 10, 11]


def test_kafkas_ledgers_are_read() -> None:
    """Lines of its verifiable tools: no acks are all, a failure may be of any partition."""
    lines = (
        b'{"timestamp":1,"name":"startup_complete"}',
        b'{"timestamp":2,"name":"producer_send_success","key":null,"value":"0.7","offset":3,'
        b'"topic":"t","partition":1}',
        b'{"timestamp":3,"name":"producer_send_error","topic":"t","key":"1","value":"2",'
        b'"exception":"class E","message":"m"}',
        b'{"timestamp":4,"name":"tool_data","sent":2,"acked":1,"target_throughput":-1}',
        b'{"timestamp":5,"name":"partitions_assigned","partitions":[{"topic":"t","partition":1}]}',
        b'{"timestamp":6,"name":"records_consumed","count":1,"partitions":'
        b'[{"topic":"t","partition":1,"count":1,"minOffset":3,"maxOffset":3}]}',
        b'{"timestamp":7,"name":"shutdown_complete"}',
    )
    rows = rows_of(*lines)
    names = ("line", "event", "acks", "partition", "offset", "key", "value")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (1, "began", None, None, None, None, None),
        (2, "acked", -1, 1, 3, None, b"0.7"),
        (3, "failed", -1, None, None, b"1", b"2"),
        (6, "shown-offset", -1, 1, 3, None, None),
        (7, "ended", None, None, None, None, None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"Segmentation fault",
        b"\x00" * 50,
        b"\xff\xfe{}",
        b"[]",
        b"7",
        b"[" * 100_000,
        b'{"name": "startup_complete"}, {"name": "startup_complete"}',
        {"name": "producer_send_success"},
        *(ACKED | {name: wrong} for name in ("topic", "key") for wrong in (7, ["t"], "\ud800")),
        *(ACKED | {name: None} for name in ("topic", "partition")),
        *(
            ACKED | {name: wrong}
            for name in ("partition", "offset", "acks", "timestamp")
            for wrong in ("0", 2**70, {})
        ),
        *(ACKED | {name: 0.5} for name in ("partition", "offset", "acks")),
        *(SHOWN | {"offset": wrong} for wrong in (None, "1", 1.5)),
        {"name": "records_consumed", "partitions": [{"topic": "t"}]},
        {"name": "records_consumed", "partitions": None},
    ],
    ids=lambda line: str(line)[:60],
)
def test_a_bad_line_is_one_row_and_spoils_no_other(line: bytes | dict[str, object]) -> None:
    """What cannot be understood is counted, whatever it is, and the lines around it are read."""
    assert events_of(ACKED, b"", line, ACKED) == [(1, "acked"), (3, "unreadable"), (4, "acked")]


GOOD: Sequence[dict[str, object]] = (
    ACKED | {"offset": 7, "acks": 1, "topicId": "00ff", "timestamp": 5},
    ACKED | {"offset": -1, "key": '\u00fc\U0001f600 "key": \\'},
    ACKED | {"offset": None, "acks": None, "timestamp": None},
    SHOWN | {"offset": 3, "value": "\0"},
    SHOWN | {"offset": 4, "name": "producer_send_error", "exception": "E", "message": "m"},
    SHOWN | {"partition": -1, "name": "producer_send_error"},
    {"name": "producer_send_error", "topic": "t", "key": "1", "value": "2"},
    BEGAN | {"idempotence": False},
    {"name": "tool_data", "sent": 2, "key": None},
    {
        "name": "records_consumed",
        "partitions": [{"topic": "t", "partition": 1, "minOffset": 3, "maxOffset": 9}],
    },
    {
        "name": "offsets_committed",
        "group": "g",
        "offsets": [{"topic": "t", "partition": 1, "offset": 9}],
    },
)


def test_arrow_reads_what_python_reads() -> None:
    """Every kind of line, in order, with all fields."""
    lines = [json.dumps(line).encode() for line in GOOD]
    for chosen in (lines, lines[:1], lines[-2:], lines[5:6]):
        read = read_columns("L", b"\n".join(chosen) + b"\n", 4)
        assert read is not None
        [expected] = ledger_rows("L", chosen, 4)
        assert read.to_pylist() == expected.to_pylist()
        assert read.schema == LEDGER


def test_arrow_reads_as_python_or_not_at_all() -> None:
    """Lines of which some bytes are changed, dropped, doubled or cut."""
    seed = int(os.environ.get("LEDGER_SEED", time.time_ns() % 100_000))
    print(f"LEDGER_SEED={seed} pytest {__file__}::test_arrow_reads_as_python_or_not_at_all")
    random = Random(seed)
    lines = [json.dumps(line).encode() for line in GOOD]
    refused = 0
    for _ in range(600):
        data = b"\n".join(random.choices(lines, k=3))
        at = random.randrange(len(data))
        part = random.choice([b"", data[at : at + 1] * 2, random.choice(ODD)])
        data = data[:at] + part + data[at + random.choice([1, 1, 1, 9]) :]
        read = read_columns("L", data)
        refused += read is None
        if read is not None:
            expected = ledger_rows("L", data.split(b"\n"))
            assert read.to_pylist() == pa.Table.from_batches(expected, LEDGER).to_pylist(), data
    assert 0 < refused < 600


@pytest.mark.parametrize("name", ["topic", "partition", "key", "value"])
def test_a_line_without_a_field_is_left_to_python(name: str) -> None:
    """To Arrow it is null; so is what is in another line."""
    lacking = {field: value for field, value in ACKED.items() if field != name}
    for lines in ([lacking], [ACKED, lacking, {"name": "other", name: 1}]):
        assert read_columns("L", b"\n".join(json.dumps(line).encode() for line in lines)) is None


def test_nothing_in_a_line_overflows_a_stack() -> None:
    """Of a parser that is not written in Python."""
    deep = b'{"name": "other", "x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    read = read_columns("L", deep)
    assert read is None or read.num_rows == 0


def test_a_line_that_a_crash_has_cut_is_torn() -> None:
    """Wherever it is cut, if it is the last one, or the next program begins behind it."""
    line = json.dumps(ACKED).encode()
    for end in range(1, len(line)):
        assert events_of(ACKED, line[:end]) == [(1, "acked"), (2, "torn")]
        assert events_of(line[:end], b"", BEGAN) == [(1, "torn"), (3, "began")]
        assert events_of(line[:end], b"{", BEGAN) == [(1, "unreadable"), (2, "torn"), (3, "began")]
        assert events_of(line[:end], ACKED, BEGAN)[0] == (1, "unreadable")
    assert events_of(line) == [(1, "acked")]


def test_what_follows_a_cut_line_may_be_in_the_next_chunk(tmp_path: Path) -> None:
    """However the file is read, it is the same line."""
    path = tmp_path / "ledger"
    for behind, event in ((BEGAN, "torn"), (ACKED, "unreadable")):
        path.write_text(f"{json.dumps(ACKED)}\n{{\n\n\n{json.dumps(behind)}\n")
        for chunk_bytes in range(1, path.stat().st_size + 1):
            rows = read(path, chunk_bytes)
            assert [row["event"] for row in rows][1] == event


def test_commits_and_topic_ids_are_read(tmp_path: Path) -> None:
    """As our consumer writes them; Kafka's does not name the group, which tells nothing."""
    path = tmp_path / "ledger"
    name = TopicPartition("t", 3)
    refused = ErrorCode.ILLEGAL_GENERATION
    with ConsumerLedger(path, lambda: 78, lambda topic: b"\xab", "g") as ledger:
        ledger.record([ConsumerRecord("t", 3, 11, 5, b"k", None, ())])
        ledger.record_commit(CommitAnswer("g", 7, "m", {name: 12}, ErrorCode.NONE))
        ledger.record_commit(CommitAnswer("g", 6, "m", {name: 9}, refused))
        ledger.record_jump(name, 20)
    data = encode_batch([(5, b"k", b"v", ())])
    with Ledger(path, BARE, lambda: 77) as acked:
        acked.record(Delivery("t", 3, 10, 1, None, data, b"\xcd"))
    with path.open("a") as file:
        kafkas = {"name": "offsets_committed", "offsets": [{"topic": "t", "partition": 3}]}
        file.write(json.dumps(kafkas) + "\n")
        failed = kafkas | {"group": "g", "success": False}
        file.write(json.dumps(failed) + "\n")
    names = ("event", "topic_id", "group", "topic", "partition", "offset")
    told = [tuple(row[name] for name in names) for row in read(path) if row["topic"]]
    assert told == [
        ("shown", "ab", "g", "t", 3, 11),
        ("shown-offset", "ab", None, "t", 3, 11),
        ("committed", "ab", "g", "t", 3, 12),
        ("refused", "ab", "g", "t", 3, None),
        ("jumped", "ab", "g", "t", 3, 20),
        ("acked", "cd", None, "t", 3, 10),
        ("refused", None, "g", "t", 3, None),
    ]
    said = [[row[each] for each in ("member", "generation", "error")] for row in read(path)]
    assert [each for each in said if any(each)] == [["m", 7, None], ["m", 6, refused.name]]


def test_other_events_are_passed_over() -> None:
    """They tell of no record."""
    assert events_of({"name": "tool_data"}, {"name": None}, {}) == []


def test_lines_are_numbered_however_a_file_is_cut(tmp_path: Path) -> None:
    """Chunks of any size give the same rows, each line once."""
    path = tmp_path / "ledger"
    sizes = [0, 1, 5, 300, 2, 0, 0, 900, 17]
    entries = [ACKED | {"value": "x" * size} if size else None for size in sizes * 5]
    text = "\n".join(json.dumps(entry) if entry else "" for entry in entries)
    whole = []
    for end in ("", "\n"):
        path.write_text(text + end)
        for chunk_bytes in (1, 2, 89, 90, 91, 400, 1 << 20):
            rows = read(path, chunk_bytes)
            whole = whole or rows
            assert rows == whole
    assert [row["line"] for row in whole] == [
        number for number, entry in enumerate(entries, 1) if entry
    ]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A sentence for each file that is not there, is none or is empty; none is read twice."""
    path = tmp_path / "ledger"
    path.write_bytes(b"")
    assert ledger_chunks([path]) == ([], [f"the ledger {path} is empty"])
    path.write_bytes(b"{}\n")
    (tmp_path / "same").symlink_to(path)
    chunks, problems = ledger_chunks([tmp_path, tmp_path / "none", path, tmp_path / "same"])
    assert [(chunk.path, chunk.begin, chunk.end) for chunk in chunks] == [(str(path), 0, 3)]
    assert problems == [
        f"the ledger {tmp_path} cannot be read: Is a directory",
        f"the ledger {tmp_path / 'none'} cannot be read: No such file or directory",
    ]


def test_a_ledger_under_two_names_counts_once(tmp_path: Path) -> None:
    """By a link of either kind, a copy, or a copy from before the last lines were written."""
    lines = [json.dumps(ACKED | {"offset": at}).encode() + b"\n" for at in range(9)]
    whole, copy, older, other = (tmp_path / name for name in ("whole", "copy", "older", "other"))
    hard, soft = tmp_path / "hard", tmp_path / "soft"
    whole.write_bytes(b"".join(lines))
    copy.write_bytes(whole.read_bytes())
    older.write_bytes(b"".join(lines[:5]))
    other.write_bytes(b"".join(lines[1:6]))
    hard.hardlink_to(whole)
    soft.symlink_to(whole)
    kept, notes = without_copies([older, whole, copy, other, hard, soft, tmp_path / "missing"])
    assert kept == [whole, other, tmp_path / "missing"]
    assert [note.split(" has only")[0] for note in notes] == [
        str(path) for path in (copy, hard, soft, older)
    ]


def test_a_pipe_and_an_empty_file_are_no_ledgers(tmp_path: Path) -> None:
    """A pipe without a writer is refused at once: reading it would never end."""
    pipe, empty = tmp_path / "pipe", tmp_path / "empty"
    os.mkfifo(pipe)
    empty.touch()
    paths, notes = without_copies([pipe, empty])
    chunks, problems = ledger_chunks(paths)
    assert (chunks, notes) == ([], [])
    assert problems == [
        f"the ledger {pipe} cannot be read: not a regular file",
        f"the ledger {empty} is empty",
    ]
