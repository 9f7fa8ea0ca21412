"""FETCH: read record batches, for consumers and for follower replicas.

Sessions: a request with session 0 and session epoch 0 opens one, and the answer names it; the
next requests carry its id and the session epochs 1, 2, ... and list only partitions that are new
or changed, and in `forgotten` those that are to go. Those go first: a partition in both lists is
told anew. Answers then hold only partitions with something to say. Epoch -1 asks for no session
(and closes the named one).
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET
from minibroker.protocol.messages import Request
from minibroker.protocol.types import EMPTY_RECORDS, Records, TopicPartition

SESSION_NONE = 0
SESSION_EPOCH_OPEN = 0
SESSION_EPOCH_NONE = -1


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """Read one partition from `fetch_offset` on.

    `leader_epoch` is the one the asker believes in (-1: not checked); `last_fetched_epoch` that
    of its last record (-1: none), by which the leader sees that the logs have parted.
    `log_start` is the follower's own. `topic_id` says which topic of this name is meant (empty: not
    checked): epochs of two of them may be equal, and a leader may know only the deleted one.
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
    """`replica_id` is -1 for a consumer. The answer comes once `bytes_min` are there, or late.

    `isolation_level` changes nothing, since there are no transactions: 0 and 1 (READ_COMMITTED)
    both read to the high watermark.
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


@dataclass(frozen=True, slots=True)
class PartitionFetched:
    """Batches from the one that holds the asked offset on; the first may begin below it.

    A `diverging_epoch` that is not -1 says where the asker's log parts from the leader's: then
    there are no records. `leader_id` and `leader_epoch` hint as in a PRODUCE answer.
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


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """`session_id` is 0 where no session was opened."""

    error: int = 0
    session_id: int = SESSION_NONE
    partitions: tuple[PartitionFetched, ...] = ()
