"""Stores the orders of a topic in a database: python shop.py TOPIC DATABASE"""

import os
import sqlite3
import sys

from confluent_kafka import Consumer

topic, path = sys.argv[1:]
database = sqlite3.connect(path)
database.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": f"{topic}-shop",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": int(os.environ.get("SESSION_TIMEOUT_MS", "45000")),
        "heartbeat.interval.ms": 300,
    }
)
consumer.subscribe([topic])
print("waiting for orders")
while True:
    message = consumer.poll(1)
    if message is None or message.error():
        continue
    name = message.value().decode()
    with database:
        database.execute("INSERT INTO orders VALUES (?)", (name,))
    print("stored", name)
    consumer.commit(message, asynchronous=False)
