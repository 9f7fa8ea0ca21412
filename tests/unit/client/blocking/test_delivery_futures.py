"""What the blocking producer's `send` returns: one record's delivery."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client import RecordDelivered
from minibroker.client.admin import NewTopic
from minibroker.client.blocking import Admin, Producer
from minibroker.client.blocking.delivery_future import DeliveryFuture
from minibroker.client.errors import ClientClosed, ClientError, ClientTimeout, DeliveryFailed
from minibroker.protocol.errors import BrokerError

SHORT: dict[str, Any] = {
    "delivery_timeout_ms": 60,
    "request_timeout_ms": 50,
    "linger_ms": 1,
    "max_block_ms": 50,
}


def test_a_future_says_where_its_record_is(address: str) -> None:
    """Each record's own offset, small or large, whatever else is sent."""
    with Producer(address, linger_ms=20) as producer:
        futures = []
        for number in range(2000):
            future = producer.send("futures", bytes(number), partition=0)
            if number % 100 == 0:
                futures.append((number, future))
        assert [future.result(10)[:3] for _, future in futures] == [
            ("futures", 0, number) for number, _ in futures
        ]
        timed = producer.send("futures", b"x", partition=0, timestamp_ms=1_700_000_000_000)
        assert timed.result(10) == RecordDelivered("futures", 0, 2000, 1_700_000_000_000)
        assert all(future.done() and future.exception() is None for _, future in futures)


def test_what_is_dropped_is_sent_without_a_watcher(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A future that nobody has costs nothing for who waits; one that is kept is told about."""
    with Producer(address) as producer:
        producer.send_and_wait("dropped", b"")  # the topic is known
        watched: list[bytes | None] = []
        take = producer.queue._send_watched
        monkeypatch.setattr(
            producer.queue,
            "_send_watched",
            lambda future: (watched.append(future.value), take(future)),
        )
        kept = []
        for number in range(1000):
            future = producer.send("dropped", b"%d" % number)
            if number % 10 == 0:
                kept.append(future)
        del future
        producer.flush()
        assert set(watched) >= {b"%d" % number for number in range(0, 1000, 10)}
        assert len(watched) < 500
        assert all(future.done() for future in kept)
        offsets = [future.result().offset for future in kept]
        assert len(set(offsets)) == 100


def test_dropped_futures_make_no_work_for_the_garbage_collector(address: str) -> None:
    """A new object for each record would start it every 700 records: a fifth of the throughput."""
    collections: list[str] = []
    with Producer(address) as producer:
        for round_ in range(2):
            if round_:  # now the futures of the first round serve again
                gc.callbacks.append(lambda phase, _: collections.append(phase))
            for _ in range(20_000):
                producer.send("collected", b"x")
            producer.flush()
        gc.callbacks.pop()
        assert collections.count("start") < 10
        future = producer.queue.unheld[-1]
        assert (future.value, future.key, future.headers) == (None, None, ())


def test_many_threads_get_the_futures_of_their_records(address: str) -> None:
    """No future that is used again is another's."""
    names = [f"thread{number}" for number in range(4)]
    errors: list[BaseException] = []
    with Admin(address) as admin:
        admin.create_topics(*[NewTopic(name, 1) for name in names])

    def send(name: str) -> None:
        try:
            kept: list[DeliveryFuture] = []
            for number in range(3000):
                future = producer.send(name, b"x")
                if number % 7 == 0:
                    kept.append(future)
            told = [future.result(20)[:3] for future in kept]
            assert told == [(name, 0, number) for number in range(0, 3000, 7)]
        except BaseException as error:
            errors.append(error)

    with Producer(address) as producer:
        threads = [threading.Thread(target=send, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_result_that_takes_too_long_can_be_asked_again() -> None:
    """`TimeoutError`, as a future of Python's raises it."""
    with Producer("127.0.0.1:1", **SHORT) as producer:
        future = producer.send("late", b"x")
        with pytest.raises(TimeoutError, match="within 0 s"):
            future.result(0)
        with pytest.raises(ClientTimeout):
            future.result(10)


def test_callbacks_are_told_of_their_record(address: str) -> None:
    """Also where nobody keeps the future; what they raise is logged and disturbs nothing."""
    told: list[Any] = []

    def fail(*_: object) -> None:
        told.append("failed")
        raise ValueError

    with Producer(address, linger_ms=20) as producer:
        producer.send(
            "called",
            b"1",
            partition=0,
            timestamp_ms=1_700_000_000_000,
            on_delivery=lambda *what: told.append(what),
        )
        producer.send("called", b"2", partition=0, on_delivery=fail)
        producer.send("called", b"3", partition=0).add_done_callback(
            lambda future: told.append(future.result().offset)
        )
        last = producer.send("called", b"4", partition=0)
        assert last.result().offset == 3
        last.add_done_callback(lambda future: told.append(future.result().offset))
        producer.flush()
    assert told == [(None, RecordDelivered("called", 0, 0, 1_700_000_000_000)), "failed", 2, 3]


def test_what_was_told_is_freed_at_once(address: str) -> None:
    """A future with callbacks leaves no cycle for the collector of garbage."""

    class Callback:
        def __call__(self, *what: object) -> None:
            self.what = what

    gc.disable()
    try:
        with Producer(address) as producer:
            callback = Callback()
            future = producer.send("freed", b"a", on_delivery=callback)
            future.add_done_callback(callback)
            found = weakref.ref(callback)
            del callback, future
            producer.flush()
            assert found() is None
    finally:
        gc.enable()


def test_a_failure_that_was_asked_for_is_not_raised_again() -> None:
    """One that nobody asked for is."""
    with Producer("127.0.0.1:1", **SHORT) as producer:
        future = producer.send("t", b"seen")
        with pytest.raises(ClientTimeout):
            future.result()
        assert isinstance(future.exception(), ClientTimeout)
        errors: list[Any] = []
        producer.send("t", b"told", on_delivery=lambda *what: errors.append(what))
        producer.flush()
        assert [(type(error), where) for error, where in errors] == [(ClientTimeout, None)]
        kept = [producer.send("t", b"unseen") for _ in range(3)]
        kept[0].exception()
        kept[0].exception()
        with pytest.raises(DeliveryFailed, match="2 records"):
            producer.flush()


def test_what_cannot_be_sent_is_told_to_its_future(address: str) -> None:
    """A partition that does not exist; `flush` raises it only where nobody asked."""
    with Admin(address) as admin:
        admin.create_topics(NewTopic("narrow", 1))
    with Producer(address) as producer:
        producer.send_and_wait("narrow", b"")
        future = producer.send("narrow", b"x", partition=7)
        with pytest.raises((ValueError, BrokerError), match="partition"):
            future.result()
        producer.flush()
        future = producer.send("narrow", b"x", partition=7)
        with pytest.raises((ValueError, BrokerError), match="partition"):
            producer.flush()


def test_close_tells_the_futures_that_it_gives_up() -> None:
    """Nobody waits for ever."""
    producer = Producer("127.0.0.1:1").start()
    future = producer.send("t", b"")
    assert producer.close(0).undelivered == 1
    with pytest.raises(ClientClosed):
        future.result()


def test_a_callback_cannot_wait_for_a_future(address: str) -> None:
    """It runs in the loop that would have to deliver."""
    errors: list[Exception | None] = []

    def call(function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    with Producer(address) as producer:
        producer.send(
            "waits",
            b"1",
            on_delivery=lambda *_: call(lambda: producer.send("waits", b"2").result()),
        )
        producer.flush()
    assert [type(error) for error in errors] == [ClientError]
