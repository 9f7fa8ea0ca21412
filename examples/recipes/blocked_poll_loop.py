"""Waits for the payment service, and does not poll meanwhile:
python blocked_poll_loop.py TOPIC DATABASE DOWN

The payment service is down while there is a file DOWN.
"""

import os
import sqlite3
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException

IS_FIXED = os.environ.get("RECIPE") == "fixed"
topic, path, down = sys.argv[1:]
database = sqlite3.connect(path)
database.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": f"{topic}-shop",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 1500,
        "heartbeat.interval.ms": 300,
        "max.poll.interval.ms": 1500,
    }
)


def wait_for_payments() -> None:
    if not IS_FIXED:
        while Path(down).exists():  # the bug: after max.poll.interval.ms the member is put out
            time.sleep(0.1)
        return
    consumer.pause(consumer.assignment())
    while Path(down).exists():
        consumer.poll(0.1)
    consumer.resume(consumer.assignment())


consumer.subscribe([topic])
while True:
    message = consumer.poll(0.2)
    if message is None or message.error():
        continue
    name = (message.value() or b"").decode()
    print("charging", name)
    wait_for_payments()
    with database:
        database.execute("INSERT INTO orders VALUES (?)", (name,))
    print("stored", name)
    try:
        consumer.commit(message, asynchronous=False)
    except KafkaException as error:
        print("cannot commit", name, error)
