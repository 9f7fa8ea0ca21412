"""The clients of the interoperability tests behind one small face: write, and read.

Each client is the real library or program, unmodified. What only one of them can do is tested with
the library itself, in a file of its own.
"""

import asyncio
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka
import pytest

from minibroker.client import NewTopic
from minibroker.client.blocking import Admin, Consumer, Producer

READ_S_MAX: Final = 30.0
WRITE_S_MAX: Final = 30.0
# kafka-python and aiokafka ask only brokers that were live when they last asked (docs/kafka.md):
# this is less than the time between two kills.
METADATA_AGE_MS: Final = 1000
ANY_PARTITION: Final = -1
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
KCAT: Final = shutil.which("kcat")
NEEDS_KCAT: Final = pytest.mark.skipif(
    KCAT is None and "CI" not in os.environ, reason="kcat is not installed"
)


class Record(NamedTuple):
    """What is sent and must be read again. A client that cannot set a time leaves it to itself."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


class Settings(NamedTuple):
    """Of a producer. `acks` is -1 for all."""

    acks: int = -1
    is_idempotent: bool = False
    compression: str = "none"


class Place(NamedTuple):
    """Of a record. The offset is -1 where the client was not told."""

    partition: int
    offset: int


class Client(Protocol):
    """A client that writes and reads. `keeps_timestamps`: it can say the time of a record."""

    name: str
    keeps_timestamps: bool

    def write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        """Send the records in order, and return once all are acknowledged.

        `ANY_PARTITION` leaves the partitions to the client. The answer is where each record lies;
        it is empty if the client does not tell. `records` may take its time to give the next one.
        """

    def read(self, bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Record]]:
        """So many records of each partition, from its beginning on."""


class _Read:
    """Records by partition, until all that are wanted are there."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.records: dict[int, list[Record]] = defaultdict(list)
        self._missing = sum(counts.values())

    def add(self, partition: int, *parts: Any) -> None:
        value, key, headers, timestamp_ms = parts
        self.records[partition].append(Record(value, key, tuple(headers or ()), timestamp_ms))
        self._missing -= 1

    @property
    def is_whole(self) -> bool:
        return self._missing <= 0


class Ours:
    """minibroker's own client, on the msgpack wire."""

    name = "minibroker"
    keeps_timestamps = True

    def write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        """With the blocking producer, which tells of batches; so this does not."""
        assert partition != ANY_PARTITION
        with Producer(
            bootstrap,
            acks=how.acks,
            enable_idempotence=how.is_idempotent,
            compression_type=how.compression,
        ) as producer:
            for record in records:
                producer.send(
                    topic, record.value, record.key, record.headers, partition, record.timestamp_ms
                )
            producer.flush()
        return []

    def read(self, bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Record]]:
        """With the blocking consumer."""
        read = _Read(counts)
        with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign((topic, partition) for partition in counts)
            while not read.is_whole:
                found = consumer.poll(READ_S_MAX)
                assert found, "the records do not come"
                for one in found:
                    read.add(one.partition, one.value, one.key, one.headers, one.timestamp)
        return read.records


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"
    keeps_timestamps = True

    def write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        """Each record's future tells whether it was acknowledged."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if how.acks == -1 else how.acks,
            enable_idempotence=how.is_idempotent,
            compression_type=None if how.compression == "none" else how.compression,
            linger_ms=20,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=None if partition == ANY_PARTITION else partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(WRITE_S_MAX)
            told = [future.get(WRITE_S_MAX) for future in sent]
        finally:
            producer.close()
        return [
            Place(one.partition, one.offset) if one else Place(partition, -1)  # acks=0
            for one in told
        ]

    def read(self, bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Record]]:
        """By assignment."""
        read = _Read(counts)
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",  # the default of librdkafka, and so of kcat
            consumer_timeout_ms=READ_S_MAX * 1000,
        )
        try:
            consumer.assign([kafka.TopicPartition(topic, partition) for partition in counts])
            for one in consumer:
                read.add(one.partition, one.value, one.key, one.headers, one.timestamp)
                if read.is_whole:
                    break
        finally:
            consumer.close()
        return read.records


class AioKafka:
    """aiokafka, in an event loop of its own for each call."""

    name = "aiokafka"
    keeps_timestamps = True

    def write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        """As an asyncio program would."""
        return asyncio.run(self._write(bootstrap, topic, partition, records, how))

    async def _write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if how.acks == -1 else how.acks,
            enable_idempotence=how.is_idempotent,
            compression_type=None if how.compression == "none" else how.compression,
            linger_ms=20,
            metadata_max_age_ms=METADATA_AGE_MS,
        ) as producer:
            sent = []
            for record in records:
                future = await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=None if partition == ANY_PARTITION else partition,
                    timestamp_ms=record.timestamp_ms,
                )
                sent.append(future)
                await asyncio.sleep(0)  # the library's own tasks have their turn
            told = await asyncio.wait_for(asyncio.gather(*sent), WRITE_S_MAX)
        return [
            Place(one.partition, one.offset) if one else Place(partition, -1)  # acks=0
            for one in told
        ]

    def read(self, bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Record]]:
        """By assignment."""
        return asyncio.run(asyncio.wait_for(self._read(bootstrap, topic, counts), READ_S_MAX))

    async def _read(
        self, bootstrap: str, topic: str, counts: dict[int, int]
    ) -> dict[int, list[Record]]:
        read = _Read(counts)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in counts])
        async with consumer:
            while not read.is_whole:
                one = await consumer.getone()
                read.add(one.partition, one.value, one.key, one.headers, one.timestamp)
        return read.records


class Confluent:
    """confluent-kafka: the newest librdkafka."""

    name = "confluent-kafka"
    keeps_timestamps = True

    def write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        """Each record's report tells whether it was acknowledged."""
        places: dict[int, Place] = {}
        failed: list[object] = []

        def on_delivery(number: int, error: object, message: Any) -> None:
            places[number] = Place(message.partition(), message.offset())
            if error is not None:
                failed.append(error)

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": how.acks,
                "enable.idempotence": how.is_idempotent,
                "compression.type": how.compression,
                "linger.ms": 20,
            }
        )
        for number, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=partition,
                timestamp=record.timestamp_ms,
                on_delivery=partial(on_delivery, number),
            )
        assert producer.flush(WRITE_S_MAX) == 0, "not acknowledged in time"
        assert not failed, failed
        return [places[number] for number in sorted(places)]

    def read(self, bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Record]]:
        """By assignment; the library asks for a group's name even so."""
        read = _Read(counts)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            beginning = confluent_kafka.OFFSET_BEGINNING
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, each, beginning) for each in counts]
            )
            while not read.is_whole:
                one = consumer.poll(READ_S_MAX)
                assert one is not None, "the records do not come"
                assert one.error() is None, one.error()
                read.add(one.partition(), one.value(), one.key(), one.headers(), one.timestamp()[1])
        finally:
            consumer.close()
        return read.records


class Kcat:
    """kcat of Debian, with an old librdkafka. It sends one record a run, for only so can each have
    headers and any bytes; the time of a record is that of the run."""

    name = "kcat"
    keeps_timestamps = False

    def write(
        self, bootstrap: str, topic: str, partition: int, records: Iterable[Record], how: Settings
    ) -> list[Place]:
        """A file is one record, whatever its bytes; behind a key, `-Z` makes a null."""
        options: list[str | bytes] = ["-P", "-b", bootstrap, "-t", topic, "-p", str(partition)]
        options += ["-z", how.compression, "-X", f"acks={how.acks}"]
        options += ["-X", f"enable.idempotence={str(how.is_idempotent).lower()}"]
        for record in records:
            key: list[str | bytes] = [] if record.key is None else ["-k", record.key]
            headers = [part for pair in record.headers for part in ("-H", _header(*pair))]
            if record.value is None:
                assert record.key is not None, "kcat sends no record that is empty altogether"
                kcat(*options, *headers, "-Z", "-K", ":", stdin=record.key + b":\n")
                continue
            with NamedTemporaryFile() as file:
                file.write(record.value)
                file.flush()
                kcat(*options, *key, *headers, file.name)
        return []

    def read(self, bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Record]]:
        """A line of lengths, then the bytes."""
        read = _Read(counts)
        for partition, count in counts.items():
            output = kcat("-C", "-b", bootstrap, "-t", topic, "-p", str(partition), "-q",
                          "-o", "beginning", "-c", str(count),
                          "-f", "%T %K %S\n%h\n%k%s")  # fmt: skip
            for _ in range(count):
                head, headers, output = output.split(b"\n", 2)
                timestamp_ms, key_size, size = map(int, head.split())
                key, output = _taken(output, key_size)
                value, output = _taken(output, size)
                read.add(partition, value, key, _headers(headers), timestamp_ms)
            assert not output
        return read.records


def kcat(*arguments: str | bytes, stdin: bytes = b"", timeout_s: float = READ_S_MAX) -> bytes:
    """One run of kcat to its end; its output."""
    assert KCAT is not None, "kcat is not installed"
    done = subprocess.run(
        [KCAT, *arguments], input=stdin, capture_output=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def _taken(data: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, data) if size < 0 else (data[:size], data[size:])


def _header(name: str, value: bytes) -> bytes:
    return name.encode() + b"=" + value


def _headers(text: bytes) -> list[tuple[str, bytes]]:
    pairs = (part.split(b"=", 1) for part in text.split(b",") if part)
    return [(name.decode(), value) for name, value in pairs]


def kcat_versions() -> tuple[str, str]:
    """Of kcat, and of its librdkafka."""
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", kcat("-V").decode())
    assert found is not None
    return found[1], found[2]


LIBRARIES: Final[tuple[Client, ...]] = (KafkaPython(), AioKafka(), Confluent())
FOREIGN: Final = (*LIBRARIES, pytest.param(Kcat(), marks=NEEDS_KCAT))
CLIENTS: Final = (Ours(), *FOREIGN)


def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """By our own admin client, for tests about something else. The records of these tests have
    old times, for which retention would take them at once."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, partitions, configs={"retention.ms": "-1"}))
