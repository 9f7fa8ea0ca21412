"""One broker in a process of its own for all tests that need just one; each takes its own topics.

Warnings are errors here. What the foreign libraries themselves warn of is no concern of ours:
sockets and event loops that they leave to the garbage collector, and calls that Python deprecates.
"""

import gc
import logging
import warnings
from collections.abc import Iterator
from itertools import count

import pytest

from tests.interop.clients import CLIENTS, Client
from tests.support.apache_kafka import fetch
from tests.support.processes import BrokerProcess, running_broker

FOREIGN_WARNINGS = (
    "ignore:.*:DeprecationWarning:(kafka|aiokafka|confluent_kafka)",
    "ignore:Unclosed Aio?Kafka:ResourceWarning",
)
_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For the tests of this folder only."""
    for item in items:
        if item.path.parent.name == "interop":
            for text in FOREIGN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(text))


@pytest.fixture(scope="module")
def collected_garbage() -> Iterator[None]:
    """Collect what the libraries leave to the garbage collector, before the next module's tests.
    They do not log, because pytest keeps log records, and their tracebacks would keep it alive."""
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Rebalances begin at once, so that a group's first generation is not waited for."""
    settings = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "num.partitions=4")
    settings += ("--set", "group.consumer.heartbeat.interval.ms=500")
    data = tmp_path_factory.mktemp("interop") / "data"
    with running_broker(data, *settings) as running:
        yield running


@pytest.fixture
def bootstrap(broker: BrokerProcess) -> str:
    """The broker's address."""
    return broker.address


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test takes."""
    return f"{request.function.__name__.removeprefix('test_')[:60]}-{next(_numbers)}"


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the clients."""
    return request.param


@pytest.fixture(scope="session")
def kafka_libraries() -> None:
    """Apache Kafka's libraries, from Maven Central; a test needs Java for them (`NEEDS_JAVA`)."""
    fetch()
