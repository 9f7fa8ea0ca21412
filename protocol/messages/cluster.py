"""DESCRIBE_CLUSTER, and DESCRIBE_TOPIC_PARTITIONS: METADATA in parts, for tools."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_NODE, NO_OPERATIONS
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.metadata import BrokerMetadata, TopicMetadata

BROKERS = 1  # endpoint types
CONTROLLERS = 2
PARTITIONS_MAX = 2000  # in one answer


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    """`endpoint_type` is 1 for the addresses of brokers, the only one that is served."""

    include_cluster_operations: bool = False
    endpoint_type: int = BROKERS
    include_fenced: bool = False


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse:
    """The brokers of the cluster; `authorized_operations` as in METADATA."""

    error: int = 0
    error_message: str | None = None
    cluster_id: str = ""
    controller_id: int = NO_NODE
    brokers: tuple[BrokerMetadata, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True)
class TopicCursor:
    """The partition with which an answer begins."""

    topic: str
    partition: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    """Requests topics in the order of their names, all if `topics` is empty, from `cursor` on. An
    answer has at most `partitions_max` partitions, or 2000."""

    topics: tuple[str, ...] = ()
    partitions_max: int = PARTITIONS_MAX
    cursor: TopicCursor | None = None


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsResponse:
    """The first topic may lack its first partitions and the last one its last. `next_cursor` is nil
    if this is all."""

    topics: tuple[TopicMetadata, ...] = ()
    next_cursor: TopicCursor | None = None
