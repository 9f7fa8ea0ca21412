"""Properties of a broker in a cluster: its id and directory, replication, limits for clients."""
# ruff: noqa: RUF009 -- `setting` makes a field, which is what that rule asks for.

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from minibroker.broker.config_property import INT_MAX, Kind, setting
from minibroker.protocol.constants import FRAME_BYTES_MAX

FetcherForm = Literal["thread", "task"]

MINUTE_MS: Final = 60_000
KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True)
class Identity:
    """The broker: who it is, where its data lies."""

    node_id: int = setting(
        "node.id",
        Kind.INT,
        1,
        "The number of this broker, unique in its cluster.",
        high=INT_MAX,
        aliases=(("broker.id", 1),),
    )
    broker_rack: str | None = setting(
        "broker.rack",
        Kind.RACK,
        None,
        "The rack or zone that this broker is in: the replicas of a new partition are spread over "
        "the racks. Brokers without it count as one rack of their own.",
    )
    cluster_id: str | None = setting(
        "cluster.id",
        Kind.ID,
        None,
        "The id that the cluster gets at the first start of its first broker; without it, one "
        "is drawn. A cluster or a data directory that has another one is refused.",
    )
    log_dirs: tuple[PurePath, ...] = setting(
        "log.dirs",
        Kind.PATHS,
        (PurePath("minibroker-data"),),
        "The log directories, one for each disk. The first is the data directory: it has what is "
        "the broker's own, too.",
        aliases=(("log.dir", 1),),
    )
    metadata_store: str | None = setting(
        "metadata.store",
        Kind.STORE,
        None,
        "Where topics and epochs are kept; without it, metadata.db in the data directory.",
    )

    @property
    def data_dir(self) -> PurePath:
        """The first log directory."""
        return self.log_dirs[0]


@dataclass(frozen=True)
class Replication:
    """Replication: how brokers know each other alive, and how followers copy."""

    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        Kind.INT,
        1_000,
        "How long a broker that is not heard of still counts as alive; 6000 if it is not set and "
        "the metadata are in etcd.",
        unit="ms",
        low=100,
        high=INT_MAX,
    )
    broker_heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms",
        Kind.INT,
        250,
        "How often a broker says that it is alive, several times within the session; 1500 if it "
        "is not set and the metadata are in etcd.",
        unit="ms",
        low=10,
        high=INT_MAX,
    )
    broker_fence_timeout_ms: int | None = setting(
        "broker.fence.timeout.ms",
        Kind.INT,
        None,
        "How long the controller may not hear a registered broker, until others lead in its place "
        "and it promises nothing alone, and how long an in-sync follower that lacks records may "
        "send no FETCH; without it, a session and four heartbeats.",
        unit="ms",
        low=100,
        high=INT_MAX,
    )
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        Kind.INT,
        30_000,
        "How long a follower may be behind before it leaves the in-sync set; looked at every "
        "half of it.",
        unit="ms",
        low=2,
        high=INT_MAX,
    )
    num_replica_fetchers: int = setting(
        "num.replica.fetchers",
        Kind.INT,
        1,
        "Fetchers for each broker that this one copies from; partitions are spread over them.",
        low=1,
        high=64,
    )
    replica_fetcher: FetcherForm = setting(
        "replica.fetcher",
        Kind.TEXT,
        "thread",
        "Whether a fetcher is a thread of its own or a task in the broker's loop.",
        choices=("thread", "task"),
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        500,
        "How long a follower's fetch waits for records; not above replica.lag.time.max.ms.",
        unit="ms",
        high=INT_MAX,
    )
    replica_high_watermark_wait_max_ms: int = setting(
        "replica.high.watermark.wait.max.ms",
        Kind.INT,
        10,
        "How long a follower that has all records is not told of a new high watermark: records "
        "that come meanwhile bring it along.",
        unit="ms",
        high=INT_MAX,
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes",
        Kind.INT,
        1,
        "How much a follower's fetch waits for.",
        unit="bytes",
        high=INT_MAX,
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes",
        Kind.INT,
        MIB,
        "The most that a follower asks for of one partition; one batch comes whatever its size.",
        unit="bytes",
        high=INT_MAX,
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10 * MIB,
        "The most that a follower asks for at once.",
        unit="bytes",
        high=INT_MAX,
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms",
        Kind.INT,
        1_000,
        "The longest a follower leaves a partition alone after an error; it begins with 20 ms "
        "and doubles.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms",
        Kind.INT,
        30_000,
        "How long a follower waits for an answer before it connects anew.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        Kind.BOOLEAN,
        True,
        "Whether a broker that stops first gives its leaderships away.",
    )
    controlled_shutdown_max_retries: int = setting(
        "controlled.shutdown.max.retries",
        Kind.INT,
        3,
        "How often a broker that stops asks again for other leaders.",
        high=1_000,
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        "controlled.shutdown.retry.backoff.ms",
        Kind.INT,
        5_000,
        "How long it waits between two such requests.",
        unit="ms",
        high=INT_MAX,
    )


@dataclass(frozen=True)
class Leadership:
    """Leadership: when the preferred leaders come back, which are the first replicas."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        Kind.BOOLEAN,
        True,
        "Whether the controller elects preferred leaders by itself; `minibroker leader elect` does "
        "it in any case.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        Kind.INT,
        300,
        "How often the controller looks for partitions that their preferred replica does not lead; "
        "brokers must have been the same for as long.",
        unit="s",
        low=1,
        high=INT_MAX,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        Kind.INT,
        10,
        "Of the partitions whose preferred leader a broker is: what part others may lead before "
        "leaderships are moved to it.",
        unit="%",
        high=100,
    )
    num_concurrent_partition_movements: int = setting(
        "num.concurrent.partition.movements",
        Kind.INT,
        20,
        "How many partitions of the cluster may copy to brokers that a reassignment adds, at a "
        "time; the others wait.",
        low=1,
        high=INT_MAX,
    )


@dataclass(frozen=True)
class Connections:
    """Connections: the limits of what clients may ask for at once."""

    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        Kind.INT,
        FRAME_BYTES_MAX,
        "The largest request; a longer one ends its connection.",
        unit="bytes",
        low=KIB,
        high=FRAME_BYTES_MAX,
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        Kind.INT,
        256 * MIB,
        "Memory for requests that have not come whole yet or wait, their responses and fetch "
        "sessions, of all connections together; above it the largest is closed.",
        unit="bytes",
        low=MIB,
    )
    max_connections: int = setting(
        "max.connections",
        Kind.INT,
        INT_MAX,
        "Connections open at once; one more is closed as soon as it is accepted. Where the process "
        "may open too few files for so many, accepting pauses before.",
        low=1,
        high=INT_MAX,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        Kind.INT,
        10 * MINUTE_MS,
        "How long a connection may be silent before it is closed.",
        unit="ms",
        low=1,
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        Kind.INT,
        55 * MIB,
        "The most that one fetch is answered with, whatever it asks for.",
        unit="bytes",
        low=KIB,
        high=INT_MAX,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        Kind.INT,
        1_000,
        "Fetch sessions remembered at once; other clients name all partitions each time.",
        high=INT_MAX,
    )
