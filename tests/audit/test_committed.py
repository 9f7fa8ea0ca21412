"""Committed offsets that are wrong, in real directories: each is found at its place by an audit."""

from pathlib import Path

from pyspark.sql import SparkSession

from minibroker.audit.model import Finding, Severity
from minibroker.protocol.constants import OFFSETS_TOPIC
from tests.support.audited import audit
from tests.support.damage import Replica, change_commit
from tests.support.made_cluster import BATCHES, NODES, RECORDS, TOPIC, Commit, make_cluster

END = BATCHES * RECORDS
PARTITIONS = 4  # retention took the front of the first one
COMMITS = tuple(Commit("readers", partition, END) for partition in range(PARTITIONS))
BELOW, ABOVE, APART, SOUND = range(PARTITIONS)  # partitions, and where their commits are
RIGHT, DEVIANT = NODES[:2]
CHECK = "committed-offset"


def test_wrong_committed_offsets_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """One below the log's start and one above its end, which all replicas of the offsets topic
    tell, and one of which one replica tells another; a group at the very end is right."""
    make_cluster(tmp_path, PARTITIONS, COMMITS)
    replicas = {node: Replica(tmp_path / f"broker-{node}", OFFSETS_TOPIC, 0) for node in NODES}
    for replica in replicas.values():
        change_commit(replica, BELOW, 1)
        change_commit(replica, ABOVE, END + 1)
    apart = change_commit(replicas[DEVIANT], APART, END - 1)
    summary, findings = audit(spark, tmp_path, tmp_path / "audit", checks=("crc", CHECK))
    assert summary.exit_code == 1, summary.sentence
    said = "group readers has committed"
    assert findings == [
        Finding(
            CHECK,
            Severity.ERROR,
            OFFSETS_TOPIC,
            0,
            broker=DEVIANT,
            other_broker=RIGHT,
            offset=apart.offset,
            detail=f"of group readers in {TOPIC}-{APART} it says {END - 1} (at offset {APART}),"
            f" broker {RIGHT} says {END} (at offset {APART})",
        ),
        Finding(
            CHECK,
            Severity.ERROR,
            TOPIC,
            ABOVE,
            offset=END + 1,
            detail=f"{said} {END + 1} ({OFFSETS_TOPIC}-0, offset {ABOVE});"
            f" the in-sync log that has most ends at {END};"
            f" to do: minibroker group seek readers --topic {TOPIC}:{ABOVE} --to-latest",
        ),
        Finding(
            CHECK,
            Severity.WARNING,
            TOPIC,
            BELOW,
            offset=1,
            detail=f"{said} 1 ({OFFSETS_TOPIC}-0, offset {BELOW}); the log begins at {END // 2}",
        ),
    ]
    [sound] = [each for each in summary.partitions if each.partition == SOUND]
    assert [(mark.group, mark.offset) for mark in sound.committed] == [("readers", END)]
