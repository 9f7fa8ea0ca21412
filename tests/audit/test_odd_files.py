"""No input makes the audit crash: what cannot be read is told, and the rest is judged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.audited import audit
from tests.support.made_cluster import NODES, TOPIC, make_cluster

FIRST = "00000000000000000000"
MIDDLE = "00000000000000000032"
LAST = "00000000000000000064"


def directory_instead(name: str) -> Callable[[Path], None]:
    """A directory where a file should be: as unreadable as a file can be, for root too."""

    def plant(log: Path) -> None:
        (log / name).unlink()
        (log / name).mkdir()

    return plant


def broken_link(name: str) -> Callable[[Path], None]:
    """A link to nothing where a file should be."""

    def plant(log: Path) -> None:
        (log / name).unlink()
        (log / name).symlink_to("nowhere")

    return plant


def pipe(name: str) -> Callable[[Path], None]:
    """A pipe, which holds up whoever opens it without care."""

    def plant(log: Path) -> None:
        (log / name).unlink()
        os.mkfifo(log / name)

    return plant


def written(name: str, content: bytes) -> Callable[[Path], None]:
    """A file with other contents."""

    def plant(log: Path) -> None:
        (log / name).write_bytes(content)

    return plant


def no_segments(log: Path) -> None:
    """Only the small files are left."""
    for path in log.glob("*.log"):
        path.unlink()


def file_instead_of_log(log: Path) -> None:
    """A file where the directory of a log should be."""
    shutil.rmtree(log)
    log.write_bytes(b"no directory")


def link_to_itself(log: Path) -> None:
    """A path that never ends."""
    shutil.rmtree(log)
    log.symlink_to(log.name)


def foreign_files(log: Path) -> None:
    """Names that no broker writes, one of them no text."""
    for name in (b"notes.txt", b"\xff\xfe.log", b"12.log", b"9" * 20 + b".log", b"-1.index"):
        with open(os.fsencode(log) + b"/" + name, "wb") as file:
            file.write(b"not of here" * 20)


# What is done to the log of a partition on one broker, and whether somebody must hear of it there.
ODDITIES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "segment is a directory": (directory_instead(f"{MIDDLE}.log"), True),
    "segment is a broken link": (broken_link(f"{MIDDLE}.log"), True),
    "last segment is a broken link": (broken_link(f"{LAST}.log"), True),
    "segment is a pipe": (pipe(f"{MIDDLE}.log"), True),
    "first segment is empty": (written(f"{FIRST}.log", b""), True),
    "last segment is empty": (written(f"{LAST}.log", b""), True),
    "segment is text": (written(f"{MIDDLE}.log", b"lorem ipsum " * 99), True),
    "segment is zeros": (written(f"{MIDDLE}.log", bytes(1 << 20)), True),
    "segments are gone": (no_segments, True),
    "log is gone": (shutil.rmtree, True),
    "log is a file": (file_instead_of_log, True),
    "log is a link to itself": (link_to_itself, True),
    "index is a directory": (directory_instead(f"{FIRST}.index"), True),
    "time index is a broken link": (broken_link(f"{FIRST}.timeindex"), True),
    "index is empty": (written(f"{FIRST}.index", b""), False),
    "snapshot is a directory": (directory_instead(f"{MIDDLE}.snapshot"), True),
    "snapshot is empty": (written(f"{MIDDLE}.snapshot", b""), True),
    "epochs are a directory": (directory_instead("leader-epoch-checkpoint"), True),
    "epochs are no text": (written("leader-epoch-checkpoint", b"\xff\x00\xff"), True),
    "topic id is a directory": (directory_instead("partition.metadata"), True),
    "topic id is empty": (written("partition.metadata", b""), True),
    "files of others": (foreign_files, False),
    "nothing": (lambda log: None, False),
}


def make_odd_cluster(root: Path) -> Path:
    """A partition for each oddity, and what can be odd about a broker's own files."""
    # Every fifth partition has lost its first segment; those are left alone.
    export = make_cluster(root, 2 * len(ODDITIES))
    for partition, (plant, _) in zip(partitions(), ODDITIES.values(), strict=True):
        plant(root / f"broker-{broker_of(partition)}" / f"{TOPIC}-{partition}")
    directory_instead("replication-offset-checkpoint")(root / "broker-2")
    (root / "broker-3" / "log-start-offset-checkpoint").write_bytes(b"\xff" * 50)
    (root / "broker-3" / "somebody's notes-x").mkdir()
    os.mkdir(os.fsencode(root) + b"/broker-1/\xff-0")
    (root / "broker-4").mkdir()
    (root / "broker-4" / "meta.properties").write_bytes(bytes(range(256)))
    return export


def partitions() -> list[int]:
    """Those that have an oddity, in their order."""
    whole = [number for number in range(2 * len(ODDITIES)) if number % 5]
    return whole[: len(ODDITIES)]


def broker_of(partition: int) -> int:
    """Whose replica of a partition is odd."""
    return NODES[partition % len(NODES)]


def test_nothing_that_lies_there_stops_the_audit(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever stands in the place of a file, the audit comes to its end, tells of everything that
    was there and cannot be read, and finds nothing wrong with the other partitions."""
    make_odd_cluster(tmp_path)
    summary, findings = audit(spark, tmp_path, tmp_path / "audit")
    assert summary.exit_code == 1, summary.sentence
    odd = dict(zip(partitions(), ODDITIES.items(), strict=True))
    told = {finding.partition for finding in findings}
    told |= {unjudged.partition for unjudged in summary.unjudged}
    reasons = "\n".join(unjudged.reason for unjudged in summary.unjudged)
    for partition, (name, (_, must_be_told)) in odd.items():
        path = f"{TOPIC}-{partition}"
        assert partition in told or path in reasons or not must_be_told, f"{name} is not told"
    assert not [finding for finding in findings if finding.partition not in {None, *odd}]
    brokers = {finding.broker for finding in findings if finding.partition is None}
    assert brokers == {2, 3}, "checkpoints that are no files, or no text"
    assert "broker-4" in reasons
    assert f"{LAST}.log cannot be read" in reasons, "no torn tail, as a crash leaves one"
    assert (tmp_path / "audit" / "report.html").exists()
