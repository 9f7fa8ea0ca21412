"""Members of groups whose coordinator answers with errors: what it answers, they survive."""

import time
from typing import Final

import confluent_kafka
import pytest

from minibroker.testing import KafkaCluster
from minibroker.testing.kit.requests import Request
from tests.interop.survival import PROGRAMS, Case, measured

# The errors that a coordinator of minibroker gives to a member, by request.
GIVEN: Final = {
    "FIND_COORDINATOR": ("COORDINATOR_NOT_AVAILABLE",),
    "JOIN_GROUP": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "SYNC_GROUP": ("REBALANCE_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "OFFSET_FETCH": ("COORDINATOR_LOAD_IN_PROGRESS",),
    "HEARTBEAT": ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "OFFSET_COMMIT": ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
}
WAIT_S_MAX: Final = 30.0


@pytest.mark.soak
@pytest.mark.parametrize("client", PROGRAMS)
def test_members_survive_what_a_coordinator_answers(client: str) -> None:
    """Each error, for a while: then the member joins, reads from its committed offset, commits and
    reads on, by itself."""
    cases = [Case(client, request, error) for request, some in GIVEN.items() for error in some]
    outcomes = measured(cases)
    assert {str(case): found for case, found in outcomes.items() if found != "yes"} == {}


@pytest.mark.soak
def test_a_member_of_librdkafka_survives_a_move_of_its_coordinator(
    kafka_cluster: KafkaCluster,
) -> None:
    """The coordinator is replaced between SYNC_GROUP and OFFSET_FETCH. After NOT_COORDINATOR, which
    Apache Kafka answers, librdkafka does not ask for its offsets again."""
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        producer.send(topic, b"first").result()
    with kafka_cluster.admin() as admin:
        admin.commit_offsets(topic, {(topic, 0): 0})
    old = kafka_cluster.coordinator(topic)
    held = kafka_cluster.hold("OFFSET_FETCH", client_id=topic)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_cluster.bootstrap,
            "group.id": topic,
            "client.id": topic,
            "auto.offset.reset": "latest",
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + WAIT_S_MAX

    def fetches() -> list[Request]:
        requests = kafka_cluster.requests(client_id=topic)
        return [one for one in requests if one.api == "OFFSET_FETCH"]

    try:
        while not fetches():
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        with kafka_cluster.pause(old):
            kafka_cluster.coordinator(topic)
        kafka_cluster.wait_until_in_sync()
        held.undo()
        while (one := consumer.poll(0.1)) is None or one.error():
            assert time.monotonic() < deadline, fetches()
        assert one.value() == b"first"
        assert fetches()[0].errors == ("COORDINATOR_LOAD_IN_PROGRESS",)
        assert fetches()[-1].broker != old
    finally:
        consumer.close()
