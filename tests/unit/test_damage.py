"""The faults that are planted are the ones that they are called."""

import random
from pathlib import Path

import pytest

from minibroker.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    decode,
    encode_key,
    encode_value,
)
from minibroker.protocol.records.batch import has_valid_crc, stamp
from minibroker.protocol.records.record import Record, decode_records, encode_batch
from tests.support.damage import (
    CORRUPTIONS,
    EPOCHS,
    Replica,
    change_commit,
    change_epochs,
    corrupt,
    flip_byte,
    remove_batch,
    remove_record,
    swap_batches,
)

COUNT = 4  # records in a batch


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """A log of ten batches in two segments, with two epochs."""
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=7\n")
    replica = Replica(tmp_path, "t", 3)
    replica.directory.mkdir()
    (replica.directory / EPOCHS).write_text("0\n2\n0 0\n1 20\n")
    for number in range(10):
        base = number * COUNT
        batch = encode_batch([(base, b"k", b"value %d" % (base + n), ()) for n in range(COUNT)])
        stamp(batch, base, number // 5)
        with (replica.directory / f"{number // 5 * 20:020}.log").open("ab") as file:
            file.write(batch)
    return replica


def records(replica: Replica) -> tuple[list[Record], list[int]]:
    """What a reader finds in the files as they lie, and the batches that fail their checksum."""
    found, bad = [], []
    for batch in replica.batches():
        content = batch.path.read_bytes()[batch.position : batch.end]
        if has_valid_crc(content, batch.header):
            found += decode_records(content, batch.header)
        else:
            bad.append(batch.header.base_offset)
    return found, bad


def test_a_committed_offset_is_changed_where_it_is_told(replica: Replica) -> None:
    """The record says the other offset in bytes that are sound, and all else is as before."""
    value = encode_value(CommittedOffset(5, commit_timestamp_ms=9))
    batch = encode_batch([(1, encode_key(OffsetKey("g", "t", 0)), value, ())])
    stamp(batch, 40, 1)
    with (replica.directory / f"{20:020}.log").open("ab") as file:
        file.write(batch)
    before, _ = records(replica)
    planted = change_commit(replica, 40, 6)
    after, bad = records(replica)
    assert (planted.broker, planted.offset, bad) == (7, 40, [])
    assert after[:-1] == before[:-1]
    assert decode(after[-1].key, after[-1].value) == (
        OffsetKey("g", "t", 0),
        CommittedOffset(6, commit_timestamp_ms=9),
    )


@pytest.mark.parametrize("seed", range(5))
def test_each_fault_is_what_it_is_called(replica: Replica, seed: int) -> None:
    """The batch that is named, and nothing else, is as the fault's name says."""
    rng = random.Random(seed)
    whole, _ = records(replica)
    before = {path: path.read_bytes() for path in replica.directory.iterdir()}

    def restored(planted):
        assert (planted.broker, planted.topic, planted.partition) == (7, "t", 3)
        changed = [path for path, content in before.items() if path.read_bytes() != content]
        assert changed == [planted.path]
        planted.path.write_bytes(before[planted.path])

    planted = flip_byte(replica, rng)
    found, bad = records(replica)
    assert bad == [planted.offset]
    assert found == [r for r in whole if not 0 <= r.offset - planted.offset < COUNT]
    restored(planted)

    planted = remove_batch(replica, rng)
    found, bad = records(replica)
    assert found == [r for r in whole if not 0 <= r.offset - planted.offset < COUNT]
    assert not bad
    restored(planted)

    planted = swap_batches(replica, rng)
    found, bad = records(replica)
    at = planted.offset
    assert found == [
        *whole[:at],
        *whole[at + COUNT : at + 2 * COUNT],
        *whole[at : at + COUNT],
        *whole[at + 2 * COUNT :],
    ]
    assert not bad
    restored(planted)

    planted = remove_record(replica, rng)
    found, bad = records(replica)
    assert found == [r for r in whole if r.offset != planted.offset]
    assert not bad
    restored(planted)

    planted = change_epochs(replica, rng)
    assert planted.path.read_text() == "0\n2\n0 0\n1 21\n"
    assert planted.offset == 20
    restored(planted)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corruption_changes_the_file_and_knows_where(tmp_path: Path, kind: str) -> None:
    """There is always a byte that differs, and all before `position` is as it was."""
    path = tmp_path / "file"
    for seed in range(50):
        path.write_bytes(random.Random(seed).randbytes(seed) + b"\0")
        corruption = corrupt(path, kind, random.Random(seed))
        assert path.read_bytes() == corruption.after != corruption.before
        at = corruption.position
        assert corruption.after[:at] == corruption.before[:at]
        assert corruption.after[at : at + 1] != corruption.before[at : at + 1]


def test_a_log_without_room_for_a_fault_says_so(replica: Replica) -> None:
    """A fault at the very end of a log would be another one, so none is planted there."""
    for path in replica.directory.glob("*.log"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="has no batch for this fault"):
        flip_byte(replica, random.Random(0))
