"""Metrics of the cluster as a whole.

Only the controller exposes them, so that each appears once in a cluster. Two are exposed by every
broker: whether it is the controller, and the leader of each partition that it leads itself.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from minibroker.broker.controller.statistics import Statistics
from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.observe.metrics.exposition import gauge, single, total
from minibroker.protocol.constants import NO_NODE

CONTROLLER: Final = "kafka_controller_kafkacontroller"


def controller_families(statistics: Statistics | None) -> Iterator[Metric]:
    """Make the controller's metrics. With None, another broker is the controller, and the only
    metric says so."""
    text = "1 if this broker is the controller"
    yield single(f"{CONTROLLER}_activecontrollercount", text, statistics is not None)
    if statistics is None:
        return
    cluster = statistics.cluster
    yield single("kafka_brokers", "Brokers that are registered", cluster.brokers)
    for name, text, number in (
        ("activebrokercount", "Brokers that are registered", cluster.brokers),
        (
            "fencedbrokercount",
            "Brokers that were here once and are not registered now, or are not heard",
            cluster.fenced,
        ),
        ("globaltopiccount", "Topics", cluster.topics),
        ("globalpartitioncount", "Partitions", cluster.partitions),
        ("offlinepartitionscount", "Partitions that nobody leads", cluster.offline),
        (
            "preferredreplicaimbalancecount",
            "Partitions led by another than their first replica",
            cluster.misplaced,
        ),
    ):
        yield single(f"{CONTROLLER}_{name}", text, number)
    text = "Registered brokers that the controller does not hear"
    yield single("minibroker_controller_unheard_brokers", text, cluster.unheard)
    text = "Requests that wait for the controller"
    yield single("minibroker_controller_requests_waiting", text, statistics.waiting)
    text = "Requests that it has served since its election"
    yield total("minibroker_controller_requests", text, statistics.done)
    text = "Writes that it had to repeat because the metadata store did not answer"
    yield total("minibroker_controller_store_retries", text, statistics.retries)


def topic_families(
    image: ClusterImage, statistics: Statistics | None, broker_id: int
) -> Iterator[Metric]:
    """Make the metric of each partition's leader. The leader exposes it; the controller does for
    partitions without a leader."""
    is_controller = statistics is not None
    leader = gauge(
        "kafka_topic_partition_leader", "Broker that leads it, -1: nobody", "topic", "partition"
    )
    for name, topic in image.topics.items():
        for each in topic.partitions:
            if each.leader == broker_id or (each.leader == NO_NODE and is_controller):
                leader.add_metric([name, str(each.partition)], each.leader)
    yield leader
    if is_controller:
        counts = gauge("kafka_topic_partitions", "Partitions of a topic", "topic")
        for name, topic in image.topics.items():
            counts.add_metric([name], len(topic.partitions))
        yield counts
