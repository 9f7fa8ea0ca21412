"""FETCH: reads record batches, for consumers and for follower replicas.

Sessions: a request with session 0 and session epoch 0 opens one, and the answer names it; the
next requests carry its id and the session epochs 1, 2, ... and list only partitions that are new
or changed, and in `forgotten` those to remove. Removals come first: a partition in both lists is
added again as new. Answers then list only partitions with news. Epoch -1 requests no session (and
closes the named one).
"""

from dataclasses import dataclass
from typing import NamedTuple

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET
from minibroker.protocol.messages import Request
from minibroker.protocol.types import (
    EMPTY_RECORDS,
    NodeEndpoint,
    Records,
    TopicIdPartition,
    TopicPartition,
)

SESSION_NONE = 0
SESSION_EPOCH_OPEN = 0
SESSION_EPOCH_NONE = -1


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """Reads one partition from `fetch_offset` on.

    `leader_epoch` is the one that the sender knows (-1: not checked), `last_fetched_epoch` that of
    its last record (-1: none), by which the leader detects that the logs diverge. `log_start` is
    the follower's own. `topic_id` is the id that the topic must have (empty: not checked): two
    topics of one name may have equal epochs, and a leader may know only the deleted one.
    """

    topic: str
    partition: int
    fetch_offset: int = 0
    bytes_max: int = 1_048_576
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start: int = NO_OFFSET
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchRequest(Request["FetchResponse"]):
    """`replica_id` is -1 for a consumer. Any other negative one (-2 is Kafka's debugging reader) is
    served as a consumer. The answer is sent once `bytes_min` bytes are available, or after
    `wait_ms_max`.

    `isolation_level` is that of a consumer: 0 (READ_UNCOMMITTED) reads to the high watermark, 1
    (READ_COMMITTED) to the last stable offset.

    With `is_by_id` the topics of `partitions` are named by their ids alone, and those of the answer
    have theirs. Then `forgotten_by_id` takes the place of `forgotten`.
    """

    replica_id: int = NO_NODE
    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = 52_428_800
    session_id: int = SESSION_NONE
    session_epoch: int = SESSION_EPOCH_NONE
    partitions: tuple[PartitionFetch, ...] = ()
    forgotten: tuple[TopicPartition, ...] = ()
    isolation_level: int = 0
    broker_epoch: int = NO_EPOCH
    is_by_id: bool = False
    forgotten_by_id: tuple[TopicIdPartition, ...] = ()


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer, and the offset of its first record. It ends at the
    producer's next ABORT marker."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PartitionFetched:
    """Batches from the one that holds the requested offset on; the first may begin below it.

    If `diverging_epoch` is not -1, the sender's log diverges from the leader's at `diverging_end`,
    and there are no records. `leader_id` and `leader_epoch` are hints as in a PRODUCE answer.

    `last_stable_offset` is the offset up to which all transactions are decided.
    `aborted_transactions` are those with records among `records`, for READ_COMMITTED, else nil.
    """

    topic: str
    partition: int
    error: int = 0
    high_watermark: int = NO_OFFSET
    log_start: int = NO_OFFSET
    records: Records = EMPTY_RECORDS
    diverging_epoch: int = NO_EPOCH
    diverging_end: int = NO_OFFSET
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    topic_id: bytes = b""
    last_stable_offset: int = NO_OFFSET
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """`session_id` is 0 if there is no session. `nodes` are the leaders that answers name."""

    error: int = 0
    session_id: int = SESSION_NONE
    partitions: tuple[PartitionFetched, ...] = ()
    nodes: tuple[NodeEndpoint, ...] = ()
