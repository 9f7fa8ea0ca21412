"""Properties of consumer groups: the topic that stores them, and times for members and offsets."""

from dataclasses import dataclass
from typing import Final

from minibroker.broker.config_property import INT_MAX, Kind, setting

MIB: Final = 1024 * 1024
STORED_TEXT_BYTES_MAX = 2**15 - 1  # of any text in a record of the offsets topic


@dataclass(frozen=True)
class Groups:
    """Groups: where they are kept, and how long members and offsets are waited for."""

    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        Kind.INT,
        4,
        "Partitions of `__consumer_offsets`, which is made when a group is first asked for; each "
        "group is kept by the leader of one of them. Not to be changed later.",
        low=1,
        high=INT_MAX,
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        Kind.INT,
        1,
        "Replicas of `__consumer_offsets`; there are no groups before so many brokers live.",
        low=1,
        high=2**15 - 1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        Kind.INT,
        100 * MIB,
        "The size at which a log of `__consumer_offsets` begins a new file; what is in older files "
        "is compacted.",
        unit="bytes",
        low=14,
        high=INT_MAX,
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        Kind.INT,
        5_000,
        "How long a commit waits until all in-sync replicas have it.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        Kind.INT,
        10_080,
        "How long the offsets of a group outlive its last member, and those without members "
        "their last commit.",
        unit="minutes",
        low=1,
        high=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        Kind.INT,
        600_000,
        "How often offsets are looked at that may have outlived that.",
        unit="ms",
        low=1,
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        Kind.INT,
        4_096,
        "The longest note that may go with a committed offset.",
        unit="bytes",
        high=STORED_TEXT_BYTES_MAX,
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        100,
        "How long the first member of an empty group waits for others to come.",
        unit="ms",
        high=INT_MAX,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        Kind.INT,
        1_000,
        "The shortest session that a member may ask for.",
        unit="ms",
        high=INT_MAX,
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        Kind.INT,
        1_800_000,
        "The longest session that a member may ask for.",
        unit="ms",
        high=INT_MAX,
    )
    group_max_size: int = setting(
        "group.max.size",
        Kind.INT,
        INT_MAX,
        "Members that a group may have.",
        low=1,
        high=INT_MAX,
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        Kind.INT,
        45_000,
        "How long a member of the consumer protocol (KIP-848) may be silent.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        Kind.INT,
        5_000,
        "How often a member of the consumer protocol is to send a heartbeat.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        Kind.INT,
        INT_MAX,
        "Members that a group of the consumer protocol may have.",
        low=1,
        high=INT_MAX,
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        Kind.TEXT,
        "bidirectional",
        "Which groups with members may be converted: from the classic to the consumer protocol "
        "(upgrade), back (downgrade), both, or none.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    group_consumer_assignors: str = setting(
        "group.consumer.assignors",
        Kind.WORDS,
        "uniform,range",
        "How the coordinator assigns in groups of the consumer protocol; the first is for groups "
        "whose members do not ask for one.",
        choices=("uniform", "range"),
    )
    group_coordinator_max_bytes: int = setting(
        "group.coordinator.max.bytes",
        Kind.INT,
        512 * MIB,
        "Memory for groups, their members and committed offsets on a broker, about; joins and "
        "commits that need more are refused until it suffices.",
        unit="bytes",
        low=MIB,
    )
