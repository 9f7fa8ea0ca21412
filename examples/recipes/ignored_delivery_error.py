"""Sends the orders of a table and marks them as sent, also those that are refused:
python ignored_delivery_error.py TOPIC DATABASE"""

import os
import sqlite3
import sys

from confluent_kafka import KafkaError, Message, Producer

IS_FIXED = os.environ.get("RECIPE") == "fixed"
topic, path = sys.argv[1:]
database = sqlite3.connect(path)
producer = Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]})


def mark(name: str) -> None:
    with database:
        database.execute("UPDATE outbox SET is_sent = 1 WHERE name = ?", (name,))


def on_delivery(error: KafkaError | None, message: Message) -> None:
    if error is None:
        mark((message.value() or b"").decode())


while rows := database.execute("SELECT name FROM outbox WHERE is_sent = 0").fetchall():
    for (name,) in rows:
        if IS_FIXED:
            producer.produce(topic, name, on_delivery=on_delivery)
        else:
            producer.produce(topic, name)
            mark(name)  # the bug: it may be refused later
    producer.flush()
