"""The two pages of metrics: all of them, and those whose number does not grow with the topics."""

from collections.abc import Iterator
from itertools import chain

import trio
from prometheus_client.core import Metric

from minibroker.broker.observe.loop_lag import LoopLag
from minibroker.broker.observe.metrics import cluster, groups, replicas, server, transactions
from minibroker.broker.observe.metrics.exposition import write
from minibroker.broker.observe.sources import Sources
from minibroker.broker.turns import take_turns


async def all_metrics(sources: Sources | None, loop_lag: LoopLag) -> bytes:
    """Everything; before there is a broker (None), what can be told of its process."""
    if sources is None:
        return await write(server.process_families(loop_lag))
    services = sources.services
    found = await groups.read_groups(services.groups)
    statistics = await take_turns(services.replicas.statistics())
    controller = services.controller.statistics()
    broker_id = services.replicas.broker_id
    families = chain(
        _broker_families(sources, loop_lag),
        replicas.broker_families(statistics),
        replicas.topic_families(statistics),
        replicas.partition_families(statistics, broker_id),
        replicas.replica_families(statistics),
        replicas.follower_families(statistics, trio.current_time()),
        cluster.controller_families(controller),
        cluster.topic_families(services.image, controller, broker_id),
        groups.group_families(found, services.replicas),
    )
    return await write(families)


async def public_metrics(sources: Sources | None, loop_lag: LoopLag) -> bytes:
    """Those without the names of topics, partitions and groups."""
    if sources is None:
        return await write(server.process_families(loop_lag))
    services = sources.services
    statistics = await take_turns(services.replicas.statistics())
    families = chain(
        _broker_families(sources, loop_lag),
        replicas.broker_families(statistics),
        replicas.traffic_families(statistics),
        cluster.controller_families(services.controller.statistics()),
    )
    return await write(families)


def _broker_families(sources: Sources, loop_lag: LoopLag) -> Iterator[Metric]:
    """What both pages say of the broker itself."""
    yield from server.process_families(loop_lag)
    yield from server.lease_families(sources)
    yield from server.request_families(sources.services.times.statistics())
    yield from server.connection_families(sources)
    yield from server.descriptor_families(sources)
    yield from server.flush_families(sources)
    yield from server.cleaner_families(sources)
    yield from server.fetcher_families(sources)
    yield from server.quota_families(sources)
    yield from groups.broker_families(sources.services.groups)
    yield from transactions.broker_families(*sources.services.transactions.statistics())
