"""Measure what a cluster's requests cost real brokers, and say what eight of them give beside one.

    python -m tests.bench.scale_costs [--seconds N]

What is measured is the processor time of all threads of each broker; the clusters are those of
`cluster up`, on this machine.

* An order, at the controller: to make and to encode it, without sending. Every order has the list
  of all brokers.
* PROBE, at the controller: the difference that four brokers more make to its processor time.
* A heartbeat of another broker, by the difference that the interval makes: the answer to a probe,
  and a renewal of its lease in SQLite.
* FETCH of a follower that has everything: by the difference that the wait makes. Each broker asks
  two others and answers them.
* PRODUCE with acks=all, and FETCH of a consumer: by their number, as `tests.bench.checkouts` sends
  them, ten at a time or each after the answer to the one before.

The model at the end takes a core for each broker, clients elsewhere, and partitions that are spread
evenly. A record of a topic with three replicas costs a leader and two followers.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import trio

from minibroker.client import Admin, NewTopic
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LiveBroker,
    PartitionState,
    UpdateMetadataRequest,
)
from minibroker.protocol.rpc.codec import encode_request
from minibroker.protocol.types import NamedEndpoint
from tests.bench.checkouts import AT_ONCE, Asked, fetch, produce
from tests.bench.rounds import processor_time_us
from tests.support.processes import ClusterProcesses, running_cluster

FEW, MORE = 2, 6
BEATS_MS: Final = (250, 100)
WAITS_MS: Final = (500, 50)
PARTITIONS: Final = 30
SETTLING_S: Final = 3.0
REQUESTS: Final = 2_000
WARM_UP: Final = 500
RECORDS: Final = 160  # of 100 bytes in a large batch
CORES: Final = 8
ORDERS: Final = 50
REPLICAS: Final = (1, 2, 3)
READ: Final = "FETCH of 64 KB"


class Load(NamedTuple):
    """Microseconds of processor time in a second: of the controller, and the others' mean."""

    controller: float
    other: float


class RequestCost(NamedTuple):
    """Microseconds of processor time for a request: at the leader, and at each follower."""

    leader: float
    follower: float

    @property
    def cluster(self) -> float:
        """With two followers."""
        return self.leader + 2 * self.follower


@contextmanager
def _cluster(count: int, settings: Mapping[str, str]) -> Iterator[ClusterProcesses]:
    with (
        TemporaryDirectory(prefix="minibroker-bench-") as directory,
        running_cluster(Path(directory), count, dict(settings)) as cluster,
    ):
        yield cluster


async def _create(address: str, name: str, partitions: int, replicas: int) -> None:
    async with Admin(address) as admin:
        await admin.create_topics(NewTopic(name, partitions, replicas))


async def _controller(address: str) -> int:
    async with Admin(address) as admin:
        return (await admin.describe_cluster()).controller_id


async def _leader(address: str, topic: str) -> int:
    async with Admin(address) as admin:
        [found] = await admin.describe_topics(topic)
    leader: int = found.partitions[0].leader_id
    return leader


def _times(cluster: ClusterProcesses) -> dict[int, float]:
    return {number: processor_time_us(one.pid) for number, one in cluster.brokers.items()}


def _load(cluster: ClusterProcesses, seconds: float) -> Load:
    """What all brokers do while nobody asks anything."""
    controller = trio.run(_controller, cluster.addresses)
    time.sleep(SETTLING_S)
    before, began = _times(cluster), time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    spent = {number: (us - before[number]) / took_s for number, us in _times(cluster).items()}
    own = spent.pop(controller)
    return Load(own, sum(spent.values()) / len(spent))


def _order(brokers: int, api_key: ApiKey, count: int) -> bytes:
    """An order about so many partitions, as the controller makes it."""
    listener = NamedEndpoint("PLAINTEXT", "broker-99", 9092)
    live = tuple(
        LiveBroker(node, f"broker-{node}", 9092, node, listeners=(listener,))
        for node in range(brokers)
    )
    states = tuple(
        PartitionState("topic", bytes(16), number, 1, 5, 7, REPLICAS, REPLICAS)
        for number in range(count)
    )
    if api_key == ApiKey.UPDATE_METADATA:
        message: Any = UpdateMetadataRequest(1, 1, 1, "cluster", live, partitions=states)
    else:
        message = LeaderAndIsrRequest(1, 1, 1, states, live)
    return b"".join(encode_request(RequestEnvelope(api_key, 0, 1, "controller-1", message)))


def order_costs() -> Iterator[str]:
    """By the number of brokers (us)."""
    for api_key, count in ((ApiKey.UPDATE_METADATA, 500), (ApiKey.LEADER_AND_ISR, 4)):
        for brokers in (3, 10, 30, 100):
            began = time.process_time()
            for _ in range(ORDERS):
                size = len(_order(brokers, api_key, count))
            took_us = (time.process_time() - began) / ORDERS * 1e6
            yield (
                f"{api_key.name} about {count} partitions to one of {brokers} brokers:"
                f" {took_us:,.0f} us, {size:,} bytes"
            )


def heartbeat_costs(seconds: float) -> Iterator[str]:
    """A probe at the controller, and a heartbeat elsewhere (us)."""
    loads = {}
    for count, beat_ms in ((FEW, BEATS_MS[1]), (MORE, BEATS_MS[1]), (MORE, BEATS_MS[0])):
        with _cluster(count, {"broker.heartbeat.interval.ms": str(beat_ms)}) as cluster:
            loads[count, beat_ms] = _load(cluster, seconds)
    slow, quick = (1000 / beat_ms for beat_ms in BEATS_MS)
    few, more, rare = loads.values()
    probe = (more.controller - few.controller) / (MORE - FEW) / quick
    beat = (more.other - rare.other) / (quick - slow)
    yield f"PROBE, at the controller: {probe:.0f} us"
    yield f"a heartbeat of another broker (renewal, answer to a probe): {beat:.0f} us"
    yield f"all else of a broker at rest, in a second: {rare.other - slow * beat:,.0f} us"


def idle_fetch_cost(seconds: float) -> Iterator[str]:
    """A follower's FETCH without records, asked and answered (us)."""
    loads = []
    for wait_ms in WAITS_MS:
        with _cluster(3, {"replica.fetch.wait.max.ms": str(wait_ms)}) as cluster:
            trio.run(_create, cluster.addresses, "t", PARTITIONS, 3)
            loads.append(_load(cluster, seconds).other)
    rates = [1000 / wait_ms for wait_ms in WAITS_MS]
    each = (loads[1] - loads[0]) / (rates[1] - rates[0]) / 2
    yield f"FETCH without records, one asked and one answered: {each:.0f} us"


def _request_cost(cluster: ClusterProcesses, frame: bytes, at_once: int) -> RequestCost:
    leader = trio.run(_leader, cluster.addresses, "t")
    asked = Asked(cluster.brokers[leader])
    asked.ask(frame, WARM_UP, at_once)
    before = _times(cluster)
    asked.ask(frame, REQUESTS, at_once)
    spent = {number: (us - before[number]) / REQUESTS for number, us in _times(cluster).items()}
    own = spent.pop(leader)
    return RequestCost(own, sum(spent.values()) / max(1, len(spent)))


def request_costs() -> dict[str, RequestCost]:
    """Of each request, by its name."""
    frames = {
        f"PRODUCE of {RECORDS} records": produce(RECORDS, -1),
        READ: fetch(0, 65_536),  # of these batches
        "PRODUCE of 1 record": produce(1, -1),
    }
    found = {}
    for count in (1, 3):
        with _cluster(count, {}) as cluster:
            trio.run(_create, cluster.addresses, "t", 1, count)
            time.sleep(SETTLING_S)
            for name, frame in frames.items():
                for at_once in (1, AT_ONCE):
                    title = f"{name}, RF {count}, {at_once} at a time"
                    found[title] = _request_cost(cluster, frame, at_once)
    return found


def model(costs: Mapping[str, RequestCost]) -> Iterator[str]:
    """Requests in a second that the cores have time for."""
    for name in ("PRODUCE of 1 record", f"PRODUCE of {RECORDS} records", READ):
        for at_once in (1, AT_ONCE):
            alone = 1e6 / costs[f"{name}, RF 1, {at_once} at a time"].leader
            replicated = costs[f"{name}, RF 3, {at_once} at a time"]
            is_read = name == READ
            eight = CORES * 1e6 / (replicated.leader if is_read else replicated.cluster)
            yield (
                f"{name}, {at_once} at a time: one broker {alone:,.0f} /s; {CORES} with RF 1"
                f" {CORES * alone:,.0f} /s; {CORES} with RF 3 {eight:,.0f} /s,"
                f" {eight / alone:.1f} times one broker"
            )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each idle cluster")
    seconds = parser.parse_args().seconds
    for line in order_costs():
        print(line, flush=True)
    for line in heartbeat_costs(seconds):
        print(line, flush=True)
    for line in idle_fetch_cost(seconds):
        print(line, flush=True)
    costs = request_costs()
    for name, cost in costs.items():
        print(f"{name}: leader {cost.leader:.0f} us, a follower {cost.follower:.0f} us")
    for line in model(costs):
        print(line)


if __name__ == "__main__":
    main()
