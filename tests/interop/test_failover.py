"""Three brokers, and `kill -9` of the leader while a client's idempotent producer sends to it.

Nothing is done about it from outside: the same producer finds the new leader by itself.
"""

import gc
import time
from collections.abc import Iterator
from threading import Thread
from typing import Final

import pytest

from minibroker.client import NewTopic, TopicPartition
from minibroker.client.blocking import Admin, Consumer
from tests.interop.clients import LIBRARIES, Client, Confluent, Record, Settings
from tests.interop.features import Feature, shows
from tests.support.processes import ClusterProcesses, running_cluster

COUNT: Final = 60_000
FIRST: Final = 2_000  # records in the log when the leader is killed
SENT_S_MAX: Final = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers for all tests here; each leaves all of them running."""
    with running_cluster(tmp_path_factory.mktemp("failover") / "cluster") as running:
        yield running


# kafka-python leaves sockets that could not be connected to the garbage collector.
@pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket .*laddr=.'0\.0\.0\.0':ResourceWarning")
@pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)
@shows(Feature.LEADER)
def test_the_leader_is_killed(cluster: ClusterProcesses, topic: str, client: Client) -> None:
    """Each record is acknowledged in the end, and is in the log once and in order."""
    values = [b"%d" % number for number in range(COUNT)]
    errors: list[BaseException] = []
    configs = {"retention.ms": "-1", "min.insync.replicas": "2"}
    with Admin(cluster.addresses) as admin:
        admin.create_topics(NewTopic(topic, 1, 3, configs))
        [described] = admin.describe_topics(topic)
    leader = described.partitions[0].leader_id

    def write() -> None:
        records = [Record(value) for value in values]
        how = Settings(is_idempotent=True)
        try:
            client.write(cluster.addresses, topic, 0, records, how)
        except BaseException as error:
            errors.append(error)

    writer = Thread(target=write)
    with Consumer(cluster.addresses) as consumer:
        partition = TopicPartition(topic, 0)
        writer.start()
        deadline = time.monotonic() + SENT_S_MAX
        while consumer.end_offsets(partition)[partition] < FIRST:
            assert time.monotonic() < deadline, errors
        cluster.kill(leader)
        is_amid = writer.is_alive()
        writer.join(SENT_S_MAX)
    assert not writer.is_alive()
    cluster.start(leader)
    assert is_amid, "the producer was done before the leader was killed"
    assert not errors
    read = Confluent().read(cluster.addresses, topic, {0: COUNT})[0]
    assert [record.value for record in read] == values
    gc.collect()
