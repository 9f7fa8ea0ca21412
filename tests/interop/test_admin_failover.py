"""Changes of topics by Kafka's admin clients while the controller dies (`kill -9`).

The broker that dies is also the leader of the partitions from which records are deleted. A change
is made on all brokers, or on none. A program that asks again for a change that was made gets the
error that says so, such as TOPIC_ALREADY_EXISTS.
"""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import pytest

from minibroker.client import NewTopic
from minibroker.testing import KafkaCluster
from tests.interop.admins import (
    FIRST_KEPT,
    PARTITIONS,
    PROGRAMS,
    RETENTION_MS,
    RETRIABLE,
    Change,
)
from tests.interop.program_runs import (
    ProgramRun,
    TopicState,
    running,
    states_of,
    wait_until_equal,
)

WAIT_S_MAX: Final = 60.0
LOOK_EVERY_S: Final = 0.05
RECORDS: Final = 10
SEEDS: Final = range(6)
ROUNDS: Final = 5
# Two brokers must stay live: with one, CREATE_TOPICS fails with INVALID_REPLICATION_FACTOR.
SESSION_MS: Final = "4000"
KILLED_S_MAX: Final = 0.2  # after the programs began

# kafka-python leaves sockets that could not be connected to the garbage collector.
pytestmark = [
    pytest.mark.usefixtures("collected_garbage"),
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


def find_controller(cluster: KafkaCluster) -> int:
    """Return the controller; wait until there is one."""
    deadline = time.monotonic() + WAIT_S_MAX
    with cluster.admin() as admin:
        while (found := admin.describe_cluster().controller_id) not in cluster.node_ids:
            assert time.monotonic() < deadline
            time.sleep(LOOK_EVERY_S)
    return found


def prepare(cluster: KafkaCluster, prefix: str, leader: int) -> list[ProgramRun]:
    """Return a run of each change by each program, on topics of their own. The client id is the
    topic's name. `leader` leads partition 0 of the topics that exist already."""
    runs = []
    for program in PROGRAMS:
        for change in Change:
            topic = f"{prefix}-{program.name}-{change.name}".lower()
            runs.append(ProgramRun(program, change, topic, client_id=topic))
    replicas = (leader, *(each for each in cluster.node_ids if each != leader))
    placed = dict.fromkeys(range(PARTITIONS), replicas)
    with cluster.admin() as admin, cluster.producer() as producer:
        existing = [run.topic for run in runs if run.change is not Change.CREATE]
        admin.create_topics(*(NewTopic(topic, replica_assignments=placed) for topic in existing))
        filled = [run.topic for run in runs if run.change is Change.DELETE_RECORDS]
        for topic in filled:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
    for topic in filled:
        cluster.wait_for_high_watermark(topic, RECORDS)
    return runs


def wait_until_met(cluster: KafkaCluster, runs: Sequence[ProgramRun], *, is_served: bool) -> None:
    """Wait until each run's request has met its fault, and is served if `is_served`."""
    apis = {run.client_id: run.change.api for run in runs}
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        met = {
            one.client_id
            for one in cluster.requests()
            if one.has_met_fault and apis.get(one.client_id or "") == one.api
            if one.errors == () or not is_served
        }
        if met == set(apis):
            return
        assert time.monotonic() < deadline, set(apis) - met
        time.sleep(LOOK_EVERY_S)


def check_all_made(
    cluster: KafkaCluster, runs: Sequence[ProgramRun], before: Mapping[str, TopicState]
) -> None:
    """Check that all brokers have made each change, and have changed nothing else."""
    for run in runs:
        old = before[run.topic]
        wanted = {
            Change.CREATE: TopicState(PARTITIONS, None, 0),
            Change.GROW: old._replace(partitions=PARTITIONS + 1),
            Change.DELETE: TopicState(),
            Change.ALTER: old._replace(retention_ms=RETENTION_MS),
            Change.DELETE_RECORDS: old._replace(log_start=FIRST_KEPT),
        }[run.change]
        wait_until_equal(cluster, run.topic, wanted.__eq__, run)


@pytest.mark.parametrize("action", ["hold", "drop_response"])
def test_the_controller_dies_with_changes(kafka_cluster: KafkaCluster, action: str) -> None:
    """All changes are at the controller when it dies: not made yet ("hold"), or made and not
    answered ("drop_response"). ALTER_CONFIGS may be at any broker."""
    cluster = kafka_cluster
    is_made_before = action == "drop_response"
    victim = find_controller(cluster)
    runs = prepare(cluster, action, victim)
    before = {run.topic: states_of(cluster, run.topic)[victim] for run in runs}
    break_request = cluster.drop_response if is_made_before else cluster.hold
    faults = [break_request(run.change.api, times=0, client_id=run.client_id) for run in runs]
    with ExitStack() as stack, running(cluster, runs):
        wait_until_met(cluster, runs, is_served=is_made_before)
        stack.enter_context(cluster.kill(victim))
        for fault in faults:
            fault.undo()
    for run in runs:
        if is_made_before:
            assert run.codes[-1] == run.change.error_if_done, str(run)
        if run.change is not Change.ALTER:
            assert run.codes[0] in RETRIABLE, str(run)
        check_last(run)
    check_all_made(cluster, runs, before)


def check_last(run: ProgramRun) -> None:
    """Check that the last attempt succeeded, or that an earlier one had."""
    is_known_made = run.codes[-1] == run.change.error_if_done and len(run.codes) > 1
    assert run.codes[-1] == 0 or is_known_made, str(run)


@pytest.mark.soak
@pytest.mark.kafka_cluster(properties={"broker.session.timeout.ms": SESSION_MS})
@pytest.mark.parametrize("seed", SEEDS)
def test_the_controller_dies_at_random_times(kafka_cluster: KafkaCluster, seed: int) -> None:
    """All changes are somewhere on their way when the controller dies."""
    cluster, chance = kafka_cluster, random.Random(seed)
    for number in range(ROUNDS):
        victim = find_controller(cluster)
        runs = prepare(cluster, f"{seed}-{number}", victim)
        before = {run.topic: states_of(cluster, run.topic)[victim] for run in runs}
        with ExitStack() as stack, running(cluster, runs):
            time.sleep(chance.uniform(0, KILLED_S_MAX))
            stack.enter_context(cluster.kill(victim))
        for run in runs:
            check_last(run)
        check_all_made(cluster, runs, before)
        cluster.wait_until_in_sync()
