"""Writes a bill for each order, and commits orders whose bills are not sent yet:
python commit_without_flush.py ORDERS BILLS"""

import os
import sys

from confluent_kafka import Consumer, Producer

IS_FIXED = os.environ.get("RECIPE") == "fixed"
orders, bills = sys.argv[1:]
bootstrap = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": f"{orders}-billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 1000,
        "heartbeat.interval.ms": 300,
    }
)
consumer.subscribe([orders])
while True:
    message = consumer.poll(1)
    if message is None or message.error():
        continue
    name = (message.value() or b"").decode()
    producer.produce(bills, f"bill of {name}")
    print("billed", name)
    if IS_FIXED:  # the bug is what is missing: the bill may still be in this process
        producer.flush()
    consumer.commit(message, asynchronous=False)
