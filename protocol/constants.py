"""Numbers that both ends of a connection must agree on: api keys, error codes, sentinels, limits.

The numbers are Kafka's public ones (its protocol guide, "API keys" and "Error codes"), because the
Kafka wire uses this table too. Nothing here is computed; the assertions at the end check the
relations between the numbers at import time.
"""

from enum import IntEnum
from typing import Final


class ApiKey(IntEnum):
    """The kind of a request. A broker lists the kinds it serves in its API_VERSIONS answer."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSETS_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    ALTER_CONFIGS = 44  # Kafka's incremental form: properties not named keep their values
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    DESCRIBE_REPLICAS = 1001  # from here on: not in Kafka
    DESCRIBE_BROKER = 1002
    PROBE = 1003
    HAND_OVER = 1004


class ConfigResourceType(IntEnum):
    """The kind of resource that a setting belongs to."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16  # of Kafka; there are none here
    GROUP = 32


class ConfigSource(IntEnum):
    """The source of a setting's value."""

    TOPIC = 1
    DYNAMIC_BROKER = 2  # a broker's own, set while it runs
    BROKER = 4  # a broker's file, environment or flags
    DEFAULT = 5
    GROUP = 8


class ConfigOperation(IntEnum):
    """A way to change a setting. The last two are for settings that are lists."""

    SET = 0
    DELETE = 1  # back to the default
    APPEND = 2
    SUBTRACT = 3


class ErrorCode(IntEnum):
    """An error on the wire. `protocol.errors` groups the codes by a client's reaction."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1  # the largest offset, and the largest time in milliseconds

# Sentinels.
NO_NODE: Final = -1  # a partition without a leader; a FETCH from a consumer
DELETED_LEADER: Final = -2  # the leader of a partition that is deleted
NO_EPOCH: Final = -1
EPOCH_DURING_DELETE: Final = -2  # in a STOP_REPLICA: whatever epoch the replica has
NO_OFFSET: Final = -1
NO_RECORD: Final = -1  # the number of a record in its batch
NO_STAMP: Final = -1  # a PROBE that confirms no answer
NO_LAPSE: Final = 0  # no lapse of a broker's lease with the controller
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OPERATIONS: Final = -(2**31)  # a description that does not say what the client may do
LATEST_TIMESTAMP: Final = -1  # LIST_OFFSETS: the high watermark (a follower: the log end)
EARLIEST_TIMESTAMP: Final = -2  # LIST_OFFSETS: the log start
MAX_TIMESTAMP: Final = -3  # LIST_OFFSETS: the first record with the largest timestamp
EARLIEST_LOCAL_TIMESTAMP: Final = -4  # LIST_OFFSETS: the log start, as without tiered storage
LATEST_TIERED_TIMESTAMP: Final = -5  # LIST_OFFSETS: none, as without tiered storage
UNKNOWN_TIMESTAMP: Final = -(2**63) + 1  # LIST_OFFSETS: one that the api's version does not have

PLAINTEXT: Final = "PLAINTEXT"  # a listener's default name, and its security protocol

# acks of a PRODUCE.
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1

# The isolation levels of FETCH and LIST_OFFSETS.
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1  # no record of a transaction that is open or aborted

# Idempotence (docs/guarantees.md).
SEQUENCE_MAX: Final = 2**31 - 1  # the sequence after it is 0
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
CACHED_BATCHES: Final = 5  # batches of a producer that a broker recognises as duplicates
IN_FLIGHT_MAX: Final = 5  # produce requests that a client may have in flight per connection

# The msgpack wire (docs/wire.md).
PREFACE: Final = b"MBK1"
FRAME_BYTES_MAX: Final = 104_857_600  # socket.request.max.bytes of Kafka
HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
# A byte of msgpack can become 80 in memory, so a request's header has a lower limit.
REQUEST_HEADER_BYTES_MAX: Final = 1024 * 1024

# Both wires. An element takes some microseconds from its decoding to its response's encoding: a
# request with more than ELEMENTS_AT_ONCE is served in turns, one with more than ELEMENTS_MAX ends
# its connection. A cluster has up to 10,000 partitions (docs/operations.md, "How large"), and a
# request may name each of them with its topic.
ELEMENTS_AT_ONCE: Final = 200
ELEMENTS_MAX: Final = 20_000
# All apis but PRODUCE. Of what they carry a broker stores at most `message.max.bytes` at once.
SMALL_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
# A response without its records.
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024

# The levels of the feature minibroker.version that this version supports. Level 1 has the formats
# of 0.1.0. What changes a format raises the last level, and writes the new format only where that
# level is finalized (docs/upgrades.md).
FEATURE_LEVEL_MIN: Final = 1
FEATURE_LEVEL_MAX: Final = 1

# Record batches (format version 2).
MAGIC: Final = 2
BATCH_HEADER_BYTES: Final = 61
BATCH_OVERHEAD_BYTES: Final = 12  # base offset and length field, not counted by the length

TOPIC_NAME_CHARS_MAX: Final = 249
OFFSETS_TOPIC: Final = "__consumer_offsets"  # stores the groups; only brokers write it
TRANSACTIONS_TOPIC: Final = "__transaction_state"  # stores the transactions; as above
# The brokers' own topics, and what they hold.
INTERNAL_TOPICS: Final = {
    OFFSETS_TOPIC: "holds the offsets of all groups; delete groups instead",
    TRANSACTIONS_TOPIC: "holds the state of all transactional ids; they expire by themselves",
}

assert CACHED_BATCHES >= IN_FLIGHT_MAX, "a re-sent batch must still be recognised"
assert REQUEST_HEADER_BYTES_MAX < HEADER_BYTES_MAX < FRAME_BYTES_MAX
# Read as the length prefix of a Kafka frame, the preface exceeds every allowed frame length.
assert int.from_bytes(PREFACE, "big") > FRAME_BYTES_MAX
