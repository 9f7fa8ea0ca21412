"""A node whose pages are served over HTTP, on a real socket of this machine."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import httpx
import trio
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from minibroker.broker.controller.broker_session import SessionStatistics
from minibroker.broker.controller.statistics import ClusterCounts, Statistics
from minibroker.broker.observe.http import HttpServer, open_http
from minibroker.broker.observe.sources import Sources
from minibroker.broker.replication.replica_fetcher import ReplicaFetchers
from minibroker.broker.server.listener import Acceptor
from minibroker.protocol.types import Endpoint
from tests.unit.node import Node

LOOPBACK = Endpoint("127.0.0.1", 0)


class FakeControllerNode:
    """A controller that is told what to say of itself."""

    def __init__(self) -> None:
        self.controller: Statistics | None = Statistics(2, 7, 1, ClusterCounts(3, 1, 0, 2, 9, 4, 5))

    def statistics(self) -> Statistics | None:
        return self.controller

    def may_decide_alone(self, now: float) -> bool:
        return True

    def is_session_current(self, now: float) -> bool:
        return True

    def is_controller_lease_current(self, now: float) -> bool:
        return True

    def session_statistics(self) -> Any:
        return SessionStatistics(*(0.125 for _ in SessionStatistics._fields))


def sources_of(
    node: Node, controller_node: FakeControllerNode | None = None, *, is_leaving: bool = False
) -> Sources:
    """A node as the pages see it."""
    services = replace(
        node.services,
        controller=cast(Any, controller_node or FakeControllerNode()),
        is_shutting_down=lambda: is_leaving,
    )
    fetchers = ReplicaFetchers(node.config, cast(Any, None), lambda: 0)
    return Sources(services, Acceptor(services, {}), fetchers, node.flusher, node.isr_proposals)


@asynccontextmanager
async def shown(sources: Sources | None = None) -> AsyncIterator[HttpServer]:
    """Pages that are served until the block ends."""
    http = await open_http(LOOPBACK)
    if sources is not None:
        http.show(sources)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.run)
        yield http
        nursery.cancel_scope.cancel()


async def ask(http: HttpServer, path: str, method: str = "GET") -> httpx.Response:
    """One request, on a connection of its own."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        return await client.request(method, f"http://{http.endpoint}{path}")


Samples = dict[str, dict[tuple[str, ...], float]]


def parsed(text: str) -> tuple[list[Metric], Samples]:
    """The families, and the value of each sample by its name and the values of its labels, in the
    order of the labels' names."""
    families = list(text_string_to_metric_families(text))
    samples: Samples = {}
    for family in families:
        for sample in family.samples:
            place = tuple(value for _, value in sorted(sample.labels.items()))
            assert place not in samples.get(sample.name, {}), f"{sample} is told twice"
            samples.setdefault(sample.name, {})[place] = sample.value
    return families, samples


async def metrics_of(sources: Sources, path: str = "/metrics") -> Samples:
    """What a page of metrics says."""
    async with shown(sources) as http:
        answer = await ask(http, path)
        assert answer.status_code == 200
        return parsed(answer.text)[1]


def values(samples: Samples, *names: str) -> Sequence[float]:
    """Of metrics without labels."""
    return [samples[name][()] for name in names]
