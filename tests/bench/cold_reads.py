"""What a producer waits for while another client reads records that are not in the page cache, with
this checkout and with another one.

    python -m tests.bench.cold_reads OTHER [--megabytes 1024] [--rounds 3] [--disk-speed MB]

OTHER is as for `tests.bench.checkouts`. Both brokers run at once and are measured by turns. In each
round the segments of a topic are taken out of the page cache (`posix_fadvise`), and a process reads
the topic from its beginning, a megabyte in each FETCH. Meanwhile a producer sends one small record
after another to another topic, each after the acknowledgement of the one before and a pause, as it
does before without a reader.

`--disk-speed` gives the brokers a disk of so many MB in a second (`slow_disk.py`), for machines
whose disks answer from memory. The first line says what the disk of this machine does.
"""

import argparse
import multiprocessing
import os
import random
import socket
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from minibroker.protocol.records.record import encode_batch
from tests.bench.checkouts import CREATED_S, Checkout, request
from tests.support.processes import BrokerProcess

MEGABYTE: Final = 1 << 20
RECORDS: Final = 128  # in a batch of 16 KB
NOW_MS: Final = int(time.time() * 1_000)
BATCH: Final = bytes(encode_batch([(NOW_MS, None, b"v" * 118, ())] * RECORDS))
SMALL: Final = bytes(encode_batch([(NOW_MS, None, b"v" * 100, ())]))
AT_ONCE: Final = 10
PAUSE_S: Final = 0.002
ALONE_S: Final = 5.0
PROBES: Final = 300
SEGMENT_BYTES: Final = 128 * MEGABYTE
RECORDS_AT: Final = 49  # of the answer to FETCH, after its length


def topic(name: bytes) -> bytes:
    """An array of one topic, up to its name."""
    return struct.pack(">ih", 1, len(name)) + name


def produce(name: bytes, batch: bytes) -> bytes:
    """Append a batch, acks=1."""
    partition = struct.pack(">iii", 1, 0, len(batch)) + batch
    return request(0, 3, struct.pack(">hhi", -1, 1, 60_000) + topic(name) + partition)


def fetch(offset: int) -> bytes:
    """A megabyte of records."""
    partition = struct.pack(">iiqi", 1, 0, offset, MEGABYTE)
    return request(1, 4, struct.pack(">iiiib", -1, 500, 1, MEGABYTE, 0) + topic(b"t") + partition)


class Connection:
    """To a broker, on Kafka's wire."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb", buffering=MEGABYTE)

    def ask(self, frame: bytes, count: int = 1) -> bytes:
        """Send a request so often at once; return the last answer."""
        self._socket.sendall(frame * count)
        answer = b""
        for _ in range(count):
            (size,) = struct.unpack(">i", self._answers.read(4))
            answer = self._answers.read(size)
        return answer


def read_all(address: str, size: int, results: "multiprocessing.Queue[float]") -> None:
    """Read so many bytes from the beginning; put how long it took (s) into the queue."""
    connection, offset, read = Connection(address), 0, 0
    began = time.perf_counter()
    while read < size:
        answer = connection.ask(fetch(offset))
        records = len(answer) - RECORDS_AT
        assert records > 0
        assert records % len(BATCH) == 0, "whole batches come"
        read += records
        offset += records // len(BATCH) * RECORDS
    results.put(time.perf_counter() - began)


class Measured(NamedTuple):
    """How long acknowledgements took (s), without a reader and beside one, and the reader (s)."""

    alone: list[float]
    beside: list[float]
    reading: list[float]


class Subject:
    """A broker with a topic of `size` bytes, and what was measured of it."""

    def __init__(self, broker: BrokerProcess, size: int) -> None:
        self.measured = Measured([], [], [])
        self._address, self._size, self._data_dir = broker.address, size, broker.data_dir
        self._connection = Connection(self._address)
        for name in (b"t", b"p"):
            self._connection.ask(request(3, 4, topic(name) + b"\1"))  # METADATA creates it
        time.sleep(CREATED_S)
        count = -(-size // len(BATCH))
        self._size = count * len(BATCH)
        for _ in range(-(-count // AT_ONCE)):
            self._connection.ask(produce(b"t", BATCH), AT_ONCE)
        self._send()

    def _send(self) -> float:
        began = time.perf_counter()
        self._connection.ask(produce(b"p", SMALL))
        took = time.perf_counter() - began
        time.sleep(PAUSE_S)
        return took

    def _evict(self) -> None:
        """Take the topic out of the page cache."""
        for path in sorted((self._data_dir / "t-0").glob("*.*")):
            evict(path)

    def measure(self) -> None:
        """Do a round."""
        end = time.perf_counter() + ALONE_S
        while time.perf_counter() < end:
            self.measured.alone.append(self._send())
        self._evict()
        spawning = multiprocessing.get_context("spawn")
        results: multiprocessing.Queue[float] = spawning.Queue()
        reader = spawning.Process(target=read_all, args=(self._address, self._size, results))
        reader.start()
        while reader.is_alive():
            self.measured.beside.append(self._send())
        self.measured.reading.append(results.get(timeout=1))

    def lines(self) -> Iterator[str]:
        """What was measured."""
        for what, took in (("alone", self.measured.alone), ("beside", self.measured.beside)):
            cuts = statistics.quantiles(took, n=100)
            p50, p99, most = (1e3 * each for each in (cuts[49], cuts[98], max(took)))
            yield f"  {what:7} p50 {p50:7.2f} ms, p99 {p99:7.2f} ms, most {most:8.2f} ms"
        speed = self._size / MEGABYTE / statistics.median(self.measured.reading)
        yield f"  the reader got {speed:,.0f} MB/s"


def evict(path: Path) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def disk_speed(folder: Path) -> str:
    """What reads of this machine's disk take."""
    path, size = folder / "probe", 256 * MEGABYTE
    with path.open("wb") as file:
        for _ in range(size // MEGABYTE):
            file.write(random.randbytes(MEGABYTE))
    evict(path)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    took = []
    for _ in range(PROBES):
        began = time.perf_counter()
        os.pread(descriptor, 4096, random.randrange(size // 4096) * 4096)
        took.append(1e3 * (time.perf_counter() - began))
    os.close(descriptor)
    evict(path)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(MEGABYTE):
            pass
    speed = size / MEGABYTE / (time.perf_counter() - began)
    path.unlink()
    cuts = statistics.quantiles(took, n=100)
    return (
        f"the disk: a page at random p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms;"
        f" in order {speed:,.0f} MB/s"
    )


class SlowDisk(Checkout):
    """Runs what a checkout has installed on a disk of so many MB in a second."""

    def __init__(self, folder: Path, speed: float) -> None:
        super().__init__(folder)
        self._speed = speed

    def popen(self, command: Sequence[str], **options: Any) -> Any:
        """Start `minibroker` with the checkout's interpreter."""
        script = str(Path(__file__).with_name("slow_disk.py"))
        assert command[1:3] == ["-m", "minibroker.cli"]
        return super().popen([command[0], script, str(self._speed), *command[3:]], **options)


@contextmanager
def running(folder: Path, size: int, speed: float) -> Iterator[Subject]:
    """The broker of a checkout, with a topic of so many bytes."""
    machine = SlowDisk(folder, speed) if speed else Checkout(folder)
    with TemporaryDirectory() as directory:
        option = f"log.segment.bytes={SEGMENT_BYTES}"
        broker = BrokerProcess(Path(directory), "--set", option, machine=machine)
        try:
            yield Subject(broker.wait_until_ready(), size)
        finally:
            broker.kill()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk-speed", type=float, default=0.0)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        print(disk_speed(Path(folder)), flush=True)
    with ExitStack() as stack:
        subjects = {
            name: stack.enter_context(running(folder, given.megabytes * MEGABYTE, given.disk_speed))
            for name, folder in (("here", Path(__file__).parents[2]), ("there", given.other))
        }
        for number in range(given.rounds):
            for subject in sorted(subjects.values(), key=id, reverse=bool(number % 2)):
                subject.measure()
        for name, subject in subjects.items():
            print(name)
            for line in subject.lines():
                print(line)


if __name__ == "__main__":
    main()
