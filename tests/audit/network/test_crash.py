"""What a Spark driver that is killed in the middle of a micro-batch leaves, and what comes after.

Two streams read one topic: one writes files, which Spark commits exactly once, one writes another
topic. Both are stopped where it matters: a micro-batch is in the checkpoint, one of its two
tasks has sent and got acknowledged all it has, the other nothing. Then driver, JVM and workers are
killed at once.
"""

import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minibroker.client import NewTopic
from minibroker.client.blocking import Admin, Consumer, Producer
from tests.audit.network.driver import COLUMNS, PARTITIONS, RECORDS_PER_TRIGGER, run
from tests.support.processes import running_broker

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 240.0
# Of each partition in a micro-batch.
SHARE = RECORDS_PER_TRIGGER // PARTITIONS


@contextmanager
def driver(servers: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The driver, and in the end all of its processes gone."""
    command = [sys.executable, "-m", "tests.audit.network.driver", servers, str(directory)]
    environment = os.environ | {"TMPDIR": str(directory)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def send(servers: str, first: int, count: int) -> list[str]:
    """Send `count` records to each partition; returns their values."""
    values = [f"{partition}/{first + at}" for partition in range(PARTITIONS) for at in range(count)]
    with Producer(servers) as producer:
        for value in values:
            producer.send("in", value.encode(), partition=int(value[0]))
    return values


def read(consumer: Consumer, count: int) -> list[str]:
    """The next `count` values."""
    values: list[str] = []
    while len(values) < count:
        records = consumer.poll(PATIENCE_S)
        assert records, f"only {len(values)} of {count} records came"
        values += [(record.value or b"").decode() for record in records]
    return values


def wait_until_halted(fifo: int) -> None:
    """Both streams stand in the middle of their second micro-batch."""
    told = b""
    while sorted(told.split()) != [b"files", b"topic"]:
        is_readable, _, _ = select.select([fifo], [], [], PATIENCE_S)
        assert is_readable, f"the driver does not get there; it said {told!r}"
        told += os.read(fifo, 100)


@pytest.mark.soak
def test_a_killed_driver_reads_once_and_writes_at_least_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """After `kill -9` in a micro-batch the streams of another driver, which go on from their
    checkpoints, read each record once, lose none, and write twice exactly what the finished task of
    that micro-batch had written."""
    os.mkfifo(tmp_path / "halted")
    fifo = os.open(tmp_path / "halted", os.O_RDWR | os.O_NONBLOCK)
    with running_broker(tmp_path / "broker") as broker, Admin(broker.address) as admin:
        admin.create_topics(NewTopic("in", PARTITIONS), NewTopic("out", PARTITIONS))
        sent = send(broker.address, 0, 2 * SHARE)
        with Consumer(broker.address, auto_offset_reset="earliest") as consumer:
            consumer.assign_topics("out")
            with driver(broker.address, tmp_path) as process:
                wait_until_halted(fifo)
                # The first micro-batch, and of the second the share of partition 0.
                before = read(consumer, RECORDS_PER_TRIGGER + SHARE)
                os.killpg(process.pid, signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
            sent += send(broker.address, 2 * SHARE, SHARE // 2)
            run(spark, broker.address, tmp_path)
            ends = consumer.end_offsets()
            written = before + read(consumer, sum(ends.values()) - len(before))
    os.close(fifo)

    files = spark.read.schema(COLUMNS).json(str(tmp_path / "files")).collect()
    assert sorted(value for _, _, value in files) == sorted(sent)
    assert all(value == f"{partition}/{offset}" for partition, offset, value in files)

    again = Counter(written) - Counter(sent)
    assert not Counter(sent) - Counter(written), "a record is lost"
    assert again == Counter(f"0/{SHARE + at}" for at in range(SHARE))
