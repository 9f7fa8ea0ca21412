"""Commits before processing: python commit_first.py TOPIC DATABASE"""

import os
import sqlite3
import sys
import time

from confluent_kafka import Consumer

IS_FIXED = os.environ.get("RECIPE") == "fixed"
topic, path = sys.argv[1:]
database = sqlite3.connect(path)
database.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": f"{topic}-shop",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 1000,
        "heartbeat.interval.ms": 300,
    }
)
consumer.subscribe([topic])
while True:
    message = consumer.poll(1)
    if message is None or message.error():
        continue
    name = message.value().decode()
    if not IS_FIXED:
        consumer.commit(message, asynchronous=False)  # the bug: a crash from here on loses it
    print("charging", name)
    time.sleep(0.5)
    with database:
        database.execute("INSERT INTO orders VALUES (?)", (name,))
    print("stored", name)
    if IS_FIXED:
        consumer.commit(message, asynchronous=False)
