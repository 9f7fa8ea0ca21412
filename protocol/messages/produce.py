"""PRODUCE: appends one record batch to each of one or more partitions."""

from typing import NamedTuple

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET, NO_RECORD, NO_TIMESTAMP
from minibroker.protocol.types import EMPTY_RECORDS, NodeEndpoint, Records

# Named tuples: these are made for every batch, and a frozen dataclass takes four times as long.


class PartitionProduce(NamedTuple):
    """Exactly one record batch for one partition.

    `topic_id` is the id that the topic must have (empty: not checked): a leader may know only a
    deleted topic of this name, and records appended to that one would be lost. `topic` may be ""
    beside it; then the answer has the id, too.
    """

    topic: str
    partition: int
    records: Records = EMPTY_RECORDS
    topic_id: bytes = b""


class ProduceRequest(NamedTuple):
    """`acks`: 0 no answer, 1 answer when the leader has appended, -1 when every in-sync replica
    has the records. `transactional_id` is that of transactional batches. `transaction_version` as
    in `messages.transactions`; in version 2 their partitions are added to the transaction."""

    acks: int
    timeout_ms: int = 30_000
    partitions: tuple[PartitionProduce, ...] = ()
    transactional_id: str | None = None
    transaction_version: int = 1


class PartitionProduced(NamedTuple):
    """The offset of the appended batch, or the error.

    `log_append_time_ms` is -1 unless the topic uses the append time. `leader_id` and `leader_epoch`
    are a hint that comes with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH. `wrong_record` is the
    number of the record in the batch for which it was refused; -1 if it is not for one.
    """

    topic: str
    partition: int
    error: int = 0
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start: int = NO_OFFSET
    error_message: str | None = None
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    topic_id: bytes = b""
    wrong_record: int = NO_RECORD


class ProduceResponse(NamedTuple):
    """An answer for each partition of the request, in its order. `nodes` are the leaders that
    answers name."""

    partitions: tuple[PartitionProduced, ...] = ()
    nodes: tuple[NodeEndpoint, ...] = ()
