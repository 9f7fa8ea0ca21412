"""`minibroker partition recover`: the way back from a log that lost records."""

from pathlib import Path
from shutil import rmtree

from tests.support.processes import run_here, running_broker


def damage(data_dir: Path) -> None:
    """A broker that was killed, and one bad byte in the middle of what it had stored."""
    with running_broker(data_dir) as broker:
        for number in range(4):
            done = run_here("produce", "t", "-b", broker.address, stdin=f"line {number}\n")
            assert done.returncode == 0, done.stderr
    segment = data_dir / "t-0" / f"{0:020}.log"
    stored = bytearray(segment.read_bytes())
    stored[stored.index(b"line 1")] ^= 1
    segment.write_bytes(stored)


def test_a_loss_is_accepted_by_command(data_dir: Path) -> None:
    """REC-03: a damaged partition stays offline until somebody has read what is lost and agreed;
    then it goes on with what is left, and the bytes are still there."""
    damage(data_dir)
    recover = ("partition", "recover", "t", "0", "--data-dir", str(data_dir))
    with running_broker(data_dir) as broker:
        assert "minibroker partition recover t 0" in broker.output
        busy = run_here(*recover, "--yes")
        assert busy.returncode == 1
        assert "in use" in busy.stderr
        assert broker.stop() == 0

    asked = run_here(*recover)
    assert asked.returncode == 2
    kept = data_dir / "t-0" / f"{1:020}.damaged"
    assert "the records from offset 1 to 3 are lost" in asked.stderr
    assert f"{kept.stat().st_size} bytes were kept in {kept}" in asked.stderr
    assert "--yes" in asked.stderr

    lost = kept.read_bytes()
    done = run_here(*recover, "--yes")
    assert (done.returncode, done.stdout) == (0, "Recovered partition t-0.\n"), done.stderr
    assert kept.with_suffix(".damaged-accepted").read_bytes() == lost
    assert "is not damaged" in run_here(*recover).stderr

    with running_broker(data_dir) as broker:
        assert "partition recover" not in broker.output
        again = run_here("produce", "t", "-b", broker.address, stdin="again\n")
        assert again.returncode == 0, again.stderr
        read = run_here("consume", "t", "-b", broker.address, "--from-beginning", "-e")
        assert read.stdout == "line 0\nagain\n"


def test_a_lost_directory_is_accepted_by_command(data_dir: Path) -> None:
    """REC-03: a partition whose directory is gone is offline until that is accepted, and then
    goes on at the next offset."""
    with running_broker(data_dir) as broker:
        done = run_here("produce", "t", "-b", broker.address, stdin="a\nb\n")
        assert done.returncode == 0, done.stderr
        assert broker.stop() == 0
    rmtree(data_dir / "t-0")
    with running_broker(data_dir) as broker:
        assert "minibroker partition recover t 0" in broker.output
    done = run_here("partition", "recover", "t", "0", "--data-dir", str(data_dir), "--yes")
    assert done.returncode == 0, done.stderr
    assert "the records from offset 0 to 1 are lost; the log begins at 2" in done.stderr
    with running_broker(data_dir) as broker:
        again = run_here("produce", "t", "-b", broker.address, stdin="c\n")
        assert again.returncode == 0, again.stderr
        read = run_here(
            "consume", "t", "-b", broker.address, "--from-beginning", "-e", "-f", "%o %s"
        )
        assert read.stdout.split() == ["2", "c"]


def test_records_of_an_unknown_topic_are_accepted_by_command(data_dir: Path) -> None:
    """REC-03: a single broker does not serve an empty log in the place of one whose
    partition.metadata is empty, and serves its records once that is accepted."""
    with running_broker(data_dir) as broker:
        done = run_here("produce", "t", "-b", broker.address, stdin="a\nb\n")
        assert done.returncode == 0, done.stderr
    (data_dir / "t-0" / "partition.metadata").write_bytes(b"")
    with running_broker(data_dir) as broker:
        assert "its partition.metadata was lost" in broker.output
        assert "minibroker partition recover t 0" in broker.output
        refused = run_here("consume", "t", "-b", broker.address, "--from-beginning", "-e")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert broker.stop() == 0
    assert run_here("log", "dump", str(data_dir / "t-0")).returncode == 0
    done = run_here("partition", "recover", "t", "0", "--data-dir", str(data_dir), "--yes")
    assert done.returncode == 0, done.stderr
    assert "they will count as its records" in done.stderr
    with running_broker(data_dir) as broker:
        assert "partition recover" not in broker.output
        read = run_here("consume", "t", "-b", broker.address, "--from-beginning", "-e")
        assert read.stdout == "a\nb\n"


def test_a_partition_that_is_not_there_is_told(data_dir: Path) -> None:
    """A wrong name is one line that says where it was looked for."""
    done = run_here("partition", "recover", "t", "7", "--data-dir", str(data_dir))
    assert done.returncode == 1
    assert f"no partition t-7 in {data_dir}" in done.stderr
    assert not data_dir.exists()


def test_a_partition_without_a_leader_does_not_hide_the_others(data_dir: Path) -> None:
    """REC-03: the healthy partitions are read, the other one is named, and the exit code tells."""
    with running_broker(data_dir) as broker:
        at = ("-b", broker.address)
        assert run_here("topic", "create", "t", "-p", "2", *at).returncode == 0
        for number in range(2):
            done = run_here("produce", "t", "-p", str(number), *at, stdin=f"in {number}\n")
            assert done.returncode == 0, done.stderr
        assert broker.stop() == 0
    segment = data_dir / "t-0" / f"{0:020}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    with running_broker(data_dir) as broker:
        read = run_here("consume", "t", "-b", broker.address, "--from-beginning", "-e")
        assert (read.returncode, read.stdout) == (1, "in 1\n")
        assert read.stderr.count("partition t-0 is offline") == 1
        none = run_here("consume", "t", "-p", "0", "-b", broker.address, "-e")
        assert (none.returncode, none.stdout) == (1, "")
        assert "partition t-0 is offline" in none.stderr
