"""The table of every property that a broker reads, by subject.

The fields of these classes are the table: each holds a value and carries the `Property` that
describes it. `Config` is all of them together. A field's name is the property's, with underscores
for dots (asserted below), so that nobody has to look up which is which.

Nothing stands here that no part of the broker reads. A setting that is accepted and does nothing
is worse than an error: its user believes in it.
"""
# ruff: noqa: RUF009 -- `setting` makes a field, which is what that rule asks for.

from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Final, Literal

from minibroker.broker.property import INT_MAX, LONG_MAX, Kind, Property, attribute_of, setting
from minibroker.protocol.constants import FRAME_BYTES_MAX
from minibroker.protocol.types import Endpoint

FlushMode = Literal["never", "interval", "always"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
FetcherForm = Literal["thread", "task"]

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True)
class Identity:
    """The broker: who it is, where it listens, where its data lies."""

    node_id: int = setting(
        "node.id",
        Kind.INT,
        1,
        "The number of this broker, unique in its cluster.",
        high=INT_MAX,
        aliases=(("broker.id", 1),),
    )
    listeners: Endpoint = setting(
        "listeners",
        Kind.LISTENER,
        Endpoint("127.0.0.1", 9092),
        "Where the broker listens; port 0 takes a free one.",
    )
    advertised_listeners: Endpoint | None = setting(
        "advertised.listeners",
        Kind.LISTENER,
        None,
        "Where clients are told to connect (port 0: the port that it listens on); without it, "
        "where the broker listens, or the machine's name if it listens everywhere.",
    )
    log_dirs: PurePath = setting(
        "log.dirs",
        Kind.PATH,
        PurePath("minibroker-data"),
        "The data directory; a broker has one.",
        aliases=(("log.dir", 1),),
    )
    metadata_store: str | None = setting(
        "metadata.store",
        Kind.STORE,
        None,
        "Where topics and epochs are kept; without it, metadata.db in the data directory.",
    )


@dataclass(frozen=True)
class Topics:
    """Topics: what a new one gets, and what an acknowledgement means."""

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        Kind.BOOLEAN,
        True,
        "Whether a topic is made when a client first asks for it.",
    )
    num_partitions: int = setting(
        "num.partitions",
        Kind.INT,
        1,
        "Partitions of a new topic that does not say how many.",
        low=1,
        high=INT_MAX,
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        Kind.INT,
        1,
        "Replicas of a new topic that does not say how many.",
        low=1,
        high=2**15 - 1,
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        Kind.INT,
        1,
        "Replicas that must have a record before acks=all is answered.",
        low=1,
        high=INT_MAX,
        topic_name="min.insync.replicas",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Whether a replica that lacks committed records may lead when no other lives.",
        topic_name="unclean.leader.election.enable",
    )
    flush: FlushMode = setting(
        "flush",
        Kind.TEXT,
        "interval",
        "When written records are forced to the disk: by the system's own choice, every "
        "flush.ms, or before each acknowledgement.",
        choices=("never", "interval", "always"),
        topic_name="flush",
    )
    flush_ms: int = setting(
        "flush.ms",
        Kind.INT,
        1_000,
        "How long a record may wait for its flush with flush=interval.",
        unit="ms",
        low=1,
        topic_name="flush.ms",
        aliases=(("log.flush.interval.ms", 1),),
    )
    compression_type: str = setting(
        "compression.type",
        Kind.TEXT,
        "producer",
        "Batches are stored as their producer compressed them.",
        choices=("producer",),
        topic_name="compression.type",
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        Kind.INT,
        MIB + 12,
        "The largest batch that is taken, as it travels (compressed).",
        unit="bytes",
        high=INT_MAX,
        topic_name="max.message.bytes",
    )
    log_message_timestamp_type: TimestampType = setting(
        "log.message.timestamp.type",
        Kind.TEXT,
        "CreateTime",
        "Whether a record keeps its producer's time or gets the time of its append.",
        choices=("CreateTime", "LogAppendTime"),
        topic_name="message.timestamp.type",
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        Kind.INT,
        LONG_MAX,
        "How far behind the broker's clock a producer's time may be.",
        unit="ms",
        topic_name="message.timestamp.before.max.ms",
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        Kind.INT,
        LONG_MAX,
        "How far ahead of the broker's clock a producer's time may be.",
        unit="ms",
        topic_name="message.timestamp.after.max.ms",
    )


@dataclass(frozen=True)
class Segments:
    """Segments: how a log is cut into files, and how long they are kept."""

    log_segment_bytes: int = setting(
        "log.segment.bytes",
        Kind.INT,
        1024 * MIB,
        "The size at which a log begins a new file.",
        unit="bytes",
        low=14,
        high=INT_MAX,
        topic_name="segment.bytes",
    )
    log_roll_ms: int = setting(
        "log.roll.ms",
        Kind.INT,
        7 * DAY_MS,
        "The age at which a log begins a new file, full or not.",
        unit="ms",
        low=1,
        topic_name="segment.ms",
        aliases=(("log.roll.hours", HOUR_MS),),
    )
    log_roll_jitter_ms: int = setting(
        "log.roll.jitter.ms",
        Kind.INT,
        0,
        "The most by which that age is shortened, so that logs do not roll all at once.",
        unit="ms",
        topic_name="segment.jitter.ms",
        aliases=(("log.roll.jitter.hours", HOUR_MS),),
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        Kind.INT,
        4 * KIB,
        "Bytes of a log between two entries of its index.",
        unit="bytes",
        high=INT_MAX,
        topic_name="index.interval.bytes",
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        Kind.INT,
        10 * MIB,
        "The size at which a full index makes its log begin a new file.",
        unit="bytes",
        low=12,
        high=INT_MAX,
        topic_name="segment.index.bytes",
    )
    log_cleanup_policy: str = setting(
        "log.cleanup.policy",
        Kind.TEXT,
        "delete",
        "What happens to old segments; compaction does not exist yet.",
        choices=("delete",),
        topic_name="cleanup.policy",
    )
    log_retention_ms: int = setting(
        "log.retention.ms",
        Kind.INT,
        7 * DAY_MS,
        "The age at which a segment is deleted; -1 keeps it for ever.",
        unit="ms",
        low=-1,
        topic_name="retention.ms",
        aliases=(("log.retention.hours", HOUR_MS), ("log.retention.minutes", MINUTE_MS)),
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        Kind.INT,
        -1,
        "The size a partition may have before its oldest segment is deleted; -1: any.",
        unit="bytes",
        low=-1,
        topic_name="retention.bytes",
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        Kind.INT,
        MINUTE_MS,
        "How long a deleted file stays on the disk, renamed, for readers that still have it.",
        unit="ms",
        topic_name="file.delete.delay.ms",
    )


@dataclass(frozen=True)
class Upkeep:
    """Upkeep: what is done every so often, and what is forgotten when."""

    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        Kind.INT,
        5 * MINUTE_MS,
        "How often logs are searched for segments to delete.",
        unit="ms",
        low=1,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        MINUTE_MS,
        "How often the recovery points are written; recovery reads what lies after them.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        Kind.INT,
        MINUTE_MS,
        "How often the first offsets of the logs are written.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.INT,
        5_000,
        "How often the high watermarks are written.",
        unit="ms",
        low=1,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        Kind.INT,
        DAY_MS,
        "How long after its last append a producer's sequence is remembered.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        Kind.INT,
        10 * MINUTE_MS,
        "How often forgotten producers are dropped.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )


@dataclass(frozen=True)
class Replication:
    """Replication: how brokers know each other alive, and how followers copy."""

    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        Kind.INT,
        1_000,
        "How long a broker that is not heard of still counts as alive.",
        unit="ms",
        low=100,
        high=INT_MAX,
    )
    broker_heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms",
        Kind.INT,
        250,
        "How often a broker says that it is alive; several times within the session.",
        unit="ms",
        low=10,
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
        "Memory for requests that have not come whole yet, of all connections together; above "
        "it the connection with the largest one is closed.",
        unit="bytes",
        low=MIB,
    )
    max_connections: int = setting(
        "max.connections",
        Kind.INT,
        INT_MAX,
        "Connections open at once, and never more than half of the files that the process may "
        "open; one more is closed as soon as it is accepted.",
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


SUBJECTS: Final = (Identity, Topics, Replication, Segments, Upkeep, Connections)
PROPERTIES: Final[dict[str, Property]] = {
    field.metadata["property"].name: field.metadata["property"]
    for subject in SUBJECTS
    for field in fields(subject)
}
TOPIC_PROPERTIES: Final[dict[str, Property]] = {
    row.topic_name: row for row in PROPERTIES.values() if row.topic_name is not None
}

for _subject in SUBJECTS:
    for _field in fields(_subject):
        _name = _field.metadata["property"].name
        assert _field.name == attribute_of(_name), f"{_field.name} does not spell {_name}"
