"""Each test finds the bug of one program. With RECIPE=fixed in the environment all pass."""

import sqlite3
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from minibroker.testing import History

HERE = Path(__file__).parent


def text(record):
    return record.value.decode()


def names(path):
    return [name for (name,) in sqlite3.connect(path).execute("SELECT name FROM orders")]


@pytest.fixture
def run(kafka_broker):
    """Starts a program of this directory."""

    def start(name, *arguments, ready=None):
        return kafka_broker.process([sys.executable, HERE / name, *arguments], ready=ready)

    return start


@pytest.fixture
def send(kafka_broker):
    """Sends an order, and waits for its acknowledgement."""
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})

    def order(topic, name, partition=0):
        producer.produce(topic, name, partition=partition)
        assert producer.flush(10) == 0

    return order


def test_commit_before_processing(kafka_broker, run, send, tmp_path):
    """The service is killed while it charges an order."""
    topic, path = kafka_broker.topic(), tmp_path / "shop.db"
    shop = run("commit_first.py", topic, path)
    send(topic, "order 1")
    shop.wait_for_line("charging order 1")
    with shop.kill():
        send(topic, "order 2")
    shop.wait_for_line("stored order 2")
    history = kafka_broker.read_history(topic, value_of=text)
    for name in names(path):
        history.processed(name)
    history.check_at_least_once()


def test_retry_without_idempotence(kafka_broker, run):
    """The response to the first order is lost."""
    topic = kafka_broker.topic()
    with kafka_broker.drop_response("PRODUCE", topic=topic):
        assert run("retry_without_idempotence.py", topic).wait() == 0
    kafka_broker.read_history(topic).check_stored_once()


def test_ignored_delivery_error(kafka_broker, run, tmp_path):
    """The broker refuses the first order."""
    topic, path, history = kafka_broker.topic(), tmp_path / "shop.db", History()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE outbox (name TEXT, is_sent INTEGER)")
        database.execute("INSERT INTO outbox VALUES ('order 1', 0), ('order 2', 0)")
    with kafka_broker.fail("PRODUCE", "INVALID_RECORD", topic=topic):
        assert run("ignored_delivery_error.py", topic, path).wait() == 0
    for (name,) in database.execute("SELECT name FROM outbox WHERE is_sent = 1"):
        history.sent(name)
        history.acknowledged(name)
    for record in kafka_broker.read_all(topic):
        history.polled(text(record), topic, record.partition, record.offset)
    history.check_nothing_is_lost()


def test_lost_on_rebalance(kafka_broker, run, send, tmp_path):
    """A second member joins while the first one holds a batch."""
    topic, path = kafka_broker.topic(partitions=2), tmp_path / "shop.db"
    for number in range(4):
        send(topic, f"order {number}", partition=number % 2)
    one = run("lost_on_rebalance.py", topic, path, ready="holds 4")
    two = run("lost_on_rebalance.py", topic, path)
    kafka_broker.wait_for_group(f"{topic}-shop", members=2)
    one.stop()
    two.stop()
    history = kafka_broker.read_history(topic, value_of=text)
    for name in names(path):
        history.processed(name)
    history.check_at_least_once()


def test_blocked_poll_loop(kafka_broker, run, send, tmp_path):
    """The payment service is down for three seconds."""
    topic, path, down = kafka_broker.topic(), tmp_path / "shop.db", tmp_path / "down"
    down.touch()
    shop = run("blocked_poll_loop.py", topic, path, down)
    send(topic, "order 1")
    shop.wait_for_line("charging order 1")
    time.sleep(3)  # twice the max.poll.interval.ms
    down.unlink()
    send(topic, "order 2")
    shop.wait_for_line("stored order 2")
    history = kafka_broker.read_history(topic, value_of=text)
    for name in names(path):
        history.processed(name)
    history.check_exactly_once()


def test_swallowed_exception(kafka_broker, run, send, tmp_path):
    """The database is locked when an order comes."""
    topic, path = kafka_broker.topic(), tmp_path / "shop.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE orders (name TEXT)")
    database.execute("BEGIN EXCLUSIVE")  # a backup that takes long
    shop = run("swallowed_exception.py", topic, path)
    send(topic, "order 1")
    shop.wait_for_line("cannot store order 1")
    database.execute("COMMIT")
    send(topic, "order 2")
    shop.wait_for_line("stored order 2")
    history = kafka_broker.read_history(topic, value_of=text)
    for name in names(path):
        history.processed(name)
    history.check_at_least_once()


def test_commit_without_flush(kafka_broker, run, send):
    """The bill is not sent yet when the service is killed."""
    orders, bills = kafka_broker.topic(), kafka_broker.topic()
    with kafka_broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", topic=bills, times=0):
        billing = run("commit_without_flush.py", orders, bills)
        send(orders, "order 1")
        billing.wait_for_line("billed order 1")
        time.sleep(1)  # in which the program with the bug commits
        crash = billing.kill()
    crash.undo()
    send(orders, "order 2")
    kafka_broker.wait_for_commit(f"{orders}-billing", orders, 2)
    kafka_broker.wait_for_high_watermark(bills, 1)
    history = kafka_broker.read_history(orders, value_of=text)
    for record in kafka_broker.read_all(bills):
        history.processed(text(record).removeprefix("bill of "))
    history.check_at_least_once()


def test_latest_on_new_partition(kafka_broker, run, send, tmp_path):
    """An order is in the new partition before the service sees it."""
    topic, path = kafka_broker.topic(), tmp_path / "shop.db"
    shop = run("latest_on_new_partition.py", topic, path, ready="has partitions: 1")
    with kafka_broker.admin() as admin:
        admin.create_partitions({topic: 2})
    kafka_broker.wait_for_leader(topic, 1)
    send(topic, "order 1", partition=1)
    shop.wait_for_line("has partitions: 2")
    time.sleep(0.5)  # in which the program looks where it begins
    send(topic, "order 2", partition=1)
    shop.wait_for_line("stored order 2")
    history = kafka_broker.read_history(topic, value_of=text)
    for name in names(path):
        history.processed(name)
    history.check_at_least_once()
