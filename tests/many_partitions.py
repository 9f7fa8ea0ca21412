"""Clusters of many partitions: what each event of their lives costs, in one table.

    python -m tests.many_partitions [--store sqlite|etcd] [--only STORY]...
                                    [--connections N] [--groups N] [--set NAME=VALUE]... SIZE...

A size is a number of partitions, in topics of up to 100 each; `5000x1` are as many topics with one
partition each. Three brokers with replication factor 3 run on this machine, at the settings of
`minibroker cluster up`; on etcd with the session of 6 s that is usual there. All partitions are in
sync when each broker says so (`/ready`); the store has the last word about it, and knows the leader
epochs.

With `--connections` and `--groups` a crowd of clients (`tests/support/crowd.py`) is there from the
creation on. A scenario then ends when it has all its connections and each group has read a record
that was sent after the rest of the scenario. The partitions of the crowd's topics and of
`__consumer_offsets` are part of the size.

How late a broker's loop was is its own figure (`minibroker_event_loop_lag_seconds`), which it takes
ten times a second: the 99th percentile of a scenario's samples, and the range of the latest one.
"""

import argparse
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from minibroker.client import Admin, NewTopic
from tests.support.crowd import OFFSETS_PARTITIONS, Crowd, CrowdSize
from tests.support.crowd import PARTITIONS as CROWD_PARTITIONS
from tests.support.crowd import new_topics as crowd_topics
from tests.support.etcd import running_etcd
from tests.support.processes import (
    BrokerProcess,
    ClusterProcesses,
    resident_bytes,
    run_cli,
    run_here,
    running_cluster,
)

NODES = 3
PARTITIONS_OF_A_TOPIC = 100
AWAY_S = 5.0  # how long a killed broker is away
SETTLING_S = 5.0
IDLE_S = 20.0
LATENCY_RATE = 100
LATENCY_S = 10
MEASURED = "measured"
SCRAPES = 3
NO_CROWD = CrowdSize()
PATIENCE_S = 1200.0
LOOK_EVERY_S_MIN = 0.1
LOOK_EVERY_S_EACH = 0.0001  # for each partition: a look at all of them is work for a broker
PAGES = re.compile(r"Health and metrics: (http://\S+)/ready")
SESSION_ENDED = "Its session ended"
LAG = "minibroker_event_loop_lag_seconds"
SHRINKS = re.compile(r"^kafka_server_replicamanager_isrshrinks_total (\S+)", re.MULTILINE)
REPLICAS = re.compile(r"^kafka_server_replicamanager_partitioncount (\S+)", re.MULTILINE)
# What is counted are the elections that a fault costs; leaders that come back are another matter.
SETTINGS = {"http.listener": "127.0.0.1:0", "auto.leader.rebalance.enable": "false"}
# What a broker takes with etcd where neither is set; `cluster up` sets shorter ones.
ETCD_SETTINGS = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1500"}


class Size(NamedTuple):
    """How many topics, and how many partitions each of them has."""

    topics: int
    partitions_each: int

    @classmethod
    def of(cls, text: str) -> "Size":
        """`5000` or `5000x1`."""
        topics, _, each = text.partition("x")
        if each:
            return cls(int(topics), int(each))
        each_max = min(int(topics), PARTITIONS_OF_A_TOPIC)
        return cls(int(topics) // each_max, each_max)

    @property
    def partitions(self) -> int:
        """Of all topics."""
        return self.topics * self.partitions_each

    def new_topics(self, crowd: CrowdSize) -> list[NewTopic]:
        """All of them. The last partition has a topic of its own, in which latency is measured, and
        those before are the crowd's: more partitions than 10,000 a cluster does not take."""
        others = [NewTopic(MEASURED, 1, NODES)]
        room = self.partitions - 1
        if crowd.groups:
            others += crowd_topics(NODES)
            room -= CROWD_PARTITIONS
        topics = []
        for number in range(self.topics):
            if count := min(self.partitions_each, room):
                topics.append(NewTopic(f"many-{number}", count, NODES))
                room -= count
        return [*topics, *others]

    def __str__(self) -> str:
        topics = f"{self.topics:,} topics" if self.topics > 1 else "1 topic"
        return f"{self.partitions:,} in {topics}"


@dataclass
class Lags:
    """Looks at a loop, by the upper end of the range that they were late by."""

    counts: Counter[float] = field(default_factory=Counter)

    @classmethod
    def of(cls, page: str) -> "Lags":
        """As a broker tells them since its start."""
        families = {family.name: family for family in text_string_to_metric_families(page)}
        counts, before = Counter[float](), 0.0
        for sample in families[LAG].samples:
            if sample.name.endswith("_bucket"):
                counts[float(sample.labels["le"])] = int(sample.value - before)
                before = sample.value
        return cls(counts)

    def __sub__(self, other: "Lags") -> "Lags":
        return Lags(self.counts - other.counts)

    def __add__(self, other: "Lags") -> "Lags":
        return Lags(self.counts + other.counts)

    def bound(self, share: float) -> float:
        """So late, in seconds, was this share of the looks at most."""
        seen, total = 0, self.counts.total()
        for bound in sorted(self.counts):
            seen += self.counts[bound]
            if self.counts[bound] and seen >= share * total:
                return bound
        return 0.0


@dataclass
class ScenarioCosts:
    """What a scenario cost: seconds by what they were for, and what the cluster went through."""

    seconds: dict[str, float] = field(default_factory=dict)
    epochs: int = 0  # the most leader epochs that a partition went through
    sessions_lost: int = 0
    shrinks: int = 0  # of in-sync sets, at the brokers that live in the end
    lags: Lags = field(default_factory=Lags)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """How long the block takes."""
        began = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - began

    def figures(self) -> dict[str, str]:
        """For the table."""
        shown = {what: f"{seconds:.1f} s" for what, seconds in self.seconds.items()}
        shown["leader epochs"] = f"{self.epochs}"
        shown["sessions lost"] = f"{self.sessions_lost}"
        shown["in-sync sets shrunk"] = f"{self.shrinks}"
        shown["loop late, 99 % / latest"] = (
            f"{self.lags.bound(0.99) * 1000:.0f} / {self.lags.bound(1) * 1000:.0f} ms"
        )
        return shown


class ManyPartitions:
    """A cluster, and the scenarios of its life; made by `many_partitions`."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        size: Size,
        store: str,
        away_s: float,
        crowd: CrowdSize = NO_CROWD,
    ) -> None:
        self.cluster = cluster
        self.size = size
        self.crowd: Crowd | None = None  # from `gather` on
        self._crowd_size = crowd
        self._partitions = 0  # that are in the cluster by now
        self._away_s = away_s
        self._store = store or f"sqlite:{cluster.layout.root / 'metadata.db'}"
        self._look_every_s = max(LOOK_EVERY_S_MIN, size.partitions * LOOK_EVERY_S_EACH)

    def page(self, broker: BrokerProcess, path: str) -> httpx.Response:
        """One of a broker's pages."""
        found = PAGES.search(broker.output)
        assert found, broker.output
        return httpx.get(found[1] + path, trust_env=False, timeout=30)

    def lags(self) -> dict[int, Lags]:
        """Of each process that runs."""
        return {
            broker.pid: Lags.of(self.page(broker, "/public_metrics").text)
            for broker in self.cluster.brokers.values()
            if broker.is_running
        }

    def shrinks(self) -> dict[int, int]:
        """How many in-sync sets each process that runs has had shrunk."""
        return {
            broker.pid: int(float(SHRINKS.search(self.page(broker, "/public_metrics").text)[1]))
            for broker in self.cluster.brokers.values()
            if broker.is_running
        }

    def replicas_of(self, broker: BrokerProcess) -> float:
        """How many replicas a broker has been told of."""
        return float(REPLICAS.search(self.page(broker, "/public_metrics").text)[1])

    def epochs(self) -> dict[str, int]:
        """The leader epoch of each partition in the store; all must have a whole in-sync set."""
        done = run_here("cluster", "export", "--store", self._store)
        assert done.returncode == 0, done.stderr
        found = {
            f"{topic['name']}-{one['partition']}": one
            for topic in json.loads(done.stdout)["topics"]
            for one in topic["partitions"]
        }
        lacking = {name: one["isr"] for name, one in found.items() if len(one["isr"]) < NODES}
        assert not lacking, lacking
        return {name: one["leader_epoch"] for name, one in found.items()}

    def is_in_sync(self) -> bool:
        """Whether each broker that runs has all its replicas, and says that they are in sync."""
        running = [broker for broker in self.cluster.brokers.values() if broker.is_running]
        return all(self.page(broker, "/ready").status_code == 200 for broker in running) and all(
            self.replicas_of(broker) >= self._partitions for broker in running
        )

    def until_in_sync(self) -> None:
        """Return once it is so; an `AssertionError` if it does not come to be."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_in_sync():
            if time.monotonic() > deadline:
                told = [self.page(one, "/ready").text for one in self.cluster.brokers.values()]
                raise AssertionError(f"not in sync: {told}")
            time.sleep(self._look_every_s)

    @contextmanager
    def measuring(self) -> Iterator[ScenarioCosts]:
        """Measure a scenario. Its costs are complete when the block ends."""
        costs = ScenarioCosts()
        lags, epochs = self.lags(), self.epochs() if self.size.topics else {}
        shrinks = self.shrinks()
        lines = {one.pid: len(one.lines) for one in self.cluster.brokers.values()}
        yield costs
        for pid, found in self.lags().items():
            costs.lags += found - lags.get(pid, Lags())
        costs.shrinks = sum(count - shrinks.get(pid, 0) for pid, count in self.shrinks().items())
        for one in self.cluster.brokers.values():
            news = one.lines[lines.get(one.pid, 0) :]
            costs.sessions_lost += sum(SESSION_ENDED in line for line in news)
        after = self.epochs()
        changed = (epoch - epochs.get(name, 0) for name, epoch in after.items())
        costs.epochs = max(changed, default=0)

    def controller(self) -> int:
        """The broker that is it."""
        return trio.run(self._described)[0]

    async def _described(self) -> tuple[int, set[int]]:
        running = [n for n, one in self.cluster.brokers.items() if one.is_running]
        async with Admin(",".join(map(self.cluster.address_of, running))) as admin:
            found = await admin.describe_cluster()
        return found.controller_id, {one.node_id for one in found.brokers}

    async def _create(self, topics: Sequence[NewTopic]) -> None:
        async with Admin(self.cluster.addresses, default_api_timeout_ms=180_000) as admin:
            await admin.create_topics(*topics)

    def create(self, costs: ScenarioCosts) -> None:
        """All topics in one request."""
        topics = self.size.new_topics(self._crowd_size)
        with costs.timing("answered"):
            trio.run(self._create, topics)
        self._partitions = sum(topic.num_partitions for topic in topics)
        with costs.timing("then in sync"):
            self.until_in_sync()

    def gather(self, costs: ScenarioCosts) -> None:
        """All members join, and all connections are made."""
        with costs.timing("all groups read"):
            self.crowd = Crowd(self.cluster.addresses, self._crowd_size)
            self.crowd.until_whole(PATIENCE_S)
        self._partitions += self._crowd_size.groups and OFFSETS_PARTITIONS
        self.until_in_sync()

    def _lose(self, costs: ScenarioCosts, victim: int) -> None:
        self.cluster.kill(victim)
        with costs.timing("others lead"):
            while victim in trio.run(self._described)[1]:
                time.sleep(LOOK_EVERY_S_MIN)
            self.until_in_sync()
        time.sleep(self._away_s)
        with costs.timing("back, answers"):
            self.cluster.start(victim)
        with costs.timing("then in sync"):
            self.until_in_sync()

    def kill(self, costs: ScenarioCosts) -> None:
        """`kill -9` of a broker that is not the controller, which comes back."""
        controller = self.controller()
        self._lose(costs, next(n for n in self.cluster.brokers if n != controller))

    def kill_controller(self, costs: ScenarioCosts) -> None:
        """`kill -9` of the controller, which comes back."""
        self._lose(costs, self.controller())

    def restart(self, costs: ScenarioCosts) -> None:
        """One broker is stopped in order and started."""
        with costs.timing("stop"):
            assert self.cluster.stop(1) == 0
        with costs.timing("back, answers"):
            self.cluster.start(1)
        with costs.timing("then in sync"):
            self.until_in_sync()

    def roll(self, costs: ScenarioCosts) -> None:
        """One after the other, each when all are in sync again."""
        with costs.timing("all three"):
            for node_id in self.cluster.brokers:
                assert self.cluster.stop(node_id) == 0
                self.cluster.start(node_id)
                self.until_in_sync()

    def stop_and_start(self, costs: ScenarioCosts) -> None:
        """All brokers at once."""
        brokers = [*self.cluster.brokers.values()]
        with costs.timing("stop"):
            for one in brokers:
                one.send_signal(signal.SIGTERM)
            assert [one.wait(PATIENCE_S) for one in brokers] == [0] * NODES
        with costs.timing("back, answer"):
            self.cluster.start()
        with costs.timing("then in sync"):
            self.until_in_sync()

    def rest(self) -> dict[str, str]:
        """Nothing happens: processor time and memory of each broker."""
        brokers = [*self.cluster.brokers.values()]
        time.sleep(SETTLING_S)
        before = [_cpu_s(one.pid) for one in brokers]
        time.sleep(IDLE_S)
        spent = [_cpu_s(one.pid) - was for one, was in zip(brokers, before, strict=True)]
        return {
            "CPU of a broker": _spread([share / IDLE_S * 100 for share in spent], "%"),
            "memory of a broker": _spread([resident_bytes(one.pid) / 1e6 for one in brokers], "MB"),
        }

    def scrape(self) -> dict[str, str]:
        """What a monitoring system asks for, of one broker after the other."""
        figures = {}
        for path in ("/metrics", "/public_metrics"):
            took, sizes = [], []
            for _ in range(SCRAPES):
                for broker in self.cluster.brokers.values():
                    began = time.monotonic()
                    sizes.append(len(self.page(broker, path).content) / 1e6)
                    took.append(time.monotonic() - began)
            figures[path] = f"{_spread(took, 's', 2)}, {_spread(sizes, 'MB', 2)}"
        return figures

    def latency(self) -> dict[str, str]:
        """One record after another, from send to poll, while all else rests."""
        options = f"--topic {MEASURED} --format json --rate {LATENCY_RATE} --seconds {LATENCY_S}"
        address = ("--bootstrap-server", self.cluster.addresses)
        done = run_cli("bench", "latency", *options.split(), *address, timeout_s=120)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return {"p50 / p99": f"{found['p50_ms']:.1f} / {found['p99_ms']:.1f} ms"}


def _cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / 100


def _spread(values: list[float], unit: str, digits: int = 0) -> str:
    return f"{min(values):.{digits}f}-{max(values):.{digits}f} {unit}"


GATHER = "crowd"
SCENARIOS: Mapping[str, Callable[[ManyPartitions, ScenarioCosts], None]] = {
    "create": ManyPartitions.create,
    "kill -9": ManyPartitions.kill,
    "kill -9 of the controller": ManyPartitions.kill_controller,
    "restart": ManyPartitions.restart,
    "roll": ManyPartitions.roll,
    "stop and start of all": ManyPartitions.stop_and_start,
}
MEASURES: Mapping[str, Callable[[ManyPartitions], dict[str, str]]] = {
    "idle": ManyPartitions.rest,
    "scrape": ManyPartitions.scrape,
    f"records at {LATENCY_RATE}/s": ManyPartitions.latency,
}


@contextmanager
def many_partitions(
    root: Path,
    size: Size,
    store: str = "sqlite",
    *,
    away_s: float = AWAY_S,
    crowd: CrowdSize = NO_CROWD,
    given: Mapping[str, str] | None = None,
) -> Iterator[ManyPartitions]:
    """Brokers that answer, without their topics yet; `given` are settings of theirs."""
    with ExitStack() as stack:
        url = ""
        if store == "etcd":
            (root / "etcd").mkdir()
            (member,) = stack.enter_context(running_etcd(root / "etcd", is_durable=True))
            url = f"etcd:{member.url}"
        settings = SETTINGS | (ETCD_SETTINGS if url else {}) | dict(given or {})
        cluster = stack.enter_context(running_cluster(root / "cluster", NODES, settings, url))
        cluster.start_s_max = cluster.stop_s_max = PATIENCE_S
        many = ManyPartitions(cluster, size, url, away_s, crowd)
        try:
            yield many
        finally:
            if many.crowd is not None:
                many.crowd.end()


def live_through(many: ManyPartitions, name: str, costs: ScenarioCosts) -> None:
    """A scenario, until the crowd is whole again, if there is one."""
    if name == GATHER:
        many.gather(costs)
        return
    SCENARIOS[name](many, costs)
    if many.crowd is not None:
        with costs.timing("then all groups read"):
            many.crowd.until_whole(PATIENCE_S)


def figures_of(
    size: Size, store: str, names: list[str], crowd: CrowdSize, given: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What each scenario cost, as (what, figure)."""
    lived = ["create", *([GATHER] if any(crowd) else [])]
    lived += [name for name in SCENARIOS if name in names and name not in lived]
    with (
        TemporaryDirectory(prefix="minibroker-many-") as directory,
        many_partitions(Path(directory), size, store, crowd=crowd, given=given) as many,
    ):
        for name in lived:
            with many.measuring() as costs:
                live_through(many, name, costs)
            yield from ((f"{name}: {what}", it) for what, it in costs.figures().items())
        for name, measure in MEASURES.items():
            if name in names:
                yield from ((f"{name}: {what}", it) for what, it in measure(many).items())


def main() -> None:
    """Live the scenarios at each size, and show what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="+", type=Size.of, metavar="SIZE")
    parser.add_argument("--store", choices=["sqlite", "etcd"], default="sqlite")
    parser.add_argument("--connections", type=int, default=0, help="of clients")
    parser.add_argument("--groups", type=int, default=0, help="with one member each")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, of each broker")
    names = [*SCENARIOS, *MEASURES]
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    arguments = parser.parse_args()
    crowd = CrowdSize(arguments.connections, arguments.groups)
    given = dict(each.split("=", 1) for each in arguments.set)
    rows: dict[str, list[str]] = {}
    for number, size in enumerate(arguments.sizes):
        found = figures_of(size, arguments.store, arguments.only or names, crowd, given)
        for what, figure in found:
            print(f"{size}: {what}: {figure}", flush=True)
            rows.setdefault(what, [""] * number).append(figure)
    table = Table(title=f"Partitions, 3 brokers, {arguments.store}", title_justify="left")
    table.add_column("")
    for size in arguments.sizes:
        table.add_column(str(size), justify="right")
    for what, figures in rows.items():
        table.add_row(what, *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
