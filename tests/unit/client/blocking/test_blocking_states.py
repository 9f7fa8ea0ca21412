"""What else a thread, a signal handler or a callback may do to a blocking client."""

import gc
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from minibroker.client import TopicPartition
from minibroker.client.blocking import Admin, Consumer, Producer
from minibroker.client.blocking import portal as portal_module
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.producer.delivery import Delivery
from tests.support.interrupts import alarms, is_inside

NAME = TopicPartition("states", 0)
pytestmark = pytest.mark.usefixtures("collects_its_own")


@pytest.fixture(scope="module")
def filled(address: str) -> str:
    """A broker with ten records in the partition."""
    with Producer(address) as producer:
        for number in range(10):
            producer.send(NAME.topic, b"%d" % number, partition=0)
    return address


@pytest.mark.parametrize("calls", [False, True])
def test_signals_at_random_moments_stop_nothing(filled: str, calls: bool) -> None:
    """A thread waits by one call of C, so neither an interrupt nor a handler that calls the same
    client leaves anything locked that the loop needs."""
    rng = random.Random(3)
    count = 0

    def strike(_: int, frame: FrameType | None) -> None:
        nonlocal count
        if is_inside(frame, "client/blocking/portal.py"):
            count += 1
            if not calls:
                raise KeyboardInterrupt
            _ = consumer.assignment

    with Consumer(filled, group_id="struck") as consumer, alarms(strike):
        consumer.assign([NAME])
        while count < 2000:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-4))
            with suppress(KeyboardInterrupt):
                assert consumer.assignment == [NAME]
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert consumer.assignment == [NAME]


def test_a_signal_handler_may_close_what_the_thread_waits_for(filled: str) -> None:
    """As programs do at SIGTERM: the poll that waits then raises `ClientClosed`."""

    def close(_: int, frame: FrameType | None) -> None:
        consumer.close()

    with Consumer(filled, group_id="handled") as consumer, alarms(close):
        consumer.assign([NAME])
        consumer.seek_to_end(NAME)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ClientClosed):
            consumer.poll()


def committed_after(address: str, group: str, how: str) -> int:
    """A thread polls ten records and is at work on them when the consumer ends."""
    has_polled, may_end = threading.Event(), threading.Event()

    def work(consumer: Consumer) -> None:
        while not consumer.poll(5):
            pass
        has_polled.set()
        if how != "has ended":
            may_end.wait()

    with Consumer(address, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([NAME])
        worker = threading.Thread(target=work, args=(consumer,))
        worker.start()
        has_polled.wait()
        if how == "close":
            consumer.close()
        if how == "has ended":  # another thread may get its ident then
            worker.join()
            closing = threading.Thread(target=consumer.close)
            closing.start()
            closing.join()
    may_end.set()
    worker.join()
    with Admin(address) as admin:
        found = admin.committed_offsets(group).get(NAME)
    return found.offset if found else 0


@pytest.mark.parametrize("how", ["close", "end of the block", "has ended"])
def test_what_another_thread_works_on_is_not_committed(filled: str, how: str) -> None:
    """Neither by `close` nor by the end of the block, nor after that thread is gone."""
    assert committed_after(filled, f"worked-{how}", how) == 0


class Application:
    """Holds a producer that calls it."""

    def __init__(self, address: str) -> None:
        self.producer = Producer(address, on_delivery=self.on_delivery)

    def on_delivery(self, delivery: Delivery) -> None:
        """Nothing."""


@pytest.mark.parametrize("how", ["plain", "called back", "failed"])
def test_a_client_that_has_ended_is_collected(filled: str, how: str) -> None:
    """Whatever refers to what: nothing of it is kept for the end of the process."""

    def use() -> "weakref.ref[Producer]":
        producer = Application(filled).producer if how == "called back" else Producer(filled)
        with suppress(ValueError), producer:
            producer.send("collected", b"x")
            if how == "failed":
                raise ValueError
        return weakref.ref(producer)

    before = set(portal_module._open_portals)
    threads = {*threading.enumerate()}
    found = use()
    for thread in {*threading.enumerate()} - threads:
        thread.join()  # it returns a moment after it has said that the client is closed
    gc.collect()
    assert found() is None
    assert portal_module._open_portals <= before


def test_a_client_is_entered_once(filled: str) -> None:
    """Entering it again is an error, and does no harm to the first block."""
    with Producer(filled) as producer:
        producer.send("entered", b"x")
        with pytest.raises(ClientError, match="make another one"):
            producer.__enter__()
        assert producer.send_and_wait("entered", b"y").offset == 1
    with pytest.raises(ClientError, match="make another one"):
        producer.__enter__()


@pytest.mark.parametrize("kind", [ValueError, StopIteration, ExceptionGroup])
def test_an_exception_of_the_block_comes_out_untouched(filled: str, kind: type[Exception]) -> None:
    """Of any kind, and with a traceback of the program's own lines."""
    error = kind("mine", [KeyError()]) if kind is ExceptionGroup else kind("mine")
    with pytest.raises(kind) as caught, Producer(filled) as producer:  # noqa: PT012
        producer.send("raised", b"x")
        raise error
    assert caught.value is error
    frame, files = caught.value.__traceback__, []
    while frame is not None:
        files.append(frame.tb_frame.f_code.co_filename)
        frame = frame.tb_next
    assert not any("client/blocking" in name for name in files if name != __file__)


def test_a_note_of_what_was_not_delivered_is_added_to_the_exception() -> None:
    """The block's exception comes out, and says what else went wrong."""
    short: dict[str, Any] = {"delivery_timeout_ms": 60, "request_timeout_ms": 50, "linger_ms": 1}
    with (  # noqa: PT012
        pytest.raises(ValueError, match="mine") as caught,
        Producer("127.0.0.1:1", max_block_ms=50, **short) as producer,
    ):
        producer.send("t", b"lost")
        raise ValueError("mine")
    assert "1 records were not delivered" in caught.value.__notes__[0]


def test_sys_exit_in_on_delivery_ends_the_program(filled: str) -> None:
    """It is not a group of groups."""

    def on_delivery(_: Delivery) -> None:
        sys.exit(3)

    with (  # noqa: PT012
        pytest.raises(SystemExit) as caught,
        Producer(filled, on_delivery=on_delivery) as producer,
    ):
        producer.send("exits", b"x")
        producer.flush()
    assert caught.value.code == 3


def test_a_send_that_was_interrupted_overtakes_nothing(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is cancelled, also if the interrupt comes right after the loop was told of it."""
    rng = random.Random(1)
    is_armed = False
    run_soon = portal_module.Portal.run_soon

    def interrupted(self: Any, function: Callable[[], object]) -> None:
        nonlocal is_armed
        run_soon(self, function)
        if is_armed and threading.current_thread() is threading.main_thread():
            is_armed = False
            raise KeyboardInterrupt

    monkeypatch.setattr(portal_module.Portal, "run_soon", interrupted)
    deliveries: list[Delivery] = []
    with Producer(
        filled, buffer_memory=20_000, linger_ms=0, on_delivery=deliveries.append
    ) as producer:
        for number in range(4000):
            is_armed = rng.random() < 0.01
            with suppress(KeyboardInterrupt):
                producer.send("overtaken", b"%d" % number, b"key")
            is_armed = False
    values = [int(record.value or b"") for each in deliveries for record in each.records()]
    assert values == sorted(values)
    assert len(values) > 3000


def test_a_poll_after_an_interrupt_waits_for_the_callback(filled: str) -> None:
    """No record is returned before `on_assigned` has ended, which runs once."""
    told: list[str] = []

    def on_assigned(_: list[TopicPartition]) -> None:
        told.append("begun")
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(0.2)
        told.append("ended")

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"group_id": "called", "auto_offset_reset": "earliest"}
    with Consumer(filled, **options) as consumer, alarms(strike):
        consumer.subscribe(NAME.topic, on_assigned=on_assigned)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10)
        assert told == ["begun"]
        assert len(consumer.poll(10)) == 10
        assert told == ["begun", "ended"]


def test_a_close_after_an_interrupted_close_returns(filled: str) -> None:
    """The end of the first one does not end the second."""
    rng = random.Random(5)
    interrupted = 0

    def strike(_: int, frame: FrameType | None) -> None:
        if is_inside(frame, "client/blocking/consumer.py"):
            raise KeyboardInterrupt

    with alarms(strike):
        for _ in range(60):
            with Consumer(filled, group_id="closed") as consumer:
                consumer.assign([NAME])
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-3))
                    consumer.close(5)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                consumer.close(5)
    assert interrupted
