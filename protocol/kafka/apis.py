"""The apis that are served on Kafka's wire, with their versions and the fields of their messages;
those of the admin client are in `admin_apis`.

The versions are those of Kafka 4.1, but for what this broker does not do (docs/kafka.md). A schema
may have newer fields than the announced versions. Low minimum versions that no client uses any more
are announced on purpose: librdkafka before 2.11.1 infers features from exact old versions, and
drops compression, groups or idempotence without them.
"""

from typing import Final

from minibroker.protocol.kafka.api import API_VERSIONS_KEY, api_of

PRODUCE: Final = api_of(
    0,
    "Produce",
    "0-13",
    """
    3+transactional_id:string? acks:i16 timeout_ms:i32
    topic_data[
        0-12:name:string 13+topic_id:uuid partition_data[index:i32 records:records?]
    ]
    """,
    """
    responses[
        0-12:name:string 13+topic_id:uuid
        partition_responses[
            index:i32 error_code:i16 base_offset:i64
            2+log_append_time_ms:i64=-1 5+log_start_offset:i64=-1
            8+record_errors[batch_index:i32 batch_index_error_message:string?]
            8+error_message:string? 10+current_leader#0{leader_id:i32=-1 leader_epoch:i32=-1}
        ]
    ]
    1+throttle_time_ms:i32
    10+node_endpoints#0[node_id:i32 host:string port:i32 rack:string?]
    """,
    flexible=9,
)
FETCH: Final = api_of(
    1,
    "Fetch",
    "4-18",
    """
    0-14:replica_id:i32=-1 max_wait_ms:i32 min_bytes:i32 3+max_bytes:i32=2147483647
    4+isolation_level:i8 7+session_id:i32 7+session_epoch:i32=-1
    topics[
        0-12:topic:string 13+topic_id:uuid
        partitions[
            partition:i32 9+current_leader_epoch:i32=-1 fetch_offset:i64
            12+last_fetched_epoch:i32=-1 5+log_start_offset:i64=-1 partition_max_bytes:i32
        ]
    ]
    7+forgotten_topics_data[0-12:topic:string 13+topic_id:uuid partitions:[i32]]
    11+rack_id:string
    """,
    """
    1+throttle_time_ms:i32 7+error_code:i16 7+session_id:i32
    responses[
        0-12:topic:string 13+topic_id:uuid
        partitions[
            partition_index:i32 error_code:i16 high_watermark:i64 4+last_stable_offset:i64=-1
            5+log_start_offset:i64=-1 4+aborted_transactions?[producer_id:i64 first_offset:i64]
            11+preferred_read_replica:i32=-1 records:records?
            12+diverging_epoch#0{epoch:i32=-1 end_offset:i64=-1}
            12+current_leader#1{leader_id:i32=-1 leader_epoch:i32=-1}
        ]
    ]
    16+node_endpoints#0[node_id:i32 host:string port:i32 rack:string?]
    """,
    flexible=12,
)
LIST_OFFSETS: Final = api_of(
    2,
    "ListOffsets",
    "1-10",
    """
    replica_id:i32=-1 2+isolation_level:i8
    topics[
        name:string partitions[partition_index:i32 4+current_leader_epoch:i32=-1 timestamp:i64]
    ]
    10+timeout_ms:i32
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
    flexible=6,
)
METADATA: Final = api_of(
    3,
    "Metadata",
    "0-13",
    """
    topics?1+[10+topic_id:uuid name:string?10+] 4+allow_auto_topic_creation:bool=1
    8-10:include_cluster_authorized_operations:bool 8+include_topic_authorized_operations:bool
    """,
    """
    3+throttle_time_ms:i32
    brokers[node_id:i32 host:string port:i32 1+rack:string?]
    2+cluster_id:string? 1+controller_id:i32=-1
    topics[
        error_code:i16 name:string?12+ 10+topic_id:uuid 1+is_internal:bool
        partitions[
            error_code:i16 partition_index:i32 leader_id:i32 7+leader_epoch:i32=-1
            replica_nodes:[i32] isr_nodes:[i32] 5+offline_replicas:[i32]
        ]
        8+topic_authorized_operations:i32=-2147483648
    ]
    8-10:cluster_authorized_operations:i32=-2147483648 13+error_code:i16
    """,
    flexible=9,
)
OFFSET_COMMIT: Final = api_of(
    8,
    "OffsetCommit",
    "2-10",
    """
    group_id:string 1+generation_id_or_member_epoch:i32=-1 1+member_id:string
    7+group_instance_id:string? 2-4:retention_time_ms:i64=-1
    topics[
        0-9:name:string 10+topic_id:uuid
        partitions[
            partition_index:i32 committed_offset:i64 6+committed_leader_epoch:i32=-1
            committed_metadata:string?
        ]
    ]
    """,
    """
    3+throttle_time_ms:i32
    topics[
        0-9:name:string 10+topic_id:uuid partitions[partition_index:i32 error_code:i16]
    ]
    """,
    flexible=8,
)
OFFSET_FETCH: Final = api_of(
    9,
    "OffsetFetch",
    "1-10",
    """
    0-7:group_id:string 0-7:topics?2+[name:string partition_indexes:[i32]]
    8+groups[
        group_id:string 9+member_id:string? 9+member_epoch:i32=-1
        topics?[0-9:name:string 10+topic_id:uuid partition_indexes:[i32]]
    ]
    7+require_stable:bool
    """,
    """
    3+throttle_time_ms:i32
    0-7:topics[
        name:string
        partitions[
            partition_index:i32 committed_offset:i64 5+committed_leader_epoch:i32=-1
            metadata:string? error_code:i16
        ]
    ]
    2-7:error_code:i16
    8+groups[
        group_id:string
        topics[
            0-9:name:string 10+topic_id:uuid
            partitions[
                partition_index:i32 committed_offset:i64 committed_leader_epoch:i32=-1
                metadata:string? error_code:i16
            ]
        ]
        error_code:i16
    ]
    """,
    flexible=6,
)
FIND_COORDINATOR: Final = api_of(
    10,
    "FindCoordinator",
    "0-6",
    """
    0-3:key:string 1+key_type:i8 4+coordinator_keys:[string]
    """,
    """
    1+throttle_time_ms:i32 0-3:error_code:i16 1-3:error_message:string?
    0-3:node_id:i32 0-3:host:string 0-3:port:i32
    4+coordinators[
        key:string node_id:i32 host:string port:i32 error_code:i16 error_message:string?
    ]
    """,
    flexible=3,
)
JOIN_GROUP: Final = api_of(
    11,
    "JoinGroup",
    "0-9",
    """
    group_id:string session_timeout_ms:i32 1+rebalance_timeout_ms:i32=-1 member_id:string
    5+group_instance_id:string? protocol_type:string protocols[name:string metadata:bytes]
    8+reason:string?
    """,
    """
    2+throttle_time_ms:i32 error_code:i16 generation_id:i32=-1 7+protocol_type:string?
    protocol_name:string?7+ leader:string 9+skip_assignment:bool member_id:string
    members[member_id:string 5+group_instance_id:string? metadata:bytes]
    """,
    flexible=6,
)
HEARTBEAT: Final = api_of(
    12,
    "Heartbeat",
    "0-4",
    """
    group_id:string generation_id:i32 member_id:string 3+group_instance_id:string?
    """,
    """
    1+throttle_time_ms:i32 error_code:i16
    """,
    flexible=4,
)
LEAVE_GROUP: Final = api_of(
    13,
    "LeaveGroup",
    "0-5",
    """
    group_id:string 0-2:member_id:string
    3+members[member_id:string group_instance_id:string? 5+reason:string?]
    """,
    """
    1+throttle_time_ms:i32 error_code:i16
    3+members[member_id:string group_instance_id:string? error_code:i16]
    """,
    flexible=4,
)
SYNC_GROUP: Final = api_of(
    14,
    "SyncGroup",
    "0-5",
    """
    group_id:string generation_id:i32 member_id:string 3+group_instance_id:string?
    5+protocol_type:string? 5+protocol_name:string?
    assignments[member_id:string assignment:bytes]
    """,
    """
    1+throttle_time_ms:i32 error_code:i16 5+protocol_type:string? 5+protocol_name:string?
    assignment:bytes
    """,
    flexible=4,
)
DESCRIBE_GROUPS: Final = api_of(
    15,
    "DescribeGroups",
    "0-6",
    """
    groups:[string] 3+include_authorized_operations:bool
    """,
    """
    1+throttle_time_ms:i32
    groups[
        error_code:i16 6+error_message:string? group_id:string group_state:string
        protocol_type:string protocol_data:string
        members[
            member_id:string 4+group_instance_id:string? client_id:string client_host:string
            member_metadata:bytes member_assignment:bytes
        ]
        3+authorized_operations:i32=-2147483648
    ]
    """,
    flexible=5,
)
LIST_GROUPS: Final = api_of(
    16,
    "ListGroups",
    "0-5",
    """
    4+states_filter:[string] 5+types_filter:[string]
    """,
    """
    1+throttle_time_ms:i32 error_code:i16
    groups[group_id:string protocol_type:string 4+group_state:string 5+group_type:string]
    """,
    flexible=3,
)
API_VERSIONS: Final = api_of(
    API_VERSIONS_KEY,
    "ApiVersions",
    "0-4",
    "3+client_software_name:string 3+client_software_version:string",
    """
    error_code:i16 api_keys[api_key:i16 min_version:i16 max_version:i16] 1+throttle_time_ms:i32
    3+supported_features#0[name:string min_version:i16 max_version:i16]
    3+finalized_features_epoch#1:i64=-1
    3+finalized_features#2[name:string max_version_level:i16 min_version_level:i16]
    """,
    flexible=3,
)
INIT_PRODUCER_ID: Final = api_of(
    22,
    "InitProducerId",
    "0-5",
    """
    transactional_id:string? transaction_timeout_ms:i32 3+producer_id:i64=-1
    3+producer_epoch:i16=-1
    """,
    """
    throttle_time_ms:i32 error_code:i16 producer_id:i64=-1 producer_epoch:i16=-1
    """,
    flexible=2,
)
OFFSET_FOR_LEADER_EPOCH: Final = api_of(
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
DELETE_GROUPS: Final = api_of(
    42,
    "DeleteGroups",
    "0-2",
    "groups_names:[string]",
    "throttle_time_ms:i32 results[group_id:string error_code:i16]",
    flexible=2,
)
CONSUMER_GROUP_HEARTBEAT: Final = api_of(
    68,
    "ConsumerGroupHeartbeat",
    "0-1",
    """
    group_id:string member_id:string member_epoch:i32 instance_id:string? rack_id:string?
    rebalance_timeout_ms:i32=-1 subscribed_topic_names:[string]? 1+subscribed_topic_regex:string?
    server_assignor:string? topic_partitions?[topic_id:uuid partitions:[i32]]
    """,
    """
    throttle_time_ms:i32 error_code:i16 error_message:string? member_id:string? member_epoch:i32
    heartbeat_interval_ms:i32 assignment?{topic_partitions[topic_id:uuid partitions:[i32]]}
    """,
    flexible=0,
)
CONSUMER_GROUP_DESCRIBE: Final = api_of(
    69,
    "ConsumerGroupDescribe",
    "0-1",
    "group_ids:[string] include_authorized_operations:bool",
    """
    throttle_time_ms:i32
    groups[
        error_code:i16 error_message:string? group_id:string group_state:string group_epoch:i32
        assignment_epoch:i32 assignor_name:string
        members[
            member_id:string instance_id:string? rack_id:string? member_epoch:i32 client_id:string
            client_host:string subscribed_topic_names:[string] subscribed_topic_regex:string?
            assignment{topic_partitions[topic_id:uuid topic_name:string partitions:[i32]]}
            target_assignment{topic_partitions[topic_id:uuid topic_name:string partitions:[i32]]}
            1+member_type:i8=-1
        ]
        authorized_operations:i32=-2147483648
    ]
    """,
    flexible=0,
)
