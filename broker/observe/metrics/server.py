"""Metrics of the broker itself: its requests, its connections, its disk, its lease and its loop."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from minibroker.broker.machine import NOT_KNOWN, MachineFacts
from minibroker.broker.observe.loop_lag import LoopLag
from minibroker.broker.observe.metrics.exposition import (
    add_distribution,
    counter,
    gauge,
    histogram,
    single,
    total,
)
from minibroker.broker.observe.sources import Sources
from minibroker.broker.server.request_times import KindStatistics

REQUESTS: Final = "kafka_network_requestmetrics"
SOCKETS: Final = "kafka_server_socketservermetrics"
CLIENT_LABELS: Final = ("wire", "client", "version")
FETCHES: Final = "Fetch"  # Kafka's delayed fetches are those of consumers and followers together


def process_families(loop_lag: LoopLag) -> Iterator[Metric]:
    """Make the metrics that exist at any time, also while logs are recovered."""
    # With a registry of its own: the metrics of an embedding program are not shown here.
    yield from ProcessCollector(registry=CollectorRegistry()).collect()
    text = "How much later than it wanted a task of the broker's loop ran, ten times a second"
    family = histogram("minibroker_event_loop_lag_seconds", text)
    add_distribution(family, (), loop_lag.statistics())
    yield family


def request_families(kinds: dict[str, KindStatistics]) -> Iterator[Metric]:
    """Make the counts and times of each kind of request, and how many are parked."""
    seen = {name: kind for name, kind in kinds.items() if sum(kind.times.counts) or kind.parked}
    requests = counter(f"{REQUESTS}_requests", "Requests that were answered", "request")
    text = "From a request's last byte to its answer, long polls included"
    times = histogram(f"{REQUESTS}_totaltime_seconds", text, "request")
    for name, kind in seen.items():
        requests.add_metric([name], sum(kind.times.counts))
        add_distribution(times, [name], kind.times)
    yield requests
    yield times
    parked = Counter({"Produce": 0, FETCHES: 0})
    for name, kind in seen.items():
        parked[FETCHES if name.startswith(FETCHES) else name] += kind.parked
    text = "Requests that wait: for replicas, for records, for other members"
    name = "kafka_server_delayedoperationpurgatory_purgatorysize"
    waiting = gauge(name, text, "delayedOperation")
    for operation, number in parked.items():
        waiting.add_metric([operation], number)
    yield waiting


def connection_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of connections and clients, and of the memory that they use."""
    connections = sources.acceptor.statistics()
    yield single(f"{SOCKETS}_connection_count", "Connections that are open", connections.open)
    text = "Connections that were taken"
    yield total(f"{SOCKETS}_connection_creation", text, connections.taken)
    text = "Connections that were closed at once, above max.connections"
    yield total("minibroker_connections_refused", text, connections.refused)
    text = "Connections that are open, by what the client calls itself"
    clients = gauge("minibroker_client_connections", text, *CLIENT_LABELS)
    text = "Requests that came, by what the client calls itself"
    asked = counter("minibroker_client_requests", text, *CLIENT_LABELS)
    for kind, number, requests in sources.services.clients.statistics():
        clients.add_metric([*kind], number)
        asked.add_metric([*kind], requests)
    yield clients
    yield asked
    text = "Requests that failed by a defect of the broker, which doctor and the log describe"
    defects = counter("minibroker_defects", text, "request", "stage")
    for (request, stage, _), number in sources.services.defects.statistics().items():
        defects.add_metric([request, stage.value], number)
    yield defects
    text = "Memory of requests and fetch sessions, about; the limit is queued.max.request.bytes"
    held = sources.services.memory.statistics()
    yield single("minibroker_request_memory_bytes", text, held)
    text = "Fetch sessions that are remembered"
    yield single("minibroker_fetch_sessions", text, sources.services.fetch_sessions.statistics())
    text = "Partitions and other things that requests wait for or fetch sessions watch"
    yield single("minibroker_purgatory_keys", text, sources.services.purgatory.statistics())


def descriptor_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of file descriptors: the parts of the budget."""
    held = sources.acceptor.descriptors.statistics()
    text = "File descriptors by what holds them; reserve: kept for all else"
    family = gauge("minibroker_descriptors", text, "part")
    for part in ("logs", "sealed", "connections", "reserve"):
        family.add_metric([part], getattr(held, part))
    yield family
    text = "File descriptors that the process may have, -1 without a limit"
    yield single("minibroker_descriptors_max", text, held.limit)


def flush_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of flushes: how long they take, and how many partitions wait."""
    statistics = sources.flusher.statistics()
    text = "Flushes of one partition's log, by the setting that asked for them"
    times = histogram("kafka_log_logflushstats_flushtime_seconds", text, "flush")
    text = "Partitions whose newest records wait for their flush"
    dirty = gauge("minibroker_flush_waiting_partitions", text, "flush")
    for mode, queue in statistics.items():
        add_distribution(times, [mode], queue.times)
        dirty.add_metric([mode], queue.dirty)
    yield times
    yield dirty


def cleaner_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of compaction."""
    cleaner = sources.services.cleaner_statistics()
    text = "Logs that were compacted, each time"
    yield total("minibroker_log_cleaner_runs", text, cleaner.runs)
    text = "Bytes that compaction has read"
    yield total("minibroker_log_cleaner_read_bytes", text, cleaner.bytes_read)
    text = "Bytes by which compaction has made logs smaller"
    yield total("minibroker_log_cleaner_freed_bytes", text, cleaner.bytes_freed)
    text = "Logs that cannot be compacted"
    yield single("minibroker_log_cleaner_failed_logs", text, len(cleaner.failed))


def fetcher_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of replication from each leader, summed over its fetchers."""
    requests, rates = Counter[int](), Counter[int]()
    for fetcher in sources.fetchers.statistics():
        requests[fetcher.leader] += fetcher.requests
        rates[fetcher.leader] += round(fetcher.bytes_per_s)
    text = "Answers of a leader to the fetchers of it that run now"
    asked = counter("minibroker_fetcher_requests", text, "leader")
    text = "Bytes a second copied from a leader in the last few seconds"
    copied = gauge("minibroker_fetcher_bytes_per_second", text, "leader")
    for leader, number in requests.items():
        asked.add_metric([str(leader)], number)
        copied.add_metric([str(leader)], rates[leader])
    yield asked
    yield copied
    text = "Changes of in-sync sets that wait for the controller"
    yield single("minibroker_isr_changes_waiting", text, sources.isr_proposals.statistics())


def quota_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of the replication quotas: what this broker sends and copies under them, and
    what it moves between its log directories."""
    now, quotas = trio.current_time(), sources.services.replicas.quotas
    text = "Bytes moved of throttled replicas, as their leader or follower, or between directories"
    moved = counter("minibroker_replication_quota_bytes", text, "side")
    text = "Measured rate of these, over the last 11 seconds"
    rates = gauge("minibroker_replication_quota_bytes_per_second", text, "side")
    text = "Limit of the replication quota, +Inf without one"
    limits = gauge("minibroker_replication_quota_limit_bytes_per_second", text, "side")
    sides = {"leader": quotas.leader, "follower": quotas.follower, "moves": quotas.moves}
    for side, quota in sides.items():
        found = quota.statistics(now)
        moved.add_metric([side], found.bytes)
        rates.add_metric([side], found.rate)
        limits.add_metric([side], found.limit)
    yield moved
    yield rates
    yield limits


def lease_families(sources: Sources) -> Iterator[Metric]:
    """Make the metrics of this broker's membership in the cluster, and of its machine."""
    services, now = sources.services, trio.current_time()
    text = "1 if /ready says so"
    yield single("minibroker_ready", text, services.readiness(now).is_ready)
    text = "1 while the others must count this broker as live"
    yield single("minibroker_lease_current", text, services.controller.may_decide_alone(now))
    text = "1 while the controller hears this broker, as far as the broker can know"
    yield single("minibroker_heard", text, services.controller.is_controller_lease_current(now))
    session = services.controller.session_statistics()
    text = "How long the metadata store took over the last renewal of the lease"
    yield single("minibroker_lease_renewal_seconds", text, session.renewal_s)
    text = "Broker epoch: grows with each registration of this broker, -1 before the first"
    yield single("minibroker_broker_epoch", text, services.replicas.broker_epoch)
    clock = services.clock_statistics(now)
    text = "Jumps of the wall clock, seen against the monotonic clock"
    yield total("minibroker_clock_jumps", text, clock.jumps)
    text = "By how much the wall clock jumped last, while nothing expires by it; else 0"
    yield single("minibroker_clock_jump_seconds", text, clock.jump_ms / 1000)
    machine = services.machine()
    yield from _machine_families(machine)
    yield from _room_families(sources)
    family = gauge(
        "minibroker_build_info",
        "Always 1; who this is",
        "version",
        "python",
        "node_id",
        "cluster_id",
    )
    family.add_metric(
        [
            machine.software_version,
            machine.python_version,
            str(services.replicas.broker_id),
            services.image.cluster_id,
        ],
        1,
    )
    yield family


def _room_families(sources: Sources) -> Iterator[Metric]:
    room = sources.services.room_statistics()
    text = "1 while producers' records are refused for want of room"
    yield single("minibroker_disk_short", text, room.is_short)
    offline = sum(bool(one.failure) for one in sources.services.log_directories())
    text = "Log directories that have failed or are missing"
    yield single("kafka_log_logmanager_offlinelogdirectorycount", text, offline)
    if room.free_bytes_min != NOT_KNOWN:
        text = "Producers' records are refused while less room is left on the disk"
        yield single("minibroker_disk_free_min_bytes", text, room.free_bytes_min)


def _machine_families(machine: MachineFacts) -> Iterator[Metric]:
    for name, text, number in (
        ("free", "Room left on the disk of the data directory", machine.disk_free_bytes),
        ("total", "Size of the disk of the data directory", machine.disk_total_bytes),
    ):
        if number != NOT_KNOWN:
            yield single(f"minibroker_disk_{name}_bytes", text, number)
