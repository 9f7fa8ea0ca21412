"""What requests cost the broker of this checkout, and what its clients get, beside another one.

    python -m tests.bench.checkouts OTHER [--slices 60]

OTHER is a folder with another commit and its own environment (`make installed` there). Both brokers
run at once and are asked by turns, a hundred requests each, so that a slow moment of the machine
meets both; a ratio is the median of those of all slices. What is measured is the processor time of
all threads of a broker. Requests are of Kafka's wire, in versions that all commits serve; the first
table sends each one after the answer to the one before, the second ten at a time.

The third table is what a program with librdkafka sees: records in a second, and how long one record
takes that is sent after the acknowledgement of the one before. Its slices are some tenths of a
second long, also by turns.
"""

import argparse
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from minibroker.protocol.records.record import encode_batch
from tests.bench.rounds import processor_time_us
from tests.support.processes import BrokerProcess, ThisMachine

SLICE: Final = 100  # requests
WARM_UP: Final = 3_000
AT_ONCE: Final = 10
TOPIC: Final = struct.pack(">ih1s", 1, 1, b"t")
VALUE: Final = b"v" * 100
NOW_MS: Final = int(time.time() * 1_000)
CREATED_S: Final = 1.0  # within which a topic has a leader
CLIENT_SLICES: Final = 20
PRODUCED: Final = 60_000  # records in a slice
CONSUMED: Final = 200_000
ALONE: Final = 300  # records, each of which waits for the one before


class Checkout(ThisMachine):
    """Runs what a checkout has installed."""

    def __init__(self, folder: Path) -> None:
        self._python = str(folder / ".venv" / "bin" / "python")

    def popen(self, command: Sequence[str], **options: Any) -> Any:
        """Start a command of Python with the checkout's interpreter."""
        return super().popen([self._python, *command[1:]], **options)


def request(key: int, version: int, body: bytes) -> bytes:
    """A frame; the client's id is empty."""
    head = struct.pack(">hhih", key, version, 1, 0)
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce(count: int, acks: int) -> bytes:
    """A batch of so many records."""
    batch = bytes(encode_batch([(NOW_MS, None, VALUE, ())] * count))
    partition = struct.pack(">iii", 1, 0, len(batch)) + batch
    return request(0, 3, struct.pack(">hhi", -1, acks, 5_000) + TOPIC + partition)


def fetch(offset: int, bytes_max: int) -> bytes:
    """Records from an offset on."""
    partition = struct.pack(">iiqi", 1, 0, offset, bytes_max)
    return request(1, 4, struct.pack(">iiiib", -1, 0, 1, bytes_max, 0) + TOPIC + partition)


CREATE: Final = request(3, 4, TOPIC + b"\1")  # METADATA, which creates the topic
REQUESTS: Final = {
    "PRODUCE of 1 record": produce(1, 1),
    "PRODUCE of 160 records": produce(160, 1),
    "PRODUCE of 160 records, acks=all": produce(160, -1),
    "FETCH of 1 batch": fetch(10, 100),
    "FETCH of 64 KB": fetch(WARM_UP, 65_536),
}


class Asked:
    """A broker, and a connection to it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.address = broker.address
        host, _, port = broker.address.rpartition(":")
        self._pid = broker.pid
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def ask(self, frame: bytes, count: int, at_once: int) -> float:
        """Send a request so often. Returns the processor time that one took (us)."""
        before = processor_time_us(self._pid)
        for _ in range(count // at_once):
            self._socket.sendall(frame * at_once)
            for _ in range(at_once):
                (size,) = struct.unpack(">i", self._answers.read(4))
                self._answers.read(size)
        return (processor_time_us(self._pid) - before) / count


@contextmanager
def running(folder: Path) -> Iterator[Asked]:
    """The broker of a checkout, with a topic that has records."""
    with TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory), machine=Checkout(folder))
        try:
            asked = Asked(broker.wait_until_ready())
            asked.ask(CREATE, 1, 1)
            time.sleep(CREATED_S)
            asked.ask(REQUESTS["PRODUCE of 1 record"], WARM_UP, AT_ONCE)
            asked.ask(REQUESTS["PRODUCE of 160 records"], WARM_UP // 10, AT_ONCE)
            yield asked
        finally:
            broker.kill()


def compare(ours: Asked, theirs: Asked, slices: int, at_once: int) -> Iterator[str]:
    """A line for each request."""
    for name, frame in REQUESTS.items():
        pairs = []
        for number in range(slices):
            order = (ours, theirs) if number % 2 else (theirs, ours)
            took = {asked: asked.ask(frame, SLICE, at_once) for asked in order}
            pairs.append((took[ours], took[theirs]))
        low, ratio, high = statistics.quantiles([one / other for one, other in pairs], n=4)
        our_us, their_us = (statistics.median(each) for each in zip(*pairs, strict=True))
        yield (
            f"{name:34} {our_us:6.0f} us, there {their_us:6.0f} us: {ratio:.2f}"
            f" (half of the slices {low:.2f} to {high:.2f})"
        )


class Program:
    """A producer of librdkafka, which stays connected, and its consumers."""

    def __init__(self, address: str) -> None:
        self._address = address
        common = {"bootstrap.servers": address}
        self._producer = Producer(
            {**common, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": PRODUCED}
        )
        self.stored = 0  # records, by `produce`
        self._lone = Producer({**common, "acks": "all", "linger.ms": 0})

    def produce(self) -> float:
        """Records of 100 bytes that are acknowledged in a second."""
        began = time.perf_counter()
        for _ in range(PRODUCED):
            self._producer.produce("t", VALUE)
        self._producer.flush()
        self.stored += PRODUCED
        return PRODUCED / (time.perf_counter() - began)

    def consume(self) -> float:
        """Records that are consumed in a second, from the first one on. A consumer of its own: one
        that stays would fetch while the other program is measured."""
        own = {"group.id": "g", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self._address, **own})
        consumer.assign([TopicPartition("t", 0, 0)])
        while not (count := len(consumer.consume(1, 1.0))):
            pass
        began = time.perf_counter()
        while count < CONSUMED:
            count += len(consumer.consume(10_000, 1.0))
        took = time.perf_counter() - began
        consumer.close()
        return count / took

    def produce_alone(self) -> float:
        """How long half of the records took at most (us), one after the other."""
        took = []
        for _ in range(ALONE):
            began = time.perf_counter()
            self._lone.produce("t", VALUE)
            self._lone.flush()
            took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e6


def compare_programs(ours: Program, theirs: Program) -> Iterator[str]:
    """A line for each thing that a program does."""
    measures: dict[str, Callable[[Program], float]] = {
        "records produced in a second": Program.produce,
        "records consumed in a second": Program.consume,
        "us for a record that comes alone": Program.produce_alone,
    }
    for program in (ours, theirs):
        program.produce_alone()
        while program.stored < CONSUMED * CLIENT_SLICES:
            program.produce()
    for name, measure in measures.items():
        pairs = []
        for number in range(CLIENT_SLICES):
            order = (ours, theirs) if number % 2 else (theirs, ours)
            found = {program: measure(program) for program in order}
            pairs.append((found[ours], found[theirs]))
        low, ratio, high = statistics.quantiles([one / other for one, other in pairs], n=4)
        our, their = (statistics.median(each) for each in zip(*pairs, strict=True))
        yield (
            f"{name:34} {our:9,.0f}, there {their:9,.0f}: {ratio:.2f}"
            f" (half of the slices {low:.2f} to {high:.2f})"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--slices", type=int, default=60)
    given = parser.parse_args()
    here = Path(__file__).parents[2]
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(running(each)) for each in (here, given.other))
        for at_once in (1, AT_ONCE):
            print(f"-- {at_once} at a time; processor time of the broker, here and in the other")
            for line in compare(ours, theirs, given.slices, at_once):
                print(line, flush=True)
        print("-- a producer (acks=all) and a consumer of librdkafka, here and in the other")
        for line in compare_programs(Program(ours.address), Program(theirs.address)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
