"""How fast the audit is: whole runs of `minibroker audit run` over directories of several sizes.

    python -m tests.bench.audit loop DIR

reads all segments below DIR in one plain Python loop on one core (CRC-32C and xxh3 of each batch,
nothing else) and prints the bytes per second as JSON: the yardstick of the audit's scan.

The directories are those of three brokers, written by the broker's log without a process; all
files are in the page cache. Each figure is of the quickest of several runs.
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TextIO

import xxhash
from crc32c import crc32c

from minibroker.broker.disk import RealFiles
from minibroker.broker.log.manager import LogManager
from minibroker.protocol.constants import BATCH_OVERHEAD_BYTES
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.bench.rounds import Row, gigabytes, run_module, seconds
from tests.support import made_cluster
from tests.support.processes import COMMAND

MB: Final = 1_000_000
GB: Final = 1000 * MB
CORES: Final = 2
LIMITS: Final = replace(made_cluster.LIMITS, segment_bytes=256 << 20, index_interval_bytes=4096)
RUN_S_MAX: Final = 900.0
LEDGER: Final = "ledger.jsonl"
SCANS: Final = ("spark", "driver")
ROUNDS: Final = range(3)
_CRC_FROM = 21
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_IDENTITY_FROM = 16


class Size(NamedTuple):
    """All brokers together; `wanted_s` is the aim for a whole run, 0 if there is none."""

    total_bytes: int
    batch_bytes: int
    partitions: int
    wanted_s: float = 0.0

    def __str__(self) -> str:
        total, unit = (
            (self.total_bytes / GB, "GB")
            if self.total_bytes >= GB
            else (self.total_bytes / MB, "MB")
        )
        batch = self.batch_bytes // 1024
        return f"{total:g} {unit} of {batch} KB batches, {self.partitions} partitions"


SIZES: Final = (
    Size(MB, 1024, 12, wanted_s=12.0),
    Size(GB, 64 * 1024, 12),
    Size(4 * GB, 64 * 1024, 12, wanted_s=25.0),
    Size(GB, 1024, 12),
    Size(4 * GB, 1024, 12),
    Size(GB, 64 * 1024, 300),
)
MASTERS: Final = ("local[2]", "local-cluster[2,1,1024]")


def sizes() -> Iterator[Row]:
    """How the time grows with data and with partitions, by who reads: Spark's tasks or the driver,
    in turns."""
    adopt_descendants()
    for size in SIZES:
        with directories(size) as root:
            loop = run_module("audit", "loop", root)["bytes_per_s"]
            rounds = [[audited(root, MASTERS[0], "--scan", scan) for scan in SCANS] for _ in ROUNDS]
            for number, scan in enumerate(SCANS):
                found = best([each[number] for each in rounds])
                speed = found["bytes"] / found["scan_s"]
                is_met = found["all_s"] < size.wanted_s if size.wanted_s else None
                yield Row(
                    name=f"audit of {size}, --scan {scan}: session and report too",
                    ours=seconds(found["all_s"]),
                    yardstick="is wanted",
                    theirs=seconds(size.wanted_s) if size.wanted_s else "",
                    wanted=f"< {size.wanted_s:g} s" if size.wanted_s else "",
                    is_met=is_met,
                )
                yield Row(name="its CPU time, Spark jobs and tasks", ours=cost(found))
                yield Row(
                    name=f"its scan, {CORES} cores",
                    ours=gigabytes(speed),
                    yardstick="a Python loop over the same files, 1 core",
                    theirs=gigabytes(loop),
                    ratio=f"{speed / loop:.2f}",
                )


def masters() -> Iterator[Row]:
    """The same directories with Spark's executors in processes of their own."""
    adopt_descendants()
    size = Size(GB, 64 * 1024, 12)
    with directories(size) as root:
        rounds = [[audited(root, master) for master in MASTERS] for _ in ROUNDS]
        inside, outside = (best([each[number] for each in rounds]) for number in (0, 1))
        yield Row(
            name=f"audit of {size} on {MASTERS[1]}",
            ours=seconds(outside["all_s"]),
            yardstick=MASTERS[0],
            theirs=seconds(inside["all_s"]),
            ratio=f"{outside['all_s'] / inside['all_s']:.2f}",
        )
        yield Row(
            name="its CPU time, Spark jobs and tasks",
            ours=cost(outside),
            yardstick=MASTERS[0],
            theirs=cost(inside),
        )


def ledgers() -> Iterator[Row]:
    """What a ledger of all records adds; it has about as many bytes as all logs together."""
    adopt_descendants()
    size = Size(GB, 64 * 1024, 12)
    with directories(size, has_ledger=True) as root:
        more = ("--ledger", root / LEDGER)
        rounds = [[audited(root, MASTERS[0], *given) for given in ((), more)] for _ in ROUNDS]
        without, with_ledger = (best([each[number] for each in rounds]) for number in (0, 1))
        ledger_bytes = (root / LEDGER).stat().st_size
        added_s = with_ledger["all_s"] - without["all_s"]
        yield Row(
            name=f"audit of {size} with a ledger of {ledger_bytes / GB:.2f} GB: the ledger's part",
            ours=seconds(added_s),
            yardstick="without the ledger",
            theirs=seconds(without["all_s"]),
            ratio=f"{added_s / without['all_s']:.2f}",
            wanted="<= 1",
            is_met=added_s <= without["all_s"],
        )
        yield Row(name="its CPU time, Spark jobs and tasks", ours=cost(with_ledger))


def best(found: list[dict[str, float]]) -> dict[str, float]:
    """The quickest of several runs: whatever else the machine does only makes one slower."""
    return min(found, key=lambda each: each["all_s"])


def cost(found: dict[str, float]) -> str:
    """CPU time, jobs and tasks of a run."""
    return f"{seconds(found['cpu_s'])}, {found['jobs']:.0f} jobs, {found['tasks']:.0f} tasks"


@contextmanager
def directories(size: Size, *, has_ledger: bool = False) -> Iterator[Path]:
    """Three brokers' directories that hold so much, and `cluster.json`; with a ledger, too, in
    which all records are acknowledged."""
    with TemporaryDirectory(prefix="minibroker-bench-") as name:
        root = Path(name)
        first = root / "broker-1"
        manager = LogManager(RealFiles(), first, LIMITS)
        manager.start("boot", made_cluster.CLUSTER_ID, 1, made_cluster.NOW_MS)
        each = size.total_bytes // len(made_cluster.NODES) // size.partitions
        with (root / LEDGER).open("w") if has_ledger else nullcontext() as ledger:
            for number in range(size.partitions):
                fill(manager, number, each, size.batch_bytes, ledger)
        manager.close({name: log.log_end for name, log in manager.logs.items()})
        for node in made_cluster.NODES[1:]:
            copy = root / f"broker-{node}"
            shutil.copytree(first, copy)
            meta = copy / "meta.properties"
            meta.write_text(meta.read_text().replace("node.id=1\n", f"node.id={node}\n"))
        (root / made_cluster.EXPORT).write_text(json.dumps(made_cluster.described(size.partitions)))
        yield root


def fill(
    manager: LogManager,
    partition: int,
    log_bytes: int,
    batch_bytes: int,
    ledger: TextIO | None = None,
) -> None:
    """One log of one producer, in batches of one size; all records are different."""
    now_ms, name = made_cluster.NOW_MS, TopicPartition(made_cluster.TOPIC, partition)
    log = manager.create(name, made_cluster.TOPIC_ID, LIMITS, now_ms)
    count = max(1, batch_bytes // 110)
    for number in range(log_bytes // batch_bytes):
        begin = number * count
        values = [f"{partition} {offset}".ljust(100, ".") for offset in range(begin, begin + count)]
        records = [(now_ms, None, value.encode(), ()) for value in values]
        if ledger is not None:
            for offset, value in enumerate(values, begin):
                ledger.write(json.dumps(acked(partition, offset, value)) + "\n")
        producer = ProducerStamp(partition, 0, begin % (1 << 31))
        batch = encode_batch(records, producer=producer)
        log.append_as_leader(memoryview(batch), 0, now_ms)


def acked(partition: int, offset: int, value: str) -> dict[str, object]:
    """The line of a ledger about one record."""
    return {
        "timestamp": made_cluster.NOW_MS,
        "name": "producer_send_success",
        "topic": made_cluster.TOPIC,
        "partition": partition,
        "acks": -1,
        "topicId": made_cluster.TOPIC_ID.hex(),
        "offset": offset,
        "key": None,
        "value": value,
    }


def audited(root: Path, master: str, *more: str | Path) -> dict[str, float]:
    """Run the audit in a process of its own; it must find nothing."""
    out = root / "report"
    arguments = ["audit", "run", *sorted(root.glob("broker-*")), "--master", master]
    arguments += ["--cluster", root / made_cluster.EXPORT, "--out", out, *more]
    with TemporaryDirectory(prefix="minibroker-bench-") as name:
        events = Path(name) / "events"
        events.mkdir()
        defaults = (
            f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\n"
            "spark.eventLog.compress false\n"
        )
        (Path(name) / "spark-defaults.conf").write_text(defaults)
        began, cpu_before_s = time.monotonic(), descendants_cpu_s()
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            env=os.environ | {"SPARK_CONF_DIR": name},
        )
        all_s = time.monotonic() - began
        wait_for_descendants()
        cpu_s = descendants_cpu_s() - cpu_before_s
        log = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
        jobs, tasks = (
            log.count(f'{{"Event":"SparkListener{event}"') for event in ("JobStart", "TaskEnd")
        )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    summary = json.loads((out / "summary.json").read_text())
    stages = {stage["name"]: stage["seconds"] for stage in summary["stages"]}
    return {
        "all_s": all_s,
        "cpu_s": cpu_s,
        "jobs": jobs,
        "tasks": tasks,
        "scan_s": stages["reading the logs"],
        "bytes": summary["sizes"]["bytes"],
    }


def adopt_descendants() -> None:
    """Make this process the parent of those whose own parent ends, such as Spark's JVM (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_descendants() -> None:
    """Wait until all that this process started, or adopted, has ended."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def descendants_cpu_s() -> float:
    """Seconds of CPU of all the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def loop(root: Path) -> float:
    """Bytes per second of the plainest reader that checks and hashes each batch."""
    total, began = 0, time.perf_counter()
    for path in sorted(root.glob("broker-*/*/*.log")):
        view = path.read_bytes()
        position = 0
        while position < len(view):
            length = int.from_bytes(view[position + 8 : position + 12], "big")
            end = position + BATCH_OVERHEAD_BYTES + length
            stored = int.from_bytes(view[position + 17 : position + 21], "big")
            batch = memoryview(view)[position:end]
            assert crc32c(batch[_CRC_FROM:]) == stored
            xxhash.xxh3_64_intdigest(batch[_IDENTITY_FROM:])
            position = end
        total += position
    return total / (time.perf_counter() - began)


def main() -> None:
    """The yardstick, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["loop"])
    parser.add_argument("root", type=Path)
    print(json.dumps({"bytes_per_s": loop(parser.parse_args().root)}))


MEASURES: Final = (sizes, masters, ledgers)

if __name__ == "__main__":
    sys.exit(main())
