"""A test of shop.py, or of the program in the variable SHOP."""

import os
import sqlite3
import sys
from pathlib import Path

from confluent_kafka import Producer

SHOP = Path(__file__).with_name(os.environ.get("SHOP", "shop.py"))


def test_each_order_is_stored_once(kafka_broker, tmp_path):
    """Also if the service is killed between an order and its commit."""
    topic, path = kafka_broker.topic(), tmp_path / "shop.db"
    shop = kafka_broker.process(
        [sys.executable, SHOP, topic, path],
        ready="waiting for orders",
        env={"SESSION_TIMEOUT_MS": "1000"},
    )
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})

    def order(name):
        producer.produce(topic, name)
        assert producer.flush(10) == 0

    order("order 1")
    shop.wait_for_line("stored order 1")
    with kafka_broker.hold("OFFSET_COMMIT", topic=topic, times=1):
        order("order 2")
        shop.wait_for_line("stored order 2")  # and its commit gets no response
        with shop.kill():
            order("order 3")
        shop.wait_for_line("stored order 3")

    history = kafka_broker.read_history(topic, value_of=lambda record: record.value.decode())
    for (name,) in sqlite3.connect(path).execute("SELECT name FROM orders"):
        history.processed(name)
    history.check_exactly_once()
