"""`make bench-kafka`: minibroker beside Apache Kafka, on this machine, by turns.

    python -m tests.bench.against_kafka [--nodes 1] [--nodes 3] [--only transaction]

The same client (confluent-kafka) with the same settings, against both, one after the other, in
rounds; a ratio is the median of the ratios of the rounds. Both clusters run the whole time; the one
that is not measured has nothing to do. Kafka has its own defaults, minibroker those of
`minibroker cluster up`. Neither forces records to the disk before it acknowledges them.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from tests.bench.__main__ import WIDTH, table_of
from tests.bench.rounds import Row, by_turns, millions, milliseconds, run_module, seconds
from tests.support import apache_kafka
from tests.support.processes import running_cluster

KAFKA = f"Apache Kafka {apache_kafka.VERSION}"
RECORDS = 300_000
TRANSACTIONS = {1: 300, 100: 200, 10_000: 20}  # records of each -> how many
KILLS = 3
PROBE_S = 0.01
HEALED_S_MAX = 60.0
_numbers = count()


class Cluster(Protocol):
    """What both are."""

    @property
    def addresses(self) -> str:
        """For `bootstrap.servers`."""

    def kill(self, node: int, /) -> None:
        """kill -9."""

    def start(self, node: int, /) -> None:
        """Start it again."""


def new_topic(cluster: Cluster, partitions: int, copies: int) -> str:
    """A topic that nobody has used."""
    name = f"bench-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": cluster.addresses, "log_level": 0})
    config = {"min.insync.replicas": str(min(2, copies))}
    admin.create_topics([NewTopic(name, partitions, copies, config=config)])[name].result(30)
    return name


def run(figure: str, cluster: Cluster, name: str, topic: str, *options: object) -> float:
    """One measurement of `kafka_clients`."""
    return run_module("kafka_clients", name, cluster.addresses, topic, *options)[figure]


def produce_rows(ours: Cluster, theirs: Cluster, nodes: int) -> Iterator[Row]:
    """Small and large batches, with each kind of acknowledgement."""
    copies = min(3, nodes)
    for batch, size in ((16_384, "16 KB"), (1_000_000, "1 MB")):
        for acks, more in (("1", ()), ("all", ()), ("all", ("--idempotent",))):

            def measure(
                cluster: Cluster, acks: str = acks, more: tuple[str, ...] = more, batch: int = batch
            ) -> float:
                topic = new_topic(cluster, 4, copies)
                options = ("--acks", acks, "--batch", batch, "--count", RECORDS, *more)
                return run("records_per_s", cluster, "produce", topic, *options)

            pair = by_turns(partial(measure, ours), partial(measure, theirs))
            kind = "idempotent" if more else f"acks={acks}"
            yield Row(
                f"{nodes} node(s): produce, batches of {size}, {kind}",
                millions(pair.ours),
                KAFKA,
                millions(pair.theirs),
                f"{pair.ratio:.2f}",
            )


def consume_row(ours: Cluster, theirs: Cluster, nodes: int) -> Iterator[Row]:
    """A group of one reads four partitions."""
    topics = {}
    for cluster in (ours, theirs):
        topics[cluster] = new_topic(cluster, 4, min(3, nodes))
        run("records_per_s", cluster, "produce", topics[cluster], "--count", RECORDS)

    def measure(cluster: Cluster) -> float:
        return run("records_per_s", cluster, "consume", topics[cluster], "--count", RECORDS)

    pair = by_turns(partial(measure, ours), partial(measure, theirs))
    yield Row(
        f"{nodes} node(s): consume",
        millions(pair.ours),
        KAFKA,
        millions(pair.theirs),
        f"{pair.ratio:.2f}",
    )


def latency_rows(ours: Cluster, theirs: Cluster, nodes: int) -> Iterator[Row]:
    """From when a record was due until it was read, acks=all."""
    topics = {cluster: new_topic(cluster, 1, min(3, nodes)) for cluster in (ours, theirs)}
    for rate in (100, 1000):
        found: dict[Cluster, list[dict[str, float]]] = {ours: [], theirs: []}
        for _ in range(3):
            for cluster in (ours, theirs):
                options = (cluster.addresses, topics[cluster], "--rate", rate)
                found[cluster].append(run_module("kafka_clients", "latency", *options))
        for name in ("p50_ms", "p99_ms"):
            mine = [each[name] for each in found[ours]]
            other = [each[name] for each in found[theirs]]
            ratios = [one / two for one, two in zip(mine, other, strict=True)]
            yield Row(
                f"{nodes} node(s): latency at {rate} records/s, {name[:3]}",
                milliseconds(statistics.median(mine)),
                KAFKA,
                milliseconds(statistics.median(other)),
                f"{statistics.median(ratios):.2f}",
            )


def transaction_rows(ours: Cluster, theirs: Cluster, nodes: int) -> Iterator[Row]:
    """Transactions of few and of many records, one after the other."""
    topics = {cluster: new_topic(cluster, 4, min(3, nodes)) for cluster in (ours, theirs)}
    for records, transactions in TRANSACTIONS.items():
        found: dict[Cluster, list[dict[str, float]]] = {ours: [], theirs: []}
        for _ in range(3):
            for cluster in (ours, theirs):
                options = ("--records", records, "--count", transactions)
                where = cluster.addresses, topics[cluster]
                found[cluster].append(run_module("kafka_clients", "transactions", *where, *options))
        for name, text in (("records_per_s", "records"), ("p50_ms", "p50"), ("p99_ms", "p99")):
            mine = [each[name] for each in found[ours]]
            other = [each[name] for each in found[theirs]]
            ratios = [one / two for one, two in zip(mine, other, strict=True)]
            shown = milliseconds if name.endswith("_ms") else per_second
            yield Row(
                f"{nodes} node(s): transactions of {records:,}, {text}",
                shown(statistics.median(mine)),
                KAFKA,
                shown(statistics.median(other)),
                f"{statistics.median(ratios):.2f}",
            )


def per_second(count: float) -> str:
    """Records a second, where they may be few."""
    return f"{count:,.0f}/s"


def first_rows(ours: Cluster, theirs: Cluster, nodes: int) -> Iterator[Row]:
    """The first record of a new producer, of an idempotent one, and of a new group. Mostly the
    library waits: for its connections, and for what it asks again after a pause of its own."""
    topics = {}
    for cluster in (ours, theirs):
        topics[cluster] = new_topic(cluster, 1, min(3, nodes))
        run("records_per_s", cluster, "produce", topics[cluster], "--count", 10)
    kinds: dict[str, tuple[str, ...]] = {
        "a new producer's first acknowledgement, acks=all": ("first-produce",),
        "the same, idempotent": ("first-produce", "--idempotent"),
        "a new group's first record": ("first",),
    }
    for kind, (name, *more) in kinds.items():

        def measure(cluster: Cluster, name: str = name, more: Sequence[str] = more) -> float:
            return run("seconds", cluster, name, topics[cluster], *more)

        pair = by_turns(partial(measure, ours), partial(measure, theirs), 5)
        yield Row(
            f"{nodes} node(s): {kind}",
            seconds(pair.ours),
            KAFKA,
            seconds(pair.theirs),
            f"{pair.ratio:.2f}",
        )


def failover_row(ours: Cluster, theirs: Cluster, nodes: int) -> Iterator[Row]:
    """kill -9 of a leader until a record is acknowledged that was sent afterwards."""
    measure: Callable[[Cluster], float] = _fail_over
    pair = by_turns(partial(measure, ours), partial(measure, theirs), KILLS)
    yield Row(
        f"{nodes} node(s): kill -9 of a leader to the next acknowledgement",
        seconds(pair.ours),
        KAFKA,
        seconds(pair.theirs),
        f"{pair.ratio:.2f}",
    )


def _fail_over(cluster: Cluster) -> float:
    topic = new_topic(cluster, 1, 3)
    options = {"bootstrap.servers": cluster.addresses, "acks": "all", "linger.ms": 0}
    producer = Producer({**options, "log_level": 0})
    acknowledged: list[float] = []  # when the records were sent

    def send() -> None:
        now = time.perf_counter()
        producer.produce(
            topic,
            b"probe",
            on_delivery=lambda error, _: None if error else acknowledged.append(now),
        )
        producer.poll(PROBE_S)

    while len(acknowledged) < 20:
        send()
    partition = producer.list_topics(topic, timeout=10).topics[topic].partitions[0]
    cluster.kill(partition.leader)
    killed = time.perf_counter()
    while not acknowledged or acknowledged[-1] < killed:
        send()
        assert time.perf_counter() - killed < HEALED_S_MAX, "nobody leads"
    took = time.perf_counter() - killed
    producer.flush(HEALED_S_MAX)
    cluster.start(partition.leader)
    deadline = time.monotonic() + HEALED_S_MAX
    while len(producer.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) < 3:
        assert time.monotonic() < deadline, "it does not come back"
        time.sleep(0.5)
    return took


MEASURES = (produce_rows, consume_row, latency_rows, transaction_rows, first_rows)


def rows(nodes: int, only: str = "") -> Iterator[Row]:
    """All of them for clusters of so many nodes, or those whose name begins with `only`."""
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(apache_kafka.running_kafka(nodes))
        root = stack.enter_context(TemporaryDirectory(prefix="minibroker-bench-"))
        ours = stack.enter_context(running_cluster(Path(root), nodes))
        for measure in MEASURES:
            if measure.__name__.startswith(only):
                yield from measure(ours, theirs, nodes)
        if nodes >= 3 and failover_row.__name__.startswith(only):
            yield from failover_row(ours, theirs, nodes)


def main() -> int:
    """Measure, then show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", action="append", type=int, help="may be given several times")
    parser.add_argument("--only", default="", help="the beginning of a name: produce, transaction")
    given = parser.parse_args()
    wanted = given.nodes or [1, 3]
    try:
        apache_kafka.fetch()
    except apache_kafka.CannotRun as error:
        print(error, file=sys.stderr)
        return 1
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    found: list[Row] = []
    try:
        with console.status("") as status:
            for nodes in wanted:
                for row in rows(nodes, given.only):
                    found.append(row)
                    status.update(f"{row.name}: {row.ours}, {row.theirs}")
    finally:
        console.print(table_of(found))
        console.print(
            f"Values of 100 bytes; load {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
