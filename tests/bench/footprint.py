"""How little: time to the first answer, memory, and the time that a log costs to open.

Memory is what the system says the process holds. Times count from before the process is made until
a request is answered, which is what a client waits for; the yardsticks are processes too.
"""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.replicas import DescribeReplicasRequest
from tests.bench.raw import fetch, fill
from tests.bench.rounds import (
    Row,
    by_turns,
    cpu_seconds,
    create_topic,
    fresh_broker,
    median_of,
    megabytes,
    milliseconds,
    run_module,
    seconds,
)
from tests.support.processes import BrokerProcess, resident_bytes
from tests.support.wire import Wire

START_ROUNDS = 5
ANSWER_S_MAX = 30.0
CONNECTION_COUNT = 1000
PARTITION_COUNT = 1000
IDLE_S = 10.0
LOG_BYTES = 1 << 30
TOPIC = "bench"
GROWTH_FROM, GROWTH_TO, GROWTH_STEP = 200, 2000, 100  # MB
GROWTH_BATCH_BYTES = 16 * 1024
ASK = MetadataRequest(())
MB = 1_000_000


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _seconds_to_answer(data_dir: Path) -> float:
    """Start a broker, ask until it answers, kill it."""
    address = f"127.0.0.1:{_free_port()}"
    began = time.perf_counter()
    broker = BrokerProcess(data_dir, listen=address)
    try:
        while time.perf_counter() - began < ANSWER_S_MAX:
            with contextlib.suppress(ConnectionError), Wire(address) as wire:
                wire.call(ApiKey.METADATA, ASK)
                return time.perf_counter() - began
            time.sleep(0.002)
        raise AssertionError(f"no answer:\n{broker.output}")
    finally:
        broker.kill()


def _seconds_of_import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import trio"], check=True)
    return time.perf_counter() - began


def _start_empty() -> float:
    with TemporaryDirectory(prefix="minibroker-bench-") as directory:
        return _seconds_to_answer(Path(directory) / "data")


def start() -> Iterator[Row]:
    """An empty broker, from nothing to the first answer."""
    pair = by_turns(_start_empty, _seconds_of_import, START_ROUNDS)
    yield Row(
        "start to the first answered request",
        seconds(pair.ours),
        'python -c "import trio"',
        seconds(pair.theirs),
        f"{pair.ratio:.1f}",
        "< 0.60 s",
        pair.ours < 0.6,
    )


def memory() -> Iterator[Row]:
    """A broker that has answered one request and nothing else."""
    code = "import trio, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bare:
        assert bare.stdout
        bare.stdout.readline()
        theirs = resident_bytes(bare.pid)
        bare.communicate()
    with fresh_broker() as broker:
        with Wire(broker.address) as wire:
            wire.call(ApiKey.METADATA, ASK)
        ours = broker.resident_bytes
    yield Row(
        "memory of an idle broker",
        megabytes(ours),
        'python -c "import trio"',
        megabytes(theirs),
        f"{ours / theirs:.1f}",
        "< 60 MB",
        ours < 60 * MB,
    )


def connections() -> Iterator[Row]:
    """Connections that have asked once and are silent since."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * CONNECTION_COUNT:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * CONNECTION_COUNT, hard))
    with fresh_broker() as broker, contextlib.ExitStack() as stack:
        with Wire(broker.address) as wire:
            wire.call(ApiKey.METADATA, ASK)
        before = broker.resident_bytes
        for _ in range(CONNECTION_COUNT):
            stack.enter_context(Wire(broker.address)).call(ApiKey.METADATA, ASK)
        each = (broker.resident_bytes - before) / CONNECTION_COUNT
    yield Row(
        f"memory of an idle connection, mean of {CONNECTION_COUNT}",
        f"{each / 1000:.1f} KB",
        wanted="< 30 KB",
        is_met=each < 30_000,
    )


def partitions() -> Iterator[Row]:
    """What empty partitions cost a broker that is alone: memory, files, CPU time, time to start."""
    with TemporaryDirectory(prefix="minibroker-bench-") as directory:
        data_dir = Path(directory) / "data"
        broker = BrokerProcess(data_dir).wait_until_ready()
        try:
            with Wire(broker.address) as wire:
                wire.call(ApiKey.METADATA, ASK)
                resident, files = broker.resident_bytes, _open_files(broker.pid)
                create_topic(broker.address, TOPIC, PARTITION_COUNT)
                while _led_count(wire) < PARTITION_COUNT:
                    time.sleep(0.1)
            resident = broker.resident_bytes - resident
            files = _open_files(broker.pid) - files
            cpu_s = cpu_seconds(broker.pid)
            time.sleep(IDLE_S)
            share = (cpu_seconds(broker.pid) - cpu_s) / IDLE_S
            assert broker.stop() == 0
        finally:
            broker.kill()
        start_s = _seconds_to_answer(data_dir) - median_of(_start_empty)
    each = f"an empty partition, mean of {PARTITION_COUNT:,}"
    yield Row(f"memory of {each}", f"{resident / PARTITION_COUNT / 1000:.1f} KB")
    yield Row(f"open files of {each}", f"{files / PARTITION_COUNT:.1f}")
    yield Row(f"start after a clean stop, {each}", milliseconds(start_s / PARTITION_COUNT * 1000))
    yield Row(f"CPU of an idle broker with {PARTITION_COUNT:,} partitions", f"{share:.1%}")


def _led_count(wire: Wire) -> int:
    """How many replicas a broker leads."""
    found = wire.call(ApiKey.DESCRIBE_REPLICAS, DescribeReplicasRequest())
    return sum(replica.role == "leader" for replica in found.replicas)


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def opening() -> Iterator[Row]:
    """1 GB in batches of 64 KB after `kill -9`; what an empty broker takes to start is not it."""
    with TemporaryDirectory(prefix="minibroker-bench-") as directory:
        data_dir = Path(directory) / "data"
        broker = BrokerProcess(data_dir).wait_until_ready()
        try:
            fill(broker.address, TOPIC, LOG_BYTES)
        finally:
            broker.kill()
        [segment] = data_dir.rglob("00000000000000000000.log")
        empty_s = median_of(_start_empty)

        def ours() -> float:
            _forget_recovery_points(data_dir)
            return _seconds_to_answer(data_dir) - empty_s

        def ours_alone() -> float:
            _forget_recovery_points(data_dir)
            return run_module("opening", "--segment", segment)["seconds"]

        def theirs() -> float:
            return run_module("yardsticks", "read", "--file", segment)["seconds"]

        for name, measure in (("a broker", ours), ("the log alone", ours_alone)):
            pair = by_turns(measure, theirs)
            yield Row(
                f"opening a log of {LOG_BYTES / 1e9:.2f} GB after kill -9, {name}",
                seconds(pair.ours),
                "reading the file once with CRC",
                seconds(pair.theirs),
                f"{pair.ratio:.2f}",
                "ratio <= 2",
                pair.ratio <= 2,
            )


def _forget_recovery_points(data_dir: Path) -> None:
    """As if no minute had passed since the log was begun: everything has to be checked."""
    for path in data_dir.glob("recovery-point-offset-checkpoint"):
        path.unlink()


def growth() -> Iterator[Row]:
    """A broker's memory while records flow in and out again, in batches of 16 KB."""
    sizes: dict[int, int] = {}
    with fresh_broker() as broker:
        for total in range(GROWTH_STEP, GROWTH_TO + 1, GROWTH_STEP):
            fill(broker.address, TOPIC, GROWTH_STEP * MB, GROWTH_BATCH_BYTES)
            fetch(broker.address, TOPIC, GROWTH_STEP * MB)
            sizes[total] = broker.resident_bytes
    grown = sizes[GROWTH_TO] - sizes[GROWTH_FROM]
    yield Row(
        f"memory growth from {GROWTH_FROM} MB to {GROWTH_TO:,} MB through the broker",
        megabytes(grown),
        f"its memory at {GROWTH_FROM} MB",
        megabytes(sizes[GROWTH_FROM]),
        f"{grown / sizes[GROWTH_FROM]:.2f}",
        "< 10 MB",
        grown < 10 * MB,
    )


MEASURES = (start, memory, connections, partitions, opening, growth)
