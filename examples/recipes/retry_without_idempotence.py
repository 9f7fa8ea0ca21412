"""Sends orders, with retries that store some twice: python retry_without_idempotence.py TOPIC"""

import os
import sys

from confluent_kafka import Producer

IS_FIXED = os.environ.get("RECIPE") == "fixed"
[topic] = sys.argv[1:]
producer = Producer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "enable.idempotence": IS_FIXED,  # the bug: it is false by default
        "client.id": "orders",
    }
)
for number in range(3):
    producer.produce(topic, f"order {number}")
    producer.flush()
