"""Stores orders in batches, and loses a batch in a rebalance:
python lost_on_rebalance.py TOPIC DATABASE"""

import os
import signal
import sqlite3
import sys
from typing import Any

from confluent_kafka import Consumer

BATCH = 100
IS_FIXED = os.environ.get("RECIPE") == "fixed"
topic, path = sys.argv[1:]
database = sqlite3.connect(path, timeout=10)
with database:
    database.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": f"{topic}-shop",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 300,
    }
)
batch: list[str] = []


def store_and_commit() -> None:
    with database:
        database.executemany("INSERT INTO orders VALUES (?)", [(name,) for name in batch])
    consumer.commit(asynchronous=False)
    batch.clear()


def on_revoke(*_: Any) -> None:
    if batch and IS_FIXED:
        store_and_commit()
    elif batch:
        consumer.commit(asynchronous=False)  # the bug: of orders that only this batch has
        batch.clear()


is_ended = False


def end(*_: Any) -> None:
    global is_ended
    is_ended = True


signal.signal(signal.SIGTERM, end)
consumer.subscribe([topic], on_revoke=on_revoke)
while not is_ended:
    message = consumer.poll(0.2)
    if message is not None and not message.error():
        batch.append((message.value() or b"").decode())
        print("holds", len(batch))
    if len(batch) == BATCH:
        store_and_commit()
if batch:
    store_and_commit()
consumer.close()
