"""A program that transforms records in transactions, and is killed in the middle of them.

The topic NAME-in has words as keys; the value of a record is how many records of its word came
before it. The program adds one to the values, or counts the records of each word. So in NAME-out
each word has the numbers from one on, each once and in order, whoever was killed meanwhile.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from minibroker.client import NewTopic, TopicPartition
from minibroker.client.blocking import Admin, Consumer, Producer
from tests.interop.foreign_process import LOOK_EVERY_S, WAIT_S_MAX, Command, ForeignProcess
from tests.interop.replicas import wait_until_in_sync
from tests.support.processes import ClusterProcesses

# What can be killed, beside the leader of a topic's partition 0, by the topic's name.
APPLICATION: Final = "the application"
DIRECTORY: Final = "its directory"
OUTPUT: Final = "the output"
OF_PROGRAM: Final = (APPLICATION, DIRECTORY)

PARTITIONS: Final = 3
WORDS: Final = tuple(b"word-%d" % n for n in range(20))
BURST: Final = 100  # records that are written at once; of each word as many
LEFT_MAX: Final = 500  # records that are not yet transformed
PAUSE_S: Final = 0.01  # between two looks
READ_S_MAX: Final = 30.0
ENDS_MAX: Final = 10  # of a program by itself: it does not come up any more
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",  # one coordinator of all groups
    "transaction.state.log.num.partitions": "1",  # and of all transactions
    # A program that has lost its directory may forget which transactions it has left open.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}
Numbers = dict[bytes, list[int]]


class Supervised:
    """A program that is started again if it ends by itself, which `ends` counts."""

    def __init__(self, command: Callable[[], list[str]], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: ForeignProcess | None = None
        self.ends = 0

    def start(self) -> None:
        """Begin; after `kill` or before."""
        self._process = ForeignProcess(self._command(), self._log)

    @property
    def process(self) -> ForeignProcess:
        """The process of now."""
        assert self._process is not None, "it was not started"
        return self._process

    def kill(self) -> None:
        """`kill -9`; it is not started again by itself."""
        if self._process is not None:
            self._process.kill()

    def wait_until(self, is_so: Callable[[], bool], text: str) -> None:
        """Return once it is so; fail after `WAIT_S_MAX`."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not is_so():
            if not self.process.is_running:
                self.ends += 1
                assert self.ends <= ENDS_MAX, f"{text}: it ends again\n{self.process.output}"
                self.start()
            assert time.monotonic() < deadline, f"{text}: not in time\n{self.process.output}"
            time.sleep(PAUSE_S)


class Trial:
    """A program at work. It is made by `trial`."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        name: str,
        command: Command,
        folder: Path,
        clients: tuple[Admin, Producer, Consumer, Consumer],
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._admin, self._producer, self._committed, self._all = clients
        self._down: set[int] = set()
        self._directories = 1
        self._written = 0
        self._read = 0
        self._places = [TopicPartition(f"{name}-out", number) for number in range(PARTITIONS)]
        self._committed.assign(self._places)
        self.program = Supervised(
            lambda: command(cluster.addresses, name, folder / f"directory-{self._directories}"),
            folder / "program.log",
        )

    def __str__(self) -> str:
        ends = self.program.ends
        return f"{self._name}: {self._written} records; it ended {ends} times by itself"

    @property
    def expected(self) -> Numbers:
        """The numbers of each word in the output."""
        count = self._written // len(WORDS)
        return {word: list(range(1, count + 1)) for word in WORDS}

    def write(self) -> None:
        """Write records, and wait until they are acknowledged."""
        for number in range(self._written, self._written + BURST):
            place, word = divmod(number, len(WORDS))
            self._producer.send(f"{self._name}-in", b"%d" % place, WORDS[word])
        self._producer.flush()
        self._written += BURST

    def kill_while_open(self, killed: Sequence[str]) -> None:
        """Kill these in the middle of a transaction whose records are in the log. See that the
        program goes on without the brokers; `heal` starts them again."""
        self.heal()
        wait_until_in_sync(self._admin)
        topics = [one for one in killed if one not in OF_PROGRAM]
        names = (f"{self._name}-out" if one == OUTPUT else one for one in topics)
        described = self._admin.describe_topics(*names) if topics else []
        leaders = {topic.partitions[0].leader_id for topic in described}
        self._write_until_open()
        if APPLICATION in killed:
            self._pause_while_open()
            self.program.kill()
        self._cluster.kill(*leaders)
        print(f"{self._name}: kill -9 of {', '.join(killed)}; brokers {leaders or 'none'}")
        self._down = leaders
        self._directories += DIRECTORY in killed
        if APPLICATION in killed:
            self.program.start()
        self.write()
        self.finish()

    def heal(self) -> None:
        """Start the brokers that were killed last."""
        if self._down:
            self._cluster.start(*self._down)
        self._down = set()

    def finish(self) -> None:
        """Until all that was written is transformed, and its offsets are committed."""
        self.program.wait_until(self._is_all_read, "all records")
        self.program.wait_until(self._is_all_committed, "the offsets")

    def _is_all_read(self) -> bool:
        return self._count_left() <= 0

    def _count_left(self) -> int:
        """Count the records that are not yet transformed, for a reader of committed records."""
        self._read += len(self._committed.poll(0))
        return self._written - self._read

    def _is_all_committed(self) -> bool:
        places = [TopicPartition(f"{self._name}-in", number) for number in range(PARTITIONS)]
        offsets = self._admin.committed_offsets(self._name)
        there = {place: offsets[place].offset for place in places if place in offsets}
        return there == self._all.end_offsets(*places)

    def _write_until_open(self) -> None:
        def is_open() -> bool:
            if self._count_left() < LEFT_MAX:
                self.write()
            return self._is_open()

        self.program.wait_until(is_open, "a transaction")

    def _pause_while_open(self) -> None:
        while True:
            self.program.process.pause()
            time.sleep(LOOK_EVERY_S)  # so that a commit that it has sent is done
            if self._is_open():
                return
            self.program.process.resume()
            self._write_until_open()

    def _is_open(self) -> bool:
        """Whether a transaction has records in the log. The last stable offset is asked for last:
        what is behind it then was there before."""
        ends = self._all.end_offsets(*self._places)
        stable = self._committed.end_offsets(*self._places)
        return any(stable[place] < ends[place] for place in self._places)


@contextmanager
def trial(cluster: ClusterProcesses, name: str, command: Command, folder: Path) -> Iterator[Trial]:
    """A program that works; it is killed when the block ends. Ledgers of what was written and of
    what a reader of committed records read are `*.jsonl` in the folder."""
    bootstrap = cluster.addresses
    folder.mkdir()
    with (
        Admin(bootstrap) as admin,
        Producer(bootstrap, ledger=folder / "written.jsonl") as producer,
        Consumer(
            bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            ledger=folder / "read.jsonl",
        ) as committed,
        Consumer(bootstrap) as everything,
    ):
        admin.create_topics(*(NewTopic(f"{name}-{end}", PARTITIONS, 3) for end in ("in", "out")))
        made = Trial(cluster, name, command, folder, (admin, producer, committed, everything))
        try:
            made.program.start()
            made.write()
            made.finish()
            yield made
        finally:
            made.program.kill()


def read_to_end(bootstrap: str, topic: str, level: str) -> Numbers:
    """The values of each key, by a foreign reader from the beginning to the end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-{level}",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    found: Numbers = defaultdict(list)
    ended = set[Any]()
    while len(ended) < PARTITIONS:
        one = consumer.poll(READ_S_MAX)
        assert one is not None, "the records do not come"
        if one.error() is None:
            found[one.key()].append(int(one.value()))
        else:
            assert one.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, one.error()
            ended.add(one.partition())
    consumer.close()
    return dict(found)
