"""Topics to read, and their rows: what the tests of the source over the network share.

The objects that Spark would call are called by the tests as it would, which needs no session.
"""

import threading
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import InputPartition

from minibroker.audit.network.source import BatchReader
from minibroker.audit.network.stream import StreamReader
from minibroker.client import NewTopic
from minibroker.client.blocking import Admin, Producer
from tests.support.processes import BrokerProcess

FOREVER = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
LINGER_MS = 10_000
ENDING_S_MAX = 30.0


def create(broker: BrokerProcess, topic: str, partitions: int = 2) -> None:
    """A topic whose records stay, whatever their times."""
    with Admin(broker.address) as admin:
        admin.create_topics(NewTopic(topic, partitions, 1, FOREVER))


def send(broker: BrokerProcess, topic: str, first: int, count: int, partitions: int = 2) -> None:
    """Records whose values say where they are: `count` in each partition from `first` on, as few
    as they are in one batch, which goes out when all are there."""
    with Producer(broker.address, linger_ms=LINGER_MS) as producer:
        for partition in range(partitions):
            for offset in range(first, first + count):
                producer.send(topic, b"%d/%d" % (partition, offset), partition=partition)


def options(broker: BrokerProcess, topics: str, **more: str) -> dict[str, str]:
    """A source's. Keywords are options; an underscore is a dot."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"kafka.bootstrap.servers": broker.address, "subscribe": topics, **named}


def read_all(
    reader: BatchReader | StreamReader, ranges: Iterable[InputPartition]
) -> list[dict[str, Any]]:
    """The rows of all tasks."""
    return [row for part in ranges for batch in reader.read(part) for row in batch.to_pylist()]


def values(rows: list[dict[str, Any]]) -> list[str]:
    """Their values, as text, sorted."""
    return sorted(row["value"].decode() for row in rows)


def expected(*ranges: tuple[int, int, int]) -> list[str]:
    """The values of ranges of offsets: partition, start, end."""
    return sorted(f"{each}/{at}" for each, start, end in ranges for at in range(start, end))


def consumers() -> int:
    """How many are left. A loop ends a moment after its consumer has told that it does."""
    left = [each for each in threading.enumerate() if each.name == "minibroker-consumer"]
    for each in left:
        each.join(ENDING_S_MAX)
    return sum(each.is_alive() for each in left)
