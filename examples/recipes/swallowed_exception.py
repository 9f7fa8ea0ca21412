"""Goes on after an error, and commits the order that it could not store:
python swallowed_exception.py TOPIC DATABASE"""

import os
import sqlite3
import sys

from confluent_kafka import Consumer, TopicPartition

IS_FIXED = os.environ.get("RECIPE") == "fixed"
topic, path = sys.argv[1:]
database = sqlite3.connect(path, timeout=0.2)
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": f"{topic}-shop",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([topic])
while True:
    message = consumer.poll(1)
    if message is None or message.error():
        continue
    name = (message.value() or b"").decode()
    try:
        with database:
            database.execute("INSERT INTO orders VALUES (?)", (name,))
        print("stored", name)
    except sqlite3.OperationalError as error:
        print("cannot store", name, error)
        if IS_FIXED:  # the bug is what is missing: read the order again
            consumer.seek(TopicPartition(topic, message.partition() or 0, message.offset() or 0))
            continue
    consumer.commit(message, asynchronous=False)
