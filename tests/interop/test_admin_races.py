"""Several admin clients change one topic at once. The controller makes the changes one by one: one
client succeeds, each other one gets the error that says why not, and all brokers agree."""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from minibroker.protocol.constants import ErrorCode
from minibroker.testing import KafkaCluster
from tests.interop.admins import PARTITIONS, PROGRAMS, Change
from tests.interop.clients import ANY_PARTITION, LIBRARIES, Client, Record, Settings
from tests.interop.program_runs import (
    ProgramRun,
    TopicState,
    run_all,
    running,
    wait_until_equal,
)

RECORDS: Final = 20  # by each producer
SEEDS: Final = range(6)
ROUNDS: Final = 10
AUTO_CREATED: Final = TopicState(1, None, 0)
CREATED: Final = TopicState(PARTITIONS, None, 0)
GROWN: Final = TopicState(PARTITIONS + 1, None, 0)
DELETED: Final = TopicState()
# The errors of each change when others change the same topic.
ERRORS: Final = {
    Change.CREATE: {ErrorCode.TOPIC_ALREADY_EXISTS},
    Change.GROW: {ErrorCode.INVALID_PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    Change.DELETE: {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
}

# kafka-python leaves sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")


def runs_of(topic: str, *changes: Change) -> list[ProgramRun]:
    """Return a run of each change by each program, on one topic."""
    return [
        ProgramRun(program, change, topic, f"{topic}-{program.name}-{number}")
        for program in PROGRAMS
        for number, change in enumerate(changes)
    ]


def test_one_of_several_succeeds(kafka_cluster: KafkaCluster, topic: str) -> None:
    """Two clients of each library create, grow and delete the topic, and create it again."""
    wanted = [
        (Change.CREATE, CREATED),
        (Change.GROW, GROWN),
        (Change.DELETE, DELETED),
        (Change.CREATE, CREATED),
    ]
    for change, state in wanted:
        runs = runs_of(topic, change, change)
        run_all(kafka_cluster, runs)
        text = "\n".join(map(str, runs))
        codes = Counter(run.codes[-1] for run in runs)
        assert codes == {0: 1, change.error_if_done: len(runs) - 1}, text
        wait_until_equal(kafka_cluster, topic, state.__eq__, text)


def test_a_topic_is_created_and_auto_created(kafka_cluster: KafkaCluster, topic: str) -> None:
    """Producers of each library send to a topic that does not exist, while admin clients create it.
    Either way it is created once, and has all records."""
    values = {client.name: [b"%s-%d" % (client.name.encode(), n) for n in range(RECORDS)]
              for client in LIBRARIES}  # fmt: skip

    def write(client: Client) -> None:
        records = [Record(value, timestamp_ms=now_ms) for value in values[client.name]]
        client.write(kafka_cluster.bootstrap, topic, ANY_PARTITION, records, Settings())

    now_ms = int(time.time() * 1000)
    runs = runs_of(topic, Change.CREATE)
    with ThreadPoolExecutor() as pool:
        with running(kafka_cluster, runs):
            writers = [pool.submit(write, client) for client in LIBRARIES]
        for writer in writers:
            writer.result()
    text = "\n".join(map(str, runs))
    codes = Counter(run.codes[-1] for run in runs)
    exists = Change.CREATE.error_if_done
    assert codes in ({0: 1, exists: len(runs) - 1}, {exists: len(runs)}), text
    wanted = CREATED if codes[0] else AUTO_CREATED
    wait_until_equal(kafka_cluster, topic, wanted.__eq__, text)
    found = Counter(record.value for record in kafka_cluster.read_all(topic))
    assert found == Counter(value for each in values.values() for value in each)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_changes_at_random(kafka_cluster: KafkaCluster, topic: str, seed: int) -> None:
    """Clients create, grow and delete a topic in any order. What succeeded accounts for the state
    of the topic at the end."""
    chance = random.Random(seed)
    exists = False
    for _ in range(ROUNDS):
        runs = runs_of(topic, *chance.choices(list(ERRORS), k=3))
        run_all(kafka_cluster, runs)
        text = "\n".join(map(str, runs))
        for run in runs:
            assert run.codes[-1] in {0, *ERRORS[run.change]}, text
        made = Counter(run.change for run in runs if run.codes[-1] == 0)
        count = exists + made[Change.CREATE] - made[Change.DELETE]
        assert count in {0, 1}, text
        exists = count == 1
        wanted = {CREATED, GROWN} if exists else {DELETED}
        wait_until_equal(kafka_cluster, topic, wanted.__contains__, text)
