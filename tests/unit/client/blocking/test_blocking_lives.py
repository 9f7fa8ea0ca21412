"""Blocking clients without a block: `start` and `close`, and what is dropped without them."""

import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client import TopicPartition
from minibroker.client.blocking import Admin, Consumer, Producer
from minibroker.client.errors import ClientClosed, ClientError, DeliveryFailed

ENDS_WITHIN_S = 10.0
pytestmark = pytest.mark.usefixtures("collects_its_own")
SHORT: dict[str, Any] = {
    "delivery_timeout_ms": 60,
    "request_timeout_ms": 50,
    "linger_ms": 1,
    "max_block_ms": 50,
}


def threads_of(kind: str) -> list[threading.Thread]:
    """The loops of clients of this kind that run."""
    return [each for each in threading.enumerate() if each.name == f"minibroker-{kind}"]


def assert_no_thread_is_left(kind: str) -> None:
    """A loop's thread returns a moment after the loop has ended."""
    until = time.monotonic() + ENDS_WITHIN_S
    while threads_of(kind):
        assert time.monotonic() < until, "the client's thread goes on"
        time.sleep(0.001)


def test_clients_that_are_started_and_closed_do_what_a_block_does(address: str) -> None:
    """What was sent is delivered, what was read is committed, and no thread is left."""
    producer = Producer(address, linger_ms=1000).start()
    for number in range(10):
        producer.send("lives", b"%d" % number, partition=0)
    assert producer.close().delivered == 10
    consumer = Consumer(address, group_id="lives", auto_offset_reset="earliest").start()
    consumer.assign_topics("lives")
    assert len(consumer.poll(10)) == 10
    consumer.close()
    admin = Admin(address).start()
    assert admin.committed_offsets("lives")[TopicPartition("lives", 0)].offset == 10
    admin.close()
    for kind in ("producer", "consumer", "admin"):
        assert_no_thread_is_left(kind)


CLIENTS: dict[str, Callable[[str], Any]] = {
    "producer": Producer,
    "consumer": lambda address: Consumer(address, group_id="g"),
    "admin": Admin,
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_close_ends_the_client_and_may_be_repeated(address: str, kind: str) -> None:
    """Inside of a block, before its end, and after it; calls are refused from then on."""
    with CLIENTS[kind](address) as client:
        client.close()
        assert_no_thread_is_left(kind)
        client.close()
    client.close()
    refused = {
        "producer": lambda: client.send("t", b""),
        "consumer": lambda: client.poll(0),
        "admin": lambda: client.list_topics(),
    }
    with pytest.raises(ClientClosed, match="closed"):
        refused[kind]()
    with pytest.raises(ClientError, match="started once"):
        client.start()


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_that_was_not_started_says_how(address: str, kind: str) -> None:
    """Whatever is called first."""
    with pytest.raises(ClientClosed, match=r"use `with`, or call start\(\)"):
        CLIENTS[kind](address).close()


def test_a_second_close_returns_the_same_report() -> None:
    """Also where the first one gave records up."""
    producer = Producer("127.0.0.1:1").start()
    for _ in range(3):
        producer.send("t", b"")
    assert producer.close(0) == producer.close() == (0, 0, 3)


def test_close_raises_what_was_not_delivered() -> None:
    """As the end of a block does; the thread ends all the same."""
    producer = Producer("127.0.0.1:1", **SHORT).start()
    producer.send("t", b"")
    with pytest.raises(DeliveryFailed, match="1 records were not delivered"):
        producer.close()
    assert_no_thread_is_left("producer")


def test_threads_that_close_at_once_all_return(address: str) -> None:
    """None is told that the client was closed during its call."""
    for _ in range(20):
        consumer = Consumer(address, group_id="g").start()
        errors: list[BaseException] = []

        def close(consumer: Consumer = consumer, errors: list[BaseException] = errors) -> None:
            try:
                consumer.close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ENDS_WITHIN_S)
            assert not thread.is_alive()
        assert errors == []


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_that_is_dropped_warns_and_ends(address: str, kind: str) -> None:
    """As Python does for a file that is not closed."""
    with pytest.warns(ResourceWarning, match=f"unclosed minibroker-{kind}"):  # noqa: PT031
        CLIENTS[kind](address).start()
        gc.collect()
    assert_no_thread_is_left(kind)


def test_a_producer_that_is_dropped_says_what_it_did_not_deliver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log, for a ResourceWarning is hidden unless Python was told to show it."""
    producer = Producer("127.0.0.1:1").start()
    for _ in range(3):
        producer.send("t", b"")
    with (  # noqa: PT031
        caplog.at_level(logging.ERROR, "minibroker.client"),
        pytest.warns(ResourceWarning, match="unclosed minibroker-producer"),
    ):
        del producer
        gc.collect()
        assert_no_thread_is_left("producer")
    assert "3 records were dropped" in caplog.text


@pytest.mark.parametrize("end", ["del producer", "pass", "sys.exit()"])
def test_a_process_that_ends_without_close_says_so(end: str) -> None:
    """By both ways."""
    program = f"""
import sys
from minibroker.client.blocking import Producer
producer = Producer("127.0.0.1:1").start()
producer.send("t", b"")
{end}
"""
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0
    assert ended.stderr.count("1 record was dropped") == 1
    assert ended.stderr.count("ResourceWarning: unclosed minibroker-producer") == 1
