"""Groups of each library that work while brokers are killed, and what they were told meanwhile.

A group has a producer and two members of the same library, and a topic. Its account holds what was
acknowledged, read and committed, and judges each record as it comes: whoever begins somewhere in a
partition begins at or above what was committed there. Nobody helps a client: none is made anew.

kcat tells of no commits, and sends one record a run. Its members read what confluent-kafka sends,
and the broker is asked what they have committed.
"""

import asyncio
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import aiokafka
import confluent_kafka
import kafka
from kafka.errors import KafkaConnectionError, KafkaError

from minibroker.client.blocking import Admin
from tests.interop.clients import (
    ANY_PARTITION,
    KCAT,
    METADATA_AGE_MS,
    AioKafka,
    Client,
    Confluent,
    KafkaPython,
    Place,
    Record,
    Settings,
)
from tests.interop.members import Member, commit_beginnings

Line: TypeAlias = dict[str, Any]

PARTITIONS: Final = 3
MEMBERS: Final = 2
BURST: Final = 10  # records that are sent at once
PAUSE_S: Final = 0.05  # before the next ones
POLL_S: Final = 0.1
POLL_RECORDS: Final = 100
LOOK_EVERY_S: Final = 0.1
PROGRESS_S_MAX: Final = 60.0
KCAT_LOST_ALL: Final = "All broker connections are down"
END_S_MAX: Final = 20.0
ENOUGH: Final = 200  # records that a group reads to show that it goes on


class Account:
    """What the clients of one group were told; each of its methods may be called by any thread."""

    def __init__(self) -> None:
        self.read: Counter[Place] = Counter()
        self.values: dict[Place, bytes] = {}
        self.committed: dict[int, int] = {}  # partition: the highest that a member was told
        self._lock = threading.Lock()

    def on_records(self, positions: dict[int, int], records: Sequence[tuple[Place, bytes]]) -> None:
        """A member was given these; `positions` is where it goes on, and is kept by it."""
        with self._lock:
            for place, value in records:
                if positions.get(place.partition) != place.offset:
                    committed = self.committed.get(place.partition, 0)
                    assert place.offset >= committed, f"{place}: {committed} was committed"
                positions[place.partition] = place.offset + 1
                assert self.values.setdefault(place, value) == value, f"{place} was two records"
                self.read[place] += 1

    def on_committed(self, positions: dict[int, int]) -> None:
        """A member was told that these are committed."""
        with self._lock:
            for partition, offset in positions.items():
                self.committed[partition] = max(offset, self.committed.get(partition, 0))

    def commits(self) -> dict[int, int]:
        """Those that members were told of until now."""
        with self._lock:
            return dict(self.committed)


def next_offsets(records: Sequence[tuple[Place, bytes]]) -> dict[int, int]:
    """By partition, what a commit of these records says."""
    return {place.partition: place.offset + 1 for place, _ in records}


def run_kafka_python(member: Member, bootstrap: str, group: str, account: Account) -> None:
    """kafka-python: a commit that is refused is left to the next one, and so is a failed poll."""
    positions: dict[int, int] = {}
    consumer = kafka.KafkaConsumer(
        group,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
        max_poll_records=POLL_RECORDS,
        metadata_max_age_ms=METADATA_AGE_MS,
    )
    while not member.leaving.is_set():
        try:
            polled = consumer.poll(timeout_ms=POLL_S * 1000)
        except KafkaConnectionError:  # it asked a dead broker for metadata
            continue
        for found in polled.values():
            records = [(Place(one.partition, one.offset), one.value) for one in found]
            account.on_records(positions, records)
            try:
                consumer.commit()
            except KafkaError:
                continue
            account.on_committed(next_offsets(records))
    consumer.close()


def run_aiokafka(member: Member, bootstrap: str, group: str, account: Account) -> None:
    """aiokafka: a commit that is refused is left to the next one."""

    async def run() -> None:
        positions: dict[int, int] = {}
        async with aiokafka.AIOKafkaConsumer(
            group,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=METADATA_AGE_MS,
        ) as consumer:
            while not member.leaving.is_set():
                found = await consumer.getmany(
                    timeout_ms=int(POLL_S * 1000), max_records=POLL_RECORDS
                )
                records = [
                    (Place(one.partition, one.offset), one.value)
                    for several in found.values()
                    for one in several
                ]
                account.on_records(positions, records)
                if not records:
                    continue
                try:
                    await consumer.commit()
                except aiokafka.errors.KafkaError:
                    continue
                account.on_committed(next_offsets(records))

    asyncio.run(run())


def run_confluent(member: Member, bootstrap: str, group: str, account: Account) -> None:
    """confluent-kafka: a commit that is refused is left to the next one. Of errors that it goes on
    after by itself it tells, too; those that end a consumer are `fatal`."""
    positions: dict[int, int] = {}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
        }
    )
    consumer.subscribe([group])
    while not member.leaving.is_set():
        polled = consumer.consume(POLL_RECORDS, POLL_S)
        errors = [one.error() for one in polled if one.error() is not None]
        assert not any(error.fatal() for error in errors), errors
        found = [one for one in polled if one.error() is None]
        records = [(Place(one.partition(), one.offset()), one.value()) for one in found]
        account.on_records(positions, records)
        if not records:
            continue
        offsets = [
            confluent_kafka.TopicPartition(group, partition, offset)
            for partition, offset in next_offsets(records).items()
        ]
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException:
            continue
        account.on_committed({one.partition: one.offset for one in done if one.error is None})
    consumer.close()


def run_kcat(member: Member, bootstrap: str, group: str, account: Account) -> None:
    """A process, which commits by itself and prints a line a record. kcat ends when it has lost all
    brokers at once; then it is started again, as a script would."""
    while not member.leaving.is_set():
        told = _run_kcat_once(member, bootstrap, group, account)
        assert member.leaving.is_set() or KCAT_LOST_ALL in told, told


def _run_kcat_once(member: Member, bootstrap: str, group: str, account: Account) -> str:
    """Until it ends by itself or the member leaves; what it said of errors."""
    assert KCAT is not None
    positions: dict[int, int] = {}
    options = [
        "auto.offset.reset=earliest",
        "auto.commit.interval.ms=100",
        "session.timeout.ms=6000",
        "heartbeat.interval.ms=300",
    ]
    settings = [part for option in options for part in ("-X", option)]
    command = [KCAT, "-b", bootstrap, *settings, "-q", "-u", "-f", "%p %o %s\n", "-G", group, group]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        is_over = threading.Event()

        def stop() -> None:
            while not is_over.wait(POLL_S):
                if member.leaving.is_set():
                    process.terminate()
                    return

        stopper = threading.Thread(target=stop)
        stopper.start()
        for line in process.stdout:
            partition, offset, value = line.rstrip(b"\n").split(b" ", 2)
            account.on_records(positions, [(Place(int(partition), int(offset)), value)])
        told = process.stderr.read().decode(errors="replace")
        is_over.set()
        stopper.join()
    return told


class Kind(NamedTuple):
    """A library or program: its name, who sends, and how a member of it runs."""

    name: str
    writer: Client
    run: Callable[..., None]


KINDS: Final = (
    Kind("kafka-python", KafkaPython(), run_kafka_python),
    Kind("aiokafka", AioKafka(), run_aiokafka),
    Kind("confluent-kafka", Confluent(), run_confluent),
    *((Kind("kcat", Confluent(), run_kcat),) if KCAT else ()),
)


class WorkingGroup:
    """A group and its producer, at work until `finish`. Topic and group have one name."""

    def __init__(self, bootstrap: str, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind
        self.account = Account()
        self.sent: list[bytes] = []
        self.places: list[Place] = []
        self.error: BaseException | None = None
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        commit_beginnings(bootstrap, name, name, PARTITIONS)
        self._writer = threading.Thread(target=self._write)
        self._writer.start()
        self._members = [
            Member(kind.run, bootstrap, name, self.account)
            for _ in range(MEMBERS)
        ]  # fmt: skip

    def _write(self) -> None:
        try:
            self.places = self.kind.writer.write(
                self._bootstrap, self.name, ANY_PARTITION, self._records(), Settings(-1, True)
            )
        except BaseException as error:
            self.error = error

    def _records(self) -> Iterator[Record]:
        while not self._is_over.is_set():
            for _ in range(BURST):
                value = b"%s %d" % (self.name.encode(), len(self.sent))
                self.sent.append(value)
                yield Record(value)
            time.sleep(PAUSE_S)

    def check(self) -> None:
        """Raise what has ended a client."""
        for error in (self.error, *(member.error for member in self._members)):
            if error is not None:
                raise error

    def stop_writing(self) -> None:
        """All that was sent is acknowledged, or `error` says why not."""
        self._is_over.set()
        self._writer.join()

    def leave(self) -> None:
        """Both members, in order."""
        for member in self._members:
            member.leave()

    def end(self) -> None:
        """However it went; what went wrong was told before. Waits a while for each thread."""
        self._is_over.set()
        for member in self._members:
            member.leaving.set()
        self._writer.join(END_S_MAX)
        for member in self._members:
            member.join(END_S_MAX)

    def committed(self, admin: Admin) -> dict[int, int]:
        """What the broker says, which is never less than what a member was told before."""
        told = self.account.commits()
        found = admin.committed_offsets(self.name)
        offsets = {name.partition: one.offset for name, one in found.items()}
        for partition, offset in told.items():
            there = offsets.get(partition, 0)
            assert there >= offset, f"{self.name}-{partition}: {offset} was committed, not {there}"
        return offsets

    def told(self) -> list[Line]:
        """What the clients were told, as lines of a ledger."""
        read = self.account.values
        sent = _lines("producer_send_success", self.name, self.places, self.sent)
        shown = _lines("record_data", self.name, read.keys(), read.values())
        offsets = [
            {"topic": self.name, "partition": partition, "offset": offset}
            for partition, offset in self.account.committed.items()
        ]
        commit: Line = {"name": "offsets_committed", "group": self.name, "offsets": offsets}
        return [*sent, *shown, commit | {"success": True}]


def _lines(name: str, topic: str, places: Iterable[Place], values: Iterable[bytes]) -> list[Line]:
    return [
        {"name": name, "topic": topic, "key": None, "value": value.decode(), **place._asdict()}
        for place, value in zip(places, values, strict=True)
    ]


def write_ledger(path: Path, lines: Iterable[Line]) -> None:
    """A ledger as the audit reads it, of a program that began and ended."""
    begin, end = {"name": "startup_complete"}, {"name": "shutdown_complete"}
    timestamp = {"timestamp": round(time.time() * 1000)}
    path.write_text("".join(json.dumps(timestamp | line) + "\n" for line in (begin, *lines, end)))


def wait_for_progress(admin: Admin, groups: Sequence[WorkingGroup]) -> None:
    """Until each group has read and committed more than now, in each partition. Commits of which
    members were told stay."""
    before = {group.name: (group.account.read.total(), group.committed(admin)) for group in groups}
    deadline = time.monotonic() + PROGRESS_S_MAX
    waiting = list(groups)
    while waiting:
        for group in groups:
            group.check()
        for group in list(waiting):
            read, offsets = before[group.name]
            now = group.committed(admin)
            is_on = all(now.get(each, 0) > offsets.get(each, 0) for each in range(PARTITIONS))
            if is_on and group.account.read.total() >= read + ENOUGH:
                waiting.remove(group)
        names = [group.name for group in waiting]
        assert time.monotonic() < deadline, f"{names} do not go on"
        time.sleep(LOOK_EVERY_S)


def finish(admin: Admin, groups: Sequence[WorkingGroup]) -> None:
    """Until each group has read and committed all that was sent; then the members leave."""
    for group in groups:
        group.stop_writing()
        group.check()
    deadline = time.monotonic() + PROGRESS_S_MAX
    for group in groups:
        ends = admin.list_offsets((group.name, each) for each in range(PARTITIONS))
        wanted = {name.partition: one.offset for name, one in ends.items()}
        while group.committed(admin) != wanted:
            group.check()
            assert time.monotonic() < deadline, f"{group.name} has not committed everything"
            time.sleep(LOOK_EVERY_S)
    for group in groups:
        group.leave()


def judge(group: WorkingGroup) -> None:
    """What was sent is there once and in order, was read, and is where the producer was told."""
    stored = group.account.values
    assert sorted(stored.values()) == sorted(group.sent)
    for partition in range(PARTITIONS):
        offsets = sorted(place.offset for place in stored if place.partition == partition)
        assert offsets == list(range(len(offsets))), f"{group.name}-{partition} has gaps"
        numbers = [int(stored[Place(partition, each)].split()[1]) for each in offsets]
        assert numbers == sorted(numbers), f"{group.name}-{partition} is not in order"
    for place, value in zip(group.places, group.sent, strict=True):
        assert place.offset < 0 or stored[place] == value
