"""KeyboardInterrupt at every line of the blocking clients that a program executes.

Each program here is run once for each line event of `client/blocking/` in its thread, with the
interrupt there. A failure names the line: `--only` it by `AtLine(N, FILES, interrupt)`.
"""

import gc
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minibroker.client import TopicPartition, blocking
from minibroker.client.blocking import Admin, Consumer, Producer
from minibroker.client.errors import ClientError
from minibroker.client.producer.delivery import Delivery
from tests.support.interrupts import AtLine, every_line, files_of

FILES = files_of(blocking)
ENDS_WITHIN_S = 10.0
# An interrupt before the first line of the end of a block leaves a client as if it was dropped.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed minibroker:ResourceWarning"),
    pytest.mark.usefixtures("collects_its_own"),
]


class Dropped(logging.Handler):
    """How many records the clients' log says were dropped."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.match(r"(\d+) records? w\w+ dropped", record.getMessage()):
            self.count += int(found[1])


@pytest.fixture
def dropped() -> Iterator[Dropped]:
    """Attached to the clients' log."""
    handler = Dropped()
    log = logging.getLogger("minibroker.client")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def assert_no_thread_is_left(where: object) -> None:
    """The loop of an interrupted client ends, at the latest when nobody has the client any more."""
    names = {"minibroker-producer", "minibroker-consumer", "minibroker-admin"}
    for thread in [each for each in threading.enumerate() if each.name in names]:
        if not ends(thread, 0.1):  # interrupted before anything could be done about it
            gc.collect()
            assert ends(thread, ENDS_WITHIN_S), f"interrupted at {where}: {thread.name} goes on"


def ends(thread: threading.Thread, within_s: float) -> bool:
    """Whether a thread ends so soon; one that is just being started cannot be joined yet."""
    until = time.monotonic() + within_s
    while thread in threading.enumerate():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def values_of(deliveries: list[Delivery]) -> Counter[bytes]:
    """What was acknowledged."""
    return Counter(
        record.value or b""
        for delivery in deliveries
        if delivery.error is None
        for record in delivery.records()
    )


def produce(producer: Producer, call: Callable[[Callable[[], object]], bool]) -> list[bytes]:
    """Send by every way there is; `call` says whether one returned. The values that were taken."""
    taken = []
    small = {"send": b"a", "again": b"b", "key": b"c"}
    for key, value in small.items():
        if call(lambda value=value, key=key: producer.send("t", value, key.encode())):
            taken.append(value)
    large = bytes(3000)
    if call(lambda: producer.send("t", large)):
        taken.append(large)
    call(producer.flush)
    if call(lambda: producer.send("t", b"after a flush")):
        taken.append(b"after a flush")
    if call(lambda: producer.send_and_wait("t", b"waited for")):
        taken.append(b"waited for")
    return taken


def test_a_producer_whose_program_catches_the_interrupt_loses_nothing(address: str) -> None:
    """What `send` took is delivered by the end of the block, wherever a call was interrupted."""

    def call(function: Callable[[], object]) -> bool:
        try:
            function()
        except KeyboardInterrupt:
            return False
        return True

    interrupted = 0
    for at in every_line(FILES):
        deliveries: list[Delivery] = []
        with Producer(address, on_delivery=deliveries.append, linger_ms=0) as producer, at:
            taken = produce(producer, call)
        stored = values_of(deliveries)
        assert all(stored[value] == 1 for value in taken), f"interrupted at {at.where}: {stored}"
        assert max(stored.values()) == 1, f"interrupted at {at.where}: {stored}"
        interrupted += at.where is not None
    assert interrupted > 40
    assert_no_thread_is_left("all")


def test_an_interrupted_producer_says_what_it_dropped(address: str, dropped: Dropped) -> None:
    """What it took is delivered, or counted by the log; and its thread ends."""
    interrupted = 0

    def program(at: AtLine, deliveries: list[Delivery], taken: list[bytes]) -> None:
        def remember(function: Callable[[], object]) -> bool:
            function()
            taken.append(b"")
            return True

        with suppress(KeyboardInterrupt), at:  # noqa: SIM117
            with Producer(address, on_delivery=deliveries.append, linger_ms=5) as producer:
                remember(lambda: producer.send("t", b"a"))
                remember(lambda: producer.send("t", bytes(3000)))
                remember(lambda: producer.send("t", b"b", b"key"))

    for at in every_line(FILES):
        deliveries: list[Delivery] = []
        taken: list[bytes] = []
        dropped.count = 0
        program(at, deliveries, taken)
        assert_no_thread_is_left(at.where)
        told = sum(values_of(deliveries).values()) + dropped.count
        assert told >= len(taken), f"interrupted at {at.where}: {len(taken)} taken, {told} told"
        interrupted += at.where is not None
    assert interrupted > 40


@pytest.fixture(scope="module")
def filled(address: str) -> list[TopicPartition]:
    """A topic of two partitions with 24 records: each costs as many runs as it has lines."""
    names = [TopicPartition("interrupted", number) for number in range(2)]
    with Admin(address) as admin:
        from minibroker.client.admin import NewTopic

        admin.create_topics(NewTopic("interrupted", 2))
    with Producer(address) as producer:
        for number in range(24):
            producer.send("interrupted", b"%d" % number, partition=number % 2)
    return names


def read(consumer: Consumer, *, iterates: bool, enough: int) -> list[tuple[int, int]]:
    """Read and commit until there are so many, whatever interrupts."""
    got: list[tuple[int, int]] = []
    while len(got) < enough:
        with suppress(KeyboardInterrupt):
            if iterates:
                for record in consumer:
                    got.append((record.partition, record.offset))
                    if len(got) % 4 == 0:
                        consumer.commit()
                    if len(got) >= enough:
                        break
            else:
                records = consumer.poll(5)
                got += [(record.partition, record.offset) for record in records]
                consumer.commit()
    return got


@pytest.mark.parametrize("iterates", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_a_consumer_whose_program_catches_the_interrupt_skips_nothing(
    address: str, filled: list[TopicPartition], iterates: bool, commits: bool
) -> None:
    """Each record is returned once, in order, and what is committed was returned before."""
    expected = [(partition, offset) for partition in range(2) for offset in range(12)]
    interrupted = 0
    with Consumer(
        address,
        group_id="interrupted",
        enable_auto_commit=commits,
        max_poll_records=8,
        fetch_max_wait_ms=5,
    ) as consumer:
        consumer.assign(filled)
        for at in every_line(FILES):
            for name in filled:
                consumer.seek(name, 0)
            consumer.commit()
            with at:
                got = read(consumer, iterates=iterates, enough=24)
            assert sorted(got) == expected, f"interrupted at {at.where}"
            assert all(
                [o for p, o in got if p == partition] == list(range(12)) for partition in range(2)
            ), f"interrupted at {at.where}"
            consumer.commit()
            committed = [found and found.offset for found in consumer.committed().values()]
            assert committed == [12, 12], f"interrupted at {at.where}"
            interrupted += at.where is not None
    assert interrupted > 20
    assert_no_thread_is_left("all")


def test_an_interrupted_consumer_commits_nothing_that_was_not_returned(
    address: str, filled: list[TopicPartition]
) -> None:
    """Its successor begins with the first record that the program did not see, or before."""
    options: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "max_poll_records": 8,
        "auto_commit_interval_ms": 1,
    }

    def program(at: AtLine, group: str, seen: dict[int, int]) -> None:
        with suppress(KeyboardInterrupt), at:  # noqa: SIM117
            with Consumer(address, group_id=group, **options) as consumer:
                consumer.assign(filled)
                for _ in range(2):
                    for record in consumer.poll(5):
                        seen[record.partition] = record.offset + 1

    lives: list[tuple[str, object, dict[int, int]]] = []
    for number, at in enumerate(every_line(FILES)):
        group, seen = f"left-{number}", {0: 0, 1: 0}
        program(at, group, seen)
        assert_no_thread_is_left(at.where)
        lives.append((group, at.where, seen))
    with Admin(address) as admin:
        for group, where, seen in lives:
            for name, committed in admin.committed_offsets(group).items():
                assert committed.offset <= seen[name.partition], f"interrupted at {where}"


def test_an_interrupted_admin_leaves_no_thread(address: str) -> None:
    """Whatever line it was."""

    def program(at: AtLine) -> None:
        with suppress(KeyboardInterrupt, ClientError), at, Admin(address) as admin:
            admin.list_topics()

    # Python's own lines for threads too: an interrupt of `Thread.start` may leave the thread
    # hanging, and one of `Thread.join` counts it as ended.
    for at in every_line([*FILES, Path(threading.__file__)]):
        program(at)
        assert_no_thread_is_left(at.where)


def test_every_file_of_the_blocking_clients_is_interrupted() -> None:
    """So that a file that is moved is not forgotten."""
    names = {path.name for path in FILES}
    assert names >= {"consumer.py", "portal.py", "producer.py", "send_queue.py"}
