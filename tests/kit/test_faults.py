"""Each fault meets real clients, which recover; and each is undone."""

import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from minibroker.testing import Fault, KafkaCluster, WaitTimeout, running_cluster
from tests.kit.clients import AIOKAFKA, CONFLUENT, COUNT, OURS, VALUES, WITHIN_S, Client

Break = Callable[[KafkaCluster, str], Fault]


def kill_leader(cluster: KafkaCluster, topic: str) -> Fault:
    """`kill -9`."""
    return cluster.kill(cluster.leader(topic))


def stop_leader(cluster: KafkaCluster, topic: str) -> Fault:
    """In order."""
    return cluster.stop(cluster.leader(topic))


def pause_leader(cluster: KafkaCluster, topic: str) -> Fault:
    """It stands still, and its connections stay open."""
    return cluster.pause(cluster.leader(topic))


def _met(fault: Break, client: Client, *marks: pytest.MarkDecorator) -> object:
    return pytest.param(fault, client, id=f"{fault.__name__}-{client.name}", marks=marks)


@pytest.mark.parametrize(
    ("fault", "client"),
    [
        _met(kill_leader, OURS),
        _met(stop_leader, OURS),
        _met(pause_leader, OURS),
        _met(kill_leader, CONFLUENT),
        _met(stop_leader, CONFLUENT, pytest.mark.soak),
        _met(pause_leader, CONFLUENT, pytest.mark.soak),
        _met(kill_leader, AIOKAFKA),
        _met(stop_leader, AIOKAFKA, pytest.mark.soak),
        _met(pause_leader, AIOKAFKA, pytest.mark.soak),
    ],
)
def test_a_client_goes_on_when_its_leader_is_away(
    kafka_cluster: KafkaCluster, fault: Break, client: Client
) -> None:
    """It finds the next leader; all that was acknowledged is there, once, in order, also when the
    former leader is back."""
    topic = kafka_cluster.topic()
    before = kafka_cluster.leader(topic)
    made: list[Fault] = []
    client.produce(kafka_cluster, topic, lambda: made.append(fault(kafka_cluster, topic)))
    assert kafka_cluster.leader(topic) != before
    made[0].undo()
    kafka_cluster.wait_for_isr(topic)
    assert client.read(kafka_cluster, topic) == VALUES
    replicas = kafka_cluster.replicas(topic)[0]
    assert {each.log_end for each in replicas.values()} == {COUNT}
    assert set(replicas) == set(kafka_cluster.node_ids)


def test_a_fault_ends_with_its_block(kafka_cluster: KafkaCluster) -> None:
    """And is undone once."""
    with kafka_cluster.kill(3) as fault:
        assert fault.brokers == (3,)
        assert not fault.is_undone
    assert fault.is_undone
    again = kafka_cluster.pid(3)
    fault.undo()
    assert kafka_cluster.pid(3) == again
    texts = [event.text for event in kafka_cluster.timeline()[-2:]]
    assert texts == ["kill 3", "started 3"]


def test_a_restarted_broker_has_its_records(kafka_broker: KafkaCluster) -> None:
    """A stop in order and a start, at the same address."""
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer:
        producer.send(topic, b"kept").result(WITHIN_S)
    before = kafka_broker.bootstrap, kafka_broker.pid(1)
    kafka_broker.restart()
    assert kafka_broker.bootstrap == before[0]
    assert kafka_broker.pid(1) != before[1]
    with kafka_broker.consumer() as consumer:
        consumer.subscribe(topic)
        [record] = consumer.poll(WITHIN_S)
    assert record.value == b"kept"


def test_a_roll_restarts_each_and_ends_in_sync(kafka_cluster: KafkaCluster) -> None:
    """One after another, so that there is always a leader."""
    topic = kafka_cluster.topic(partitions=3)
    before = [kafka_cluster.pid(node_id) for node_id in kafka_cluster.node_ids]
    kafka_cluster.roll()
    assert not set(before) & {kafka_cluster.pid(node_id) for node_id in kafka_cluster.node_ids}
    for partition in range(3):
        assert len(kafka_cluster.wait_for_isr(topic, partition, timeout_s=0)) == 3


def test_what_is_not_undone_is_mended_for_the_next_test(kafka_cluster: KafkaCluster) -> None:
    """By `heal`, which the fixture calls after each test; it says what it found."""
    topic = kafka_cluster.topic()
    with kafka_cluster.stop(1):
        pass
    kafka_cluster.kill(2)
    kafka_cluster.pause(3)
    assert [fault.text for fault in kafka_cluster.heal()] == ["pause 3", "kill 2"]
    assert len(kafka_cluster.wait_for_isr(topic, timeout_s=0)) == 3
    assert kafka_cluster.heal() == []


def test_what_cannot_be_done_is_refused(kafka_cluster: KafkaCluster) -> None:
    """In a sentence, and nothing is done."""
    with pytest.raises(ValueError, match="there is no broker 4; there are 1, 2, 3"):
        kafka_cluster.kill(1, 4)
    with pytest.raises(ValueError, match="name at least one broker"):
        kafka_cluster.pause()
    with kafka_cluster.stop(2), pytest.raises(ValueError, match="broker 2 does not run"):
        kafka_cluster.kill(2)
    with kafka_cluster.pause(2), pytest.raises(ValueError, match="broker 2 is paused already"):
        kafka_cluster.pause(2)
    kafka_cluster.check_alive()


def test_a_broker_that_is_down_is_in_no_set(kafka_cluster: KafkaCluster) -> None:
    """Also before its session ends, while the metadata still name it."""
    topic = kafka_cluster.topic()
    leader = kafka_cluster.leader(topic)
    follower = next(node_id for node_id in kafka_cluster.node_ids if node_id != leader)
    with kafka_cluster.kill(follower):
        with pytest.raises(WaitTimeout, match="all replicas to be in sync"):
            kafka_cluster.wait_until_in_sync(timeout_s=0)
        with pytest.raises(WaitTimeout, match="in sync"):
            kafka_cluster.wait_for_isr(topic, timeout_s=0)


def opened_files() -> dict[int, tuple[int, int]]:
    """The descriptors of this process, and which file each of them is open on."""
    found = {}
    for descriptor in range(256):
        with suppress(OSError):
            status = os.fstat(descriptor)
            found[descriptor] = status.st_dev, status.st_ino
    return found


def test_no_forked_child_keeps_a_cluster() -> None:
    """The child has none of its descriptors: not the lock of its place, not its reserved port, not
    the pipe that ends the brokers. So the cluster ends though the child goes on."""
    before = opened_files().items()
    read, write = os.pipe()
    pipe = opened_files().items() - before
    with running_cluster(brokers=1) as cluster:
        held, pid = opened_files().items() - before - pipe, cluster.pid(1)
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(len(held & opened_files().items()))
        os.close(read)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert len(held) == 3
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.kafka_cluster(fresh=True, brokers=2, properties={"num.partitions": 7})
def test_a_marker_makes_another_cluster(kafka_cluster: KafkaCluster) -> None:
    """Of so many brokers with such properties, for this test alone."""
    assert list(kafka_cluster.node_ids) == [1, 2]
    assert kafka_cluster.timeline()[0].text == "started 1, 2"
    with kafka_cluster.admin() as admin:
        told = {each.name: each.value for each in admin.describe_broker_configs(1)}
    assert told["num.partitions"] == "7"
