"""The option `--minibroker-audit`: after each test the brokers' files are checked."""

import re

import pytest

from minibroker.testing import KafkaCluster
from minibroker.testing.kit.stored import flip_bit
from tests.kit.inner import Inner

WITHIN_S = 30


def test_sound_logs_pass_and_damaged_ones_do_not(inner: Inner) -> None:
    """A test that damages a replica itself; all others pass, also one with a failover."""
    inner.write(
        """
        import pytest
        from minibroker.testing.kit.stored import flip_bit

        def fill(cluster):
            topic = cluster.topic(partitions=2)
            with cluster.producer() as producer:
                for number in range(20):
                    producer.send(topic, b"%d" % number, partition=number % 2)
            return topic

        def test_sound(kafka_cluster):
            topic = fill(kafka_cluster)
            with kafka_cluster.kill(kafka_cluster.leader(topic)):
                with kafka_cluster.producer() as producer:
                    producer.send(topic, b"elsewhere").result(30)
            with kafka_cluster.consumer() as consumer:
                consumer.subscribe(topic)
                assert consumer.poll(10)

        @pytest.mark.kafka_cluster(fresh=True)
        def test_damaged(kafka_cluster):
            flip_bit(kafka_cluster.data_dir(2), fill(kafka_cluster), 0, 3)

        def test_sound_again(kafka_cluster):
            fill(kafka_cluster)
        """
    )
    session = inner.run("--minibroker-audit")
    assert "3 passed, 1 error" in session.text, session.text
    told = r"LogsWrong: test_damaged-\d+-0 of broker 2 is damaged at offset 0: the checksum"
    assert re.search(told, session.text)
    assert not inner.left_processes()


def test_what_was_acknowledged_and_is_gone(kafka_broker: KafkaCluster) -> None:
    """A record is named that a ledger has and no log."""
    kafka_broker.keep_ledgers()
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer:
        producer.send(topic, b"one").result(WITHIN_S)
        producer.send(topic, b"two").result(WITHIN_S)
    kafka_broker.check_logs()
    [log] = kafka_broker.data_dir(1).glob(f"{topic}-0/*.log")
    sound = log.read_bytes()
    log.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(AssertionError, match=f"{topic}-0 of broker 1 has no record at 1, where"):
        kafka_broker.check_logs()
    log.write_bytes(sound)
    kafka_broker.check_logs()


def test_replicas_that_differ_are_named(kafka_cluster: KafkaCluster) -> None:
    """With the first offset at which they do."""
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number * 50).result(WITHIN_S)
    kafka_cluster.wait_until_in_sync()
    flipped = flip_bit(kafka_cluster.data_dir(3), topic, 0, 2)
    sides = r"(brokers 1, 2 differ from brokers 3|brokers 3 differ from brokers 1, 2)"
    with pytest.raises(AssertionError, match=rf"{topic}-0: {sides}, first at offset 2"):
        kafka_cluster.check_logs()
    data = bytearray(flipped.path.read_bytes())
    data[flipped.position] ^= 1
    flipped.path.write_bytes(data)
    kafka_cluster.check_logs()
