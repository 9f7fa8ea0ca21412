"""A history that is read from the brokers: the program has no line for it."""

import re

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from minibroker.testing import KafkaCluster, PromiseBroken

WITHIN_S = 30


def produce(cluster: KafkaCluster, topic: str, *values: str) -> None:
    """Values, each acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "shop"})
    for value in values:
        producer.produce(topic, value)
        assert producer.flush(WITHIN_S) == 0


def consumer_of(cluster: KafkaCluster, group: str) -> Consumer:
    """A member of a group, which commits by hand."""
    options = {"group.id": group, "client.id": "worker-1", "enable.auto.commit": False}
    options |= {"auto.offset.reset": "earliest"}
    return Consumer({"bootstrap.servers": cluster.bootstrap, **options})


def poll(consumer: Consumer) -> Message:
    """The next record."""
    message = consumer.poll(WITHIN_S)
    assert message is not None
    assert message.error() is None
    return message


def test_what_was_appended_and_committed(kafka_cluster: KafkaCluster) -> None:
    """By which member, also when the coordinator was killed after it."""
    topic = kafka_cluster.topic()
    group = f"{topic}-workers"
    produce(kafka_cluster, topic, "a", "b", "a")
    consumer = consumer_of(kafka_cluster, group)
    consumer.subscribe([topic])
    for _ in range(2):
        consumer.commit(poll(consumer), asynchronous=False)
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    kafka_cluster.kill(kafka_cluster.coordinator(group)).undo()
    kafka_cluster.wait_until_in_sync()
    history = kafka_cluster.read_history(
        topic, value_of=lambda record: (record.value or b"").decode()
    )
    commits = history.commits()
    assert [(each.group, each.offset) for each in commits] == [(group, 1), (group, 2), (group, 1)]
    assert all(re.match("client 'worker-1', member 'worker-1-", each.by) for each in commits)
    with pytest.raises(
        PromiseBroken, match=rf"'a' is at {topic}-0, offset 0 and at {topic}-0, off"
    ):
        history.check_stored_once()
    with pytest.raises(PromiseBroken, match=r"has committed 1 of .* after 2 .*'worker-1'"):
        history.check_commits_never_go_back()
    history.processed("a")
    with pytest.raises(
        PromiseBroken, match=r"'b' was acknowledged and never processed \(.*appended"
    ):
        history.check_at_least_once()
    other = kafka_cluster.read_history(topic, groups=["another group"])
    assert other.commits() == []
    consumer.close()


def test_transactions(kafka_broker: KafkaCluster) -> None:
    """Records and offsets of those that were aborted are left out."""
    topic, target = kafka_broker.topic(), kafka_broker.topic()
    produce(kafka_broker, topic, "a", "b")
    consumer = consumer_of(kafka_broker, topic)
    consumer.subscribe([topic])
    options = {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": topic}
    producer = Producer(options)
    producer.init_transactions()
    for value, is_commit in (("lost", False), ("kept", True)):
        offset = poll(consumer).offset() + 1
        producer.begin_transaction()
        producer.produce(target, value)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata()
        )
        producer.commit_transaction() if is_commit else producer.abort_transaction()
    history = kafka_broker.read_history(topic)
    assert [(each.offset, each.by[:17]) for each in history.commits()] == [(2, "client 'rdkafka',")]
    sold = kafka_broker.read_history(target)
    sold.processed(b"kept")
    sold.check_exactly_once()
    with pytest.raises(ValueError, match="the history has no send of it"):
        sold.processed(b"lost")
    consumer.close()


def test_a_log_that_does_not_tell_all_is_refused(kafka_broker: KafkaCluster) -> None:
    """A compacted one, and one from which records were deleted."""
    compacted = kafka_broker.topic(configs={"cleanup.policy": "compact"})
    with pytest.raises(ValueError, match=f"'{compacted}' is compacted, so its log does not tell"):
        kafka_broker.read_history(compacted)
    topic = kafka_broker.topic()
    produce(kafka_broker, topic, "a", "b")
    with kafka_broker.admin() as admin:
        admin.delete_records({(topic, 0): 1})
    with pytest.raises(ValueError, match=f"the records of {topic}-0 before offset 1 were deleted"):
        kafka_broker.read_history(topic)
    with pytest.raises(ValueError, match="name at least one topic"):
        kafka_broker.read_history()
    with pytest.raises(ValueError, match=r"groups='shop': expected a list of groups: \['shop'\]"):
        kafka_broker.read_history(topic, groups="shop")
