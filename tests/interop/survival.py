"""What a member of a group survives: each error that a coordinator may answer, to each request.

    python -m tests.interop.survival        # measures, and writes the table of docs/kafka.md

The kit answers a member's requests with an error, for a while, and then serves them again. A member
survives if it then reads on by itself, within `WITHIN_S`, from where its group has committed, and
if its commit raises nothing. The errors are those by which Apache Kafka says that a group is served
elsewhere or later, and a connection that ends.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Timer
from typing import Final, NamedTuple

import aiokafka
import confluent_kafka
import kafka
from aiokafka import TopicPartition as AioPartition

from minibroker.testing import Fault, KafkaCluster, running_cluster
from tests.interop.compatibility import PAGE, version_of

WITHIN_S: Final = 15.0
FAULT_S: Final = 1.0
POLL_S: Final = 0.05
AT_ONCE: Final = 6
CLOSED: Final = "a closed connection"
ERRORS: Final = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    CLOSED,
)
# By the step of a member before which they begin to fail.
REQUESTS: Final = {
    "FIND_COORDINATOR": "join",
    "JOIN_GROUP": "join",
    "SYNC_GROUP": "join",
    "OFFSET_FETCH": "join",
    "HEARTBEAT": "read on",
    "OFFSET_COMMIT": "commit",
}
BEGIN: Final = "<!-- what members survive: begin -->\n"
END: Final = "<!-- what members survive: end -->\n"
_numbers = count(1)


class Case(NamedTuple):
    """A client whose requests fail with an error for a while. A connection is closed once."""

    client: str
    request: str
    error: str

    def __str__(self) -> str:
        return f"{self.client}, {self.request}: {self.error}"


class Step(Exception):
    """A step did not succeed."""


class Trial:
    """A case at a broker: `begin(step)` breaks what is to fail in that step."""

    def __init__(self, cluster: KafkaCluster, case: Case) -> None:
        self.cluster = cluster
        self.case = case
        self.name = f"survival-{next(_numbers)}"
        self.topic = cluster.topic(self.name)
        self._faults: list[Fault] = []

    def begin(self, step: str) -> None:
        """Begin a step."""
        case, cluster = self.case, self.cluster
        if REQUESTS.get(case.request) == step:
            if case.error == CLOSED:
                fault = cluster.drop_response(case.request, client_id=self.name)
            else:
                fault = cluster.fail(case.request, case.error, times=0, client_id=self.name)
                Timer(FAULT_S, fault.undo).start()
            self._faults.append(fault)

    def send(self, value: bytes) -> None:
        """Append a record."""
        with self.cluster.producer() as producer:
            producer.send(self.topic, value).result()

    def run(self) -> str:
        """Return "yes", or what was wrong."""
        self.send(b"first")
        with self.cluster.admin() as admin:
            admin.commit_offsets(self.name, {(self.topic, 0): 0})
        try:
            PROGRAMS[self.case.client](self)
        except Step as step:
            return f"**{step}**"
        except Exception as error:
            return f"**{type(error).__name__}**"
        finally:
            for fault in self._faults:
                fault.undo()
        return "yes"


def wait_until(read: Callable[[], bytes | None], value: bytes) -> None:
    """Poll until a value is read."""
    deadline = time.monotonic() + WITHIN_S
    while read() != value:
        if time.monotonic() > deadline:
            raise Step("reads nothing")


def read_and_commit(
    trial: Trial, read: Callable[[], bytes | None], commit: Callable[[], object]
) -> None:
    """Read a record, commit, and read the next one."""
    wait_until(read, b"first")
    trial.begin("commit")
    commit()
    trial.begin("read on")
    time.sleep(FAULT_S)
    trial.send(b"second")
    wait_until(read, b"second")


def run_confluent(trial: Trial) -> None:
    """By librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": trial.cluster.bootstrap,
            "group.id": trial.name,
            "client.id": trial.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
    )

    def read() -> bytes | None:
        one = consumer.poll(POLL_S)
        return None if one is None or one.error() else one.value()

    trial.begin("join")
    consumer.subscribe([trial.topic])
    try:
        read_and_commit(trial, read, partial(consumer.commit, asynchronous=False))
    finally:
        consumer.close()


def run_kafka_python(trial: Trial) -> None:
    """kafka-python."""
    consumer = kafka.KafkaConsumer(
        trial.topic,
        bootstrap_servers=trial.cluster.bootstrap,
        group_id=trial.name,
        client_id=trial.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
    )

    def read() -> bytes | None:
        for found in consumer.poll(timeout_ms=POLL_S * 1000, max_records=1).values():
            return found[0].value
        return None

    # A member that joins before it knows its topic joins again, and may then stand still: see
    # docs/kafka.md, "Bugs of clients".
    consumer.partitions_for_topic(trial.topic)
    trial.begin("join")
    try:
        read_and_commit(trial, read, consumer.commit)
    finally:
        consumer.close()


def run_aiokafka(trial: Trial) -> None:
    """aiokafka."""

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            trial.topic,
            bootstrap_servers=trial.cluster.bootstrap,
            group_id=trial.name,
            client_id=trial.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )

        async def read(value: bytes) -> None:
            try:
                one = await asyncio.wait_for(consumer.getone(), WITHIN_S)
            except TimeoutError:
                raise Step("reads nothing") from None
            assert one.value == value

        trial.begin("join")
        await asyncio.wait_for(consumer.start(), 2 * WITHIN_S)
        try:
            await read(b"first")
            trial.begin("commit")
            await asyncio.wait_for(consumer.commit(), WITHIN_S)
            assert await consumer.committed(AioPartition(trial.topic, 0)) == 1
            trial.begin("read on")
            await asyncio.sleep(FAULT_S)
            await asyncio.to_thread(trial.send, b"second")
            await read(b"second")
        finally:
            await asyncio.wait_for(consumer.stop(), WITHIN_S)

    asyncio.run(run())


PROGRAMS: Final[dict[str, Callable[[Trial], None]]] = {
    "confluent-kafka": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


def measured(cases: Iterable[Case]) -> dict[Case, str]:
    """What came of each case."""
    with running_cluster(brokers=1) as cluster, ThreadPoolExecutor(AT_ONCE) as pool:
        trials = [Trial(cluster, case) for case in cases]
        return dict(zip([each.case for each in trials], pool.map(Trial.run, trials), strict=True))


def table(outcomes: dict[Case, str]) -> str:
    """A row for each request and error, with a cell for each client."""
    names = [f"{client} {version_of(client)}" for client in PROGRAMS]
    lines = [f"| request | answer | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for request, error in dict.fromkeys((case.request, case.error) for case in outcomes):
        cells = [outcomes[Case(client, request, error)] for client in PROGRAMS]
        lines.append(f"| {request} | {error} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, and write."""
    cases = [
        Case(client, request, error)
        for request in REQUESTS
        for error in ERRORS
        for client in PROGRAMS
    ]
    made = table(measured(cases))
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + made + END + rest.split(END)[1], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
