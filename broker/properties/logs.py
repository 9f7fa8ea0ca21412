"""Properties of topics and their logs: acknowledgements, segments, retention and upkeep."""
# ruff: noqa: RUF009 -- `setting` makes a field, which is what that rule asks for.

from dataclasses import dataclass
from typing import Final, Literal

from minibroker.broker.config_property import INT_MAX, LONG_MAX, Kind, setting

FlushMode = Literal["never", "interval", "always"]
TimestampType = Literal["CreateTime", "LogAppendTime"]

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
KIB: Final = 1024
MIB: Final = 1024 * KIB


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
        "Batches are stored as their producer compressed them, whichever of these is set.",
        choices=("producer", "gzip", "snappy", "lz4", "zstd"),
        topic_name="compression.type",
        advice="a broker decompresses nothing",
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
        HOUR_MS,
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
        Kind.WORDS,
        "delete",
        "What happens to old segments: they are deleted by age and size, or compacted, so that the "
        "last record of each key stays; or both.",
        choices=("compact", "delete"),
        topic_name="cleanup.policy",
        is_list=True,
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
    log_dirs_min_free_bytes: int = setting(
        "log.dirs.min.free.bytes",
        Kind.INT,
        -1,
        "Below so much free space on the disk of a log directory records are refused there; "
        "-1: below 512 MiB, or a twentieth of a smaller disk; 0: never.",
        unit="bytes",
        low=-1,
    )
    log_dirs_max_bytes: int = setting(
        "log.dirs.max.bytes",
        Kind.INT,
        -1,
        "The size of all logs of a broker, in all its log directories, at which producers' records "
        "are refused; -1: any.",
        unit="bytes",
        low=-1,
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
class Compaction:
    """Compaction: which logs with cleanup.policy=compact are compacted, when, and how fast."""

    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        Kind.BOOLEAN,
        True,
        "Whether logs are compacted at all.",
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        Kind.INT,
        15_000,
        "How often logs are searched for one to compact, when there was none.",
        unit="ms",
        low=1,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        Kind.DOUBLE,
        0.5,
        "The share of a log that must be dirty, before it is compacted again.",
        high=1,
        topic_name="min.cleanable.dirty.ratio",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        Kind.INT,
        0,
        "The age below which a record is not removed by compaction.",
        unit="ms",
        topic_name="min.compaction.lag.ms",
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        Kind.INT,
        LONG_MAX,
        "The age at which a record is compacted, however little of its log is dirty.",
        unit="ms",
        low=1,
        topic_name="max.compaction.lag.ms",
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        Kind.INT,
        DAY_MS,
        "How long a record without a value stays after the compaction that met it first.",
        unit="ms",
        topic_name="delete.retention.ms",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.INT,
        128 * MIB,
        "Memory for the newest offsets of the keys of one log; more keys take several passes.",
        unit="bytes",
        low=1,
    )
    log_cleaner_io_max_bytes_per_second: int = setting(
        "log.cleaner.io.max.bytes.per.second",
        Kind.INT,
        LONG_MAX,
        "How many bytes compaction reads and writes in a second, at most.",
        unit="bytes",
        low=1,
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
