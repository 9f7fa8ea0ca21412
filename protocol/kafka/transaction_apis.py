"""The apis of transactions on Kafka's wire (see `apis`)."""

from typing import Final

from minibroker.protocol.kafka.api import api_of

ADD_PARTITIONS_TO_TXN: Final = api_of(
    24,
    "AddPartitionsToTxn",
    "0-5",
    """
    4+transactions[
        transactional_id:string producer_id:i64 producer_epoch:i16 verify_only:bool
        topics[name:string partitions:[i32]]
    ]
    0-3:transactional_id:string 0-3:producer_id:i64 0-3:producer_epoch:i16
    0-3:topics[name:string partitions:[i32]]
    """,
    """
    throttle_time_ms:i32 4+error_code:i16
    4+results_by_transaction[
        transactional_id:string
        topic_results[
            name:string results_by_partition[partition_index:i32 partition_error_code:i16]
        ]
    ]
    0-3:results_by_topic[
        name:string results_by_partition[partition_index:i32 partition_error_code:i16]
    ]
    """,
    flexible=3,
)
ADD_OFFSETS_TO_TXN: Final = api_of(
    25,
    "AddOffsetsToTxn",
    "0-4",
    "transactional_id:string producer_id:i64 producer_epoch:i16 group_id:string",
    "throttle_time_ms:i32 error_code:i16",
    flexible=3,
)
END_TXN: Final = api_of(
    26,
    "EndTxn",
    "0-5",
    "transactional_id:string producer_id:i64 producer_epoch:i16 committed:bool",
    "throttle_time_ms:i32 error_code:i16 5+producer_id:i64=-1 5+producer_epoch:i16=-1",
    flexible=3,
)
WRITE_TXN_MARKERS: Final = api_of(
    27,
    "WriteTxnMarkers",
    "1-1",
    """
    markers[
        producer_id:i64 producer_epoch:i16 transaction_result:bool
        topics[name:string partition_indexes:[i32]]
        coordinator_epoch:i32
    ]
    """,
    """
    markers[
        producer_id:i64 topics[name:string partitions[partition_index:i32 error_code:i16]]
    ]
    """,
    flexible=1,
)
DESCRIBE_TRANSACTIONS: Final = api_of(
    65,
    "DescribeTransactions",
    "0-0",
    "transactional_ids:[string]",
    """
    throttle_time_ms:i32
    transaction_states[
        error_code:i16 transactional_id:string transaction_state:string transaction_timeout_ms:i32
        transaction_start_time_ms:i64 producer_id:i64 producer_epoch:i16
        topics[topic:string partitions:[i32]]
    ]
    """,
    flexible=0,
)
LIST_TRANSACTIONS: Final = api_of(
    66,
    "ListTransactions",
    "0-2",
    """
    state_filters:[string] producer_id_filters:[i64] 1+duration_filter:i64=-1
    2+transactional_id_pattern:string?
    """,
    """
    throttle_time_ms:i32 error_code:i16 unknown_state_filters:[string]
    transaction_states[transactional_id:string producer_id:i64 transaction_state:string]
    """,
    flexible=0,
)
TXN_OFFSET_COMMIT: Final = api_of(
    28,
    "TxnOffsetCommit",
    "0-5",
    """
    transactional_id:string group_id:string producer_id:i64 producer_epoch:i16
    3+generation_id:i32=-1 3+member_id:string 3+group_instance_id:string?
    topics[
        name:string
        partitions[
            partition_index:i32 committed_offset:i64 2+committed_leader_epoch:i32=-1
            committed_metadata:string?
        ]
    ]
    """,
    """
    throttle_time_ms:i32 topics[name:string partitions[partition_index:i32 error_code:i16]]
    """,
    flexible=3,
)
DESCRIBE_PRODUCERS: Final = api_of(
    61,
    "DescribeProducers",
    "0-0",
    "topics[name:string partition_indexes:[i32]]",
    """
    throttle_time_ms:i32
    topics[
        name:string
        partitions[
            partition_index:i32 error_code:i16 error_message:string?
            active_producers[
                producer_id:i64 producer_epoch:i32 last_sequence:i32=-1 last_timestamp:i64=-1
                coordinator_epoch:i32 current_txn_start_offset:i64=-1
            ]
        ]
    ]
    """,
    flexible=0,
)
