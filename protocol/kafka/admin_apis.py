"""The apis of the admin client on Kafka's wire: topics, settings, access rules (see `apis`)."""

from typing import Final

from minibroker.protocol.kafka.api import api_of

CREATE_TOPICS: Final = api_of(
    19,
    "CreateTopics",
    "0-7",
    """
    topics[
        name:string num_partitions:i32 replication_factor:i16
        assignments[partition_index:i32 broker_ids:[i32]]
        configs[name:string value:string?]
    ]
    timeout_ms:i32 1+validate_only:bool
    """,
    """
    2+throttle_time_ms:i32
    topics[
        name:string 7+topic_id:uuid error_code:i16 1+error_message:string?
        5+num_partitions:i32=-1 5+replication_factor:i16=-1
        5+configs?[
            name:string value:string? read_only:bool config_source:i8=-1 is_sensitive:bool
        ]
        5+topic_config_error_code#0:i16
    ]
    """,
    flexible=5,
)
DELETE_TOPICS: Final = api_of(
    20,
    "DeleteTopics",
    "0-6",
    """
    6+topics[name:string? topic_id:uuid] 0-5:topic_names:[string] timeout_ms:i32
    """,
    """
    1+throttle_time_ms:i32
    responses[name:string?6+ 6+topic_id:uuid error_code:i16 5+error_message:string?]
    """,
    flexible=4,
)
DELETE_RECORDS: Final = api_of(
    21,
    "DeleteRecords",
    "0-2",
    """
    topics[name:string partitions[partition_index:i32 offset:i64]] timeout_ms:i32
    """,
    """
    throttle_time_ms:i32
    topics[name:string partitions[partition_index:i32 low_watermark:i64=-1 error_code:i16]]
    """,
    flexible=2,
)
DESCRIBE_ACLS: Final = api_of(
    29,
    "DescribeAcls",
    "0-3",
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
    flexible=2,
)
ALTER_REPLICA_LOG_DIRS: Final = api_of(
    34,
    "AlterReplicaLogDirs",
    "1-2",
    "dirs[path:string topics[name:string partitions:[i32]]]",
    """
    throttle_time_ms:i32
    results[topic_name:string partitions[partition_index:i32 error_code:i16]]
    """,
    flexible=2,
)
DESCRIBE_LOG_DIRS: Final = api_of(
    35,
    "DescribeLogDirs",
    "1-4",
    "topics?[topic:string partitions:[i32]]",
    """
    throttle_time_ms:i32 3+error_code:i16
    results[
        error_code:i16 log_dir:string
        topics[
            name:string
            partitions[
                partition_index:i32 partition_size:i64 offset_lag:i64 is_future_key:bool
            ]
        ]
        4+total_bytes:i64=-1 4+usable_bytes:i64=-1
    ]
    """,
    flexible=2,
)
DESCRIBE_CONFIGS: Final = api_of(
    32,
    "DescribeConfigs",
    "0-4",
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
    flexible=4,
)
ALTER_CONFIGS: Final = api_of(
    33,
    "AlterConfigs",
    "0-2",
    """
    resources[resource_type:i8 resource_name:string configs[name:string value:string?]]
    validate_only:bool
    """,
    """
    throttle_time_ms:i32
    responses[error_code:i16 error_message:string? resource_type:i8 resource_name:string]
    """,
    flexible=2,
)
CREATE_PARTITIONS: Final = api_of(
    37,
    "CreatePartitions",
    "0-3",
    """
    topics[name:string count:i32 assignments?[broker_ids:[i32]]] timeout_ms:i32 validate_only:bool
    """,
    "throttle_time_ms:i32 results[name:string error_code:i16 error_message:string?]",
    flexible=2,
)
INCREMENTAL_ALTER_CONFIGS: Final = api_of(
    44,
    "IncrementalAlterConfigs",
    "0-1",
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
    flexible=1,
)
ELECT_LEADERS: Final = api_of(
    43,
    "ElectLeaders",
    "0-2",
    """
    1+election_type:i8 topic_partitions?[topic:string partitions:[i32]] timeout_ms:i32=60000
    """,
    """
    throttle_time_ms:i32 1+error_code:i16
    replica_election_results[
        topic:string partition_result[partition_id:i32 error_code:i16 error_message:string?]
    ]
    """,
    flexible=2,
)
ALTER_PARTITION_REASSIGNMENTS: Final = api_of(
    45,
    "AlterPartitionReassignments",
    "0-1",
    """
    timeout_ms:i32=60000 1+allow_replication_factor_change:bool=1
    topics[name:string partitions[partition_index:i32 replicas:[i32]?]]
    """,
    """
    throttle_time_ms:i32 1+allow_replication_factor_change:bool=1 error_code:i16
    error_message:string?
    responses[
        name:string partitions[partition_index:i32 error_code:i16 error_message:string?]
    ]
    """,
    flexible=0,
)
LIST_PARTITION_REASSIGNMENTS: Final = api_of(
    46,
    "ListPartitionReassignments",
    "0-0",
    "timeout_ms:i32=60000 topics?[name:string partition_indexes:[i32]]",
    """
    throttle_time_ms:i32 error_code:i16 error_message:string?
    topics[
        name:string
        partitions[
            partition_index:i32 replicas:[i32] adding_replicas:[i32] removing_replicas:[i32]
        ]
    ]
    """,
    flexible=0,
)
OFFSET_DELETE: Final = api_of(
    47,
    "OffsetDelete",
    "0-0",
    "group_id:string topics[name:string partitions[partition_index:i32]]",
    """
    error_code:i16 throttle_time_ms:i32
    topics[name:string partitions[partition_index:i32 error_code:i16]]
    """,
)
UPDATE_FEATURES: Final = api_of(
    57,
    "UpdateFeatures",
    "0-2",
    """
    timeout_ms:i32=60000
    feature_updates[
        feature:string max_version_level:i16 0-0:allow_downgrade:bool 1+upgrade_type:i8=1
    ]
    1+validate_only:bool
    """,
    """
    throttle_time_ms:i32 error_code:i16 error_message:string?
    0-1:results[feature:string error_code:i16 error_message:string?]
    """,
    flexible=0,
)
DESCRIBE_CLUSTER: Final = api_of(
    60,
    "DescribeCluster",
    "0-2",
    """
    include_cluster_authorized_operations:bool 1+endpoint_type:i8=1 2+include_fenced_brokers:bool
    """,
    """
    throttle_time_ms:i32 error_code:i16 error_message:string? 1+endpoint_type:i8=1
    cluster_id:string controller_id:i32=-1
    brokers[broker_id:i32 host:string port:i32 rack:string? 2+is_fenced:bool]
    cluster_authorized_operations:i32=-2147483648
    """,
    flexible=0,
)
LIST_CONFIG_RESOURCES: Final = api_of(
    74,
    "ListConfigResources",
    "0-1",
    "1+resource_types:[i8]",
    """
    throttle_time_ms:i32 error_code:i16
    config_resources[resource_name:string 1+resource_type:i8=16]
    """,
    flexible=0,
)
DESCRIBE_TOPIC_PARTITIONS: Final = api_of(
    75,
    "DescribeTopicPartitions",
    "0-0",
    """
    topics[name:string] response_partition_limit:i32=2000
    cursor?{topic_name:string partition_index:i32}
    """,
    """
    throttle_time_ms:i32
    topics[
        error_code:i16 name:string? topic_id:uuid is_internal:bool
        partitions[
            error_code:i16 partition_index:i32 leader_id:i32 leader_epoch:i32=-1
            replica_nodes:[i32] isr_nodes:[i32] eligible_leader_replicas:[i32]?
            last_known_elr:[i32]? offline_replicas:[i32]
        ]
        topic_authorized_operations:i32=-2147483648
    ]
    next_cursor?{topic_name:string partition_index:i32}
    """,
    flexible=0,
)
