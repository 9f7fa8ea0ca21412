"""The small files: what a broker writes is read as it was meant, and all else is refused whole."""

import os
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minibroker.audit.files import checkpoints
from minibroker.audit.files.checkpoints import (
    Meta,
    Producer,
    Unreadable,
    read_epoch_starts,
    read_meta,
    read_offsets,
    read_snapshot,
    read_snapshots,
    read_topic_id,
)
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.checkpoints import dump_epochs, dump_offsets, write_topic_id
from minibroker.broker.log.producers import ProducerStates
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.types import TopicPartition
from tests.unit.log.workbench import FOREVER, NOW, stored

OFFSETS = {
    TopicPartition("a-b", 0): 0,
    TopicPartition("a.b", 2147483647): (1 << 63) - 1,
    TopicPartition("z", 12): 7,
}
SNAPSHOT = f"{30:020}.snapshot"


def snapshot() -> bytes:
    """The states after batches of two producers, the first of which began a new epoch."""
    states = ProducerStates(FOREVER)
    for offset, producer in ((0, (5, 0, 0)), (10, (9, 2, 2147483640)), (20, (5, 1, 0))):
        states.update(read_header(stored(offset, 10, producer=producer)), NOW)
    return states.dump()


# Each small file: its name, what a broker writes, and its reader.
READERS = {
    "offsets": ("o", dump_offsets(OFFSETS), lambda root: read_offsets(root / "o")),
    "epochs": ("leader-epoch-checkpoint", dump_epochs([(0, 0), (3, 9)]), read_epoch_starts),
    "meta": ("meta.properties", b"version=1\ncluster.id=c\nnode.id=3\n", read_meta),
    "topic": (
        "partition.metadata",
        b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
        read_topic_id,
    ),
    "snapshot": (SNAPSHOT, snapshot(), lambda root: read_snapshot(root / SNAPSHOT)),
}
each_reader = pytest.mark.parametrize(
    ("name", "content", "read"), READERS.values(), ids=READERS.keys()
)


def refused(path, content: bytes, read) -> str:
    """Why a file with this content is not believed."""
    path.write_bytes(content)
    answer = read(path.parent)
    assert isinstance(answer, Unreadable), answer
    assert answer.path == path
    return answer.reason


def test_offsets(tmp_path):
    """A broker's file of offsets is read back, also an empty one."""
    for offsets in (OFFSETS, {}):
        (tmp_path / "file").write_bytes(dump_offsets(offsets))
        assert read_offsets(tmp_path / "file") == offsets


def test_epoch_starts(tmp_path):
    """A broker's epoch checkpoint is read back, also an empty one."""
    for starts in ([(0, 0), (3, 9), (4, 10)], []):
        (tmp_path / checkpoints.EPOCH_STARTS).write_bytes(dump_epochs(starts))
        assert read_epoch_starts(tmp_path) == starts


def test_topic_id(tmp_path):
    """Any topic id that a broker writes is read back in hex."""
    for topic_id in (bytes(range(16)), b"\xff" * 16, b"\xfb\xef" * 8):
        write_topic_id(RealFiles(), tmp_path, topic_id)
        assert read_topic_id(tmp_path) == topic_id.hex()


def test_meta(tmp_path):
    """Cluster and broker are read from a broker's properties."""
    (tmp_path / "meta.properties").write_bytes(b"version=1\ncluster.id=c-1\nnode.id=3\n")
    assert read_meta(tmp_path) == Meta("c-1", 3)
    path = tmp_path / "meta.properties"
    assert refused(path, b"node.id=3\n", read_meta) == "it names no cluster.id"
    assert "'-3' is no number" in refused(path, b"node.id=-3\ncluster.id=c\n", read_meta)


def test_snapshot(tmp_path):
    """Of each producer the epoch and the last batch are known; the file's name is its offset."""
    (tmp_path / SNAPSHOT).write_bytes(snapshot())
    (tmp_path / "foreign.snapshot").write_bytes(b"")
    [found] = read_snapshots(tmp_path)
    assert (found.offset, found.end_offset) == (30, 30)
    assert found.producers == [Producer(5, 1, 9, 29), Producer(9, 2, 1, 19)]


def test_a_producer_without_batches(tmp_path):
    """A producer of whom only a marker is known has no last batch."""
    states = ProducerStates(FOREVER)
    header = read_header(stored(0, 1, producer=(5, 1, 0)))
    states.update(header._replace(attributes=0x20), NOW)
    (tmp_path / SNAPSHOT).write_bytes(states.dump())
    assert read_snapshot(tmp_path / SNAPSHOT).producers == [Producer(5, 1, None, None)]


@each_reader
def test_a_file_cut_short(tmp_path, name, content, read):
    """No beginning of a file is believed, but for a last newline that says nothing."""
    path = tmp_path / name
    for size in range(len(content) - 1):
        path.write_bytes(content[:size])
        answer = read(tmp_path)
        assert isinstance(answer, Unreadable) or name == "meta.properties", content[:size]


@each_reader
def test_a_file_that_is_not_there(tmp_path, name, content, read):
    """Missing is told apart from unreadable, and a directory in its place is unreadable."""
    assert read(tmp_path).is_missing
    (tmp_path / name).mkdir()
    answer = read(tmp_path)
    assert (answer.is_missing, answer.reason) == (False, "unreadable: Is a directory")


@each_reader
def test_a_pipe_is_not_waited_for(tmp_path, name, content, read):
    """A pipe without a writer in the place of a file is refused at once."""
    os.mkfifo(tmp_path / name)
    assert read(tmp_path).reason == "unreadable: not a regular file"


@each_reader
def test_any_bytes(tmp_path_factory, name, content, read):
    """Whatever a file holds, reading it does not raise."""
    root = tmp_path_factory.mktemp("any")

    @given(st.binary(max_size=60), st.integers(0, len(content)), st.integers(0, len(content)))
    def overwrite(data, start, end):
        (root / name).write_bytes(content[:start] + data + content[end:])
        read(root)

    overwrite()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "version"),
        (b"1\n0\n", "version '1'"),
        (b"0\n2\na 0 1\n", "1 rows where '2'"),
        (b"0\n1\na 0 1\nx", "rows"),
        (b"0\n1\na 0\n", "a row of 2 fields"),
        (b"0\n1\na 0 \n", "a row of"),
        (b"0\n1\na 0 -1\n", "'-1' is no number"),
        (b"0\n1\na 0 9223372036854775808\n", "is no number"),
        (b"0\n1\na 2147483648 1\n", "is no number"),
        (b"0\n1\na 0 " + b"0" * 5000 + b"\n", "is no number"),
        ("0\n1\na 0 \N{SUPERSCRIPT TWO}\n".encode(), "is no number"),
        (b"0\n2\na 0 1\na 0 2\n", "a-0 is there twice"),
        (b"0\n\xff\n", "not text"),
    ],
)
def test_wrong_offsets(tmp_path, content, reason):
    """One wrong line and nothing of the file is believed; the reason says which."""
    path = tmp_path / "file"
    assert reason in refused(path, content, lambda root: read_offsets(root / "file"))


@pytest.mark.parametrize("rows", ["1 5\n1 9", "1 5\n2 5", "2 5\n1 9", "1 9\n2 5"])
def test_epochs_that_do_not_ascend(tmp_path, rows):
    """Epochs and their starts ascend strictly, in every pair."""
    path = tmp_path / checkpoints.EPOCH_STARTS
    assert "after" in refused(path, f"0\n2\n{rows}\n".encode(), read_epoch_starts)


def test_every_byte_of_a_snapshot(tmp_path):
    """A snapshot in which any byte rotted is not believed."""
    path = tmp_path / SNAPSHOT
    content = snapshot()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        refused(path, changed, lambda root: read_snapshot(root / SNAPSHOT))


def test_snapshots_that_say_what_cannot_be(tmp_path):
    """Right checksums do not save bytes behind the end, a producer twice or a later offset."""

    def sealed(body: bytes) -> bytes:
        return struct.pack(">HI", 1, crc32c(body)) + body

    producer = struct.pack(">qhqB", 5, 0, NOW, 0)
    for body, reason in (
        (struct.pack(">qI", 30, 0) + b"x", "1 bytes behind"),
        (struct.pack(">qI", 30, 2) + 2 * producer, "a producer is there twice"),
        (struct.pack(">qI", 31, 0), "offset 31"),
        (struct.pack(">qI", 30, 4_000_000_000) + producer, "cut short"),
    ):
        content = sealed(body)
        read = refused(tmp_path / SNAPSHOT, content, lambda root: read_snapshot(root / SNAPSHOT))
        assert reason in read


def test_all_snapshots_of_what_cannot_be_listed(tmp_path):
    """A directory that is not there is one unreadable answer."""
    [answer] = read_snapshots(tmp_path / "nowhere")
    assert isinstance(answer, Unreadable)
