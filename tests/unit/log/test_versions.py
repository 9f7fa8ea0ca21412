"""A file of a version that is not known: what does not come again from the log is never misread nor
replaced, and the start is refused in one line."""

import re

import pytest

from minibroker.broker.log.checkpoints import CheckpointError, load_epochs
from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.outcomes import LastKnownState
from minibroker.broker.log.producers import ProducerStates, SnapshotError
from minibroker.broker.log.transaction_index import TransactionIndex
from minibroker.testing.disk import SimulatedFiles
from tests.unit.log.test_manager import ROOT as DATA
from tests.unit.log.test_manager import A, B, disk, start, with_logs
from tests.unit.log.workbench import DIRECTORY, Bench, encode

REMEDY = "start .* version of minibroker that wrote it"
CHECKPOINTS = [
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
]


def stopped() -> SimulatedFiles:
    """A data directory with two logs, after a clean stop."""
    files = disk()
    with_logs(files).close({A: 2, B: 5})
    return files


def refusal(files: SimulatedFiles) -> str:
    """Why a start with these files is refused."""
    with pytest.raises(DataDirectoryError, match=REMEDY) as refused:
        start(files)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_directory_of_another_version_is_refused() -> None:
    """It is not said to be another broker's."""
    files = stopped()
    path = DATA / "meta.properties"
    files.write_atomic(path, files.read_bytes(path).replace(b"version=1", b"version=2"))
    told = refusal(files)
    assert "version '2'" in told
    assert "belongs" not in told
    assert files.exists(DATA / "clean-shutdown"), "nothing was changed"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_newer_checkpoint_is_neither_passed_over_nor_replaced(name: str) -> None:
    """Without the log starts, for one, deleted records would come back."""
    files = stopped()
    newer = b"7\n1\na-b.c 0 3 with-a-new-field\n"
    files.write_atomic(DATA / name, newer)
    assert f"{DATA / name} has version 7" in refusal(files)
    assert files.read_bytes(DATA / name) == newer


@pytest.mark.parametrize("version", [b"07", b"12345", b"-1", b"x", "٣".encode()])
def test_a_damaged_version_is_no_newer_one(version: bytes) -> None:
    """The start goes on with what the logs say."""
    files = stopped()
    files.write_atomic(DATA / CHECKPOINTS[0], version + b"\n0\n")
    assert start(files).get(A).log_end == 3


def test_a_newer_topic_id_file_is_not_misread() -> None:
    """Its line `topic_id` may mean something else."""
    files = stopped()
    path = DATA / str(A) / "partition.metadata"
    files.write_atomic(path, files.read_bytes(path).replace(b"version: 0", b"version: 1"))
    assert f"{path} has version 1" in refusal(files)


def with_format(bench: Bench, magic: int) -> bytes:
    """Give the last of three batches another format. Return the file's bytes."""
    path = bench.path(0)
    data = bytearray(bench.files.read_bytes(path))
    data[2 * len(encode()) + 16] = magic
    data[-1] ^= 0xFF  # no checksum of ours holds for another format
    bench.files.write_atomic(path, bytes(data))
    return bytes(data)


def filled() -> Bench:
    """A log of three batches, killed."""
    bench = Bench()
    for _ in range(3):
        bench.append()
    return bench


@pytest.mark.parametrize("opening", [{"same_boot": True}, {"is_clean": True}, {}])
def test_a_batch_of_a_newer_format_is_not_cut_off(opening: dict[str, bool]) -> None:
    """Neither as a torn tail nor as damage: the file stays as it is."""
    bench = filled()
    data = with_format(bench, 3)
    with pytest.raises(DataDirectoryError, match=REMEDY) as refused:
        bench.open(LastKnownState(**opening))
    assert re.search(r"0{20}\.log has a batch of format 3 at offset 2", str(refused.value))
    assert bench.files.read_bytes(bench.path(0)) == data
    assert not bench.names(".damaged")


def test_a_damaged_format_byte_is_no_newer_format() -> None:
    """The checksum of this format, which does not cover that byte, still holds; or it is a format
    that is far from coming."""
    bench = filled()
    bench.files.flip(bench.path(0), 2 * len(encode()) + 16, 1)
    bench.open(LastKnownState(same_boot=True))
    assert bench.log.log_end == 2
    bench = filled()
    with_format(bench, 200)
    bench.open(LastKnownState(same_boot=True))
    assert bench.log.log_end == 2


def test_what_the_log_has_is_read_from_it_again() -> None:
    """Epochs, snapshots and lists of aborted transactions of another version are not used."""
    with pytest.raises(CheckpointError, match="version 1, known is '0'"):
        load_epochs(b"1\n1\n0 0\n")
    states = ProducerStates(1000)
    with pytest.raises(SnapshotError, match="version 3, known are 1 to 2"):
        states.load(b"\x00\x03" + states.dump()[2:])
    files = disk()
    files.make_dir(DIRECTORY)
    path = DIRECTORY / f"{0:020}.txnindex"
    for version, is_sound in ((0, True), (1, False)):
        entry = version.to_bytes(2, "big") + b"".join(n.to_bytes(8, "big") for n in (1, 0, 5, 6))
        files.write_atomic(path, entry)
        assert TransactionIndex(files, path, 0).is_sound() is is_sound
