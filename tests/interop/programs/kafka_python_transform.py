"""python kafka_python_transform.py BOOTSTRAP APPLICATION DIRECTORY: adds one to numbers.

As confluent_transform.py. A transaction that takes longer than `TRANSACTION_S_MAX` ends the
program: kafka-python may wait for ever for the answer to a request that it has dropped
(docs/kafka.md, "Bugs of clients").
"""

import faulthandler
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError

TRANSACTION_S_MAX = 10.0

bootstrap, application = sys.argv[1:3]
producer = KafkaProducer(
    bootstrap_servers=bootstrap.split(","),
    transactional_id=application,
    metadata_max_age_ms=1000,
)
producer.init_transactions()
consumer = KafkaConsumer(
    bootstrap_servers=bootstrap.split(","),
    group_id=application,
    group_instance_id=application,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    isolation_level="read_committed",
    session_timeout_ms=6000,
    heartbeat_interval_ms=1000,
    max_poll_records=100,
    metadata_max_age_ms=1000,
)
consumer.partitions_for_topic(f"{application}-in")  # docs/kafka.md, "Bugs of clients"
consumer.subscribe([f"{application}-in"])


def poll() -> Mapping[TopicPartition, Sequence[Any]]:
    """Return records; none if a broker was asked for metadata that is gone."""
    try:
        return consumer.poll(timeout_ms=100)
    except KafkaConnectionError:
        return {}


def transform(found: Mapping[TopicPartition, Sequence[Any]]) -> None:
    """In one transaction."""
    producer.begin_transaction()
    for place, records in found.items():
        for one in records:
            number = b"%d" % (int(one.value) + 1)
            producer.send(f"{application}-out", number, one.key, partition=place.partition)
    offsets = {
        place: OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in found.items()
    }
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    producer.commit_transaction()


while True:
    if found := poll():
        faulthandler.dump_traceback_later(TRANSACTION_S_MAX, exit=True)
        try:
            transform(found)
        except KafkaError:
            producer.abort_transaction()  # raises the error if no transaction can follow
            for place, records in found.items():
                consumer.seek(place, records[0].offset)
        faulthandler.cancel_dump_traceback_later()
