"""The cluster's clients tell a history what they do."""

import pytest

from minibroker.client import TopicPartition
from minibroker.testing import History, KafkaCluster, PromiseBroken

WITHIN_S = 30


def test_a_history_is_filled_by_clients(kafka_broker: KafkaCluster) -> None:
    """Whatever is committed: a record, an offset, or all positions; by poll and by iteration."""
    topic, history = kafka_broker.topic(), History()
    with kafka_broker.producer(history=history) as producer:
        for number in range(4):
            producer.send(topic, b"%d" % number, key=b"key").result(WITHIN_S)
    with kafka_broker.consumer(history=history, group_id=topic, max_poll_records=1) as consumer:
        consumer.subscribe(topic)
        [first] = consumer.poll(WITHIN_S)
        history.processed(first.value)
        consumer.commit(first)
        second = next(iter(consumer))
        history.processed(second.value)
        consumer.commit({TopicPartition(topic, 0): 2})
        [third] = consumer.poll(WITHIN_S)
        consumer.commit()
        with pytest.raises(PromiseBroken, match=f"has committed 3 of {topic}-0 before b'2'"):
            history.check_commit_after_processing()
        history.processed(third.value)
        consumer.commit({TopicPartition(topic, 0): 1})
    assert kafka_broker.wait_for_commit(topic, topic, 1) == 1
    history.check_order_per_key()
    with pytest.raises(PromiseBroken, match=f"has committed 1 of {topic}-0 after 3"):
        history.check_commits_never_go_back()
    with pytest.raises(PromiseBroken, match="b'3' was acknowledged and never polled"):
        history.check_nothing_is_lost()
    for record in kafka_broker.read_all(topic):
        history.polled(record.value, record.topic, record.partition, record.offset)
    history.check_nothing_is_lost()
    history.check_stored_once()


def test_what_a_client_refuses_was_not_sent(kafka_broker: KafkaCluster) -> None:
    """It may be sent later, and what is not acknowledged is not."""
    topic, history = kafka_broker.topic(), History()
    with kafka_broker.producer(history=history, max_request_size=1_000) as producer:
        with pytest.raises(ValueError, match="larger than max"):
            producer.send(topic, b"x" * 2_000)
        with kafka_broker.fail("PRODUCE", "INVALID_RECORD", topic=topic):
            refused = producer.send(topic, b"one")
            assert refused.exception(WITHIN_S) is not None
    with pytest.raises(PromiseBroken, match="the history has no acknowledgement"):
        history.check_nothing_is_lost()
    with pytest.raises(ValueError, match="was acknowledged, and the history has no send of it"):
        history.acknowledged(b"x" * 2_000)
    with pytest.raises(ValueError, match="but one of b'one': use one form"):
        history.processed("one")


def test_all_records_of_a_topic(kafka_cluster: KafkaCluster) -> None:
    """By partition and offset; of an empty topic none."""
    topic = kafka_cluster.topic(partitions=3)
    assert kafka_cluster.read_all(topic) == []
    with kafka_cluster.producer() as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number, partition=number % 3)
    found = kafka_cluster.read_all(topic)
    places = [(partition, offset) for partition in range(3) for offset in range(10)]
    assert [(record.partition, record.offset) for record in found] == places
    assert {record.value for record in found} == {b"%d" % number for number in range(30)}
