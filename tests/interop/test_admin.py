"""Topics and groups by the admin clients of the libraries."""

from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaNewTopic

from tests.interop.clients import make_topic
from tests.interop.features import Feature, shows

TIMEOUT_S: Final = 10.0


@shows(Feature.TOPICS, "confluent-kafka")
def test_confluent_makes_and_deletes_topics(bootstrap: str, topic: str) -> None:
    """A topic is created, listed with its partitions, and deleted."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(TIMEOUT_S)
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions) == 3
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


@shows(Feature.TOPICS, "kafka-python")
def test_kafka_python_makes_and_deletes_topics(bootstrap: str, topic: str) -> None:
    """A topic is created, listed, and deleted."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([KafkaNewTopic(topic, 3, 1)])
        assert topic in admin.list_topics()
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


@shows(Feature.GROUPS, "confluent-kafka")
def test_confluent_lists_and_deletes_groups(bootstrap: str, topic: str) -> None:
    """A group that has commits only is listed, described as empty, and deleted."""
    make_topic(bootstrap, topic)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    try:
        offset = confluent_kafka.TopicPartition(topic, 0, 0)
        consumer.commit(offsets=[offset], asynchronous=False)
    finally:
        consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert topic in [group.group_id for group in admin.list_consumer_groups().result().valid]
    described = admin.describe_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert described.state == confluent_kafka.ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert topic not in [group.group_id for group in admin.list_consumer_groups().result().valid]
