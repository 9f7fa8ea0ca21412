"""The end of blocking clients: close from another thread, exits of the block, a full buffer, forks.

What waits here waits for a port that accepts and never answers, or for a broker on loopback.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from minibroker.client import TopicPartition, blocking
from minibroker.client.blocking import Admin, Consumer, Producer
from minibroker.client.errors import ClientClosed, ClientError, ClientTimeout, DeliveryFailed
from minibroker.client.producer.delivery import Delivery
from tests.support.interrupts import alarms, every_line, files_of, is_inside

FILES = files_of(blocking)
ENDS_WITHIN_S = 10.0


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class InThread:
    """A call in a thread of its own. `error` is what it raised."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.begun = threading.Event()

        def run() -> None:
            self.begun.set()
            try:
                function()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        self.begun.wait()

    def ended(self) -> bool:
        """Whether it ended, soon."""
        self.thread.join(ENDS_WITHIN_S)
        return not self.thread.is_alive()


def wait_until_called(client: Any, call: InThread) -> None:
    """Until the call is under way in the client's loop, or has ended."""
    futures = client.queue.watched if isinstance(client, Producer) else ()
    while not client._portal._running and not futures and call.thread.is_alive():
        call.thread.join(0.001)


NAME = TopicPartition("t", 0)
CONSUMER_CALLS: dict[str, Callable[[Consumer], object]] = {
    "poll": lambda consumer: consumer.poll(),
    "iterate": lambda consumer: next(iter(consumer)),
    "commit": lambda consumer: consumer.commit({NAME: 1}),
    "committed": lambda consumer: consumer.committed(NAME),
    "assign_topics": lambda consumer: consumer.assign_topics("t"),
    "end_offsets": lambda consumer: consumer.end_offsets(NAME),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets(NAME),
    "seek_to_time": lambda consumer: consumer.seek_to_time(1, NAME),
    "lag": lambda consumer: consumer.lag(NAME),
}


@pytest.mark.parametrize("name", CONSUMER_CALLS)
def test_close_ends_a_consumers_call_that_waits(silent: str, name: str) -> None:
    """Whatever another thread waits for, it is told that the consumer was closed."""
    with Consumer(silent, group_id="g") as consumer:
        consumer.assign([NAME])
        call = InThread(lambda: CONSUMER_CALLS[name](consumer))
        wait_until_called(consumer, call)
        consumer.close(0.05)
        assert call.ended()
        assert isinstance(call.error, ClientClosed)


@pytest.mark.parametrize("name", ["unsubscribe", "poll"])
def test_close_ends_a_members_call_that_waits(silent: str, name: str) -> None:
    """A member that never got into its group, too."""
    calls: dict[str, Callable[[Consumer], object]] = CONSUMER_CALLS | {
        "unsubscribe": lambda consumer: consumer.unsubscribe()
    }
    with Consumer(silent, group_id="g") as consumer:
        consumer.subscribe("t")
        call = InThread(lambda: calls[name](consumer))
        wait_until_called(consumer, call)
        consumer.close(0.05)
        assert call.ended()
        assert name == "unsubscribe" or isinstance(call.error, ClientClosed)


PRODUCER_CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: [producer.send("t", bytes(500)) for _ in range(1000)],
    "send large": lambda producer: [producer.send("t", bytes(5000)) for _ in range(100)],
    "send_and_wait": lambda producer: producer.send_and_wait("t", b""),
    "flush": lambda producer: (producer.send("t", b""), producer.flush()),
}


@pytest.mark.parametrize("name", PRODUCER_CALLS)
def test_close_ends_a_producers_call_that_waits(silent: str, name: str) -> None:
    """5: whatever another thread waits for; and close says what was given up, in its time."""
    with Producer(silent, buffer_memory=100_000, batch_size=1000) as producer:
        call = InThread(lambda: PRODUCER_CALLS[name](producer))
        wait_until_called(producer, call)
        report = producer.close(0.05)
        assert call.ended()
        assert isinstance(call.error, ClientClosed)
        assert report.undelivered > 0
        assert report.delivered == 0


class Filling(InThread):
    """Sends from a thread of its own until it is refused. `taken` counts what was not."""

    def __init__(self, producer: Producer, size: int) -> None:
        self._producer, self._queue, self._size = producer._producer, producer.queue, size
        self.taken = 0

        def send() -> None:
            while True:
                producer.send("t", bytes(size))
                self.taken += 1

        super().__init__(send)

    def wait_until_full(self) -> None:
        """Until it waits for room, and there is none."""
        while not (
            self._queue._waiting and self._producer.free_bytes < max(self._size, 1000) + 100
        ):
            self.thread.join(0.001)


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_close_with_a_full_buffer_returns_its_report(
    timeout_s: float, capfd: pytest.CaptureFixture[str]
) -> None:
    """5: every record that `send` took is in the report, and no thread prints a traceback."""
    with Producer("127.0.0.1:1", buffer_memory=100_000) as producer:
        filling = Filling(producer, 300)
        filling.wait_until_full()
        report = producer.close(timeout_s)
        assert filling.ended()
        assert isinstance(filling.error, ClientClosed)
        assert report == (0, 0, filling.taken)
    assert filling.taken > 50
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("size", [100, 900, 5000, 60_000])
def test_what_waits_is_within_buffer_memory(size: int) -> None:
    """6: the queue between the threads counts, for records of any size."""
    memory = 1_000_000
    with Producer("127.0.0.1:1", buffer_memory=memory) as producer:
        filling = Filling(producer, size)
        filling.wait_until_full()
        producer.close(0)
        assert filling.ended()
    assert 0.4 * memory < filling.taken * size <= memory


def test_a_sender_waits_no_longer_than_max_block_ms(address: str) -> None:
    """The error says which limit it was. Answers get lost, so that no memory is given back."""
    with Producer(address, buffer_memory=20_000, max_block_ms=100) as producer:
        producer.send_and_wait("t", b"")
        producer._producer._accumulator.handle_answer = lambda *_: None  # type: ignore[assignment]
        filling = Filling(producer, 900)
        assert filling.ended()
        assert isinstance(filling.error, ClientTimeout)
        assert "buffer.memory" in str(filling.error)
        with suppress(DeliveryFailed):
            producer.close(0)


def test_a_record_that_waits_fails_by_its_delivery_timeout() -> None:
    """6: all that was sent fails delivery.timeout.ms after it was sent, the last as the first."""
    options = {"delivery_timeout_ms": 60, "request_timeout_ms": 50, "linger_ms": 1}
    deliveries: list[Delivery] = []
    with Producer("127.0.0.1:1", on_delivery=deliveries.append, **options) as producer:
        for _ in range(9000):
            producer.send("t", bytes(900))
        producer.flush()
        assert producer.statistics().failed == 9000
        assert producer.statistics().bytes_held == 0


def test_a_sender_that_waits_goes_on_as_soon_as_there_is_room(address: str) -> None:
    """6: not only when all that was sent before it is on its way."""
    with Producer(address, buffer_memory=50_000, batch_size=1000, linger_ms=0) as producer:
        for number in range(3000):
            producer.send("roomy", b"%0100d" % number)
        producer.flush()
        assert producer.statistics().delivered == 3000


@pytest.mark.parametrize("way", ["flush", "send_and_wait"])
def test_nobody_starves_while_other_threads_send(address: str, way: str) -> None:
    """7: waiting is for what was sent before, not for what others go on sending.

    Whenever the loop takes a record over, there is another one, as if a thread had sent it.
    """
    others = 2_000_000
    with Producer(address, batch_size=2000) as producer:
        take_over = producer._producer.send_nowait

        def send_nowait(*record: Any) -> None:
            nonlocal others
            take_over(*record)
            if others:
                others -= 1
                future = producer.queue.new_future()
                future.topic, future.value = "busy", b"other"
                future.partition = future.timestamp_ms = None
                producer._records.append(future)

        producer._producer.send_nowait = send_nowait  # type: ignore[method-assign]
        producer.send("busy", b"first")
        if way == "flush":
            producer.flush()
        else:
            producer.send_and_wait("busy", b"mine")
        left, others = others, 0
        assert left


def test_on_delivery_cannot_wait_for_its_own_loop(address: str) -> None:
    """8: it gets an error instead of a deadlock; sending on is possible."""
    errors: list[Exception] = []

    def on_delivery(delivery: Delivery) -> None:
        for call in (producer.flush, producer.close, lambda: producer.send_and_wait("t", b"")):
            try:
                call()
            except ClientError as error:
                errors.append(error)
        if len(errors) == 3:
            producer.send("called", b"second")

    with Producer(address, on_delivery=on_delivery) as producer:
        producer.send("called", b"first")
        producer.flush()
        producer.flush()
    assert len(errors) == 6
    assert "on_delivery" in str(errors[0])
    assert producer.statistics().delivered == 2


def test_close_from_another_thread_at_every_line(address: str) -> None:
    """The thread that sends gets `ClientClosed`, and what it sent is delivered or given up."""
    for act_at in every_line(FILES, lambda: closing()):
        deliveries: list[Delivery] = []
        taken = 0
        reports = []

        def closing() -> None:
            call = InThread(lambda: reports.append(producer.close(5)))  # noqa: B023
            assert call.ended()
            assert call.error is None

        with (
            Producer(address, on_delivery=deliveries.append, linger_ms=0) as producer,
            suppress(ClientClosed),
            act_at,
        ):
            producer.send("t", b"a")
            taken += 1
            producer.send("t", bytes(3000))
            taken += 1
            producer.flush()
            producer.send_and_wait("t", b"c")
            taken += 1
        delivered = sum(each.record_count for each in deliveries if each.error is None)
        undelivered = reports[0].undelivered if reports else 0
        assert delivered + undelivered >= taken, f"closed at {act_at.where}"


def test_close_of_a_consumer_from_another_thread_at_every_line(address: str) -> None:
    """The committed offset is that of records which were returned, and never goes back."""
    with Producer(address) as producer:
        for number in range(10):
            producer.send("closing", b"%d" % number, partition=0)
    name = TopicPartition("closing", 0)
    options: dict[str, Any] = {"max_poll_records": 5, "fetch_max_wait_ms": 5}
    options |= {"group_id": "closing", "enable_auto_commit": False}
    with Admin(address) as admin:
        for act_at in every_line(FILES, lambda: closing()):

            def closing() -> None:
                call = InThread(consumer.close)
                assert call.ended()
                assert call.error is None

            seen = committed = 0
            with Consumer(address, **options) as consumer:
                consumer.assign([name])
                consumer.commit({name: 0})
                consumer.seek(name, 0)
                with suppress(ClientClosed), act_at:
                    for _ in range(2):
                        seen += len(consumer.poll(5))
                        consumer.commit()
                        committed = seen
            offset = admin.committed_offsets("closing")[name].offset
            assert committed <= offset <= seen, f"closed at {act_at.where}"


# -- how a program ends

PROGRAM = """
import sys, os
from minibroker.client.blocking import Producer
from minibroker.client.errors import ClientError
def tell(delivery):
    if delivery.error is None:
        os.write(1, b"%d delivered\\n" % delivery.record_count)
"""


def run(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        **options,
    )


def test_sys_exit_in_the_block_delivers(address: str) -> None:
    """3: it is a normal end of the block."""
    program = """
with Producer(sys.argv[1], on_delivery=tell, linger_ms=1000) as producer:
    for _ in range(5):
        producer.send("exits", b"x")
    sys.exit(3)
"""
    ended = run(program, address)
    assert (ended.returncode, ended.stdout) == (3, "5 delivered\n")
    assert ended.stderr == ""


def test_sys_exit_does_not_hide_that_nothing_was_delivered() -> None:
    """3: an exit code of 0 would say that all is well."""
    program = """
options = dict(delivery_timeout_ms=60, request_timeout_ms=50, linger_ms=1, max_block_ms=50)
with Producer("127.0.0.1:1", **options) as producer:
    producer.send("exits", b"x")
    sys.exit()
"""
    ended = run(program)
    assert ended.returncode == 1
    assert "DeliveryFailed" in ended.stderr


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit"])
@pytest.mark.parametrize("setup", ["", "import logging; logging.basicConfig(filename=os.devnull)"])
def test_an_interrupt_waits_for_nothing_and_says_what_it_drops(error: str, setup: str) -> None:
    """3: on stderr, once, wherever the log goes."""
    program = f"""
{setup}
try:
    with Producer("127.0.0.1:1") as producer:
        for _ in range(7):
            producer.send("dropped", b"x")
        raise {error}
except {error}:
    pass
"""
    ended = run(program)
    assert ended.returncode == 0
    assert ended.stderr.count("7 records were dropped") == 1


def test_the_end_of_a_process_says_what_it_drops() -> None:
    """A producer that was entered and never left is aborted when the process ends."""
    program = """
producer = Producer("127.0.0.1:1").__enter__()
producer.send("dropped", b"x")
"""
    ended = run(program)
    assert ended.returncode == 0
    assert ended.stderr.count("1 record was dropped") == 1


def in_child(function: Callable[[], str]) -> str:
    """What a function returns, or raises, in the child of a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        told = "nothing"
        try:
            signal.alarm(10)
            told = function()
        except BaseException:
            told = traceback.format_exc()
        finally:
            os.write(writing, told.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def refused(*calls: Callable[[], object]) -> str:
    """The names of the errors that these raise."""
    names = []
    for call in calls:
        try:
            call()
        except Exception as error:
            names.append(f"{type(error).__name__}: {error}")
        else:
            names.append("nothing")
    return "\n".join(names)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_leaves_the_clients_to_its_parent(address: str, tmp_path: Path) -> None:
    """8: there every call raises and the end does nothing; one of its own works; the parent's go
    on, and its ledger has each line once."""
    path = tmp_path / "ledger"

    def child() -> str:
        told = refused(
            lambda: producer.send("fork", b"child"),
            lambda: producer.send("fork", bytes(3000)),
            lambda: producer.send_and_wait("fork", b"child"),
            producer.flush,
            producer.close,
            lambda: consumer.poll(0),
            consumer.commit,
            consumer.close,
        )
        consumer.__exit__(None, None, None)
        producer.__exit__(None, None, None)
        with Producer(address) as own:
            own.send_and_wait("fork", b"own")
        return told

    with (
        Producer(address, ledger=path) as producer,
        Consumer(address, group_id="fork", auto_offset_reset="earliest") as consumer,
    ):
        producer.send_and_wait("fork", b"before")
        consumer.assign_topics("fork")
        told = in_child(child).splitlines()
        assert len(told) == 8
        assert all(line.startswith("ClientClosed: this client belongs to") for line in told), told
        producer.send_and_wait("fork", b"after")
        values: list[bytes | None] = []
        while len(values) < 3:
            values += [record.value for record in consumer.poll(5)]
    assert sorted(value or b"" for value in values) == [b"after", b"before", b"own"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["name"] for line in lines] == [
        "startup_complete",
        *["producer_send_success"] * 2,
        "shutdown_complete",
    ]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_end_of_a_child_process_touches_nothing(address: str, tmp_path: Path) -> None:
    """8: neither does a child that ends as any process does, inside of the block."""
    path = tmp_path / "ledger"
    program = """
import warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
with Producer(sys.argv[1], ledger=sys.argv[2]) as producer:
    producer.send_and_wait("ends", b"1")
    child = os.fork()
    if not child:
        sys.exit(5)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 5, status
    print(producer.send_and_wait("ends", b"2").offset)
"""
    ended = run(program, address, str(path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")
    assert len(path.read_text().splitlines()) == 4


def test_random_interrupts_lose_nothing(address: str) -> None:
    """1: real signals at random moments, while a poll waits or has just got its records."""
    import random

    rng = random.Random(14)
    name = TopicPartition("struck", 0)
    with Producer(address) as producer:
        for number in range(1000):
            producer.send(name.topic, b"%d" % number, partition=0)

    def strike(_: int, frame: FrameType | None) -> None:
        if is_inside(frame, "client/blocking/consumer.py"):
            raise KeyboardInterrupt

    count = 0
    with alarms(strike), Consumer(address, group_id="struck", max_poll_records=7) as consumer:
        consumer.assign([name])
        while count < 50:
            consumer.seek(name, 0)
            got: list[int] = []
            while len(got) < 1000:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 1e-3))
                    records = consumer.poll(5)
                except KeyboardInterrupt:
                    count += 1
                    continue
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                got += [record.offset for record in records]
            assert got == list(range(1000))
