"""The apis that are served on Kafka's wire, with their versions and the fields of their messages.

The versions are the newest without the "flexible" encoding, about those of Kafka 2.3: every client
knows them, and works without an api that is missing. A few apis are served in newer versions:
ApiVersions; Metadata and OffsetFetch, because sarama before 1.46 sends these without asking for the
broker's versions; and ListGroups, because older versions of it do not have the state of a group.
Low minimum versions that no client uses any more are announced on purpose: librdkafka before 2.11.1
infers features from exact old versions, and drops compression, groups or idempotence without them
(docs/kafka.md).
"""

from dataclasses import dataclass
from typing import Final

from minibroker.protocol.kafka.schema import Struct, Version, parse

_API_VERSIONS_KEY: Final = 18


@dataclass(frozen=True, eq=False)
class KafkaApi:
    """One api: its announced versions and its messages."""

    key: int
    name: str
    first: Version
    last: Version
    request: Struct
    response: Struct
    flexible_since: Version | None = None

    def is_flexible(self, version: Version) -> bool:
        """Return whether bodies of this version have the flexible encoding."""
        return self.flexible_since is not None and version >= self.flexible_since

    def has_header_tags(self, version: Version) -> bool:
        """Return whether the header of a response in this version has tagged fields. That of
        ApiVersions never has: its client does not know yet which versions the broker serves."""
        return self.key != _API_VERSIONS_KEY and self.is_flexible(version)


def _api(
    key: int, name: str, versions: str, request: str, response: str, flexible: int | None = None
) -> KafkaApi:
    first, last = map(int, versions.split("-"))
    ask, answer = parse(f"{name}Request", request), parse(f"{name}Response", response)
    return KafkaApi(key, name, first, last, ask, answer, flexible)


PRODUCE: Final = _api(
    0,
    "Produce",
    "0-7",
    """
    3+transactional_id:string? acks:i16 timeout_ms:i32
    topic_data[name:string partition_data[index:i32 records:records?]]
    """,
    """
    responses[
        name:string
        partition_responses[
            index:i32 error_code:i16 base_offset:i64
            2+log_append_time_ms:i64=-1 5+log_start_offset:i64=-1
        ]
    ]
    1+throttle_time_ms:i32
    """,
)
FETCH: Final = _api(
    1,
    "Fetch",
    "4-11",
    """
    replica_id:i32=-1 max_wait_ms:i32 min_bytes:i32 3+max_bytes:i32=2147483647
    4+isolation_level:i8 7+session_id:i32 7+session_epoch:i32=-1
    topics[
        topic:string
        partitions[
            partition:i32 9+current_leader_epoch:i32=-1 fetch_offset:i64 5+log_start_offset:i64=-1
            partition_max_bytes:i32
        ]
    ]
    7+forgotten_topics_data[topic:string partitions:[i32]]
    11+rack_id:string
    """,
    """
    1+throttle_time_ms:i32 7+error_code:i16 7+session_id:i32
    responses[
        topic:string
        partitions[
            partition_index:i32 error_code:i16 high_watermark:i64 4+last_stable_offset:i64=-1
            5+log_start_offset:i64=-1 4+aborted_transactions?[producer_id:i64 first_offset:i64]
            11+preferred_read_replica:i32=-1 records:records?
        ]
    ]
    """,
)
LIST_OFFSETS: Final = _api(
    2,
    "ListOffsets",
    "1-5",
    """
    replica_id:i32=-1 2+isolation_level:i8
    topics[
        name:string partitions[partition_index:i32 4+current_leader_epoch:i32=-1 timestamp:i64]
    ]
    """,
    """
    2+throttle_time_ms:i32
    topics[
        name:string
        partitions[
            partition_index:i32 error_code:i16 1+timestamp:i64=-1 1+offset:i64=-1
            4+leader_epoch:i32=-1
        ]
    ]
    """,
)
METADATA: Final = _api(
    3,
    "Metadata",
    "0-10",
    """
    topics?1+[10+topic_id:uuid name:string?10+] 4+allow_auto_topic_creation:bool=1
    8+include_cluster_authorized_operations:bool 8+include_topic_authorized_operations:bool
    """,
    """
    3+throttle_time_ms:i32
    brokers[node_id:i32 host:string port:i32 1+rack:string?]
    2+cluster_id:string? 1+controller_id:i32=-1
    topics[
        error_code:i16 name:string 10+topic_id:uuid 1+is_internal:bool
        partitions[
            error_code:i16 partition_index:i32 leader_id:i32 7+leader_epoch:i32=-1
            replica_nodes:[i32] isr_nodes:[i32] 5+offline_replicas:[i32]
        ]
        8+topic_authorized_operations:i32=-2147483648
    ]
    8+cluster_authorized_operations:i32=-2147483648
    """,
    flexible=9,
)
OFFSET_COMMIT: Final = _api(
    8,
    "OffsetCommit",
    "2-7",
    """
    group_id:string 1+generation_id_or_member_epoch:i32=-1 1+member_id:string
    7+group_instance_id:string? 2-4:retention_time_ms:i64=-1
    topics[
        name:string
        partitions[
            partition_index:i32 committed_offset:i64 6+committed_leader_epoch:i32=-1
            committed_metadata:string?
        ]
    ]
    """,
    """
    3+throttle_time_ms:i32
    topics[name:string partitions[partition_index:i32 error_code:i16]]
    """,
)
OFFSET_FETCH: Final = _api(
    9,
    "OffsetFetch",
    "1-7",
    "group_id:string topics?2+[name:string partition_indexes:[i32]] 7+require_stable:bool",
    """
    3+throttle_time_ms:i32
    topics[
        name:string
        partitions[
            partition_index:i32 committed_offset:i64 5+committed_leader_epoch:i32=-1
            metadata:string? error_code:i16
        ]
    ]
    2+error_code:i16
    """,
    flexible=6,
)
FIND_COORDINATOR: Final = _api(
    10,
    "FindCoordinator",
    "0-2",
    "key:string 1+key_type:i8",
    """
    1+throttle_time_ms:i32 error_code:i16 1+error_message:string?
    node_id:i32 host:string port:i32
    """,
)
JOIN_GROUP: Final = _api(
    11,
    "JoinGroup",
    "0-5",
    """
    group_id:string session_timeout_ms:i32 1+rebalance_timeout_ms:i32=-1 member_id:string
    5+group_instance_id:string? protocol_type:string protocols[name:string metadata:bytes]
    """,
    """
    2+throttle_time_ms:i32 error_code:i16 generation_id:i32=-1 protocol_name:string leader:string
    member_id:string members[member_id:string 5+group_instance_id:string? metadata:bytes]
    """,
)
HEARTBEAT: Final = _api(
    12,
    "Heartbeat",
    "0-3",
    "group_id:string generation_id:i32 member_id:string 3+group_instance_id:string?",
    "1+throttle_time_ms:i32 error_code:i16",
)
LEAVE_GROUP: Final = _api(
    13,
    "LeaveGroup",
    "0-3",
    "group_id:string 0-2:member_id:string 3+members[member_id:string group_instance_id:string?]",
    """
    1+throttle_time_ms:i32 error_code:i16
    3+members[member_id:string group_instance_id:string? error_code:i16]
    """,
)
SYNC_GROUP: Final = _api(
    14,
    "SyncGroup",
    "0-3",
    """
    group_id:string generation_id:i32 member_id:string 3+group_instance_id:string?
    assignments[member_id:string assignment:bytes]
    """,
    "1+throttle_time_ms:i32 error_code:i16 assignment:bytes",
)
DESCRIBE_GROUPS: Final = _api(
    15,
    "DescribeGroups",
    "0-4",
    "groups:[string] 3+include_authorized_operations:bool",
    """
    1+throttle_time_ms:i32
    groups[
        error_code:i16 group_id:string group_state:string protocol_type:string protocol_data:string
        members[
            member_id:string 4+group_instance_id:string? client_id:string client_host:string
            member_metadata:bytes member_assignment:bytes
        ]
        3+authorized_operations:i32=-2147483648
    ]
    """,
)
LIST_GROUPS: Final = _api(
    16,
    "ListGroups",
    "0-4",
    "4+states_filter:[string]",
    """
    1+throttle_time_ms:i32 error_code:i16
    groups[group_id:string protocol_type:string 4+group_state:string]
    """,
    flexible=3,
)
API_VERSIONS: Final = _api(
    _API_VERSIONS_KEY,
    "ApiVersions",
    "0-4",
    "3+client_software_name:string 3+client_software_version:string",
    """
    error_code:i16 api_keys[api_key:i16 min_version:i16 max_version:i16] 1+throttle_time_ms:i32
    """,
    flexible=3,
)
CREATE_TOPICS: Final = _api(
    19,
    "CreateTopics",
    "0-4",
    """
    topics[
        name:string num_partitions:i32 replication_factor:i16
        assignments[partition_index:i32 broker_ids:[i32]]
        configs[name:string value:string?]
    ]
    timeout_ms:i32 1+validate_only:bool
    """,
    "2+throttle_time_ms:i32 topics[name:string error_code:i16 1+error_message:string?]",
)
DELETE_TOPICS: Final = _api(
    20,
    "DeleteTopics",
    "0-3",
    "topic_names:[string] timeout_ms:i32",
    "1+throttle_time_ms:i32 responses[name:string error_code:i16]",
)
DELETE_RECORDS: Final = _api(
    21,
    "DeleteRecords",
    "0-1",
    "topics[name:string partitions[partition_index:i32 offset:i64]] timeout_ms:i32",
    """
    throttle_time_ms:i32
    topics[name:string partitions[partition_index:i32 low_watermark:i64=-1 error_code:i16]]
    """,
)
INIT_PRODUCER_ID: Final = _api(
    22,
    "InitProducerId",
    "0-1",
    "transactional_id:string? transaction_timeout_ms:i32",
    "throttle_time_ms:i32 error_code:i16 producer_id:i64=-1 producer_epoch:i16=-1",
)
OFFSET_FOR_LEADER_EPOCH: Final = _api(
    23,
    "OffsetForLeaderEpoch",
    "2-4",
    """
    3+replica_id:i32=-2
    topics[topic:string partitions[partition:i32 2+current_leader_epoch:i32=-1 leader_epoch:i32]]
    """,
    """
    2+throttle_time_ms:i32
    topics[
        topic:string
        partitions[error_code:i16 partition:i32 1+leader_epoch:i32=-1 end_offset:i64=-1]
    ]
    """,
    flexible=4,
)
DESCRIBE_ACLS: Final = _api(
    29,
    "DescribeAcls",
    "0-1",
    """
    resource_type_filter:i8 resource_name_filter:string? 1+pattern_type_filter:i8=3
    principal_filter:string? host_filter:string? operation:i8 permission_type:i8
    """,
    """
    throttle_time_ms:i32 error_code:i16 error_message:string?
    resources[
        resource_type:i8 resource_name:string 1+pattern_type:i8=3
        acls[principal:string host:string operation:i8 permission_type:i8]
    ]
    """,
)
DESCRIBE_CONFIGS: Final = _api(
    32,
    "DescribeConfigs",
    "0-3",
    """
    resources[resource_type:i8 resource_name:string configuration_keys:[string]?]
    1+include_synonyms:bool 3+include_documentation:bool
    """,
    """
    throttle_time_ms:i32
    results[
        error_code:i16 error_message:string? resource_type:i8 resource_name:string
        configs[
            name:string value:string? read_only:bool 0-0:is_default:bool 1+config_source:i8=-1
            is_sensitive:bool 1+synonyms[name:string value:string? source:i8]
            3+config_type:i8 3+documentation:string?
        ]
    ]
    """,
)
ALTER_CONFIGS: Final = _api(
    33,
    "AlterConfigs",
    "0-1",
    """
    resources[resource_type:i8 resource_name:string configs[name:string value:string?]]
    validate_only:bool
    """,
    """
    throttle_time_ms:i32
    responses[error_code:i16 error_message:string? resource_type:i8 resource_name:string]
    """,
)
CREATE_PARTITIONS: Final = _api(
    37,
    "CreatePartitions",
    "0-1",
    """
    topics[name:string count:i32 assignments?[broker_ids:[i32]]] timeout_ms:i32 validate_only:bool
    """,
    "throttle_time_ms:i32 results[name:string error_code:i16 error_message:string?]",
)
DELETE_GROUPS: Final = _api(
    42,
    "DeleteGroups",
    "0-1",
    "groups_names:[string]",
    "throttle_time_ms:i32 results[group_id:string error_code:i16]",
)
INCREMENTAL_ALTER_CONFIGS: Final = _api(
    44,
    "IncrementalAlterConfigs",
    "0-0",
    """
    resources[
        resource_type:i8 resource_name:string
        configs[name:string config_operation:i8 value:string?]
    ]
    validate_only:bool
    """,
    """
    throttle_time_ms:i32
    responses[error_code:i16 error_message:string? resource_type:i8 resource_name:string]
    """,
)
