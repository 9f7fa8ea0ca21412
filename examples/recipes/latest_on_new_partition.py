"""Begins at the end of a partition that is new: python latest_on_new_partition.py TOPIC DATABASE"""

import os
import sqlite3
import sys
from typing import Any

from confluent_kafka import Consumer

IS_FIXED = os.environ.get("RECIPE") == "fixed"
topic, path = sys.argv[1:]
database = sqlite3.connect(path)
database.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": f"{topic}-shop",
        "auto.offset.reset": "earliest" if IS_FIXED else "latest",  # the bug: "latest"
        "topic.metadata.refresh.interval.ms": 500,
        "heartbeat.interval.ms": 300,
    }
)
consumer.subscribe([topic], on_assign=lambda _, given: print("has partitions:", len(given)))
while True:
    message: Any = consumer.poll(0.2)
    if message is None or message.error():
        continue
    name = message.value().decode()
    with database:
        database.execute("INSERT INTO orders VALUES (?)", (name,))
    print("stored", name)
