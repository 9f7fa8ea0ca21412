"""One change of a topic by the admin client of each library, tried until its outcome is known.

No library sends the request again when the controller dies with it. Each raises an error of its own
("connection lost"), which says nothing about what was done, so the program tries again. What a
program must do for that differs: see the classes.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import confluent_kafka
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource as KafkaConfigResource
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaNewTopic
from kafka.errors import BrokerResponseError, KafkaError

from minibroker.protocol.constants import ErrorCode

PARTITIONS: Final = 3
REPLICAS: Final = 3
RETENTION: Final = "retention.ms"
RETENTION_MS: Final = "7000000"
FIRST_KEPT: Final = 4  # the offset before which records are deleted
ATTEMPT_S_MAX: Final = 3.0
ATTEMPT_MS_MAX: Final = int(1000 * ATTEMPT_S_MAX)
PAUSE_S: Final = 0.2  # before the next attempt
OUTCOME_S_MAX: Final = 60.0
NO_RESPONSE: Final = -1


class Change(Enum):
    """A change: the name of its request, and the error of a request for what is done already."""

    CREATE = "CREATE_TOPICS", ErrorCode.TOPIC_ALREADY_EXISTS
    GROW = "CREATE_PARTITIONS", ErrorCode.INVALID_PARTITIONS
    DELETE = "DELETE_TOPICS", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ALTER = "ALTER_CONFIGS", ErrorCode.NONE
    DELETE_RECORDS = "DELETE_RECORDS", ErrorCode.NONE

    @property
    def api(self) -> str:
        """The name of the request."""
        return self.value[0]

    @property
    def error_if_done(self) -> ErrorCode:
        """The error of a second request for the same change."""
        return self.value[1]


# The errors after which a program tries again. Those about leaders belong to DELETE_RECORDS.
RETRIABLE: Final = frozenset(
    {
        NO_RESPONSE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class Job(NamedTuple):
    """What a program does: where, as which client, and to which topic."""

    bootstrap: str
    client_id: str
    change: Change
    topic: str


class AdminProgram(Protocol):
    """A program that uses one library."""

    name: str

    def run(self, job: Job, start: Callable[[], object]) -> list[int]:
        """Connect, call `start`, and try the change until its outcome is known. Return the error
        codes of all attempts, in order."""


def try_until_known(attempt: Callable[[], int]) -> list[int]:
    """Return the codes of all attempts; the last one is not in `RETRIABLE`."""
    codes: list[int] = []
    deadline = time.monotonic() + OUTCOME_S_MAX
    while True:
        codes.append(attempt())
        if codes[-1] not in RETRIABLE:
            return codes
        assert time.monotonic() < deadline, codes
        time.sleep(PAUSE_S)


class ConfluentProgram:
    """confluent-kafka. It asks for metadata before each further attempt: without that, librdkafka
    goes on with the old controller until it refreshes its metadata, which is every five minutes."""

    name = "confluent-kafka"

    def run(self, job: Job, start: Callable[[], object]) -> list[int]:
        """See `AdminProgram`."""
        config = {"bootstrap.servers": job.bootstrap, "client.id": job.client_id, "log_level": 0}
        admin = AdminClient(config)
        admin.list_topics(timeout=ATTEMPT_S_MAX)
        start()

        def attempt() -> int:
            try:
                self._send(admin, job).result(2 * ATTEMPT_S_MAX)
            except KafkaException as error:
                with suppress(KafkaException):
                    admin.list_topics(timeout=ATTEMPT_S_MAX)
                return max(int(error.args[0].code()), NO_RESPONSE)
            return 0

        return try_until_known(attempt)

    def _send(self, admin: AdminClient, job: Job) -> Any:
        topic = job.topic
        timeouts = {"request_timeout": ATTEMPT_S_MAX, "operation_timeout": ATTEMPT_S_MAX}
        match job.change:
            case Change.CREATE:
                new = NewTopic(topic, PARTITIONS, REPLICAS)
                return admin.create_topics([new], **timeouts)[topic]
            case Change.GROW:
                more = NewPartitions(topic, PARTITIONS + 1)
                return admin.create_partitions([more], **timeouts)[topic]
            case Change.DELETE:
                return admin.delete_topics([topic], **timeouts)[topic]
            case Change.ALTER:
                operation = AlterConfigOpType.SET
                entry = ConfigEntry(RETENTION, RETENTION_MS, incremental_operation=operation)
                wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
                futures = admin.incremental_alter_configs([wanted], request_timeout=ATTEMPT_S_MAX)
                return futures[wanted]
            case Change.DELETE_RECORDS:
                before = confluent_kafka.TopicPartition(topic, 0, FIRST_KEPT)
                [future] = admin.delete_records([before], **timeouts).values()
                return future


class KafkaPythonProgram:
    """kafka-python. It makes a client for each attempt: a client keeps the first controller that it
    has found until that one answers NOT_CONTROLLER, which a dead one does not."""

    name = "kafka-python"

    def run(self, job: Job, start: Callable[[], object]) -> list[int]:
        """See `AdminProgram`."""
        first = self._connect(job)
        first.list_topics()
        clients = [first]
        start()

        def attempt() -> int:
            try:
                admin = clients.pop() if clients else self._connect(job)
                try:
                    return self._send(admin, job)
                finally:
                    admin.close()
            except BrokerResponseError as error:
                return int(error.errno)
            except (KafkaError, RuntimeError):  # the second: it has found no controller
                return NO_RESPONSE

        return try_until_known(attempt)

    def _connect(self, job: Job) -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=job.bootstrap.split(","),
            client_id=job.client_id,
            request_timeout_ms=ATTEMPT_MS_MAX,
        )

    def _send(self, admin: KafkaAdminClient, job: Job) -> int:
        topic = job.topic
        match job.change:
            case Change.CREATE:
                new = KafkaNewTopic(topic, PARTITIONS, REPLICAS)
                admin.create_topics([new], timeout_ms=ATTEMPT_MS_MAX)
            case Change.GROW:
                admin.create_partitions({topic: PARTITIONS + 1}, timeout_ms=ATTEMPT_MS_MAX)
            case Change.DELETE:
                admin.delete_topics([topic], timeout_ms=ATTEMPT_MS_MAX)
            case Change.ALTER:
                wanted = KafkaConfigResource("topic", topic, {RETENTION: RETENTION_MS})
                answer = admin.alter_configs([wanted], incremental=True)["topic"][topic]
                if answer != "OK":  # "[Error 7] ..."
                    return int(answer.split("]")[0].removeprefix("[Error "))
            case Change.DELETE_RECORDS:
                partition = KafkaPartition(topic, 0)
                admin.delete_records({partition: FIRST_KEPT}, timeout_ms=ATTEMPT_MS_MAX)
        return 0


class AioKafkaProgram:
    """aiokafka. It makes a client for each attempt: a client keeps its controller although that
    answers NOT_CONTROLLER. Most answers of the library hold the errors: it does not raise them."""

    name = "aiokafka"

    def run(self, job: Job, start: Callable[[], object]) -> list[int]:
        """See `AdminProgram`."""
        with asyncio.Runner() as runner:
            clients = [runner.run(self._connect(job))]
            start()

            async def attempt() -> int:
                admin = clients.pop() if clients else self._client(job)
                try:
                    await admin.start()
                    return await self._send(admin, job)
                except (AioError, TimeoutError) as error:
                    return getattr(error, "errno", None) or NO_RESPONSE
                finally:
                    await admin.close()

            return try_until_known(lambda: runner.run(attempt()))

    async def _connect(self, job: Job) -> AIOKafkaAdminClient:
        admin = self._client(job)
        await admin.start()
        return admin

    def _client(self, job: Job) -> AIOKafkaAdminClient:
        return AIOKafkaAdminClient(
            bootstrap_servers=job.bootstrap,
            client_id=job.client_id,
            request_timeout_ms=ATTEMPT_MS_MAX,
        )

    async def _send(self, admin: AIOKafkaAdminClient, job: Job) -> int:
        topic = job.topic
        match job.change:
            case Change.CREATE:
                new = AioNewTopic(topic, PARTITIONS, REPLICAS)
                return _error_in(await admin.create_topics([new], ATTEMPT_MS_MAX))
            case Change.GROW:
                more = {topic: AioNewPartitions(PARTITIONS + 1)}
                return _error_in(await admin.create_partitions(more, ATTEMPT_MS_MAX))
            case Change.DELETE:
                return _error_in(await admin.delete_topics([topic], ATTEMPT_MS_MAX))
            case Change.ALTER:
                wanted = AioConfigResource("topic", topic, {RETENTION: RETENTION_MS})
                [answer] = await admin.alter_configs([wanted])
                return int(answer.resources[0][0])
            case Change.DELETE_RECORDS:
                before = {AioPartition(topic, 0): RecordsToDelete(FIRST_KEPT)}
                await admin.delete_records(before, ATTEMPT_MS_MAX)
                return 0


def _error_in(answer: Any) -> int:
    """Return the error code of the one topic in an answer of aiokafka."""
    [topic] = getattr(answer, "topic_errors", None) or answer.topic_error_codes
    return int(topic[1])


PROGRAMS: Final[tuple[AdminProgram, ...]] = (
    ConfluentProgram(),
    KafkaPythonProgram(),
    AioKafkaProgram(),
)
