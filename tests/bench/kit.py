"""What a broker in a test costs: the testing kit beside what else Python's tests use.

Each start is timed from nothing to the first record that a member of a new group has read, with
confluent-kafka in this process. The mock is librdkafka's own, which lies in the client's process
and keeps nothing. Apache Kafka is one node in KRaft mode, as testcontainers would start it, but
without a container; it is left out where there is no Java or Maven.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final
from uuid import uuid4

from confluent_kafka import Consumer, Producer

from minibroker.testing import running_cluster
from tests.bench.rounds import ROUNDS, Row, by_turns, seconds
from tests.bench.yardsticks import make_mock_producer, mock_address
from tests.support.apache_kafka import CannotRun, fetch, running_kafka

LIBRARIES: Final = "import trio, msgpack"
ONE_MAX: Final = 3.0
THREE_MAX: Final = 6.0
READ_S_MAX: Final = 60.0

Cluster = Callable[[], AbstractContextManager[str]]


def kit_start() -> Iterator[Row]:
    """Until the brokers of a test answer, beside an interpreter with the libraries they need."""
    for brokers, ratio_max in ((1, ONE_MAX), (3, THREE_MAX)):
        pair = by_turns(partial(_start, brokers), _load_libraries, ROUNDS)
        yield Row(
            f"a cluster of a test: {brokers} of its brokers answer",
            seconds(pair.ours),
            f'python -c "{LIBRARIES}"',
            seconds(pair.theirs),
            f"{pair.ratio:.1f}",
            f"<= {ratio_max:g}",
            pair.ratio <= ratio_max,
        )


def kit_first_record() -> Iterator[Row]:
    """From nothing to the first record through a group, and again on what runs already."""
    others: dict[str, Cluster] = {"librdkafka's mock": _mock}
    try:
        fetch()
        others["one node of Apache Kafka"] = _kafka
    except CannotRun as error:
        yield Row(f"Apache Kafka is left out: {error}", "")
    for name, other in others.items():
        for what, measure in (("from nothing", _from_nothing), ("in a further test", _further)):
            pair = by_turns(partial(measure, _kit), partial(measure, other), ROUNDS)
            yield Row(
                f"the first record through a new group, {what}",
                seconds(pair.ours),
                name,
                seconds(pair.theirs),
                f"{pair.ratio:.2f}",
            )


def _from_nothing(cluster: Cluster) -> float:
    began = time.perf_counter()
    with cluster() as bootstrap:
        _send_and_read(bootstrap)
        return time.perf_counter() - began


def _further(cluster: Cluster) -> float:
    with cluster() as bootstrap:
        _send_and_read(bootstrap)
        began = time.perf_counter()
        _send_and_read(bootstrap)
        return time.perf_counter() - began


def _send_and_read(bootstrap: str) -> None:
    """A topic, which the broker makes for its first record, and a group that reads it, all new."""
    topic = f"t-{uuid4().hex}"
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, b"x")
    assert producer.flush(READ_S_MAX) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(READ_S_MAX)
    assert message is not None
    assert message.value() == b"x", message.error()
    consumer.close()


def _start(brokers: int) -> float:
    began = time.perf_counter()
    with running_cluster(brokers):
        return time.perf_counter() - began


def _load_libraries() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", LIBRARIES], check=True)
    return time.perf_counter() - began


@contextmanager
def _kit() -> Iterator[str]:
    with running_cluster(1) as cluster:
        yield cluster.bootstrap


@contextmanager
def _mock() -> Iterator[str]:
    producer = make_mock_producer()  # the mock lives as long as this does
    yield mock_address(producer)


@contextmanager
def _kafka() -> Iterator[str]:
    with running_kafka(1) as kafka:
        yield kafka.addresses


MEASURES: Final = (kit_start, kit_first_record)
