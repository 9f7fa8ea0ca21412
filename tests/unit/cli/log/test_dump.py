"""Reading the files of a data directory, damaged ones too."""

from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.checkpoints import dump_epochs, dump_offsets
from minibroker.broker.log.producers import ProducerStates
from minibroker.cli.log.dump import DAMAGE, entries_of, is_known
from minibroker.cli.terminal import Failure
from minibroker.protocol.records import compression
from minibroker.protocol.records.batch import ProducerStamp, read_header, stamp, write_header
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.records.retained import empty, filler, retain
from minibroker.protocol.records.varint import encode_varint
from minibroker.protocol.types import TopicPartition
from tests.support.processes import run_here


def batch(base_offset: int, compression: int = 0) -> bytearray:
    """Three records, as they lie in a log."""
    records = [(1000 + n, b"key", b"value %d" % n, [("h", b"1")]) for n in range(3)]
    made = encode_batch(records, compression=compression, producer=ProducerStamp(7, 0, base_offset))
    stamp(made, base_offset, 4)
    return made


def segment(directory: Path, *batches: bytes) -> Path:
    """A segment that begins at offset 0."""
    path = directory / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    return path


def dump(path: Path, with_records: bool = False) -> list[dict]:
    """All of a file."""
    return list(entries_of(path, with_records))


def test_batches_and_records_of_every_compression(tmp_path: Path) -> None:
    """Headers and records come out as they were written."""
    path = segment(tmp_path, *(batch(3 * codec, codec) for codec in range(5)))
    entries = dump(path, with_records=True)
    assert [entry["baseOffset"] for entry in entries if entry["type"] == "batch"] == [
        *range(0, 15, 3)
    ]
    records = [entry for entry in entries if entry["type"] == "record"]
    assert [entry["offset"] for entry in records] == list(range(15))
    assert records[4]["payload"] == "value 1"
    assert records[4]["sequence"] == 4
    assert all(entry["type"] != DAMAGE for entry in entries)


def test_what_compaction_has_changed_is_shown(tmp_path: Path) -> None:
    """A thinned batch, an empty one, a filler and the horizon of tombstones are named; a record
    keeps its sequence."""
    batches = [bytes(batch(base)) for base in (0, 3, 6)]
    (first, third, last), columns = zip(
        *((read_header(each), decode_columns(each, read_header(each))) for each in batches),
        strict=True,
    )
    path = segment(
        tmp_path,
        retain(first, columns[0], [False, True, True]),
        empty(third),
        retain(last, columns[2], [True] * 3, delete_horizon_ms=5000),
        filler(9, 20, 4),
    )
    swap = path.rename(f"{path}.swap")
    entries = dump(swap, with_records=True)
    assert [
        (entry["compacted"], entry.get("deleteHorizonMs"))
        for entry in entries
        if entry["type"] == "batch"
    ] == [("thinned", None), ("empty", None), ("whole", 5000), ("filler", None)]
    assert [
        (entry["offset"], entry["sequence"]) for entry in entries if entry["type"] == "record"
    ] == [(offset, offset) for offset in (1, 2, 6, 7, 8)]
    assert "compacted" not in dump(segment(tmp_path, batch(0)))[0]


def test_a_bomb_and_a_claim_are_told_and_passed(tmp_path: Path, monkeypatch: Any) -> None:
    """A batch that unpacks to more than the limit is unpacked no further; a count of headers that
    cannot be costs nothing. What is behind them is shown."""
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 1_000_000)
    bomb = encode_batch([(1000, None, bytes(1_000_001), ())], compression=4)
    claim = encode_batch([(1000, None, b"v", [("name", b"x")])])
    at = claim.index(b"\x02\x08name")
    claim[at - 8 : at + 8] = b"\x00" + encode_varint(2**30) + bytes(10)
    write_header(claim, read_header(claim))
    for offset, each in ((3, bomb), (4, claim)):
        stamp(each, offset, 4)
    entries = dump(segment(tmp_path, batch(0), bomb, claim, batch(5)), with_records=True)
    assert [entry["offset"] for entry in entries if entry["type"] == "record"] == [0, 1, 2, 5, 6, 7]
    first, _ = [entry for entry in entries if entry["type"] == DAMAGE]
    assert "unpack to more than 1000000 bytes" in first["reason"]


def test_one_flipped_bit_hides_one_batch(tmp_path: Path) -> None:
    """The damaged batch is named with its place, and those behind it are shown."""
    bad = batch(3)
    bad[80] ^= 1
    path = segment(tmp_path, batch(0), bad, batch(6))
    entries = dump(path)
    [damage] = [entry for entry in entries if entry["type"] == DAMAGE]
    assert damage["position"] == len(batch(0))
    assert damage["bytes"] == len(bad)
    assert [e["baseOffset"] for e in entries if e.get("isvalid")] == [0, 6]


@pytest.mark.parametrize("cut", [1, 60, 61, 80])
def test_a_torn_tail_is_told(tmp_path: Path, cut: int) -> None:
    """Half a batch at the end is damage with its size, whatever is left of it."""
    path = segment(tmp_path, batch(0), batch(3)[:cut])
    damage = dump(path)[-1]
    assert (damage["type"], damage["bytes"]) == (DAMAGE, cut)


def test_garbage_between_batches_is_skipped(tmp_path: Path) -> None:
    """Bytes that are no batch do not end the dump."""
    path = segment(tmp_path, batch(0), b"\2" * 5000, batch(3))
    assert [entry["type"] for entry in dump(path)] == ["batch", DAMAGE, "batch"]


def test_an_index_is_checked_against_its_segment(tmp_path: Path) -> None:
    """An entry that does not point at its batch is damage."""
    second = len(batch(0))
    segment(tmp_path, batch(0), batch(3))
    index = tmp_path / "00000000000000000000.index"
    index.write_bytes(b"".join(n.to_bytes(4, "big") for n in (2, 0, 5, second)))
    assert [entry["type"] for entry in dump(index)] == ["offset-index"] * 2
    index.write_bytes(b"".join(n.to_bytes(4, "big") for n in (2, 0, 5, second + 1)))
    assert dump(index)[-1]["type"] == DAMAGE


def test_snapshots_and_checkpoints(tmp_path: Path) -> None:
    """The small files are shown, and damage in them is told."""
    states = ProducerStates(10**9)
    states.update(read_header(batch(3)), now_ms=5)
    snapshot = tmp_path / "00000000000000000006.snapshot"
    snapshot.write_bytes(states.dump())
    [producer] = dump(snapshot)
    assert (producer["producerId"], producer["batches"][0]["last_offset"]) == (7, 5)
    offsets = tmp_path / "recovery-point-offset-checkpoint"
    offsets.write_bytes(dump_offsets({TopicPartition("t", 1): 9}))
    [offset] = dump(offsets)
    assert (offset["topic"], offset["partition"], offset["offset"]) == ("t", 1, 9)
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_bytes(dump_epochs([(4, 0)]))
    [epoch] = dump(epochs)
    assert (epoch["leaderEpoch"], epoch["startOffset"]) == (4, 0)
    for path in (snapshot, offsets, epochs):
        path.write_bytes(path.read_bytes()[:-3])
        [damage] = dump(path)
        assert damage["type"] == DAMAGE


def test_other_files_are_refused(tmp_path: Path) -> None:
    """A file that is none of ours is an error that names it."""
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert not is_known(other)
    with pytest.raises(Failure, match=r"notes\.txt"):
        entries_of(other, False)


def test_the_text_of_a_record_is_that_of_kafkas_tool(tmp_path: Path) -> None:
    """The names of headers stand without quotes."""
    records = [(1000, b"key", b"value", [("one", b"1"), ("two", b"2")])]
    path = segment(tmp_path, encode_batch(records))
    shown = run_here("log", "dump", "--print-data-log", str(path)).stdout.splitlines()
    assert shown[-1] == (
        "| offset: 0 CreateTime: 1000 keySize: 3 valueSize: 5 sequence: -1"
        " headerKeys: [one,two] key: key payload: value"
    )
