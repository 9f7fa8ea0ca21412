"""The blocking consumer and admin client, over real sockets with a real thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from minibroker.client import TopicPartition
from minibroker.client.admin import NewTopic
from minibroker.client.blocking import Admin, Consumer, Producer
from minibroker.client.errors import ClientClosed, ClientError, ClientTimeout, ConfigError
from minibroker.protocol.errors import BrokerError


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_an_error_of_the_loop_comes_out_of_the_call(closed_port: str) -> None:
    """What the trio client raises, the blocking one raises, in the caller's thread."""
    options: dict[str, Any] = {"default_api_timeout_ms": 200}
    with Consumer(closed_port, **options) as consumer, pytest.raises(ClientTimeout, match="200 ms"):
        consumer.assign_topics("t")
    with Admin(closed_port, **options) as admin, pytest.raises(ClientTimeout, match="refused"):
        admin.list_topics()
    with pytest.raises(ConfigError, match=r"auto_offset_reset"):
        Consumer(closed_port, auto_offset_rest="latest")


def test_a_client_that_is_not_open_says_so(closed_port: str) -> None:
    """Calls before `with`, and after it, are errors that name what is missing."""
    consumer, admin = Consumer(closed_port), Admin(closed_port)
    with pytest.raises(ClientClosed, match="`with`"):
        consumer.poll(0)
    with pytest.raises(ClientClosed, match="`with`"):
        admin.list_topics()
    with consumer, admin:
        assert consumer.assignment == []
    with pytest.raises(ClientClosed):
        consumer.poll(0)
    with pytest.raises(ClientClosed):
        admin.list_topics()


def test_close_from_another_thread_ends_the_iteration(closed_port: str) -> None:
    """A thread that waits for records in vain can be told to stop."""
    ended = threading.Event()

    def iterate(consumer: Consumer) -> None:
        with pytest.raises(ClientClosed):
            next(iter(consumer))
        ended.set()

    with Consumer(closed_port) as consumer:
        consumer.assign([("t", 0)])
        assert consumer.poll(0) == []
        thread = threading.Thread(target=iterate, args=(consumer,))
        thread.start()
        consumer.close()
        assert ended.wait(5)
        thread.join()


def test_topics_are_made_described_changed_and_deleted(address: str) -> None:
    """Every call of the admin client reaches a broker and comes back with its answer."""
    with Admin(address) as admin:
        admin.create_topics(NewTopic("blocking-admin", 3, configs={"retention.ms": "5000"}))
        with pytest.raises(BrokerError, match="blocking-admin"):
            admin.create_topics("blocking-admin")
        assert "blocking-admin" in admin.list_topics()
        (topic,) = admin.describe_topics("blocking-admin")
        assert len(topic.partitions) == 3
        assert str(admin.describe_cluster().brokers[0].port) in address
        admin.alter_configs({"blocking-admin": {"retention.ms": "6000"}})
        configs = {
            each.name: each.value for each in admin.describe_configs("blocking-admin")[topic.name]
        }
        assert configs["retention.ms"] == "6000"
        assert admin.list_offsets([("blocking-admin", 2)])["blocking-admin", 2].offset == 0
        admin.delete_topics("blocking-admin")
        assert "blocking-admin" not in admin.list_topics()


def test_records_are_read_from_anywhere(address: str) -> None:
    """Polling, iterating, seeking and asking where one stands, over real sockets."""
    name = TopicPartition("blocking-read", 0)
    with Producer(address) as producer:
        for number in range(1000):
            producer.send(name.topic, b"%d" % number, timestamp_ms=1000 + number)
    with Consumer(address, auto_offset_reset="earliest", max_poll_records=100) as consumer:
        assert consumer.assign_topics(name.topic) == consumer.assignment == [name]
        assert consumer.beginning_offsets() == {name: 0}
        assert consumer.end_offsets(name) == {name: 1000}
        values = []
        for record in consumer:
            values.append(int(record.value or b""))
            assert consumer.position(name) == len(values)
            if len(values) == 150:
                break
        while len(values) < 1000:
            values += [int(record.value or b"") for record in consumer.poll(10)]
        assert values == list(range(1000))
        consumer.seek(name, 990)
        assert [record.offset for record in consumer.poll(10)] == list(range(990, 1000))
        consumer.seek_to_time(1500)
        assert consumer.poll(10)[0].offset == 500
        consumer.seek_to_beginning()
        assert consumer.poll(10)[0].offset == 0
        consumer.pause(name)
        assert consumer.poll(0.05) == []
        consumer.resume(name)
        assert consumer.poll(10)[0].offset == 100
        consumer.seek_to_end()
        assert consumer.poll(0.05) == []
        assert consumer.position(name) == 1000
        assert consumer.statistics().partition_count == 1


def test_iterating_gets_what_is_sent_meanwhile(address: str) -> None:
    """A consumer that waits in a thread of its own sees records as they come."""
    got = []
    with Admin(address) as admin:
        admin.create_topics("blocking-live")

    def read() -> None:
        with Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign_topics("blocking-live")
            for record in consumer:
                got.append(record.value)
                if record.value == b"last":
                    return

    reader = threading.Thread(target=read)
    reader.start()
    with Producer(address) as producer:
        for _ in range(20):
            producer.send_and_wait("blocking-live", b"one")
        producer.send("blocking-live", b"last")
    reader.join(20)
    assert got == [b"one"] * 20 + [b"last"]


def test_members_of_a_group_and_their_callbacks(address: str) -> None:
    """Subscribing, committing and closing; a callback may call the consumer, in a thread."""
    name = TopicPartition("blocking-group", 0)
    told: list[tuple[str, object]] = []
    with Producer(address) as producer:
        for number in range(10):
            producer.send(name.topic, b"%d" % number)

    def assigned(partitions: list[TopicPartition]) -> None:
        told.append(("assigned", partitions))
        consumer.seek(name, 4)

    def revoked(partitions: list[TopicPartition]) -> None:
        told.append(("revoked", consumer.position(name)))
        consumer.commit()
        for leave in (consumer.close, consumer.unsubscribe):
            with pytest.raises(ClientError, match="a callback cannot leave"):
                leave()

    options: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}
    with Consumer(address, **options) as consumer:
        consumer.subscribe(name.topic, on_assigned=assigned, on_revoked=revoked)
        assert consumer.subscription == [name.topic]
        assert [record.offset for record in consumer.poll(10)] == [4, 5, 6, 7, 8, 9]
        assert consumer.lag() == {name: 0}
        assert consumer.health().state == "stable"
        consumer.commit({name: 6})
        committed = consumer.committed()[name]
        assert committed is not None
        assert committed.offset == 6
    assert told == [("assigned", [name]), ("revoked", 10)]
    with Consumer(address, **options) as consumer:
        consumer.subscribe(name.topic, on_assigned=lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            consumer.poll(10)
        consumer.unsubscribe()
        assert consumer.assignment == []
        consumer.assign([name])
        assert consumer.committed(name)[name] == (10, "", 0)
        consumer.close(timeout_s=5)


def test_a_callback_that_waits_holds_up_no_close(address: str) -> None:
    """`close` and the end of the block return in their time, whatever a callback waits for."""
    is_over = threading.Event()
    waiting = threading.Event()

    def revoked(_: list[TopicPartition]) -> None:
        waiting.set()
        is_over.wait(20)

    with Producer(address) as producer:
        producer.send_and_wait("blocking-wait", b"one")
    began_at = time.monotonic()
    options: dict[str, Any] = {"group_id": "w", "auto_offset_reset": "earliest"}
    with Consumer(address, **options) as consumer:
        consumer.subscribe("blocking-wait", on_revoked=revoked)
        assert len(consumer.poll(10)) == 1
        consumer.close(timeout_s=0.5)
        assert waiting.is_set()
    assert time.monotonic() - began_at < 10
    is_over.set()


def test_auto_commit_waits_for_the_next_poll(address: str) -> None:
    """CCO-06: all records of a poll are worked on until the next one. An exception before it
    leaves them uncommitted."""
    name = TopicPartition("blocking-worked", 0)
    with Producer(address) as producer:
        for _ in range(20):
            producer.send(name.topic, b"value")
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_records": 10}
    for polls in (1, 2):
        with (
            suppress(ZeroDivisionError),
            Consumer(address, group_id=f"worked-{polls}", **options) as consumer,
        ):
            consumer.assign([name])
            for _ in range(polls):
                assert len(consumer.poll(10)) == 10
            raise ZeroDivisionError
        with Admin(address) as admin:
            offsets = admin.committed_offsets(f"worked-{polls}")
        committed = offsets[name].offset if name in offsets else 0
        assert committed == 10 * (polls - 1)


def test_an_interrupted_consumer_leaves_its_group(address: str) -> None:
    """Ctrl-C: what was done is committed, and the next member does not wait for a session's end."""
    with Producer(address) as producer:
        for number in range(10):
            producer.send("blocking-interrupt", b"%d" % number)
    options: dict[str, Any] = {"group_id": "h", "auto_offset_reset": "earliest"}
    with suppress(KeyboardInterrupt), Consumer(address, **options) as consumer:
        consumer.subscribe("blocking-interrupt")
        for record in consumer:
            if record.offset == 3:
                raise KeyboardInterrupt
    with Consumer(address, **options) as consumer:
        consumer.subscribe("blocking-interrupt")
        assert [record.offset for record in consumer.poll(10)] == list(range(3, 10))


def test_a_name_that_is_no_host_is_an_error_not_a_crash() -> None:
    """What the system cannot even ask for is told like any address where nobody answers."""
    expected = pytest.raises(ClientTimeout, match=r"'a\.\.b' is no host name")
    with Admin("a..b:9092", default_api_timeout_ms=100) as admin, expected:
        admin.list_topics()
