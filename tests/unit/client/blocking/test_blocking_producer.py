"""The blocking producer and its portal, against the real broker app over loopback sockets."""

import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from minibroker.client.blocking import Producer
from minibroker.client.blocking.portal import Portal
from minibroker.client.errors import ClientClosed, ConfigError, DeliveryFailed
from minibroker.client.producer.delivery import Delivery


def test_records_arrive_in_order(address: str) -> None:
    """More records than the queue between the threads holds, and keys keep their order."""
    deliveries: list[Delivery] = []
    with Producer(address, on_delivery=deliveries.append) as producer:
        for number in range(20_000):
            producer.send("ordered", b"%d" % number)
        producer.flush()
        assert producer.statistics().delivered == 20_000
    values = [int(record.value) for delivery in deliveries for record in delivery.records()]
    assert values == list(range(20_000))


def test_one_record_can_be_waited_for(address: str) -> None:
    """It comes behind what was sent before."""
    with Producer(address) as producer:
        producer.send("waited", b"a")
        assert producer.send_many("waited", [b"b", b"c"]) == 3 - 1
        assert producer.send_and_wait("waited", b"d").offset == 3


def test_several_threads_may_send(address: str) -> None:
    """Nothing is lost between them."""
    with Producer(address) as producer:

        def send() -> None:
            for _ in range(5000):
                producer.send("shared", b"x")

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.statistics().delivered == 15_000


def test_what_can_never_be_sent_is_refused_in_the_callers_thread(address: str) -> None:
    """At once, with the same errors as in the trio form."""
    with Producer(address) as producer:
        with pytest.raises(TypeError, match="encode it first"):
            producer.send("t", "text")
        with pytest.raises(TypeError, match="a key is bytes"):
            producer.send("t", b"", "key")
        with pytest.raises(ValueError, match=r"max\.request\.size"):
            producer.send("t", bytes(2_000_000))


def test_a_partition_that_does_not_exist_is_told_later(address: str) -> None:
    """By the next flush, since the loop finds out."""
    with Producer(address) as producer:
        producer.send_and_wait("known", b"x")
        producer.send("known", b"x", partition=9)
        with pytest.raises(ValueError, match="no known-9"):
            producer.flush()


def test_options_are_checked_when_it_is_made() -> None:
    """Before any thread starts."""
    with pytest.raises(ConfigError, match="linger"):
        Producer("127.0.0.1:1", lingerms=5)


def test_close_gives_up_in_time_and_sending_after_it_is_an_error() -> None:
    """CPR-15: nobody listens there."""
    with Producer("127.0.0.1:1") as producer:
        producer.send("t", b"lost")
        report = producer.close(0.05)
        assert (report.delivered, report.failed, report.undelivered) == (0, 0, 1)
        with pytest.raises(ClientClosed):
            producer.send("t", b"late")


def test_failures_are_raised_at_the_end_of_the_block() -> None:
    """A send cannot get lost silently."""
    short = {"delivery_timeout_ms": 40, "request_timeout_ms": 30, "linger_ms": 1}
    with (
        pytest.raises(DeliveryFailed),
        Producer("127.0.0.1:1", **short, max_block_ms=50) as producer,
    ):
        producer.send("t", b"lost")


def test_an_error_in_the_block_comes_out_as_it_is(address: str, tmp_path: Path) -> None:
    """And what was sent before is delivered."""
    deliveries: list[Delivery] = []
    with (  # noqa: PT012
        pytest.raises(KeyError, match="mine"),
        Producer(address, on_delivery=deliveries.append, ledger=tmp_path / "ledger") as producer,
    ):
        producer.send("t", b"x")
        raise KeyError("mine")
    assert sum(delivery.record_count for delivery in deliveries) == 1


def test_a_listener_that_raises_ends_the_producer_and_every_wait(address: str) -> None:
    """Nobody waits for ever for records of a producer that has ended (a full disk of a ledger)."""

    def fail(delivery: Delivery) -> None:
        raise LookupError("mine")

    with (  # noqa: PT012
        pytest.raises(ExceptionGroup) as caught,
        Producer(address, on_delivery=fail, linger_ms=0) as producer,
    ):
        for _ in range(2000):
            producer.send("t", bytes(500))
        producer.flush()
    assert caught.value.subgroup(LookupError)


def test_the_portal_hands_errors_over_and_refuses_calls_after_its_end() -> None:
    """The caller sees what the call raised; a closed portal says so."""

    async def fail() -> None:
        raise LookupError("there")

    owner, portal = threading.Event(), Portal("test", nullcontext())
    with pytest.raises(ClientClosed, match="`with`"):
        portal.call(fail)
    portal.open(owner)
    with pytest.raises(LookupError, match="there"):
        portal.call(fail)
    portal.close(None)
    with pytest.raises(ClientClosed):
        portal.call(fail)
