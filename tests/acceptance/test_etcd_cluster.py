"""Three broker processes on one etcd: with a leader or with etcd nothing acknowledged is lost."""

import json
import subprocess

import pytest
import trio

from minibroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.etcd import NEEDS_ETCD, running_etcd
from tests.support.processes import COMMAND, EXPORT, free_base_port, running_cluster

pytestmark = NEEDS_ETCD
TOPIC = "numbers"
PARTITION = TopicPartition(TOPIC, 0)
MANY = NewTopic("many", 60, 3)
REQUEST_BYTES_MAX = 4_096  # of etcd: about a third of what it takes to make, or to elect, those
COUNT = 300
PAUSE_S = 0.01  # between two records: the load goes on through both faults
SESSION = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture
def etcd(tmp_path):
    with running_etcd(tmp_path, f"--max-request-bytes={REQUEST_BYTES_MAX}") as [member]:
        yield member


@pytest.fixture
def cluster(tmp_path, etcd):
    with running_cluster(tmp_path / "cluster", 3, SESSION, f"etcd:{etcd.url}") as started:
        yield started
        print(started.output)  # shown where a test fails


def test_a_broker_that_waits_for_etcd_can_be_stopped(tmp_path) -> None:
    """SIGTERM ends it in order, though it has not begun."""
    store = f"metadata.store=etcd:http://127.0.0.1:{free_base_port(1)}"
    command = [*COMMAND, "start", "--data-dir", str(tmp_path), "--set", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert "Waiting for the metadata store" in broker.stdout.readline()
            broker.terminate()
            assert broker.stdout.read() == "[KafkaServer id=1] shut down completed\n"
            assert broker.wait() == 0
        finally:
            broker.kill()


async def leader_other_than(address: str, lost: int) -> int:
    """Who leads, once that is somebody else."""
    async with Admin(address) as admin:
        while True:
            [topic] = await admin.describe_topics(TOPIC)
            leader = topic.partitions[0].leader_id
            if leader not in (lost, -1):
                return leader
            await trio.sleep(0.05)


async def test_nothing_is_lost_with_a_leader_or_with_etcd(cluster, etcd) -> None:
    """Records go on being acknowledged over `kill -9` of their leader and a restart of etcd, and
    all are there once, in order; what the store says of it can be exported. Topics that etcd does
    not take in one request are made, and led by others when their leader dies."""
    async with Admin(cluster.addresses) as admin:
        await admin.create_topics(NewTopic(TOPIC, 1), MANY)
    first = await leader_other_than(cluster.addresses, -1)

    async def torment() -> None:
        await trio.sleep(0.3)
        cluster.kill(first)
        await leader_other_than(cluster.addresses, first)
        await trio.to_thread.run_sync(etcd.restart)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(torment)
            async with Producer(cluster.addresses, acks="all") as producer:
                for number in range(COUNT):
                    await producer.send(TOPIC, b"%d" % number, partition=0)
                    await trio.sleep(PAUSE_S)
                await producer.flush()
        values = []
        async with Consumer(cluster.addresses, auto_offset_reset="earliest") as consumer:
            consumer.assign([PARTITION])
            while len(values) < COUNT:
                values += [record.value for record in await consumer.poll(0.5)]
    assert values == [b"%d" % number for number in range(COUNT)]
    await trio.to_thread.run_sync(cluster.start, first)
    cluster.export()
    found = json.loads((cluster.layout.root / EXPORT).read_text())
    assert sorted(broker["node_id"] for broker in found["brokers"]) == [1, 2, 3]
    many, numbers = found["topics"]
    assert len(many["partitions"]) == MANY.num_partitions
    for partition in (*many["partitions"], *numbers["partitions"]):
        assert partition["leader"] != first
        assert partition["leader_epoch"] >= (partition["replicas"][0] == first)
    for node_id in (1, 2, 3):
        assert cluster.stop(node_id) == 0
