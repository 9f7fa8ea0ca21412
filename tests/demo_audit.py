"""`make demo-audit`: five faults are planted in copies of what the demo left, and all are found.

The brokers' directories are copied and, while the ledgers stay as they are, damaged as a lying
disk or a wrong broker would: a flipped byte, a batch missing, two batches swapped, an epoch
checkpoint changed, an acknowledged record removed. Each is on one replica, that follows, so that
the audit has to name the right one; only one of them leaves a wrong checksum. One run of the
audit must find all, each at its broker, partition and offset. Exit code 1 if it misses any.

Without what `make demo` leaves in `build/demo`, the demo is run first.
"""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Final

import pyarrow.parquet
from rich.console import Console
from rich.table import Table

from tests import demo
from tests.support.damage import FAULTS, Planted, Replica
from tests.support.processes import EXPORT

DAMAGED: Final = demo.PLACE / "damaged"
FOUND: Final = demo.PLACE / "audit-of-damaged"
SEED: Final = 5
FINDINGS_EXIT_CODE: Final = 1

Found = dict[str, object]  # a row of FINDINGS


def plant(cluster: Path) -> list[Planted]:
    """Each fault in another replica of those that follow and are in sync."""
    rng = random.Random(SEED)
    topics = json.loads((cluster / EXPORT).read_text())["topics"]
    [topic] = [topic for topic in topics if topic["name"] == demo.TOPIC]
    partitions = topic["partitions"]
    planted = []
    for number, fault in enumerate(FAULTS):
        partition = partitions[number % len(partitions)]
        followers = sorted({*partition["isr"]} - {partition["leader"]})
        broker = followers[number // len(partitions)]
        replica = Replica(cluster / f"broker-{broker}", topic["name"], partition["partition"])
        planted.append(fault(replica, rng))
    return planted


def find(planted: Planted, findings: list[Found]) -> Found | None:
    """The finding of a fault: by one of the right checks, at its place."""
    place = (planted.broker, planted.topic, planted.partition, planted.offset)
    return next(
        (
            found
            for found in findings
            if found["check"] in planted.expects
            and tuple(found[name] for name in ("broker", "topic", "partition", "offset")) == place
        ),
        None,
    )


def main() -> int:
    """The exit code."""
    if not (demo.AUDIT / "report.html").exists() and demo.main() != 0:
        return 1
    for path in (DAMAGED, FOUND):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(demo.CLUSTER, DAMAGED)
    faults = plant(DAMAGED)
    code = demo.audited(DAMAGED, FOUND)
    findings = pyarrow.parquet.read_table(FOUND / "findings.parquet").to_pylist()
    table = Table(title="Faults planted in copies, and what the audit found there")
    for heading in ("fault", "broker", "partition", "offset", "found by", "at offset", ""):
        justify = "right" if "offset" in heading else "left"
        table.add_column(heading, justify=justify, no_wrap=heading != "fault")
    missed = 0
    for planted in faults:
        found = find(planted, findings)
        missed += found is None
        shown = ("", "", "[red]MISSED[/]")
        if found is not None:
            shown = (str(found["check"]), f"{found['offset']:,}", "[green]OK[/]")
        place = (str(planted.broker), str(planted.partition), f"{planted.offset:,}")
        table.add_row(planted.name, *place, *shown)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"The report: {(FOUND / 'report.html').relative_to(demo.ROOT)}")
    if code != FINDINGS_EXIT_CODE:
        console.print(f"[red]The audit ended with {code}, not {FINDINGS_EXIT_CODE}.[/]")
    return 1 if missed or code != FINDINGS_EXIT_CODE else 0


if __name__ == "__main__":
    sys.exit(main())
