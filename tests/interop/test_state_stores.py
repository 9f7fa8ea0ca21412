"""Programs with state in a compacted topic: Kafka Streams, Faust and Quix Streams.

Each counts the records of some words. Then the program is killed, and a broker; the next process
has an empty directory, so all that it knows of earlier records comes from the compacted topic.
`make soak` runs the tests: the packages come from registries, and Kafka Streams needs Java.
"""

from pathlib import Path
from typing import Final

import pytest

from minibroker.cli.log.dump import entries_of
from minibroker.client import NewTopic
from minibroker.client.blocking import Admin, Consumer, Producer
from tests.interop.foreign_process import (
    NEEDS_JAVA,
    Command,
    ForeignProcess,
    foreign_process,
    of_java,
    with_package,
)
from tests.support.processes import ClusterProcesses, running_cluster

WORDS: Final = tuple(b"word-%d" % n for n in range(20))
ROUND: Final = 1000  # records that are written at once
PARTITIONS: Final = 4
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    # So that the topics of changes are compacted while they are used.
    "log.roll.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
}
FAUST_IS_READY: Final = "[^Worker]: Ready"


class Counts:
    """What a program has counted, from the topic that it writes to."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        consumer.assign((topic, partition) for partition in range(PARTITIONS))
        self.found = dict.fromkeys(WORDS, 0)

    def read(self) -> int:
        """Read what is new; return the sum."""
        for record in self._consumer.poll(0.1):
            assert record.key is not None
            assert record.value is not None
            self.found[record.key] = int(record.value)
        return sum(self.found.values())

    def wait_for(self, program: ForeignProcess, count: int) -> None:
        """Wait until so many are counted."""
        program.wait_until(lambda: self.read() >= count, f"{count} records")


def write_round(bootstrap: str, topic: str, number: int) -> None:
    """Write words in turn; the values rise."""
    with Producer(bootstrap) as producer:
        for n in range(number * ROUND, (number + 1) * ROUND):
            producer.send(topic, b"%d" % n, WORDS[n % len(WORDS)])


def is_compacted(cluster: ClusterProcesses, topic: str) -> bool:
    """Whether some broker has compacted a partition of a topic."""
    return any(
        "compacted" in entry
        for path in cluster.layout.root.glob(f"broker-*/{topic}-*/*.log")
        for entry in entries_of(path, with_records=False)
    )


def committed(bootstrap: str, group: str, topic: str) -> int:
    """Return the sum of a group's offsets in a topic."""
    with Admin(bootstrap) as admin:
        offsets = admin.committed_offsets(group)
    return sum(each.offset for name, each in offsets.items() if name.topic == topic)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param("streams", of_java("WordCount.java"), marks=NEEDS_JAVA),
        ("faust", with_package("faust-streaming==0.15.3", "faust_table.py")),
        ("quix", with_package("quixstreams==3.28.1", "quix_table.py")),
    ],
    ids=["streams", "faust", "quix"],
)
def test_counts_survive_kills(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, command: Command
) -> None:
    """Of the program in the middle of its work, and of a broker.

    Faust is at rest when it is killed, and gets records when it has restored its table: it skips
    some of those that it fetches before, with Apache Kafka, too.
    """
    if name == "streams":
        request.getfixturevalue("kafka_libraries")
    words, counts = f"{name}-words", f"{name}-counts"
    with running_cluster(tmp_path / "brokers", 3, SETTINGS) as cluster:
        bootstrap = cluster.addresses
        with Admin(bootstrap) as admin:
            admin.create_topics(*(NewTopic(topic, PARTITIONS, 3) for topic in (words, counts)))
        is_faust = name == "faust"
        with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            seen = Counts(consumer, counts)
            first, second = tmp_path / "first", tmp_path / "second"
            with foreign_process(command(bootstrap, name, first), tmp_path / "1.log") as program:
                if is_faust:
                    program.wait_until(lambda: FAUST_IS_READY in program.output, "the start")
                write_round(bootstrap, words, 0)
                seen.wait_for(program, ROUND)
                write_round(bootstrap, words, 1)
                seen.wait_for(program, 2 * ROUND if is_faust else ROUND + 1)
                if is_faust:
                    program.wait_until(
                        lambda: committed(bootstrap, name, words) == 2 * ROUND, "the last commit"
                    )
                program.kill()
            cluster.kill(1)
            with foreign_process(command(bootstrap, name, second), tmp_path / "2.log") as program:
                if is_faust:
                    program.wait_until(lambda: FAUST_IS_READY in program.output, "the start")
                write_round(bootstrap, words, 2)
                seen.wait_for(program, 2 * ROUND + 1)
                cluster.start(1)
                write_round(bootstrap, words, 3)
                seen.wait_for(program, 4 * ROUND)
                with Admin(bootstrap) as admin:
                    [changes] = [name for name in admin.list_topics() if "changelog" in name]
                program.wait_until(lambda: is_compacted(cluster, changes), "a compaction")
                seen.read()
        assert seen.found == dict.fromkeys(WORDS, 4 * ROUND // len(WORDS))
