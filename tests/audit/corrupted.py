"""A made cluster with a random corruption in each of many partitions, in files of every kind."""

import random
from dataclasses import dataclass
from pathlib import Path

from minibroker.audit.model import Finding
from tests.support.damage import CORRUPTIONS, Corruption, corrupt
from tests.support.made_cluster import NODES, TOPIC

HIGH_WATERMARKS = "replication-offset-checkpoint"
# How many of a hundred corruptions hit a file of the kind.
SHARES = {
    "*.log": 38,
    "*.index": 12,
    "*.timeindex": 12,
    "*.snapshot": 12,
    "leader-epoch-checkpoint": 12,
    "partition.metadata": 2,
    "*.deleted": 4,
    HIGH_WATERMARKS: 8,  # the partition's row in it
}
# One broker's file of each kind, so that the others still say what is committed.
BROKER_FILES = {
    "recovery-point-offset-checkpoint": 2,
    "log-start-offset-checkpoint": 3,
}


@dataclass(frozen=True)
class Case:
    """A corruption on a broker; of no partition if the file is the broker's."""

    broker: int
    partition: int | None
    corruption: Corruption

    def is_told_by(self, finding: Finding) -> bool:
        """Whether the finding is about what was corrupted."""
        if self.partition is None:
            # An offset in a file of all logs may have become larger than its log.
            checks = ("checkpoint", "missing-committed")
            return finding.broker == self.broker and finding.check in checks
        is_here = self.broker in (finding.broker, finding.other_broker)
        return is_here and self.partition == finding.partition

    def __str__(self) -> str:
        change = self.corruption
        return (
            f"{change.kind} {change.path.parent.name}/{change.path.name} of broker {self.broker}"
            f" from byte {change.position} on ({len(change.before)} bytes before,"
            f" {len(change.after)} after)"
        )


def corrupt_one(root: Path, partition: int, kind: str, rng: random.Random) -> Case:
    """One corruption of a file of a kind; of some other kind if this log has none."""
    broker = rng.choice(NODES)
    data_dir = root / f"broker-{broker}"
    if kind == HIGH_WATERMARKS:
        return Case(broker, partition, change_row(data_dir / kind, partition, rng))
    directory = data_dir / f"{TOPIC}-{partition}"
    paths = sorted(path for path in directory.glob(kind) if path.stat().st_size)
    path = rng.choice(paths or sorted(directory.glob("*.log")))
    return Case(broker, partition, corrupt(path, rng.choice([*CORRUPTIONS]), rng))


def change_row(path: Path, partition: int, rng: random.Random) -> Corruption:
    """One digit of one partition's offset is another."""
    before = path.read_text()
    start = f"{TOPIC} {partition} "
    lines = before.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(start))
    digits = list(lines[at].removeprefix(start).rstrip("\n"))
    changed = rng.randrange(len(digits))
    digits[changed] = rng.choice([digit for digit in "0123456789" if digit != digits[changed]])
    lines[at] = f"{start}{''.join(digits)}\n"
    after = "".join(lines)
    path.write_text(after)
    return Corruption("digit", path, before.encode(), after.encode())


def corrupt_all(root: Path, count: int, seed: int) -> list[Case]:
    """One case in each of `count` partitions, and one in each of BROKER_FILES."""
    rng = random.Random(seed)
    kinds = rng.choices([*SHARES], [*SHARES.values()], k=count)
    cases = [corrupt_one(root, partition, kind, rng) for partition, kind in enumerate(kinds)]
    for name, broker in BROKER_FILES.items():
        path = root / f"broker-{broker}" / name
        cases.append(Case(broker, None, corrupt(path, rng.choice([*CORRUPTIONS]), rng)))
    return cases
