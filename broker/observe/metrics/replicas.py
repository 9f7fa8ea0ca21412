"""Metrics of the replicas on this broker, and of the traffic through them.

The metrics of a partition are exposed by its leader, so that each appears once in a cluster; those
of a replica by its broker.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric

from minibroker.broker.observe.metrics.exposition import counter, gauge, single, total
from minibroker.broker.replication.replicas import Statistics
from minibroker.broker.replication.roles import NEVER
from minibroker.broker.replication.statistics import ReplicaStatistics, TrafficStatistics
from minibroker.protocol.constants import NO_OFFSET

MANAGER: Final = "kafka_server_replicamanager"
FETCHERS: Final = "kafka_server_replicafetchermanager"
TRAFFIC: Final = "kafka_server_brokertopicmetrics"
PARTITION: Final = "kafka_topic_partition"

# The name's end, the meaning, and the field of `TrafficStatistics`.
FLOWS: Final = (
    ("messagesin", "Records taken from producers", "records_in"),
    ("bytesin", "Bytes of batches taken from producers", "bytes_in"),
    ("bytesout", "Bytes of batches sent to consumers", "bytes_out"),
    ("replicationbytesin", "Bytes of batches copied from leaders", "bytes_from_leader"),
    ("replicationbytesout", "Bytes of batches sent to followers", "bytes_to_followers"),
)


def broker_families(statistics: Statistics) -> Iterator[Metric]:
    """Make the sums over all replicas on this broker."""
    replicas = statistics.replicas
    leaders = [replica for replica in replicas if replica.is_leader]

    def count(name: str, text: str, number: int) -> Metric:
        return single(f"{MANAGER}_{name}", text, number)

    yield count("partitioncount", "Replicas on this broker", len(replicas) + statistics.uncreated)
    yield count("leadercount", "Partitions that this broker leads", len(leaders))
    offline = sum(replica.role == "offline" for replica in replicas) + statistics.uncreated
    yield count("offlinereplicacount", "Replicas here that neither lead nor copy", offline)
    under = sum(len(leader.isr) < len(leader.replicas) for leader in leaders)
    yield count("underreplicatedpartitions", "Led here, and a replica is not in sync", under)
    under = sum(len(leader.isr) < leader.needed for leader in leaders)
    yield count("underminisrpartitioncount", "Led here, and acks=all is refused", under)
    at = sum(len(leader.isr) == leader.needed < len(leader.replicas) for leader in leaders)
    yield count("atminisrpartitioncount", "Led here, one loss away from refusing acks=all", at)
    text = "In-sync sets that shrank, of partitions led here"
    yield total(f"{MANAGER}_isrshrinks", text, statistics.isr_shrinks)
    text = "In-sync sets that grew, of partitions led here"
    yield total(f"{MANAGER}_isrexpands", text, statistics.isr_expands)
    failed = sum(replica.role == "failed" for replica in replicas)
    text = "Followers here that have stopped copying until their next role"
    yield single(f"{FETCHERS}_failedpartitionscount", text, failed)
    lag = max((replica.lag for replica in replicas), default=0)
    text = "Committed records that the follower here which lacks most still lacks"
    yield single(f"{FETCHERS}_maxlag", text, lag)
    text = "Bytes of batches in all logs here"
    yield single("minibroker_logs_size_bytes", text, sum(each.log.size for each in replicas))
    unflushed = sum(each.log.log_end - each.log.recovery_point for each in replicas)
    yield single("minibroker_unflushed_records", "Records that no fsync covers yet", unflushed)


def traffic_families(statistics: Statistics) -> Iterator[Metric]:
    """Make the broker's traffic since its start, with that of deleted topics."""
    parts = [statistics.gone, *(replica.traffic for replica in statistics.replicas)]
    for name, text, field in FLOWS:
        yield total(f"{TRAFFIC}_{name}", text, sum(getattr(part, field) for part in parts))


def topic_families(statistics: Statistics) -> Iterator[Metric]:
    """Make the traffic of each topic's replicas on this broker, and what its acks mean."""
    topics: dict[str, list[TrafficStatistics]] = {}
    policies: dict[str, str] = {}
    for replica in statistics.replicas:
        topics.setdefault(replica.name.topic, []).append(replica.traffic)
        policies[replica.name.topic] = replica.flush
    for name, text, field in FLOWS:
        family = counter(f"{TRAFFIC}_{name}", text, "topic")
        for topic, parts in topics.items():
            family.add_metric([topic], sum(getattr(part, field) for part in parts))
        yield family
    text = "1 for each topic here; ack is what an acknowledged record has: replicas, or the disk"
    info = gauge("minibroker_durability_policy_info", text, "topic", "flush", "ack")
    for topic, flush in policies.items():
        info.add_metric([topic, flush, "fsynced" if flush == "always" else "replicated"], 1)
    yield info


def partition_families(statistics: Statistics, broker_id: int) -> Iterator[Metric]:
    """Make the metrics of partitions that this broker leads, named as in kafka_exporter."""
    leaders = [replica for replica in statistics.replicas if replica.is_leader]

    def tell(name: str, text: str, value: Callable[[ReplicaStatistics], float]) -> Metric:
        return _each(leaders, f"{PARTITION}_{name}", text, value)

    yield tell("current_offset", "End of what consumers may read", lambda r: r.high_watermark)
    yield tell("oldest_offset", "First offset that is kept", lambda r: r.log.log_start)
    yield tell("in_sync_replica", "Replicas in sync", lambda r: len(r.isr))
    yield tell("replicas", "Replicas", lambda r: len(r.replicas))
    text = "1 if the leader is the first of the replicas"
    yield tell("leader_is_preferred", text, lambda r: r.replicas[0] == broker_id)
    text = "1 if a replica is not in sync"
    yield tell("under_replicated_partition", text, lambda r: len(r.isr) < len(r.replicas))


def replica_families(statistics: Statistics) -> Iterator[Metric]:
    """Make the metrics of each replica on this broker, whatever its role."""
    replicas = statistics.replicas

    def tell(name: str, text: str, value: Callable[[ReplicaStatistics], float]) -> Metric:
        return _each(replicas, name, text, value)

    own = "minibroker_replica"
    yield tell(f"{own}_leo", "Log end: the offset that is written next", lambda r: r.log.log_end)
    text = "High watermark: below it all is committed, as far as this replica was told"
    yield tell(f"{own}_hw", text, lambda r: r.high_watermark)
    text = "Last stable offset: below it all transactions are decided"
    yield tell(f"{own}_lso", text, lambda r: r.last_stable_offset)
    yield tell(f"{own}_leader_epoch", "Newest leader epoch that it knows", lambda r: r.leader_epoch)
    text = "Committed records that are missing here, as far as is known"
    yield tell(f"{own}_lag", text, lambda r: r.lag)
    text = "Records below this offset are on the disk"
    yield tell(f"{own}_durable_end", text, lambda r: r.log.recovery_point)
    text = "Producers whose sequences are remembered"
    yield tell(f"{own}_producers", text, lambda r: r.log.producer_count)
    yield tell("kafka_log_log_size", "Bytes of batches", lambda r: r.log.size)
    yield tell("kafka_log_log_numlogsegments", "Files of batches", lambda r: r.log.segment_count)
    text = "1 for the role that it has: leader, follower, failed or offline"
    family = gauge(f"{own}_role", text, "topic", "partition", "role")
    for replica in replicas:
        family.add_metric([replica.name.topic, str(replica.name.partition), replica.role], 1)
    yield family


def follower_families(statistics: Statistics, now: float) -> Iterator[Metric]:
    """Make the metrics of what leaders here know of their followers; `now` in seconds of the
    broker's clock. What is not known in this leader epoch has no sample."""
    own, labels = "minibroker_follower", ("topic", "partition", "follower")
    text = "Remote LEO: the follower's log end, as its last fetch named it"
    ends = gauge(f"{own}_leo", text, *labels)
    text = "Seconds since the follower's last fetch"
    fetches = gauge(f"{own}_last_fetch_seconds", text, *labels)
    text = "Seconds since the follower last had all that the leader had"
    caught_up = gauge(f"{own}_caught_up_seconds", text, *labels)
    for replica in statistics.replicas:
        for known in replica.followers:
            named = [replica.name.topic, str(replica.name.partition), str(known.broker_id)]
            if known.log_end != NO_OFFSET:
                ends.add_metric(named, known.log_end)
            for family, at in ((fetches, known.fetched_at), (caught_up, known.caught_up_at)):
                if at != NEVER:
                    family.add_metric(named, round(max(0.0, now - at), 3))
    yield from (ends, fetches, caught_up)


def _each(
    replicas: list[ReplicaStatistics],
    name: str,
    text: str,
    value: Callable[[ReplicaStatistics], float],
) -> Metric:
    family = gauge(name, text, "topic", "partition")
    for replica in replicas:
        family.add_metric([replica.name.topic, str(replica.name.partition)], value(replica))
    return family
