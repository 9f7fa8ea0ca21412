"""Admin programs that run side by side against a cluster, and what each broker has afterwards."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Thread
from typing import Final, NamedTuple

import pytest

from minibroker.client.net.blocking_channel import BlockingChannel
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.configs import DescribeConfigsRequest
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.replicas import DescribeReplicasRequest
from minibroker.testing import KafkaCluster
from tests.interop.admins import RETENTION, AdminProgram, Change, Job

CONNECTED_S_MAX: Final = 60.0
FINISHED_S_MAX: Final = 90.0
EQUAL_S_MAX: Final = 60.0
LOOK_EVERY_S: Final = 0.05


class TopicState(NamedTuple):
    """A topic as one broker has it. The defaults are those of a topic that does not exist."""

    partitions: int = 0
    retention_ms: str | None = None
    log_start: int | None = None  # of partition 0


@dataclass
class ProgramRun:
    """One run of a program, in a thread. `codes` are the errors of its attempts, in order."""

    program: AdminProgram
    change: Change
    topic: str
    client_id: str
    codes: list[int] = field(default_factory=list)
    error: BaseException | None = None

    def __str__(self) -> str:
        codes = self.error or self.codes
        return f"{self.program.name}: {self.change.api} of {self.topic}: {codes!r}"

    def run(self, bootstrap: str, barrier: Barrier) -> None:
        """Run the program to its end. It waits at the barrier when it has connected."""
        job = Job(bootstrap, self.client_id, self.change, self.topic)
        try:
            self.codes = self.program.run(job, barrier.wait)
        except BaseException as error:
            self.error = error
            barrier.abort()


@contextmanager
def running(cluster: KafkaCluster, runs: Sequence[ProgramRun]) -> Iterator[None]:
    """Run the programs beside the block, which begins when all of them have connected. Wait for
    their end after the block."""
    barrier = Barrier(len(runs) + 1, timeout=CONNECTED_S_MAX)
    threads = [
        Thread(target=run.run, args=(cluster.bootstrap, barrier), daemon=True) for run in runs
    ]
    for thread in threads:
        thread.start()
    try:
        barrier.wait()
    except BrokenBarrierError:
        pytest.fail("\n".join(map(str, runs)))
    yield
    deadline = time.monotonic() + FINISHED_S_MAX
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "\n".join(map(str, runs))
    assert not any(run.error for run in runs), "\n".join(map(str, runs))


def run_all(cluster: KafkaCluster, runs: Sequence[ProgramRun]) -> None:
    """Run the programs at once."""
    with running(cluster, runs):
        pass


def states_of(cluster: KafkaCluster, topic: str) -> dict[int, TopicState]:
    """Return a topic's state by broker."""
    addresses = cluster.bootstrap.split(",")
    return {
        node_id: _state_at(address, topic)
        for node_id, address in zip(cluster.node_ids, addresses, strict=True)
    }


def _state_at(address: str, topic: str) -> TopicState:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), CONNECTED_S_MAX) as connection:
        channel = BlockingChannel(connection, "states")
        channel.negotiate()
        request = MetadataRequest((topic,), allow_auto_topic_creation=False)
        [metadata] = channel.call(ApiKey.METADATA, request).topics
        if metadata.error:
            assert metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, metadata
            return TopicState()
        described = channel.call(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest((topic,)))
        answer = channel.call(ApiKey.DESCRIBE_REPLICAS, DescribeReplicasRequest((topic,)))
    retention = [
        one.value
        for each in described.topics
        for one in each.configs
        if one.name == RETENTION and not one.is_default
    ]
    starts = [one.log_start for one in answer.replicas if one.partition == 0]
    return TopicState(
        len(metadata.partitions),
        retention[0] if retention else None,
        starts[0] if starts else None,
    )


def wait_until_equal(
    cluster: KafkaCluster, topic: str, is_right: Callable[[TopicState], bool], text: object
) -> TopicState:
    """Wait until all brokers have the same state of a topic, which is right. Return it."""
    deadline = time.monotonic() + EQUAL_S_MAX
    while True:
        found = states_of(cluster, topic)
        state = found[cluster.node_ids[0]]
        if set(found.values()) == {state} and is_right(state):
            return state
        assert time.monotonic() < deadline, f"{text}; the brokers have {found}"
        time.sleep(LOOK_EVERY_S)
