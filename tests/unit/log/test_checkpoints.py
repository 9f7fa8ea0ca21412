"""Checkpoint files: Kafka's text form, read without trust (REC-02)."""

import random
from pathlib import PurePosixPath

import pytest

from minibroker.broker.log.checkpoints import (
    CheckpointError,
    dump_epochs,
    dump_offsets,
    load_epochs,
    load_offsets,
    read_offsets,
    write_offsets,
)
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles

OFFSETS = {
    TopicPartition("b", 10): 7,
    TopicPartition("a.b_c-1", 0): 2**40,
    TopicPartition("b", 2): 0,
}
FILE = b"0\n3\na.b_c-1 0 1099511627776\nb 2 0\nb 10 7\n"


def test_the_form_is_kafkas():
    """Version, count, then sorted rows, each line ended."""
    assert dump_offsets(OFFSETS) == FILE
    assert load_offsets(FILE) == OFFSETS
    assert dump_offsets({}) == b"0\n0\n"
    assert load_offsets(b"0\n0\n") == {}
    assert dump_epochs([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert load_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]


def test_every_cut_is_seen():
    """REC-02: a file that lost any number of bytes at its end is an error, not fewer rows."""
    for size in range(len(FILE)):
        with pytest.raises(CheckpointError):
            load_offsets(FILE[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n",
        b"0\n1\n",
        b"0\n-1\n",
        b"0\nx\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 1 2\n",
        b"0\n1\na  0 1\n",
        b"0\n1\na 0 -1\n",
        b"0\n1\na x 1\n",
        b"0\n1\na 0 1_0\n",
        b"0\n1\na 0 99999999999999999999\n",
        "0\n1\na 0 ٣\n".encode(),
        b"0\n2\na 0 1\na 0 2\n",
        b"0\n1\na 0 1\nmore",
        b"0\n1\n\xff 0 1\n",
        bytes(40),
    ],
)
def test_another_form_is_an_error(data):
    """REC-02: whatever was not written here is unreadable, and never another exception."""
    with pytest.raises(CheckpointError):
        load_offsets(data)


@pytest.mark.parametrize("rows", ["1 0\n1 5", "2 0\n1 5", "1 5\n2 5", "1 5\n2 4"])
def test_epochs_must_ascend(rows):
    """A9: both columns of the epoch file ascend strictly."""
    with pytest.raises(CheckpointError):
        load_epochs(f"0\n2\n{rows}\n".encode())


def test_random_damage_is_an_error_or_a_value():
    """No bytes make the reader raise anything but CheckpointError."""
    rng = random.Random(7)
    for _ in range(3_000):
        data = bytearray(FILE)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice((10, 32, 45, 48, 255, rng.randrange(256)))
        try:
            assert all(offset >= 0 for offset in load_offsets(bytes(data)).values())
        except CheckpointError:
            continue


def test_a_file_is_replaced_whole():
    """What was written is there after a power cut, and a missing file has no offsets."""
    files = SimulatedFiles(random.Random(1))
    path = PurePosixPath("/data/replication-offset-checkpoint")
    files.make_dir(path.parent)
    files.sync_dir(path.parent)
    assert read_offsets(files, path) == {}
    write_offsets(files, path, OFFSETS)
    files.power_off()
    assert read_offsets(files, path) == OFFSETS
