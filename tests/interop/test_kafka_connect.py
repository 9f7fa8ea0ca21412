"""Kafka Connect in distributed mode, and MirrorMaker 2, which is made of it.

Connect keeps its connectors, their offsets and their states in three compacted topics. `make soak`
runs the tests: they need Java and Maven.
"""

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from minibroker.client import NewTopic
from minibroker.client.blocking import Admin, Consumer
from tests.interop.clients import CODECS, Confluent, Record, Settings
from tests.interop.foreign_process import NEEDS_JAVA, ForeignProcess, foreign_process
from tests.support.apache_kafka import java
from tests.support.processes import free_base_port, running_broker, running_cluster

WORKER: Final = "org.apache.kafka.connect.cli.ConnectDistributed"
MIRROR_MAKER: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
CONNECT_TOPICS: Final = ("connect-configs", "connect-offsets", "connect-statuses")
TOPIC: Final = "words"
LINES: Final = 1000  # of the file, in each round
PARTITIONS: Final = 3
# So that Connect's topics are compacted while they are used.
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "log.roll.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
}


def write_properties(path: Path, properties: dict[str, object]) -> str:
    """Write a file of properties; return its name."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def worker_properties(bootstrap: str, port: int) -> dict[str, object]:
    """Those of a worker, with the default names and counts of its topics."""
    strings = "org.apache.kafka.connect.storage.StringConverter"
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "config.storage.topic": CONNECT_TOPICS[0],
        "offset.storage.topic": CONNECT_TOPICS[1],
        "status.storage.topic": CONNECT_TOPICS[2],
        "key.converter": strings,
        "value.converter": strings,
        "listeners": f"http://127.0.0.1:{port}",
        "offset.flush.interval.ms": 500,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
    }


class Rest:
    """Connect's REST interface."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """Return what is there; None while the worker does not answer or knows nothing of it."""
        try:
            answer = httpx.get(self._url + path, timeout=10)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    def put(self, path: str, value: dict[str, object]) -> None:
        """Create or change what is there."""
        httpx.put(self._url + path, json=value, timeout=30).raise_for_status()

    def wait_for(self, worker: ForeignProcess, path: str, wanted: Any) -> None:
        """Wait until just that is there."""
        worker.wait_until(lambda: self.get(path) == wanted, f"{path}: {wanted}")


def write_lines(path: Path, round_number: int) -> None:
    """Append lines to a file."""
    with path.open("a") as file:
        for number in range(round_number * LINES, (round_number + 1) * LINES):
            file.write(f"line {number}\n")


@pytest.mark.soak
@NEEDS_JAVA
def test_connectors_survive_kills(kafka_libraries: None, tmp_path: Path) -> None:
    """A source and a sink of files, created by REST, and where they were; a worker is killed, and a
    broker."""
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    kind = {"tasks.max": "1"}
    from_file = kind | {"connector.class": "FileStreamSource", "file": str(source), "topic": TOPIC}
    to_file = kind | {"connector.class": "FileStreamSink", "file": str(sink), "topics": TOPIC}
    with running_cluster(tmp_path / "brokers", 3, SETTINGS) as cluster:
        port = free_base_port(1)
        rest = Rest(port)
        properties = worker_properties(cluster.addresses, port)
        command = java(WORKER, write_properties(tmp_path / "worker.properties", properties))
        log = tmp_path / "worker.log"
        write_lines(source, 0)
        with foreign_process(command, log) as worker:
            rest.wait_for(worker, "/connectors", [])
            rest.put("/connectors/source/config", from_file)
            rest.put("/connectors/sink/config", to_file)
            rest.wait_for(worker, "/connectors/source/offsets", offsets(source))
            worker.kill()
        cluster.kill(1)
        write_lines(source, 1)
        with foreign_process(command, log) as worker:
            rest.wait_for(worker, "/connectors/source/config", from_file | {"name": "source"})
            rest.wait_for(worker, "/connectors/source/offsets", offsets(source))
            cluster.start(1)
            write_lines(source, 2)
            rest.wait_for(worker, "/connectors/source/offsets", offsets(source))
            worker.wait_until(
                lambda: {*sink.read_text().splitlines()} >= {*source.read_text().splitlines()},
                "all lines",
            )
        with Admin(cluster.addresses) as admin:
            described = admin.describe_configs(*CONNECT_TOPICS)
        for configs in described.values():
            assert ("cleanup.policy", "compact") in [(each.name, each.value) for each in configs]
    lines = sink.read_text().splitlines()
    # At least once, in order; what the killed sink had not committed comes again.
    assert [*dict.fromkeys(lines)] == source.read_text().splitlines()


def offsets(source: Path) -> dict[str, object]:
    """What Connect says of a source that has read all of a file."""
    partition = {"filename": str(source)}
    position = {"position": source.stat().st_size}
    return {"offsets": [{"partition": partition, "offset": position}]}


def read_all(bootstrap: str, topic: str) -> list[tuple[object, ...]]:
    """Return the records that a topic has now, with their partitions and offsets."""
    found: list[tuple[object, ...]] = []
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign((topic, partition) for partition in range(PARTITIONS))
        while records := consumer.poll(2):
            found += (tuple(record)[1:] for record in records)
    return sorted(found, key=lambda record: record[:2])


@pytest.mark.soak
@NEEDS_JAVA
def test_a_topic_is_mirrored(kafka_libraries: None, tmp_path: Path) -> None:
    """From one broker to another, record by record, with its settings. MirrorMaker is killed, and
    goes on where it was: what it had not committed comes again, at later offsets."""
    settings = [part for pair in SETTINGS.items() for part in ("--set", "=".join(pair))]
    with (
        running_broker(tmp_path / "one", *settings) as one,
        running_broker(tmp_path / "two", *settings) as two,
    ):
        configs = {"retention.ms": "-1", "max.message.bytes": "500000"}
        with Admin(one.address) as admin:
            admin.create_topics(NewTopic(TOPIC, PARTITIONS, configs=configs))
        properties = {
            "clusters": "one, two",
            "one.bootstrap.servers": one.address,
            "two.bootstrap.servers": two.address,
            "one->two.enabled": "true",
            "one->two.topics": TOPIC,
            "two->one.enabled": "false",
            "replication.factor": 1,
            "checkpoints.topic.replication.factor": 1,
            "heartbeats.topic.replication.factor": 1,
            "offset-syncs.topic.replication.factor": 1,
            "offset.storage.replication.factor": 1,
            "status.storage.replication.factor": 1,
            "config.storage.replication.factor": 1,
            "sync.topic.configs.interval.seconds": 1,
            "two.offset.flush.interval.ms": 500,
        }
        command = java(MIRROR_MAKER, write_properties(tmp_path / "mm2.properties", properties))
        log = tmp_path / "mm2.log"
        mirrored = f"one.{TOPIC}"
        for round_number in range(2):
            write_records(one.address, round_number)
            wanted = read_all(one.address, TOPIC)
            with foreign_process(command, log) as mirror, Admin(two.address) as admin:
                mirror.wait_until(lambda: mirrored in admin.list_topics(), "the topic")
                wait_for_records(mirror, two.address, mirrored, len(wanted))
            found = read_all(two.address, mirrored)
            if not round_number:
                assert found == wanted
        assert without_repetitions(found) == without_repetitions(wanted)
        with Admin(two.address) as admin:
            [described] = admin.describe_configs(mirrored).values()
    values = {each.name: each.value for each in described}
    assert {name: values[name] for name in configs} == configs


def wait_for_records(mirror: ForeignProcess, bootstrap: str, topic: str, count: int) -> None:
    """Wait until so many different records are there."""
    mirror.wait_until(
        lambda: len(without_repetitions(read_all(bootstrap, topic))) >= count, "all records"
    )


def without_repetitions(records: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return different records in their order, without their offsets."""
    found = ((partition, str(rest)) for partition, _, *rest in records)
    return [*dict.fromkeys(found)]


def write_records(bootstrap: str, round_number: int) -> None:
    """With each compression, with headers, and without keys or values."""
    for codec in CODECS:
        headers = (("codec", codec.encode()), ("", b""))
        records = [
            Record(None if n == 7 else b"%d" % n, b"key" if n % 2 else None, headers)
            for n in range(round_number * 100, round_number * 100 + 50)
        ]
        for partition in range(PARTITIONS):
            Confluent().write(bootstrap, TOPIC, partition, records, Settings(compression=codec))
