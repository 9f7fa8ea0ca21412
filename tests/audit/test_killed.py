"""Corruptions of a cluster whose brokers were all killed: who is named, and what is not said.

The metadata have all brokers in the in-sync sets and no end of any log, and the high watermarks on
the disks are old. Each corruption lies in a partition of its own, and all are judged at once, with
a ledger of all that was acknowledged, and without one.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.audit.test_verdicts import (
    CLEAN,
    FOUND,
    NOT_CHECKED,
    Replica,
    of_partition,
    value,
)
from tests.support.audited import audit
from tests.support.damage import (
    append_again,
    append_forged,
    cut_tail,
    delete_log,
    hide_last_segment,
    lower_checkpoints,
)
from tests.support.made_cluster import BATCHES, EPOCHS, NODES, RECORDS, TOPIC, make_cluster
from tests.support.made_ledgers import END, partitions_without_retention, write_ledgers
from tests.support.processes import EXPORT

LEADER = 3
CUT = random.Random(7).choice(range(BATCHES // 2, BATCHES)) * RECORDS
AT = 5 * RECORDS


@dataclass(frozen=True)
class Case:
    """What is done to the replicas; the exit code and the brokers with errors, without and with a
    ledger."""

    plant: Callable[[dict[int, Replica]], object]
    code: int
    named: Sequence[int] = ()
    told_code: int | None = None
    told_named: Sequence[int] | None = None


def cut(*brokers: int) -> Callable[[dict[int, Replica]], None]:
    def plant(replicas: dict[int, Replica]) -> None:
        for broker in brokers:
            cut_tail(replicas[broker], random.Random(7))

    return plant


def set_offset(name: str, offset: int) -> Callable[[Replica], None]:
    """The broker's file of that name has another offset of the log."""

    def plant(replica: Replica) -> None:
        path = replica.data_dir / name
        start = f"{replica.topic} {replica.partition} "
        rows = path.read_text().splitlines(keepends=True)
        changed = [f"{start}{offset}\n" if row.startswith(start) else row for row in rows]
        assert changed != rows
        path.write_text("".join(changed))

    return plant


def flushed_and_cut(replicas: dict[int, Replica]) -> None:
    """All have lost their ends alike, and still know how far they were flushed."""
    for replica in replicas.values():
        cut_tail(replica, random.Random(7))
        set_offset("recovery-point-offset-checkpoint", END)(replica)


def forged_claim(replicas: dict[int, Replica]) -> None:
    """One follower is behind, and the other one claims that all it has is committed."""
    cut_tail(replicas[1], random.Random(7))
    set_offset("replication-offset-checkpoint", 8)(replicas[LEADER])
    set_offset("replication-offset-checkpoint", END)(replicas[2])


def skip(replicas: dict[int, Replica]) -> None:
    """A last segment that is empty begins further on than the log goes."""
    (replicas[1].directory / f"{END + 20:020}.log").touch()


CASES = {
    "an empty segment behind the log": Case(skip, FOUND, [1]),
    "nothing": Case(lambda replicas: None, CLEAN),
    "the leader has lost its end": Case(cut(LEADER), FOUND, [LEADER]),
    "the leader's log is gone": Case(
        lambda replicas: delete_log(replicas[LEADER], random.Random(7)), FOUND, [LEADER]
    ),
    "the leader and one follower have lost their ends alike": Case(
        cut(2, LEADER), FOUND, [LEADER], told_named=[2, LEADER]
    ),
    "a follower is behind, or has lost its end": Case(
        cut(1), CLEAN, told_code=FOUND, told_named=[1]
    ),
    "all have lost their ends": Case(cut(*NODES), CLEAN, told_code=FOUND, told_named=[*NODES]),
    "all have lost their ends, up to which they were flushed": Case(
        flushed_and_cut, FOUND, [*NODES]
    ),
    "a follower claims what was not committed": Case(forged_claim, FOUND, [2], told_named=[1, 2]),
    "the leader has another value": Case(
        lambda replicas: value(b"other")(replicas[LEADER]), FOUND, [LEADER]
    ),
    "the leader's last segment cannot be read": Case(
        lambda replicas: hide_last_segment(replicas[LEADER]), NOT_CHECKED
    ),
    "a follower's last segment cannot be read": Case(
        lambda replicas: hide_last_segment(replicas[1]), NOT_CHECKED
    ),
    "a follower has the last batch twice, so the leader need not have had it": Case(
        lambda replicas: append_again(replicas[1]), CLEAN, told_code=FOUND, told_named=[1]
    ),
    "a batch that nobody sent, on all": Case(
        lambda replicas: [append_forged(each, b"forged") for each in replicas.values()],
        CLEAN,
        told_code=FOUND,
        told_named=[*NODES],
    ),
}


def make_killed(root: Path, numbers: Sequence[int]) -> None:
    """A cluster of killed brokers, with a case in each of these partitions."""
    export = make_cluster(root, numbers[-1] + 1)
    brokers = {node: root / f"broker-{node}" for node in NODES}
    exported: dict[str, Any] = json.loads(export.read_text())
    for partition in exported["topics"][0]["partitions"]:
        partition |= {"leader": LEADER, "leader_epoch": EPOCHS - 1}
    (root / EXPORT).write_text(json.dumps(exported))
    make_old_checkpoints(root, numbers)
    for number, case in zip(numbers, CASES.values(), strict=True):
        case.plant({node: Replica(path, TOPIC, number) for node, path in brokers.items()})


def make_old_checkpoints(root: Path, numbers: Sequence[int]) -> None:
    """The brokers were killed, and had last written checkpoints of these partitions at AT."""
    for path in (root / f"broker-{node}" for node in NODES):
        (path / "clean-shutdown").unlink()
        for number in numbers:
            lower_checkpoints(Replica(path, TOPIC, number), AT)


def test_killed_clusters(spark: SparkSession, tmp_path: Path) -> None:
    """The exit code of each case, and the brokers with errors: nobody else is accused."""
    numbers = partitions_without_retention(len(CASES))
    make_killed(tmp_path, numbers)
    ledgers = write_ledgers(tmp_path, numbers[-1] + 1, [])[:1]
    wrong = []
    for out, given in (("audit", []), ("again", ledgers)):
        summary, findings = audit(
            spark, tmp_path, tmp_path / out, given, is_ledger_complete=bool(given)
        )
        for number, (name, case) in zip(numbers, CASES.items(), strict=True):
            alone, mine = of_partition(summary, findings, number)
            code, named = case.code, case.named
            if given:
                code = code if case.told_code is None else case.told_code
                named = named if case.told_named is None else case.told_named
            found = sorted({each.broker or 0 for each in mine if each.severity == "error"})
            if (alone.exit_code, found) != (code, list(named)):
                shown = [(each.check, each.broker, each.offset, each.detail) for each in mine]
                wrong.append(f"{out}: {name}: {alone.sentence} {found}\n    {shown}")
    assert not wrong, "\n".join(wrong)
